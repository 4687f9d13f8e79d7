//! False sharing: `mm_count` and `pcpu_cid` on one line of `mm_struct`, as found in April 2023, and apart, as since
//! 6.4.
//!
//! The layout is the one in which the false sharing was found; the profile has what a context switch touches. The
//! profile is played touch by touch, before and after the change, and solved in closed form; the culprit comes from
//! the solution. How often hackbench switches was not published: rows that do not depend on this rate are also shown
//! at other rates. With 5000 reads and 5000 writes per CPU and second a read of `pcpu_cid` takes 104 ns beside
//! `mm_count`, and 2 ns without it.
//!
//! # Source
//!
//! linux-kernel, April and May 2023: "sched: Fix performance regression introduced by mm_cid" and "mm: Move mm_count
//! into its own cache line". `fixtures/sim/mm_struct.toml`, `fixtures/sim/hackbench.toml`.

use super::{Options, Row, Table};
use serde::Deserialize;
use warmcore_layout::Layout;
use warmcore_layout::culprit::{Analyzer, Cpus, Culprit, FieldCost, Profile, RelayoutKind, find, simulate};
use warmcore_sim::machine::SimMachine;

#[cfg(test)]
mod tests;

/// The machine on which hackbench was run.
pub const MACHINE: &str = "spr_224cpu_2p";

const LAYOUT: &str = include_str!("../../../fixtures/sim/mm_struct.toml");
const PROFILE: &str = include_str!("../../../fixtures/sim/hackbench.toml");

/// Other rates, in thousandths of the profile's.
const RATES: [(u32, &str); 2] = [(100, "a tenth of the switches"), (2000, "twice the switches")];

/// Why a row of the reader's cost cannot fail.
const OWN_LINE: &str = "in the model a line that no core writes any more is never invalidated";
/// Why the row of the culprit cannot fail.
const ONE_WRITER: &str = "the profile has one field that is written often";

/// Fields next to the writer that are read.
const BESIDE_WRITER: [&str; 2] = ["mm_users", "membarrier_state"];

/// The published names of the two fields, and a number for comparison only.
#[derive(Deserialize)]
struct Measured {
    reader_field: String,
    writer_field: String,
    reader_cost_after_percent: f64,
}

/// The layout, profile and machine that are simulated.
struct FalseSharingSim {
    machine: SimMachine,
    layout: Layout,
    profile: Profile,
    touches: u64,
}

impl FalseSharingSim {
    fn new(options: &Options) -> Self {
        let machine = options.machine_or(MACHINE);
        let layout = Layout::declared(LAYOUT, "mm_struct.toml").unwrap_or_else(|e| panic!("{e}"));
        let mut profile = Profile::parse(PROFILE, "hackbench.toml").unwrap_or_else(|e| panic!("{e}"));
        let online = machine.topology.cpus.len() as u32;
        for access in &mut profile.access {
            if let Cpus::First(count) = &mut access.cpus {
                *count = (*count).min(online);
            }
        }
        Self { machine, layout, profile, touches: if options.quick { 40_000 } else { 150_000 } }
    }

    /// The mean time of a read of a field in the simulation touch by touch, by seed.
    fn read_ns(&self, options: &Options, layout: &Layout, field: &str) -> Vec<f64> {
        options.sweep_seeds(|seed| {
            let seen = simulate(layout, &self.profile, &self.machine, seed, self.touches);
            let seen = seen.unwrap_or_else(|e| panic!("{e}"));
            seen.iter().find(|seen| seen.name == field).map_or(0.0, |seen| seen.mean_read_ns())
        })
    }

