//! Hot windows: many pairs of tasks that wake each other, with and without CPUs that are kept free for short
//! sleepers.
//!
//! netperf's TCP_RR over the loopback: a client sends a byte and waits; its server answers and waits. Each passes
//! over its own data at each turn, and a task that moves to another CPU takes the data along. The sender continues
//! for a while before it waits, so the other task is woken while its waker still runs. Loads go from half a pair per
//! CPU upwards, one run per load, seed and setting.
//!
//! Counting windows double in length: each is as long as all the time before it. The run ends when two successive
//! windows agree; if none do, it is marked as transient. The machine has two states, with many migrations and with few.
//! The table claims that both occur at some load, not at which load. The published 224 pairs make 6.3 or 13.7 M round
//! trips a second, by state; 80 to 160 ms are simulated, in a quick run 60 ms.
//!
//! # Source
//!
//! SIS_CACHE, v1, 26 September 2023 (netperf, 224 CPUs, C1 only); v2, 21 November 2023.

use super::{Numbers, Options, Row, Table, row_named};
use serde::Deserialize;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::memory::{Access, Pages};
use warmcore_sim::policy::Kernel;
use warmcore_sim::program::{Length, Program};
use warmcore_sim::simulation::{Report, Settings, Simulation};
use warmcore_types::Nanos;

#[cfg(test)]
mod tests;

/// The published machine.
const MACHINE: &str = "spr_224cpu_2p";

/// The published numbers.
#[derive(Deserialize)]
struct Published {
    regimes: Regimes,
}

/// The two states of the machine, without and with hot windows, with as many pairs as CPUs.
#[derive(Deserialize)]
struct Regimes {
    storm_rr_per_s: f64,
    storm_migrating: f64,
    settled_rr_per_s: f64,
    settled_migrating: f64,
}

impl Regimes {
    /// The state with many migrations: thousands of round trips per second, and the share of the clients' wakes that
    /// migrate.
    fn storm(&self) -> (f64, f64) {
        (self.storm_rr_per_s / 1e3, self.storm_migrating)
    }

    /// The state with few migrations: the same two numbers.
    fn settled(&self) -> (f64, f64) {
        (self.settled_rr_per_s / 1e3, self.settled_migrating)
    }
}

/// The time of a turn on a core of its own: a system call, and the network stack in both directions. An estimate.
const TURN: Nanos = Nanos(5_000);

/// Ticks per second.
const HZ: u32 = 1000;

/// The part of a turn that follows the wake, in percent. An estimate.
const AFTER_WAKE: u64 = 20;

/// The data that each side passes over in a turn: the stacks, the socket, the task. An estimate.
const DATA_KIB: u32 = 16;

/// The input of every row: [`TURN`] was chosen with knowledge of the published rates.
const KNEW: &str = "5 µs a turn: a round number, chosen before the first run with knowledge of the rate";

/// Pairs per CPU, in percent.
const LOADS: &[u32] = &[50, 75, 85, 100, 125];

/// The input of a row that chooses its load.
const CHOSEN: &str = "the load is the one that matches best";

/// The most seeds of this table and of those in `by_load.rs`.
pub(super) const SEEDS_MAX: u64 = super::SEEDS_MIN as u64;

/// Two windows agree if their round trips per second differ by at most this share of the earlier one's.
pub const AGREE: f64 = 0.02;

/// The machine on which hot windows and the shared wake queue are tried together: 2 × 96 cores.
const TOGETHER: &str = "epyc9654_2p";
/// Pairs per CPU on that machine, in percent.
const TOGETHER_LOADS: &[u32] = &[50, 85, 100];

/// Each pair begins this long after the one before.
const NEXT_PAIR: Nanos = Nanos(10_000);

/// The counting windows: each begins where the one before ends and is as long as all the time before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// The begin of the first window.
    pub from: Nanos,
    /// The latest end of a window after the first.
    pub until: Nanos,
}

impl Windows {
    /// Creates windows from times in milliseconds.
    pub const fn ms(from: u64, until: u64) -> Self {
        Self { from: Nanos(from * 1_000_000), until: Nanos(until * 1_000_000) }
    }
}

/// The shape of a run.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Pairs.
    pub pairs: u32,
    /// The time of a turn on a core of its own.
    pub turn: Nanos,
    /// The data that each side passes over in a turn.
    pub data_kib: u32,
    /// The counting windows.
    pub windows: Windows,
    /// Ticks per second.
    pub hz: u32,
}

/// The result of a run: that of its last window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trips {
    /// Thousands of round trips per second.
    pub k_per_second: f64,
    /// The share of the clients' wakes that were placed on another CPU than the one on which the client last ran.
    pub migrating: f64,
    /// Whether this window and the one before it agree. If not, the result is that of a transient.
    pub is_settled: bool,
    /// The end of the window.
    pub until: Nanos,
}

