//! Checks that each lock file agrees with its manifests.
//!
//! The workspaces other than the main one (`fuzz`, `peers` and so on) are rarely built, and depend on crates of the
//! main workspace by path. A new dependency of such a crate makes their lock files stale, and then building these
//! workspaces with `--locked` fails. The check reads the index of the registry and downloads no crate.

use crate::process::cargo;
use anyhow::Context;
use std::path::Path;
use std::process::Output;

/// The workspaces, by their folders.
pub const WORKSPACES: [&str; 7] =
    [".", "fuzz", "peers", "peers/ecosystem", "peers/mini-redis", "adapters/datafusion", "scx"];

/// What cargo found about a lock file.
#[derive(Debug, PartialEq, Eq)]
enum Lock {
    Current,
    /// Cargo would change it.
    Stale,
    /// Cargo could not check it, because the network or the index is missing. The text is cargo's error.
    Unknown(String),
    /// Cargo could not check it for another reason, such as a manifest that can't be read.
    Failed(String),
}

/// Texts in cargo's errors if the network or the index is missing.
const AWAY: [&str; 6] = [
    "--offline",
    "failed to download",
    "download of ",
    "spurious network error",
    "failed to query replaced source",
    "Unable to update registry",
];

impl Lock {
    /// The result of `cargo update --workspace --locked`, from its success and its errors.
    fn of(is_success: bool, errors: &str) -> Self {
        if is_success {
            return Self::Current;
        }
        if errors.contains("because --locked was passed") {
            return Self::Stale;
        }
        let why = errors.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed");
        let why = why.to_owned();
        if AWAY.iter().any(|text| errors.contains(text)) { Self::Unknown(why) } else { Self::Failed(why) }
    }
}

/// Checks all workspaces and prints the result. Returns whether no lock file is stale (`Lock::Stale`) and no check
/// failed (`Lock::Failed`).
pub fn check(root: &Path) -> anyhow::Result<bool> {
    let mut all = Vec::new();
    for folder in WORKSPACES {
        let manifest = Path::new(folder).join("Cargo.toml");
        let mut update = cargo(root, &["update", "--workspace", "--locked", "--manifest-path"]);
        update.arg(manifest);
        // One attempt is enough to find out that there is no network.
        let Output { status, stderr, .. } =
            update.env("CARGO_NET_RETRY", "0").output().context("can't run cargo")?;
        all.push((folder, Lock::of(status.success(), &String::from_utf8_lossy(&stderr))));
    }
    let (lines, is_well) = report(&all);
    lines.iter().for_each(|line| println!("{line}"));
    Ok(is_well)
}

/// The lines to print about the lock files of these folders, and whether the check passes. A line begins with `ok` only
/// if a lock file was compared and the check passes.
fn report(all: &[(&str, Lock)]) -> (Vec<String>, bool) {
    let mut lines = Vec::new();
    for (folder, lock) in all {
        if let Lock::Unknown(why) = lock {
            lines.push(format!("skip  {:<28} {folder}: {why}", "lock files"));
        }
    }
    let is_well = !all.iter().any(|(_, lock)| matches!(lock, Lock::Stale | Lock::Failed(_)));
    match is_well {
        true if all.iter().any(|(_, lock)| *lock == Lock::Current) => {
            lines.push("ok    lock files".to_owned())
        }
        true => {}
        false => lines.push("FAIL  lock files".to_owned()),
    }
    for (folder, lock) in all {
        match lock {
            Lock::Current | Lock::Unknown(_) => {}
            Lock::Stale => lines.push(format!(
                "{folder}/Cargo.lock is not what its manifests ask for: \
                 cargo update --workspace --manifest-path {folder}/Cargo.toml"
            )),
            Lock::Failed(why) => lines.push(format!(
                "{folder}/Cargo.lock was not compared: {why}: \
                 cargo update --workspace --locked --manifest-path {folder}/Cargo.toml"
            )),
        }
    }
    (lines, is_well)
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
        let offline = "error: no matching package named `anyhow` found\nAs a reminder, you're using offline mode (--offline)";
        assert!(matches!(Lock::of(false, offline), Lock::Unknown(_)));
        let wrong = "error: failed to load manifest for dependency `none`\n\nCaused by:\n  failed to read `none/Cargo.toml`";
        assert_eq!(
            Lock::of(false, wrong),
            Lock::Failed("error: failed to load manifest for dependency `none`".into())
        );
    }

    #[test]
    fn the_step_is_ok_only_if_a_lock_file_was_compared_and_none_is_wrong() {
        let away = || Lock::Unknown("error: away".into());
        let said = |locks: [Lock; 2]| {
            let [a, b] = locks;
            let (lines, is_well) = report(&[("a", a), ("b", b)]);
            let is_ok = lines.iter().any(|line| line.starts_with("ok "));
            let is_fail = lines.iter().any(|line| line.starts_with("FAIL "));
            assert_eq!(is_fail, !is_well);
            (is_ok, is_well)
        };
        assert_eq!(said([Lock::Current, Lock::Current]), (true, true));
        assert_eq!(said([Lock::Current, away()]), (true, true));
        assert_eq!(said([away(), away()]), (false, true), "skipped");
        assert_eq!(said([Lock::Current, Lock::Stale]), (false, false));
        assert_eq!(said([away(), Lock::Failed("error: wrong".into())]), (false, false));
    }

    #[test]
    fn each_workspace_with_a_lock_file_is_checked() {
        let root = crate::root();
        for folder in WORKSPACES {
            assert!(root.join(folder).join("Cargo.lock").is_file(), "{folder}");
        }
        let listed =
            std::process::Command::new("git").args(["ls-files", "*Cargo.lock"]).current_dir(&root).output();
        // In a copy of the sources without git, nothing is listed.
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
