//! Findings on the task runtime: how many workers it makes here, whether they can be pinned, and whether its driver
//! works.
//!
//! A runtime is made as a program would make it, and inspected. The number of workers is explained from the facts that
//! the runtime uses: the allowed CPUs, the quota, the cores that CPUs share, the CPUs that are offline. It uses two
//! threads per CPU for about a millisecond.

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

/// All findings.
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

/// Reports the effect of CPUs that share cores, if there are any.
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
        true => "; by default they are not, since there are fewer workers than CPUs",
        false => "",
    };
    // Try it on a separate thread, so that the affinity of this thread does not change.
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

/// Reports whether a task runs on a worker and a timer wakes it. The driver needs epoll, an event descriptor and a
/// timer descriptor.
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
mod tests;
