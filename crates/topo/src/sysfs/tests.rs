use crate::write_sysfs::{Style, facts, temp_dir, write};
use crate::{Distance, MACHINES, TopoError, Topology, assemble, machines};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use warmcore_types::{CpuId, CpuSet, LlcId, NodeId};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sysfs")
}

fn fixture(name: &str) -> Result<Topology, TopoError> {
    Topology::from_sysfs(&fixtures().join(format!("{name}.txt")))
}

fn lists<'a>(sets: impl IntoIterator<Item = &'a CpuSet>) -> Vec<String> {
    sets.into_iter().map(CpuSet::to_string).collect()
}

fn llcs(t: &Topology) -> Vec<(String, u8)> {
    t.llcs.iter().map(|l| (l.cpus.to_string(), l.level)).collect()
}

fn noted(t: &Topology, words: &str) -> bool {
    t.notes.iter().any(|n| n.contains(words))
}

/// Asserts that the result is a consistent machine, or an error that names a file below `root`.
fn sound_or_named(read: Result<Topology, TopoError>, root: &Path) -> Result<(), String> {
    match read {
        Ok(t) => t.check().map_err(|e| e.to_string()),
        Err(e) if e.file().starts_with(root) && e.to_string().contains(&*e.file().to_string_lossy()) => {
            Ok(())
        }
        Err(e) => Err(format!("names no file below {}: {e}", root.display())),
    }
}

#[test]
fn every_fixture_is_read_and_every_broken_one_refused_by_the_file_at_fault() {
    let mut seen = 0;
    for entry in fs::read_dir(fixtures()).unwrap() {
        let root = entry.unwrap().path();
        if root.extension().is_none_or(|end| end != "txt") {
            continue;
        }
        let name = root.file_name().unwrap().to_string_lossy().into_owned();
        let read = Topology::from_sysfs(&root);
        assert_eq!(read.is_err(), name.starts_with("broken-"), "{name}: {read:?}");
        sound_or_named(read, &root).unwrap();
        seen += 1;
    }
    assert!(seen > 25, "the fixtures are not where the test looks for them");
}

#[test]
fn a_broken_tree_is_an_error_of_its_kind_at_its_file() {
    for (name, kind, file) in [
        ("broken-online-cut-in-a-range", "malformed", "cpu/online"),
        ("broken-online-not-text", "malformed", "cpu/online"),
        ("broken-no-cpu-directory", "missing", "devices/system/cpu"),
        ("broken-cpu1-directory-missing", "missing", "cpu/cpu1"),
        ("broken-cpu1-denies-its-sibling", "contradiction", "cpu1/topology/core_cpus_list"),
        ("broken-cpu1-in-two-llcs", "contradiction", "cpu1/cache/index0/shared_cpu_list"),
        ("broken-cache-level-is-a-word", "malformed", "cpu0/cache/index0/level"),
    ] {
        expect(fixture(name), kind, file, name);
    }
}

fn expect(read: Result<Topology, TopoError>, kind: &str, file: &str, what: &str) {
    let e = read.expect_err(what);
    let is = [
        ("missing", e.is_missing()),
        ("malformed", e.is_malformed()),
        ("contradiction", e.is_contradiction()),
        ("unreadable", e.is_unreadable()),
    ];
    assert!(is.contains(&(kind, true)), "{what}: expected {kind}: {e}");
    assert!(e.file().ends_with(file), "{what}: expected {file}: {e}");
}

