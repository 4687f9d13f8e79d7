//! Sensitivity: which of the unmeasured numbers changes an answer, and by how much.
//!
//! An answer is a simulated number, such as a burst's time. It is simulated again with half and with twice each input
//! that is neither published nor measured, one at a time; inputs that are derived from the varied one change too.
//! Inputs without an effect are counted; the others are listed with the results, the largest effect first. There are
//! five answers: one of the published table of ids, and four that are not published. 30 inputs are 61 simulations per
//! answer; all of it takes about 40 s on one core, almost all for hot windows on 384 CPUs.

use super::cid::sim::{Index, Setup, run};
use super::cid::{CHURN_PERCENT, PUBLISHED, at_usual_clock, given};
use super::hot_windows::{Shape, Windows, pairs};
use super::{Options, drain};
use serde::{Deserialize, Serialize};
use warmcore_cid::{CacheLocal, KeptPerCpu};
use warmcore_sim::costs::{Costs, Number, Trust};
use warmcore_sim::machine::SimMachine;
use warmcore_sim::memory::Pages;
use warmcore_sim::policy::Kernel;
use warmcore_types::Nanos;

/// The factors of a number, in thousandths.
pub const BOUNDS: [u64; 2] = [500, 2000];

/// Threads in the simulation of threads that come and go: as many as cores.
const CHURNING: u32 = 192;

/// CPUs of the largest drain.
const DRAINED: usize = 8192;

/// Pairs per CPU, in percent, in the simulation of hot windows: the middle load of the table.
const LOAD: u32 = 85;

/// An answer, and the numbers that change it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// `cid`, `task-owned`, `touched`, `hot-windows`, `drain`.
    pub name: String,
    /// The question, in words.
    pub asked: String,
    /// The machine's name.
    pub machine: String,
    /// The answer's unit.
    pub unit: String,
    /// The answer with every input as given.
    pub plain: f64,
    /// The numbers that change it, the largest effect first.
    pub inputs: Vec<Input>,
    /// How many numbers have no effect.
    pub still: usize,
}

/// A number that changes an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// Its name in `crates/topo/machines.toml`, or a description of an input that is no number of the machine.
    pub name: String,
    /// Its given value.
    pub value: f64,
    /// Its unit: `ns`, `KiB`, `%`.
    pub unit: String,
    /// How well it is known: `D` documented, `R` recalled, `E` estimated.
    pub trust: char,
    /// Its source.
    pub basis: String,
    /// The answer with half of this value.
    pub low: f64,
    /// The answer with twice this value.
    pub high: f64,
}

impl Input {
    /// The largest difference of the answer from `plain`.
    pub fn moves(&self, plain: f64) -> f64 {
        (self.low - plain).abs().max((self.high - plain).abs())
    }
}

/// By how many percent an answer changes if one number of the machine is a tenth larger, for each number. Numbers
/// without effect are left out; the one with the largest effect is first.
pub fn by_a_tenth(costs: &Costs, answer: impl Fn(&Costs) -> f64) -> Vec<(String, f64)> {
    let plain = answer(costs);
    let moved = costs.numbers().filter_map(|(name, _)| {
        let percent = (answer(&costs.scaled(name, 1100).ok()?) / plain - 1.0) * 100.0;
        (percent != 0.0).then(|| (name.to_owned(), percent))
    });
    let mut moved: Vec<(String, f64)> = moved.collect();
    moved.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then_with(|| a.0.cmp(&b.0)));
    moved
}

/// A number that is simulated on a machine.
type Answer<'a> = dyn Fn(&SimMachine) -> f64 + Sync + 'a;

/// All answers. An answer without results, because the run was stopped, is left out.
///
/// # Panics
///
/// If the machine file lacks one of the machines.
pub fn all(options: &Options) -> Vec<Sensitivity> {
    let mut all = ids(options);
    all.extend(hot_windows(options));
    all.extend(drained(options));
    all
}

