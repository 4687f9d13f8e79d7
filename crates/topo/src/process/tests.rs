use crate::Topology;
use std::fs;
use std::path::Path;
use warmcore_types::CpuSet;

fn captured() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sysfs/zen4-vm-2cpu.txt")
}

#[test]
fn this_machine_is_read() {
    let t = Topology::this_machine().unwrap();
    let allowed = t.allowed.as_ref().unwrap();
    assert!(!allowed.is_empty() && allowed.is_subset(&t.online()));
    assert_eq!(t.usable(), *allowed);
}

#[test]
fn a_captured_root_has_the_cpus_that_its_process_was_allowed() {
    let t = Topology::from_root(&captured()).unwrap();
    assert_eq!(t.allowed.unwrap().to_string(), "0-1");
    assert_eq!(t.model.as_deref(), Some("AMD EPYC"));
    assert_eq!(t.quota, None, "the captured cgroup has quota -1");
}

/// The captured machine with this text in proc/self/status, or without that file.
fn with_status(status: Option<&str>) -> Result<Topology, crate::TopoError> {
    let dir = tempfile::tempdir().unwrap();
    let machine = Topology::from_sysfs(&captured()).unwrap();
    crate::write_sysfs::write(&machine, &dir.path().join("sys"), Default::default());
    if let Some(text) = status {
        fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        fs::write(dir.path().join("proc/self/status"), text).unwrap();
    }
    Topology::from_root(dir.path())
}

#[test]
fn only_online_cpus_are_allowed() {
    let allowed = with_status(Some("Name:\tx\nCpus_allowed_list:\t1-127\n")).unwrap().allowed;
    assert_eq!(allowed.unwrap().to_string(), "1");
    let none = with_status(None).unwrap();
    assert_eq!((none.allowed.as_ref(), none.usable().to_string()), (None, "0-1".into()));
    assert!(none.notes.iter().any(|n| n.contains("taken as allowed")), "{:?}", none.notes);
}

#[test]
fn a_status_of_another_machine_is_a_contradiction() {
    assert!(with_status(Some("Cpus_allowed_list:\t64-127\n")).unwrap_err().is_contradiction());
    assert!(with_status(Some("Name:\tx\n")).unwrap_err().is_malformed());
    assert!(with_status(Some("Cpus_allowed_list:\tall\n")).unwrap_err().is_malformed());
}

fn fixture(name: &str) -> std::path::PathBuf {
    captured().with_file_name(format!("{name}.txt"))
}

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

#[test]
fn a_container_whose_online_counts_from_0_has_its_cpus_where_they_are() {
    let t = Topology::of_process(&fixture("lxcfs-online-counts-from-0"), &cpus("4-5")).unwrap();
    assert_eq!((t.usable().to_string(), t.cpus.len(), t.llcs.len()), ("4-5".into(), 8, 2));
    assert_eq!(t.llc_of(warmcore_types::CpuId(4)).unwrap().size_kib, Some(16384));
    let captured = Topology::from_root(&fixture("lxcfs-online-counts-from-0")).unwrap();
    assert_eq!(captured.allowed, Some(cpus("4-5")));
}

/// Checks that a machine is flat: one LLC, node and socket of the CPUs `allowed`, and a note that has `words`.
fn is_flat(t: &Topology, allowed: &str, words: &str) {
    t.check().unwrap();
    assert_eq!((t.online(), t.usable()), (cpus(allowed), cpus(allowed)));
    assert_eq!((t.cores.len(), t.llcs.len(), t.nodes.len(), t.sockets.len()), (t.cpus.len(), 1, 1, 1));
    assert_eq!((t.llcs[0].level, t.is_flat), (0, true));
    assert!(
        t.notes[0].contains("taken for cores of one cache") && t.notes[0].contains(words),
        "{:?}",
        t.notes
    );
}

/// The capture of a root whose `sys` is the tree of the capture `text`.
fn below_sys(text: &str) -> String {
    let is_path = |line: &str| !line.is_empty() && !line.starts_with(['#', '\t']);
    text.lines().map(|line| format!("{}{line}\n", if is_path(line) { "sys/" } else { "" })).collect()
}

#[test]
fn a_machine_that_cannot_be_read_is_flat() {
    // Neither /sys nor /proc.
    let dir = tempfile::tempdir().unwrap();
    is_flat(&Topology::of_process(dir.path(), &cpus("3,9")).unwrap(), "3,9", "is no directory here");
    // First /sys shows none of the allowed CPUs, then only some of them.
    let root = fixture("lxcfs-shows-no-allowed-cpu");
    is_flat(&Topology::of_process(&root, &cpus("2")).unwrap(), "2", "may run on CPUs 2");
    let root = captured();
    is_flat(&Topology::of_process(&root, &cpus("0-4")).unwrap(), "0-4", "may run on CPUs 2-4");
    // Trees that contradict themselves, each as `sys` of a root.
    let mut seen = 0;
    for entry in fs::read_dir(captured().parent().unwrap()).unwrap() {
        let tree = entry.unwrap().path();
        if !tree.file_name().unwrap().to_string_lossy().starts_with("broken-") {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root.txt");
        fs::write(&root, below_sys(&fs::read_to_string(tree).unwrap())).unwrap();
        let strict = Topology::from_root(&root).unwrap_err().to_string();
        is_flat(&Topology::of_process(&root, &cpus("0-1")).unwrap(), "0-1", &strict);
        seen += 1;
    }
    assert!(seen > 4);
}

#[test]
fn without_proc_the_schedulers_mask_counts() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Topology::from_sysfs(&captured()).unwrap();
    crate::write_sysfs::write(&machine, &dir.path().join("sys"), Default::default());
    let t = Topology::of_process(dir.path(), &cpus("1")).unwrap();
    assert_eq!((t.online(), t.usable(), t.allowed.clone()), (cpus("0-1"), cpus("1"), Some(cpus("1"))));
    assert_eq!((t.llcs[0].level, t.is_flat), (3, false), "the machine is kept");
    assert!(t.notes.iter().any(|note| note.contains("by the scheduler's mask CPUs 1 ")), "{:?}", t.notes);
    assert!(!t.notes.iter().any(|note| note.contains("taken as allowed")), "{:?}", t.notes);
}

#[test]
fn an_unreadable_quota_is_noted_and_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Topology::from_sysfs(&captured()).unwrap();
    crate::write_sysfs::write(&machine, &dir.path().join("sys"), Default::default());
    fs::create_dir_all(dir.path().join("proc/self")).unwrap();
    fs::write(dir.path().join("proc/self/cgroup"), "0:/\n").unwrap();
    assert!(Topology::from_root(dir.path()).unwrap_err().is_malformed());
    let t = Topology::of_process(dir.path(), &cpus("0-1")).unwrap();
    assert_eq!((t.quota.as_ref(), t.llcs[0].level, t.is_flat), (None, 3, false), "the machine is kept");
    assert!(t.notes.iter().any(|n| n.contains("taken as without a CPU quota")), "{:?}", t.notes);
}