#[test]
fn damage_to_any_kind_of_file_is_found() {
    let good = Topology::from_machine(MACHINES, "epyc7601_2p").unwrap();
    let dir = temp_dir();
    write(&good, dir.path(), Style::default());
    let system = dir.path().join("devices/system");
    for (file, text, kind, at) in [
        ("cpu/online", Some(""), "malformed", "cpu/online"),
        ("cpu/online", Some("0-128"), "contradiction", "cpu/possible"),
        ("cpu/offline", Some("3"), "contradiction", "cpu/offline"),
        ("cpu/possible", Some("0-12"), "contradiction", "cpu/possible"),
        ("cpu/isolated", Some("a-b"), "malformed", "cpu/isolated"),
        ("cpu/cpu5/topology/core_cpus_list", None, "missing", "core_cpus_list"),
        ("cpu/cpu5/topology/core_cpus_list", Some(""), "malformed", "core_cpus_list"),
        ("cpu/cpu5/topology/core_cpus_list", Some("69"), "contradiction", "core_cpus_list"),
        ("cpu/cpu69/topology/core_cpus_list", Some("69"), "contradiction", "core_cpus_list"),
        ("cpu/cpu9/topology/package_cpus_list", Some("9"), "contradiction", "package_cpus_list"),
        ("cpu/cpu9/topology/package_cpus_list", Some("9,x"), "malformed", "package_cpus_list"),
        ("cpu/cpu0/cache/index3/shared_cpu_list", Some(""), "contradiction", "shared_cpu_list"),
        ("cpu/cpu3/cache/index3/shared_cpu_list", Some(""), "contradiction", "shared_cpu_list"),
        ("cpu/cpu3/cache/index3/shared_cpu_list", None, "missing", "shared_cpu_list"),
        ("cpu/cpu0/cache/index3/shared_cpu_list", Some("0-7,64-71"), "contradiction", "shared_cpu_list"),
        ("cpu/cpu0/cache/index3/type", None, "missing", "cpu0/cache/index3/type"),
        ("cpu/cpu0/cache/index3/type", Some("Cup"), "malformed", "cpu0/cache/index3/type"),
        ("cpu/cpu0/cache/index3/size", Some("8"), "malformed", "cpu0/cache/index3/size"),
        ("cpu/cpu0/cache/index3/level", Some("2"), "contradiction", "shared_cpu_list"),
        ("cpu/cpu0/cache/index3/level", Some("0"), "malformed", "level"),
        ("cpu/cpu0/cache/index0/coherency_line_size", Some("65"), "malformed", "coherency_line_size"),
        ("node/node3/cpulist", None, "missing", "node3/cpulist"),
        ("node/node3/distance", Some("far"), "malformed", "node3/distance"),
    ] {
        let path = system.join(file);
        let before = fs::read(&path).unwrap();
        match text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let read = Topology::from_sysfs(dir.path());
        fs::write(&path, before).unwrap();
        expect(read, kind, at, &format!("{file} = {text:?}"));
    }
    assert_eq!(
        facts(Topology::from_sysfs(dir.path()).unwrap()),
        facts(good),
        "the tree was mended each time"
    );
}

#[test]
fn caches_gone_from_one_cpu_are_a_contradiction() {
    let good = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
    for lost in ["cpu/cpu0/cache", "cpu/cpu3/cache", "cpu/cpu0/cache/index3", "cpu/cpu31/cache/index3"] {
        let dir = temp_dir();
        write(&good, dir.path(), Style::default());
        fs::remove_dir_all(dir.path().join("devices/system").join(lost)).unwrap();
        let e = Topology::from_sysfs(dir.path()).unwrap_err();
        assert!(e.is_contradiction(), "{lost}: {e}");
    }
}

#[test]
fn this_virtual_machine_is_two_cores_of_one_l3() {
    let t = fixture("zen4-vm-2cpu").unwrap();
    assert_eq!(llcs(&t), [("0-1".to_owned(), 3)]);
    assert_eq!(t.llcs[0].size_kib, Some(32768));
    assert_eq!((t.cores.len(), t.cores[0].l1d_kib, t.cores[0].l2_kib), (2, Some(32), Some(1024)));
    assert_eq!(t.node_distance(NodeId(0), NodeId(0)), Some(10));
    assert_eq!(t.notes, [] as [String; 0]);
}

#[test]
fn a_virtual_machine_without_caches_has_an_assumed_llc_per_socket() {
    let t = fixture("vm-without-caches").unwrap();
    assert_eq!(llcs(&t), ["0", "1", "2", "3"].map(|c| (c.to_owned(), 0)));
    assert!(noted(&t, "no cache is listed") && noted(&t, "assumed 64 bytes"), "{:?}", t.notes);
    let t = fixture("vm-private-l2-and-no-l3").unwrap();
    assert_eq!(llcs(&t), [("0-1".to_owned(), 0), ("2-3".to_owned(), 0)]);
    assert_eq!(t.cores[0].l2_kib, Some(4096), "what is listed of the core is kept");
}

