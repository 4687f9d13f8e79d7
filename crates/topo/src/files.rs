//! Small text files and the sets of CPUs written in them, read from a folder or from a capture.
//!
//! A missing file is `None`, since most of sysfs is optional. For a file that every machine has, [`Files::need`]
//! returns an error. A file with unexpected content is an error that names the file. A file of a capture is named
//! as if the capture was a folder: `machine.txt/devices/system/cpu/online`.
//!
//! # Source
//! Linux lib/bitmap-str.c: the list format `0-3,8` and the mask format of 32-bit words, most significant first,
//! `00000001,ffffffff`. hwloc writes masks with `0x` on each word and leaves words of zero empty: `0xc0000000,,,0x0`.

use crate::TopoError;
use crate::capture::{self, Entries};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use warmcore_types::{CpuId, CpuSet};

/// A mask of more words is a broken file: this many have 1 048 576 CPUs.
const MASK_WORDS_MAX: usize = 32_768;

/// A file of this length or more does not describe a topology: the largest ones, hwloc's, have a few MiB.
const BYTES_MAX: u64 = 64 << 20;

/// Where files are read from.
pub(crate) enum Files {
    /// The file system.
    Folder,
    /// The capture of this path, with its entries.
    Capture(PathBuf, Entries),
}

impl Files {
    /// The files below `root`: those of a folder, or those in a text file that is a capture.
    pub fn below(root: &Path) -> Result<Self, TopoError> {
        if !root.is_file() {
            return Ok(Self::Folder);
        }
        let bytes = bytes_on_disk(root)?.unwrap_or_default();
        let text = std::str::from_utf8(&bytes).map_err(|_| TopoError::malformed(root, "is not text"))?;
        Ok(Self::Capture(root.to_owned(), capture::parse(text, root)?))
    }

    /// A file's bytes, or `None` if there is no such file.
    pub fn bytes(&self, path: &Path) -> Result<Option<Vec<u8>>, TopoError> {
        let (root, entries) = match self {
            Self::Folder => return bytes_on_disk(path),
            Self::Capture(root, entries) => (root, entries),
        };
        let entry = path.strip_prefix(root).ok().and_then(|name| entries.get(name));
        match entry {
            Some(None) => Err(TopoError::unreadable(path, &ErrorKind::IsADirectory.into())),
            Some(Some(bytes)) => Ok(Some(bytes.clone())),
            None => Ok(None),
        }
    }

