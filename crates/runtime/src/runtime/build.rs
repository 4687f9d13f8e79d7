//! Build: from the settings to a runtime whose workers run.

use super::Runtime;
use super::builder::{Builder, MakeDriver, Smt};
#[cfg(feature = "tokio")]
use crate::context;
use crate::error::BuildError;
use crate::observe;
use crate::owned_tasks::OwnedTasks;
use crate::shared::{Remote, Shared};
use crate::spare_cpus::SpareCpus;
use crate::sync::{AtomicBool, AtomicU32};
use crate::task_groups::TaskGroups;
use crate::tenant_stats::TenantStats;
use crate::thread_config::ThreadConfig;
use crate::watchdog::Watchdog;
use crate::worker;
#[cfg(feature = "tokio")]
use std::sync::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use warmcore_driver::Driver;
#[cfg(feature = "tokio")]
use warmcore_driver::{TokioDriver, TokioDriverConfig, TokioReactor};
use warmcore_line::Padded;
use warmcore_sched::{Distance, PolicyKind, SchedDomains, Workers};
use warmcore_sys::affinity;
use warmcore_topo::Topology;
#[cfg(feature = "tokio")]
use warmcore_types::ignore_poison;
use warmcore_types::{CpuId, CpuSet, Nanos};

/// By worker: the CPUs of the workers of its last-level cache.
fn near(machine: &SchedDomains) -> Vec<CpuSet> {
    let workers = || (0..machine.cpus() as u32).map(CpuId);
    let is_near = |a, b| machine.distance(a, b) <= Distance::Llc;
    let of =
        |worker| workers().filter(move |other| is_near(worker, *other)).map(|cpu| machine.kernel_cpu(cpu));
    workers().map(|worker| of(worker).collect()).collect()
}

impl Builder {
    /// Starts the workers. Fails if a setting is invalid, if there is no CPU to use, if the topology or the allowed
    /// CPUs can't be read, or if the system refuses a thread or a descriptor.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |source| BuildError { what, source: Some(source) }
        };
        let error = |what: String| BuildError { what, source: None };
        if self.name.contains('\0') {
            return Err(error(format!(
                "the name {:?} has a NUL in it, and names of threads have none",
                self.name
            )));
        }
        if self.max_blocking_threads == 0 {
            let what =
                "0 threads for spawn_blocking: its closures would never run; 1 for each worker is the least";
            return Err(error(what.to_owned()));
        }
        let topology = match self.topology.clone() {
            Some(topology) => topology,
            None => Topology::this_machine()
                .map_err(|source| error(format!("can't read what the machine is: {source}")))?,
        };
        let allowed = affinity::allowed().map_err(io("can't read which CPUs are allowed"))?;
        let cpus = self.cpus_to_use(&topology, &allowed);
        if cpus.is_empty() {
            let wanted = self.cpus.clone().unwrap_or_default();
            return Err(error(format!("no CPU to run on: wanted {wanted}, allowed are {allowed}")));
        }
        let count = self.worker_threads.unwrap_or_else(|| match topology.quota {
            Some(ref quota) if self.cpus.is_none() => cpus.len().min(quota_cpus(quota.cpus)),
            _ => cpus.len(),
        });
        if !(1..=4096).contains(&count) {
            return Err(error(format!("{count} workers; 1 to 4096 are possible")));
        }
        let has_all = self.topology.is_none()
            && (2..=count).contains(&topology.cpus.len())
            && cpus.len() == topology.cpus.len()
            && topology.quota.is_none()
            && !topology.is_flat;
        let kernel_cpus: Vec<CpuId> = (0..count).map(|i| cpus[i % cpus.len()]).collect();
        let machine = SchedDomains::new(&topology, &kernel_cpus);
        let make_driver = match self.make_driver.clone().or_else(|| self.tokio_drivers(&machine)) {
            Some(make_driver) => make_driver,
            None => {
                let what =
                    "no driver: the crate was built without its feature `tokio`; set `Builder::driver`";
                return Err(error(what.to_owned()));
            }
        };
        let mut remotes = Vec::new();
        for worker in 0..count {
            let driver = make_driver(worker).map_err(io("can't make a worker's driver"))?;
            remotes.push(remote(driver));
        }
        let pin_to = match self.pin {
            Some(true) => kernel_cpus.iter().map(|cpu| CpuSet::from_iter([*cpu])).collect(),
            None if count >= cpus.len() => near(&machine),
            _ => vec![cpus.iter().copied().collect(); count],
        };
        let mut shared = shared(self.name, remotes, machine, self.policy, self.long_poll_threshold, pin_to);
        shared.threads = self.threads;
        shared.spare_cpus = Padded::new(SpareCpus::new(has_all));
        warmcore_record::start();
        let mut runtime = Runtime { shared: Arc::new(shared), observer: None };
        for worker in 0..count {
            // If this fails, `runtime` is dropped, which ends the workers that were started before.
            worker::thread::start_worker(&runtime.shared, CpuId(worker as u32))
                .map_err(io("can't start a thread"))?;
        }
        runtime.observer = observe::open(&runtime.shared, self.observe);
        Ok(runtime)
    }

    /// Makes tokio's drivers for the workers of a machine.
    #[cfg(feature = "tokio")]
    fn tokio_drivers(&self, machine: &SchedDomains) -> Option<MakeDriver> {
        // The first driver of each reactor makes it.
        let reactor_of =
            |worker: u32| if self.share_drivers { machine.shard_of(CpuId(worker)) } else { worker as usize };
        let reactor_of: Vec<_> = (0..machine.cpus() as u32).map(reactor_of).collect();
        let reactors = reactor_of.iter().max().map_or(0, |last| last + 1);
        let made = Mutex::new(vec![None::<Arc<TokioReactor>>; reactors]);
        let mut config = TokioDriverConfig {
            max_blocking_threads: (self.max_blocking_threads / reactors.max(1)).max(1),
            close_waits: self.wait_for_blocking,
            thread_stack_size: self.threads.stack_size,
            thread_keep_alive: self.thread_keep_alive,
            enable_time: self.enable_time,
            on_run: context::driver_runs,
            clock: crate::clock::now,
            ..TokioDriverConfig::new(&self.name)
        };
        if let Some(name) = &self.threads.name {
            config.thread_name = name.clone();
        }
        Some(Arc::new(move |worker| {
            let reactor = match &mut ignore_poison(made.lock())[reactor_of[worker]] {
                Some(reactor) => reactor.clone(),
                none => none.insert(Arc::new(TokioReactor::new(config.clone())?)).clone(),
            };
            Ok(Box::new(TokioDriver::on(&reactor)))
        }))
    }

    #[cfg(not(feature = "tokio"))]
    fn tokio_drivers(&self, _machine: &SchedDomains) -> Option<MakeDriver> {
        None
    }

    fn cpus_to_use(&self, topology: &Topology, allowed: &CpuSet) -> Vec<CpuId> {
        let wanted = |cpu: &CpuId| self.cpus.as_ref().is_none_or(|cpus| cpus.contains(*cpu));
        let online = topology.cpus.iter().filter(|cpu| allowed.contains(cpu.id) && wanted(&cpu.id));
        let mut cores = std::collections::BTreeSet::new();
        online.filter(|cpu| self.smt == Smt::EveryCpu || cores.insert(cpu.core)).map(|cpu| cpu.id).collect()
    }
}

