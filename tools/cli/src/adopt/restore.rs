//! What `adopt` changes, put back on an error or a signal; and the copies with which `--undo` puts it back later.

use super::manifest::FOLDER;
use super::prepare::{self, Files};
use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};
use warmcore_results::write_whole;

/// The two files of a workspace that adopting changes: Cargo.toml, which exists, and Cargo.lock, which may not.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    pub manifest: Vec<u8>,
    pub lock: Option<Vec<u8>>,
}

impl Pair {
    /// Reads both from `folder`. A missing manifest is an error.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("Cargo.toml");
        let manifest = fs::read(&path).with_context(|| format!("can't read {}", path.display()))?;
        Ok(Self { manifest, lock: fs::read(folder.join("Cargo.lock")).ok() })
    }

    /// Writes what differs.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let (manifest, lock) = (folder.join("Cargo.toml"), folder.join("Cargo.lock"));
        if fs::read(&manifest).ok().as_ref() != Some(&self.manifest) {
            write_whole(&manifest, &self.manifest)?;
        }
        match &self.lock {
            Some(bytes) if fs::read(&lock).ok().as_ref() != Some(bytes) => write_whole(&lock, bytes)?,
            None if lock.exists() => {
                fs::remove_file(&lock).with_context(|| format!("can't remove {}", lock.display()))?;
            }
            _ => {}
        }
        Ok(())
    }

    pub fn manifest_text(&self) -> anyhow::Result<&str> {
        std::str::from_utf8(&self.manifest).context("Cargo.toml is not UTF-8")
    }

    pub fn lock_text(&self) -> anyhow::Result<&str> {
        std::str::from_utf8(self.lock.as_deref().unwrap_or_default()).context("Cargo.lock is not UTF-8")
    }
}

/// Puts a workspace back when it is dropped, unless [`keep`](Self::keep) was called.
pub struct Restore {
    root: PathBuf,
    pub before: Pair,
    /// The prepared folder is a new one; the one from before, if any, is in `temporary("old")`.
    is_replaced: bool,
    had_home: bool,
    is_kept: bool,
}

impl Restore {
    pub fn new(root: &Path) -> anyhow::Result<Self> {
        let had_home = home(root).exists();
        Ok(Self {
            root: root.to_owned(),
            before: Pair::read(root)?,
            is_replaced: false,
            had_home,
            is_kept: false,
        })
    }

    /// Puts the prepared folder in place as a whole; an equal one stays. Returns whether it was written.
    pub fn install(&mut self, files: &Files, is_vendored: bool) -> anyhow::Result<bool> {
        let (home, folder) = (home(&self.root), self.root.join(FOLDER));
        fs::create_dir_all(&home).with_context(|| format!("can't make {}", home.display()))?;
        // The copies for `--undo` are this machine's.
        write_whole(&home.join(".gitignore"), if is_vendored { b"/undo/\n" } else { b"*\n" })?;
        if prepare::is_same(&folder, files) {
            return Ok(false);
        }
        prepare::write(&self.temporary("new"), files)?;
        if folder.exists() {
            fs::rename(&folder, self.temporary("old")).context("can't move the prepared folder away")?;
        }
        self.is_replaced = true;
        fs::rename(self.temporary("new"), &folder)
            .with_context(|| format!("can't make {}", folder.display()))?;
        Ok(true)
    }

    /// A folder of this process beside the prepared one.
    fn temporary(&self, name: &str) -> PathBuf {
        home(&self.root).join(format!("{name}-{}", std::process::id()))
    }

    /// Everything stays as it is now.
    pub fn keep(mut self) {
        self.is_kept = true;
        _ = fs::remove_dir_all(self.temporary("old"));
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if let Err(error) = self.before.write(&self.root) {
            eprintln!(
                "warmcore: {error:#}; its content from before is in {}",
                home(&self.root).join("undo").display()
            );
            return;
        }
        let folder = self.root.join(FOLDER);
        if self.is_replaced {
            _ = fs::remove_dir_all(&folder);
            _ = fs::rename(self.temporary("old"), &folder);
        }
        _ = fs::remove_dir_all(self.temporary("new"));
        if !self.had_home {
            _ = fs::remove_dir_all(home(&self.root));
        }
    }
}

/// The folder `.warmcore` of a workspace.
pub fn home(root: &Path) -> PathBuf {
    root.join(".warmcore")
}

fn copies(root: &Path) -> (PathBuf, PathBuf) {
    (home(root).join("undo/before"), home(root).join("undo/after"))
}

/// Keeps both files as they are before the first adoption.
pub fn record_before(root: &Path, before: &Pair) -> anyhow::Result<()> {
    record(&copies(root).0, before)
}

/// Keeps both files as they are after an adoption. If `before`, which had been adopted, was edited since, the copies
/// from before the first adoption lack those edits and are removed.
pub fn record_after(root: &Path, before: &Pair, after: &Pair, was_adopted: bool) -> anyhow::Result<()> {
    let last = copies(root).1;
    if was_adopted && Pair::read(&last).ok().as_ref() != Some(before) {
        return forget(root);
    }
    record(&last, after)
}

fn record(folder: &Path, pair: &Pair) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    pair.write(folder)
}

/// Both files as they were before the first adoption, if they are now as the last one left them.
pub fn recorded(root: &Path) -> Option<Pair> {
    let (first, last) = copies(root);
    (Pair::read(&last).ok()? == Pair::read(root).ok()?).then(|| Pair::read(&first).ok())?
}

/// Removes the copies.
pub fn forget(root: &Path) -> anyhow::Result<()> {
    let path = home(root).join("undo");
    if path.exists() {
        fs::remove_dir_all(&path).with_context(|| format!("can't remove {}", path.display()))?;
    }
    Ok(())
}
