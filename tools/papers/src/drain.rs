//! Drain: collecting the units in per-CPU stocks (units that a CPU holds ready for an account), by work queued on each
//! CPU that has units, or remotely, as published in 2023.
//!
//! `drain/sim.rs` charges with `budget`'s accounts and computes the cost of their drain from the cache lines that it
//! touches. The table has rows without fitted numbers: every CPU that charged has a stock, and remote reads happen
//! one after the other. It also has rows with two numbers that were fitted to the table, because the report does not
//! give them: how many of the CPUs had a stock, and how much neighbouring reads overlap. `drain/contention.rs` counts
//! contended locks. At 128 CPUs, with both fitted numbers: 161 000 cycles by queueing, 61 000 remotely; published
//! 156 000 and 58 000.
//!
//! # Source
//!
//! linux-mm, January 2023, "Introduce memcg_stock_pcp remote draining", v2.

mod contention;
mod sim;
#[cfg(test)]
mod tests;
mod traced;

use super::{Options, Row, Table, changed, row_named};
use contention::{DRAINS, HELD_CYCLES, Met, When, met};
use serde::Deserialize;
use sim::{Case, Method, QUEUE_LINES, drain};
use warmcore_sim::costs::Costs;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::memory::Memory;
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::Nanos;

/// The published machine.
pub const MACHINE: &str = "epyc7601_2p";

/// Medians over other seeds differ by a smaller share than this.
const SAME: f64 = 0.1;

/// Per thousand CPUs that charge: how many had a stock when it was collected. Fitted.
const WITH_STOCK: u64 = 360;
/// What remote reads take when they overlap, per thousand ns that they take one after the other. Fitted.
const OVERLAP: u64 = 770;
/// The inputs of a row that uses both fitted numbers.
const GIVEN: [&str; 2] = [
    "36 % of the charging CPUs had a stock (fitted.toml: slope of 401 ns = 1120 ns x 0.36)",
    "remote reads overlap to 0.77 (fitted.toml: 138 to 157 ns where a hand-over takes 191)",
];
/// Why the row of drains between loops cannot fail.
const BETWEEN: &str = "between the loops no CPU is in an operation, so that no lock is held";
/// The inputs of the rows of held locks.
const RUN: [&str; 2] = [
    "calls, drains and hours of the published run",
    "a lock is held for 64 cycles (all of a published local operation)",
];

/// Published numbers. A simulation takes only the numbers of CPUs from them.
#[derive(Deserialize)]
struct Measured {
    local_cycles: Vec<Local>,
    drain_all_cycles: Vec<Cycles>,
    contention: Contention,
}

/// Cycles of a local operation: with the kernel's local lock, and with a lock in the stock.
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

/// A machine of this many CPUs, a power of two, built like a Genoa: up to 8 cores of up to 2 threads to an L3, up to 16
/// L3s to a socket.
pub(super) fn grown(cpus: usize) -> SimMachine {
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
    SimMachine {
        name: format!("{cpus} CPUs, built like epyc9654_2p"),
        costs: Costs::from_machine(&text, "grown").unwrap_or_else(|e| panic!("{e}")),
        topology: Topology::from_machine(&text, "grown").unwrap_or_else(|e| panic!("{e}")),
        is_known: false,
    }
}

/// The time of Warmcore's own drain, in ns, where all CPUs have a stock.
pub(super) fn ours_ns(machine: &SimMachine) -> f64 {
    drain(machine, &Case::plain(machine.topology.cpus.len()), Method::Ours, 0).ns as f64
}

/// The table: drains at 1, 8 and 128 CPUs, compared with the published ones (on another machine at 1, 8 and all its
/// CPUs); contended locks; drains of 1 to 8192 CPUs (`quick`: to 1024).
///
/// # Panics
///
/// If the machine file lacks the published machine.
pub fn table(options: &Options) -> Table {
    let machine = options.machine_or(MACHINE);
    let stock: Measured = super::published("stock");
    let is_published = machine.name == MACHINE;
    let all = machine.topology.cpus.len();
    let counts: Vec<Cycles> = if is_published {
        stock.drain_all_cycles
    } else {
        let nothing = |cpus| Cycles { cpus, upstream: 0.0, patched: 0.0 };
        [1, 8.min(all), all].map(nothing).to_vec()
    };
    let run = Run { options, machine: &machine, is_published };
    let mut rows: Vec<Row> = run.with_nothing_given(&counts);
    rows.extend(run.with_both_given(&counts));
    rows.extend(run.held_locks(stock.contention.contended));
    rows.extend(run.local_operations(&stock.local_cycles));
    rows.extend(run.other_counts(all));
    rows.extend(growth(options));
    let mut notes = notes(&machine, all);
    if is_published {
        notes.extend(against_published(&rows, &counts, &stock.local_cycles, &machine.costs));
        notes.extend(changed("drain", &rows, SAME));
    }
    Table {
        name: "drain".into(),
        machine: machine.name,
        source: "linux-mm, January 2023, Introduce memcg_stock_pcp remote draining, v2".into(),
        rows,
        notes,
    }
}

