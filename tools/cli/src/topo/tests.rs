use super::*;
use clap::Parser;
use std::collections::BTreeSet;
use warmcore_topo::Quota;
use warmcore_types::{CpuId, CpuSet};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn parsed(line: &[&str]) -> Result<Args, clap::Error> {
    Command::try_parse_from([&["topo"], line].concat()).map(|c| c.args)
}

#[test]
fn one_source_at_most_and_the_help_names_the_machines() {
    assert!(parsed(&[]).is_ok() && parsed(&["--machine", "ryzen7950x", "--ascii"]).is_ok());
    let error = parsed(&["--machine", "ryzen7950x", "--sysfs", "/"]).unwrap_err().to_string();
    assert!(error.contains("cannot be used with"), "{error}");
    let help = parsed(&["--help"]).unwrap_err().to_string();
    assert!(machines(MACHINES).unwrap().iter().all(|name| help.contains(name)), "{help}");
}

#[test]
fn only_this_machine_can_be_probed() {
    let error = run(&parsed(&["--machine", "ryzen7950x", "--probe"]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("--machine names another; leave one of them out"), "{error}");
}

#[test]
fn a_wrong_source_is_an_error_that_names_it() {
    for (option, value, expected) in [
        ("--machine", "nope", "ryzen7950x"),
        ("--sysfs", "/nonexistent", "/nonexistent/devices/system/cpu"),
        ("--hwloc", "/nonexistent.xml", "/nonexistent.xml"),
    ] {
        let error = run(&parsed(&[option, value]).unwrap()).unwrap_err().to_string();
        assert!(error.contains(expected), "{option} {value}: {error}");
    }
}

#[test]
fn a_capture_with_proc_says_what_its_process_was_allowed() {
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/sysfs/zen4-vm-2cpu.txt");
    let (topology, whence) = read(&parsed(&["--sysfs", capture]).unwrap()).unwrap();
    assert!(topology.allowed.is_some() && whence == capture);
}

#[test]
fn a_saved_machine_is_the_same_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.txt");
    let saved = path.to_str().unwrap();
    run_on(&parsed(&["--save", saved]).unwrap(), &mut Vec::new()).unwrap();
    let (again, _) = read(&parsed(&["--sysfs", saved]).unwrap()).unwrap();
    assert_eq!(again.cpus, Topology::this_machine().unwrap().cpus);
    let error = run(&parsed(&["--machine", "ryzen7950x", "--save", saved]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("--machine") && error.contains("has none"), "{error}");
}

#[test]
fn a_folder_is_read_as_its_capture() {
    let folder = tempfile::tempdir().unwrap();
    let cpus = folder.path().join("sys/devices/system/cpu");
    std::fs::create_dir_all(cpus.join("cpu0")).unwrap();
    std::fs::write(cpus.join("online"), "0\n").unwrap();
    let root = folder.path().to_str().unwrap();
    assert_eq!(read(&parsed(&["--sysfs", root]).unwrap()).unwrap().0.allowed, None);
    std::fs::create_dir_all(folder.path().join("proc/self")).unwrap();
    std::fs::write(folder.path().join("proc/self/status"), "Cpus_allowed_list:\t0\n").unwrap();
    assert!(read(&parsed(&["--sysfs", root]).unwrap()).unwrap().0.allowed.is_some());
}

#[test]
fn a_locale_says_whether_boxes_can_be_drawn() {
    assert!(["C.UTF-8", "en_US.utf8", "de_DE.UTF-8@euro"].into_iter().all(is_utf8));
    assert!(!["C", "POSIX", "de_DE.ISO-8859-1"].into_iter().any(is_utf8));
}

/// The fields that `docs/json.md` lists in a part of its section topo.
fn documented(heading: &str) -> BTreeSet<String> {
    let docs = include_str!("../../../../docs/json.md");
    let section =
        docs.split("\n## ").find(|s| s.starts_with("topo\n")).expect("docs/json.md has no section topo");
    let part = section.split("\n### ").find(|s| s.lines().next() == Some(heading));
    let rows = part.unwrap_or_else(|| panic!("docs/json.md has no {heading} in topo")).lines();
    rows.filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
}

#[test]
fn the_json_is_what_the_docs_say() {
    let mut topology = Topology::from_machine(MACHINES, "epyc7601_2p").unwrap();
    topology.quota = Some(Quota { cpus: 1.5, file: "/sys/fs/cgroup/cpu.max".into() });
    let probe = Probe {
        working_sets: vec![warmcore_report::WorkingSet { from: 0, to: 1, kib: 256, ns: 1.0 }],
        cpus: vec![0, 1],
        hand_over_ns: vec![vec![None, Some(23.0)], vec![Some(23.0), None]],
        spread_ns: vec![vec![None, Some((22.0, 25.0))], vec![Some((22.0, 25.0)), None]],
        verdict: "The times agree.".into(),
        noisy: false,
    };
    let value = serde_json::to_value(Json::of(&topology, Some(&probe))).unwrap();
    for (heading, at) in [
        ("topo", ""),
        ("Topology", "/topology"),
        ("Cpu", "/topology/cpus/0"),
        ("Core", "/topology/cores/0"),
        ("Llc", "/topology/llcs/0"),
        ("Node", "/topology/nodes/0"),
        ("Socket", "/topology/sockets/0"),
        ("Quota", "/topology/quota"),
        ("Probe", "/probe"),
    ] {
        let written: BTreeSet<String> =
            value.pointer(at).unwrap().as_object().unwrap().keys().cloned().collect();
        assert_eq!(documented(heading), written, "left: docs/json.md, right: the code, of {heading}");
    }
    assert_eq!(value["topology"]["nodes"][0]["distances"][1], serde_json::json!([1, 16]));
    assert_eq!(value["probe"]["spread_ns"][0][1], serde_json::json!([22.0, 25.0]));
    let without = serde_json::to_value(Json::of(&topology, None)).unwrap();
    assert!(without.get("probe").is_none());
}

#[test]
fn the_machine_is_printed_and_the_json_file_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("topo.json");
    let mut out = Vec::new();
    let args = ["--machine", "ryzen7950x", "--ascii", "--json", path.to_str().unwrap()];
    run_on(&parsed(&args).unwrap(), &mut out).unwrap();
    assert!(out.is_ascii() && out.starts_with(b"AMD Ryzen 9 7950X"), "{}", String::from_utf8_lossy(&out));
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((value["schema"].as_u64(), value["what"].as_str()), (Some(u64::from(SCHEMA)), Some("topo")));
    assert_eq!(value["topology"]["cores"][0]["cpus"], "0,16");
}

#[test]
fn one_cpu_has_no_pair_and_the_error_says_what_to_do() {
    let mut topology = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
    topology.allowed = Some([CpuId(3)].into_iter().collect::<CpuSet>());
    let error = probe(&topology, &|_, _| ()).unwrap_err().to_string();
    assert!(error.contains("CPUs 3") && error.contains("allow it more"), "{error}");
}
