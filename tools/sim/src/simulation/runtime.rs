//! Runtime: the workers of a runtime, a [`Scheduler`] that drives the scheduler core of `warmcore_sched` in virtual time.
//!
//! Each CPU has a worker. The worker does what [`Core::next`] says, as the runtime's threads do: it polls tasks, serves
//! timers once in an event interval, searches, parks. Each call of the core happens at one moment; time passes between
//! the calls: the steps of a poll, the cache lines that a search reads and that move with a task, an interrupt and leaving
//! the idle state after an unpark, and what `Settings::calls` adds for each call. Interleavings inside a call do not
//! happen here; the models of `crates/sched` check them.
//!
//! `host` is what the core calls, `counted` counts what a policy reads, `worker` is a worker's loop, `wake` queues woken
//! tasks.
//!
//! # Differences to the runtime
//! A long poll is noticed when it reaches the limit, and the timers of its worker are then served from outside; in the
//! runtime a parked worker, the watchdog, looks for long polls every 0.25 or 10 ms and serves them. A task that changes
//! where it may run ([`Program::allow`](crate::program::Program::allow)) is a new task for the core.

mod counted;
mod driver;
mod host;
#[cfg(test)]
mod script;
mod wake;
mod worker;

use super::scheduler::Scheduler;
use super::settings::Settings;
use super::state::State;
use super::{Simulation, event_class};
use crate::costs::Costs;
use crate::memory::LineId;
use crate::trace::{Observer, SwitchReason};
use driver::Reactor;
use host::{SimHost, SimTask};
use warmcore_sched::{Core, Host as _, Next, Policy};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos};

/// What the scheduler stores about a CPU.
#[derive(Debug, Default)]
pub struct RuntimeCpu {
    /// The worker sleeps, or is leaving its idle state.
    is_parked: bool,
    /// When the current poll began, and whether it is the first after a move, if it is measured.
    sampled_since: Option<(Nanos, bool)>,
    /// Until when the worker parks, and how often its reactor was served before that.
    parked_until: Option<Nanos>,
    served_at_park: u64,
    /// Whether the worker parks inside its reactor next, since nobody served that while it slept beside.
    must_attend: bool,
}

/// What the scheduler stores about a task.
#[derive(Debug, Default)]
pub struct RuntimeTask {
    /// `None`: it was not woken yet.
    task: Option<SimTask>,
}

/// The workers of a runtime, a worker per CPU.
pub struct RuntimeScheduler<P: Policy> {
    host: SimHost<P>,
    cores: Vec<Core<SimHost<P>>>,
    /// By shard: the line of its injection queue's lock.
    queue_lines: Vec<LineId>,
    long_poll: Nanos,
    reactors: Vec<Reactor>,
}

impl<P: Policy> Simulation<RuntimeScheduler<P>> {
    /// An idle machine without tasks, with a worker of a runtime on each CPU.
    pub fn runtime(topology: &Topology, costs: &Costs, settings: Settings, policy: P, seed: u64) -> Self {
        Self::runtime_watched(topology, costs, settings, policy, seed, ())
    }
}

impl<P: Policy, O: Observer> Simulation<RuntimeScheduler<P>, O> {
    /// As [`Simulation::runtime`], with an observer.
    pub fn runtime_watched(
        topology: &Topology,
        costs: &Costs,
        settings: Settings,
        policy: P,
        seed: u64,
        observer: O,
    ) -> Self {
        let long_poll = settings.long_poll;
        let mut sim = Self::of(topology, costs, settings, seed, observer, |machine, memory| {
            let host = SimHost::new(machine.clone(), policy);
            // No other thread runs on these CPUs.
            host.workers().set_others_run(false);
            let cores =
                (0..machine.cpus() as u32).map(|cpu| Core::new(&host, CpuId(cpu), long_poll)).collect();
            let queue_lines = (0..machine.shards()).map(|_| memory.line()).collect();
            let reactors = (0..machine.cpus()).map(|_| Reactor::default()).collect();
            RuntimeScheduler { host, cores, queue_lines, long_poll, reactors }
        });
        for cpu in 0..sim.state.cpus.len() as u32 {
            // A worker begins as the runtime's threads do: it looks for tasks, and parks. Here this takes no time.
            let (core, host) = sim.core(cpu);
            core.search(host);
            let next = core.next(host);
            assert!(matches!(next, Next::Park(None)), "there are no tasks yet: {next:?}");
            sim.enter_driver(cpu);
            sim.state.cpus[cpu as usize].sched.is_parked = true;
        }
        sim
    }
}

impl<P: Policy, O: Observer> Simulation<RuntimeScheduler<P>, O> {
    /// Whether the workers find that other threads run on the CPUs of parked workers
    /// ([`View::others_run`](warmcore_sched::View::others_run)).
    pub(crate) fn set_others_run(&mut self, others_run: bool) {
        self.state.sched.host.workers().set_others_run(others_run);
    }
}

impl<P: Policy> Scheduler for RuntimeScheduler<P> {
    type Cpu = RuntimeCpu;
    type Task = RuntimeTask;

    fn bytes(state: &State<Self>) -> usize {
        state.sched.cores.capacity() * size_of::<Core<SimHost<P>>>()
    }

    fn wake_by<O: Observer>(sim: &mut Simulation<Self, O>, id: u32, cpu: u32, _is_sync: bool) -> u64 {
        sim.wake_on_worker(id, cpu)
    }

    fn begin<O: Observer>(sim: &mut Simulation<Self, O>, id: u32) {
        sim.wake_from_outside(id);
    }

    fn wake_from_outside<O: Observer>(sim: &mut Simulation<Self, O>, id: u32) -> u64 {
        sim.wake_from_outside(id)
    }

    fn expire<O: Observer>(sim: &mut Simulation<Self, O>, id: u32) {
        sim.is_due(id);
    }

    fn prepare_yield<O: Observer>(_sim: &mut Simulation<Self, O>, _cpu: u32) {}

    fn switch<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32, reason: SwitchReason) -> Option<u64> {
        sim.end_poll(cpu, reason)
    }

    fn finish_wakeup<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32) {
        sim.come_back(cpu);
    }

    fn handle_event<O: Observer>(
        sim: &mut Simulation<Self, O>,
        class: u8,
        index: u32,
        generation: u32,
    ) -> bool {
        match class {
            event_class::LONG_POLL => return sim.check_long_poll(index, generation),
            _ => sim.leave_park(index, false),
        }
        false
    }

    /// A poll that a step makes longer than the limit will be long.
    fn begin_step<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32, ns: u64) {
        let at = &sim.state.cpus[cpu as usize];
        let long_at = at.on_since + sim.state.sched.long_poll.0;
        if sim.state.now + ns > long_at {
            let (id, due) = (at.current, long_at.max(sim.state.now));
            sim.push_event(due, event_class::LONG_POLL, cpu, id);
        }
    }

    fn tick<O: Observer>(_sim: &mut Simulation<Self, O>, _cpu: u32) {}
}