fn cpus(count: usize) -> String {
    if count == 1 { "1 CPU".to_owned() } else { format!("{count} CPUs") }
}

/// A time in ns, in cycles of the kernel's counter, which runs at the base clock.
fn cycles(machine: &SimMachine, ns: u64) -> f64 {
    ns as f64 * machine.costs.ps("base_mhz") as f64 / 1e6
}

const ALL_METHODS: [(Method, &str); 3] =
    [(Method::Upstream, "queued"), (Method::Patched, "remote"), (Method::Ours, "Warmcore's own")];
const METHODS: [(Method, &str); 2] = [ALL_METHODS[0], ALL_METHODS[1]];

/// What the rows are made from.
struct Run<'a> {
    options: &'a Options,
    machine: &'a SimMachine,
    is_published: bool,
}

impl Run<'_> {
    /// The cycles of a case by both published methods, by seed; and the change from the first to the second in percent,
    /// which is negative if the second takes less.
    fn both_methods(&self, case: Case) -> [Vec<f64>; 3] {
        let [upstream, patched] = METHODS.map(|(method, _)| {
            self.options.sweep_seeds(|seed| cycles(self.machine, drain(self.machine, &case, method, seed).ns))
        });
        let saved = upstream.iter().zip(&patched);
        let saved = saved.map(|(upstream, patched)| 100.0 * (patched / upstream - 1.0)).collect();
        [upstream, patched, saved]
    }

    /// The rows of a case: both published methods, and what the second one saves.
    fn compared(&self, prefix: &str, case: Case, count: &Cycles) -> [Row; 3] {
        let [upstream, patched, saved] = self.both_methods(case);
        let row = |what: &str, unit, numbers, published| {
            let row = Row::of(format!("{prefix}{}, {what}", cpus(count.cpus)), unit, numbers);
            row.beside(self.is_published.then_some(published))
        };
        [
            row(METHODS[0].1, "cycles", upstream, count.upstream),
            row(METHODS[1].1, "cycles", patched, count.patched),
            row("saved", "percent", saved, 100.0 * (count.patched / count.upstream - 1.0)),
        ]
    }

    fn with_nothing_given(&self, counts: &[Cycles]) -> Vec<Row> {
        let rows = |count: &Cycles| self.compared("nothing given, ", Case::plain(count.cpus), count);
        counts.iter().flat_map(rows).collect()
    }

    fn with_both_given(&self, counts: &[Cycles]) -> Vec<Row> {
        let (first, last) = (counts[0].cpus, counts[counts.len() - 1].cpus);
        let mut rows = Vec::new();
        for count in counts {
            let case = Case {
                with_stock_per_mille: WITH_STOCK,
                overlap_per_mille: OVERLAP,
                ..Case::plain(count.cpus)
            };
            let [queued, remote, saved] = self.compared("", case, count).map(|row| row.with_inputs(&GIVEN));
            // Without the proposal, remote collection costs what queueing does. For queueing, that null model is the
            // row itself.
            let null = queued.simulated;
            rows.push(queued.within("drain.cycles"));
            rows.push(remote.within("drain.cycles").beside_null(null));
            // The saving with the most CPUs is claimed; the others are printed for comparison.
            let is_claimed = count.cpus == last;
            rows.push(if is_claimed { saved.within("drain.saving").beside_null(0.0) } else { saved });
        }
        let of_last = rows.len() - 3;
        for (method, (_, what)) in METHODS.iter().enumerate() {
            let of = |(first_cycles, last_cycles): (f64, f64)| {
                let mhz = self.machine.costs.ps("base_mhz") as f64 / 1e6;
                (last_cycles - first_cycles) / mhz / (last - first).max(1) as f64
            };
            let (one, all) = (&rows[method], &rows[of_last + method]);
            let slopes = one.numbers.iter().copied().zip(all.numbers.iter().copied()).map(of).collect();
            let row = Row::of(format!("each CPU more, {what}"), "ns", slopes).with_inputs(&GIVEN);
            rows.push(row.beside(one.published.zip(all.published).map(of)));
        }
        rows
    }

    fn held_locks(&self, published: f64) -> [Row; 3] {
        let drains = if self.options.quick { DRAINS / 4 } else { DRAINS };
        let row = |what: &str, when, of: fn(Met) -> u64| {
            let met = |seed| of(met(self.machine, when, drains, seed)) as f64;
            let met =
                self.options.sweep_seeds(met).into_iter().map(|met| met * DRAINS as f64 / drains as f64);
            Row::of(format!("held locks met{what}"), "locks", met.collect())
        };
        let between = row(", drains between the loops", When::BetweenLoops, |met| met.by_drains);
        [
            between
                .against(self.is_published.then_some(published), "drain.contended")
                .with_inputs(&RUN[..1])
                .by_construction(BETWEEN),
            row(", drains while they charge", When::Meanwhile, |met| met.by_drains).with_inputs(&RUN),
            row(" by owners, drains while they charge", When::Meanwhile, |met| met.by_owners)
                .with_inputs(&RUN),
        ]
    }

    /// The published local operations: what a lock in the stock adds to each. In the model it adds one access to a line
    /// that the CPU writes anyway, and no cost for a locked instruction beyond that.
    fn local_operations(&self, all: &[Local]) -> Vec<Row> {
        let SimMachine { costs, topology, .. } = self.machine;
        let mut memory = Memory::new(costs, topology);
        let (cpu, line) = (topology.cpus[0].id, memory.line());
        memory.write_line(cpu, line, Nanos(0));
        let again = cycles(self.machine, memory.write_line(cpu, line, Nanos(1_000_000)).0);
        let row = |local: &Local| {
            let name = format!("local, {}: cycles more by a lock in the stock", local.op);
            let published = self.is_published.then_some(local.patched - local.upstream);
            Row::of(name, "cycles", vec![again]).against(published, "drain.local")
        };
        all.iter().map(row).collect()
    }

    /// The saving if queueing work reads another number of lines than [`QUEUE_LINES`].
    fn other_counts(&self, all: usize) -> [Row; 3] {
        [4, 8, 10].map(|queue_lines| {
            let [_, _, saved] = self.both_methods(Case { queue_lines, ..Case::plain(all) });
            let name = format!("nothing given, {all} CPUs, saved, if queueing takes {queue_lines} lines");
            Row::of(name, "percent", saved)
        })
    }
}

