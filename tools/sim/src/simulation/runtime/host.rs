//! Host: what the scheduler core needs of a simulation.
//!
//! A task is an index with what the core knows of it. A call of the core happens at one moment of virtual time: the
//! simulation sets the clock before each call, and turns the unparks that the core asked for into events after it.

use super::counted::Counted;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use warmcore_sched::{
    Allowed, Core, Host, Inbox, LockedRing, Policy, SchedDomains, Share, Task, TaskState, Workers,
};
use warmcore_types::{CpuId, Nanos};

/// A runnable task.
#[derive(Debug, Clone)]
pub(super) struct SimTask(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    index: u32,
    kind: usize,
    share: Share,
    state: TaskState,
}

impl SimTask {
    /// `kind`: see [`Task::kind`].
    pub(super) fn new(index: u32, kind: usize, allowed: Allowed, share: Share) -> Self {
        Self(Rc::new(Inner { index, kind, share, state: TaskState::new(allowed) }))
    }

    /// The task's index in the simulation.
    #[inline]
    pub(super) fn index(&self) -> u32 {
        self.0.index
    }
}

impl Task for SimTask {
    #[inline]
    fn state(&self) -> &TaskState {
        &self.0.state
    }

    #[inline]
    fn kind(&self) -> usize {
        self.0.kind
    }

    #[inline]
    fn share(&self) -> Share {
        self.0.share
    }
}

/// The tasks that others hand to a worker.
#[derive(Debug, Default)]
pub(super) struct SimInbox {
    tasks: RefCell<VecDeque<SimTask>>,
    has_tasks: Cell<bool>,
    is_parked: Cell<bool>,
}

impl Inbox<SimTask> for SimInbox {
    #[inline]
    fn push(&self, task: SimTask) -> Result<bool, SimTask> {
        self.tasks.borrow_mut().push_back(task);
        self.has_tasks.set(true);
        Ok(self.is_parked.replace(false))
    }

    fn take(&self, each: impl FnMut(SimTask)) {
        self.has_tasks.set(false);
        self.tasks.borrow_mut().drain(..).for_each(each);
    }

    #[inline]
    fn has_tasks(&self) -> bool {
        self.has_tasks.get()
    }

    fn try_park(&self) -> bool {
        let parks = !self.has_tasks();
        self.is_parked.set(parks);
        parks
    }

    fn try_unpark(&self) -> bool {
        self.is_parked.replace(false)
    }

    #[inline]
    fn is_parked(&self) -> bool {
        self.is_parked.get()
    }

    fn close(&self, each: impl FnMut(SimTask)) {
        self.take(each);
    }
}

/// The host of all workers of a simulated runtime.
pub(super) struct SimHost<P: Policy> {
    workers: Workers<Self>,
    now: Cell<u64>,
    /// Workers that the core has unparked since the simulation last looked.
    unparked: RefCell<VecDeque<CpuId>>,
}

impl<P: Policy> SimHost<P> {
    pub(super) fn new(machine: SchedDomains, policy: P) -> Self {
        let policy = Counted::new(policy, machine.cpus());
        Self { workers: Workers::new(machine, policy), now: Cell::new(0), unparked: RefCell::default() }
    }

    pub(super) fn set_now(&self, now: u64) {
        self.now.set(now);
    }

    /// The policy, with the counts of what it read.
    #[inline]
    pub(super) fn policy(&self) -> &Counted<P> {
        self.workers.policy()
    }

    /// The first worker that the core has unparked, of those that the simulation has not seen yet.
    #[inline]
    pub(super) fn pop_unparked(&self) -> Option<CpuId> {
        self.unparked.borrow_mut().pop_front()
    }
}

impl<P: Policy> Host for SimHost<P> {
    type Task = SimTask;
    type Inbox = SimInbox;
    type Ring = LockedRing<SimTask>;
    type Policy = Counted<P>;

    #[inline]
    fn workers(&self) -> &Workers<Self> {
        &self.workers
    }

    #[inline]
    fn now(&self, _worker: CpuId) -> Nanos {
        Nanos(self.now.get())
    }

    fn unpark(&self, worker: CpuId) {
        self.unparked.borrow_mut().push_back(worker);
    }

    fn cancel(&self, task: SimTask) {
        unreachable!("task {} is cancelled, and no worker ends", task.index());
    }

    fn found_long_poll(&self, core: &Core<Self>) {
        core.count_long_poll(self);
    }
}
