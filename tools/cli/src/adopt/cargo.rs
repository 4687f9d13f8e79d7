//! What Cargo and rustc say of a program: `cargo metadata` and `rustc -vV`.
//!
//! Both run in the program's folder, so that its toolchain file and its `.cargo/config.toml` apply.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use warmcore_bench::measure::INTERRUPTED;

/// What Cargo prints if a patch fits no dependency. It is only a warning: the program then has the registry's package.
const UNUSED: &str = "was not used in the crate graph";

/// Cargo in a program's folder.
pub struct Cargo {
    pub folder: PathBuf,
    pub is_offline: bool,
}

/// The answer of `cargo metadata`, as far as it is used.
#[derive(Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
    pub workspace_root: PathBuf,
    /// What Cargo wrote to stderr meanwhile.
    #[serde(skip)]
    messages: String,
}

#[derive(Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// None for a path.
    pub source: Option<String>,
    pub manifest_path: PathBuf,
    /// With the implicit ones of optional dependencies.
    pub features: BTreeMap<String, Vec<String>>,
    pub rust_version: Option<String>,
    pub dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
pub struct Dependency {
    pub name: String,
    pub source: Option<String>,
}

impl Metadata {
    /// Cargo's warning that a patch to a package in `folder` fits no dependency.
    pub fn unused_patch(&self, folder: &str) -> Option<&str> {
        self.messages.lines().find(|line| line.contains(UNUSED) && line.contains(folder))
    }
}

impl Cargo {
    /// The members of the workspace of this folder and the dependencies that they declare. Nothing is resolved, so
    /// this works without a lock file and without the folder of a patch.
    pub fn members(&self) -> anyhow::Result<Metadata> {
        self.metadata(&["--no-deps"])
    }

    /// The packages that a build on this machine uses. Cargo writes a lock file if it is missing or doesn't fit, unless
    /// `args` has `--locked`.
    pub fn packages(&self, args: &[&str]) -> anyhow::Result<Metadata> {
        let host = rustc(&self.folder)?.host;
        self.metadata(&[args, &["--filter-platform", &host]].concat())
    }

    fn metadata(&self, args: &[&str]) -> anyhow::Result<Metadata> {
        let (out, messages) = self.run("metadata", &[args, &["--format-version", "1"]].concat())?;
        let read: Metadata = serde_json::from_str(&out).context("can't read the answer of cargo metadata")?;
        Ok(Metadata { messages, ..read })
    }

    /// Runs a command of Cargo; returns what it wrote to stdout and stderr.
    ///
    /// # Errors
    /// The command fails: the error has what Cargo said. A signal has arrived meanwhile.
    pub fn run(&self, command: &str, args: &[&str]) -> anyhow::Result<(String, String)> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.arg(command).args(args).args(self.is_offline.then_some("--offline"));
        let output = cargo.current_dir(&self.folder).output().context("can't run cargo")?;
        if INTERRUPTED.load(Relaxed) {
            bail!("interrupted");
        }
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            bail!("cargo {command} in {} failed:\n{}", self.folder.display(), err.trim_end());
        }
        Ok((String::from_utf8(output.stdout)?, err))
    }
}

/// The compiler that builds the program in `folder`.
pub struct Rustc {
    /// `1.95.0`
    pub release: String,
    /// `x86_64-unknown-linux-gnu`
    pub host: String,
}

pub fn rustc(folder: &Path) -> anyhow::Result<Rustc> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let output = rustc.arg("-vV").current_dir(folder).output().context("can't run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let (release, host) = (field("release: "), field("host: "));
    let (Some(release), Some(host)) = (release, host) else {
        bail!("rustc -vV failed: {}", String::from_utf8_lossy(&output.stderr).trim_end())
    };
    Ok(Rustc { release, host })
}

/// The first two numbers of a version: `1.54.1` is (1, 54).
pub fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}