#[test]
fn cpu_numbers_may_be_sparse_up_to_8191() {
    let t = fixture("ids-to-8191-one-offline").unwrap();
    assert_eq!(t.online().to_string(), "0,2,1025,8191");
    assert_eq!((t.offline.to_string(), t.isolated.to_string()), ("1024".into(), "8191".into()));
    assert_eq!(t.distance(CpuId(2), CpuId(1025)), Some(Distance::Smt));
    assert_eq!(t.distance(CpuId(2), CpuId(8191)), Some(Distance::Other));
    assert_eq!(t.distance(CpuId(2), CpuId(1024)), None, "an offline CPU is nowhere");
    assert_eq!(t.cpu(CpuId(8191)).unwrap().node, NodeId(5));
}

#[test]
fn node_0_may_be_missing_and_a_node_may_be_memory_alone() {
    let t = fixture("node0-missing-and-a-node-of-memory").unwrap();
    assert_eq!(t.nodes.iter().map(|n| n.id.0).collect::<Vec<_>>(), [1, 8, 9]);
    assert!(t.node(NodeId(9)).unwrap().cpus.is_empty() && t.node(NodeId(0)).is_none());
    assert_eq!(t.node_distance(NodeId(1), NodeId(9)), Some(80));
}

#[test]
fn an_l3_of_each_core_is_an_llc_of_each_core() {
    let t = fixture("l3-per-core").unwrap();
    assert_eq!(llcs(&t), [("0,2".to_owned(), 3), ("1,3".to_owned(), 3)]);
    assert_eq!(t.llcs[0].size_kib, Some(4096));
}

#[test]
fn cores_without_an_l3_have_their_l2_as_last_level() {
    let t = fixture("hybrid-some-cores-without-l3").unwrap();
    assert_eq!(llcs(&t), [("0-7".to_owned(), 3), ("8-9".to_owned(), 2)]);
    assert_eq!(t.core_of(CpuId(0)).unwrap().l1d_kib, Some(48));
    assert_eq!(t.core_of(CpuId(4)).unwrap().l1d_kib, Some(32));
}

#[test]
fn arm_with_sparse_firmware_tables_is_one_socket_and_one_llc() {
    let t = fixture("arm-firmware-says-little").unwrap();
    assert_eq!((t.cores.len(), t.sockets.len(), t.nodes.len()), (4, 1, 1));
    assert_eq!(llcs(&t), [("0-3".to_owned(), 0)]);
    assert_eq!(t.cores[3].l2_kib, Some(1024));
    for words in ["id -1", "no NUMA nodes", "do not say which CPUs share", "no cache is listed"] {
        assert!(noted(&t, words), "{words}: {:?}", t.notes);
    }
}

#[test]
fn power_cores_with_a_cache_per_half_count_as_halves() {
    let t = fixture("power10-halved-cores").unwrap();
    assert_eq!(lists(t.cores.iter().map(|c| &c.cpus)), ["0,2,4,6", "1,3,5,7", "8,10,12,14", "9,11,13,15"]);
    assert_eq!(t.line_bytes, 128);
    assert!(noted(&t, "2 cores span several last-level caches"), "{:?}", t.notes);
}

#[test]
fn overlapping_groups_are_taken_as_listed_and_noted() {
    let snc = fixture("one-l3-two-nodes-as-with-snc").unwrap();
    assert_eq!((snc.llcs.len(), snc.nodes.len()), (1, 2));
    assert!(noted(&snc, "1 LLCs span NUMA nodes"), "{:?}", snc.notes);
    let vm = fixture("vm-l3-across-sockets").unwrap();
    assert_eq!((vm.llcs.len(), vm.sockets.len()), (1, 4));
    assert!(noted(&vm, "1 LLCs span sockets"), "{:?}", vm.notes);
}

#[test]
fn without_an_online_file_the_directories_are_used() {
    let t = fixture("online-missing").unwrap();
    assert_eq!((t.online().to_string(), t.llcs.len()), ("0-1".into(), 1));
    assert!(noted(&t, "`online` is not there"), "{:?}", t.notes);
    let dir = temp_dir();
    write(&Topology::from_machine(MACHINES, "ryzen7950x").unwrap(), dir.path(), Style::default());
    let cpus = dir.path().join("devices/system/cpu");
    for file in ["online", "possible", "offline"] {
        fs::remove_file(cpus.join(file)).unwrap();
    }
    fs::remove_dir_all(cpus.join("cpu31/topology")).unwrap();
    fs::remove_dir_all(cpus.join("cpu31/cache")).unwrap();
    fs::write(cpus.join("cpu31/online"), "0\n").unwrap();
    fs::write(cpus.join("cpu30/online"), "1\n").unwrap();
    fs::create_dir(cpus.join("cpu4294967295")).unwrap();
    for name in ["cpuidle", "cpufreq"] {
        fs::create_dir(cpus.join(name)).unwrap();
    }
    // As on Linux 2.6.24, the lists of other CPUs still name the CPU that is offline.
    let t = Topology::from_sysfs(dir.path()).unwrap();
    assert_eq!(t.online().to_string(), "0-30");
    fs::remove_dir_all(&cpus).unwrap();
    fs::create_dir(&cpus).unwrap();
    expect(Topology::from_sysfs(dir.path()), "missing", "cpu/online", "no CPU at all");
}

