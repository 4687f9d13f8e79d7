//! Repository chores. `cargo xtask` without a command lists them.

mod build;
mod compare;
mod constants;
mod face;
mod fuzz;
mod gates;
mod guest;
mod instructions;
mod locks;
mod process;
mod programs;
mod rounds;
mod sanitizers;
mod semver;
mod shapes;
mod suites;
mod syscalls;
mod table;
mod test;
mod tidy;

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use std::path::{Path, PathBuf};
use std::time::Duration;
use test::Level;

/// Repository chores
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", arg_required_else_help = true, disable_help_subcommand = true)]
enum Command {
    /// Runs format, lints, every test in one profile, examples in the documentation
    Test {
        /// Also release builds, every backend, loom and shuttle models, a sample of tokio's tests, tokio's libraries, and
        /// documentation
        #[arg(long)]
        full: bool,
        /// What --full runs besides `cargo xtask test`
        #[arg(long, conflicts_with = "full")]
        rest: bool,
        /// Skip each step that would not end within M minutes, and say so
        #[arg(long, value_name = "M")]
        minutes: Option<u64>,
        /// Also every combination of weights and shares, the DataFusion adapter, all tests of tokio and of its
        /// libraries through the face, the public interface beside that of the last version, AddressSanitizer,
        /// ThreadSanitizer and Miri where they are, and a soak of a billion wakes
        #[arg(long, conflicts_with_all = ["full", "rest"])]
        all: bool,
    },
    /// Counts what a poll with its wake costs, under callgrind, beside tokio's: instructions, and those that lock; fails
    /// where that is worse than recorded
    Instructions {
        /// Only the cases whose name contains CASE
        #[arg(default_value = "", hide_default_value = true)]
        case: String,
        /// Record the counts instead of comparing them with the records
        #[arg(long)]
        record: bool,
    },
    /// Counts the system calls of a request to a server, with strace, beside tokio's; fails where they are more than
    /// recorded
    Syscalls {
        /// Record the counts instead of comparing them with the records
        #[arg(long)]
        record: bool,
    },
    /// Boots a kernel in an emulated machine, loads the scheduler of scx/, and checks what it is for
    Guest,
    /// Counts what keeps the code readable: lines, words, names, circles of imports, files; fails above a limit
    Tidy {
        /// List all parts of each count
        #[arg(long)]
        parts: bool,
    },
    /// Compares the public interface of the product's crates with that of a revision
    Semver {
        /// The last tag, or the commit before this one, unless it is named
        revision: Option<String>,
    },
    /// Fuzzes each reader, where there is a nightly and cargo-fuzz
    Fuzz {
        /// How long each reader is fuzzed
        #[arg(default_value_t = 60)]
        seconds: u32,
    },
    /// Prepares the package in tokio's place (`adapters/tokio`), and calls clippy and its tests
    Face,
    /// Runs the tests of tokio and of libraries that use it on tokio and through `adapters/tokio`, and compares
    Suites(suites::Options),
    /// Times programs written for tokio (`peers/shapes`, benches of h2 and deadpool) through `adapters/tokio` beside
    /// tokio, in alternating processes
    Shapes(shapes::Options),
    /// Compares the working tree with a revision, or with tokio, in the cases of `warmcore bench wake` and `http`, in
    /// alternating processes, until each is level, ahead, behind, or undecided after 128 rounds
    Compare(compare::Options),
    /// Simulates the cases of `warmcore bench` with each constant of `docs/tuning.md` halved and doubled
    Constants(constants::Options),
    /// Runs programs that use tokio, adopted by `warmcore adopt`, under load for three minutes each, with and without
    /// WARMCORE=0, and checks their answers
    Programs(programs::Args),
    /// Tests the DataFusion adapter; builds and times the heavy peers, and draws them into the report
    Peers,
}

fn main() -> anyhow::Result<()> {
    let command = Command::try_parse().unwrap_or_else(|error| {
        if error.kind() == ErrorKind::InvalidSubcommand {
            eprintln!("{}", Command::command().render_help());
        }
        error.exit()
    });
    let root = &root();
    match command {
        Command::Test { full, rest, minutes, all } => {
            let from = if rest { Level::Full } else { Level::Test };
            let to = if full { Level::Full } else { from };
            let range = test::Range { from, to: if all { Level::All } else { to } };
            test::run(root, range, minutes.map_or(Duration::MAX, Duration::from_mins))
        }
        Command::Instructions { case, record } => instructions::run(root, &case, record),
        Command::Syscalls { record } => syscalls::run(root, record),
        Command::Guest => guest::run(root),
        Command::Tidy { parts } => tidy::run(root, parts),
        Command::Semver { revision } => semver::run(root, revision.as_deref()),
        Command::Fuzz { seconds } => fuzz::run(root, seconds),
        Command::Face => face::run(root),
        Command::Suites(options) => suites::run(root, options),
        Command::Shapes(options) => shapes::run(root, &options),
        Command::Compare(options) => compare::run(root, &options),
        Command::Constants(options) => constants::run(root, &options),
        Command::Programs(args) => programs::run(root, &args),
        Command::Peers => peers(root),
    }
}

/// The command line of this call.
fn command_line() -> String {
    std::env::args().skip(1).fold("cargo xtask".to_owned(), |line, arg| format!("{line} {arg}"))
}

/// The repository: the folder above this package's.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Tests the adapter, then builds the peers and measures them, each in its own workspace, and draws the report's page
/// again.
fn peers(root: &Path) -> anyhow::Result<()> {
    const OUT: &str = "warmcore-report";
    std::fs::create_dir_all(root.join(OUT))?;
    let json = format!("{OUT}/peers.json");
    let calls: [&[&str]; 3] = [
        &["test", "--release", "--manifest-path", "adapters/datafusion/Cargo.toml"],
        &["run", "--release", "--manifest-path", "peers/Cargo.toml", "--", "--json", &json],
        &["run", "--release", "--", "report", "--render", "--out", OUT],
    ];
    for args in calls {
        let status = process::cargo(root, args).status().context("can't run cargo")?;
        if !status.success() {
            bail!("`cargo {}` failed", args.join(" "));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused_with_the_names() {
        Command::command().debug_assert();
        let parse = |line: &str| Command::try_parse_from(format!("xtask {line}").split(' '));
        assert!(parse("suites tower --times 100 bb8 --resume --tokio 1.51,1.52").is_ok());
        for (line, text) in [
            ("suites towers", "tokio-util"),
            ("suites --times 0", "not in 1.."),
            ("programs redis", "mini-redis"),
            ("shapes --rounds 0", "not in 1.."),
            ("test --all --rest", "cannot be used"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
