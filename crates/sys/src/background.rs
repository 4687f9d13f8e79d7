//! A background thread that repeats a task as long as the task is needed.
//!
//! [`Background::ensure`] starts the thread unless it runs; the thread ends when [`Task::is_needed`] returns false, and
//! the next `ensure` starts another. The thread blocks all signals, and gives itself the CPUs of the process's first
//! thread if the system allows it: the thread that called `ensure` may be bound to one CPU.
//!
//! Locks: the lock `is_running` is held while `is_needed` and `wait_at_most` run and while the thread is started. It is
//! not held while `round` and `between` run.

use crate::{affinity, signals};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use warmcore_types::ignore_poison;

/// What a [`Background`] thread does.
pub trait Task: Sync {
    /// Whether the thread continues. If not, it ends.
    fn is_needed(&self) -> bool;

    /// Called when a period has passed since the thread started, since the last return of `round`, or since a method of
    /// this trait panicked. The panic hook reports a panic, and the thread continues.
    fn round(&self);

    /// The longest wait before [`between`](Self::between) is called, if no round is due earlier. With `None` the thread
    /// waits until the next round is due, until [`Background::notify`], or until a spurious wake.
    fn wait_at_most(&self) -> Option<Duration> {
        None
    }

    /// Called after a wait, if no round is due yet. `timed_out` is true if the wait took
    /// [`wait_at_most`](Self::wait_at_most), and false if [`Background::notify`] or a spurious wake ended it.
    fn between(&self, timed_out: bool) {
        let _ = timed_out;
    }
}

/// A thread that runs a [`Task`], for a `static`.
#[derive(Debug)]
pub struct Background<T> {
    task: T,
    name: &'static str,
    stack_bytes: usize,
    period: Duration,
    is_running: Mutex<bool>,
    changed: Condvar,
}

impl<T: Task> Background<T> {
    /// Makes the value without starting the thread.
    pub const fn new(task: T, name: &'static str, stack_bytes: usize, period: Duration) -> Self {
        Self { task, name, stack_bytes, period, is_running: Mutex::new(false), changed: Condvar::new() }
    }

    /// Starts the thread unless it runs. If the system cannot start a thread, the next call tries again.
    pub fn ensure(&'static self) {
        let mut is_running = ignore_poison(self.is_running.lock());
        if !*is_running {
            let thread = std::thread::Builder::new().name(self.name.to_owned()).stack_size(self.stack_bytes);
            *is_running = signals::blocked(|| thread.spawn(|| self.run())).is_ok();
        }
    }

    /// Ends the thread's present wait, so that it calls `between` (or `round`, if that is due) and then `is_needed`.
    /// Takes no lock, so a call just before the thread begins to wait has no effect.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    fn run(&self) {
        if let Ok(cpus) = affinity::allowed_to_main() {
            let _ = affinity::set_allowed(&cpus);
        }
        // The panic's payload is forgotten, because its destructor may panic.
        while catch_unwind(AssertUnwindSafe(|| self.rounds())).map_err(std::mem::forget).is_err() {}
    }

    /// Runs rounds until the task is not needed. The first is due one period after this call.
    fn rounds(&self) {
        let mut due = Instant::now() + self.period;
        let mut is_running = ignore_poison(self.is_running.lock());
        loop {
            if !self.task.is_needed() {
                *is_running = false;
                return;
            }
            let rest = due.saturating_duration_since(Instant::now());
            let wait = self.task.wait_at_most().map_or(rest, |most| rest.min(most));
            let (guard, timeout) = ignore_poison(self.changed.wait_timeout(is_running, wait));
            drop(guard);
            if Instant::now() >= due {
                self.task.round();
                // The next round is one period from now, not one period after the last round was due. A late round is
                // harmless. But a task may take back what was not used since its last round, and a round right after
                // another would take too much.
                due = Instant::now() + self.period;
            } else {
                self.task.between(timeout.timed_out());
            }
            is_running = ignore_poison(self.is_running.lock());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    /// A task that panics in every round.
    struct Panics {
        rounds: AtomicU32,
        is_needed: AtomicBool,
    }

    impl Task for Panics {
        fn is_needed(&self) -> bool {
            self.is_needed.load(Relaxed)
        }

        fn round(&self) {
            self.rounds.fetch_add(1, Relaxed);
            panic!("in a round, as the test wants it");
        }
    }

    #[test]
    fn a_thread_survives_panics_ends_when_it_is_not_needed_and_starts_again() {
        static THREAD: Background<Panics> = Background::new(
            Panics { rounds: AtomicU32::new(0), is_needed: AtomicBool::new(true) },
            "rounds",
            128 << 10,
            Duration::from_millis(1),
        );
        let task = &THREAD.task;
        for until in [3, 6] {
            task.is_needed.store(true, Relaxed);
            THREAD.ensure();
            while task.rounds.load(Relaxed) < until {
                std::thread::yield_now();
            }
            task.is_needed.store(false, Relaxed);
            THREAD.notify();
            while *ignore_poison(THREAD.is_running.lock()) {
                std::thread::yield_now();
            }
        }
    }
}