#[test]
fn an_online_file_that_a_container_replaced_is_completed() {
    let t = fixture("lxcfs-online-counts-from-0").unwrap();
    assert_eq!(
        (t.online().to_string(), lists(t.llcs.iter().map(|l| &l.cpus))),
        ("0-7".into(), vec!["0-3".into(), "4-7".into()])
    );
    assert_eq!((t.cores.len(), t.nodes.len(), t.sockets.len()), (4, 2, 2));
    assert!(noted(&t, "a container's view"), "{:?}", t.notes);
    // CPU 2 is possible and not offline, and without a directory it does not count as online.
    let t = fixture("lxcfs-shows-no-allowed-cpu").unwrap();
    assert_eq!((t.online().to_string(), t.offline.to_string()), ("0-1".into(), "2".into()));
}

#[test]
fn a_nul_at_the_end_of_a_file_is_ignored() {
    let t = fixture("rhel7-nohz-full-is-a-nul").unwrap();
    assert_eq!((t.nohz_full.len(), t.cpus.len()), (0, 2));
    let t = fixture("lists-end-in-a-nul").unwrap();
    assert_eq!(lists(t.cores.iter().map(|c| &c.cpus)), ["0-1", "2-3"]);
    assert_eq!(t.nodes[0].cpus.to_string(), "0-3");
}

#[test]
fn a_cpu_in_two_nodes_belongs_to_the_first() {
    let t = fixture("cpu1-in-two-nodes").unwrap();
    assert_eq!(lists(t.nodes.iter().map(|n| &n.cpus)), ["0-1"]);
    assert!(noted(&t, "node 1 lists CPUs 1, which"), "{:?}", t.notes);
    let t = fixture("firmware-lists-every-cpu-in-each-node").unwrap();
    assert_eq!((lists(t.nodes.iter().map(|n| &n.cpus)), t.llcs.len()), (vec!["0-3".to_owned()], 2));
    assert_eq!(t.nodes[0].distances, [(NodeId(0), 10)]);
}

#[test]
fn a_cpu_that_no_node_lists_is_in_the_node_that_it_names_or_in_a_new_one() {
    let t = fixture("cpu1-in-no-node").unwrap();
    assert_eq!(lists(t.nodes.iter().map(|n| &n.cpus)), ["0", "1"]);
    assert!(noted(&t, "CPUs 1 are in no node"), "{:?}", t.notes);
    let t = fixture("node0-offline-and-its-cpus-not").unwrap();
    let nodes: Vec<_> = t.nodes.iter().map(|n| (n.id.0, n.cpus.to_string())).collect();
    assert_eq!(nodes, [(0, "0,2".into()), (1, "1,3".into())]);
    assert!(t.nodes.iter().all(|n| n.distances.is_empty()) && noted(&t, "none are used"), "{:?}", t.notes);
}

#[test]
fn a_cache_shared_by_a_mask_of_zeros_is_shared_by_unknown_cpus() {
    let t = fixture("ia64-last-level-shared-by-a-mask-of-zeros").unwrap();
    assert_eq!(llcs(&t), ["0", "1", "2", "3"].map(|c| (c.to_owned(), 3)));
    assert!(noted(&t, "caches up to level 4 do not say"), "{:?}", t.notes);
}

#[test]
fn siblings_with_a_core_id_each_are_cores() {
    let t = fixture("bulldozer-compute-units-are-two-cores").unwrap();
    assert_eq!((t.cores.len(), llcs(&t)), (4, vec![("0-3".to_owned(), 3)]));
    assert_eq!(t.cores[1].l2_kib, Some(2048));
    assert!(noted(&t, "compute units"), "{:?}", t.notes);
}

