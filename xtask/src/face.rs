//! `cargo xtask face`: clippy and tests of the face, the package in tokio's place (`adapters/tokio`).
//!
//! Cargo can't build that package where it stands, because its manifest is a template. `warmcore adopt` prepares it for a
//! program, without its tests. This command copies what was prepared, adds the tests and the workspace's lints, and
//! calls Cargo there, with Warmcore's scheduler, with tokio's, and with tokio's unstable interface.

use crate::process::cargo;
use crate::suites::{TOKIO, face::prepare, host::copy};
use crate::test::Live;
use anyhow::{Context, ensure};
use std::fs;
use std::path::Path;

const FEATURES: &str = "full,test-util";

/// Lets the libraries that the tests use have the face too.
const PATCH: &str = "\n[patch.crates-io]\ntokio = { path = \"tokio\" }\n";

/// The environment for tokio's unstable interface, in a folder of its own: other flags build everything again.
const UNSTABLE: [(&str, &str); 2] =
    [("RUSTFLAGS", "--cfg tokio_unstable"), ("CARGO_TARGET_DIR", "target/unstable")];

/// Prepares the face in `target/face`, and tests it.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let tested = root.join("target/face/tested");
    let prepared = prepare(root, &root.join("target/face/program"), TOKIO, &mut Live::new())?;
    let _ = fs::remove_dir_all(tested.join("tokio"));
    copy(prepared.parent().context("a package without a workspace")?, &tested, &|_| true)?;
    let is_test =
        |path: &Path| path.ends_with("tests.rs") || path.components().any(|part| part.as_os_str() == "tests");
    let source = root.join("adapters/tokio");
    copy(&source, &tested.join("tokio"), &|path| path.strip_prefix(&source).is_ok_and(is_test))?;
    fs::copy(root.join("Cargo.lock"), tested.join("Cargo.lock"))?;
    let manifest = tested.join("tokio/Cargo.toml");
    let [prepared, workspace, template] =
        [manifest.clone(), root.join("Cargo.toml"), source.join("Cargo.toml")].map(fs::read_to_string);
    fs::write(&manifest, for_tests(&prepared?, &workspace?, &template?)?)?;
    fs::write(tested.join("Cargo.toml"), fs::read_to_string(tested.join("Cargo.toml"))? + PATCH)?;

    let clippy = ["clippy", "-p", "tokio", "--all-targets", "--features", FEATURES, "--", "-D", "warnings"];
    call(&tested, &clippy, &[])?;
    let test = ["test", "-p", "tokio", "--features", FEATURES];
    call(&tested, &test, &[])?;
    let test = [&test[..], &["--tests"]].concat();
    call(&tested, &test, &[("WARMCORE", "0")])?;
    call(&tested, &[&test[..], &["--features", "tracing"]].concat(), &UNSTABLE)
}

fn call(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    let env_text: String = env.iter().map(|(key, value)| format!("{key}={value:?} ")).collect();
    let text = format!("{env_text}cargo {}", args.join(" "));
    println!("{text}");
    let status = cargo(folder, args).envs(env.iter().copied()).status().context("can't run cargo")?;
    ensure!(status.success(), "`{text}` failed in {}", folder.display());
    Ok(())
}

/// The prepared manifest with the dependencies of the template's tests, and with the workspace's lints in the place of the
/// line that allows all warnings.
fn for_tests(manifest: &str, workspace: &str, template: &str) -> anyhow::Result<String> {
    let sections = |text: &str, name: &str, is_wanted: bool| {
        let starts: Vec<usize> =
            text.match_indices("\n[").map(|(at, _)| at + 1).chain([text.len()]).collect();
        let sections = starts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        sections.filter(|section| section.starts_with(name) == is_wanted).collect::<String>()
    };
    let lints = sections(workspace, "[workspace.lints.", true).replace("[workspace.lints.", "[lints.");
    let tests = ["[dev-dependencies", "[target.'cfg(tokio_unstable)'.dev-dependencies"];
    let tests: String = tests.iter().map(|name| sections(template, name, true)).collect();
    let head = &manifest[..manifest.find("\n[").map_or(0, |at| at + 1)];
    let rest = sections(manifest, "[lints.", false);
    ensure!(!lints.is_empty() && head.len() + rest.len() < manifest.len(), "no lints to replace");
    Ok(format!("{head}{rest}\n{lints}{tests}"))
}

#[cfg(test)]
mod tests {
    use super::for_tests;

    #[test]
    fn the_prepared_manifest_gets_the_workspaces_lints_and_the_templates_dependencies_of_tests() {
        let prepared = "# written\n[package]\nname = \"tokio\"\n\n[lints.rust]\nwarnings = \"allow\"\n\n[features]\na = []\n";
        let workspace =
            "[workspace]\n[workspace.lints.rust]\nmissing_docs = \"deny\"\n[profile.release]\nlto = true\n";
        let template = "[package]\n[dev-dependencies]\nb = \"1\"\n\n[lints]\nworkspace = true\n";
        let expected = "# written\n[package]\nname = \"tokio\"\n\n[features]\na = []\n\n[lints.rust]\nmissing_docs = \"deny\"\n\
                        [dev-dependencies]\nb = \"1\"\n\n";
        assert_eq!(for_tests(prepared, workspace, template).unwrap(), expected);
        assert!(for_tests("# written\n[package]\nname = \"tokio\"\n", workspace, template).is_err());
    }
}
