use super::*;
use std::path::Path;
use warmcore_topo::Quota;

/// A machine with `cores` cores of `smt` CPUs each; sibling t of core c is CPU t × cores + c.
fn drawn(cores: u32, smt: u32) -> Topology {
    let text = format!("[drawn]\nsockets = 1\nl3_per_socket = 1\ncores_per_l3 = {cores}\nsmt = {smt}\n");
    Topology::from_machine(&text, "drawn").unwrap()
}

fn with_quota(topology: Topology, cpus: f64) -> Topology {
    let file = "/sys/fs/cgroup/cpu.max".into();
    Topology { quota: Some(Quota { cpus, file }), ..topology }
}

/// The facts of a process that may use those CPUs.
fn facts(topology: &Topology, allowed: &str, workers: usize) -> Facts {
    Facts::of(topology, &CpuSet::parse_list(allowed).unwrap(), workers)
}

fn told(finding: Finding) -> (State, String, String) {
    (finding.state, finding.fact, finding.advice.unwrap_or_default())
}

#[test]
fn why_there_are_so_many_workers_is_said() {
    let (state, fact, advice) = told(workers(&facts(&drawn(4, 1), "0-3", 4)));
    assert_eq!((state, &*fact), (State::Ok, "4 by default: one for each of the 4 CPUs that are allowed"));
    assert_eq!(advice, "");
    let (state, fact, advice) = told(workers(&facts(&with_quota(drawn(8, 1), 1.5), "0-7", 2)));
    assert!(state == State::Limited && fact.contains("quota of 1.5 CPUs, rounded up; 8"), "{fact}");
    assert!(advice.contains("not pinned"), "{advice}");
    // A quota as large as the allowed CPUs limits no worker.
    assert_eq!(told(workers(&facts(&with_quota(drawn(4, 1), 4.0), "0-3", 4))).0, State::Ok);
}

#[test]
fn one_cpu_by_affinity_is_a_limit_that_can_be_lifted_and_by_nature_one_that_cannot() {
    let (state, fact, advice) = told(workers(&facts(&drawn(8, 1), "5", 1)));
    assert!(state == State::Limited && fact.ends_with("one CPU is allowed, of 8 that are online"), "{fact}");
    assert!(
        advice.contains("no other worker detects a long poll") && advice.contains("a second one"),
        "{advice}"
    );
    let (state, fact, advice) = told(workers(&facts(&drawn(1, 1), "0", 1)));
    assert!(state == State::Limited && fact.ends_with("one CPU is allowed"), "{fact}");
    assert!(
        advice.contains("no other worker detects a long poll") && !advice.contains("a second one"),
        "{advice}"
    );
}

#[test]
fn with_a_quota_of_one_cpu_it_is_the_quota_that_is_to_be_raised() {
    let (state, _, advice) = told(workers(&facts(&with_quota(drawn(4, 1), 1.0), "0-3", 1)));
    assert!(
        state == State::Limited && advice.contains("raise it") && !advice.contains("a second one"),
        "{advice}"
    );
    // The quota allows two workers, the affinity only one.
    let (.., advice) = told(workers(&facts(&with_quota(drawn(4, 1), 2.0), "3", 1)));
    assert!(advice.contains("a second one") && !advice.contains("raise it"), "{advice}");
}

#[test]
fn below_one_cpu_tasks_stop_with_their_threads_and_nothing_is_placed() {
    for allowed in ["0-3", "2"] {
        let (state, fact, advice) = told(workers(&facts(&with_quota(drawn(4, 1), 0.5), allowed, 1)));
        assert!(state == State::Limited && fact.contains("1 by default"), "{fact}");
        assert!(advice.contains("until the next period") && advice.contains("raise it to 1"), "{advice}");
        assert!(advice.contains("nothing can be placed") && !advice.contains("a second one"), "{advice}");
    }
}

#[test]
fn siblings_are_as_warm_and_slow_each_other_down() {
    let (state, fact, advice) = told(siblings(&facts(&drawn(4, 2), "0-7", 8)).unwrap());
    assert!(state == State::Ok && fact.contains("8 CPUs that are allowed are 4 cores: SMT"), "{fact}");
    assert!(!fact.contains("a part only") && advice.contains("`smt(Smt::OnePerCore)` makes 4"), "{advice}");
    // The process may use both CPUs of core 0 and one of core 1.
    let (_, fact, _) = told(siblings(&facts(&drawn(4, 2), "0-1,4", 3)).unwrap());
    assert!(fact.contains("are 2 cores") && fact.contains("a part only: 1 of 2"), "{fact}");
    // The quota leaves two workers for four cores.
    let (.., advice) = told(siblings(&facts(&with_quota(drawn(4, 2), 2.0), "0-7", 2)).unwrap());
    assert!(advice.contains("the system chooses") && !advice.contains("OnePerCore"), "{advice}");
    // The process may use one CPU of each core; other processes may use the other CPU.
    let (state, fact, advice) = told(siblings(&facts(&drawn(4, 2), "0-3", 4)).unwrap());
    assert!(state == State::Limited && fact.ends_with("a part only: 4 of 4"), "{fact}");
    assert!(advice.contains("whole cores"), "{advice}");
    assert_eq!(siblings(&facts(&drawn(4, 1), "0-2", 3)), None);
}

#[test]
fn cpus_that_are_offline_get_no_worker_until_the_next_start() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sysfs/ids-to-8191-one-offline.txt");
    let topology = Topology::from_sysfs(&root).unwrap();
    let all = topology.online().to_string();
    let (state, fact, advice) = told(offline(&facts(&topology, &all, topology.cpus.len())).unwrap());
    assert!(state == State::Ok && fact.contains("is possible and not online: no worker"), "{fact}");
    assert!(advice.contains("after the next start"), "{advice}");
    assert_eq!(offline(&facts(&drawn(4, 2), "0-7", 8)), None);
}

#[test]
fn here_a_task_runs_and_a_thread_stays_where_it_is_put() {
    let findings = findings(&Topology::this_machine().unwrap());
    assert_eq!(findings[..3].iter().map(|f| &*f.what).collect::<Vec<_>>(), ["workers", "pinning", "driver"]);
    assert!(findings[1..3].iter().all(|f| f.state == State::Ok), "{findings:?}");
}
