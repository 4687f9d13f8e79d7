//! A project of a reader's own, outside of the workspace: what it depends on, and whether it builds.
//!
//! Nothing is downloaded, and nothing is skipped: what such a project needs was needed to build this test, at the same
//! versions and from the same sources. So a build that fails is broken.

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

/// Cargo as the reader runs it: the workspace's flags are not the reader's, and nothing is downloaded. It runs where the
/// workspace is, so that crates come from where the workspace has them from, a mirror or a vendored folder too.
fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS").env("CARGO_NET_OFFLINE", "true");
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
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
        let path = folder.path().join(name);
        let made = cargo().args(["new", "--quiet", "--vcs", "none"]).arg(&path).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let this = std::env::current_exe().unwrap();
        let target = this.ancestors().nth(3).expect("target/PROFILE/deps/TEST").join("tests").join(name);
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

    /// Runs a command of cargo's on it.
    ///
    /// # Panics
    ///
    /// With what cargo said, if the command fails.
    pub fn cargo(&self, command: &str, args: &[&str]) -> Output {
        let mut cargo = cargo();
        cargo.arg(command).arg("--manifest-path").arg(self.path.join("Cargo.toml")).args(args);
        let output = cargo.env("CARGO_TARGET_DIR", &self.target).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo {command} {args:?}: {}\n{errors}", output.status);
        output
    }

    /// One of its files.
    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path.join(file)).unwrap()
    }

    /// Builds it, and says where the program is.
    pub fn build(&self, name: &str) -> PathBuf {
        self.cargo("build", &["--quiet", "--offline", "--message-format", "short"]);
        self.target.join("debug").join(name)
    }
}
