//! Drain: collecting the units in per-CPU stocks, by work queued on every CPU or remotely, as published in 2023.
//!
//! `drain/sim.rs` charges with `budget`'s accounts and computes the cost of their drain from the cache lines that it
//! touches. The table has rows without fitted numbers: every CPU that charged has a stock, and remote reads happen
//! one after the other. It also has rows with two numbers that were fitted to the table, because the report does not
//! give them: how many of the CPUs had a stock, and how much neighbouring reads overlap. `drain/contention.rs` counts
//! contended locks. At 128 CPUs: 161 000 cycles by queueing, 61 000 remotely; published 156 000 and 58 000.
//!
//! # Source
//!
//! linux-mm, January 2023, "Introduce memcg_stock_pcp remote draining", v2.

mod contention;
mod sensitivity;
mod sim;
#[cfg(test)]
mod tests;
mod traced;

pub(super) use sensitivity::{grown, ours_ns};

use super::{Options, Row, Table};
use contention::{DRAINS, HELD_CYCLES, Met, When, met};
use serde::Deserialize;
use sim::{Case, Method, QUEUE_LINES, drain};
use warmcore_sim::costs::Costs;
use warmcore_sim::memory::Memory;
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::Nanos;

/// The published machine.
pub const MACHINE: &str = "epyc7601_2p";

const PREDICTIONS: &str = include_str!("drain/predictions.toml");
/// Medians over other seeds differ by a smaller share than this.
const SAME: f64 = 0.1;

/// Per thousand CPUs that charge: how many had a stock when it was collected. Fitted.
const WITH_STOCK: u64 = 360;
/// What remote reads take when they overlap, per thousand ns that they take one after the other. Fitted.
const OVERLAP: u64 = 770;
/// The inputs of a row that uses both.
const GIVEN: [&str; 2] = [
    "36 % of the charging CPUs had a stock (fitted.toml: slope of 401 ns = 1120 ns x 0.36)",
    "remote reads overlap to 0.77 (fitted.toml: 138 to 157 ns where a hand-over takes 191)",
];
/// Why the row of drains between loops cannot fail.
const BETWEEN: &str = "between the loops no CPU is in an operation, so that no lock is held";
const RUN: [&str; 2] = [
    "calls, drains and hours of the published run",
    "a lock is held for 64 cycles (all of a published local operation)",
];

/// Published numbers, for comparison only.
#[derive(Deserialize)]
struct Measured {
    local_cycles: Vec<Local>,
    drain_all_cycles: Vec<Cycles>,
    contention: Contention,
}

/// A local operation: with the kernel's local lock, and with a lock in the stock.
#[derive(Deserialize)]
struct Local {
    op: String,
    upstream: f64,
    patched: f64,
}

#[derive(Deserialize, Clone, Copy)]
struct Cycles {
    cpus: usize,
    upstream: f64,
    patched: f64,
}

#[derive(Deserialize)]
struct Contention {
    contended: f64,
}

/// A prediction from before the two numbers were fitted.
#[derive(Deserialize)]
struct Predictions {
    rows: Vec<Prediction>,
}

#[derive(Deserialize)]
struct Prediction {
    name: String,
    cycles: f64,
}

struct DrainMachine {
    costs: Costs,
    topology: Topology,
}

impl DrainMachine {
    fn named(text: &str, name: &str) -> Self {
        Self {
            costs: Costs::from_machine(text, name).unwrap_or_else(|e| panic!("{e}")),
            topology: Topology::from_machine(text, name).unwrap_or_else(|e| panic!("{e}")),
        }
    }

    /// A machine of this many CPUs, built like a Genoa: 8 cores of 2 threads to an L3, up to 16 L3s to a socket.
    fn grown(cpus: usize) -> Self {
        let smt = cpus.min(2);
        let cores = cpus / smt;
        let per_l3 = cores.min(8);
        let l3s = cores / per_l3;
        let sockets = l3s.div_ceil(16);
        let text = format!(
            "{MACHINES}\n[grown]\ninherits = \"epyc9654_2p\"\nsockets = {sockets}\nnuma_nodes = {sockets}\n\
             l3_per_socket = {}\ncores_per_l3 = {per_l3}\nsmt = {smt}\ncpus = {cpus}\n",
            l3s / sockets
        );
        Self::named(&text, "grown")
    }

