//! By load: hot windows and the shared wake queue from an almost idle machine to an overloaded one, compared with the
//! three published tables that have a row for each load.
//!
//! The simulations run pairs of tasks that wake each other (`hot_windows::pairs`), as many as the published run had
//! clients. A row compares a change with Linux under the same load and seed. A row whose published change is small,
//! or less than twice its variation, claims that nothing changes; the others claim the sign and the size of the
//! change. Where Linux's own variation is above 15 %, nothing is claimed. Predictions from before the first run are
//! in `predictions.toml`; those that failed are printed. The tables have 8, 11 and 11 loads. With Linux, one, one and
//! two settings, and five seeds these are 355 simulations.
//!
//! # Source
//!
//! linux-kernel: SIS_CACHE v1, 26 September 2023; `swqueue` v1, 10 July 2023; `shared_runq` v3 of 9 August 2023,
//! measured 27 September. The rows are in `fixtures/published.toml`.

use super::hot_windows::{SEEDS_MAX, Shape, Trips, Windows, pairs};
use super::{Options, Row, Table};
use serde::Deserialize;
use warmcore_sim::policy::Kernel;
use warmcore_sim::policy::kernel::QueueRule;
use warmcore_types::Nanos;

#[cfg(test)]
mod tests;

const PREDICTIONS: &str = include_str!("../predictions.toml");

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

/// One load of a published table.
struct Published {
    clients: u32,
    /// By setting: the change in percent, and its coefficient of variation plus Linux's, if both were published.
    changes: Vec<(f64, Option<f64>)>,
    /// Linux's own coefficient of variation.
    base_cv: f64,
}

/// A table.
struct Plan {
    name: &'static str,
    machine: String,
    source: &'static str,
    load: Load,
    settings: Vec<(&'static str, Kernel)>,
    rows: Vec<Published>,
}

#[derive(Deserialize)]
struct Rows<R> {
    #[serde(rename = "where")]
    machine: String,
    rows: Vec<R>,
}

#[derive(Deserialize)]
struct HotRow {
    threads: u32,
    base_cv: f64,
    change_percent: f64,
    cv: f64,
}

#[derive(Deserialize)]
struct QueueRow {
    clients: u32,
    base: f64,
    queue: f64,
}

#[derive(Deserialize)]
struct SharedRow {
    clients: u32,
    queue_percent: f64,
    checked_percent: f64,
    base_cv: f64,
    cv: [f64; 2],
}

/// Hot windows under netperf, by the number of clients.
///
/// # Panics
///
/// If the machine file has no such machine.
pub fn hot_windows(options: &Options) -> Table {
    let Rows { machine, rows } = super::published::<Rows<HotRow>>("sis_cache_by_load");
    let row = |row: HotRow| Published {
        clients: row.threads,
        changes: vec![(row.change_percent, Some(row.base_cv + row.cv))],
        base_cv: row.base_cv,
    };
    let linux = Kernel::default();
    let hot = Kernel { hot_windows: true, hot_rule: warmcore_sim::policy::kernel::HotRule::V1, ..linux };
    table(
        options,
        Plan {
            name: "hot_windows_by_load",
            machine,
            source: "linux-kernel, 26 September 2023, [PATCH 2/2] sched/fair: skip the cache hot CPU: netperf TCP_RR",
            load: NETPERF,
            settings: vec![("hot windows", hot)],
            rows: rows.into_iter().map(row).collect(),
        },
    )
}

/// The first version of the shared wake queue under tbench, by the number of clients.
///
/// # Panics
///
/// If the machine file has no such machine.
pub fn wake_queue(options: &Options) -> Table {
    let Rows { machine, rows } = super::published::<Rows<QueueRow>>("wake_queue_by_load");
    let row = |row: QueueRow| Published {
        clients: row.clients,
        changes: vec![((row.queue / row.base - 1.0) * 100.0, None)],
        base_cv: 0.0,
    };
    let queue = Kernel { wake_queue: true, ..Kernel::default() };
    table(
        options,
        Plan {
            name: "wake_queue_by_load",
            machine,
            source: "linux-kernel, 10 July 2023, on [RFC PATCH] sched: Implement shared wakequeue in CFS: tbench",
            load: TBENCH,
            settings: vec![("wake queue", queue)],
            rows: rows.into_iter().map(row).collect(),
        },
    )
}

/// The third version, in which every enqueue enters the queue, without and with a check of the average idle time
/// first. The table shows whether the gain came only from newidle balancing that stops too early.
///
/// # Panics
///
/// If the machine file has no such machine.
pub fn wake_queue_v3(options: &Options) -> Table {
    let Rows { machine, rows } = super::published::<Rows<SharedRow>>("wake_queue_v3_by_load");
    let row = |row: SharedRow| Published {
        clients: row.clients,
        changes: vec![
            (row.queue_percent, Some(row.base_cv + row.cv[0])),
            (row.checked_percent, Some(row.base_cv + row.cv[1])),
        ],
        base_cv: row.base_cv,
    };
    let queue = |queue_rule| Kernel { wake_queue: true, queue_rule, ..Kernel::default() };
    table(
        options,
        Plan {
            name: "wake_queue_v3_by_load",
            machine,
            source: "linux-kernel, 27 September 2023, on [PATCH v3 0/7] sched: Implement shared runqueue in CFS (9 August): tbench",
            load: TBENCH,
            settings: vec![
                ("every wake in the queue", queue(QueueRule::V3)),
                ("the queue behind the check", queue(QueueRule::V3Checked)),
            ],
            rows: rows.into_iter().map(row).collect(),
        },
    )
}

/// The tolerance of a row, by the published change and its variation.
fn tolerance(change: f64, cv: Option<f64>, base_cv: f64) -> &'static str {
    match () {
        () if base_cv > NOISE => "by_load.noise",
        () if change.abs() > NOTHING.max(2.0 * cv.unwrap_or(0.0)) => "by_load.effect",
        () => "by_load.nothing",
    }
}

