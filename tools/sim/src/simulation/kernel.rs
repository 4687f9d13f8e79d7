//! Kernel: a simulated kernel, a [`Scheduler`] that gives CPUs to tasks as Linux does.
//!
//! `state` and `task` have what it stores; `view` what policies see of it; `queue` the order of tasks on a CPU; `switch`
//! gives CPUs to tasks; `search` takes tasks from other CPUs; `wake` queues woken tasks.

mod queue;
mod search;
mod state;
mod switch;
mod task;
mod view;
mod wake;

pub use state::KernelScheduler;

use super::scheduler::Scheduler;
use super::settings::Settings;
use super::state::State;
use super::{Simulation, event_class};
use crate::costs::Costs;
use crate::policy::KernelPolicy;
use crate::trace::{Observer, SwitchReason};
use warmcore_sched::WakeSource;
use warmcore_topo::Topology;

impl<P: KernelPolicy> Simulation<KernelScheduler<P>> {
    /// An idle machine without tasks, under a simulated kernel.
    pub fn new(topology: &Topology, costs: &Costs, settings: Settings, policy: P, seed: u64) -> Self {
        Self::watched(topology, costs, settings, policy, seed, ())
    }
}

impl<P: KernelPolicy, O: Observer> Simulation<KernelScheduler<P>, O> {
    /// As [`Simulation::new`], with an observer.
    pub fn watched(
        topology: &Topology,
        costs: &Costs,
        settings: Settings,
        policy: P,
        seed: u64,
        observer: O,
    ) -> Self {
        let new = |machine: &_, memory: &mut _| KernelScheduler::new(policy, machine, memory);
        let mut sim = Self::of(topology, costs, settings, seed, observer, new);
        sim.state.start();
        sim
    }
}

impl<P: KernelPolicy> Scheduler for KernelScheduler<P> {
    type Cpu = state::KernelCpu;
    type Task = task::KernelTask;

    fn bytes(state: &State<Self>) -> usize {
        state.kernel_bytes()
    }

    fn wake_by<O: Observer>(sim: &mut Simulation<Self, O>, id: u32, cpu: u32, is_sync: bool) -> u64 {
        sim.wake_by(id, cpu, is_sync)
    }

    fn begin<O: Observer>(sim: &mut Simulation<Self, O>, id: u32) {
        sim.wake(id, WakeSource::Outside(None), 0);
    }

    fn expire<O: Observer>(sim: &mut Simulation<Self, O>, id: u32) {
        sim.timer(id);
    }

    /// The task goes behind the first queued task.
    fn prepare_yield<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32) {
        let at = &sim.state.cpus[cpu as usize];
        let behind = at.sched.queue.least_vruntime(&sim.state.tasks);
        let task = &mut sim.state.tasks[at.current as usize];
        task.sched.vruntime = behind.map_or(task.sched.vruntime, |v| task.sched.vruntime.max(v + 1));
        task.remaining_ns = sim.times.voluntary;
    }

    fn switch<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32, reason: SwitchReason) -> Option<u64> {
        sim.switch(cpu, reason)
    }

    fn finish_wakeup<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32) {
        sim.finish_wakeup(cpu);
    }

    fn handle_event<O: Observer>(
        sim: &mut Simulation<Self, O>,
        class: u8,
        index: u32,
        generation: u32,
    ) -> bool {
        match class {
            event_class::PREEMPT => return sim.preempt_for(index, generation),
            _ => sim.kick(index, 0, false),
        }
        false
    }

    fn tick<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32) {
        sim.scheduler_tick(cpu);
    }
}