    fn culprit(&self) -> Culprit {
        find(&self.layout, &self.profile, &self.machine).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// The table: which field is the culprit, and what is gained by moving it.
///
/// # Panics
///
/// If the machine file lacks the published machine.
pub fn table(options: &Options) -> Table {
    let published: Measured = super::published("false_sharing");
    let sim = FalseSharingSim::new(options);
    let is_published = sim.machine.costs.machine() == MACHINE;
    let culprit = sim.culprit();
    let (reader, writer) = (published.reader_field.as_str(), published.writer_field.as_str());
    let number = |name: &str| sim.layout.byte_range(name).unwrap_or_else(|e| panic!("{e}")).field;
    let of = |field: &str| culprit.verdict.field(field);
    let alone = |field: &str| of(field).map_or(0.0, |f| f.read_alone_ns);
    let apart = sim.layout.in_front(&[number(writer)], culprit.verdict.unit);
    let padded = sim.layout.padded_after(number(reader), culprit.verdict.unit);
    // The kernel's first change was padding after the writer. The fields next to the writer still suffer.
    let between = sim.layout.padded_after(number(writer), culprit.verdict.unit);
    let cheapest = culprit.relayouts.iter().find(|r| r.helps() && r.kind != RelayoutKind::PadAfter);

    let before = sim.read_ns(options, &sim.layout, reader);
    let after = sim.read_ns(options, &apart, reader);
    let row = |what: &str, unit, numbers| Row::of(format!("{reader}: {what}"), unit, numbers);
    let gone = |what: &str, after: &[f64]| {
        let share = |(before, after): (&f64, &f64)| (before - after) / (before - alone(reader));
        row(what, "share", before.iter().zip(after).map(share).collect())
    };
    let own = |row: Row| row.within("false_sharing.reader").by_construction(OWN_LINE);
    let what = format!("share of its extra cost that is gone, {writer} on a line of its own");
    let mut rows = vec![own(gone(&what, &after))];
    if let Some(cheapest) = cheapest {
        let after = sim.read_ns(options, &cheapest.layout, reader);
        rows.push(own(gone("the same, by the cheapest re-layout", &after)));
    }
    rows.push(gone("the same, by padding after it", &sim.read_ns(options, &padded, reader)));
    let what = format!("the same, by padding between {writer} and it");
    rows.push(gone(&what, &sim.read_ns(options, &between, reader)));
    for field in BESIDE_WRITER {
        let extra = |layout: &Layout| -> Vec<f64> {
            sim.read_ns(options, layout, field).into_iter().map(|ns| ns - alone(field)).collect()
        };
        let before = extra(&sim.layout);
        for (what, layout) in [
            (format!("padding between {writer} and {reader}"), &between),
            (format!("{writer} on a line of its own"), &apart),
        ] {
            let left = extra(layout).iter().zip(&before).map(|(after, before)| after / before).collect();
            let name = format!("{field}: share of its extra cost that stays, {what}");
            rows.push(Row::of(name, "share", left));
        }
    }
    rows.push(
        Row::of("wrong fields named", "fields", vec![wrong(&culprit, reader, writer) as f64])
            .against(is_published.then_some(0.0), "false_sharing.culprit")
            .by_construction(ONE_WRITER),
    );
    let rate = of(reader).map_or(0.0, |f| f.reads_per_s / f.readers.max(1) as f64);
    let percent = |ns: &[f64]| ns.iter().map(|ns| ns * rate / 1e9 * 100.0).collect::<Vec<f64>>();
    let solved = of(reader).map_or(0.0, |f| f.read_ns);
    rows.extend([
        row("one read, before", "ns", before.clone()),
        row("one read, after", "ns", after.clone()),
        row("share of a core's time, before", "percent", percent(&before)),
        row("share of a core's time, after", "percent", percent(&after))
            .beside(is_published.then_some(published.reader_cost_after_percent)),
        row("one read, solved / played", "x", before.iter().map(|played| solved / played).collect()),
    ]);
    for (per_mille, what) in RATES {
        let share = share_gone_at(&sim, &apart, per_mille, (reader, writer));
        rows.push(own(row(&format!("the same, {what}, solved"), "share", vec![share])));
    }
    Table {
        name: "false_sharing".into(),
        machine: sim.machine.costs.machine().to_owned(),
        source: "linux-kernel, April and May 2023, mm_count and pcpu_cid of mm_struct under hackbench".into(),
        rows,
        notes: notes(&culprit, cheapest.map(|c| c.what.as_str())),
    }
}

/// The number of wrong culprits: the reader's, if it is not the writer or if there is none; and the culprit of each
/// other field whose reads suffer, if it is not the writer.
fn wrong(culprit: &Culprit, reader: &str, writer: &str) -> usize {
    let named = |field: &str| culprit.verdict.culprit_of(field).map(|blame| blame.field.as_str());
    let others = culprit.verdict.fields.iter().filter(|f| f.name != reader);
    usize::from(named(reader) != Some(writer))
        + others.filter(|f| named(&f.name).is_some_and(|named| named != writer)).count()
}

/// The share of the reader's extra cost that is gone in another layout, solved, with the profile's rates multiplied by
/// this many thousandths.
fn share_gone_at(
    sim: &FalseSharingSim,
    apart: &Layout,
    per_mille: u32,
    (reader, writer): (&str, &str),
) -> f64 {
    let mut profile = sim.profile.clone();
    for access in &mut profile.access {
        access.reads_per_s *= f64::from(per_mille) / 1000.0;
        access.writes_per_s *= f64::from(per_mille) / 1000.0;
    }
    let solved = |layout: &Layout| {
        let analyzer = Analyzer::new(&profile, &sim.layout, &sim.machine);
        analyzer.and_then(|analyzer| analyzer.verdict(layout)).unwrap_or_else(|e| panic!("{e}"))
    };
    let (before, after) = (solved(&sim.layout), solved(apart));
    debug_assert!(before.culprit_of(reader).is_none_or(|blame| blame.field == writer));
    let ns = |field: Option<&FieldCost>| field.map_or((0.0, 0.0), |f| (f.read_ns, f.read_alone_ns));
    let ((before, alone), (after, _)) = (ns(before.field(reader)), ns(after.field(reader)));
    (before - after) / (before - alone)
}

fn notes(culprit: &Culprit, cheapest: Option<&str>) -> Vec<String> {
    let mut notes = vec![
        "How often hackbench switches is an estimate: shares and culprits do not depend on it, shares of a core's time \
         do, and are not compared."
            .to_owned(),
        "Padding between the two was tried first. It frees pcpu_cid, and leaves mm_users and membarrier_state on the \
         writer's line: 4 % of the cycles stayed in the other function, 76 % of them at the load of mm_users. How often \
         that is read is not published, so the share that stays is compared with nothing."
            .to_owned(),
        "The layout was computed from the declarations of April 2023, not read from a binary.".to_owned(),
    ];
    if let Some(cheapest) = cheapest {
        notes.push(format!("The cheapest re-layout, found by itself: {cheapest}."));
    }
    notes.extend(
        culprit
            .verdict
            .busy
            .iter()
            .map(|(line, busy)| format!("Line {line} is on its way for {:.0} % of the time.", 100.0 * busy)),
    );
    notes
}
