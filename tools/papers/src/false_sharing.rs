//! False sharing: `mm_count` and `pcpu_cid` on one line of `mm_struct`, as found in April 2023, and apart, as since
//! 6.4.
//!
//! The layout is the one in which the false sharing was found; the profile has what a context switch touches. The
//! profile is played touch by touch, before and after the change, and solved in closed form; the culprit comes from
//! the solution. How often hackbench switches was not published: rows that do not depend on this rate are also shown
//! at other rates. With 5000 reads and 5000 writes per CPU and second a read takes 104 ns beside `mm_count`, and 2 ns
//! without it.
//!
//! # Source
//!
//! linux-kernel, April and May 2023: "sched: Fix performance regression introduced by mm_cid" and "mm: Move mm_count
//! into its own cache line". `fixtures/sim/mm_struct.toml`, `fixtures/sim/hackbench.toml`.

use super::{Options, Row, Table};
use serde::Deserialize;
use warmcore_layout::Layout;
use warmcore_layout::culprit::{Analyzer, Cpus, Culprit, Profile, RelayoutKind, find, simulate};
use warmcore_sim::costs::Costs;
use warmcore_sim::machine::SimMachine;
use warmcore_topo::Topology;

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

/// Published numbers, for comparison only.
#[derive(Deserialize)]
struct Measured {
    reader_field: String,
    writer_field: String,
    reader_cost_after_percent: f64,
}

/// The layout, profile and machine that are simulated.
struct FalseSharingSim {
    costs: Costs,
    topology: Topology,
    layout: Layout,
    profile: Profile,
    touches: u64,
}

impl FalseSharingSim {
    fn new(options: &Options) -> Self {
        let SimMachine { topology, costs, .. } = options.machine_or(MACHINE);
        let layout = Layout::declared(LAYOUT, "mm_struct.toml").unwrap_or_else(|e| panic!("{e}"));
        let mut profile = Profile::parse(PROFILE, "hackbench.toml").unwrap_or_else(|e| panic!("{e}"));
        let online = topology.cpus.len() as u32;
        for access in &mut profile.access {
            if let Cpus::First(count) = &mut access.cpus {
                *count = (*count).min(online);
            }
        }
        Self { costs, topology, layout, profile, touches: if options.quick { 40_000 } else { 150_000 } }
    }

    /// The profile with its rates multiplied by this many thousandths.
    fn scaled(&self, per_mille: u32) -> Profile {
        let mut profile = self.profile.clone();
        for access in &mut profile.access {
            access.reads_per_s *= f64::from(per_mille) / 1000.0;
            access.writes_per_s *= f64::from(per_mille) / 1000.0;
        }
        profile
    }

    /// The mean time of a read of a field in the simulation touch by touch.
    fn read_ns(&self, layout: &Layout, profile: &Profile, field: &str, seed: u64) -> f64 {
        let seen = simulate(layout, profile, &self.costs, &self.topology, seed, self.touches);
        let seen = seen.unwrap_or_else(|e| panic!("{e}"));
        seen.iter().find(|seen| seen.name == field).map_or(0.0, |seen| seen.mean_read_ns())
    }

