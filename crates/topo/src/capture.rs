//! Captures: one text file that holds the files of `/sys` and `/proc` from which a topology is read.
//!
//! A line is `path`, a tab, and the first line of that file. A line that begins with a tab is the next line of
//! the file above it. `path/` without a tab is a directory of which only the name is known; a symbolic link is
//! written in the same way. Paths are relative to the root. Empty lines and lines that begin with `#` are
//! comments. In a file's text `\\` is a backslash and `\xHH` the byte of that number; one line end at the end of
//! a file is left out.
//!
//! [`Topology::capture`] writes all that this crate's readers use of the files, so the topology read from the capture
//! equals the one read from the original files, except for the paths in it. A capture of 384 CPUs has 20 000 lines.

use crate::files::Files;
use crate::{TopoError, Topology, cgroup};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;
use std::fs;
use std::path::{Component, Path, PathBuf};

#[cfg(test)]
mod tests;

/// The first line of a capture.
const HEAD: &str = "# Files of /sys and /proc, as `warmcore topo --save` writes them: path, tab, text.";

/// The files of a /sys tree that a capture holds: folders, and names in them. `#` stands for a number, `*` for
/// any name.
const KEPT: [(&str, &[&str]); 5] = [
    ("devices/system/cpu", &["online", "possible", "present", "offline", "isolated", "nohz_full"]),
    ("devices/system/cpu/cpu#", &["online", "node#"]),
    ("devices/system/cpu/cpu#/topology", &["*"]),
    (
        "devices/system/cpu/cpu#/cache/index#",
        &[
            "type",
            "level",
            "size",
            "id",
            "shared_cpu_list",
            "shared_cpu_map",
            "coherency_line_size",
            "ways_of_associativity",
        ],
    ),
    ("devices/system/node/node#", &["cpulist", "cpumap", "distance"]),
];

/// Returns the lines of a text that a capture holds.
type Choose = fn(&str) -> Vec<&str>;

/// The files of `/proc` that a capture holds, each with the choice of its lines.
const LINES: [(&str, Choose); 4] = [
    ("proc/self/status", |text| {
        let kept = ["Name:", "Cpus_allowed", "Mems_allowed"];
        text.lines().filter(|line| kept.iter().any(|start| line.starts_with(start))).collect()
    }),
    // The file has a block for each CPU, and the first one names the processor.
    ("proc/cpuinfo", |text| text.lines().take_while(|line| !line.is_empty()).collect()),
    ("proc/self/cgroup", |text| text.lines().collect()),
    ("proc/self/mountinfo", |text| text.lines().filter(|line| line.contains("cgroup")).collect()),
];

/// The files that limit a cgroup's CPU time.
const LIMITS: [&str; 4] = ["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us"];

/// The files of a capture by their paths from the root; a directory of which only the name is known has no text.
pub(crate) type Entries = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl Topology {
    /// Copies the files from which a topology is read into one text, which [`Topology::from_captured`] reads.
    ///
    /// `root` is `/` or a copy of it, or a /sys tree. Of `/proc` the capture holds the files with the CPUs on which the
    /// process may run (this one, or the one that made the copy), its quota, and the processor's name.
    ///
    /// # Errors
    /// Returns an error if `root` has neither `devices/system/cpu` nor `sys/devices/system/cpu`.
    pub fn capture(root: &Path) -> Result<String, TopoError> {
        let mut entries = Entries::new();
        let sys = if root.join("sys/devices/system/cpu").is_dir() { "sys" } else { "" };
        if !root.join(sys).join("devices/system/cpu").is_dir() {
            let fact = "is no directory here, nor below sys/";
            return Err(TopoError::missing(root.join("devices/system/cpu"), fact)
                .or_else("give the directory of a /sys tree: the one that contains devices/"));
        }
        for folder in ["devices/system/cpu", "devices/system/node"] {
            copy_tree(root, &Path::new(sys).join(folder), Path::new(sys), &mut entries);
        }
        for (path, choose) in LINES {
            if let Ok(Some(bytes)) = Files::Folder.bytes(&root.join(path)) {
                let lines = choose(&String::from_utf8_lossy(&bytes)).join("\n");
                entries.insert(path.into(), Some(lines.into_bytes()));
            }
        }
        for (folder, _) in cgroup::ancestors(&Files::Folder, root, &mut Vec::new()).unwrap_or_default() {
            let Some(name) = folder.strip_prefix(root).ok().filter(|_| folder.is_dir()) else { continue };
            entries.insert(name.to_owned(), None);
            LIMITS.iter().for_each(|limit| copy_file(root, &name.join(limit), &mut entries));
        }
        Ok(write(&entries))
    }
}