#[test]
fn an_offline_cpu_changes_the_caches_of_its_own_socket_alone() {
    let t = fixture("vm-private-l2-and-no-l3-one-cpu-offline").unwrap();
    assert_eq!(llcs(&t), [("0-1".to_owned(), 0), ("2-3".to_owned(), 0), ("4".to_owned(), 2)]);
}

#[test]
fn distances_of_another_number_of_nodes_are_not_used() {
    let dir = temp_dir();
    write(&Topology::from_machine(MACHINES, "epyc7601_2p").unwrap(), dir.path(), Style::default());
    fs::write(dir.path().join("devices/system/node/node3/distance"), "10 32\n").unwrap();
    let t = Topology::from_sysfs(dir.path()).unwrap();
    assert_eq!((t.nodes.len(), t.node_distance(NodeId(0), NodeId(1))), (8, None));
    assert!(noted(&t, "none are used"), "{:?}", t.notes);
}

#[test]
fn without_topology_files_each_cpu_is_a_core() {
    let dir = temp_dir();
    for cpu in 0..2 {
        fs::create_dir_all(dir.path().join(format!("sys/devices/system/cpu/cpu{cpu}"))).unwrap();
    }
    fs::write(dir.path().join("sys/devices/system/cpu/online"), "0-1\n").unwrap();
    let t = Topology::from_sysfs(dir.path()).unwrap();
    assert_eq!((t.cores.len(), t.sockets.len(), t.llcs.len(), t.nodes.len()), (2, 1, 1, 1));
    assert!(noted(&t, "taken for a core") && noted(&t, "`possible` is not there"), "{:?}", t.notes);
}

const STYLES: [Style; 3] = [
    Style { old_names: false, reversed: false, masks: false },
    Style { old_names: true, reversed: true, masks: false },
    Style { old_names: false, reversed: true, masks: true },
];

#[test]
fn every_machine_of_the_file_reads_back_from_the_tree_it_would_show() {
    for (name, style) in machines(MACHINES).unwrap().iter().zip(STYLES.iter().cycle()) {
        let machine = Topology::from_machine(MACHINES, name).unwrap();
        let dir = temp_dir();
        write(&machine, dir.path(), *style);
        assert_eq!(facts(Topology::from_sysfs(dir.path()).unwrap()), facts(machine), "{name}, {style:?}");
    }
}

#[test]
fn a_tree_of_2048_cpus_reads_back() {
    let text = "[big]\nsockets = 4\nnuma_nodes = 8\nl3_per_socket = 32\ncores_per_l3 = 8\nsmt = 2\n\
                l1d_kib = 32\nl2_kib = 1024\nl3_kib = 32768\nnuma_distance = [10, 12, 32]";
    let machine = Topology::from_machine(text, "big").unwrap();
    let dir = temp_dir();
    write(&machine, dir.path(), STYLES[0]);
    assert_eq!(facts(Topology::from_sysfs(dir.path()).unwrap()), facts(machine));
}

prop_compose! {
    /// A machine with unordered CPU numbers, gaps, offline CPUs, nodes without CPUs, and any last level of caches.
    fn any_machine()(
        sockets in 1usize..3, llcs in 1usize..3, cores in 1usize..4, smt in 1usize..3,
        level in prop_oneof![Just(3u8), Just(4), Just(2), Just(0)],
        sizes in proptest::array::uniform3(proptest::option::of(1u32..100_000)),
        line in 5u32..9,
        node_of in proptest::collection::vec(0usize..3, 6),
        node_ids in proptest::sample::subsequence((0..40u32).collect::<Vec<_>>(), 4),
        with_distances in any::<bool>(),
    )(
        // With a level 2 that no cores share, or with level 0, the socket is the LLC.
        llcs in Just(if level == 0 || (level == 2 && cores == 1) { 1 } else { llcs }),
        cores in Just(if level == 0 { cores + 1 } else { cores }),
        ids in proptest::sample::subsequence((0..8192u32).collect::<Vec<_>>(), 60)
            .prop_shuffle(),
        sockets in Just(sockets), smt in Just(smt), level in Just(level), sizes in Just(sizes),
        line in Just(line), node_of in Just(node_of), node_ids in Just(node_ids),
        with_distances in Just(with_distances),
    ) -> Topology {
        let mut ids = ids.into_iter().map(CpuId);
        let [l1d, l2, llc_size] = sizes;
        let l2 = if level == 2 { llc_size } else { l2 };
        let mut parts = assemble::Parts { line_bytes: 1 << line, ..Default::default() };
        let mut nodes = vec![CpuSet::new(); node_ids.len()];
        for socket in 0..sockets {
            let mut package = CpuSet::new();
            for cache in 0..llcs {
                let mut shared = CpuSet::new();
                for _ in 0..cores {
                    let core: CpuSet = ids.by_ref().take(smt).collect();
                    shared.extend(core.iter());
                    parts.cores.push(assemble::core(core, l1d, l2));
                }
                package.extend(shared.iter());
                nodes[node_of[socket * llcs + cache]].extend(shared.iter());
                parts.llcs.push(assemble::llc(shared, level, llc_size.filter(|_| level > 0)));
            }
            parts.online.extend(package.iter());
            parts.sockets.push(package);
        }
        for (i, (id, cpus)) in node_ids.iter().zip(nodes).enumerate() {
            let to = node_ids.iter().enumerate().filter(|_| with_distances);
            let distances = to.map(|(j, to)| (NodeId(*to), 10 + i.abs_diff(j) as u32)).collect();
            parts.nodes.push(crate::Node { id: NodeId(*id), cpus, distances });
        }
        parts.possible = parts.online.clone();
        parts.possible.extend(ids.by_ref().take(3));
        parts.isolated = parts.online.iter().take(2).collect();
        parts.nohz_full = parts.online.iter().skip(1).take(1).collect();
        parts.assemble().unwrap()
    }
}

