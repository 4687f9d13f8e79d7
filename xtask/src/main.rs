//! Repository chores. `cargo xtask` without a command lists them.

mod face;
mod fuzz;
mod instructions;
mod locks;
mod process;
mod programs;
mod sanitizers;
mod semver;
mod shapes;
mod suites;
mod table;
mod test;
mod tidy;

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use test::Level;

const HELP: &str = "\
cargo xtask test    format, lints, every test in one profile, examples in the documentation
      --full        also release builds, every backend, loom and shuttle models, tokio's libraries, documentation
      --rest        what --full runs besides `cargo xtask test`
      --all         also every combination of weights and shares, the DataFusion adapter, all tests of tokio and of
                    its libraries through the face, the public interface beside that of the last version,
                    AddressSanitizer, ThreadSanitizer and Miri where they are, and a soak of a billion wakes
cargo xtask instructions [CASE]
                    counts what a poll with its wake costs, under callgrind, beside tokio's: instructions, and
                    those that lock; only the cases whose name contains CASE
cargo xtask tidy [--parts]
                    counts what keeps the code readable: lines, words, names, circles of imports, files; fails
                    above a limit
cargo xtask semver [REVISION]
                    compares the public interface of the product's crates with that of a revision: the last tag, or
                    the commit before this one
cargo xtask fuzz [SECONDS]
                    fuzzes each reader for 60 s or so many, where there is a nightly and cargo-fuzz
cargo xtask face    prepares the package in tokio's place (`adapters/tokio`), and calls clippy and its tests
cargo xtask suites [NAME…] [--sample] [--tokio VERSION] [--times N] [--resume]
                    runs the tests of tokio and of libraries that use it on tokio and through `adapters/tokio`, and
                    compares; with --times the tests that make a multi-thread runtime N times and the other ones
                    N / 20 times; --resume goes on where a run was ended
cargo xtask shapes [NAME…] [--rounds N] [--out FOLDER] [--profile]
                    times programs written for tokio (`peers/shapes`, benches of h2 and deadpool) through
                    `adapters/tokio` beside tokio, in alternating processes; with --profile counts instructions and
                    system calls of an operation
cargo xtask programs [NAME…] [--build | --quick | --soak] [--out FOLDER]
                    runs programs that use tokio, adopted by `warmcore adopt`, under load, with and without WARMCORE=0,
                    and checks their answers: three minutes each, or ten with --soak, without WARMCORE=0; --build
                    only builds them; what is built takes up to 5 GB in target/programs
cargo xtask peers   tests the DataFusion adapter; builds and times the heavy peers, and draws them into
                    the report";

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let test = |from, to| test::run(&root(), test::Range { from, to });
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => test(Level::Test, Level::Test),
        ["test", "--full"] => test(Level::Test, Level::Full),
        ["test", "--rest"] => test(Level::Full, Level::Full),
        ["test", "--all"] => test(Level::Test, Level::All),
        ["instructions"] => instructions::run(&root(), ""),
        ["instructions", case] => instructions::run(&root(), case),
        ["tidy"] => tidy::run(&root(), false),
        ["tidy", "--parts"] => tidy::run(&root(), true),
        ["semver"] => semver::run(&root(), None),
        ["semver", revision] => semver::run(&root(), Some(revision)),
        ["fuzz"] => fuzz::run(&root(), "60"),
        ["fuzz", seconds] => fuzz::run(&root(), seconds),
        ["face"] => face::run(&root()),
        ["suites", ref args @ ..] => suites::run(&root(), args),
        ["shapes", ref args @ ..] => shapes::run(&root(), args),
        ["programs", ref args @ ..] => programs::run(&root(), args),
        ["peers"] => peers(),
        _ => {
            eprintln!("{HELP}");
            std::process::exit(2);
        }
    }
}

/// The repository: the folder above this package's.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Tests the adapter, then builds the peers and measures them, each in its own workspace, and draws the report's page
/// again.
fn peers() -> anyhow::Result<()> {
    const OUT: &str = "warmcore-report";
    let root = root();
    std::fs::create_dir_all(root.join(OUT))?;
    let json = format!("{OUT}/peers.json");
    let calls: [&[&str]; 3] = [
        &["test", "--release", "--manifest-path", "adapters/datafusion/Cargo.toml"],
        &["run", "--release", "--manifest-path", "peers/Cargo.toml", "--", "--json", &json],
        &["run", "--release", "--", "report", "--render", "--out", OUT],
    ];
    for args in calls {
        let status = process::cargo(&root, args).status().context("can't run cargo")?;
        if !status.success() {
            bail!("`cargo {}` failed", args.join(" "));
        }
    }
    Ok(())
}