impl Numbers for Trips {
    fn numbers(&self) -> Vec<f64> {
        let is_settled = f64::from(u8::from(self.is_settled));
        vec![self.k_per_second, self.migrating, is_settled, self.until.0 as f64]
    }

    fn of_numbers(numbers: &[f64]) -> Option<Self> {
        let [k_per_second, migrating, is_settled, until] = *numbers else { return None };
        Some(Self { k_per_second, migrating, is_settled: is_settled != 0.0, until: Nanos(until as u64) })
    }
}

impl Trips {
    /// By how many percent there are more round trips than in another run.
    pub fn gain(&self, old: &Self) -> f64 {
        (self.k_per_second / old.k_per_second - 1.0) * 100.0
    }
}

/// Runs pairs that wake each other, on a machine with this kernel, until two windows agree or the last one ends.
///
/// # Panics
///
/// If the machine cannot run them, which is an error in this module.
pub fn pairs(machine: &SimMachine, kernel: Kernel, seed: u64, shape: Shape) -> Trips {
    let SimMachine { topology, costs, .. } = machine;
    let mut sim =
        Simulation::new(topology, costs, Settings { hz: shape.hz, ..Settings::kernel() }, kernel, seed);
    let after = shape.turn.0 * AFTER_WAKE / 100;
    let part = |ns: u64| Length::Around(Nanos(ns), 10);
    let turn = |p: Program, other: String| {
        let p =
            if shape.data_kib > 0 { p.touch_own(shape.data_kib, Pages::Touched, Access::Write) } else { p };
        p.run(part(shape.turn.0 - after)).wake_sync(other).run(part(after))
    };
    for pair in 0..shape.pairs {
        let (client, server) = (format!("client {pair}"), format!("server {pair}"));
        let begins = Nanos(NEXT_PAIR.0 * u64::from(pair));
        let there = server.clone();
        let of_client =
            Program::new(client.clone()).after(begins).forever(|p| turn(p, there).wait().mark("trips"));
        let of_server = Program::new(server).after(begins).forever(|p| turn(p.wait(), client));
        sim.spawn(&of_server).unwrap_or_else(|e| panic!("{e}"));
        sim.spawn(&of_client).unwrap_or_else(|e| panic!("{e}"));
    }
    let mut until = |at: u64| sim.run(Nanos(at)).unwrap_or_else(|e| panic!("{e}"));
    // All wakes of the clients, and those that migrated.
    let wakes = |report: &Report| {
        let clients = report.tasks.iter().filter(|task| task.name.starts_with("client"));
        clients.fold((0, 0), |(all, moved), task| {
            let [same, others @ ..] = task.counts.wakes_by_distance;
            let elsewhere: u64 = others.iter().sum();
            (all + same + elsewhere, moved + elsewhere)
        })
    };
    let count = |before: &Report, after: &Report, (from, until): (u64, u64)| {
        let ((all_before, moved_before), (all, moved)) = (wakes(before), wakes(after));
        Trips {
            k_per_second: (after.mark("trips") - before.mark("trips")) as f64 / ((until - from) as f64 / 1e6),
            migrating: (moved - moved_before) as f64 / (all - all_before).max(1) as f64,
            is_settled: false,
            until: Nanos(until),
        }
    };
    let mut at = shape.windows.from.0;
    let (mut before, mut last): (Report, Option<Trips>) = (until(at), None);
    loop {
        let after = until(2 * at);
        let mut trips = count(&before, &after, (at, 2 * at));
        trips.is_settled =
            last.is_some_and(|last| (trips.k_per_second / last.k_per_second - 1.0).abs() <= AGREE);
        if trips.is_settled || 4 * at > shape.windows.until.0 {
            return trips;
        }
        (at, before, last) = (2 * at, after, Some(trips));
    }
}

