//! A few slices of a case on one runtime, in a process of its own.
//!
//! `cargo xtask compare` starts such processes of two builds in turn. A process starts the runtime, runs the case's
//! untimed first slice and then timed ones as long as those of a full run. So a comparison does not depend on where one
//! process happened to place its memory and threads, and no thread of another runtime is in the process.
//!
//! Starting the process and its runtime takes about 15 ms, a slice 36 ms in most cases, unless the comparison asks for longer ones.

use crate::What;
use crate::case::{Case, CaseCtx};
use crate::measure::{BenchCpus, Effort};
use crate::part::Part;
use crate::runtimes::Contender;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use warmcore_results::Row;

/// The benches whose cases run on several runtimes.
const BENCHES: [What; 2] = [What::Wake, What::Http];

/// The names of all cases that have slices: `pingpong.channel.1`, and with parts `warm.yield.chase.4x256K`. A case that
/// needs two CPUs is left out if there is one.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Names;

impl Part for Names {
    const NAME: &'static str = "Names";
    type Answer = Vec<String>;

    fn answer(self) -> anyhow::Result<Vec<String>> {
        let cpus = BenchCpus::find()?;
        let cases = cases().filter(|case| cpus.partner.is_some() || !case.needs_two_cpus);
        Ok(cases.flat_map(names).collect())
    }
}

fn cases() -> impl Iterator<Item = &'static Case> {
    BENCHES.into_iter().flat_map(What::cases).filter(|case| case.has_slices)
}

/// The names of the case's parts; its own name if it has none.
fn names(case: &Case) -> Vec<String> {
    match case.parts {
        [] => vec![case.name.to_owned()],
        parts => parts.iter().map(|part| format!("{}.{part}", case.name)).collect(),
    }
}

/// The part that runs the slices. The answer has a row for each metric, the most important one first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Once {
    /// One of [`Names`].
    case: String,
    /// The runtime.
    runtime: Contender,
    /// How many timed slices run. The answer has the median of each metric.
    slices: usize,
    /// How long a slice is at least, in ms.
    #[serde(default)]
    least_ms: u64,
}

impl Part for Once {
    const NAME: &'static str = "Once";
    type Answer = Vec<Row>;

    fn answer(self) -> anyhow::Result<Vec<Row>> {
        let found = cases().find_map(|case| {
            let at = names(case).iter().position(|name| *name == self.case)?;
            Some((case, case.parts.get(at).copied().unwrap_or_default()))
        });
        let (case, part) = found.with_context(|| format!("no case with slices is called {}", self.case))?;
        let ctx = CaseCtx {
            name: case.name,
            cpus: BenchCpus::find()?,
            effort: Effort::slices(self.slices, Duration::from_millis(self.least_ms)),
            tick: &|| (),
            part_done: &|_| (),
            only: Some((self.runtime, part)),
        };
        let mut rows = (case.run)(&ctx)?;
        // A case may also have rows of what it computes.
        rows.retain(|row| row.variant == self.runtime.name());
        ensure!(!rows.is_empty(), "{} has no variant on {}", self.case, self.runtime.name());
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(case: &str, runtime: Contender) -> anyhow::Result<Vec<Row>> {
        Once { case: case.to_owned(), runtime, slices: 2, least_ms: 0 }.answer()
    }

    #[test]
    fn names_are_unique_over_both_benches_and_parts_are_listed() {
        let names = Names.answer().unwrap();
        let unique: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
        assert!(!names.iter().any(|name| ["idle", "memory", "soak", "warm.yield.chase"].contains(&&**name)));
        assert!(names.iter().any(|name| name == "spawn.task"), "{names:?}");
    }

    #[test]
    fn a_slice_has_a_number_for_each_metric_of_one_runtime_and_its_cpu_time() {
        for runtime in [Contender::Ours, Contender::Tokio] {
            let rows = once("spawn.task", runtime).unwrap();
            assert!(rows.iter().all(|row| row.n == 2 && row.variant == runtime.name()), "{rows:?}");
            let metrics: Vec<&str> = rows.iter().map(|row| &*row.metric).collect();
            assert_eq!(metrics, ["spawned and joined", "CPU per operation"]);
            assert!(rows[1].median > 0.0, "{rows:?}");
        }
        let unknown = once("spawn", Contender::Ours).unwrap_err().to_string();
        assert!(unknown.contains("no case with slices is called spawn"), "{unknown}");
        let absent = once("spawn.outside", Contender::Go).unwrap_err().to_string();
        assert!(absent.contains("has no variant on go"), "{absent}");
    }

    #[test]
    fn a_part_of_a_case_runs_alone() {
        if BenchCpus::find().unwrap().partner.is_none() {
            return;
        }
        let rows = once("warm.yield.chase.4x256K", Contender::Ours).unwrap();
        assert!(rows.iter().all(|row| row.case == "warm.yield.chase.4x256K"), "{rows:?}");
        assert_eq!(rows[0].metric, "touches");
    }
}
