use super::{Access::*, Memory, Pages};
use crate::costs::Costs;
use proptest::prelude::*;
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::{CpuId, Nanos, NodeId};

const KIB: u64 = 1024;
const NOW: Nanos = Nanos(0);

fn genoa() -> (Costs, Topology) {
    let name = "epyc9654_2p";
    (Costs::from_machine(MACHINES, name).unwrap(), Topology::from_machine(MACHINES, name).unwrap())
}

fn memory() -> Memory {
    let (costs, topology) = genoa();
    Memory::new(&costs, &topology)
}

#[test]
fn a_pass_costs_by_where_the_data_is() {
    let mut memory = memory();
    let area = memory.extent(16 * KIB, Pages::Touched, None);
    let mut touch = |cpu| memory.touch(CpuId(cpu), area, Write, NOW).0;
    assert_eq!(touch(0), 3776, "from memory");
    assert_eq!(touch(0), 346, "from its own L1");
    assert_eq!(touch(192), 346, "its sibling thread uses the same L1");
    assert_eq!(touch(1), 1472, "from under the same L3");
    assert_eq!(touch(8), 6400, "from another L3");
    assert_eq!(touch(96), 12_480, "from the other socket");
    assert_eq!(touch(96), 346);
}

#[test]
fn readers_share_until_a_write() {
    let mut memory = memory();
    let area = memory.extent(16 * KIB, Pages::Touched, None);
    memory.touch(CpuId(0), area, Write, NOW);
    assert_eq!(memory.touch(CpuId(8), area, Read, NOW).0, 3200, "eight lines at once");
    assert_eq!(memory.touch(CpuId(0), area, Read, NOW).0, 346, "it still has its copy");
    assert_eq!(memory.touch(CpuId(0), area, Write, NOW).0, 6400, "the other core's copy is invalidated");
    assert_eq!(memory.touch(CpuId(0), area, Write, NOW).0, 346);
    assert_eq!(memory.touch(CpuId(8), area, Read, NOW).0, 3200, "it had lost them");
}

#[test]
fn memory_of_another_node_is_farther() {
    let mut memory = memory();
    let near = memory.extent(16 * KIB, Pages::Touched, Some(NodeId(0)));
    let far = memory.extent(16 * KIB, Pages::Touched, Some(NodeId(1)));
    assert_eq!(memory.touch(CpuId(0), near, Read, NOW).0, 3776);
    assert_eq!(memory.touch(CpuId(0), far, Read, NOW).0, 6560);
}

#[test]
fn a_page_faults_once_whichever_cpu_writes_it() {
    let mut memory = memory();
    let copied = memory.extent(16 * KIB, Pages::CopyOnWrite, None);
    memory.touch(CpuId(0), copied, Read, NOW);
    assert_eq!(memory.counts().faults, 0);
    assert_eq!(memory.touch(CpuId(0), copied, Write, NOW).0, 346 + 4 * 2900);
    memory.touch(CpuId(100), copied, Write, NOW);
    assert_eq!(memory.counts().faults, 4);
    let cleared = memory.extent(4 * KIB + 1, Pages::Anonymous, None);
    memory.touch(CpuId(0), cleared, Read, NOW);
    memory.touch(CpuId(0), cleared, Write, NOW);
    assert_eq!(memory.counts().faults, 4 + 4, "two pages, read and then written");
}

#[test]
fn a_deep_sleep_empties_a_cores_own_caches_and_a_light_one_does_not() {
    let mut memory = memory();
    let area = memory.extent(16 * KIB, Pages::Touched, None);
    memory.touch(CpuId(0), area, Write, NOW);
    assert_eq!(memory.slept(CpuId(0), Nanos(399_999)).map(|s| s.name.clone()), Some("C1".into()));
    assert_eq!(memory.touch(CpuId(0), area, Write, NOW).0, 346);
    assert_eq!(memory.slept(CpuId(0), Nanos(400_000)).map(|s| s.name.clone()), Some("C2".into()));
    assert_eq!(memory.touch(CpuId(0), area, Write, NOW).0, 692, "from the L3, at the base clock");
    assert_eq!(memory.touch(CpuId(0), area, Write, NOW).0, 346);
    let pages = memory.extent(16 * KIB, Pages::CopyOnWrite, None);
    memory.slept(CpuId(0), Nanos(400_000));
    assert!(memory.touch(CpuId(0), pages, Write, NOW).0 > 4 * 7100);
}

