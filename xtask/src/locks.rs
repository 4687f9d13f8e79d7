//! Locks: whether each lock file says what its manifests ask for.
//!
//! The workspaces beside the main one (`fuzz`, `peers` and so on) are built seldom, and depend on crates of the main
//! one by path: a new dependency there makes their lock files stale, and `--locked` fails for whoever builds them.
//! Cargo reads the index for it and downloads no crate.

use crate::cargo;
use anyhow::Context;
use std::path::Path;
use std::process::Output;

/// The workspaces, by their folders.
pub const WORKSPACES: [&str; 6] =
    [".", "fuzz", "peers", "peers/ecosystem", "peers/mini-redis", "adapters/datafusion"];

/// What cargo found of a lock file.
#[derive(Debug, PartialEq, Eq)]
enum Lock {
    Current,
    /// It would be changed.
    Stale,
    /// Cargo could not tell, and said why: without a network it may have no index.
    Unknown(String),
}

impl Lock {
    /// From how `cargo update --workspace --locked` ended.
    fn of(is_success: bool, errors: &str) -> Self {
        if is_success {
            return Self::Current;
        }
        if errors.contains("because --locked was passed") {
            return Self::Stale;
        }
        let why = errors.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed");
        Self::Unknown(why.to_owned())
    }
}

/// Prints a line; says whether no lock file is stale.
pub fn check(root: &Path) -> anyhow::Result<bool> {
    let mut stale = Vec::new();
    for folder in WORKSPACES {
        let manifest = Path::new(folder).join("Cargo.toml");
        let mut update = cargo(root);
        update.args(["update", "--workspace", "--locked", "--manifest-path"]).arg(manifest);
        // Without a network it is known at once.
        let Output { status, stderr, .. } =
            update.env("CARGO_NET_RETRY", "0").output().context("can't run cargo")?;
        match Lock::of(status.success(), &String::from_utf8_lossy(&stderr)) {
            Lock::Current => {}
            Lock::Stale => stale.push(folder),
            Lock::Unknown(why) => println!("skip  {:<22} {folder}: {why}", "lock files"),
        }
    }
    println!("{}  lock files", if stale.is_empty() { "ok  " } else { "FAIL" });
    for folder in &stale {
        println!(
            "{folder}/Cargo.lock is not what its manifests ask for: \
             cargo update --workspace --manifest-path {folder}/Cargo.toml"
        );
    }
    Ok(stale.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_is_stale_only_where_cargo_would_change_it() {
        assert_eq!(Lock::of(true, "note: 3 unchanged"), Lock::Current);
        let stale = "    Locking 1 package\nerror: cannot update the lock file /x/Cargo.lock because --locked was passed \
                     to prevent this\nhelp: remove --locked";
        assert_eq!(Lock::of(false, stale), Lock::Stale);
        let away =
            "warning: spurious network error\nerror: failed to get `anyhow` as a dependency\n\nCaused by: …";
        assert_eq!(
            Lock::of(false, away),
            Lock::Unknown("error: failed to get `anyhow` as a dependency".into())
        );
    }

    #[test]
    fn each_workspace_with_a_lock_file_is_looked_at() {
        let root = crate::root();
        for folder in WORKSPACES {
            assert!(root.join(folder).join("Cargo.lock").is_file(), "{folder}");
        }
        let listed =
            std::process::Command::new("git").args(["ls-files", "*Cargo.lock"]).current_dir(&root).output();
        // A copy of the sources without git has none to list.
        let listed =
            listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        for file in listed.lines() {
            let folder =
                file.strip_suffix("Cargo.lock").expect("that is what was asked for").trim_end_matches('/');
            let folder = if folder.is_empty() { "." } else { folder };
            assert!(WORKSPACES.contains(&folder), "{folder} is in no list");
        }
    }
}
