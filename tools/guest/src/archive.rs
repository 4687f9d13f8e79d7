//! The initial RAM disk: an archive in cpio's "newc" format, as the kernel unpacks it.
//!
//! The bytes depend on the files' contents and nothing else: no times, no owners, the entries in the order in which they were added.
//!
//! # Source
//! Linux Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::BTreeSet;

/// An archive that is being written.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

/// `S_IFDIR` and `S_IFREG`, with the permissions of root's programs.
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

impl Archive {
    /// Adds a folder and those that it lies in.
    pub(crate) fn folder(&mut self, path: &str) {
        for (at, _) in path.match_indices('/').filter(|(at, _)| *at > 0) {
            self.one_folder(&path[..at]);
        }
        self.one_folder(path);
    }

    fn one_folder(&mut self, path: &str) {
        if self.folders.insert(path.to_owned()) {
            self.entry(path, FOLDER, &[]);
        }
    }

    /// Adds an executable file and the folders that it lies in.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        if let Some((folder, _)) = path.rsplit_once('/').filter(|(folder, _)| !folder.is_empty()) {
            self.folder(folder);
        }
        self.entry(path, FILE, content);
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        // A path in the archive begins without a slash.
        let name = path.trim_start_matches('/');
        self.entries += 1;
        let links = if mode == FOLDER { 2 } else { 1 };
        let [inode, size, name_size] = [self.entries, content.len() as u32, name.len() as u32 + 1];
        let header = [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        header.iter().for_each(|field| self.bytes.extend(format!("{field:08X}").bytes()));
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The archive's bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::needs::{Need, missing};
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn cpio_unpacks_what_was_packed() {
        if missing(&[Need { any: &["cpio"], package: "cpio" }]).is_some() {
            return eprintln!("skip: no cpio");
        }
        let mut archive = Archive::default();
        archive.folder("/proc");
        archive.file("/a/b/odd", b"odd");
        archive.file("/a/b/even", b"even");
        let folder = tempfile::tempdir().unwrap();
        let mut cpio = Command::new("cpio");
        let mut cpio =
            cpio.args(["-idm", "--quiet"]).current_dir(&folder).stdin(Stdio::piped()).spawn().unwrap();
        cpio.stdin.take().unwrap().write_all(&archive.finish()).unwrap();
        assert!(cpio.wait().unwrap().success());
        let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!([read("a/b/odd"), read("a/b/even")], ["odd", "even"]);
        assert!(folder.path().join("proc").is_dir());
    }

    #[test]
    fn the_same_files_are_the_same_bytes() {
        let make = || {
            let mut archive = Archive::default();
            archive.file("/bin/x", b"x");
            archive.finish()
        };
        assert_eq!(make(), make());
    }
}
