//! Programs are started as `make -j` does.

use super::Done;
use super::clock::{Around, run_for};
use anyhow::{Context, ensure};
use rustix::process::{WaitOptions, wait};
use serde::{Deserialize, Serialize};
use std::process::Command;

/// Short programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storm {
    /// So many run at a time.
    pub at_once: usize,
    /// So many in all.
    pub programs: u64,
    /// How long one runs.
    pub run_us: u64,
}

/// The argument with which this program runs for the microseconds that follow, and ends.
pub const RUN: &str = "run";

impl Storm {
    /// Until the last program has ended.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        let mut around = Around::of(seed, 0);
        let (mut running, mut done) = (0, 0);
        for _ in 0..self.programs {
            if running == self.at_once {
                (running, done) = (running - 1, done + end_of_one()?);
            }
            let run_us = around.us(self.run_us).to_string();
            Command::new("/proc/self/exe").args([RUN, &run_us]).spawn().context("can't start a program")?;
            running += 1;
        }
        for _ in 0..running {
            done += end_of_one()?;
        }
        Ok(Done { done, of: self.programs, ..Done::default() })
    }
}

/// Waits for whichever program ends next.
fn end_of_one() -> anyhow::Result<u64> {
    let (_, status) = wait(WaitOptions::empty())?.context("no program runs")?;
    ensure!(status.exit_status() == Some(0), "a program ended with {status:?}");
    Ok(1)
}

/// What such a program does.
///
/// # Errors
/// The argument is no number.
pub fn run(us: &str) -> anyhow::Result<()> {
    run_for(us.parse().context("not a number of microseconds")?);
    Ok(())
}