    fn drain(&self, case: &Case, method: Method, seed: u64) -> sim::Drain {
        drain(&self.costs, &self.topology, case, method, seed)
    }

    /// Cycles of the kernel's counter.
    fn cycles(&self, ns: u64) -> f64 {
        ns as f64 * self.costs.ps("base_mhz") as f64 / 1e6
    }
}

/// The table: drains at 1, 8 and 128 CPUs, compared with the published ones; contended locks; drains of 1 to 8192
/// CPUs.
///
/// # Panics
///
/// If the machine file has no such machine.
pub fn table(options: &Options) -> Table {
    let warmcore_sim::machine::SimMachine { name, costs, topology, .. } = options.machine_or(MACHINE);
    let machine = DrainMachine { costs, topology };
    let stock: Measured = super::published("stock");
    let is_published = name == MACHINE;
    let all = machine.topology.cpus.len();
    let counts: Vec<Cycles> = if is_published {
        stock.drain_all_cycles
    } else {
        let nothing = |cpus| Cycles { cpus, upstream: 0.0, patched: 0.0 };
        [1, 8.min(all), all].map(nothing).to_vec()
    };
    let published = |number: f64| is_published.then_some(number);
    let mut rows = Vec::new();
    rows.extend(with_nothing_given(options, &machine, &counts, &published));
    rows.extend(with_both_given(options, &machine, &counts, &published));
    rows.extend(held_locks(options, &machine, published(stock.contention.contended)));
    rows.extend(local_operations(&machine, &stock.local_cycles, &published));
    rows.extend(other_counts(options, &machine, all));
    rows.extend(growth(options));
    let mut notes = notes(&machine, &rows, &counts, is_published, &stock.local_cycles);
    if is_published {
        notes.extend(changed(&rows));
    }
    Table {
        name: "drain".into(),
        machine: name,
        source: "linux-mm, January 2023, Introduce memcg_stock_pcp remote draining, v2".into(),
        rows,
        notes,
    }
}

/// Notes on rows that differ from their predictions.
fn changed(rows: &[Row]) -> Vec<String> {
    let said: Predictions = toml::from_str(PREDICTIONS).unwrap_or_else(|e| panic!("predictions.toml: {e}"));
    let differs = |said: &Prediction| {
        let row = rows.iter().find(|row| row.name == said.name)?;
        let note =
            format!("{}: first predicted as {:.0} cycles, now {:.0}", said.name, said.cycles, row.simulated);
        ((row.simulated / said.cycles - 1.0).abs() > SAME).then_some(note)
    };
    said.rows.iter().filter_map(differs).collect()
}

fn cpus(count: usize) -> String {
    if count == 1 { "1 CPU".to_owned() } else { format!("{count} CPUs") }
}

/// By seed, in cycles.
fn cycles(options: &Options, machine: &DrainMachine, case: Case, method: Method) -> Vec<f64> {
    options.per_seed(|seed| machine.cycles(machine.drain(&case, method, seed).ns))
}

/// By how many percent the second is less than the first, by seed.
fn saving(upstream: &[f64], patched: &[f64]) -> Vec<f64> {
    upstream.iter().zip(patched).map(|(upstream, patched)| 100.0 * (patched / upstream - 1.0)).collect()
}

const ALL_METHODS: [(Method, &str); 3] =
    [(Method::Upstream, "queued"), (Method::Patched, "remote"), (Method::Ours, "Warmcore's own")];
const METHODS: [(Method, &str); 2] = [(Method::Upstream, "queued"), (Method::Patched, "remote")];

