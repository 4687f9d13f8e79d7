//! Scheduler: what decides which task has a CPU.
//!
//! A simulation interprets programs (`step`), has the time of CPUs (`running`), tasks, memory, processes, locks, budget
//! accounts and the observer. It asks a [`Scheduler`] what to do with a woken task, with a CPU whose task blocks, yields or
//! ends, and with an idle CPU whose wake-up is over. There are two:
//! [`KernelScheduler`](super::KernelScheduler), a simulated kernel with a run queue per CPU, and
//! [`RuntimeScheduler`](super::RuntimeScheduler), the workers of a runtime.

use super::Simulation;
use super::state::State;
use crate::trace::{Observer, SwitchReason};
use std::fmt::Debug;

/// What decides which task has a CPU. A simulation calls its functions at the time of the event.
///
/// The crate has two implementations; other crates use the trait as a bound only.
pub trait Scheduler: Sized {
    /// What the scheduler stores about a CPU.
    type Cpu: Default + Debug;
    /// What the scheduler stores about a task.
    type Task: Default + Debug;

    /// Bytes allocated for what the scheduler stores about CPUs outside of [`Scheduler::Cpu`].
    fn bytes(state: &State<Self>) -> usize;

    /// Makes a blocked or new task runnable; the task that runs on `cpu` wakes it. `is_sync`: the waker announces that it
    /// blocks right afterwards. Returns the time that this takes the waker.
    fn wake_by<O: Observer>(sim: &mut Simulation<Self, O>, id: u32, cpu: u32, is_sync: bool) -> u64;

    /// Makes a new task runnable that no task forked.
    fn begin<O: Observer>(sim: &mut Simulation<Self, O>, id: u32);

    /// Makes a blocked or new task runnable; an outside thread wakes it. Returns the time that this takes that thread.
    fn wake_from_outside<O: Observer>(sim: &mut Simulation<Self, O>, id: u32) -> u64 {
        Self::begin(sim, id);
        0
    }

    /// Makes a sleeping task runnable, since its timer has expired.
    fn expire<O: Observer>(sim: &mut Simulation<Self, O>, id: u32);

    /// The task that runs on `cpu` yields. [`switch`](Self::switch) follows.
    fn prepare_yield<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32);

    /// Takes the CPU from its task, and chooses what the CPU does next. Returns the time that the switch takes if a task
    /// now has the CPU and has to begin a step.
    fn switch<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32, reason: SwitchReason) -> Option<u64>;

    /// Handles the event that a CPU has left its idle state, or that its search is over.
    fn finish_wakeup<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32);

    /// Handles an event of a class that only schedulers push. Returns whether it was stale.
    fn handle_event<O: Observer>(
        sim: &mut Simulation<Self, O>,
        class: u8,
        index: u32,
        generation: u32,
    ) -> bool;

    /// The task of `cpu` begins a step that takes `ns` at full speed.
    #[inline]
    fn begin_step<O: Observer>(_sim: &mut Simulation<Self, O>, _cpu: u32, _ns: u64) {}

    /// A tick of a CPU that runs a task, after the simulation's own part of it.
    fn tick<O: Observer>(sim: &mut Simulation<Self, O>, cpu: u32);
}
