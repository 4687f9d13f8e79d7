//! `cargo xtask face`: clippy and tests of the face, the package in tokio's place (`adapters/tokio`).
//!
//! Cargo can't build that package where it stands, because its manifest is a template. `warmcore adopt` prepares it for a
//! program, without its tests. This command copies what was prepared, adds the tests and the workspace's lints, and
//! calls Cargo there, with Warmcore's scheduler and with tokio's.

use crate::process::cargo;
use anyhow::{Context, ensure};
use std::fs;
use std::path::Path;

/// The program that is adopted. Its tokio is the one of this workspace's lock file.
const PROGRAM: &str = "[package]\nname = \"face-program\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
                       tokio = { version = \"1\", features = [\"full\"] }\n";

/// Where `warmcore adopt` writes, in the program's folder.
const PREPARED: &str = ".warmcore/run-warmcore-adopt";

const FEATURES: &str = "full,test-util";

/// Prepares the face in `target/face`, and tests it.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let (program, tested) = (root.join("target/face/program"), root.join("target/face/tested"));
    fs::create_dir_all(program.join("src"))?;
    fs::write(program.join("src/lib.rs"), "")?;
    fs::write(program.join("Cargo.toml"), PROGRAM)?;
    fs::copy(root.join("Cargo.lock"), program.join("Cargo.lock"))?;
    let folder = program.to_str().context("the path of the repository is not UTF-8")?;
    call(root, &["run", "-p", "warmcore-cli", "--", "adopt", folder], None)?;

    let _ = fs::remove_dir_all(tested.join("tokio"));
    copy(&program.join(PREPARED), &tested, &|_| true)?;
    let is_test =
        |path: &Path| path.ends_with("tests.rs") || path.components().any(|part| part.as_os_str() == "tests");
    let source = root.join("adapters/tokio");
    copy(&source, &tested.join("tokio"), &|path| path.strip_prefix(&source).is_ok_and(is_test))?;
    fs::copy(root.join("Cargo.lock"), tested.join("Cargo.lock"))?;
    let (manifest, workspace) =
        (tested.join("tokio/Cargo.toml"), fs::read_to_string(root.join("Cargo.toml"))?);
    fs::write(&manifest, with_lints(&fs::read_to_string(&manifest)?, &workspace)?)?;

    let clippy = ["clippy", "-p", "tokio", "--all-targets", "--features", FEATURES, "--", "-D", "warnings"];
    call(&tested, &clippy, None)?;
    let test = ["test", "-p", "tokio", "--features", FEATURES];
    call(&tested, &test, None)?;
    call(&tested, &[&test[..], &["--tests"]].concat(), Some(("WARMCORE", "0")))
}

fn call(folder: &Path, args: &[&str], env: Option<(&str, &str)>) -> anyhow::Result<()> {
    let text = format!(
        "{}cargo {}",
        env.map_or(String::new(), |(key, value)| format!("{key}={value:?} ")),
        args.join(" ")
    );
    println!("{text}");
    let status = cargo(folder, args).envs(env).status().context("can't run cargo")?;
    ensure!(status.success(), "`{text}` failed in {}", folder.display());
    Ok(())
}

/// Copies the files below `from` that are wanted and not the same in `to`, so that Cargo builds again only what changed.
fn copy(from: &Path, to: &Path, is_wanted: &dyn Fn(&Path) -> bool) -> anyhow::Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("can't read {}", from.display()))? {
        let path = entry?.path();
        let to = to.join(path.file_name().context("a file without a name")?);
        if path.is_dir() {
            copy(&path, &to, is_wanted)?;
        } else if is_wanted(&path) {
            let bytes = fs::read(&path)?;
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                fs::create_dir_all(to.parent().unwrap_or(&to))?;
                fs::write(&to, bytes)?;
            }
        }
    }
    Ok(())
}

/// The prepared manifest with the workspace's lints, in the place of the line that allows all warnings.
fn with_lints(manifest: &str, workspace: &str) -> anyhow::Result<String> {
    let sections = |text: &str, name: &str, is_wanted: bool| {
        let starts: Vec<usize> =
            text.match_indices("\n[").map(|(at, _)| at + 1).chain([text.len()]).collect();
        let sections = starts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        sections.filter(|section| section.starts_with(name) == is_wanted).collect::<String>()
    };
    let lints = sections(workspace, "[workspace.lints.", true).replace("[workspace.lints.", "[lints.");
    let head = &manifest[..manifest.find("\n[").map_or(0, |at| at + 1)];
    let rest = sections(manifest, "[lints.", false);
    ensure!(!lints.is_empty() && head.len() + rest.len() < manifest.len(), "no lints to replace");
    Ok(format!("{head}{rest}\n{lints}"))
}

#[cfg(test)]
mod tests {
    use super::with_lints;

    #[test]
    fn the_prepared_manifest_gets_the_lints_of_the_workspace() {
        let prepared = "# written\n[package]\nname = \"tokio\"\n\n[lints.rust]\nwarnings = \"allow\"\n\n[features]\na = []\n";
        let workspace =
            "[workspace]\n[workspace.lints.rust]\nmissing_docs = \"deny\"\n[profile.release]\nlto = true\n";
        let expected = "# written\n[package]\nname = \"tokio\"\n\n[features]\na = []\n\n[lints.rust]\nmissing_docs = \"deny\"\n";
        assert_eq!(with_lints(prepared, workspace).unwrap(), expected);
        assert!(with_lints("# written\n[package]\nname = \"tokio\"\n", workspace).is_err());
    }
}
