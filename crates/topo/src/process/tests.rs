use crate::Topology;
use std::fs;
use std::path::Path;

fn captured() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sysfs/zen4-vm-2cpu")
}

#[test]
fn this_machine_reads_as_it_is() {
    let t = Topology::this_machine().unwrap();
    let allowed = t.allowed.as_ref().unwrap();
    assert!(!allowed.is_empty() && allowed.is_subset(&t.online()));
    assert_eq!(t.usable(), *allowed);
}

#[test]
fn a_captured_root_says_what_its_process_was_allowed() {
    let t = Topology::from_root(&captured()).unwrap();
    assert_eq!(t.allowed.unwrap().to_string(), "0-1");
    assert_eq!(t.model.as_deref(), Some("AMD EPYC"));
    assert_eq!(t.quota, None, "the captured cgroup has quota -1");
}

/// The captured machine with other words in proc/self/status.
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