fn with_nothing_given(
    options: &Options,
    machine: &DrainMachine,
    counts: &[Cycles],
    published: &dyn Fn(f64) -> Option<f64>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for count in counts {
        let [upstream, patched] =
            METHODS.map(|(method, _)| cycles(options, machine, Case::plain(count.cpus), method));
        let saved = saving(&upstream, &patched);
        for ((_, what), (numbers, beside)) in
            METHODS.iter().zip([(upstream, count.upstream), (patched, count.patched)])
        {
            let row = Row::of(format!("nothing given, {}, {what}", cpus(count.cpus)), "cycles", numbers);
            rows.push(Row { published: published(beside), ..row });
        }
        let row = Row::of(format!("nothing given, {}, saved", cpus(count.cpus)), "percent", saved);
        let beside = 100.0 * (count.patched / count.upstream - 1.0);
        rows.push(Row { published: published(beside), ..row });
    }
    rows
}

fn with_both_given(
    options: &Options,
    machine: &DrainMachine,
    counts: &[Cycles],
    published: &dyn Fn(f64) -> Option<f64>,
) -> Vec<Row> {
    let case =
        |cpus| Case { with_stock_per_mille: WITH_STOCK, overlap_per_mille: OVERLAP, ..Case::plain(cpus) };
    let mut rows = Vec::new();
    let (first, last) = (counts[0], counts[counts.len() - 1]);
    let mut ends: [Vec<Vec<f64>>; 2] = Default::default();
    for count in counts {
        let [upstream, patched] =
            METHODS.map(|(method, _)| cycles(options, machine, case(count.cpus), method));
        let saved = saving(&upstream, &patched);
        // Without the proposal, remote collection costs what queueing does.
        let null = Row::of("", "cycles", upstream.clone()).simulated;
        for (method, (numbers, beside)) in
            [(upstream, count.upstream), (patched, count.patched)].into_iter().enumerate()
        {
            let name = format!("{}, {}", cpus(count.cpus), METHODS[method].1);
            ends[method].push(numbers.clone());
            let row = Row::of(name, "cycles", numbers).against(published(beside), "drain.cycles");
            let row = row.with_inputs(&GIVEN);
            // For queueing, that null model is the row itself.
            rows.push(if method == 0 { row } else { row.beside_null(null) });
        }
        let beside = published(100.0 * (count.patched / count.upstream - 1.0));
        let row = Row::of(format!("{}, saved", cpus(count.cpus)), "percent", saved).with_inputs(&GIVEN);
        // The saving with all CPUs is claimed; the others are printed for comparison.
        rows.push(if count.cpus == last.cpus {
            row.against(beside, "drain.saving").beside_null(0.0)
        } else {
            Row { published: beside, ..row }
        });
    }
    for (method, (_, what)) in METHODS.iter().enumerate() {
        let of = |first: f64, last_cycles: f64| {
            let mhz = machine.costs.ps("base_mhz") as f64 / 1e6;
            (last_cycles - first) / mhz / (last.cpus - counts[0].cpus).max(1) as f64
        };
        let (one, all) = (&ends[method][0], &ends[method][counts.len() - 1]);
        let slopes = one.iter().zip(all).map(|(first, last)| of(*first, *last)).collect();
        let beside =
            if method == 0 { of(first.upstream, last.upstream) } else { of(first.patched, last.patched) };
        let row = Row::of(format!("each CPU more, {what}"), "ns", slopes).with_inputs(&GIVEN);
        rows.push(Row { published: published(beside), ..row });
    }
    rows
}

fn held_locks(options: &Options, machine: &DrainMachine, published: Option<f64>) -> Vec<Row> {
    let drains = if options.quick { DRAINS / 4 } else { DRAINS };
    let count = |when, of: fn(Met) -> u64| {
        let met = |seed| of(met(&machine.costs, &machine.topology, when, drains, seed)) as f64;
        options.per_seed(met).into_iter().map(|met| met * DRAINS as f64 / drains as f64).collect()
    };
    vec![
        Row::of(
            "held locks met, drains between the loops",
            "locks",
            count(When::BetweenLoops, |met| met.by_drains),
        )
        .against(published, "drain.contended")
        .with_inputs(&RUN[..1])
        .by_construction(BETWEEN),
        Row::of(
            "held locks met, drains while they charge",
            "locks",
            count(When::Meanwhile, |met| met.by_drains),
        )
        .with_inputs(&RUN),
        Row::of(
            "held locks met by owners, drains while they charge",
            "locks",
            count(When::Meanwhile, |met| met.by_owners),
        )
        .with_inputs(&RUN),
    ]
}

