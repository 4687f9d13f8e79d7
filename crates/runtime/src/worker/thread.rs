//! Thread: what a thread of the runtime runs, from its first worker to its last.
//!
//! A thread runs a worker until the runtime shuts down, or until a task of it blocks in place: then the worker goes on,
//! on another thread, and the first thread waits in [`WorkerThreads`](crate::worker_threads::WorkerThreads) for the
//! next worker that is handed off. To hand off costs the start of a thread, or about 10 µs if one waits.

use super::Worker;
use crate::context;
use crate::metrics::Stats;
use crate::op_budget::OpBudget;
use crate::shared::Shared;
use crate::sync::Ordering::*;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use warmcore_types::CpuId;

/// A worker that panics outside of tasks so often is broken.
const UNWOUND_MAX: u32 = 1000;

impl Worker {
    /// The thread is going to block: another goes on as this worker. False: there is none to be had.
    pub(crate) fn hand_off(&self) -> bool {
        if self.in_driver.get() {
            // The driver is held by this thread, and so is the worker's sleep.
            return false;
        }
        // Before the other begins: from then on the worker's numbers are that one's.
        Stats::add(&self.remote().status.poll_seq, 1);
        self.remote().is_stuck.store(false, Relaxed);
        if start_worker(&self.shared, self.me).is_err() {
            Stats::add(&self.remote().status.poll_seq, 1);
            return false;
        }
        self.is_handed_off.set(true);
        context::clear_current();
        // For the rest of the poll the thread is in the runtime as any other that entered it: see `run_thread`.
        std::mem::forget(context::enter(self.shared.clone()));
        true
    }
}

/// Runs a worker on a thread that waits for one, or on a new thread.
pub(crate) fn start_worker(shared: &Arc<Shared>, cpu: CpuId) -> io::Result<()> {
    if shared.worker_threads.reuse_thread(cpu) {
        return Ok(());
    }
    let name = format!("{}-{}", shared.name, cpu.0);
    let of = shared.clone();
    shared.worker_threads.add_thread(name, move || run_thread(of, cpu))
}

/// A worker's thread, from its first to its last moment.
fn run_thread(shared: Arc<Shared>, first: CpuId) {
    context::become_a_runtimes();
    let mut next = Some(first);
    let budget = Rc::new(OpBudget::new());
    while let Some(cpu) = next {
        shared.pin(cpu);
        let worker = Worker::new(shared.clone(), cpu, budget.clone());
        let driver = &shared.remote(cpu).driver;
        driver.begin();
        driver.with_context(&mut || {
            let _being = context::set_current(&worker);
            // What unwinds to here is not a task's: a waker or a subscriber of somebody else's. The worker goes on.
            let mut unwound = 0;
            while catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                worker.in_driver.set(false);
                unwound += 1;
                if unwound > UNWOUND_MAX {
                    eprintln!(
                        "worker {cpu} of {}: {unwound} panics outside tasks; it can't go on",
                        shared.name
                    );
                    std::process::abort();
                }
            }
        });
        driver.end();
        if !worker.is_handed_off.get() {
            return;
        }
        drop(worker);
        context::exit_all();
        next = shared.worker_threads.next_worker();
    }
}
