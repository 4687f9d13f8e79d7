//! A project of a reader's own, outside of the workspace: what it depends on, and whether it builds.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A package that exists for as long as this does.
pub struct Project {
    _folder: TempDir,
    path: PathBuf,
    target: PathBuf,
}

/// Cargo as the reader runs it: the workspace's flags are not the reader's, and nothing is downloaded.
fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS").env("CARGO_NET_OFFLINE", "true");
    cargo
}

/// The dependency that every project has, with these features.
pub fn warmcore(options: &str) -> String {
    format!("warmcore = {{ path = {:?}{options} }}\n", env!("CARGO_MANIFEST_DIR"))
}

impl Project {
    /// `cargo new`, these lines below `[dependencies]`, and this program. `name` is unique among tests that run at
    /// once: it names the folder where things are built.
    pub fn new(name: &str, dependencies: &str, program: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made =
            cargo().args(["new", "--quiet", "--vcs", "none", name]).current_dir(&folder).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let this = std::env::current_exe().unwrap();
        let target = this.ancestors().nth(3).expect("target/PROFILE/deps/TEST").join("tests").join(name);
        let path = folder.path().join(name);
        let mut manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
        // As fast as it builds.
        manifest.push_str(&format!("{dependencies}[profile.dev]\ndebug = false\n"));
        std::fs::write(path.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(path.join("src/main.rs"), program).unwrap();
        // The versions that the workspace has are those that are here; cargo leaves out what is not needed.
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
        std::fs::copy(lock, path.join("Cargo.lock")).unwrap();
        Self { _folder: folder, path, target }
    }

    /// Runs cargo in it. `None`: a crate is not on this machine.
    pub fn cargo(&self, args: &[&str]) -> Option<Output> {
        let mut cargo = cargo();
        let cargo = cargo.args(args).env("CARGO_TARGET_DIR", &self.target).current_dir(&self.path);
        let output = cargo.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_missing =
            ["offline", "no matching package", "failed to download", "failed to select a version"];
        if !output.status.success() && is_missing.iter().any(|text| errors.contains(text)) {
            eprintln!("skipped: a crate is not on this machine, and nothing is downloaded:\n{errors}");
            return None;
        }
        Some(output)
    }

    /// One of its files.
    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path.join(file)).unwrap()
    }

    /// Builds it, and says where the program is. `None`: a crate is not on this machine.
    pub fn build(&self, name: &str) -> Option<PathBuf> {
        let built = self.cargo(&["build", "--quiet", "--offline", "--message-format", "short"])?;
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(self.target.join("debug").join(name))
    }
}
