//! The closed form against the same profile played touch by touch, and the culprits of layouts that are known.

use proptest::prelude::*;
use warmcore_sim::costs::Costs;
use warmcore_sim::culprit::{Cpus, Judge, Profile, Touch, simulate};
use warmcore_sim::layout::Layout;
use warmcore_topo::{MACHINES, Topology};

/// The formula is within this share of what was played, and …
const WITHIN: f64 = 0.08;
/// … so many ns.
const WITHIN_NS: f64 = 2.0;
/// Fewer touches say too little of a mean.
const COUNTED_MIN: u64 = 2000;
const TOUCHES: u64 = 120_000;

/// Fields of 8 bytes, one after the other from the start of a line.
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
    Profile { workload: String::new(), name: "s".into(), machine: None, pair: false, access }
}

fn machine() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("epyc7601_2p"), Just("epyc9654_2p"), Just("spr_224cpu_2p"), Just("ryzen7950x")]
}

fn accesses() -> impl Strategy<Value = Vec<(u32, u32, u32)>> {
    // CPUs, reads and writes of each in a second: a line is on its way for a fifth of the time at most.
    prop::collection::vec((1u32..33, 0u32..8000, prop_oneof![Just(0u32), 0u32..8000]), 2..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_formula_is_what_happens(name in machine(), given in accesses(), places in 0usize..4, seed: u64) {
        let topology = Topology::from_machine(MACHINES, name).unwrap();
        let costs = Costs::from_machine(MACHINES, name).unwrap();
        let offsets: Vec<usize> = (0..given.len()).map(|i| 8 * i + if i == places { 64 } else { 0 }).collect();
        let layout = layout(&offsets);
        let access: Vec<Touch> = given
            .iter()
            .enumerate()
            .map(|(i, (cpus, reads, writes))| access(i, *reads, *writes, Cpus::First(*cpus)))
            .collect();
        prop_assume!(given.iter().any(|(_, reads, writes)| reads + writes > 0));
        let profile = profile(access);
        let verdict = Judge::new(&profile, &layout, &costs, &topology).unwrap().verdict(&layout).unwrap();
        prop_assume!(verdict.busy.is_empty());
        for seen in simulate(&layout, &profile, &costs, &topology, seed, TOUCHES).unwrap() {
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