#[test]
fn pages_live_where_they_were_first_written() {
    let mut memory = memory();
    let area = memory.extent(16 * KIB, Pages::CopyOnWrite, None);
    memory.touch(CpuId(0), area, Read, NOW);
    memory.touch(CpuId(96), area, Write, NOW);
    evict(&mut memory, 96);
    assert_eq!(memory.touch(CpuId(96), area, Read, NOW).0, 3776, "from its own node, which copied them");
    let placed = memory.extent(16 * KIB, Pages::CopyOnWrite, Some(NodeId(0)));
    memory.touch(CpuId(96), placed, Write, NOW);
    evict(&mut memory, 96);
    assert_eq!(memory.touch(CpuId(96), placed, Read, NOW).0, 6560, "the pages were given the other node");
}

/// Passes over twice the size of an L3.
fn evict(memory: &mut Memory, cpu: u32) {
    let huge = memory.extent(64 * 1024 * KIB, Pages::Touched, Some(NodeId(0)));
    memory.touch(CpuId(cpu), huge, Read, NOW);
}

#[test]
fn a_writer_waits_until_the_farthest_copy_is_gone_wherever_the_data_come_from() {
    let mut memory = memory();
    let area = memory.extent(16 * KIB, Pages::Touched, None);
    memory.touch(CpuId(0), area, Read, NOW);
    memory.touch(CpuId(96), area, Read, NOW);
    assert_eq!(memory.touch(CpuId(1), area, Write, NOW).0, 12_480, "its own L3 has it, and the other socket");
    assert_eq!(memory.touch(CpuId(8), area, Read, NOW).0, 3200, "and has it alone then");
}

#[test]
fn what_a_core_writes_is_found_in_that_core_however_many_had_it_before() {
    let mut memory = memory();
    let area = memory.extent(16 * KIB, Pages::Touched, None);
    // Twelve L3s read it, four more than an extent lists: the first four are forgotten.
    (0..12).for_each(|llc| _ = memory.touch(CpuId(llc * 8), area, Read, NOW));
    memory.touch(CpuId(0), area, Write, NOW);
    assert_eq!(memory.touch(CpuId(0), area, Write, NOW).0, 346);
    assert_eq!(
        memory.touch(CpuId(8), area, Read, NOW).0,
        3200,
        "from the core that wrote it, not from memory"
    );
}

#[test]
fn empty_and_huge_extents_take_a_finite_time() {
    let mut memory = memory();
    for pages in [Pages::Touched, Pages::Anonymous, Pages::CopyOnWrite] {
        let none = memory.extent(0, pages, None);
        assert_eq!(memory.touch(CpuId(0), none, Write, NOW).0, 0);
        let all = memory.extent(u64::MAX, pages, None);
        for cpu in [0, 0, 96, 1] {
            assert!(memory.touch(CpuId(cpu), all, Write, NOW).0 > 1 << 40);
        }
        memory.slept(CpuId(0), Nanos(400_000));
    }
}

#[test]
fn an_extent_that_does_not_fit_is_evicted() {
    let mut memory = memory();
    let large = memory.extent(2048 * KIB, Pages::Touched, None);
    memory.touch(CpuId(0), large, Read, NOW);
    let from_llc = memory.touch(CpuId(0), large, Read, NOW).0;
    assert_eq!(from_llc, 57_541, "twice the L2, from the L3");
    let huge = memory.extent(64 * 1024 * KIB, Pages::Touched, None);
    let first = memory.touch(CpuId(0), huge, Read, NOW);
    assert_eq!(memory.touch(CpuId(0), huge, Read, NOW), first, "twice the L3, from memory");
    let area = memory.extent(16 * KIB, Pages::Touched, None);
    memory.touch(CpuId(0), area, Read, NOW);
    memory.touch(CpuId(0), huge, Read, NOW);
    assert_eq!(memory.touch(CpuId(0), area, Read, NOW).0, 3776, "it was evicted");
}

#[test]
fn a_line_costs_a_hand_over_and_writers_wait_for_each_other() {
    let mut memory = memory();
    let line = memory.line();
    assert_eq!(memory.write_line(CpuId(0), line, NOW).0, 118, "from memory");
    assert_eq!(memory.write_line(CpuId(0), line, Nanos(1000)).0, 2, "4 cycles");
    assert_eq!(memory.read_line(CpuId(1), line, Nanos(2000)).0, 23);
    assert_eq!(memory.read_line(CpuId(1), line, Nanos(2000)).0, 2);
    assert_eq!(memory.read_line(CpuId(96), line, Nanos(2000)).0, 195);
    assert_eq!(
        memory.write_line(CpuId(0), line, Nanos(3000)).0,
        195,
        "the farthest reader's copy is invalidated"
    );
    assert_eq!(memory.write_line(CpuId(8), line, Nanos(4000)).0, 100);
    assert_eq!(
        memory.write_line(CpuId(16), line, Nanos(4000)).0,
        200,
        "and a writer that comes at the same time waits"
    );
}

