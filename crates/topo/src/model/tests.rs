use crate::{Distance, MACHINES, Topology};
use warmcore_types::{CoreId, CpuId, CpuSet, LlcId, NodeId};

fn ryzen() -> Topology {
    Topology::from_machine(MACHINES, "ryzen7950x").unwrap()
}

#[test]
fn distance_is_ordered_nearest_first() {
    let t = Topology::from_machine(MACHINES, "epyc7601_2p").unwrap();
    let from_0 = |cpu| t.distance(CpuId(0), CpuId(cpu)).unwrap();
    let row = [0, 64, 1, 4, 8, 32].map(from_0);
    use Distance::*;
    assert_eq!(row, [Same, Smt, Llc, Node, Socket, Other]);
    assert!(row.is_sorted());
    assert_eq!(t.distance(CpuId(0), CpuId(128)), None);
}

#[test]
fn check_finds_each_broken_invariant() {
    type Break = fn(&mut Topology);
    let breaks: [(&str, Break); 12] = [
        ("no online CPU", |t| t.cpus.clear()),
        ("in the order of their numbers", |t| t.cpus.swap(0, 1)),
        ("in two llcs", |t| t.llcs[1].cpus.extend([CpuId(0)])),
        ("are in no core", |t| drop(t.cores.pop())),
        ("which is not online", |t| t.sockets[0].cpus.extend([CpuId(99)])),
        ("says core3", |t| t.cpus[0].core = CoreId(3)),
        ("says node7", |t| t.cpus[5].node = NodeId(7)),
        ("out of order", |t| t.llcs.swap(0, 1)),
        ("lies in more than one LLC", |t| {
            t.llcs[0].cpus.remove(CpuId(16));
            t.llcs[1].cpus.insert(CpuId(16));
            t.cpus[16].llc = LlcId(1);
        }),
        ("one distance to each node", |t| t.nodes[0].distances = vec![(NodeId(3), 10)]),
        ("not all possible", |t| t.possible = CpuSet::new()),
        ("no power of two", |t| t.line_bytes = 0),
    ];
    for (words, break_it) in breaks {
        let mut t = ryzen();
        t.check().unwrap();
        break_it(&mut t);
        let e = t.check().expect_err(words);
        assert!(e.is_contradiction() && e.to_string().contains(words), "{words}: {e}");
    }
}

#[test]
fn json_has_numbers_for_ids_and_lists_for_sets() {
    let json = serde_json::to_value(ryzen()).unwrap();
    assert_eq!(json["cpus"][17], serde_json::json!({"id": 17, "core": 1, "llc": 0, "node": 0, "socket": 0}));
    assert_eq!(json["llcs"][0]["cpus"], "0-7,16-23");
    assert_eq!(json["allowed"], serde_json::Value::Null);
}