/// Rows that were not published: machines of 1 to 8192 CPUs where all CPUs have a stock, or 8, without fitted numbers.
fn growth(options: &Options) -> Vec<Row> {
    let sizes: &[usize] =
        if options.quick { &[1, 16, 128, 1024] } else { &[1, 2, 8, 32, 128, 512, 2048, 8192] };
    let mut rows = Vec::new();
    for &size in sizes {
        let machine = grown(size);
        // The seeds differ only in the drainer's CPU.
        let few = options.first(3);
        let row = |name: String, charging: usize, method: Method| {
            let ns = |seed| drain(&machine, &Case::plain(charging), method, seed).ns as f64;
            Row::of(format!("a machine of {name}"), "ns", few.sweep_seeds(ns))
        };
        for (method, what) in ALL_METHODS {
            rows.push(row(format!("{}, all with stock, {what}", cpus(size)), size, method));
        }
        if size >= 128 {
            rows.push(row(format!("{size} CPUs, 8 with stock, Warmcore's own"), 8, Method::Ours));
            rows.push(row(format!("{size} CPUs, 8 with stock, remote"), 8, Method::Patched));
        }
    }
    rows
}

/// Notes on the rows of a machine of this many CPUs.
fn notes(machine: &SimMachine, cpus: usize) -> Vec<String> {
    let plain = Case::plain(cpus);
    let [queued, ours] = [Method::Upstream, Method::Ours].map(|method| drain(machine, &plain, method, 0));
    vec![
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
    ]
}

/// Notes that compare with published numbers.
fn against_published(rows: &[Row], counts: &[Cycles], local: &[Local], costs: &Costs) -> Vec<String> {
    let of = |name: String| row_named(rows, &name);
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
