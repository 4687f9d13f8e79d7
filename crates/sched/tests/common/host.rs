//! A host for tests: tasks are numbers, and the test plays the workers, the clock and the sleeps.
#![allow(dead_code)] // Each test uses a part.

use super::script::{Scripted, TASKS, machine};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use warmcore_sched::{
    Allowed, Core, Host, Inbox, LockedRing, Next, PolicyKind, Share, Task, TaskState, Workers,
};
use warmcore_types::{CpuId, Nanos, ThreadUsage};

pub struct TestHost {
    workers: Workers<Self>,
    now: Cell<Nanos>,
    unparked: RefCell<Vec<CpuId>>,
    /// Until when a worker last waited awake.
    pub waited_until: Cell<Option<Nanos>>,
    /// The task that a thread outside spawns so many ns after a worker began to wait awake, if it still waits.
    pub comes: Cell<Option<(u32, u64)>>,
    /// For how long the thread has not run, how often others took its CPU, and how often it waited.
    pub lost: Cell<(u64, u64, u64)>,
}

impl TestHost {
    pub fn new(policy: PolicyKind) -> Self {
        let unparked = RefCell::new(Vec::with_capacity(1000));
        Self {
            workers: Workers::new(machine(), policy),
            now: Cell::default(),
            unparked,
            waited_until: Cell::default(),
            comes: Cell::default(),
            lost: Cell::default(),
        }
    }

    /// The workers that the core has unparked since the last call.
    pub fn unparked(&self) -> Vec<CpuId> {
        self.unparked.take()
    }

    /// The worker has no task and parks.
    pub fn park(&self, core: &Core<Self>) {
        core.search(self);
        assert!(matches!(core.next(self), Next::Park(_)), "{} has a task", core.me());
    }

    /// The worker's thread runs again after a park.
    pub fn wake(&self, core: &Core<Self>) {
        core.unparked(self);
        core.resume(self);
    }

    /// The worker polls the next task, after its maintenance if that is due.
    pub fn poll_next(&self, core: &Core<Self>) {
        let mut next = core.next(self);
        if matches!(next, Next::Maintain) {
            core.maintained(self);
            next = core.next(self);
        }
        let Next::Run(queued) = next else { panic!("no task for {}", core.me()) };
        core.begin_poll(self, &queued.task);
        core.end_poll(false);
    }
}

#[derive(Debug)]
pub struct TestTask(Rc<(u32, u64, TaskState)>);

impl Task for TestTask {
    fn state(&self) -> &TaskState {
        &self.0.2
    }

    /// Tasks of one thousand are of one kind.
    fn kind(&self) -> usize {
        1 + self.0.0 as usize / 1000
    }

    fn share(&self) -> Share {
        match self.0.1 {
            0 => Share::NO_TENANT,
            tenant => Share { tenant, weight: 100 * tenant as u32 },
        }
    }
}

/// An inbox for one thread.
pub struct TestInbox {
    tasks: RefCell<VecDeque<TestTask>>,
    is_parked: Cell<bool>,
}

impl Default for TestInbox {
    fn default() -> Self {
        let tasks = RefCell::new(VecDeque::with_capacity(2 * TASKS as usize));
        Self { tasks, is_parked: Cell::new(false) }
    }
}

impl Inbox<TestTask> for TestInbox {
    fn push(&self, task: TestTask) -> Result<bool, TestTask> {
        self.tasks.borrow_mut().push_back(task);
        Ok(self.is_parked.take())
    }

    fn take(&self, each: impl FnMut(TestTask)) {
        self.tasks.borrow_mut().drain(..).for_each(each);
    }

    fn has_tasks(&self) -> bool {
        !self.tasks.borrow().is_empty()
    }

    fn try_park(&self) -> bool {
        let may = !self.has_tasks() && !self.is_parked.get();
        self.is_parked.set(self.is_parked.get() || may);
        may
    }

    fn try_unpark(&self) -> bool {
        self.is_parked.take()
    }

    fn is_parked(&self) -> bool {
        self.is_parked.get()
    }

    fn close(&self, each: impl FnMut(TestTask)) {
        self.take(each);
    }
}

impl Host for TestHost {
    type Task = TestTask;
    type Inbox = TestInbox;
    type Ring = LockedRing<TestTask>;
    type Policy = PolicyKind;

    fn workers(&self) -> &Workers<Self> {
        &self.workers
    }

    fn now(&self, _worker: CpuId) -> Nanos {
        self.now.get()
    }

    fn unpark(&self, worker: CpuId) {
        self.unparked.borrow_mut().push(worker);
    }

    fn wait_awake(&self, time: Nanos, is_over: &dyn Fn() -> bool) {
        assert!(!is_over(), "a worker with a task does not wait");
        let until = Nanos(self.now.get().0 + time.0);
        self.waited_until.set(Some(until));
        let now = self.now.replace(until).0;
        if let Some((number, after)) = self.comes.get()
            && now + after < until.0
        {
            self.comes.set(None);
            self.now.set(Nanos(now + after));
            self.workers.schedule_external(self, self.task(number, Allowed::Anywhere, 0), None);
            assert!(is_over());
        }
    }

    fn cancel(&self, _task: TestTask) {}

    fn thread_usage(&self, _worker: CpuId) -> Option<ThreadUsage> {
        let (lost, preempted, waited) = self.lost.get();
        Some(ThreadUsage { cpu: Nanos(self.now.get().0 - lost), preempted, waited })
    }

    fn found_long_poll(&self, core: &Core<Self>) {
        core.count_long_poll(self);
    }
}

impl Scripted for TestHost {
    fn task(&self, number: u32, allowed: Allowed, tenant: u64) -> TestTask {
        TestTask(Rc::new((number, tenant, TaskState::new(allowed))))
    }

    fn number(task: &TestTask) -> u32 {
        task.0.0
    }

    fn set_clock(&self, now: Nanos) {
        self.now.set(now);
    }

    fn drain_unparked(&self, mut each: impl FnMut(CpuId)) {
        self.unparked.borrow_mut().drain(..).for_each(&mut each);
    }
}
