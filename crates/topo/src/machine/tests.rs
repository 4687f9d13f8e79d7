use crate::{Distance, MACHINES, TopoError, Topology, machines};
use proptest::prelude::*;
use warmcore_types::{CpuId, NodeId};

fn built_in(name: &str) -> Topology {
    Topology::from_machine(MACHINES, name).unwrap()
}

#[test]
fn every_built_in_machine_has_the_counts_of_its_section() {
    let counts = |name: &str| {
        let t = built_in(name);
        (t.cpus.len(), t.cores.len(), t.llcs.len(), t.nodes.len(), t.sockets.len())
    };
    let names = machines(MACHINES).unwrap();
    let all: Vec<_> = names.iter().map(|n| (n.as_str(), counts(n))).collect();
    assert_eq!(
        all,
        [
            ("bergamo_9d64_1p", (176, 88, 11, 1, 1)),
            ("epyc7601_2p", (128, 64, 16, 8, 2)),
            ("epyc9654_2p", (384, 192, 24, 2, 2)),
            ("milan_7d13_1p", (72, 36, 6, 1, 1)),
            ("power_96cpu", (96, 24, 24, 2, 2)),
            ("ryzen7950x", (32, 16, 2, 1, 1)),
            ("spr_224cpu_2p", (224, 112, 2, 2, 2)),
            ("spr_240cpu_2p", (240, 120, 2, 2, 2)),
            ("zen3_256cpu_2p", (256, 128, 16, 2, 2)),
        ]
    );
}

#[test]
fn the_numbers_of_siblings_differ_by_the_number_of_cores() {
    let genoa = built_in("epyc9654_2p");
    assert_eq!(genoa.siblings(CpuId(100)).unwrap().to_string(), "100,292");
    assert_eq!(genoa.llcs[12].cpus.to_string(), "96-103,288-295", "the first L3 of the second socket");
    assert_eq!(genoa.socket_of(CpuId(96)).unwrap().cpus.to_string(), "96-191,288-383");
    assert_eq!(
        (genoa.llcs[0].size_kib, genoa.cores[0].l2_kib, genoa.line_bytes),
        (Some(32768), Some(1024), 64)
    );
    assert_eq!(genoa.model.as_deref(), Some("AMD EPYC 9654 96-Core Processor"));
}

#[test]
fn a_die_is_a_node_with_its_distances() {
    let naples = built_in("epyc7601_2p");
    assert_eq!(naples.node(NodeId(0)).unwrap().cpus.to_string(), "0-7,64-71");
    let to = |n| naples.node_distance(NodeId(0), NodeId(n));
    assert_eq!((to(0), to(3), to(4)), (Some(10), Some(16), Some(32)));
    assert_eq!(naples.distance(CpuId(0), CpuId(4)), Some(Distance::Node), "same die, other L3");
    assert_eq!(naples.distance(CpuId(0), CpuId(8)), Some(Distance::Socket), "other die");
}

#[test]
fn a_sections_own_values_override_inherited_ones() {
    let spr = built_in("spr_224cpu_2p");
    assert_eq!(spr.siblings(CpuId(0)).unwrap().to_string(), "0,112");
    assert_eq!(spr.cores[0].l1d_kib, Some(48), "inherited");
}

#[test]
fn a_power_core_counts_as_two_of_four_threads() {
    let power = built_in("power_96cpu");
    assert_eq!(power.siblings(CpuId(3)).unwrap().to_string(), "1,3,5,7");
    assert_eq!(power.distance(CpuId(0), CpuId(1)), Some(Distance::Node));
    assert_eq!((power.cores[0].l2_kib, power.llcs[0].size_kib), (Some(1024), Some(4096)), "half a core's");
    assert_eq!(power.line_bytes, 128);
    assert!(power.notes[0].starts_with("12 cores span several"), "{:?}", power.notes);
}

fn error(text: &str) -> TopoError {
    Topology::from_machine(text, "m").unwrap_err()
}

