//! Findings on the task runtime: how many workers it makes here, whether they can be pinned, and whether its driver
//! works.
//!
//! A runtime is made as a program would make it, and inspected. The number of workers is explained by the allowed CPUs
//! and the quota. Further findings are about cores that CPUs share and about CPUs that are offline. The runtime exists
//! for about a millisecond and starts two threads per worker, one of which ends before the other is started.

use super::{finding, limited, missing, ok};
use std::time::Duration;
use warmcore_report::{Finding, State};
use warmcore_runtime::Runtime;
use warmcore_sys::affinity;
use warmcore_topo::{Core, Topology};
use warmcore_types::{CpuId, CpuSet};

/// The facts that determine how many workers there are, and which resources they share.
#[derive(Debug, Clone, PartialEq)]
struct Facts {
    workers: usize,
    /// CPUs that the process may use.
    cpus: usize,
    /// CPUs that are online, including `cpus`.
    online: usize,
    /// Physical cores of the allowed CPUs.
    cores: usize,
    /// Of these cores, those with another CPU that is online and not allowed.
    shared_cores: usize,
    /// CPUs that are possible and not online.
    offline: CpuSet,
    /// The quota, in CPUs.
    quota: Option<f64>,
}

impl Facts {
    fn of(topology: &Topology, allowed: &CpuSet, workers: usize) -> Self {
        let here = || topology.cpus.iter().filter(|cpu| allowed.contains(cpu.id));
        let is_ours = |core: &&Core| core.cpus.iter().any(|cpu| allowed.contains(cpu));
        let cores: Vec<&Core> = topology.cores.iter().filter(is_ours).collect();
        let is_shared = |core: &&&Core| core.cpus.iter().any(|cpu| !allowed.contains(cpu));
        Self {
            workers,
            cpus: here().count(),
            online: topology.cpus.len(),
            cores: cores.len(),
            shared_cores: cores.iter().filter(is_shared).count(),
            offline: topology.offline.clone(),
            quota: topology.quota.as_ref().map(|quota| quota.cpus),
        }
    }
}

/// All findings on the runtime. If no runtime can be made, the only finding is the reason.
pub(super) fn findings(topology: &Topology) -> Vec<Finding> {
    let runtime = match Runtime::builder().observe(false).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let advice = "nothing runs on the runtime here; counters, tenants and budgets do";
            return vec![missing("workers", error.to_string(), advice)];
        }
    };
    let allowed = affinity::allowed().unwrap_or_default();
    let facts = Facts::of(topology, &allowed, runtime.metrics().workers.len());
    let first = topology.cpus.iter().map(|cpu| cpu.id).find(|cpu| allowed.contains(*cpu));
    let mut found = vec![workers(&facts), pinning(&facts, first), driver(&runtime)];
    found.extend(siblings(&facts));
    found.extend(offline(&facts));
    found
}

/// Reports how many workers a program gets by default, and why.
fn workers(facts: &Facts) -> Finding {
    let Facts { workers: n, cpus, online, quota, .. } = *facts;
    let why = match quota {
        Some(quota) if n < cpus => {
            format!("the cgroup's quota of {quota} CPUs, rounded up; {cpus} CPUs are allowed")
        }
        _ if cpus == 1 && online > 1 => format!("one CPU is allowed, of {online} that are online"),
        _ if cpus == 1 => "one CPU is allowed".to_owned(),
        _ => format!("one for each of the {cpus} CPUs that are allowed"),
    };
    let mut advice = Vec::new();
    if quota.is_some_and(|quota| quota < 1.0) {
        advice.push(
            "below one CPU: when the quota is used up, all threads stop until the next period, in the middle of a \
             poll, and every task and timer waits; raise it to 1",
        );
    }
    if n == 1 {
        advice.push(
            "with one worker nothing can be placed or pulled, and no other worker detects a long poll: wrap what is long in \
             block_in_place",
        );
        match quota {
            // More CPUs would not help; there is already advice on the quota.
            Some(quota) if quota < 1.0 => {}
            Some(_) if cpus > 1 => advice.push("the quota is one CPU: raise it"),
            _ if cpus == 1 && online > 1 => {
                advice.push("taskset or the cpuset allows one CPU: allow a second one")
            }
            _ => {}
        }
    } else if quota.is_some() && n < cpus {
        advice.push("workers are not pinned then; raise the quota, or set `workers` and `pin`");
    }
    let fact = format!("{n} by default: {why}");
    if advice.is_empty() { ok("workers", fact) } else { limited("workers", fact, advice.join("; ")) }
}

