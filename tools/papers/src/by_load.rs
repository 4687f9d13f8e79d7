//! By load: hot windows and the shared wake queue from an almost idle machine to an overloaded one, compared with the
//! three published tables that have a row for each load.
//!
//! The simulations run pairs of tasks that wake each other (`hot_windows::pairs`), as many as the published run had
//! clients (on another machine as many per CPU, at most 8). A row compares a change of the kernel with Linux under the
//! same load and seed. A row whose published effect is at most 5 %, or at most twice its variation and Linux's
//! together, claims that nothing changes; the others claim the sign of the effect and its size within a factor of two.
//! Where Linux's own variation is above 15 %, nothing is claimed. Predictions from before the first run are in
//! `predictions.toml`; those that failed are printed with the table of the published machine. The tables have 8, 11 and
//! 11 loads (a quick run has every third), each for Linux and for one, one and two changes: with five seeds these are
//! 355 simulations.
//!
//! # Source
//!
//! linux-kernel: SIS_CACHE v1, 26 September 2023; `swqueue` v1, 10 July 2023; `shared_runq` v3 of 9 August 2023,
//! measured 27 September. The rows are in `fixtures/published.toml`.

use super::hot_windows::{Shape, Windows, gain_row, trips_by_run};
use super::{Options, Row, Table, row_named};
use serde::Deserialize;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::policy::Kernel;
use warmcore_sim::policy::kernel::{HotRule, QueueRule};
use warmcore_types::Nanos;

#[cfg(test)]
mod tests;

/// A published change of at most this many percent counts as none.
const NOTHING: f64 = 5.0;

/// Linux's own coefficient of variation, in percent, above which a row claims nothing.
const NOISE: f64 = 15.0;

/// The parameters of the pairs.
#[derive(Clone, Copy)]
struct Load {
    turn: Nanos,
    data_kib: u32,
    hz: u32,
    windows: Windows,
    /// What was chosen with knowledge of the published rows.
    knew: &'static str,
}

/// netperf's TCP_RR, as in the table of hot windows.
const NETPERF: Load = Load {
    turn: Nanos(5_000),
    data_kib: 16,
    hz: 1000,
    windows: Windows::ms(20, 160),
    knew: "5 µs a turn, 16 KiB a side: round numbers, chosen with knowledge of the published rows",
};

/// tbench: requests to a file server over the loopback. Its messages are larger than netperf's single byte.
const TBENCH: Load = Load {
    turn: Nanos(15_000),
    data_kib: 32,
    hz: 250,
    windows: Windows::ms(20, 80),
    knew: "15 µs a turn, 32 KiB a side: round numbers, chosen before the first run with knowledge of the published rows",
};

/// A published table.
#[derive(Deserialize)]
struct Published {
    #[serde(rename = "where")]
    machine: String,
    rows: Vec<Measured>,
}

/// One load of a published table.
#[derive(Deserialize)]
struct Measured {
    #[serde(alias = "threads")]
    clients: u32,
    /// Linux's own coefficient of variation.
    #[serde(default)]
    base_cv: f64,
    #[serde(flatten)]
    changes: Changes,
}

/// The published change under each setting, in percent, with its coefficient of variation; or the rates without and
/// with the queue.
#[derive(Deserialize)]
#[serde(untagged)]
enum Changes {
    One { change_percent: f64, cv: f64 },
    Two { queue_percent: f64, checked_percent: f64, cv: [f64; 2] },
    Rates { base: f64, queue: f64 },
}

impl Measured {
    /// By setting: the change in percent, and its coefficient of variation plus Linux's, if variations were published.
    fn changes(&self) -> Vec<(f64, Option<f64>)> {
        match self.changes {
            Changes::One { change_percent, cv } => vec![(change_percent, Some(self.base_cv + cv))],
            Changes::Two { queue_percent, checked_percent, cv } => vec![
                (queue_percent, Some(self.base_cv + cv[0])),
                (checked_percent, Some(self.base_cv + cv[1])),
            ],
            Changes::Rates { base, queue } => vec![((queue / base - 1.0) * 100.0, None)],
        }
    }
}

/// A table to simulate.
struct Plan {
    name: &'static str,
    /// The section of `published.toml` with its numbers.
    section: &'static str,
    source: &'static str,
    load: Load,
    settings: Vec<(&'static str, Kernel)>,
}

/// Hot windows under netperf, by the number of clients.
///
/// # Panics
///
/// If the machine file lacks the published machine.
pub fn hot_windows(options: &Options) -> Table {
    let hot = Kernel { hot_windows: true, hot_rule: HotRule::V1, ..Kernel::default() };
    let plan = Plan {
        name: "hot_windows_by_load",
        section: "sis_cache_by_load",
        source: "linux-kernel, 26 September 2023, [PATCH 2/2] sched/fair: skip the cache hot CPU: netperf TCP_RR",
        load: NETPERF,
        settings: vec![("hot windows", hot)],
    };
    plan.table(options)
}

/// The first version of the shared wake queue under tbench, by the number of clients.
///
/// # Panics
///
/// If the machine file lacks the published machine.
pub fn wake_queue(options: &Options) -> Table {
    let plan = Plan {
        name: "wake_queue_by_load",
        section: "wake_queue_by_load",
        source: "linux-kernel, 10 July 2023, on [RFC PATCH] sched: Implement shared wakequeue in CFS: tbench",
        load: TBENCH,
        settings: vec![("wake queue", Kernel { wake_queue: true, ..Kernel::default() })],
    };
    plan.table(options)
}

/// The third version of the shared wake queue under tbench, by the number of clients: every enqueue enters the queue,
/// without and with a check of the average idle time first. The table shows whether the gain came only from newidle
/// balancing that stops too early.
///
/// # Panics
///
/// If the machine file lacks the published machine.
pub fn wake_queue_v3(options: &Options) -> Table {
    let queue = |queue_rule| Kernel { wake_queue: true, queue_rule, ..Kernel::default() };
    let plan = Plan {
        name: "wake_queue_v3_by_load",
        section: "wake_queue_v3_by_load",
        source: "linux-kernel, 27 September 2023, on [PATCH v3 0/7] sched: Implement shared runqueue in CFS (9 August): tbench",
        load: TBENCH,
        settings: vec![
            ("every wake in the queue", queue(QueueRule::V3)),
            ("the queue behind the check", queue(QueueRule::V3Checked)),
        ],
    };
    plan.table(options)
}

/// The name of a row's tolerance, by the published change, its variation and Linux's own.
fn tolerance(change: f64, cv: Option<f64>, base_cv: f64) -> &'static str {
    match () {
        () if base_cv > NOISE => "by_load.noise",
        () if change.abs() > NOTHING.max(2.0 * cv.unwrap_or(0.0)) => "by_load.effect",
        () => "by_load.nothing",
    }
}

