use super::{Costs, Trust};
use warmcore_topo::{Distance, MACHINES, Topology, machines};
use warmcore_types::Nanos;

fn costs(name: &str) -> Costs {
    Costs::from_machine(MACHINES, name).unwrap()
}

#[test]
fn every_machine_of_the_file_has_its_costs() {
    for name in machines(MACHINES).unwrap() {
        let costs = costs(&name);
        let all =
            [Distance::Same, Distance::Smt, Distance::Llc, Distance::Node, Distance::Socket, Distance::Other];
        let hand_overs: Vec<u64> = all.iter().map(|d| costs.hand_over(*d)).collect();
        assert!(hand_overs.is_sorted() && hand_overs[0] > 0, "{name}: {hand_overs:?}");
        assert!(costs.resident() > 0 && costs.llc() > costs.l1(), "{name}");
        assert!(costs.dram(Distance::Other) >= costs.dram(Distance::Same), "{name}");
        assert!(!costs.cstates().is_empty(), "{name}");
    }
}

#[test]
fn numbers_are_those_of_the_file_in_picoseconds() {
    let genoa = costs("epyc9654_2p");
    assert_eq!(genoa.hand_over(Distance::Smt), 9_000);
    assert_eq!(genoa.hand_over(Distance::Llc), 23_000);
    assert_eq!((genoa.hand_over(Distance::Node), genoa.hand_over(Distance::Other)), (100_000, 195_000));
    assert_eq!(genoa.resident(), 1351, "5 cycles at 3.7 GHz");
    assert_eq!(genoa.llc(), 14_054, "52 cycles");
    assert_eq!(genoa.ns("page_fault_cow_hot"), Nanos(2900), "from [defaults]");
    assert_eq!(costs("ryzen7950x").hand_over(Distance::Smt), 5_300, "half a ns counts");
    let naples = costs("epyc7601_2p");
    assert_eq!((naples.hand_over(Distance::Node), naples.hand_over(Distance::Socket)), (105_000, 155_000));
    assert_eq!(naples.dram(Distance::Socket), 150_000);
}

#[test]
fn a_section_that_inherits_has_its_own_idle_states_and_the_inherited_latencies() {
    let (heir, parent) = (costs("spr_224cpu_2p"), costs("spr_240cpu_2p"));
    assert_eq!((heir.cstates().len(), parent.cstates().len()), (1, 3));
    assert_eq!(heir.hand_over(Distance::Other), parent.hand_over(Distance::Other));
    let names: Vec<(&str, bool)> = parent.cstates().iter().map(|s| (s.name.as_str(), s.flushes)).collect();
    assert_eq!(names, [("C1", false), ("C1E", false), ("C6", true)]);
    let after = |ns| parent.cstate_after(Nanos(ns)).map(|state| state.name.as_str());
    assert_eq!((after(10), after(5_000), after(800_000)), (None, Some("C1E"), Some("C6")));
}

#[test]
fn a_number_knows_how_far_to_trust_it() {
    let genoa = costs("epyc9654_2p");
    let trust = |name: &str| genoa.get(name).map(|number| number.trust);
    assert_eq!(trust("c2c_same_l3"), Some(Trust::Measured));
    assert_eq!(trust("dram_local"), Some(Trust::Recalled));
    assert_eq!(trust("page_fault_cow_after_200ms_idle"), Some(Trust::Estimated), "measured elsewhere");
    assert_eq!(trust("c2c_same_node"), Some(Trust::Measured), "as its socket's");
    assert_eq!(trust("llc_latency"), Some(Trust::Recalled), "measured cycles, a recalled clock");
    let estimated: Vec<&str> = genoa.estimated().map(|(name, _)| name).collect();
    assert!(estimated.contains(&"mlp_read") && estimated.contains(&"cstates.C2.exit"), "{estimated:?}");
    assert!(!estimated.contains(&"c2c_smt"));
}

