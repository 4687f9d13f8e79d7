//! A kernel that was fetched.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A kernel, and where it comes from. A result names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its release, as `uname -r` says: `7.2.13+deb14-cloud-amd64`.
    pub release: String,
    /// The package that had it, with its version. Empty: it is a file of the user.
    pub package: String,
    /// The SHA-256 of its compressed image.
    pub sha256: String,
    /// The compressed image.
    #[serde(skip)]
    pub image: PathBuf,
}

/// The compressed image, its configuration, and what is known of it.
pub(crate) const IMAGE: &str = "vmlinuz";
pub(crate) const CONFIG: &str = "config";
pub(crate) const ABOUT: &str = "kernel.json";

impl Kernel {
    /// A kernel's folder.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(folder.join(ABOUT))?;
        let kernel: Self = serde_json::from_str(&text)?;
        Ok(Self { image: folder.join(IMAGE), ..kernel })
    }

    /// A user's own.
    pub(crate) fn of_file(image: &Path) -> anyhow::Result<Self> {
        ensure!(
            image.is_file(),
            "{} is no file; it should be a compressed kernel (vmlinuz)",
            image.display()
        );
        let release = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { release, package: String::new(), sha256: sha256(image)?, image: image.to_owned() })
    }

    /// Where the kernel's configuration lies in a guest, and here. `None`: it was not fetched. libbpf reads it for a scheduler that asks how
    /// the kernel was built, and refuses to load the scheduler without.
    pub(crate) fn config(&self) -> Option<(String, PathBuf)> {
        let name = format!("config-{}", self.release.trim_start_matches("vmlinuz-"));
        let files = [CONFIG, &name].map(|name| self.image.with_file_name(name));
        Some((format!("/boot/{name}"), files.into_iter().find(|file| file.is_file())?))
    }

    /// The numbers at the beginning of the release.
    pub fn version(&self) -> Vec<u64> {
        numbers(&self.release)
    }

    /// Whether the release begins with these numbers: 7.2.13 is 7.2 and 7.2.13, and not 7.2.1.
    pub(crate) fn is(&self, version: &str) -> bool {
        self.version().starts_with(&numbers(version)) || self.release == version
    }
}

/// The numbers at the beginning: of `7.2.13+deb14` 7, 2 and 13.
pub(crate) fn numbers(release: &str) -> Vec<u64> {
    let end = release.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(release.len());
    release[..end].split('.').filter_map(|number| number.parse().ok()).collect()
}

/// The SHA-256 of a file, by coreutils.
pub(crate) fn sha256(file: &Path) -> anyhow::Result<String> {
    let output = std::process::Command::new("sha256sum").arg(file).output().context("can't run sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split(' ')
        .next()
        .filter(|hash| hash.len() == 64)
        .map(str::to_owned)
        .context("sha256sum gave no hash")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(release: &str) -> Kernel {
        Kernel {
            release: release.into(),
            package: String::new(),
            sha256: String::new(),
            image: PathBuf::new(),
        }
    }

    #[test]
    fn a_version_is_compared_number_by_number() {
        let kernel = kernel("7.2.13+deb14-cloud-amd64");
        assert_eq!(kernel.version(), [7, 2, 13]);
        assert!(
            kernel.is("7")
                && kernel.is("7.2")
                && kernel.is("7.2.13")
                && kernel.is("7.2.13+deb14-cloud-amd64")
        );
        assert!(!kernel.is("7.2.1") && !kernel.is("7.21") && !kernel.is("7.3"));
    }
}
