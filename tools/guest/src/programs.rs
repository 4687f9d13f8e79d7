//! Builds the guest's programs, all of them static.

use crate::cache::Cache;
use anyhow::{Context, ensure};
use std::path::Path;
use std::process::Command;

/// All programs are for this machine: it has a C library to link with, which is static.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the first process, the scheduler and the probe from the checkout at `root`. `types`: the kernel's, as a C header.
///
/// # Errors
/// The checkout has no `scx/`, or a program can't be built.
pub(crate) fn build(cache: &Cache, root: &Path, types: &Path, step: &dyn Fn(&str)) -> anyhow::Result<()> {
    let (bin, target) = (cache.folder("bin")?, cache.folder("target")?);
    let scx = root.join("scx");
    let init = ("the guest's first process", root, &["warmcore-guest-init"][..]);
    let kernel =
        ("the scheduler and the probe", scx.as_path(), &["scx_warm", "scx_probe", "probe-check"][..]);
    for (what, folder, programs) in [init, kernel] {
        step(what);
        let manifest = folder.join("Cargo.toml");
        ensure!(manifest.is_file(), "{} does not exist: is this a checkout of Warmcore?", manifest.display());
        let mut cargo = cargo("build", &target);
        cargo.args(["--release", "--locked", "--workspace", "--manifest-path"]).arg(&manifest);
        programs.iter().for_each(|program| _ = cargo.args(["--bin", program]));
        let output = cargo.env("WARMCORE_VMLINUX_H", types).output().context("can't run cargo")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cargo build of {what} failed:\n{}", errors.trim());
        for name in programs {
            let built = target.join(TARGET).join("release").join(name);
            let content = std::fs::read(&built).with_context(|| format!("can't read {}", built.display()))?;
            warmcore_results::write_whole(&bin.join(name), &content)?;
        }
    }
    Ok(())
}

/// Runs the tests of the scheduler's decisions, as it was built.
///
/// # Errors
/// A test fails.
pub(crate) fn test(cache: &Cache, root: &Path, types: &Path) -> anyhow::Result<()> {
    let manifest = root.join("scx/Cargo.toml");
    let mut cargo = cargo("test", &cache.folder("target")?);
    cargo
        .args(["--release", "--locked", "--quiet", "--package", "scx_warm", "--manifest-path"])
        .arg(&manifest);
    let output = cargo.env("WARMCORE_VMLINUX_H", types).output().context("can't run cargo")?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the scheduler's tests failed:\n{}", said.trim());
    Ok(())
}

/// cargo, for a static program.
pub(crate) fn cargo(what: &str, target: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo
        .args([what, "--target", TARGET, "--target-dir"])
        .arg(target)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("LIBBPF_SYS_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu");
    cargo
}
