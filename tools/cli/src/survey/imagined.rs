//! The simulations in a report: quick ones that `warmcore report` runs, or results from a file.
//!
//! `sim.json` in the report's folder has the format of `warmcore sim tables --json`. With `--sim FILE` the report uses
//! FILE in place of its own simulation. The tables are simulated in parallel, on at most one thread per CPU; nothing is
//! measured at the same time. A signal ends the simulation, and its results are dropped.

use crate::sim::SCHEMA;
use anyhow::{Context, ensure};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_papers::sensitivity::{self, Sensitivity};
use warmcore_papers::{
    Options, Progress, Table, by_load, cid, drain, false_sharing, hot_windows, wake_queue,
};
use warmcore_report::Simulated;
use warmcore_results::system as host;

/// The number of seeds of a report's tables.
const SEEDS: u64 = warmcore_papers::SEEDS_MIN as u64;

type Simulate = fn(&Options) -> Table;

/// All tables and their names. Those that take longest come first, so that no thread begins a long one at the end.
const TABLES: [(&str, Simulate); 8] = [
    ("hot-windows-by-load", by_load::hot_windows),
    ("wake-queue-v3-by-load", by_load::wake_queue_v3),
    ("wake-queue-by-load", by_load::wake_queue),
    ("hot-windows", hot_windows::table),
    ("wake-queue", wake_queue::table),
    ("cid", cid::table),
    ("drain", drain::table),
    ("false-sharing", false_sharing::table),
];

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
pub(super) fn tables(step: &str) -> anyhow::Result<Option<Simulated>> {
    let when = host::utc_now();
    let bar = warmcore_bench::progress(TABLES.len() as u64, &format!("{step}sim tables"));
    bar.enable_steady_tick(Duration::from_millis(200));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((name, table)) = TABLES.get(next.fetch_add(1, Relaxed)) {
            bar.set_message(*name);
            let table = table(&options()).concluded(&options());
            done.lock().expect("no thread panics with it").push(table);
            bar.inc(1);
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(TABLES.len());
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    bar.finish_and_clear();
    let mut tables = done.into_inner().expect("no thread panics with it");
    tables.sort_by(|a, b| a.name.cmp(b.name));
    let simulated = serde_json::json!({
        "schema": SCHEMA,
        "what": "sim tables",
        "command": format!("warmcore sim tables --seeds {SEEDS} --quick"),
        "when": when,
        "tables": tables,
    });
    Ok(if INTERRUPTED.load(Relaxed) { None } else { Some(serde_json::from_value(simulated)?) })
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