/// Copies the files of `folder` and of the folders below it that [`KEPT`] lists. Files that cannot be read are
/// left out: some files of sysfs can only be written.
fn copy_tree(root: &Path, folder: &Path, sys: &Path, entries: &mut Entries) {
    let Ok(listed) = fs::read_dir(root.join(folder)) else { return };
    for entry in listed.flatten() {
        let path = folder.join(entry.file_name());
        let is_kept = path.strip_prefix(sys).unwrap_or(&path).to_str().is_some_and(is_kept);
        let Some(kind) = entry.file_type().ok().filter(|_| is_kept) else { continue };
        if kind.is_file() {
            copy_file(root, &path, entries);
        } else {
            entries.insert(path.clone(), None);
            if kind.is_dir() {
                copy_tree(root, &path, sys, entries);
            }
        }
    }
}

/// Whether [`KEPT`] has a path, or paths below it.
fn is_kept(path: &str) -> bool {
    KEPT.iter().any(|(folder, names)| {
        let mut rest = path.split('/');
        for pattern in folder.split('/') {
            match rest.next() {
                None => return true,
                Some(name) if !fits(pattern, name) => return false,
                Some(_) => {}
            }
        }
        let name = rest.next();
        name.is_none_or(|name| names.iter().any(|pattern| fits(pattern, name))) && rest.next().is_none()
    })
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('#') {
        Some(start) => name.strip_prefix(start).is_some_and(|number| number.parse::<u32>().is_ok()),
        None => pattern == "*" || pattern == name,
    }
}

fn copy_file(root: &Path, path: &Path, entries: &mut Entries) {
    if let Ok(Some(bytes)) = Files::Folder.bytes(&root.join(path)) {
        entries.insert(path.to_owned(), Some(bytes));
    }
}

/// The text of a capture.
fn write(entries: &Entries) -> String {
    let mut text = format!("{HEAD}\n");
    let mut paths = entries.iter().peekable();
    while let Some((path, bytes)) = paths.next() {
        // The format has no escapes for paths, since no path of sysfs needs them.
        let Some(name) = path.to_str().filter(|name| !name.contains(['\t', '\n', '\r'])) else { continue };
        match bytes {
            Some(bytes) => _ = writeln!(text, "{name}\t{}", escape(bytes)),
            // A folder that has entries needs no line.
            None if paths.peek().is_some_and(|(next, _)| next.starts_with(path)) => {}
            None => _ = writeln!(text, "{name}/"),
        }
    }
    text
}

fn escape(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push_str("\n\t"),
                '\\' => text.push_str("\\\\"),
                '\t' => text.push(c),
                c if c.is_ascii_control() => _ = write!(text, "\\x{:02x}", u32::from(c)),
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| _ = write!(text, "\\x{byte:02x}"));
    }
    text
}

/// Reads the text of a capture, the file `from`.
pub(crate) fn parse(text: &str, from: &Path) -> Result<Entries, TopoError> {
    let mut entries = Entries::new();
    let mut above: Option<PathBuf> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |fact: &str| TopoError::malformed(from, format!("line {number} {fact}"));
        if let Some(more) = line.strip_prefix('\t') {
            let file = above.as_ref().and_then(|path| entries.get_mut(path)?.as_mut());
            let bytes = file.ok_or_else(|| wrong("begins with a tab, and no file is above it"))?;
            bytes.push(b'\n');
            unescape(more, bytes).map_err(&wrong)?;
            continue;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (path, first) = match (line.split_once('\t'), line.strip_suffix('/')) {
            (Some((path, first)), _) => (Path::new(path), Some(first)),
            (None, Some(path)) => (Path::new(path), None),
            (None, None) => return Err(wrong("has no tab; expected a path, a tab and that file's text")),
        };
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(wrong(
                "has a path that is not below the root; expected one like devices/system/cpu/online",
            ));
        }
        let mut bytes = Vec::new();
        unescape(first.unwrap_or_default(), &mut bytes).map_err(&wrong)?;
        match entries.entry(path.to_owned()) {
            Entry::Vacant(entry) => _ = entry.insert(first.map(|_| bytes)),
            Entry::Occupied(_) => return Err(wrong("names a path for the second time")),
        }
        above = Some(path.to_owned());
    }
    // The paths below a path follow it directly.
    for ((path, bytes), below) in entries.iter().zip(entries.keys().skip(1)) {
        if bytes.is_some() && below.starts_with(path) {
            let fact = format!("has {} as a file and as a directory", path.display());
            return Err(TopoError::malformed(from, fact));
        }
    }
    Ok(entries)
}

/// Appends the bytes that an escaped line stands for.
fn unescape(line: &str, bytes: &mut Vec<u8>) -> Result<(), &'static str> {
    let mut rest = line;
    while let Some((plain, escape)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        let number = escape.strip_prefix('x').and_then(|digits| digits.get(..2));
        let byte = match number {
            Some(digits) => u8::from_str_radix(digits, 16).ok(),
            None => escape.starts_with('\\').then_some(b'\\'),
        };
        bytes.push(byte.ok_or("has a backslash; expected two of them, or \\x and two digits")?);
        rest = &escape[if number.is_some() { 3 } else { 1 }..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(())
}