#[test]
fn a_wrong_section_says_what_is_wrong() {
    for (text, words) in [
        ("", "has no machine `m`"),
        ("[m", "machine file"),
        ("m = 3", "has no machine `m`"),
        ("[m]", "missing field `sockets`"),
        ("[m]\nsockets = 'two'", "[m]"),
        ("[m]\nsockets = -1", "[m]"),
        ("[m]\nsockets = 1", "has no `cores`"),
        ("[m]\nsockets = 1\ncores = 4", "has no `cores_per_l3`"),
        ("[m]\nsockets = 0\ncores = 4\ncores_per_l3 = 4", "0 sockets"),
        ("[m]\nsockets = 3\ncores = 4\ncores_per_l3 = 4", "3 sockets do not share 4 cores"),
        ("[m]\nsockets = 1\nnuma_nodes = 3\ncores = 4\ncores_per_l3 = 4", "3 nodes"),
        ("[m]\nsockets = 1\ncores = 4\ncores_per_l3 = 3", "3 cores per L3"),
        ("[m]\nsockets = 1\ncores = 4\ncores_per_l3 = 4\nsmt = 2\ncpus = 9", "are not `cpus`"),
        ("[m]\nsockets = 1\ncores = 4\nl3_per_socket = 2\ncores_per_l3 = 4", "L3s add up"),
        ("[m]\nsockets = 1\ncores = 4\nsmt = 8\nlinux_llc_threads = 3", "does not divide 8"),
        ("[m]\nsockets = 1\ncores = 9000\ncores_per_l3 = 9", "1 to 8192 CPUs"),
        ("[m]\nsockets = 4000000000\nl3_per_socket = 4000000000\ncores_per_l3 = 4000000000", "1 to 8192"),
        ("[m]\nsockets = 1\ncores = 4\ncores_per_l3 = 4\nnuma_distance = [10]", "numa_distance"),
        ("[m]\nsockets = 1\ncores = 4\ncores_per_l3 = 4\nline_bytes = 65", "65 bytes"),
        ("[m]\ninherits = 'n'", "has no machine `n`"),
        ("[m]\ninherits = 'm'", "no other section"),
        ("[m]\ninherits = 'n'\n[n]\ninherits = 'm'", "no other section"),
        ("[m]\ninherits = 7", "no other section"),
    ] {
        let e = error(text);
        assert!(e.to_string().contains(words), "{text}: {e}");
        assert!(e.to_string().starts_with("machine file"), "{text}: {e}");
    }
}

#[test]
fn defaults_are_no_machine() {
    assert!(machines(MACHINES).unwrap().iter().all(|n| n != "defaults"));
    assert!(Topology::from_machine(MACHINES, "defaults").unwrap_err().is_missing());
}

proptest! {
    #[test]
    fn any_text_is_a_machine_or_an_error(text in ".{0,80}") {
        let _ = machines(&text);
        let _ = Topology::from_machine(&text, "m");
    }

    #[test]
    fn any_counts_are_a_machine_or_an_error(
        counts in proptest::collection::btree_map(
            proptest::sample::select(vec!["sockets", "numa_nodes", "dies_per_socket", "l3_per_die",
                "l3_per_socket", "cores_per_l3", "cores", "smt", "cpus", "linux_llc_threads",
                "line_bytes", "l2_kib", "l3_kib"]),
            prop_oneof![0i64..9, Just(64), any::<i64>()], 3..9),
    ) {
        let lines: String = counts.iter().map(|(k, v)| format!("{k} = {v}\n")).collect();
        if let Ok(t) = Topology::from_machine(&format!("[m]\n{lines}"), "m") {
            prop_assert!(t.check().is_ok());
        }
    }

    #[test]
    fn a_changed_machine_file_is_a_machine_or_an_error(
        at in any::<prop::sample::Index>(), cut in 0usize..5, put in "[0-9a-z=\\[\\]\" \n]{0,4}",
    ) {
        let start = at.index(MACHINES.len());
        let start = (0..=start).rev().find(|&i| MACHINES.is_char_boundary(i)).unwrap();
        let end = (start + cut..).find(|&i| i >= MACHINES.len() || MACHINES.is_char_boundary(i)).unwrap();
        let text = format!("{}{put}{}", &MACHINES[..start], &MACHINES[end.min(MACHINES.len())..]);
        for name in machines(&text).unwrap_or_default() {
            let _ = Topology::from_machine(&text, &name);
        }
    }
}