/// The five local operations: what a lock in the stock adds. In lines it adds one access to a line that the CPU
/// writes anyway; the model has no cost for a locked instruction beyond that.
fn local_operations(
    machine: &DrainMachine,
    all: &[Local],
    published: &dyn Fn(f64) -> Option<f64>,
) -> Vec<Row> {
    let mut memory = Memory::new(&machine.costs, &machine.topology);
    let (cpu, line) = (machine.topology.cpus[0].id, memory.line());
    memory.write_line(cpu, line, Nanos(0));
    let again = machine.cycles(memory.write_line(cpu, line, Nanos(1_000_000)).0);
    let row = |local: &Local| {
        let name = format!("local, {}: cycles more by a lock in the stock", local.op);
        Row::of(name, "cycles", vec![again]).against(published(local.patched - local.upstream), "drain.local")
    };
    all.iter().map(row).collect()
}

/// By how many percent a drain of `cpus` CPUs changes if a number of the machine grows by a tenth: by queueing,
/// remotely and by Warmcore's method; the numbers with an effect, the largest first.
pub fn sensitivity(cpus: usize, seed: u64) -> Vec<(&'static str, Vec<(String, f64)>)> {
    let machine = DrainMachine::grown(cpus);
    let case = Case::plain(cpus);
    let of = |(method, what): (Method, &'static str)| {
        let plain = machine.drain(&case, method, seed).ns as f64;
        let names: Vec<String> = machine.costs.numbers().map(|(name, _)| name.to_owned()).collect();
        let mut moved: Vec<(String, f64)> = names
            .into_iter()
            .filter_map(|name| {
                let costs = machine.costs.scaled(&name, 1100).ok()?;
                let more = drain(&costs, &machine.topology, &case, method, seed).ns as f64;
                Some((name, (more / plain - 1.0) * 100.0)).filter(|(_, percent)| *percent != 0.0)
            })
            .collect();
        moved.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then_with(|| a.0.cmp(&b.0)));
        (what, moved)
    };
    ALL_METHODS.map(of).to_vec()
}

/// The saving with other numbers of lines that queueing work reads.
fn other_counts(options: &Options, machine: &DrainMachine, all: usize) -> Vec<Row> {
    let saved = |queue_lines: usize| {
        let case = Case { queue_lines, ..Case::plain(all) };
        let [upstream, patched] = METHODS.map(|(method, _)| cycles(options, machine, case, method));
        Row::of(
            format!("nothing given, {all} CPUs, saved, if queueing takes {queue_lines} lines"),
            "percent",
            saving(&upstream, &patched),
        )
    };
    [4, 8, 10].map(saved).to_vec()
}

/// Unpublished: machines of any size, where all CPUs have a stock, without fitted numbers.
fn growth(options: &Options) -> Vec<Row> {
    let sizes: &[usize] =
        if options.quick { &[1, 16, 128, 1024] } else { &[1, 2, 8, 32, 128, 512, 2048, 8192] };
    let mut rows = Vec::new();
    for &size in sizes {
        let machine = DrainMachine::grown(size);
        // The runs differ only in the drainer's CPU.
        let few = options.first(3);
        for (method, what) in ALL_METHODS {
            let ns = few.per_seed(|seed| machine.drain(&Case::plain(size), method, seed).ns as f64);
            rows.push(Row::of(format!("a machine of {}, all with stock, {what}", cpus(size)), "ns", ns));
        }
        if size >= 128 {
            let ns = few.per_seed(|seed| machine.drain(&Case::plain(8), Method::Ours, seed).ns as f64);
            rows.push(Row::of(format!("a machine of {size} CPUs, 8 with stock, Warmcore's own"), "ns", ns));
            let ns = few.per_seed(|seed| machine.drain(&Case::plain(8), Method::Patched, seed).ns as f64);
            rows.push(Row::of(format!("a machine of {size} CPUs, 8 with stock, remote"), "ns", ns));
        }
    }
    rows
}

