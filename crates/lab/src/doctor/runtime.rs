//! What the task runtime means here: how many workers, whether they stay where they are put, what drives sockets.
//!
//! Model.   A runtime is made as a program would make it, and asked. Why it has so many workers is told from the
//!          same facts that it decided by: the CPUs that are allowed, the quota, the cores that CPUs share.
//! Number.  Two threads a CPU for about a millisecond.

use super::finding;
use crate::report::{Finding, State};
use std::time::Duration;
use warmcore_runtime::Runtime;
use warmcore_sys::affinity;
use warmcore_terms::CpuId;
use warmcore_topo::Topology;

/// What decides how many workers there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Facts {
    pub(super) workers: usize,
    /// CPUs that the process may use.
    pub(super) cpus: usize,
    /// Physical cores that they are on.
    pub(super) cores: usize,
    /// In CPUs.
    pub(super) quota: Option<f64>,
}

/// All findings.
pub(super) fn findings(topology: &Topology) -> Vec<Finding> {
    let runtime = match Runtime::builder().observe(false).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let advice = "nothing runs on the runtime here; counters, tenants and budgets do";
            return vec![finding("workers", State::Missing, error.to_string(), Some(advice.into()))];
        }
    };
    let allowed = affinity::allowed().unwrap_or_default();
    let here = || topology.cpus.iter().filter(|cpu| allowed.contains(cpu.id));
    let cores = here().map(|cpu| cpu.core).collect::<std::collections::BTreeSet<_>>().len();
    let facts = Facts {
        workers: runtime.metrics().workers.len(),
        cpus: here().count(),
        cores,
        quota: topology.quota.as_ref().map(|quota| quota.cpus),
    };
    let first = here().map(|cpu| cpu.id).next();
    vec![workers(facts), pinning(facts, first), driver(&runtime)]
}

/// How many workers a program gets that says nothing, and why.
pub(super) fn workers(facts: Facts) -> Finding {
    let Facts { workers: n, cpus, cores, quota } = facts;
    let why = match quota {
        Some(quota) if n < cpus => {
            format!("the cgroup's quota of {quota} CPUs, rounded up; {cpus} CPUs are allowed")
        }
        _ if cpus == 1 => "one CPU is allowed".to_owned(),
        _ => format!("one for each of the {cpus} CPUs that are allowed"),
    };
    let siblings = match cores {
        0 => String::new(),
        cores if cores < cpus && n > cores => {
            format!("; they share {cores} cores, and `smt(Smt::OnePerCore)` makes {cores}")
        }
        _ => String::new(),
    };
    let fact = format!("{n} by default: {why}{siblings}");
    let (state, advice) = match quota {
        Some(quota) if quota < 1.0 => (
            State::Limited,
            Some(
                "below one CPU: when the quota is used up every task waits for the next period; raise it to 1",
            ),
        ),
        _ if n == 1 => (
            State::Limited,
            Some(
                "nothing can be placed or pulled, and nobody sees a long poll: wrap what is long in block_in_place",
            ),
        ),
        Some(_) if n < cpus => {
            (State::Limited, Some("workers are not pinned then; raise the quota, or set `workers` and `pin`"))
        }
        _ => (State::Ok, None),
    };
    finding("workers", state, fact, advice.map(Into::into))
}

/// Whether a thread stays on the CPU that it is put on.
fn pinning(facts: Facts, first: Option<CpuId>) -> Finding {
    let by_default = match facts.workers < facts.cpus {
        true => "; by default they are not, since there are fewer workers than CPUs",
        false => "",
    };
    // On a thread of its own: this one stays where it was.
    let tried = std::thread::spawn(move || match first {
        None => Err("no CPU is allowed".to_owned()),
        Some(cpu) => affinity::pin(cpu).map_err(|error| error.to_string()).and_then(|()| {
            std::thread::yield_now();
            let at = affinity::current_cpu();
            if at == cpu { Ok(()) } else { Err(format!("put on CPU {cpu}, it ran on CPU {at}")) }
        }),
    });
    match tried.join() {
        Ok(Ok(())) => finding(
            "pinning",
            State::Ok,
            format!("works: workers can be kept on their CPUs{by_default}"),
            None,
        ),
        Ok(Err(why)) => finding(
            "pinning",
            State::Limited,
            format!("does not work: {why}"),
            Some(
                "the system moves workers as it likes, and data with them; see seccomp and the cpuset".into(),
            ),
        ),
        Err(_) => finding(
            "pinning",
            State::Limited,
            "the thread that tried it panicked",
            Some("tell us what it printed".into()),
        ),
    }
}

/// Whether a task runs, and a timer rings on a worker: epoll, an event descriptor and a timer descriptor.
fn driver(runtime: &Runtime) -> Finding {
    let task = runtime.spawn(async {
        tokio::time::sleep(Duration::from_micros(100)).await;
        tokio::net::UdpSocket::bind("127.0.0.1:0").await.map(|_| ())
    });
    match runtime.block_on(task) {
        Ok(Ok(())) => finding(
            "driver",
            State::Ok,
            "tokio's, one per worker (epoll, eventfd, timerfd): a timer rang, a socket was made",
            None,
        ),
        Ok(Err(error)) => finding(
            "driver",
            State::Limited,
            format!("tokio's, one per worker: a timer rang, a socket was refused: {error}"),
            Some("servers need one; see seccomp and the limit of descriptors (ulimit -n)".into()),
        ),
        Err(error) => finding(
            "driver",
            State::Missing,
            error.to_string(),
            Some("tell us: a task must not end so".into()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(workers: usize, cpus: usize, cores: usize, quota: Option<f64>) -> (State, String, String) {
        let finding = super::workers(Facts { workers, cpus, cores, quota });
        (finding.state, finding.fact, finding.advice.unwrap_or_default())
    }

    #[test]
    fn why_there_are_so_many_workers_is_said() {
        let (state, fact, _) = told(4, 4, 4, None);
        assert_eq!((state, &*fact), (State::Ok, "4 by default: one for each of the 4 CPUs that are allowed"));
        let (state, fact, advice) = told(2, 8, 8, Some(1.5));
        assert!(state == State::Limited && fact.contains("quota of 1.5 CPUs, rounded up; 8"), "{fact}");
        assert!(advice.contains("not pinned"), "{advice}");
        let (_, fact, _) = told(8, 8, 4, None);
        assert!(fact.ends_with("they share 4 cores, and `smt(Smt::OnePerCore)` makes 4"), "{fact}");
    }

    #[test]
    fn one_cpu_and_less_than_one_are_limits_and_what_they_mean_is_said() {
        let (state, fact, advice) = told(1, 1, 1, None);
        assert!(state == State::Limited && fact.contains("one CPU is allowed"), "{fact}");
        assert!(advice.contains("nobody sees a long poll"), "{advice}");
        let (state, fact, advice) = told(1, 4, 2, Some(0.5));
        assert!(state == State::Limited && fact.contains("quota of 0.5 CPUs"), "{fact}");
        assert!(advice.contains("every task waits"), "{advice}");
        // A quota as large as what is allowed limits no worker.
        assert_eq!(told(4, 4, 4, Some(4.0)).0, State::Ok);
    }

    #[test]
    fn here_a_task_runs_and_a_thread_stays_where_it_is_put() {
        let findings = findings(&Topology::this_machine().unwrap());
        assert_eq!(findings.iter().map(|f| &*f.what).collect::<Vec<_>>(), ["workers", "pinning", "driver"]);
        assert!(findings[1..].iter().all(|f| f.state == State::Ok), "{findings:?}");
    }
}
