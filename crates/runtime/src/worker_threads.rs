//! WorkerThreads: the threads that run a runtime's workers.
//!
//! `block_in_place` hands the worker to another thread before it blocks, so that the worker's queue and driver are
//! served meanwhile. When the poll that blocked has returned, its thread waits here for the next worker that is handed
//! off. There is a thread for each worker, plus about the largest number that ever blocked at the same time.

use crate::sync;
use crate::sync::threads::{Builder, Condvar, JoinHandle, Mutex, MutexGuard, current};
use std::collections::VecDeque;
use std::io;
use warmcore_line::Line;
use warmcore_types::{CpuId, ignore_poison};

/// All threads of a runtime, and those of them that wait for a worker.
#[derive(Default, Line)]
#[line(pair, default = contended)]
#[repr(align(128))]
pub(crate) struct WorkerThreads {
    state: Mutex<State>,
    condvar: Condvar,
    /// All threads, which the shutdown joins.
    pub(crate) threads: sync::Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    waiting: usize,
    workers: VecDeque<CpuId>,
    is_shutdown: bool,
}

impl WorkerThreads {
    fn state(&self) -> MutexGuard<'_, State> {
        ignore_poison(self.state.lock())
    }

    /// Gives the worker to a waiting thread. Returns false if every waiting thread is about to take another worker, or
    /// none waits.
    pub(crate) fn reuse_thread(&self, cpu: CpuId) -> bool {
        let mut state = self.state();
        let is_waiting = state.waiting > state.workers.len();
        if is_waiting {
            state.workers.push_back(cpu);
            self.condvar.notify_one();
        }
        is_waiting
    }

    /// Starts a thread, which the shutdown joins. The stack's size is in bytes; `None`: the default of `std::thread`.
    pub(crate) fn add_thread(
        &self,
        name: String,
        stack_size: Option<usize>,
        main: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        if name.contains('\0') {
            let what = format!("the name {name:?} has a NUL in it, and names of threads have none");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut thread = Builder::new().name(name);
        if let Some(bytes) = stack_size {
            thread = thread.stack_size(bytes);
        }
        let thread = thread.spawn(main)?;
        ignore_poison(self.threads.lock()).push(thread);
        Ok(())
    }

    /// Waits until a worker is handed to this thread. `None`: the runtime shuts down.
    pub(crate) fn next_worker(&self) -> Option<CpuId> {
        let mut state = self.state();
        state.waiting += 1;
        let has_to_wait = |state: &mut State| state.workers.is_empty() && !state.is_shutdown;
        state = ignore_poison(self.condvar.wait_while(state, has_to_wait));
        state.waiting -= 1;
        state.workers.pop_front()
    }

    /// Whether the current thread is one of this runtime's threads.
    pub(crate) fn is_mine(&self) -> bool {
        let me = current().id();
        ignore_poison(self.threads.lock()).iter().any(|thread| thread.thread().id() == me)
    }

    /// Ends all threads that wait, except those to which a worker has been handed.
    pub(crate) fn end(&self) {
        self.state().is_shutdown = true;
        self.condvar.notify_all();
    }
}
