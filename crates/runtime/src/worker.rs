//! Worker: one of the runtime's workers, and the loop of its thread.
//!
//! The scheduler core decides what the worker does next ([`Core::next`]); this file does it: it polls a task, polls the
//! driver, or parks in it. `measured.rs` measures polls, `long_poll.rs` reports long ones, `thread.rs` is the thread that runs a worker. The protocol of
//! parking is in README.md, "Notes on parking".
//!
//! # Cost
//! Around a poll: what the core adds.
//!
//! The fields of `Worker` are read and written by its thread alone.

use crate::context;
use crate::header::Header;
use crate::shared::{Remote, SchedulerRef, Shared};
use crate::sync::Ordering::*;
use crate::task_cell::RunnableTask;
use crate::thread_config;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use warmcore_driver::OpBudget;
use warmcore_sched::{Core, Inbox, Next};
use warmcore_types::{CpuId, Nanos};

mod long_poll;
mod measured;
pub(crate) mod thread;

pub(crate) use long_poll::Reports;

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests;

/// A worker, as its thread has it.
pub(crate) struct Worker {
    pub(crate) core: Core<Shared>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) scheduler: Arc<SchedulerRef>,
    /// Whether another thread runs this worker now.
    is_handed_off: Cell<bool>,
    budget: Rc<OpBudget>,
    /// The task that is polled, or was polled last: for comparisons.
    polled: Cell<*const Header>,
}

impl Worker {
    fn new(shared: Arc<Shared>, me: CpuId, budget: Rc<OpBudget>) -> Self {
        Self {
            core: Core::new(&shared, me, shared.long_poll),
            scheduler: Arc::new(SchedulerRef { shared: shared.clone() }),
            shared,
            is_handed_off: Cell::new(false),
            budget,
            polled: Cell::new(std::ptr::null()),
        }
    }

    #[inline]
    pub(crate) fn me(&self) -> CpuId {
        self.core.me()
    }

    /// Whether this thread polls the task. Asked in a poll, or inside the driver; between two polls the last task counts as polled.
    pub(crate) fn is_polling(&self, task: *const Header) -> bool {
        self.polled.get() == task && !self.core.is_in_driver()
    }

    /// The runtime's part of this worker.
    pub(crate) fn remote(&self) -> &Remote {
        self.shared.remote(self.me())
    }

    /// Polls tasks until the runtime has shut down, or until another thread runs the worker.
    fn run(&self) {
        while !self.is_handed_off.get() {
            match self.core.next(&self.shared) {
                Next::Run(queued) => self.poll(queued.task),
                Next::Maintain => self.maintain(),
                Next::Search => self.core.search(&self.shared),
                Next::Park(until) => self.park(until),
                Next::Shutdown => return self.close(),
            }
        }
    }

    /// Queues a task of this runtime that was woken on this thread.
    #[inline]
    pub(crate) fn schedule(&self, task: RunnableTask, is_in_poll: bool) {
        task.header().record_wake(is_in_poll);
        self.core.schedule(&self.shared, task, is_in_poll);
    }

    #[inline]
    fn poll(&self, task: RunnableTask) {
        self.core.begin_poll(&self.shared, &task);
        self.budget.begin_poll();
        let running = task.start();
        self.polled.set(running.as_ptr());
        let measured = self.begin_measured(running.header());
        let is_ready = running.poll();
        if self.is_handed_off.get() {
            // Another thread runs the worker. This one is like any other thread inside the runtime.
            running.end(is_ready).into_iter().for_each(|task| context::schedule(task, true));
            return;
        }
        self.end_measured(running.header(), measured, is_ready);
        if is_ready {
            self.core.forget_yield();
        }
        let woken = running.end(is_ready);
        let is_awake = woken.is_some();
        if let Some(task) = woken {
            self.schedule(task, true);
            self.budget.was_woken_in_poll();
        }
        self.core.end_poll(is_awake);
    }

    /// Serves sockets and timers that are due, without waiting.
    #[cold]
    fn maintain(&self) {
        self.remote().driver.poll_events();
        self.core.set_in_driver(false);
        self.clear_stuck();
        self.core.maintained(&self.shared);
    }

    /// Parks in the driver: until a push or an unpark, or until a task may be stolen. May return without having parked. A watcher
    /// that wakes to check on the others stays marked as parked, and takes no task, unless it finds a worker stuck.
    #[cold]
    fn park(&self, until: Option<Nanos>) {
        let (core, shared, driver) = (&self.core, &*self.shared, &self.remote().driver);
        let me = core.me();
        self.budget.share();
        if !core.was_idle() {
            // The tasks that the worker polled may have spawned tasks on its driver. A worker that only woke to look
            // appoints no other, or two idle workers would wake each other for ever.
            shared.watchdog.watch_driver(shared, me);
        }
        let mut now = core.now();
        loop {
            let parked_ns = || shared.workers.remotes().map(|remote| remote.parked_ns(now)).sum();
            if let Some((idle, parked)) = shared.spare_cpus.look(now, parked_ns) {
                shared.workers.compare_idle(idle, parked);
            }
            if core.attends(shared) {
                driver.attend();
            }
            let watch = shared.watchdog.begin(shared, me, now);
            driver.park([until, watch].into_iter().flatten().min(), &|| !core.remote().inbox.is_parked());
            if watch.is_none() {
                break;
            }
            now = driver.now();
            let is_over = until.is_some_and(|until| until <= now) || !core.remote().inbox.is_parked();
            if is_over || !shared.watchdog.is_due(me, now) || shared.watchdog.check(shared, me, now) {
                break;
            }
        }
        thread_config::call(&shared.threads.on_unpark);
        core.unparked(shared);
        self.clear_stuck();
        core.resume(shared);
    }

    /// Called when the runtime has shut down and every task has ended.
    fn close(&self) {
        self.core.close(&self.shared);
        self.remote().driver.close();
        // What the driver dropped may have woken tasks here.
        self.core.cancel_queued(&self.shared);
    }
}