/// A quota in whole CPUs, rounded up, because a part of a CPU needs a worker too. At least 1.
fn quota_cpus(cpus: f64) -> usize {
    (cpus.ceil() as usize).max(1)
}

/// The runtime's part of a new worker.
pub(crate) fn remote(driver: Box<dyn Driver>) -> Remote {
    Remote {
        owned_tasks: Padded::new(OwnedTasks::new()),
        task_counts: Padded::default(),
        reports: Padded::default(),
        driver,
    }
}

pub(crate) fn shared(
    name: String,
    remotes: Vec<Remote>,
    machine: SchedDomains,
    policy: PolicyKind,
    long_poll: Duration,
    pin_to: Vec<CpuSet>,
) -> Shared {
    let kernel = |worker: CpuId| machine.kernel_cpu(worker).index();
    let workers = || (0..remotes.len() as u32).map(CpuId);
    let mut worker_on = vec![None; workers().map(kernel).max().map_or(0, |last| last + 1)];
    // Of several workers on a CPU the first one remains.
    workers().rev().for_each(|worker| worker_on[kernel(worker)] = Some(worker));
    Shared {
        name,
        watchdog: Padded::new(Watchdog::new(remotes.len())),
        spare_cpus: Padded::new(SpareCpus::new(false)),
        task_groups: TaskGroups::new(remotes.len()),
        remotes: remotes.into(),
        workers: Workers::new(machine, policy),
        worker_on: worker_on.into(),
        is_closing: AtomicBool::new(false),
        is_shutdown: AtomicBool::new(false),
        threads: ThreadConfig::default(),
        worker_threads: Padded::default(),
        tenant_stats: TenantStats::default(),
        #[cfg(feature = "metrics")]
        exported: Padded::default(),
        long_poll: Nanos(u64::try_from(long_poll.as_nanos()).unwrap_or(u64::MAX)),
        turn: Padded::new(AtomicU32::new(0)),
        outside: Padded::default(),
        pin_to: pin_to.into(),
        attachment: OnceLock::new(),
    }
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;
    use warmcore_topo::MACHINES;

    /// A Ryzen 7950X: 16 CPUs below each of two last-level caches.
    #[test]
    fn a_worker_runs_on_the_cpus_that_share_its_last_level_cache() {
        let topology = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
        let cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let near = near(&SchedDomains::new(&topology, &cpus));
        assert_eq!(near.len(), 32);
        assert!(near.iter().zip(&cpus).all(|(near, cpu)| near.iter().count() == 16 && near.contains(*cpu)));
        let distinct: std::collections::BTreeSet<_> = near.iter().map(|cpus| cpus.to_string()).collect();
        assert_eq!(distinct.len(), 2);
    }
}
