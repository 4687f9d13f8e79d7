//! `cargo xtask semver`: compares the public interface of each product crate, but for procedural macros, with that of
//! an earlier revision.

use crate::process::{cargo, git};
use anyhow::{Context, bail};
use std::path::Path;

/// Compares with `revision`; without one, with the newest tag of this commit or one before it, else with the commit
/// before this one.
pub fn run(root: &Path, revision: Option<&str>) -> anyhow::Result<()> {
    let revision = match revision {
        Some(revision) => revision.to_owned(),
        None => git(root, &["describe", "--tags", "--abbrev=0"])
            .or_else(|_| git(root, &["rev-parse", "HEAD^"]))?,
    };
    println!("the public interface, compared with that of {revision}");
    let mut check = cargo(root, &["semver-checks", "--baseline-rev", &revision]);
    for krate in product(root)? {
        check.args(["-p", &krate]);
    }
    match check.status().context("can't run cargo")?.success() {
        true => Ok(()),
        false => {
            bail!("`cargo semver-checks` failed, or is not installed: `cargo install cargo-semver-checks`")
        }
    }
}

/// The names of the packages in `crates/`. Crates of procedural macros are left out, because they have no interface to
/// compare.
fn product(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("crates"))? {
        let manifest = entry?.path().join("Cargo.toml");
        let Ok(text) = std::fs::read_to_string(manifest) else { continue };
        let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        names.extend(name.filter(|_| !text.contains("proc-macro = true")).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_that_users_link_are_compared() {
        let names = product(&crate::root()).unwrap();
        assert!(names.iter().any(|name| name == "warmcore") && names.len() > 8, "{names:?}");
        assert!(!names.iter().any(|name| name.ends_with("-derive")), "{names:?}");
    }
}