/// Notes on the rows. They are made from the rows, which differ between machines.
fn notes(
    machine: &DrainMachine,
    rows: &[Row],
    counts: &[Cycles],
    is_published: bool,
    local: &[Local],
) -> Vec<String> {
    let all = counts.last().map_or(1, |count| count.cpus);
    let plain = Case::plain(all);
    let (queued, ours) = (machine.drain(&plain, Method::Upstream, 0), machine.drain(&plain, Method::Ours, 0));
    let mut notes = vec![
        format!(
            "Queueing work takes {QUEUE_LINES} lines from its CPU, one after the other: counted in the source \
             with knowledge of the published ratio of 5.9. The results with other counts are printed."
        ),
        format!(
            "If every CPU has a stock, a drain that queues work interrupts {} CPUs, and a remote drain {}.",
            queued.interrupted, ours.interrupted
        ),
        "Held locks met by drains between the loops are 0 by construction, and the calls, drains and hours are those \
         that were published. What says something are the rows after it, which nothing published answers."
            .to_owned(),
        "Warmcore's own drain reads only CPUs that may have a stock; the kernel's, both of them, read all.".to_owned(),
        format!("A lock is taken to be held for {HELD_CYCLES} cycles, the whole of a local operation."),
        "Local operations are not claimed: an uncontended locked instruction is nothing that lines tell; `warmcore bench \
         budget` measures consume and refill on real threads. The three that account for objects have no counterpart in \
         `budget`. mmap and munmap are not claimed (drain.system_calls)."
            .to_owned(),
    ];
    if is_published {
        notes.extend(against_published(rows, counts, local, &machine.costs));
    }
    notes
}

/// Notes that compare with published numbers.
fn against_published(rows: &[Row], counts: &[Cycles], local: &[Local], costs: &Costs) -> Vec<String> {
    let of = |name: String| rows.iter().find(|row| row.name == name);
    let mut notes = Vec::new();
    let levels = counts.iter().filter_map(|count| {
        let ratios = METHODS.map(|(_, what)| {
            let row = of(format!("nothing given, {}, {what}", cpus(count.cpus)))?;
            Some(row.simulated / row.published?)
        });
        let [Some(queued), Some(remote)] = ratios else { return None };
        let saved = of(format!("nothing given, {}, saved", cpus(count.cpus)))?;
        Some(format!(
            "at {} queueing takes {queued:.1} times the published cycles, collecting from afar {remote:.1} times, and {:.0} % \
             are saved of {:.0}",
            cpus(count.cpus),
            -saved.simulated,
            -saved.published?
        ))
    });
    let levels: Vec<String> = levels.collect();
    if !levels.is_empty() {
        notes.push(format!("With nothing given: {}.", levels.join("; ")));
    }
    let one = counts.first().filter(|count| count.cpus == 1);
    if let (Some(one), Some(row)) = (one, of(format!("{}, saved", cpus(1)))) {
        let us = (one.upstream - one.patched) / costs.ps("base_mhz") as f64 * 1e3;
        notes.push(format!(
            "At 1 CPU the published ways differ by {us:.1} us, {:.0} %, and the simulated ones by {:.0} %.",
            100.0 * (one.patched / one.upstream - 1.0),
            row.simulated
        ));
    }
    let more = local.iter().map(|local| local.patched - local.upstream);
    let (least, most) =
        more.fold((f64::MAX, f64::MIN), |(least, most), more| (least.min(more), most.max(more)));
    if least <= most {
        notes.push(format!(
            "A lock in the stock was published to add {least:.0} to {most:.0} cycles to a local operation."
        ));
    }
    notes
}