fn table(options: &Options, plan: Plan) -> Table {
    let machine = options.machine_or(&plan.machine);
    let is_published = machine.name == plan.machine;
    let published_cpus = warmcore_sim::machine::SimMachine::named(&plan.machine)
        .map_or(1, |machine| machine.topology.cpus.len());
    let cpus = machine.topology.cpus.len();
    // Another machine runs as many clients per CPU. A quick run takes every third load.
    let every = if options.quick { 3 } else { 1 };
    let loads: Vec<&Published> = plan.rows.iter().step_by(every).collect();
    let clients =
        |load: &Published| (load.clients as usize * cpus).div_ceil(published_cpus).clamp(1, 8 * cpus) as u32;
    let windows = if options.quick { Windows::ms(15, 60) } else { plan.load.windows };
    let Load { turn, data_kib, hz, knew, .. } = plan.load;
    let kernels: Vec<Kernel> =
        [Kernel::default()].into_iter().chain(plan.settings.iter().map(|(_, kernel)| *kernel)).collect();
    let runs: Vec<(Shape, Kernel)> = loads
        .iter()
        .flat_map(|load| {
            let shape = Shape { pairs: clients(load), turn, data_kib, windows, hz };
            kernels.iter().map(move |kernel| (shape, *kernel))
        })
        .collect();
    let done = options.first(SEEDS_MAX).each_per_seed(&runs, |(shape, kernel), seed| {
        pairs(&machine.topology, &machine.costs, *kernel, seed, *shape)
    });
    let of = |run: usize| done.iter().map(move |seed| seed[run]);
    let mut rows = Vec::new();
    for (number, load) in loads.iter().enumerate() {
        let base = number * kernels.len();
        let name = format!("{} clients", clients(load));
        let migrating = |run: usize| of(run).map(|trips| trips.migrating * 100.0).collect();
        let row = Row::of(format!("{name}, Linux, migrating"), "percent", migrating(base));
        rows.push(row.with_inputs(&[knew]));
        for (at, ((setting, _), (change, cv))) in plan.settings.iter().zip(&load.changes).enumerate() {
            let both: Vec<(Trips, Trips)> = of(base).zip(of(base + 1 + at)).collect();
            let gained = both.iter().map(|(old, new)| (new.k_per_second / old.k_per_second - 1.0) * 100.0);
            let unsettled = both.iter().filter(|(old, new)| !(old.is_settled && new.is_settled)).count();
            let row = Row::of(format!("{name}, {setting}"), "percent", gained.collect());
            let row = row.with_inputs(&[knew]).transient(unsettled).beside_null(0.0);
            rows.push(match is_published {
                true => row.against(Some(*change), tolerance(*change, *cv, load.base_cv)),
                false => row,
            });
            let row = Row::of(format!("{name}, {setting}, migrating"), "percent", migrating(base + 1 + at));
            rows.push(row.with_inputs(&[knew]));
        }
    }
    let mut notes = notes(&plan.load);
    if is_published {
        notes.extend(unforeseen(plan.name, &rows));
    }
    Table { name: plan.name.into(), machine: machine.name, source: plan.source.into(), rows, notes }
}

/// A prediction from before the first run.
#[derive(Deserialize)]
struct Predicted {
    by_load: Vec<Prediction>,
}

#[derive(Deserialize)]
struct Prediction {
    table: String,
    row: String,
    /// The change in percent: at least, at most.
    within: [f64; 2],
}

fn predictions(table: &str) -> Vec<Prediction> {
    let said: Predicted = toml::from_str(PREDICTIONS).unwrap_or_else(|e| panic!("predictions.toml: {e}"));
    said.by_load.into_iter().filter(|said| said.table == table).collect()
}

/// Notes on the predictions that failed, and on the number that held.
fn unforeseen(table: &str, rows: &[Row]) -> Vec<String> {
    let known: Vec<(Prediction, &Row)> = predictions(table)
        .into_iter()
        .filter_map(|said| rows.iter().find(|row| row.name == said.row).map(|row| (said, row)))
        .collect();
    let is_within =
        |(said, row): &(Prediction, &Row)| (said.within[0]..=said.within[1]).contains(&row.simulated);
    let held = known.iter().filter(|one| is_within(one)).count();
    let all = format!("{held} of {} rows came out as was said before the first run.", known.len());
    let missed = known.iter().filter(|one| !is_within(one)).map(|(said, row)| {
        format!(
            "{}: {} to {} % was said before the first run, and {:.1} % came out.",
            said.row, said.within[0], said.within[1], row.simulated
        )
    });
    std::iter::once(all).chain(missed).collect()
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