/// Reports the effect of allowed CPUs that share a core with another CPU, allowed or not, if there are any.
fn siblings(facts: &Facts) -> Option<Finding> {
    let Facts { workers, cpus, cores, shared_cores, .. } = *facts;
    let shared = || format!("cores of which we may use a part only: {shared_cores} of {cores}");
    if cores < cpus {
        let others = if shared_cores > 0 { format!("; {}", shared()) } else { String::new() };
        let fact = format!("the {cpus} CPUs that are allowed are {cores} cores: SMT siblings{others}");
        let advice = format!(
            "siblings share their core's caches, so a task is as warm on either, and its units, so two that compute \
             slow each other down: {}",
            match workers > cores {
                true => format!("`smt(Smt::OnePerCore)` makes {cores} workers where that counts for more"),
                false =>
                    "with fewer workers than CPUs, the system chooses which workers share a core".to_owned(),
            }
        );
        return Some(finding("siblings", State::Ok, fact, Some(advice)));
    }
    (shared_cores > 0).then(|| {
        let advice = "other processes there take units and cache of the core, and a worker looks slow without being stopped; \
                      allow whole cores";
        limited("siblings", shared(), advice)
    })
}

/// Reports the effect of offline CPUs, if there are any.
fn offline(facts: &Facts) -> Option<Finding> {
    let n = facts.offline.len();
    let fact = match n {
        0 => return None,
        1 => format!("CPU {} is possible and not online: no worker is made for it", facts.offline),
        _ => format!("CPUs {} are possible and not online: no worker is made for them", facts.offline),
    };
    let advice = "workers are made when a runtime starts: one that comes online later is used after the next start, and \
                  the worker of one that goes offline goes on beside another";
    Some(finding("offline", State::Ok, fact, Some(advice.into())))
}

/// Reports whether a thread can be pinned.
fn pinning(facts: &Facts, first: Option<CpuId>) -> Finding {
    let by_default = match facts.workers < facts.cpus {
        true => "; by default they run anywhere, since there are fewer workers than CPUs",
        false => "; by default each runs on those that share its last-level cache",
    };
    // Pin a separate thread, so that the affinity of this thread does not change.
    let tried = std::thread::spawn(move || match first {
        None => Err("no CPU is allowed".to_owned()),
        Some(cpu) => affinity::pin(cpu).map_err(|error| error.to_string()).and_then(|()| {
            std::thread::yield_now();
            let at = affinity::current_cpu();
            if at == cpu { Ok(()) } else { Err(format!("put on CPU {cpu}, it ran on CPU {at}")) }
        }),
    });
    match tried.join() {
        Ok(Ok(())) => ok("pinning", format!("works: workers can be kept on their CPUs{by_default}")),
        Ok(Err(why)) => limited(
            "pinning",
            format!("does not work: {why}"),
            "the system moves workers as it likes, and data with them; see seccomp and the cpuset",
        ),
        Err(_) => limited("pinning", "the thread that tried it panicked", "tell us what it printed"),
    }
}

/// Reports whether a task runs on a worker, a timer wakes it, and it can make a socket. The driver needs epoll, an
/// event descriptor and a timer descriptor.
fn driver(runtime: &Runtime) -> Finding {
    let task = runtime.spawn(async {
        tokio::time::sleep(Duration::from_micros(100)).await;
        tokio::net::UdpSocket::bind("127.0.0.1:0").await.map(|_| ())
    });
    match runtime.block_on(task) {
        Ok(Ok(())) => {
            ok("driver", "tokio's, one per worker (epoll, eventfd, timerfd): a timer rang, a socket was made")
        }
        Ok(Err(error)) => limited(
            "driver",
            format!("tokio's, one per worker: a timer rang, a socket was refused: {error}"),
            "servers need one; see seccomp and the limit of descriptors (ulimit -n)",
        ),
        Err(error) => missing("driver", error.to_string(), "tell us: a task must not end so"),
    }
}

#[cfg(test)]
mod tests {
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
        assert!(
            state == State::Limited && fact.ends_with("one CPU is allowed, of 8 that are online"),
            "{fact}"
        );
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
        assert!(
            !fact.contains("a part only") && advice.contains("`smt(Smt::OnePerCore)` makes 4"),
            "{advice}"
        );
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
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sysfs/ids-to-8191-one-offline.txt");
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
        assert_eq!(
            findings[..3].iter().map(|f| &*f.what).collect::<Vec<_>>(),
            ["workers", "pinning", "driver"]
        );
        assert!(findings[1..3].iter().all(|f| f.state == State::Ok), "{findings:?}");
    }
}