/// The two settings that are compared: Linux, and Linux with hot windows.
fn settings() -> [(&'static str, Kernel); 2] {
    let linux = Kernel::default();
    [("Linux", linux), ("hot windows", Kernel { hot_windows: true, ..linux })]
}

/// The table, on the published machine or another one.
///
/// # Panics
///
/// If the machine file lacks the published machine, or the machine of 2 × 96 cores.
pub fn table(options: &Options) -> Table {
    let machine = options.machine_or(MACHINE);
    let is_published = machine.name == MACHINE;
    let Published { regimes: measured_regimes } = super::published("sis_cache");
    let windows = if options.quick { Windows::ms(15, 60) } else { Windows::ms(20, 160) };
    let shape = |load: u32, data_kib: u32| {
        let pairs = (machine.topology.cpus.len() as u32 * load / 100).max(1);
        Shape { pairs, turn: TURN, data_kib, windows, hz: HZ }
    };
    // The last two shapes are the control, without data.
    let with_data = LOADS.iter().map(|load| (*load, shape(*load, DATA_KIB)));
    let shapes: Vec<(u32, Shape)> = with_data.chain([85, 100].map(|load| (load, shape(load, 0)))).collect();
    let runs: Vec<(Shape, Kernel)> =
        shapes.iter().flat_map(|(_, shape)| settings().map(|(_, kernel)| (*shape, kernel))).collect();
    let by_run = trips_by_run(options, &machine, &runs);

    let mut rows = Vec::new();
    let mut gains = Vec::new();
    for ((load, shape), both) in shapes.iter().zip(by_run.chunks(2)) {
        let name = format!("{load} %{}", if shape.data_kib == 0 { ", nothing to carry" } else { "" });
        let is_measured = is_published && *load == 100 && shape.data_kib > 0;
        let measured = [measured_regimes.storm(), measured_regimes.settled()];
        for (((setting, _), trips), measured) in settings().iter().zip(both).zip(measured) {
            let name = format!("{name}, {setting}");
            rows.extend(trip_rows(&name, trips, &[KNEW], is_measured.then_some(measured)));
        }
        let gain = gain_row(format!("{name}, gain"), &both[0], &both[1], &[KNEW]);
        if shape.data_kib > 0 {
            gains.push((*load, gain.clone()));
        }
        rows.push(gain);
    }
    let notes = notes(&rows);
    rows.extend(regimes(&shapes, &by_run, is_published.then_some(&measured_regimes)));
    if let Some((load, gain)) = gains.into_iter().max_by(|a, b| a.1.simulated.total_cmp(&b.1.simulated)) {
        let row = Row { name: format!("the most gained, at {load} %"), ..gain };
        let row = row.with_inputs(&[CHOSEN]).beside_null(0.0);
        rows.push(if is_published { row.within("hot_windows.window") } else { row });
    }
    if is_published && !options.quick {
        rows.extend(together(options));
    }
    Table {
        name: "hot_windows".into(),
        machine: machine.name,
        source: "linux-kernel, 26 September 2023, [PATCH 2/2] sched/fair: skip the cache hot CPU in select_idle_cpu()".into(),
        rows,
        notes,
    }
}

/// The results of each run, by seed: at most [`SEEDS_MAX`] seeds.
pub(super) fn trips_by_run(
    options: &Options,
    machine: &SimMachine,
    runs: &[(Shape, Kernel)],
) -> Vec<Vec<Trips>> {
    let done =
        options.first(SEEDS_MAX).sweep(runs, |(shape, kernel), seed| pairs(machine, *kernel, seed, *shape));
    (0..runs.len()).map(|run| done.iter().map(|seed| seed[run]).collect()).collect()
}

/// The number of seeds that did not settle.
fn transients(trips: &[Trips]) -> usize {
    trips.iter().filter(|trips| !trips.is_settled).count()
}

/// The rows of a run: the round trips, and the share of the wakes that migrate. `published`: the same two numbers.
fn trip_rows(
    name: &str,
    trips: &[Trips],
    inputs: &[&'static str],
    published: Option<(f64, f64)>,
) -> [Row; 2] {
    let row = |what: &str, unit, of: fn(&Trips) -> f64| {
        let row = Row::of(format!("{name}, {what}"), unit, trips.iter().map(of).collect());
        row.with_inputs(inputs).transient(transients(trips))
    };
    [
        row("round trips", "k/s", |trips| trips.k_per_second).beside(published.map(|(rate, _)| rate)),
        row("migrating", "percent", |trips| trips.migrating * 100.0)
            .beside(published.map(|(_, part)| part * 100.0)),
    ]
}

/// The row of what the run `new` gains over the run `old`, seed by seed.
pub(super) fn gain_row(name: String, old: &[Trips], new: &[Trips], inputs: &[&'static str]) -> Row {
    let both = || old.iter().zip(new);
    let unsettled = both().filter(|(old, new)| !(old.is_settled && new.is_settled)).count();
    let row = Row::of(name, "percent", both().map(|(old, new)| new.gain(old)).collect());
    row.with_inputs(inputs).transient(unsettled)
}

/// The rows of Linux, of hot windows, of the wake queue, and of the two together, on 24 LLCs of 8 cores.
fn together(options: &Options) -> Vec<Row> {
    let machine = SimMachine::named(TOGETHER).unwrap_or_else(|e| panic!("{e}"));
    let linux = Kernel::default();
    let settings = [
        ("Linux", linux),
        ("hot windows", Kernel { hot_windows: true, ..linux }),
        ("wake queue", Kernel { wake_queue: true, ..linux }),
        ("both", Kernel { hot_windows: true, wake_queue: true, ..linux }),
    ];
    let windows = Windows::ms(20, 80);
    let (names, runs): (Vec<String>, Vec<(Shape, Kernel)>) = TOGETHER_LOADS
        .iter()
        .flat_map(|load| {
            let pairs = machine.topology.cpus.len() as u32 * load / 100;
            let shape = Shape { pairs, turn: TURN, data_kib: DATA_KIB, windows, hz: HZ };
            settings.map(|(what, kernel)| (format!("2 × 96 cores, {load} %, {what}"), (shape, kernel)))
        })
        .unzip();
    let by_run = trips_by_run(options, &machine, &runs);
    names.iter().zip(&by_run).flat_map(|(name, trips)| trip_rows(name, trips, &[KNEW], None)).collect()
}

/// The rows of the two states of the machine: of the runs with data to move, the one of Linux with the highest share of
/// migrations, and of those with at least a pair per CPU the one with the lowest. A run counts by its seed with the
/// most migrations.
fn regimes(shapes: &[(u32, Shape)], by_run: &[Vec<Trips>], measured: Option<&Regimes>) -> Vec<Row> {
    let most = |trips: &[Trips]| trips.iter().fold(0.0, |most: f64, trips| most.max(trips.migrating));
    let runs = || shapes.iter().zip(by_run.chunks(2)).filter(|((_, shape), _)| shape.data_kib > 0);
    let linux = runs().map(|((load, _), both)| (*load, &*both[0]));
    let storm = linux.max_by(|a, b| most(a.1).total_cmp(&most(b.1)));
    let full = runs()
        .filter(|((load, _), _)| *load >= 100)
        .flat_map(|((load, _), both)| both.iter().map(|b| (*load, &**b)));
    let settled = full.min_by(|a, b| most(a.1).total_cmp(&most(b.1)));
    let rows = |name: &str, found: Option<(u32, &[Trips])>, measured: Option<(f64, f64)>| {
        let (load, trips) = found?;
        let [speed, moved] = trip_rows(&format!("{name}, at {load} %"), trips, &[KNEW, CHOSEN], measured);
        Some([speed.against_known(measured.map(|(rate, _)| rate), "hot_windows.regimes"), moved])
    };
    let storm = rows("storm", storm, measured.map(Regimes::storm));
    // In the null model hot windows have no effect, so the machine is in the storm with them too. For the storm, that
    // null model is the row itself.
    let null = storm.as_ref().map_or(f64::NAN, |[speed, _]| speed.simulated);
    let settled = rows("settled", settled, measured.map(Regimes::settled));
    let settled = settled.map(|[speed, moved]| [speed.beside_null(null), moved]);
    storm.into_iter().chain(settled).flatten().collect()
}

/// Notes on the rows. They are made from the rows.
fn notes(rows: &[Row]) -> Vec<String> {
    let of = |name: String| row_named(rows, &name);
    let gains = |carried: &str| {
        let said = [85, 100].map(|load| {
            let row = of(format!("{load} %{carried}, gain"))?;
            let transient = if row.transient > 0 { " (transient)" } else { "" };
            Some(format!("{:+.1} % at {load} %{transient}", row.simulated))
        });
        said.into_iter().flatten().collect::<Vec<String>>().join(", ")
    };
    let mut notes = vec![format!(
        "By load, in pairs per CPU, hot windows change round trips by {}; with nothing to carry by {}.",
        gains(""),
        gains(", nothing to carry")
    )];
    if let Some(row) = of("100 %, Linux, migrating".to_owned())
        && let Some(published) = row.published
    {
        notes.push(format!(
            "At a pair per CPU {:.0} % of the wakes migrate here under Linux; {published:.0} % were published.",
            row.simulated
        ));
    }
    notes.extend(estimates());
    notes
}

fn estimates() -> Vec<String> {
    vec![
        format!(
            "{} µs a turn on a core of its own, {DATA_KIB} KiB of data a side, {AFTER_WAKE} % of a turn after the wake: \
             estimates in round numbers. The length of a turn sets the settled rate.",
            TURN.0 / 1000
        ),
        "Hot windows by v2's code; the rates of the two regimes were published for v1. 15 to 70 % is v2's range over \
         loads; v1's table has +120 % at a pair per CPU."
            .to_owned(),
        format!(
            "At most {SEEDS_MAX} seeds. A window is as long as all before it; a run ends when round trips per second of two \
             differ by at most {} %, and is marked as transient if none do until its end.",
            AGREE * 100.0
        ),
    ]
}
