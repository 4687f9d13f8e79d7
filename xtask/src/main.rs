//! Repository chores: `cargo xtask test [--all]`, `cargo xtask instructions`, `cargo xtask fuzz`, `cargo xtask peers`.
//!
//! Model.   `test` is a list of steps; each is one cargo call in an environment of its own. All
//!          run, also after a failure, so that one run tells everything; the last line counts.
//!          What a step says stands in `target/xtask` while it runs; one that says nothing for long is ended.
//! Number.  From cold 25 minutes on two cores, half of it compiling.

mod fuzz;
mod instructions;
mod locks;
mod progress;
mod sanitizers;
mod tidy;
mod tree;

use anyhow::{Context, bail};
use progress::Progress;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tree::Tree;

const HELP: &str = "\
cargo xtask test    format, clippy, every test on every backend, loom and shuttle models, docs
      --all         also the libraries of tokio's that build long, every combination of weights and shares,
                    AddressSanitizer, ThreadSanitizer and Miri where they are, and a soak of a billion wakes
cargo xtask instructions [CASE]
                    counts what a poll with its wake costs, under callgrind, beside tokio's: instructions, and
                    those that lock; only the cases whose name contains CASE
cargo xtask tidy [--parts]
                    counts what keeps the code readable: lines, words, names, circles of imports, files; fails
                    above a limit
cargo xtask fuzz [SECONDS]
                    fuzzes each reader for 60 s or so many, where there is a nightly and cargo-fuzz
cargo xtask peers   tests the DataFusion adapter; builds and times the heavy peers, and draws them into
                    the report";

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => test(false),
        ["test", "--all"] => test(true),
        ["instructions"] => instructions::run(&root(), ""),
        ["instructions", case] => instructions::run(&root(), case),
        ["tidy"] => tidy::run(&root(), false),
        ["tidy", "--parts"] => tidy::run(&root(), true),
        ["fuzz"] => fuzz::run(&root(), "60"),
        ["fuzz", seconds] => fuzz::run(&root(), seconds),
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

/// One cargo call.
struct Step {
    name: &'static str,
    env: &'static [(&'static str, &'static str)],
    /// Separated by blanks. With a toolchain before them, `+nightly`, rustup's cargo is called.
    args: &'static str,
    /// Only where restartable sequences run.
    needs_rseq: bool,
    /// A step whose output has not grown for so long is ended and shown. Compiling prints each crate and a test
    /// each result, so this is several times what the longest of them takes on two busy cores.
    silent_max: Duration,
}

const fn step(name: &'static str, args: &'static str) -> Step {
    Step { name, env: &[], args, needs_rseq: false, silent_max: Duration::from_mins(25) }
}

const STEPS: &[Step] = &[
    step("format", "fmt --all --check"),
    step("format of the peers", "fmt --manifest-path peers/Cargo.toml --check"),
    step("format of tokio's libraries", "fmt --manifest-path peers/ecosystem/Cargo.toml --check"),
    step("format of mini-redis", "fmt --manifest-path peers/mini-redis/Cargo.toml --check"),
    step("format of the adapter", "fmt --manifest-path adapters/datafusion/Cargo.toml --check"),
    step("clippy", "clippy --workspace --all-targets -- -D warnings"),
    step("all tests, debug", "test --workspace"),
    // What users link is a release: there the sections must really be used.
    step("all tests, release", "test --release --workspace"),
    Step {
        env: &[("WARMCORE_PERCPU", "rseq")],
        needs_rseq: true,
        ..step("backend rseq", "test --release -p warmcore-percpu -p warmcore-budget -p warmcore-tenant")
    },
    Step {
        env: &[("WARMCORE_PERCPU", "atomic")],
        ..step("backend atomic", "test --release -p warmcore-percpu -p warmcore-budget -p warmcore-tenant")
    },
    Step {
        env: &[("WARMCORE_PERCPU", "plain")],
        ..step("backend plain", "test --release -p warmcore-percpu -p warmcore-budget -p warmcore-tenant")
    },
    Step {
        env: &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")],
        needs_rseq: true,
        ..step(
            "own areas",
            "test --release -p warmcore-sys -p warmcore-percpu -p warmcore-budget -p warmcore-tenant",
        )
    },
    Step {
        env: &[("WARMCORE_BUDGET", "atomic")],
        ..step("strict budgets", "test --release -p warmcore-budget")
    },
    Step {
        needs_rseq: true,
        ..step(
            "lengthened sections",
            "test --release -p warmcore-sys -p warmcore-percpu -p warmcore-budget \
             --features warmcore-percpu/delay",
        )
    },
    Step {
        env: &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")],
        ..step(
            "loom models",
            "test --release -p warmcore-percpu -p warmcore-cid -p warmcore-budget --lib \
             --features warmcore-percpu/loom,warmcore-cid/loom,warmcore-budget/loom",
        )
    },
    // Tokio leaves its sockets out under `cfg(loom)`, so the runtime's models have a flag of their own.
    Step {
        env: &[("RUSTFLAGS", "--cfg warmcore_loom"), ("CARGO_TARGET_DIR", "target/warmcore_loom")],
        ..step("runtime's loom models", "test --release -p warmcore-runtime --lib --features loom -- loom")
    },
    Step {
        env: &[("RUSTFLAGS", "--cfg shuttle"), ("CARGO_TARGET_DIR", "target/shuttle")],
        ..step("shuttle models", "test --release -p warmcore-runtime --lib --features shuttle -- shuttle")
    },
    step("results as Parquet", "test --release -p warmcore-cli --lib --features parquet -- sim::"),
    step("without the runtime", "check -p warmcore --no-default-features"),
    Step {
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        ..step("docs", "doc --workspace --no-deps --document-private-items")
    },
];

