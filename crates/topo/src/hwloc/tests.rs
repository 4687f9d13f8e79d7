use crate::{Distance, TopoError, Topology};
use proptest::prelude::*;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use warmcore_types::{CpuId, NodeId};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/hwloc")
}

fn fixture(name: &str) -> Result<Topology, TopoError> {
    Topology::from_hwloc(&fixtures().join(name))
}

#[test]
fn every_fixture_is_read_and_every_broken_one_refused() {
    let mut seen = 0;
    for entry in fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "xml") {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let read = Topology::from_hwloc(&path);
        assert_eq!(read.is_err(), name.starts_with("broken-"), "{name}: {read:?}");
        if let Err(e) = read {
            assert_eq!(e.file(), path, "{name}: {e}");
        }
        seen += 1;
    }
    assert!(seen > 8, "the fixtures are not where the test looks for them");
}

#[test]
fn a_broken_file_is_an_error_of_its_kind() {
    for (name, malformed, words) in [
        ("broken-version-1.xml", true, "version 1"),
        ("broken-cut-short.xml", true, "is no XML"),
        ("broken-no-pu.xml", true, "no object of type PU"),
        ("broken-infinite-cpuset.xml", true, "`0xf...f`"),
        ("broken-pu-twice.xml", false, "two PUs of os_index 0"),
        ("broken-core-cpuset-lacks-a-pu.xml", false, "a Core whose cpuset is 0 and whose PUs are 0-1"),
    ] {
        let e = fixture(name).expect_err(name);
        assert!(e.to_string().contains(words), "{name}: {e}");
        assert_eq!((e.is_malformed(), e.is_contradiction()), (malformed, !malformed), "{name}: {e}");
    }
    assert!(fixture("not-there.xml").unwrap_err().is_missing());
}

#[test]
fn hwloc_and_sysfs_see_the_same_machine() {
    let xml = fixture("zen4-vm-2cpu.xml").unwrap();
    let sys = Topology::from_sysfs(&fixtures().join("../sysfs/zen4-vm-2cpu.txt")).unwrap();
    assert_eq!(
        (&xml.cpus, &xml.cores, &xml.llcs, &xml.sockets),
        (&sys.cpus, &sys.cores, &sys.llcs, &sys.sockets)
    );
    assert_eq!((xml.line_bytes, xml.model.as_deref()), (64, Some("AMD EPYC")));
}

#[test]
fn lstopos_synthetic_machines_are_read() {
    let t = fixture("synthetic-2pack-2l3-4core.xml").unwrap();
    assert_eq!((t.cpus.len(), t.cores.len(), t.llcs.len(), t.sockets.len(), t.nodes.len()), (16, 8, 4, 2, 1));
    assert_eq!((t.llcs[0].level, t.llcs[0].size_kib, t.cores[0].l2_kib), (3, Some(16384), Some(4096)));
    let t = fixture("synthetic-80cpu-2numa.xml").unwrap();
    assert_eq!((t.cpus.len(), t.cores.len(), t.llcs.len(), t.nodes.len()), (80, 20, 2, 2));
    assert_eq!(t.distance(CpuId(0), CpuId(79)), Some(Distance::Other));
}

#[test]
fn of_two_nodes_that_serve_the_same_cpus_one_has_no_cpus() {
    let t = fixture("version3-hbm-beside-dram.xml").unwrap();
    let nodes: Vec<_> = t.nodes.iter().map(|n| (n.id.0, n.cpus.to_string())).collect();
    assert_eq!(nodes, [(0, "0-1".into()), (1, "64-65".into()), (2, String::new()), (3, String::new())]);
    assert_eq!(t.node_distance(NodeId(2), NodeId(1)), Some(24), "the matrix in two parts is read in order");
    assert_eq!(t.node_distance(NodeId(0), NodeId(2)), Some(14));
    assert_eq!(t.offline.to_string(), "2", "known to hwloc and not there as a PU");
    assert_eq!(t.siblings(CpuId(64)).unwrap().to_string(), "64-65");
    assert_eq!(t.core_of(CpuId(0)).unwrap().l1d_kib, Some(48));
}

#[test]
fn a_file_written_inside_a_cpuset_is_read() {
    // The cpuset allows CPUs 0-2 and 4, and memory on node 1. CPUs 0-1 are of node 0.
    let t = fixture("cpuset-without-a-nodes-memory.xml").unwrap();
    let nodes: Vec<_> = t.nodes.iter().map(|n| (n.id.0, n.cpus.to_string())).collect();
    assert_eq!(nodes, [(0, "0-1".into()), (1, "2,4".into())]);
    assert_eq!((t.cores.len(), t.llcs.len(), t.sockets.len()), (4, 2, 2));
    assert_eq!(t.offline.to_string(), "3");
    assert!(t.notes.iter().any(|n| n.contains("CPUs 0-1 are in no node")), "{:?}", t.notes);
    let t = fixture("cpu1-in-no-node.xml").unwrap();
    assert_eq!((t.nodes.len(), t.nodes[0].cpus.to_string()), (1, "0-1".into()), "its complete_nodeset is 1");
}

