//! The command `warmcore`.

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use warmcore_bench::{part, signals};
use warmcore_cli::{adopt, bench, doctor, guest, predict, record, sim, survey, top, topo, what_if};

/// Keeps work and its data on the cores where they are warm; this command shows what that is
/// worth on this machine.
#[derive(Parser)]
#[command(name = "warmcore", version, arg_required_else_help = true, after_help = AFTER)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER: &str = "\
Start with `warmcore report`: it measures everything and writes a page with pictures.
WARMCORE_PERCPU=rseq|atomic|plain forces how per-CPU data is kept; `warmcore doctor` says how and why.";

#[derive(Subcommand)]
enum Command {
    /// Draws the machine: sockets, last-level caches, cores; --probe measures it
    Topo(topo::Args),
    /// Measures one mechanism, compared with the plain way and with named alternatives
    #[command(alias = "run")] // its name in version 0.1
    Bench(bench::Args),
    /// Simulates another machine, and compares with published measurements on it
    Sim(sim::Args),
    /// Predicts the ratios of measured cases from a probe of this machine, and compares
    Predict(predict::Args),
    /// Finds the field of a struct that makes reads of another field miss, and the cheapest layout without it
    Layout(sim::LayoutArgs),
    /// Says what schedulers of the kernel do with a workload, in an emulated machine
    Guest(guest::Args),
    /// Measures everything and writes one page with pictures
    Report(survey::Args),
    /// Runs a tokio program on Warmcore's scheduler, by two lines of its Cargo.toml; --undo goes back
    Adopt(adopt::Args),
    /// Runs a command and records where the tasks of an adopted program are polled, on tokio's scheduler or Warmcore's
    Record(record::Args),
    /// Says what a recorded program would do on the other scheduler, with other workers, or on another machine
    WhatIf(what_if::Args),
    /// Shows what a running process does: its workers, by last-level cache
    Top(top::Args),
    /// Reports what this system offers to Warmcore, what limits it, and what to do
    Doctor(doctor::Args),
    /// Runs a part of a bench in this process; `bench` starts it
    #[command(name = part::COMMAND, hide = true)]
    BenchPart(bench::PartArgs),
}

fn main() -> ExitCode {
    end_quietly_on_a_closed_pipe();
    let cli = Cli::parse();
    // `top` and `doctor` have nothing to keep: a signal ends them as it ends any program. A part has nothing to keep
    // either, but a signal to the process group reaches it too. If it ended before its parent had seen the signal, the
    // parent would report an error. So a part ignores the first signal, and its parent kills it.
    // `record` passes signals on to its command.
    if !matches!(cli.command, Command::Doctor(_) | Command::Top(_) | Command::Record(_)) {
        signals::listen();
    }
    let done = match &cli.command {
        // A forced backend that isn't available is an error of the commands that call `with_mode`; `doctor` reports it
        // as a finding.
        Command::Doctor(args) => doctor::command(args),
        Command::Topo(args) => topo::run(args),
        Command::Top(args) => top::command(args),
        Command::Sim(args) => sim::command(args),
        Command::Predict(args) => predict::command(args),
        Command::Adopt(args) => adopt::command(args),
        Command::Record(args) => record::command(args).map(|status| {
            if status != 0 {
                std::process::exit(status);
            }
        }),
        Command::WhatIf(args) => what_if::command(args),
        Command::Guest(args) => guest::command(args),
        Command::Layout(args) => sim::layout_command(args),
        Command::Bench(args) => with_mode().and_then(|()| bench::command(args)),
        Command::BenchPart(args) => with_mode().and_then(|()| bench::part_command(args)),
        Command::Report(args) => with_mode().and_then(|()| survey::command(args)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("warmcore: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Lets a command whose output has no reader any more, as in `warmcore doctor | head -1`, end without the message of a panic. It
/// still unwinds, so that `adopt` puts back what it has changed.
fn end_quietly_on_a_closed_pipe() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if !(text.starts_with("failed printing to stdout") && text.contains("Broken pipe")) {
            report(panic);
        }
    }));
}

/// Returns an error if the backend that WARMCORE_PERCPU forces isn't available.
fn with_mode() -> anyhow::Result<()> {
    warmcore_percpu::try_backend()?;
    Ok(())
}