#[test]
fn any_one_number_can_be_scaled_and_nothing_else_changes() {
    let genoa = costs("epyc9654_2p");
    let more = genoa.scaled("c2c_same_socket", 1100).unwrap();
    assert_eq!(more.hand_over(Distance::Socket), 110_000);
    assert_eq!(more.hand_over(Distance::Llc), genoa.hand_over(Distance::Llc));
    let differ = |more: &Costs| {
        let pairs = more.numbers().zip(genoa.numbers()).filter(|(a, b)| a != b);
        pairs.map(|(a, _)| a.0.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(differ(&more), ["c2c_same_node", "c2c_same_socket"], "and what follows it");
    assert_eq!(differ(&genoa.scaled("mlp_read", 500).unwrap()), ["mlp_read"]);
    assert_eq!(differ(&genoa.scaled("clock_mhz", 500).unwrap()), ["clock_mhz", "llc_latency"]);
    assert_eq!(differ(&genoa.scaled("boost_mhz", 500).unwrap()), ["boost_mhz", "clock_mhz", "llc_latency"]);
    assert_eq!(genoa.scaled("l3_cycles", 2000).unwrap().llc(), 2 * genoa.llc());
    let error = genoa.scaled("c2c", 1100).unwrap_err().to_string();
    assert!(error.contains("no number is called `c2c`") && error.contains("c2c_smt"), "{error}");
}

#[test]
fn without_distances_everything_is_as_far_as_the_same_l3() {
    let flat = costs("epyc9654_2p").with_equal_latencies();
    assert_eq!(flat.hand_over(Distance::Other), flat.hand_over(Distance::Llc));
    assert_eq!(flat.dram(Distance::Other), flat.dram(Distance::Same));
}

#[test]
fn a_machine_without_a_section_has_estimates_and_its_own_cache_sizes() {
    let mut topology = Topology::from_machine(MACHINES, "milan_7d13_1p").unwrap();
    topology.source = "elsewhere".into();
    let costs = Costs::of(&topology);
    assert_eq!(costs.get("l2_kib").map(|n| (n.milli, n.trust)), Some((512_000, Trust::Measured)));
    let given = ["l1d_kib", "l2_kib", "line_bytes", "llc_kib"];
    let known: Vec<&str> =
        costs.numbers().filter(|(_, n)| n.trust != Trust::Estimated).map(|(name, _)| name).collect();
    assert_eq!(known, given);
}

/// A machine of two sockets with all numbers that are required.
const WHOLE: &[&str] = &[
    "sockets = 2",
    "l3_per_socket = 2",
    "cores_per_l3 = 2",
    "boost_mhz = 3000",
    "c2c_same_socket = 100",
    "c2c_other_socket = 200",
    "dram_local = 100",
    "dram_remote = 200",
];

fn error(lines: &[&str]) -> String {
    Costs::from_machine(&format!("[m]\n{}\n", lines.join("\n")), "m").unwrap_err().to_string()
}

#[test]
fn a_missing_number_is_named() {
    assert!(Costs::from_machine(&format!("[m]\n{}", WHOLE.join("\n")), "m").is_ok());
    for line in &WHOLE[3..] {
        let rest: Vec<&str> = WHOLE.iter().filter(|l| l != &line).copied().collect();
        let error = error(&rest);
        let key = line.split(' ').next().unwrap();
        assert!(error.contains("[m]") && error.contains(key) && error.contains("add it"), "{key}: {error}");
    }
}

#[test]
fn a_bad_number_is_named_with_its_line() {
    for (line, words) in [
        ("c2c_smt = -9", "line 10: `c2c_smt` is negative"),
        ("c2c_smt = -0.5", "line 10: `c2c_smt` is negative"),
        ("c2c_smt = nan", "line 10: `c2c_smt` is no number"),
        ("c2c_smt = 'fast'", "line 10: `c2c_smt` is no number"),
        ("c2c_smt = 9e30", "line 10: `c2c_smt` is more than a cost can be"),
        ("l3_cycles = 99999999999999999", "line 10: `l3_cycles` is more than a cost can be"),
        ("cstates = [[\"C1\", -1, 2]]", "line 10: `cstates` is negative"),
        ("cstates = [[\"C1\", 1]]", "line 10: `cstates` has a state that is none"),
        ("cstates = [3]", "line 10: `cstates` has a state that is none"),
        ("inherits = \"nobody\"", "nobody"),
    ] {
        let error = error(&[WHOLE, &[line]].concat());
        assert!(error.contains(words), "{line}: {error}");
    }
}

#[test]
fn the_largest_numbers_a_file_may_have_do_not_overflow() {
    for line in ["l3_cycles = 1e12", "l1_cycles = 1e12", "c2c_smt = 1e12", "base_mhz = 0.001", "mlp_read = 0"]
    {
        let text = format!("[m]\n{}\n{line}\n", WHOLE.join("\n"));
        let costs = Costs::from_machine(&text, "m").unwrap();
        let all = [costs.l1(), costs.llc(), costs.hand_over(Distance::Smt), costs.at_base_clock(costs.llc())];
        assert!(all.iter().all(|ps| *ps > 0), "{line}: {all:?}");
        assert!(
            costs.read_overlapped(1000) <= costs.resident().max(1000),
            "{line}: one at a time is the least"
        );
        assert!(costs.scaled("c2c_same_socket", u64::MAX).is_ok(), "{line}");
    }
}

#[test]
fn a_cache_without_cpus_is_no_machine() {
    let without = error(&["sockets = 1", "cores = 4", "l3_per_socket = 2", "cores_per_l3 = 0"]);
    assert!(without.contains("[m]"), "{without}");
    let text = "machine file";
    assert!(Costs::from_machine("", "m").unwrap_err().to_string().contains(text));
    assert!(Costs::from_machine("[m", "m").unwrap_err().to_string().contains(text));
}
