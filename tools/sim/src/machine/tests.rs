use super::*;
use crate::costs::Trust;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");

fn fails(what: &str) -> String {
    SimMachine::read(what).map(|machine| machine.name).unwrap_err().to_string()
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn a_name_this_machine_and_a_file_of_hwloc_are_machines() {
    let known = SimMachine::read("epyc9654_2p").unwrap();
    assert!(known.is_known && known.topology.cpus.len() == 384);
    let drawn = SimMachine::read(&format!("{FIXTURES}/hwloc/synthetic-80cpu-2numa.xml")).unwrap();
    assert!(!drawn.is_known && drawn.topology.cpus.len() == 80);
    assert!(drawn.name.ends_with(".xml") && drawn.costs.machine() == drawn.name);
    let notes = drawn.notes().join("\n");
    assert!(notes.contains("CPUs: 80") && notes.contains("c2c_other_socket 195"), "{notes}");
    #[cfg(target_os = "linux")]
    assert!(!SimMachine::read(THIS).unwrap().topology.cpus.is_empty());
}

#[test]
fn a_measured_transfer_replaces_the_estimate_and_no_farther_one_is_cheaper() {
    let drawn = SimMachine::read(&format!("{FIXTURES}/hwloc/synthetic-80cpu-2numa.xml")).unwrap();
    let timed = drawn.clone().timed(&BTreeMap::from([(Distance::Llc, 108_700), (Distance::Other, 180_000)]));
    let of = |name: &str| timed.costs.get(name).map(|n| (n.milli, n.trust)).unwrap();
    assert_eq!(of("c2c_smt"), (9_000, Trust::Estimated));
    assert_eq!(of("c2c_same_l3"), (108_700, Trust::Measured));
    assert_eq!(timed.costs.hand_over(Distance::Llc), 108_700, "simulations use the measured cost");
    assert_eq!((of("c2c_same_node"), of("c2c_same_socket").0), ((108_700, Trust::Estimated), 110_000));
    assert_eq!(of("c2c_other_socket"), (180_000, Trust::Measured), "measured, and less than the estimate");
    let notes = timed.notes().join("\n");
    assert!(notes.contains("timed here, in ns: c2c_other_socket 180, c2c_same_l3 108.7."), "{notes}");
    assert!(!notes.contains("c2c_same_l3 25"), "{notes}");
    assert!(!drawn.notes().join("\n").contains("timed here"));
}

#[test]
fn an_unknown_name_is_answered_with_similar_names_and_all_names() {
    let error = fails("epyc9654_1p");
    assert!(error.contains("`epyc9654_1p`: no such machine, did you mean epyc9654_2p?"), "{error}");
    assert!(error.contains("ryzen7950x") && error.contains("lstopo"), "{error}");
    assert!(fails("ryzen").contains("did you mean ryzen7950x?"));
    assert!(!fails("pdp11").contains("did you mean"), "{}", fails("pdp11"));
}

#[test]
fn a_machine_file_may_inherit_from_ours_and_its_own_numbers_hold() {
    let (_folder, path) =
        file("[mine]\ninherits = \"ryzen7950x\"\nl3_per_socket = 4\ncpus = 64\nc2c_smt = 7 # [M] probed\n");
    let mine = SimMachine::read(&path).unwrap();
    assert_eq!((mine.topology.cpus.len(), mine.topology.llcs.len(), mine.is_known), (64, 4, false));
    assert_eq!(mine.costs.get("c2c_smt").map(|n| (n.milli, n.trust)), Some((7000, Trust::Measured)));
    assert_eq!(mine.costs.ps("c2c_same_l3"), 15_700, "inherited");
    assert_eq!(mine.costs.ps("csw_voluntary"), 500_000, "from our [defaults]");
    // A user's machine with the name of one of ours is the user's.
    let (_folder, path) = file(MACHINES);
    let again = SimMachine::read(&format!("{path}:ryzen7950x")).unwrap();
    assert!(!again.is_known && again.name.ends_with("mine.toml:ryzen7950x"));
}

#[test]
fn an_error_in_a_machine_file_has_its_location() {
    for (text, words) in [
        ("", &["describes no machine", "[mine]"][..]),
        ("[mine", &["mine.toml", "machine file"]),
        (
            "[mine]\nsockets = 1\nl3_per_socket = 2\ncores_per_l3 = 0\n",
            &["[mine], line 4", "`cores_per_l3` is 0"],
        ),
        (
            "[mine]\nsockets = 1\nl3_per_socket = 1\ncores_per_l3 = 2\ncpus = 0\n",
            &["[mine], line 5", "`cpus` is 0"],
        ),
        ("[mine]\nsockets = 1\nl3_per_socket = 1\ncores_per_l3 = 2\n", &["[mine]", "boost_mhz", "add it"]),
        ("[mine]\ninherits = \"ryzen7950x\"\nc2c_smt = -1\n", &["line 3", "`c2c_smt` is negative"]),
        ("[mine]\ninherits = \"nobody\"\nsockets = 1\n", &["nobody"]),
        ("[a]\nsockets = 1\n[b]\nsockets = 1\n", &["several machines", "a, b"]),
    ] {
        let (_folder, path) = file(text);
        let error = fails(&path);
        assert!(
            error.contains("mine.toml") && words.iter().all(|word| error.contains(word)),
            "{text:?}: {error}"
        );
    }
    let (_folder, path) = file("[mine]\ninherits = \"ryzen7950x\"\n");
    let error = fails(&format!("{path}:mina"));
    assert!(error.contains("has no machine `mina`, did you mean mine?"), "{error}");
    assert!(fails("nowhere.toml").contains("nowhere.toml: can't be read"), "{}", fails("nowhere.toml"));
    assert!(fails("nowhere.xml").contains("nowhere.xml"), "{}", fails("nowhere.xml"));
}
