//! Compares the closed form (`culprit/rates.rs`) with a simulation of the same profile touch by touch, and checks the
//! relayouts of random structs.

use proptest::prelude::*;
use warmcore_layout::Layout;
use warmcore_layout::culprit::{Analyzer, Cpus, Per, Profile, Touch, simulate};
use warmcore_sim::machine::SimMachine;

/// The share by which the formula may differ from the simulation.
const WITHIN: f64 = 0.08;
/// The difference in ns that is allowed in addition.
const WITHIN_NS: f64 = 2.0;
/// The mean over fewer touches than this is not compared.
const COUNTED_MIN: u64 = 2000;
const TOUCHES: u64 = 120_000;

/// A struct of 256 bytes with fields of 8 bytes at these offsets.
fn layout(offsets: &[usize]) -> Layout {
    let fields: Vec<String> = (offsets.iter().enumerate())
        .map(|(i, at)| format!("{{ name = \"f{i}\", offset = {at}, size = 8 }}"))
        .collect();
    let text = format!("name = \"s\"\nsize = 256\nalign = 64\nfields = [{}]", fields.join(","));
    Layout::declared(&text, "declared").unwrap()
}

fn access(number: usize, reads: u32, writes: u32, cpus: Cpus) -> Touch {
    Touch { field: format!("f{number}"), reads_per_s: reads.into(), writes_per_s: writes.into(), cpus }
}

fn profile(access: Vec<Touch>) -> Profile {
    Profile {
        workload: String::new(),
        name: "s".into(),
        machine: None,
        pair: false,
        rates: Per::PerCpu,
        access,
    }
}

fn machine() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("epyc7601_2p"), Just("epyc9654_2p"), Just("spr_224cpu_2p"), Just("ryzen7950x")]
}

fn accesses() -> impl Strategy<Value = Vec<(u32, u32, u32)>> {
    // (CPUs, reads per second of each, writes per second of each), so low that few lines are in transfer for more than
    // half of the time.
    prop::collection::vec((1u32..33, 0u32..8000, prop_oneof![Just(0u32), 0u32..8000]), 2..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_formula_is_what_happens(name in machine(), given in accesses(), own_line in 0usize..4, seed: u64) {
        let machine = SimMachine::named(name).unwrap();
        let offsets: Vec<usize> = (0..given.len()).map(|i| 8 * i + if i == own_line { 64 } else { 0 }).collect();
        let layout = layout(&offsets);
        let access: Vec<Touch> = given
            .iter()
            .enumerate()
            .map(|(i, (cpus, reads, writes))| access(i, *reads, *writes, Cpus::First(*cpus)))
            .collect();
        prop_assume!(given.iter().any(|(_, reads, writes)| reads + writes > 0));
        let profile = profile(access);
        let verdict = Analyzer::new(&profile, &layout, &machine).unwrap().verdict(&layout).unwrap();
        prop_assume!(verdict.busy.is_empty());
        for seen in simulate(&layout, &profile, &machine, seed, TOUCHES).unwrap() {
            let said = verdict.field(&seen.name).unwrap();
            let pairs = [
                ("read", seen.reads, seen.mean_read_ns(), said.read_ns),
                ("write", seen.writes, seen.mean_write_ns(), said.write_ns),
            ];
            for (what, count, seen_ns, said_ns) in pairs {
                let far = (seen_ns - said_ns).abs();
                prop_assert!(
                    count < COUNTED_MIN || far <= WITHIN_NS + WITHIN * seen_ns,
                    "{}: {said_ns:.2} ns a {what} said, {seen_ns:.2} seen in {count}; {profile:?}",
                    seen.name
                );
            }
        }
    }
}

/// Fields in a row, each at its own alignment, some followed by a hole; and a profile of them.
fn struct_and_profile() -> impl Strategy<Value = (Layout, Profile)> {
    let field = (prop::sample::select(vec![1usize, 2, 4, 8, 16, 40]), 0usize..3);
    let touch =
        (1u32..25, prop_oneof![Just(0u32), 0u32..6000], prop_oneof![2 => Just(0u32), 1 => 0u32..6000]);
    let fields = prop::collection::vec((field, prop::option::of(touch)), 2..14);
    (fields, any::<bool>(), any::<bool>()).prop_map(|(fields, pair, is_open)| {
        let (mut at, mut texts, mut touches) = (0usize, Vec::new(), Vec::new());
        for (i, ((size, hole), touch)) in fields.iter().enumerate() {
            let align = (1 << size.trailing_zeros()).min(8);
            at = at.next_multiple_of(align);
            texts.push(format!("{{ name = \"f{i}\", offset = {at}, size = {size} }}"));
            at += size + hole * 24;
            if let Some((cpus, reads, writes)) = touch {
                touches.push(access(i, *reads, *writes, Cpus::First(*cpus)));
            }
        }
        if touches.is_empty() {
            touches.push(access(0, 1, 1, Cpus::First(2)));
        }
        let size = at.next_multiple_of(8);
        let text = format!("name = \"s\"\nsize = {size}\nalign = 8\nfields = [{}]", texts.join(","));
        let mut layout = Layout::declared(&text, "declared").unwrap();
        if is_open {
            // Makes the last field an array of unknown length.
            layout.fields.last_mut().unwrap().size = 0;
        }
        (layout, Profile { pair, ..profile(touches) })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_relayout_is_a_layout_of_the_same_struct_and_cheaper_when_played((layout, profile) in struct_and_profile(), seed: u64) {
        let machine = SimMachine::named("epyc9654_2p").unwrap();
        let found = warmcore_layout::culprit::find(&layout, &profile, &machine).unwrap();
        let total = |layout: &Layout| {
            let seen = simulate(layout, &profile, &machine, seed, 60_000).unwrap();
            let read: u64 = seen.iter().map(|seen| seen.read_ns + seen.write_ns).sum();
            read as f64
        };
        let names = |layout: &Layout| {
            let mut all: Vec<_> = layout.fields.iter().map(|f| (f.name.clone(), f.size, f.align)).collect();
            all.sort();
            all
        };
        for way in &found.relayouts {
            let to = &way.layout;
            prop_assert_eq!(names(to), names(&layout), "{}", way.what);
            prop_assert!(to.fields.windows(2).all(|f| f[0].end() <= f[1].offset), "{}: {:?}", way.what, to);
            prop_assert!(to.fields.iter().all(|f| f.offset % f.align == 0 && f.end() <= to.size), "{}", way.what);
            prop_assert!(to.size % to.align == 0 && to.align >= layout.align, "{}", way.what);
            if let Some(open) = layout.flexible() {
                let name = &layout.fields[open].name;
                let at = to.byte_range(name).unwrap().offset;
                prop_assert!(to.fields.iter().all(|f| f.end() <= at), "{}: {} is not the last", way.what, name);
            }
        }
        if let Some(best) = found.relayouts.first().filter(|way| way.helps() && way.added >= 0) {
            let (before, after) = (total(&layout), total(&best.layout));
            prop_assert!(best.kind == warmcore_layout::culprit::RelayoutKind::PadAfter || after < before * 1.02, "{}: {} -> {}", best.what, before, after);
        }
    }
}