/// With `--all`.
const MORE: &[Step] = &[
    step("tokio's libraries", "test --release --manifest-path peers/ecosystem/Cargo.toml"),
    step("adapter", "test --release --manifest-path adapters/datafusion/Cargo.toml"),
    // What the runtime's tests ignore: every combination of what `shares` and `weights` take samples of.
    Step {
        silent_max: Duration::from_hours(4),
        ..step(
            "every combination",
            "test --release -p warmcore-runtime --tests -- --ignored --test-threads 1",
        )
    },
    Step {
        env: &[("WARMCORE_SOAK", "1000000000")],
        // One test, which prints nothing before its end.
        silent_max: Duration::from_hours(4),
        ..step("soak", "test --release -p warmcore-runtime --test soak")
    },
];

/// Only where the target is installed: nothing here downloads.
const TARGETS: [(&str, Step); 2] = [
    (
        "aarch64-unknown-linux-gnu",
        step("aarch64 compiles", "check --target aarch64-unknown-linux-gnu -p warmcore-percpu"),
    ),
    // Budget is built, not tested: its tests bring mimalloc, in C, and that wants a compiler for musl.
    (
        "x86_64-unknown-linux-musl",
        step(
            "static, with musl",
            "test --release --target x86_64-unknown-linux-musl -p warmcore-sys -p warmcore-percpu \
             -p warmcore-cid -p warmcore-tenant -p warmcore-runtime",
        ),
    ),
];

/// How tests ended: passed, failed, ignored.
#[derive(Default, Clone, Copy)]
struct Counts([u64; 3]);

impl Counts {
    /// Adds up the lines `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn of(output: &str) -> Self {
        let mut counts = Self::default();
        for line in output.lines().filter(|l| l.starts_with("test result:")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            for pair in words.windows(2) {
                let Ok(n) = pair[0].parse::<u64>() else { continue };
                match pair[1] {
                    "passed;" => counts.0[0] += n,
                    "failed;" => counts.0[1] += n,
                    "ignored;" => counts.0[2] += n,
                    _ => {}
                }
            }
        }
        counts
    }

    fn add(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }
}

