//! What has to be on the machine, and the command that installs it.

use std::path::{Path, PathBuf};

/// A program or a file that a step needs, and the Debian package that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Any of these programs, or of these files if they begin with a slash.
    pub any: &'static [&'static str],
    /// The package.
    pub package: &'static str,
}

/// To boot a guest.
pub const BOOT: &[Need] = &[
    Need { any: &["qemu-system-x86_64"], package: "qemu-system-x86" },
    Need { any: &["/usr/share/qemu/qboot.rom", "/usr/share/qboot/qboot.rom"], package: "qemu-system-data" },
];

/// To fetch kernels.
pub const FETCH: &[Need] = &[
    Need { any: &["apt-get"], package: "apt" },
    Need { any: &["dpkg-deb"], package: "dpkg" },
    Need { any: &["zstd"], package: "zstd" },
    Need { any: &["/usr/sbin/bpftool", "bpftool"], package: "bpftool" },
];

/// To build the guest's programs.
pub const BUILD: &[Need] = &[
    Need { any: &["cargo"], package: "cargo" },
    Need {
        any: &["clang-23", "clang-22", "clang-21", "clang-20", "clang-19", "clang-18", "clang"],
        package: "clang-19",
    },
    Need { any: &["cc"], package: "gcc" },
    Need { any: &["pkg-config"], package: "pkg-config" },
    Need { any: &["/usr/lib/x86_64-linux-gnu/libelf.a"], package: "libelf-dev" },
    Need { any: &["/usr/lib/x86_64-linux-gnu/libz.a"], package: "zlib1g-dev" },
];

impl Need {
    /// Where it is.
    pub fn found(&self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        self.any.iter().find_map(|name| match name.starts_with('/') {
            true => Some(Path::new(name)).filter(|file| file.exists()).map(Path::to_owned),
            false => folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file()),
        })
    }
}

/// What is missing of all these, in words, with the command that installs it. `None`: nothing.
pub fn missing<'a>(needs: impl IntoIterator<Item = &'a Need>) -> Option<String> {
    let missing: Vec<&Need> = needs.into_iter().filter(|need| need.found().is_none()).collect();
    let names: Vec<&str> = missing.iter().map(|need| need.any[0]).collect();
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    (!missing.is_empty())
        .then(|| format!("missing: {}; on Debian: apt-get install {}", names.join(", "), packages.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let there = Need { any: &["/"], package: "base-files" };
        let not = Need { any: &["no-such-program", "/no/such/file"], package: "such" };
        assert_eq!(missing([&there]), None);
        assert_eq!(
            missing([&there, &not]).as_deref(),
            Some("missing: no-such-program; on Debian: apt-get install such")
        );
    }
}
