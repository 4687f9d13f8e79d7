//! `cargo xtask fuzz`: runs each target of `fuzz/` for some time, if there is a nightly toolchain with cargo-fuzz.
//!
//! The corpus of a target is unpacked into `target/fuzz`, so that inputs which a run adds are not committed. An input
//! that takes more than 20 s or 2 GiB is a failure, and so is a panic.

use crate::process::{cargo, succeeds};
use anyhow::{Context, bail, ensure};
use std::path::Path;
use std::process::Command;

/// Checks that the targets can run on this machine. The error names what is missing.
fn is_possible() -> Result<(), String> {
    if !succeeds("cargo", &["+nightly", "--version"]) {
        return Err("no nightly toolchain: `rustup toolchain install nightly`".into());
    }
    if !succeeds("cargo", &["+nightly", "fuzz", "--version"]) {
        return Err("no cargo-fuzz: `cargo install cargo-fuzz`".into());
    }
    Ok(())
}

/// Runs each target for this number of seconds. If that is impossible, only prints what is missing.
pub fn run(root: &Path, seconds: u32) -> anyhow::Result<()> {
    if let Err(why) = is_possible() {
        println!("skip  {:<22} {why}", "fuzz");
        return Ok(());
    }
    let mut failed = Vec::new();
    for name in targets(root)? {
        let corpus = root.join("target/fuzz/corpus").join(&name);
        std::fs::create_dir_all(&corpus)?;
        let archive = root.join(format!("fuzz/corpus/{name}.tar"));
        let unpacked = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&corpus).status();
        ensure!(unpacked.context("can't run tar")?.success(), "{} is no archive", archive.display());
        let mut fuzzer = cargo(root, &["+nightly", "fuzz", "run", "--target-dir", "target/fuzz", &name]);
        fuzzer.arg(&corpus);
        fuzzer.args(["--", &format!("-max_total_time={seconds}"), "-timeout=20", "-rss_limit_mb=2048"]);
        let ok = fuzzer.status().context("can't run cargo fuzz")?.success();
        println!("{}  fuzz {name}", if ok { "ok  " } else { "FAIL" });
        failed.extend((!ok).then_some(name));
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// The names of the targets in the manifest.
fn targets(root: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join("fuzz/Cargo.toml"))?;
    let names: Vec<String> =
        text.split("[[bin]]").skip(1).filter_map(|bin| Some(bin.split('"').nth(1)?.to_owned())).collect();
    ensure!(!names.is_empty(), "fuzz/Cargo.toml names no target");
    Ok(names)
}