/// Runs all steps; `more` are those with `--all`.
fn test(more: bool) -> anyhow::Result<()> {
    let (root, began) = (root(), Instant::now());
    let (mut total, mut failed) = (Counts::default(), Vec::new());
    failed.extend((!locks::check(&root)?).then_some("lock files"));
    let rseq = has_rseq(&root)?;
    for step in STEPS.iter().chain(if more { MORE } else { &[] }) {
        if step.needs_rseq && !rseq {
            println!(
                "skip  {:<22} this system runs no restartable sequences: `warmcore doctor` says why",
                step.name
            );
            continue;
        }
        let (ok, counts) = run(&root, step)?;
        total.add(counts);
        failed.extend((!ok).then_some(step.name));
    }
    for (target, step) in &TARGETS {
        if !has_target(target)? {
            println!("skip  {:<22} not installed: `rustup target add {target}`", step.name);
            continue;
        }
        let (ok, counts) = run(&root, step)?;
        total.add(counts);
        failed.extend((!ok).then_some(step.name));
    }
    for planned in if more { sanitizers::steps() } else { Vec::new() } {
        match planned {
            Ok(step) => {
                let (ok, counts) = run(&root, &step)?;
                total.add(counts);
                failed.extend((!ok).then_some(step.name));
            }
            Err((name, why)) => println!("skip  {name:<22} {why}"),
        }
    }
    match instructions::is_possible() {
        Ok(()) => {
            let (ok, _) = run(&root, &step("instructions repeat", "xtask instructions channels"))?;
            failed.extend((!ok).then_some("instructions"));
        }
        Err(why) => println!("skip  {:<22} {why}", "instructions repeat"),
    }
    println!("\n{:.0} s", began.elapsed().as_secs_f64());
    let [passed, not, ignored] = total.0;
    println!("{passed} passed, {not} failed, {ignored} skipped");
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    if passed == 0 {
        bail!("no test ran");
    }
    Ok(())
}

/// Runs a step; prints a line, and all it said if it failed or fell silent.
///
/// What it says goes to files: a pipe would wait for every process that a test left behind.
fn run(root: &Path, step: &Step) -> anyhow::Result<(bool, Counts)> {
    let began = Instant::now();
    let folder = root.join("target/xtask");
    std::fs::create_dir_all(&folder)?;
    let paths =
        ["out", "err"].map(|end| folder.join(format!("{}.{end}", step.name.replace([' ', ','], "-"))));
    let [out, err] = [File::create(&paths[0])?, File::create(&paths[1])?];
    let mut cargo = if step.args.starts_with('+') { rustups_cargo(root) } else { cargo(root) };
    cargo.args(step.args.split(' ')).envs(step.env.iter().copied()).stdout(out).stderr(err);
    let mut child = cargo.spawn().with_context(|| format!("can't run cargo {}", step.args))?;
    let len = || paths.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).sum();
    let mut progress = Progress::new(began);
    let mut hung = None;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if hung.is_none() && progress.silent_for(len(), Instant::now()) > step.silent_max {
            let tree = Tree::under(child.id());
            hung = Some(tree.describe());
            tree.end();
            // Also where there is no program `kill`: this loop waits for cargo.
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let [out, err] = paths.map(|path| std::fs::read(path).unwrap_or_default());
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    let (ok, counts) = (status.success(), Counts::of(&out));
    let seconds = began.elapsed().as_secs_f64();
    let tests = match counts.0 {
        [0, 0, 0] => String::new(),
        [passed, failed, ignored] => format!("{passed} passed, {failed} failed, {ignored} ignored"),
    };
    println!("{}  {:<22} {seconds:>5.0} s  {tests}", if ok { "ok  " } else { "FAIL" }, step.name);
    if !ok {
        let env: String = step.env.iter().map(|(k, v)| format!("{k}=\"{v}\" ")).collect();
        println!("{out}\n{err}\nagain: {env}cargo {}", step.args);
    }
    if let Some(hung) = hung {
        let silent = step.silent_max.as_secs_f64();
        println!("ended after {silent:.0} s without a word, its limit; these were running:\n{hung}");
    }
    Ok((ok, counts))
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).stdin(Stdio::null());
    cargo
}

/// The cargo that takes `+nightly`: the one in the PATH. The one that runs this is of a toolchain.
fn rustups_cargo(root: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).stdin(Stdio::null()).env("RUSTUP_AUTO_INSTALL", "0");
    cargo
}

/// Asks the doctor, in the build that the tests use.
fn has_rseq(root: &Path) -> anyhow::Result<bool> {
    let mut doctor = cargo(root);
    doctor.args(["run", "--quiet", "--release", "--", "doctor"]).env_remove("WARMCORE_PERCPU");
    let output = doctor.output().context("can't run cargo")?;
    if !output.status.success() {
        bail!("`cargo run --release -- doctor` failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().any(|line| line.starts_with("ok") && line.contains("per-CPU data rseq")))
}

fn has_target(target: &str) -> anyhow::Result<bool> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output()?;
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// Tests the adapter, then builds the peers and times them, each in its own workspace; draws the page
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
        let status = cargo(&root).args(args).status().context("can't run cargo")?;
        if !status.success() {
            bail!("`cargo {}` failed", args.join(" "));
        }
    }
    Ok(())
}