/// The answers from the table of ids.
fn ids(options: &Options) -> Vec<Sensitivity> {
    let machine = SimMachine::named(given::MACHINE).unwrap_or_else(|e| panic!("{e}"));
    let burst = |machine: &SimMachine, setup: Setup| {
        run(&at_usual_clock(&machine.costs), &machine.topology, &setup, 0).burst_ns
    };
    let gain = |machine: &SimMachine, pages: Pages| {
        let by = |index| burst(machine, Setup { index, pages, ..PUBLISHED });
        by(Index::Cid(&KeptPerCpu)) / by(Index::Cid(&CacheLocal))
    };
    let churning = Setup {
        threads: CHURNING,
        llcs: machine.topology.llcs.len() as u32,
        index: Index::TaskOwnedCid,
        churn_percent: CHURN_PERCENT,
        ..PUBLISHED
    };
    let churn = format!(
        "A burst under Linux 6.19’s ids, {CHURNING} threads that come and go, a pause of 200 ms × threads between bursts"
    );
    let of = |name: &str, asked: &str, unit: &str, answer: &Answer<'_>| {
        varied(options, &machine, (name, asked, unit), answer, &[])
    };
    let found = [
        of(
            "cid",
            "How many times as long a burst takes if ids are only kept, 8 threads, 200 ms",
            "x",
            &|machine| gain(machine, Pages::CopyOnWrite),
        ),
        of(
            "touched",
            "The same if all areas were touched before, so that no page is copied",
            "x",
            &|machine| gain(machine, Pages::Touched),
        ),
        of("task-owned", &churn, "ns", &|machine| burst(machine, churning)),
    ];
    found.into_iter().flatten().collect()
}

/// Hot windows and the shared wake queue together, on 2 × 96 cores.
fn hot_windows(options: &Options) -> Option<Sensitivity> {
    let machine = SimMachine::named("epyc9654_2p").unwrap_or_else(|e| panic!("{e}"));
    let shape = Shape {
        pairs: machine.topology.cpus.len() as u32 * LOAD / 100,
        turn: Nanos(5_000),
        data_kib: 16,
        windows: Windows::ms(5, 10),
        hz: 1000,
    };
    let gain = |machine: &SimMachine, shape: Shape| {
        let linux = Kernel::default();
        let both = Kernel { hot_windows: true, wake_queue: true, ..linux };
        let [old, new] = [linux, both].map(|kernel| pairs(machine, kernel, 0, shape));
        new.gain(&old)
    };
    let own = |name: &str, value: u64, unit: &str, with: &(dyn Fn(u64) -> Shape + Sync)| {
        let ends = options.each(&BOUNDS, |bound| gain(&machine, with(value * bound / 1000)));
        let &[low, high] = ends.as_slice() else { return None };
        Some(Input {
            name: name.to_owned(),
            value: value as f64,
            unit: unit.to_owned(),
            trust: Trust::Estimated.letter(),
            basis: "chosen for this table: a round number".to_owned(),
            low,
            high,
        })
    };
    let own = [
        own("a turn on a core of its own", 5_000, "ns", &|ns| Shape { turn: Nanos(ns), ..shape })?,
        own("data that a side carries", 16, "KiB", &|kib| Shape { data_kib: kib as u32, ..shape })?,
    ];
    let asked = format!(
        "What hot windows and the shared wake queue gain together on 2 × 96 cores, {} pairs that talk, by one seed \
         in their first 5 to 10 ms: a transient (seeds alone differ by some percent)",
        shape.pairs
    );
    varied(options, &machine, ("hot-windows", &asked, "percent"), &|machine| gain(machine, shape), &own)
}

/// The drain of all CPUs of the largest machine, by Warmcore's method.
fn drained(options: &Options) -> Option<Sensitivity> {
    let machine = drain::grown(DRAINED);
    let asked = format!("A drain of {DRAINED} CPUs, all with stock, in Warmcore’s own way");
    varied(options, &machine, ("drain", &asked, "ns"), &drain::ours_ns, &[])
}

/// Whether a number is varied: it was not published or measured, is not 0, does not follow another one, and is no
/// well-known property of the machine (the size of a line).
fn is_varied(costs: &Costs, name: &str, number: &Number) -> bool {
    if name == "line_bytes" {
        return false;
    }
    let follows = |basis: &str| basis.split_once(": ").is_some_and(|(from, _)| costs.get(from).is_some());
    number.trust >= Trust::Documented && number.milli > 0 && !follows(&number.basis)
}

