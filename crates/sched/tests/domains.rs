//! On each machine `others` is all other CPUs, nearest first, and a shard is whole cores of one LLC.

mod common;

use common::all_machines;
use std::collections::BTreeSet;
use warmcore_sched::{Distance, SchedDomains};
use warmcore_types::CpuId;

/// The largest number of CPUs of a shard.
const SHARD_CPUS_MAX: usize = 16;

fn cpus(machine: &SchedDomains) -> impl Iterator<Item = CpuId> {
    // All CPUs, or of a large machine only some, because each has as many others to check.
    let step = if machine.cpus() > 400 { 37 } else { 1 };
    (0..machine.cpus() as u32).step_by(step).map(CpuId)
}

#[test]
fn others_names_each_other_cpu_once_nearest_first() {
    for (name, machine) in all_machines() {
        for cpu in cpus(&machine) {
            let others: Vec<CpuId> = machine.others(cpu).collect();
            assert_eq!(others.len(), machine.cpus() - 1, "{name}: {cpu}");
            let each: BTreeSet<CpuId> = others.iter().copied().chain([cpu]).collect();
            assert_eq!(each.len(), machine.cpus(), "{name}: {cpu} sees some twice");
            let far: Vec<Distance> = others.iter().map(|other| machine.distance(cpu, *other)).collect();
            assert!(far.is_sorted(), "{name}: {cpu} sees {far:?}");
        }
    }
}

#[test]
fn a_distance_is_the_same_both_ways_and_same_only_to_itself() {
    for (name, machine) in all_machines() {
        for (a, b) in cpus(&machine).flat_map(|a| cpus(&machine).map(move |b| (a, b))) {
            assert_eq!(machine.distance(a, b), machine.distance(b, a), "{name}: {a} {b}");
            assert_eq!(machine.distance(a, b) == Distance::Same, a == b, "{name}: {a} {b}");
        }
    }
}

#[test]
fn a_shard_is_whole_cores_of_one_llc_and_not_too_large() {
    for (name, machine) in all_machines() {
        let mut seen = 0;
        for shard in 0..machine.shards() {
            let of = machine.cpus_of(shard);
            seen += of.len();
            assert!((1..=SHARD_CPUS_MAX).contains(&of.len()), "{name}: shard {shard} has {of:?}");
            for cpu in of {
                assert_eq!(machine.shard_of(*cpu), shard, "{name}");
                assert_eq!(machine.llc_of(*cpu), machine.llc_of(of[0]), "{name}: shard {shard} {of:?}");
                let core = |other: &CpuId| machine.distance(*cpu, *other) <= Distance::Smt;
                let siblings = machine.others(*cpu).filter(core).count();
                let here = of.iter().filter(|other| core(other)).count() - 1;
                assert!(here == siblings || siblings >= SHARD_CPUS_MAX, "{name}: {cpu} of {of:?}");
            }
        }
        assert_eq!(seen, machine.cpus(), "{name}");
    }
}

#[test]
fn shards_from_names_each_shard_once_nearest_first() {
    for (name, machine) in all_machines() {
        for cpu in cpus(&machine) {
            let shards: Vec<usize> = machine.shards_from(cpu).collect();
            assert_eq!(shards[0], machine.shard_of(cpu), "{name}: {cpu}");
            assert_eq!(shards.iter().collect::<BTreeSet<_>>().len(), machine.shards(), "{name}: {cpu}");
            assert_eq!(shards.len(), machine.shards(), "{name}: {cpu}");
        }
    }
}

#[test]
fn the_cpus_of_an_llc_begin_their_search_in_the_next_one_at_different_places() {
    let machine = common::whole(&common::drawn(1, 2, 8, 1));
    let firsts: BTreeSet<CpuId> = (0..8).filter_map(|cpu| machine.others(CpuId(cpu)).nth(7)).collect();
    assert_eq!(firsts.len(), 8, "{firsts:?}");
}

/// Else the CPUs of a big core would all begin with the same one, and some would be looked at by none that looks at few.
#[test]
fn a_cpu_begins_its_search_behind_itself_on_its_core() {
    let machine = common::whole(&common::drawn(1, 1, 2, 4));
    let core = machine.within(CpuId(0), Distance::Smt).to_vec();
    for (i, cpu) in core.iter().enumerate() {
        let behind = [1, 2, 3].map(|by| core[(i + by) % 4]);
        let found: Vec<CpuId> = machine.cpus_from(*cpu, 0).collect();
        assert_eq!((&found[..3], found.len()), (&behind[..], 7), "{cpu}");
        let one = machine.cpus_among(*cpu, 0, machine.bit(found[4]));
        assert_eq!(one.collect::<Vec<_>>(), [found[4]]);
    }
}