    /// A file's text without white space at both ends, or `None` if there is no such file.
    ///
    /// NUL bytes at both ends are removed too: some kernels count a string's terminator as text. RHEL 7 shows an
    /// empty `nohz_full` as `\0\n`, and 5.15-rc1 ends `core_cpus_list` in a NUL.
    pub fn read(&self, path: &Path) -> Result<Option<String>, TopoError> {
        let Some(bytes) = self.bytes(path)? else { return Ok(None) };
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())),
            Err(_) => Err(TopoError::malformed(path, "is not text")),
        }
    }

    /// A file's text. A missing file is an error; its message uses `expected`, which describes the content.
    pub fn need(&self, path: &Path, expected: &str) -> Result<String, TopoError> {
        self.read(path)?.ok_or_else(|| TopoError::missing(path, format!("is not there; expected {expected}")))
    }

    /// Whether a directory is there.
    pub fn is_dir(&self, path: &Path) -> bool {
        match self {
            Self::Folder => path.is_dir(),
            Self::Capture(root, entries) => path.strip_prefix(root).is_ok_and(|name| {
                let at = entries.range(name.to_owned()..).next();
                at.is_some_and(|(below, bytes)| below.starts_with(name) && (below != name || bytes.is_none()))
            }),
        }
    }

    /// The set in the first of `names` that is in `dir`. A name that does not end in `list` is a mask.
    pub fn set(&self, dir: &Path, names: &[&str]) -> Result<Option<SetText>, TopoError> {
        for name in names {
            let file = dir.join(name);
            if let Some(text) = self.read(&file)? {
                return Ok(Some(SetText { file, text, is_mask: !name.ends_with("list") }));
            }
        }
        Ok(None)
    }

    /// The numbers N of the entries `<prefix>N` of a directory, ascending; none without a directory.
    pub fn numbered(&self, dir: &Path, prefix: &str) -> Result<Vec<u32>, TopoError> {
        let number = |name: &OsStr| name.to_str().and_then(|n| n.strip_prefix(prefix)?.parse::<u32>().ok());
        let mut numbers = Vec::new();
        match self {
            Self::Folder => {
                let entries = match fs::read_dir(dir) {
                    Ok(entries) => entries,
                    Err(e) if e.kind() == ErrorKind::NotFound => return Ok(numbers),
                    Err(e) => return Err(TopoError::unreadable(dir, &e)),
                };
                for entry in entries {
                    let entry = entry.map_err(|e| TopoError::unreadable(dir, &e))?;
                    numbers.extend(number(&entry.file_name()));
                }
            }
            Self::Capture(root, entries) => {
                let inside = dir.strip_prefix(root).unwrap_or(dir);
                let below =
                    entries.range(inside.to_owned()..).map_while(|(path, _)| path.strip_prefix(inside).ok());
                numbers.extend(below.filter_map(|path| number(path.components().next()?.as_os_str())));
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }
}

fn bytes_on_disk(path: &Path) -> Result<Option<Vec<u8>>, TopoError> {
    // `take` limits how much is read. It also saves the fstat with which `fs::read` gets the size: one of five
    // system calls, for tens of thousands of files.
    let mut bytes = Vec::with_capacity(256);
    match File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 == BYTES_MAX => {
            Err(TopoError::malformed(path, "is longer than any file of its kind"))
        }
        Ok(_) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(TopoError::unreadable(path, &e)),
    }
}

/// A set in the list format.
pub(crate) fn list(path: &Path, text: &str) -> Result<CpuSet, TopoError> {
    CpuSet::parse_list(text).map_err(|e| TopoError::malformed(path, e.to_string()))
}

/// A set in the mask format, the kernel's or hwloc's.
pub(crate) fn mask(path: &Path, text: &str) -> Result<CpuSet, TopoError> {
    let wrong = |why: String| TopoError::malformed(path, why);
    let words = text.split(',').rev().take(MASK_WORDS_MAX + 1).map(|word| {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        match digits {
            "" if word.is_empty() => Ok(0),
            _ if digits.len() > 8 => {
                Err(wrong(format!("`{word}` is longer than one 32-bit word of a CPU mask")))
            }
            _ => u32::from_str_radix(digits, 16).map_err(|_| {
                wrong(format!("`{word}` is no word of a CPU mask; expected one like 0x0000000f"))
            }),
        }
    });
    let words = words.collect::<Result<Vec<u32>, _>>()?;
    if words.len() > MASK_WORDS_MAX {
        return Err(wrong("is a CPU mask for more than a million CPUs".into()));
    }
    Ok(CpuSet::from_words(
        words.chunks(2).map(|w| u64::from(w[0]) | u64::from(w.get(1).copied().unwrap_or(0)) << 32),
    ))
}

/// The text of a set, from one of several files, as a list or as a mask.
pub(crate) struct SetText {
    pub file: PathBuf,
    pub text: String,
    is_mask: bool,
}

impl SetText {
    /// Whether the text is the empty set in either format.
    pub fn is_empty_set(&self) -> bool {
        self.text.is_empty() || self.is_mask && self.text.bytes().all(|b| b == b'0' || b == b',')
    }

    /// The part of the set that is in `online`: old kernels list offline siblings too.
    pub fn parse(&self, online: &CpuSet) -> Result<CpuSet, TopoError> {
        let read = if self.is_mask { mask } else { list };
        Ok(read(&self.file, &self.text)?.intersection(online))
    }
}

/// `cpu3`, as sysfs names the directory.
pub(crate) fn cpu_dir(cpus: &Path, cpu: CpuId) -> PathBuf {
    cpus.join(format!("cpu{}", cpu.0))
}