    fn culprit(&self) -> Culprit {
        find(&self.layout, &self.profile, &self.costs, &self.topology).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// Which field is the culprit, and what is gained by moving it.
///
/// # Panics
///
/// If the machine file has no such machine.
pub fn table(options: &Options) -> Table {
    let published: Measured = super::published("false_sharing");
    let sim = FalseSharingSim::new(options);
    let is_published = sim.costs.machine() == MACHINE;
    let culprit = sim.culprit();
    let (reader, writer) = (published.reader_field.as_str(), published.writer_field.as_str());
    let number = |name: &str| sim.layout.byte_range(name).unwrap_or_else(|e| panic!("{e}")).field;
    let apart = sim.layout.in_front(&[number(writer)], culprit.verdict.unit);
    let padded = sim.layout.padded_after(number(reader), culprit.verdict.unit);
    let alone = culprit.verdict.field(reader).map_or(0.0, |f| f.read_alone_ns);
    let cheapest = culprit.relayouts.iter().find(|r| r.helps() && r.kind != RelayoutKind::PadAfter);
    let mut rows = Vec::new();

    let before = options.per_seed(|seed| sim.read_ns(&sim.layout, &sim.profile, reader, seed));
    let gone = |layout: &Layout| {
        let after = options.per_seed(|seed| sim.read_ns(layout, &sim.profile, reader, seed));
        let share = |(before, after): (&f64, &f64)| (before - after) / (before - alone);
        let shares: Vec<f64> = before.iter().zip(&after).map(share).collect();
        (after, shares)
    };
    let (after, shares) = gone(&apart);
    let name = format!("{reader}: share of its extra cost that is gone, {writer} on a line of its own");
    let own = |row: Row| row.against(None, "false_sharing.reader").by_construction(OWN_LINE);
    rows.push(own(Row::of(name, "share", shares)));
    if let Some(cheapest) = cheapest {
        let (_, shares) = gone(&cheapest.layout);
        let name = format!("{reader}: the same, by the cheapest re-layout");
        rows.push(own(Row::of(name, "share", shares)));
    }
    let (_, shares) = gone(&padded);
    rows.push(Row::of(format!("{reader}: the same, by padding after it"), "share", shares));
    // The kernel's first change was padding after the writer. The fields next to the writer still suffer.
    let between = sim.layout.padded_after(number(writer), culprit.verdict.unit);
    let (_, shares) = gone(&between);
    rows.push(Row::of(format!("{reader}: the same, by padding between {writer} and it"), "share", shares));
    for field in BESIDE_WRITER {
        let alone = culprit.verdict.field(field).map_or(0.0, |f| f.read_alone_ns);
        let extra = |layout: &Layout| {
            let read = options.per_seed(|seed| sim.read_ns(layout, &sim.profile, field, seed));
            read.into_iter().map(|ns| ns - alone).collect::<Vec<f64>>()
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
    let rate = culprit.verdict.field(reader).map_or(0.0, |f| f.reads_per_s / f.readers.max(1) as f64);
    let percent = |ns: &Vec<f64>| ns.iter().map(|ns| ns * rate / 1e9 * 100.0).collect::<Vec<f64>>();
    rows.push(Row::of(format!("{reader}: one read, before"), "ns", before.clone()));
    rows.push(Row::of(format!("{reader}: one read, after"), "ns", after.clone()));
    rows.push(Row::of(format!("{reader}: share of a core's time, before"), "percent", percent(&before)));
    let left = Row::of(format!("{reader}: share of a core's time, after"), "percent", percent(&after));
    rows.push(Row { published: is_published.then_some(published.reader_cost_after_percent), ..left });
    let said = culprit.verdict.field(reader).map_or(0.0, |f| f.read_ns);
    let ratios = before.iter().map(|seen| said / seen).collect();
    rows.push(Row::of(format!("{reader}: one read, solved / played"), "x", ratios));
    for (per_mille, what) in RATES {
        rows.push(at_another_rate(&sim, &apart, per_mille, what, (reader, writer)));
    }
    Table {
        name: "false_sharing".into(),
        machine: sim.costs.machine().to_owned(),
        source: "linux-kernel, April and May 2023, mm_count and pcpu_cid of mm_struct under hackbench".into(),
        rows,
        notes: notes(&culprit, cheapest.map(|c| c.what.as_str())),
    }
}

/// Fields that suffer from the writer but are blamed on another field, or should suffer and do not.
fn wrong(culprit: &Culprit, reader: &str, writer: &str) -> usize {
    let named = |field: &str| culprit.verdict.culprit_of(field).map(|blame| blame.field.as_str());
    let others = culprit.verdict.fields.iter().filter(|f| f.name != reader);
    usize::from(named(reader) != Some(writer))
        + others.filter(|f| named(&f.name).is_some_and(|named| named != writer)).count()
}

fn at_another_rate(
    sim: &FalseSharingSim,
    apart: &Layout,
    per_mille: u32,
    what: &str,
    (reader, writer): (&str, &str),
) -> Row {
    let profile = sim.scaled(per_mille);
    let solved = |layout: &Layout| {
        let analyzer = Analyzer::new(&profile, &sim.layout, &sim.costs, &sim.topology);
        analyzer.and_then(|analyzer| analyzer.verdict(layout)).unwrap_or_else(|e| panic!("{e}"))
    };
    let (before, after) = (solved(&sim.layout), solved(apart));
    let read = |verdict: &warmcore_layout::culprit::Verdict| {
        verdict.field(reader).map_or((0.0, 0.0), |f| (f.read_ns, f.read_alone_ns))
    };
    let ((before_ns, alone), (after_ns, _)) = (read(&before), read(&after));
    let share = (before_ns - after_ns) / (before_ns - alone);
    let row = Row::of(format!("{reader}: the same, {what}, solved"), "share", vec![share]);
    debug_assert!(before.culprit_of(reader).is_none_or(|blame| blame.field == writer));
    row.against(None, "false_sharing.reader").by_construction(OWN_LINE)
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