impl Plan {
    fn table(&self, options: &Options) -> Table {
        let Load { turn, data_kib, hz, knew, .. } = self.load;
        let published: Published = super::published(self.section);
        let machine = options.machine_or(&published.machine);
        let is_published = machine.name == published.machine;
        let published_cpus =
            SimMachine::named(&published.machine).map_or(1, |machine| machine.topology.cpus.len());
        let cpus = machine.topology.cpus.len();
        // Another machine runs as many clients per CPU as the published one, at most 8. A quick run takes every third
        // load.
        let every = if options.quick { 3 } else { 1 };
        let loads: Vec<&Measured> = published.rows.iter().step_by(every).collect();
        let clients = |load: &Measured| {
            (load.clients as usize * cpus).div_ceil(published_cpus).clamp(1, 8 * cpus) as u32
        };
        let windows = if options.quick { Windows::ms(15, 60) } else { self.load.windows };
        let kernels: Vec<Kernel> =
            [Kernel::default()].into_iter().chain(self.settings.iter().map(|(_, kernel)| *kernel)).collect();
        let runs: Vec<(Shape, Kernel)> = loads
            .iter()
            .flat_map(|load| {
                let shape = Shape { pairs: clients(load), turn, data_kib, windows, hz };
                kernels.iter().map(move |kernel| (shape, *kernel))
            })
            .collect();
        let by_run = trips_by_run(options, &machine, &runs);
        let mut rows = Vec::new();
        for (load, by_kernel) in loads.iter().zip(by_run.chunks(kernels.len())) {
            let name = format!("{} clients", clients(load));
            let migrating = |setting: &str, kernel: usize| {
                let percent = by_kernel[kernel].iter().map(|trips| trips.migrating * 100.0).collect();
                Row::of(format!("{name}, {setting}, migrating"), "percent", percent).with_inputs(&[knew])
            };
            rows.push(migrating("Linux", 0));
            for (kernel, ((setting, _), (change, cv))) in (1..).zip(self.settings.iter().zip(load.changes()))
            {
                let name = format!("{name}, {setting}");
                let row = gain_row(name, &by_kernel[0], &by_kernel[kernel], &[knew]).beside_null(0.0);
                rows.push(match is_published {
                    true => row.against(Some(change), tolerance(change, cv, load.base_cv)),
                    false => row,
                });
                rows.push(migrating(setting, kernel));
            }
        }
        let mut notes = notes(&self.load);
        if is_published {
            notes.extend(unforeseen(self.name, &rows));
        }
        Table { name: self.name.into(), machine: machine.name, source: self.source.into(), rows, notes }
    }
}

/// A prediction from before the first run.
#[derive(Deserialize)]
struct Predicted {
    table: String,
    row: String,
    /// The change in percent: at least, at most.
    within: [f64; 2],
}

fn predictions(table: &str) -> Vec<Predicted> {
    let all: Vec<Predicted> = super::predictions("by_load");
    all.into_iter().filter(|said| said.table == table).collect()
}

/// Notes on the predictions that failed, and on the number that held.
fn unforeseen(table: &str, rows: &[Row]) -> Vec<String> {
    let (mut known, mut missed) = (0, Vec::new());
    for Predicted { row: name, within: [low, high], .. } in predictions(table) {
        let Some(row) = row_named(rows, &name) else { continue };
        known += 1;
        if !(low..=high).contains(&row.simulated) {
            missed.push(format!(
                "{name}: {low} to {high} % was said before the first run, and {:.1} % came out.",
                row.simulated
            ));
        }
    }
    let held = known - missed.len();
    missed.insert(0, format!("{held} of {known} rows came out as was said before the first run."));
    missed
}

fn notes(load: &Load) -> Vec<String> {
    vec![
        format!(
            "{} µs a turn on a core of its own and {} KiB of data a side, estimated; percent are against Linux with the same \
             clients and the same seed.",
            load.turn.0 / 1000,
            load.data_kib
        ),
        format!(
            "A published change of at most {NOTHING} %, or of less than twice the variation of both kernels together, claims \
             that nothing happens: a model without an effect meets all of those rows. Compare the whole curve."
        ),
    ]
}
