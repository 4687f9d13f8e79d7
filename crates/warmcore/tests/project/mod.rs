//! Builds a package outside of the workspace that depends on `warmcore`, as a package of a user does.
//!
//! Nothing is downloaded: the crates that such a package needs were needed to build this test too, at the same versions
//! and from the same sources. No test is skipped, so a missing crate fails the test.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A package in a temporary folder, which is removed when this is dropped.
pub struct Project {
    _folder: TempDir,
    path: PathBuf,
    target: PathBuf,
}

/// Cargo as a user runs it, without the workspace's `RUSTFLAGS`; it downloads nothing. Cargo runs in a folder of the
/// workspace, so that it finds the workspace's configuration and takes crates from the same source, such as a mirror or
/// a vendored folder.
fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS").env("CARGO_NET_OFFLINE", "true");
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}

/// The line of `[dependencies]` for `warmcore`. `options` is TOML that follows the path, such as `, default-features =
/// false`.
pub fn warmcore(options: &str) -> String {
    format!("warmcore = {{ path = {:?}{options} }}\n", env!("CARGO_MANIFEST_DIR"))
}

impl Project {
    /// Creates a package by `cargo new`, with `dependencies` as the lines below `[dependencies]`, and `program` as
    /// `main.rs`. `name` also names the build's folder, so it must be unique among tests that run at the same time.
    pub fn new(name: &str, dependencies: &str, program: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let made = cargo().args(["new", "--quiet", "--vcs", "none"]).arg(&path).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let this = std::env::current_exe().unwrap();
        let target = this.ancestors().nth(3).expect("target/PROFILE/deps/TEST").join("tests").join(name);
        let mut manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
        // Without debug information it builds faster.
        manifest.push_str(&format!("{dependencies}[profile.dev]\ndebug = false\n"));
        std::fs::write(path.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(path.join("src/main.rs"), program).unwrap();
        // The versions of the workspace's lock file are available without a download. Cargo drops the entries that are
        // not needed.
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
        std::fs::copy(lock, path.join("Cargo.lock")).unwrap();
        Self { _folder: folder, path, target }
    }

    /// Runs a command of cargo on the package.
    ///
    /// # Panics
    ///
    /// If the command fails; the message has cargo's stderr.
    pub fn cargo(&self, command: &str, args: &[&str]) -> Output {
        let mut cargo = cargo();
        cargo.arg(command).arg("--manifest-path").arg(self.path.join("Cargo.toml")).args(args);
        let output = cargo.env("CARGO_TARGET_DIR", &self.target).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo {command} {args:?}: {}\n{errors}", output.status);
        output
    }

    /// Returns the text of one of the package's files.
    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path.join(file)).unwrap()
    }

    /// Builds the package and returns the path of its program `name`.
    pub fn build(&self, name: &str) -> PathBuf {
        self.cargo("build", &["--quiet", "--offline", "--message-format", "short"]);
        self.target.join("debug").join(name)
    }
}
