//! The simulations in a report: quick ones that `warmcore report` runs, or results from a file.
//!
//! `sim.json` in the report's folder has the format of `warmcore sim tables --json`. With `--sim FILE` the report uses
//! FILE in place of its own simulation. The tables are simulated in parallel, on at most one thread per CPU; nothing is
//! measured at the same time. A signal ends the simulation, and its results are dropped.

use crate::sim::{SCHEMA, TableKind, begun};
use anyhow::{Context, ensure};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_papers::sensitivity::{self, Sensitivity};
use warmcore_papers::{Options, Progress, Table};
use warmcore_report::Simulated;

/// The number of seeds of a report's tables.
const SEEDS: u64 = warmcore_papers::SEEDS_MIN as u64;

/// Ends the simulation after a signal.
#[derive(Debug)]
struct Signals;

impl Progress for Signals {
    fn is_over(&self) -> bool {
        INTERRUPTED.load(Relaxed)
    }
}

fn options() -> Options {
    Options { seeds: 0..SEEDS, quick: true, progress: Some(Arc::new(Signals)), ..Options::default() }
}

/// Simulates the tables as `warmcore sim tables --quick` does. `None` if a signal came.
pub(super) fn tables(step: &str) -> Option<Simulated> {
    // The tables that take longest come first, so that no thread begins a long one at the end.
    let mut kinds = TableKind::ALL;
    kinds.reverse();
    let mut simulated = begun("tables", format!("warmcore sim tables --seeds {SEEDS} --quick"));
    let bar = warmcore_bench::progress(kinds.len() as u64, &format!("{step}sim tables"));
    bar.enable_steady_tick(Duration::from_millis(200));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(kind) = kinds.get(next.fetch_add(1, Relaxed)) {
            bar.set_message(kind.name);
            let table = (kind.table)(&options()).concluded(&options());
            done.lock().expect("no thread panics with it").push(table);
            bar.inc(1);
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(kinds.len());
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    bar.finish_and_clear();
    let mut tables = done.into_inner().expect("no thread panics with it");
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    simulated.tables = tables.into_iter().map(Table::from).collect();
    (!INTERRUPTED.load(Relaxed)).then_some(simulated)
}

/// How much the tables' results depend on each estimated number of the machine. `None` if a signal came.
pub(super) fn sensitivities() -> Option<Vec<Sensitivity>> {
    let bar = warmcore_bench::progress(1, "what moves the simulated answers");
    bar.enable_steady_tick(Duration::from_millis(200));
    let sensitivities = sensitivity::all(&options());
    bar.finish_and_clear();
    (!INTERRUPTED.load(Relaxed)).then_some(sensitivities)
}

/// Reads a file that `warmcore sim tables --json` wrote.
pub(super) fn read(path: &Path) -> anyhow::Result<Simulated> {
    let bytes = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    let help = || {
        format!(
            "{}: not what `warmcore sim tables --json FILE` of schema {SCHEMA} writes; simulate again",
            path.display()
        )
    };
    let simulated: Simulated = serde_json::from_slice(&bytes).with_context(help)?;
    ensure!(simulated.schema == SCHEMA, "{}; it has schema {}", help(), simulated.schema);
    Ok(simulated)
}