fn any_style() -> impl Strategy<Value = Style> {
    any::<(bool, bool, bool)>().prop_map(|(old_names, reversed, masks)| Style { old_names, reversed, masks })
}

#[derive(Debug, Clone)]
enum Damage {
    Remove,
    Cut(usize),
    Replace(Vec<u8>),
    Directory,
    RemoveDirectory,
    CopyOf(prop::sample::Index),
}

fn any_damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        Just(Damage::Remove),
        (0usize..4).prop_map(Damage::Cut),
        proptest::collection::vec(any::<u8>(), 0..9).prop_map(Damage::Replace),
        "[0-9,:/xK -]{0,9}".prop_map(|text| Damage::Replace(text.into_bytes())),
        Just(Damage::Directory),
        Just(Damage::RemoveDirectory),
        any::<prop::sample::Index>().prop_map(Damage::CopyOf),
    ]
}

/// Every file below a directory, in order.
fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() { walk(&path, files) } else { files.push(path) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_machine_reads_back_from_its_tree(machine in any_machine(), style in any_style()) {
        let dir = temp_dir();
        write(&machine, dir.path(), style);
        let read = Topology::from_sysfs(dir.path()).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let text = Topology::capture(dir.path()).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let capture = dir.path().join("capture.txt");
        fs::write(&capture, text).unwrap();
        let captured = Topology::from_sysfs(&capture).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(facts(captured), facts(read.clone()));
        prop_assert_eq!(facts(read), facts(machine));
    }

    #[test]
    fn a_damaged_tree_is_a_machine_or_an_error_that_names_a_file(
        machine in any_machine(),
        style in any_style(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any_damage()), 1..4),
    ) {
        let dir = temp_dir();
        write(&machine, dir.path(), style);
        for (at, damage) in damage {
            let mut files = Vec::new();
            walk(dir.path(), &mut files);
            if files.is_empty() {
                break;
            }
            let file = at.get(&files);
            match damage {
                Damage::Remove => fs::remove_file(file).unwrap(),
                Damage::Cut(n) => {
                    let text = fs::read(file).unwrap();
                    fs::write(file, &text[..n.min(text.len())]).unwrap();
                }
                Damage::Replace(bytes) => fs::write(file, bytes).unwrap(),
                Damage::Directory => {
                    fs::remove_file(file).unwrap();
                    fs::create_dir(file).unwrap();
                }
                Damage::RemoveDirectory => fs::remove_dir_all(file.parent().unwrap()).unwrap(),
                Damage::CopyOf(other) => { fs::copy(other.get(&files), file).unwrap(); }
            }
        }
        sound_or_named(Topology::from_sysfs(dir.path()), dir.path()).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn an_llc_id_counts_from_the_smallest_cpu() {
    let t = fixture("l3-per-core").unwrap();
    assert_eq!((t.cpu(CpuId(0)).unwrap().llc, t.cpu(CpuId(3)).unwrap().llc), (LlcId(0), LlcId(1)));
}
