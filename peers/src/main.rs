//! Compares Warmcore with crates that take long to build. `cargo xtask peers` runs it.
//!
//! The cases are like those of `warmcore bench percpu` and `bench budget`, with other variants, and measured by the
//! same code. The JSON is `peers.json` in the report's folder. Warmcore is a variant of each case but tcmalloc's, in
//! the same process and the same rounds, so each ratio is within one case.
//!
//! Six cases of 8 variants, four of 10 and two of 2 take about 25 s; 8 s with `--quick`. Building takes a quarter of an
//! hour on one core, much of it C, C++ and Arrow.
//!
//! `README.md` lists the peers; `Cargo.toml` has the reason for each.

mod blocks;
mod budget;
mod counters;
mod tcmalloc;

use budget::Work::{Hit, Ring};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use warmcore_bench::measure::{Effort, INTERRUPTED, Measured};
use warmcore_bench::signals;
use warmcore_bench::{Case, percpu, run_cases};
use warmcore_results::{Row, write_whole};

/// Times Warmcore's counter, free list and budgets beside named peers
#[derive(Parser)]
#[command(name = "peers", version)]
struct Args {
    /// Also write the results there, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A third of the rounds: a first look, with wider intervals
    #[arg(long)]
    quick: bool,
    /// Only this case
    #[arg(long, value_name = "CASE")]
    case: Option<String>,
}

/// The cases, in the order of the report.
const CASES: &[Case] = &[
    Case::new("peers.counter.add", |ctx| counters::add(ctx, false)),
    Case::new("peers.counter.add.2threads", |ctx| counters::add(ctx, true)).needs_two_cpus(),
    Case::new("peers.freelist.pair", |ctx| blocks::pair(ctx, false)),
    Case::new("peers.freelist.pair.2threads", |ctx| blocks::pair(ctx, true)).needs_two_cpus(),
    Case::new("peers.freelist.batch32", |ctx| blocks::batch32(ctx, false)),
    Case::new("peers.freelist.batch32.2threads", |ctx| blocks::batch32(ctx, true)).needs_two_cpus(),
    Case::new("peers.freelist.pair.tcmalloc", tcmalloc::pair),
    Case::new("peers.freelist.batch32.tcmalloc", tcmalloc::batch32),
    Case::new("peers.budget.hit", |ctx| budget::case(ctx, Hit, false)),
    Case::new("peers.budget.hit.2threads", |ctx| budget::case(ctx, Hit, true)).needs_two_cpus(),
    Case::new("peers.budget.ring", |ctx| budget::case(ctx, Ring, false)),
    Case::new("peers.budget.ring.2threads", |ctx| budget::case(ctx, Ring, true)).needs_two_cpus(),
];

fn main() -> ExitCode {
    let args = Args::parse();
    signals::listen();
    match command(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command(args: &Args) -> anyhow::Result<()> {
    // A forced backend that is not available is an error before the first measurement.
    warmcore_percpu::try_backend()?;
    warmcore_budget::process::try_default_kind()?;
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    let results = run_cases(
        "peers",
        CASES,
        effort,
        &args.case.as_deref().into_iter().collect::<Vec<_>>(),
        "",
        &repeat(args),
        args.json.as_deref(),
    )?;
    print!("{}", warmcore_report::run_table(&results));
    if let Some(path) = &args.json {
        write_whole(path, &serde_json::to_vec_pretty(&results)?)?;
        eprintln!("written: {}", path.display());
    }
    if INTERRUPTED.load(Relaxed) {
        eprintln!("interrupted: the cases above were finished, the others are missing");
        signals::end();
    }
    Ok(())
}

/// The command that repeats this run.
fn repeat(args: &Args) -> String {
    if !args.quick && args.case.is_none() {
        return "cargo xtask peers".to_owned();
    }
    let quick = if args.quick { " --quick" } else { "" };
    let case = args.case.as_ref().map_or(String::new(), |case| format!(" --case {case}"));
    format!("cargo run --release --manifest-path peers/Cargo.toml --{quick}{case}")
}

/// The times, and the ratios of all variants to Warmcore's. No bound was set for these ratios.
fn rows(measured: &Measured) -> Vec<Row> {
    rows_over(measured, &percpu::ours())
}

/// The times, and the ratios of all variants to the variant `over`.
fn rows_over(measured: &Measured, over: &str) -> Vec<Row> {
    let mut rows = measured.times();
    rows.extend(measured.ratios_over(over));
    rows
}

#[cfg(test)]
mod tests {
    /// The README's table has the versions of the lock file.
    #[test]
    fn the_readme_lists_the_locked_versions() {
        let (readme, lock) = (include_str!("../README.md"), include_str!("../Cargo.lock"));
        let listed: Vec<(&str, &str)> = readme
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .map(|(name, rest)| (name, rest.split(' ').next().unwrap_or("")))
            .collect();
        assert!(listed.len() >= 11, "the table lists only {listed:?}");
        for (name, version) in listed {
            let package = format!("name = \"{name}\"\nversion = \"{version}\"");
            assert!(lock.contains(&package), "{name} is listed as {version}, the lock file has another");
        }
    }
}