/// An answer, simulated with each input varied. `more`: results for inputs that are no numbers of the machine. `None`
/// after a stop.
fn varied(
    options: &Options,
    machine: &SimMachine,
    (name, asked, unit): (&str, &str, &str),
    answer: &Answer<'_>,
    more: &[Input],
) -> Option<Sensitivity> {
    let costs = &machine.costs;
    let chosen: Vec<(&str, &Number)> =
        costs.numbers().filter(|(name, number)| is_varied(costs, name, number)).collect();
    let mut all: Vec<Costs> = vec![costs.clone()];
    for (name, _) in &chosen {
        all.extend(BOUNDS.iter().filter_map(|bound| costs.scaled(name, *bound).ok()));
    }
    let answers = options.each(&all, |costs| answer(&SimMachine { costs: costs.clone(), ..machine.clone() }));
    if answers.len() < 1 + 2 * chosen.len() {
        return None;
    }
    let plain = answers[0];
    let inputs = chosen.iter().zip(answers[1..].chunks_exact(2)).map(|((name, number), ends)| Input {
        name: (*name).to_owned(),
        value: number.milli as f64 / 1000.0,
        unit: unit_of(name).to_owned(),
        trust: number.trust.letter(),
        basis: number.basis.clone(),
        low: ends[0],
        high: ends[1],
    });
    let (mut moving, still): (Vec<Input>, Vec<Input>) =
        inputs.chain(more.iter().cloned()).partition(|input| input.moves(plain) > 0.0);
    moving.sort_by(|a, b| b.moves(plain).total_cmp(&a.moves(plain)).then_with(|| a.name.cmp(&b.name)));
    Some(Sensitivity {
        name: name.to_owned(),
        asked: asked.to_owned(),
        machine: machine.name.clone(),
        unit: unit.to_owned(),
        plain,
        inputs: moving,
        still: still.len(),
    })
}

/// The unit of a machine's number.
fn unit_of(name: &str) -> &'static str {
    let ends = |end: &str| name.ends_with(end);
    match () {
        _ if ends("_mhz") => "MHz",
        _ if ends("_kib") => "KiB",
        _ if ends("_percent") => "%",
        _ if ends("_cycles") || ends("_cycles_per_line") => "cycles",
        _ if ends("_bytes") => "bytes",
        _ if ends("_gbs") => "GB/s",
        _ if name.starts_with("mlp_") => "lines at once",
        _ => "ns",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unmeasured_numbers_are_varied_and_derived_ones_only_with_their_source() {
        let machine = SimMachine::named(given::MACHINE).unwrap();
        let of = |name: &str| is_varied(&machine.costs, name, machine.costs.get(name).unwrap());
        assert!(of("mlp_read") && of("boost_mhz") && of("dram_remote"));
        assert!(!of("c2c_same_l3"), "it was measured");
        assert!(!of("line_bytes"), "it is well known");
        assert!(!of("clock_mhz"), "it is boost_mhz");
    }

    #[test]
    fn the_number_with_the_largest_effect_comes_first_and_those_without_are_counted() {
        let machine = SimMachine::named(given::MACHINE).unwrap();
        let answer = |SimMachine { costs, .. }: &SimMachine| {
            (costs.ps("dram_remote") + costs.ps("dram_local") / 8) as f64 / 1000.0
        };
        let found = varied(&Options::default(), &machine, ("x", "x", "ns"), &answer, &[]).unwrap();
        let names: Vec<&str> = found.inputs.iter().map(|input| &*input.name).collect();
        assert_eq!(names, ["dram_remote", "dram_local"], "{found:?}");
        let first = &found.inputs[0];
        assert_eq!((first.value, first.trust, &*first.unit), (205.0, 'E', "ns"));
        assert!(first.low < found.plain && found.plain < first.high && found.still > 5, "{found:?}");
    }

    #[test]
    fn every_answer_of_ids_and_drains_is_moved_by_something() {
        let (options, mut found) = (Options::default(), Vec::new());
        found.extend(ids(&options));
        found.extend(drained(&options));
        assert_eq!(found.len(), 4);
        for one in found {
            assert!(one.plain > 0.0 && !one.inputs.is_empty(), "{}: {one:?}", one.name);
        }
    }
}
