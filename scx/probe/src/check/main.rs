//! `probe-check [TEXT]`: runs scenarios whose counts can be written down by hand, and compares what the probe counted.
//! With TEXT it runs those whose name contains it.
//!
//! To be run as root on a machine that does nothing else, with two last-level caches of four CPUs or more: the guest.
//! Other tasks would be counted, too. Prints a line for each scenario, and one for each count that differs. The exit
//! status is 1 if any does, or if a scenario cannot be run.

mod scenarios;
mod tasks;

use anyhow::{Context, Result, ensure};
use scenarios::{Bench, NOTHING, SCENARIOS, Verdict};
use scx_probe::{Group, Probe, Storage};
use std::process::ExitCode;
use warmcore_topo::Topology;

fn main() -> ExitCode {
    let text = std::env::args().nth(1).unwrap_or_default();
    if text == NOTHING {
        return ExitCode::SUCCESS;
    }
    match run(&text) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            println!("probe-check: {wrong} counts differ");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("probe-check: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the scenarios whose name contains `text` and returns how many counts differ from what they must be.
fn run(text: &str) -> Result<usize> {
    let topology = Topology::this_machine().context("the CPUs of this machine cannot be read")?;
    let groups = ["ui=ui-", "hogs=hog"].map(|group| group.parse::<Group>().expect("a valid group"));
    let mut storage = Storage::uninit();
    let mut bench = Bench::new(Probe::load(&mut storage, &topology, &groups)?, &topology)?;
    let mut wrong = 0;
    let chosen = || SCENARIOS.iter().filter(|(name, _)| name.contains(text));
    ensure!(
        chosen().next().is_some(),
        "no scenario's name contains {text:?}: run without an argument to see all names"
    );
    for (name, scenario) in chosen() {
        match scenario(&mut bench).with_context(|| format!("scenario {name:?}"))? {
            Verdict::Skipped(why) => println!("skip  {name}: {why}"),
            Verdict::Checked(report, checks) => {
                let differing: Vec<_> =
                    checks.iter().filter(|check| !check.expected.contains(&check.is)).collect();
                let result = if differing.is_empty() { "ok   " } else { "WRONG" };
                println!("{result} {name}: {} counts as written down", checks.len() - differing.len());
                for check in &differing {
                    let (low, high) = (check.expected.start(), check.expected.end());
                    println!("      {} is {}, expected {low}..={high}", check.name, check.is);
                }
                println!("      {}", serde_json::to_string(&report)?);
                wrong += differing.len();
            }
        }
    }
    Ok(wrong)
}
