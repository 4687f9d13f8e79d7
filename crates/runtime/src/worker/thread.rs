//! Thread: what a thread of the runtime runs.
//!
//! A thread runs a worker until the runtime shuts down, or until a task of it blocks in place. Then another thread, if
//! the system grants one, runs the worker, and the first one, when the poll has ended, waits in
//! [`WorkerThreads`](crate::worker_threads::WorkerThreads) for the next worker that is handed off. A hand-off costs
//! about 10 µs if a thread waits, else the start of a thread.

use super::Worker;
use crate::block;
use crate::context;
use crate::shared::Shared;
use crate::sync::Ordering::*;
use crate::thread_config::{Hook, call};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use warmcore_driver::OpBudget;
use warmcore_types::CpuId;

/// Panics outside of tasks that a worker survives on one thread. One more aborts the process.
const UNWOUND_MAX: u32 = 1000;

impl Worker {
    /// Gives the worker to another thread, because this one is going to block. False: no thread can be started, or
    /// this thread is inside the driver.
    pub(crate) fn hand_off(&self) -> bool {
        if self.core.is_in_driver() {
            // This thread is inside the driver, and the worker's park belongs to the frame below.
            return false;
        }
        self.core.read_clock(&self.shared);
        self.core.charge_slice(&self.shared, true);
        // Before the other thread starts, since it owns these numbers from then on. An even `poll_seq` says: not in a poll.
        let remote = self.core.remote();
        let polls = remote.status.poll_seq.load(Relaxed);
        remote.status.poll_seq.store(polls + 1, Relaxed);
        self.shared.workers.set_stuck(self.me(), false);
        warmcore_record::set_worker(None);
        // This thread is no worker's any more before another one is: only one may push to the ring. Until the poll ends it is a
        // thread inside the runtime, as any other; `run_thread` leaves the runtime afterwards.
        self.is_handed_off.set(true);
        context::clear_current();
        let entered = context::enter(self.shared.clone());
        if start_worker(&self.shared, self.me()).is_err() {
            drop(entered);
            std::mem::forget(context::set_current(self));
            self.is_handed_off.set(false);
            warmcore_record::set_worker(Some(self.me().index()));
            remote.status.poll_seq.store(polls, Relaxed);
            return false;
        }
        std::mem::forget(entered);
        true
    }
}

/// Runs a worker on a thread that waits for one, or on a new thread.
pub(crate) fn start_worker(shared: &Arc<Shared>, cpu: CpuId) -> io::Result<()> {
    if shared.worker_threads.reuse_thread(cpu) {
        return Ok(());
    }
    let name = match &shared.threads.name {
        Some(name) => name(),
        None => format!("{}-{}", shared.name, cpu.0),
    };
    let of = shared.clone();
    shared.worker_threads.add_thread(name, shared.threads.stack_size, move || run_thread(of, cpu))
}

/// Calls a function of the program inside the runtime, on a thread that runs no worker at that moment.
fn call_inside(shared: &Arc<Shared>, hook: &Option<Hook>) {
    if hook.is_some() {
        block::with_context(shared, || call(hook));
    }
}

/// The main function of the runtime's threads.
fn run_thread(shared: Arc<Shared>, first: CpuId) {
    context::become_a_runtimes();
    // Before the program's function, which may move the thread to other CPUs.
    shared.pin(first);
    // For the locks that other workers wait for. Most kernels have no such extension, which is no error.
    let _ = warmcore_sys::slice::enable_thread();
    call_inside(&shared, &shared.threads.on_start);
    let mut next = Some(first);
    let budget = Rc::new(OpBudget::new());
    while let Some(cpu) = next {
        let worker = Worker::new(shared.clone(), cpu, budget.clone());
        let driver = &shared.remote(cpu).driver;
        driver.begin();
        warmcore_record::set_worker(Some(cpu.index()));
        driver.block_on(&mut |_| {
            let _being = context::set_current(&worker);
            // A panic that unwinds to here came from a waker or a subscriber, not from a task. The worker goes on.
            let mut unwound = 0;
            while catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                worker.core.recover(&shared);
                unwound += 1;
                if unwound > UNWOUND_MAX {
                    eprintln!(
                        "worker {cpu} of {}: {unwound} panics outside tasks; it can't go on",
                        shared.name
                    );
                    std::process::abort();
                }
            }
            Poll::Ready(())
        });
        driver.end();
        warmcore_record::set_worker(None);
        if !worker.is_handed_off.get() {
            break;
        }
        drop(worker);
        context::exit_all();
        next = shared.worker_threads.next_worker();
        next.into_iter().for_each(|cpu| shared.pin(cpu));
    }
    call_inside(&shared, &shared.threads.on_stop);
}
