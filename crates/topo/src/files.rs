//! Files: small text files and the sets written in them, read with errors that name the file.
//!
//! Model.   A file that is not there is `None`, since most of sysfs is optional; whoever needs it
//!          says so. A file that is there and does not hold what it should is an error.
//! Source.  Linux lib/bitmap-str.c: the list format `0-3,8` and the mask format of 32-bit words,
//!          most significant first, `00000001,ffffffff`. hwloc writes masks with `0x` on each word
//!          and leaves words of zero empty: `0xc0000000,,,0x0`.

use crate::TopoError;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use warmcore_types::{CpuId, CpuSet};

/// Masks longer than this are a broken file: 32768 words name CPUs beyond one million.
const MASK_WORDS_MAX: usize = 32_768;

/// Files longer than this are none of ours: the largest, hwloc's, have a few MiB.
const BYTES_MAX: u64 = 64 << 20;

/// A file's text without the line end, or `None` if there is no such file.
///
/// NUL bytes at the end go too: some kernels count a string's terminator as text. RHEL 7 shows an empty
/// `nohz_full` as `\0\n`, and 5.15-rc1 ends `core_cpus_list` in a NUL.
pub(crate) fn read(path: &Path) -> Result<Option<String>, TopoError> {
    // `take` bounds what is read, and spares the fstat with which `fs::read` asks for the size:
    // one syscall in five, on tens of thousands of files.
    let mut bytes = Vec::with_capacity(256);
    match File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 == BYTES_MAX => {
            Err(TopoError::malformed(path, "is longer than any file of its kind"))
        }
        Ok(_) => match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())),
            Err(_) => Err(TopoError::malformed(path, "is not text")),
        },
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(TopoError::unreadable(path, &e)),
    }
}

/// A file's text; `expected` says what the file would hold.
pub(crate) fn need(path: &Path, expected: &str) -> Result<String, TopoError> {
    read(path)?.ok_or_else(|| TopoError::missing(path, format!("is not there; expected {expected}")))
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

/// A set that stands in one of several files, as a list or as a mask.
pub(crate) struct SetText {
    pub file: PathBuf,
    pub text: String,
    is_mask: bool,
}

impl SetText {
    /// The first of `names` in `dir` that is there. A name that does not end in `list` is a mask.
    pub fn find(dir: &Path, names: &[&str]) -> Result<Option<Self>, TopoError> {
        for name in names {
            let file = dir.join(name);
            if let Some(text) = read(&file)? {
                return Ok(Some(Self { file, text, is_mask: !name.ends_with("list") }));
            }
        }
        Ok(None)
    }

    /// Whether it is the empty set in either format.
    pub fn says_nothing(&self) -> bool {
        self.text.is_empty() || self.is_mask && self.text.bytes().all(|b| b == b'0' || b == b',')
    }

    /// The set, as far as it is in `online`: old kernels leave offline siblings in.
    pub fn parse(&self, online: &CpuSet) -> Result<CpuSet, TopoError> {
        let read = if self.is_mask { mask } else { list };
        Ok(read(&self.file, &self.text)?.intersection(online))
    }
}

/// The numbers N of the entries `<prefix>N` of a directory, ascending; `None` without a directory.
pub(crate) fn numbered(dir: &Path, prefix: &str) -> Result<Option<Vec<u32>>, TopoError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(TopoError::unreadable(dir, &e)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| TopoError::unreadable(dir, &e))?.file_name();
        numbers.extend(name.to_str().and_then(|n| n.strip_prefix(prefix)?.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(Some(numbers))
}

/// `cpu3`, as sysfs names the directory.
pub(crate) fn cpu_dir(cpus: &Path, cpu: CpuId) -> PathBuf {
    cpus.join(format!("cpu{}", cpu.0))
}