#[test]
fn a_line_that_all_share_is_taken_from_all() {
    let (costs, topology) = genoa();
    let mut memory = Memory::new(&costs, &topology);
    let line = memory.line();
    for cpu in 0..96 {
        memory.read_line(CpuId(cpu), line, NOW);
    }
    assert!((0..96).all(|cpu| memory.read_line(CpuId(cpu), line, NOW).0 == 2));
    assert_eq!(memory.write_line(CpuId(5), line, NOW).0, 100);
    assert_eq!(memory.read_line(CpuId(6), line, Nanos(1000)).0, 23);
    assert_eq!(memory.read_line(CpuId(80), line, Nanos(1000)).0, 100);
}

/// A machine of 8192 CPUs: 512 L3s of 8 cores with two threads.
const LARGE: &str = "[large]\nsockets = 4\nl3_per_socket = 128\ncores_per_l3 = 8\nsmt = 2\nboost_mhz = 3000\n\
    l2_kib = 1024\nl3_kib = 32768\nl3_cycles = 50\nc2c_same_socket = 100\nc2c_other_socket = 200\n\
    dram_local = 100\ndram_remote = 200\n";

/// What an extent may take in the model, in bytes.
const EXTENT_BYTES_MAX: u64 = 512;
const CPU_BYTES_MAX: u64 = 1024;

#[test]
fn memory_stays_small_on_8192_cpus() {
    let costs = Costs::from_machine(LARGE, "large").unwrap();
    let topology = Topology::from_machine(LARGE, "large").unwrap();
    let mut memory = Memory::new(&costs, &topology);
    assert_eq!(size_of::<super::Extent>(), 216);
    let empty = memory.bytes();
    assert!(empty <= 8192 * CPU_BYTES_MAX, "{} for a CPU", empty / 8192);
    let extents: Vec<_> = (0..20_000).map(|_| memory.extent(16 * KIB, Pages::Touched, None)).collect();
    for (i, extent) in extents.iter().enumerate() {
        for cpu in 0..4 {
            memory.touch(CpuId((i as u32 * 7 + cpu * 1531) % 8192), *extent, Read, NOW);
        }
    }
    let each = (memory.bytes() - empty) / 20_000;
    assert!(each <= EXTENT_BYTES_MAX, "{each} for an extent that four cores have");
    let line = memory.line();
    let before = memory.bytes();
    (0..8192).for_each(|cpu| _ = memory.read_line(CpuId(cpu), line, NOW));
    assert!(memory.bytes() - before <= 1024, "a line that all share");
}

proptest! {
    #[test]
    fn equal_latencies_make_one_cache_as_good_as_another(
        touches in proptest::collection::vec((0u32..24, 0usize..3, any::<bool>()), 1..60),
        step in prop::sample::select(vec![5u32, 7, 11, 13]),
    ) {
        let (costs, topology) = genoa();
        let run = |costs: &Costs, llc_of: &dyn Fn(u32) -> u32| {
            let mut memory = Memory::new(costs, &topology);
            let areas = [(); 3].map(|()| memory.extent(16 * KIB, Pages::Touched, Some(NodeId(0))));
            let times = touches.iter().map(|(llc, area, writes)| {
                memory.touch(CpuId(llc_of(*llc) * 8), areas[*area], if *writes { Write } else { Read }, NOW).0
            });
            times.sum::<u64>()
        };
        // A step coprime to 24 permutes the caches: no two are mapped to the same one.
        let elsewhere = |llc: u32| llc * step % 24;
        let flat = costs.with_equal_latencies();
        prop_assert_eq!(run(&flat, &|llc| llc), run(&flat, &elsewhere));
    }

    #[test]
    fn the_same_touches_take_the_same_time(touches in proptest::collection::vec((0u32..384, 0usize..8, any::<bool>()), 1..100)) {
        let run = || {
            let mut memory = memory();
            let areas: Vec<_> = (0..8).map(|i| memory.extent((i + 1) * 300 * KIB, Pages::CopyOnWrite, None)).collect();
            let times: Vec<u64> = touches.iter().map(|(cpu, area, writes)| {
                memory.touch(CpuId(*cpu), areas[*area], if *writes { Write } else { Read }, NOW).0
            }).collect();
            (times, memory.counts())
        };
        prop_assert_eq!(run(), run());
    }
}