#[test]
fn a_pu_without_core_package_or_cache_is_a_core_of_the_one_socket() {
    let t = read(
        b"<topology version='2.0'><object type='Machine'>
            <object type='NUMANode' os_index='0' cpuset='0x6'/>
            <object type='PU' os_index='1'/><object type='PU' os_index='2'/>
        </object></topology>",
    )
    .unwrap();
    assert_eq!((t.cores.len(), t.sockets.len(), t.llcs.len(), t.llcs[0].level), (2, 1, 1, 0));
    assert_eq!(t.notes.len(), 4, "{:?}", t.notes);
}

#[test]
fn objects_nested_deeper_than_any_machine_are_refused_or_read() {
    let depth = 20_000;
    let deep = format!(
        "<topology version=\"2.0\">{}{}</topology>",
        "<object type=\"Group\">".repeat(depth),
        "</object>".repeat(depth)
    );
    assert!(read(deep.as_bytes()).unwrap_err().is_malformed());
}

#[test]
fn input_that_costs_more_than_its_length_is_refused() {
    let file = |objects: &str| format!("<topology version=\"2.0\">{objects}</topology>");
    let entities = format!(
        "<!DOCTYPE topology [<!ENTITY e '{}'>]>{}",
        "<object type=\"Group\"/>".repeat(1000),
        file(&"&e;".repeat(200_000))
    );
    let nested = |kind: &str, n: u32, inside: &str| {
        let open: String = (0..n).map(|i| format!("<object type=\"{kind}\" os_index=\"{i}\">")).collect();
        file(&format!("{open}{inside}{}", "</object>".repeat(n as usize)))
    };
    let attributes: String = (0..200_000).map(|i| format!(" a{i}=\">\"")).collect();
    let wide: String = (0..100_000)
        .map(|i| format!("<object type=\"Core\"><object type=\"PU\" os_index=\"{}\"/></object>", 900_000 + i))
        .collect();
    for (what, xml, words) in [
        ("entities", entities, "declares entities"),
        ("namespaces", file("<a xmlns:b=\"c\"/>"), "declares namespaces"),
        ("attributes", file(&format!("<object{attributes}/>")), "more than 256 attributes"),
        ("nested PUs", nested("PU", 16_000, ""), "within another PU"),
        (
            "deep",
            nested("Group", 100_000, &"<object type=\"PU\" os_index=\"1\"/>".repeat(9)),
            "more than 64 deep",
        ),
        ("numbers", file(&wide), "`900000`, which is no number"),
        ("elements", file(&"<a/>".repeat(2_200_000)), "nodes limit"),
    ] {
        let error = read(xml.as_bytes()).expect_err(what).to_string();
        assert!(error.contains(words), "{what}: {error}");
    }
}

fn read(xml: &[u8]) -> Result<Topology, TopoError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(xml).unwrap();
    let read = Topology::from_hwloc(file.path());
    match &read {
        Ok(t) => t.check().unwrap(),
        Err(e) => assert_eq!(e.file(), file.path(), "{e}"),
    }
    read
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_are_a_machine_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
    }

    #[test]
    fn a_changed_file_is_a_machine_or_an_error(
        which in 0usize..3,
        changes in proptest::collection::vec(
            (any::<prop::sample::Index>(), 0usize..12, "[0-9a-fx,.<>\"/ ]{0,6}|PU|Core|NUMANode|L2Cache|1e99"), 1..5),
    ) {
        let name = ["synthetic-2pack-2l3-4core.xml", "version3-hbm-beside-dram.xml", "zen4-vm-2cpu.xml"][which];
        let mut text = fs::read(fixtures().join(name)).unwrap();
        for (at, cut, put) in changes {
            let at = at.index(text.len());
            let end = (at + cut).min(text.len());
            text.splice(at..end, put.into_bytes());
        }
        let _ = read(&text);
    }

    /// Changes inside quotes keep the XML valid, so that they reach the model.
    #[test]
    fn a_changed_attribute_is_a_machine_or_an_error(
        which in 0usize..3,
        changes in proptest::collection::vec(
            (any::<prop::sample::Index>(), "[0-9]{1,9}|0x[0-9a-f]{1,8}(,0x[0-9a-f]{1,8}){0,2}|PU|Core|NUMANode|Package|L[1-4]Cache"), 1..4),
    ) {
        let name = ["synthetic-2pack-2l3-4core.xml", "version3-hbm-beside-dram.xml", "zen4-vm-2cpu.xml"][which];
        let text = fs::read_to_string(fixtures().join(name)).unwrap();
        let mut parts: Vec<String> = text.split('"').map(str::to_owned).collect();
        for (at, put) in changes {
            let attribute = at.index(parts.len() / 2) * 2 + 1;
            parts[attribute] = put;
        }
        let _ = read(parts.join("\"").as_bytes());
    }
}
