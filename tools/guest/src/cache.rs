//! Where kernels and programs are kept between two commands.

use crate::kernel::Kernel;
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};

/// A folder with the kernels and the programs of the guest.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// In this folder.
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// In `$XDG_CACHE_HOME/warmcore/guest`, or in `~/.cache` if that is not set.
    ///
    /// # Errors
    /// Neither variable is set.
    pub fn of_user() -> anyhow::Result<Self> {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
        let folder =
            cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set; use --cache DIR")?;
        Ok(Self { root: folder.join("warmcore/guest") })
    }

    /// A folder in it, which is made.
    pub(crate) fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.root.join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
        Ok(folder)
    }

    /// A program of the guest.
    ///
    /// # Errors
    /// It has not been built.
    pub(crate) fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        let program = self.root.join("bin").join(name);
        ensure!(
            program.is_file(),
            "{} does not exist: `warmcore guest prepare` builds Warmcore's programs, and `prepare --rival NAME` a scheduler \
             that `guest list` lists; another one is put there by hand, linked statically",
            program.display()
        );
        Ok(program)
    }

    /// Kernels that were fetched, the newest first.
    pub fn kernels(&self) -> Vec<Kernel> {
        let folders = std::fs::read_dir(self.root.join("kernels")).into_iter().flatten().flatten();
        let mut kernels: Vec<Kernel> =
            folders.filter_map(|folder| Kernel::read(&folder.path()).ok()).collect();
        kernels.sort_by_key(|kernel| std::cmp::Reverse(kernel.version()));
        kernels
    }

    /// The newest kernel whose release begins with `version`, or the file that it names.
    ///
    /// # Errors
    /// There is none.
    pub fn kernel(&self, version: &str) -> anyhow::Result<Kernel> {
        if version.contains('/') {
            return Kernel::of_file(Path::new(version));
        }
        let kernels = self.kernels();
        let found = kernels.iter().find(|kernel| kernel.is(version)).cloned();
        found.with_context(|| {
            let there = kernels.iter().map(|kernel| kernel.release.as_str()).collect::<Vec<_>>().join(", ");
            format!(
                "no kernel {version} in {} (there: {there}); `warmcore guest prepare --kernel {version}` fetches one",
                self.root.display()
            )
        })
    }
}
