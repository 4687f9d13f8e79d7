//! RuntimeMetrics: the numbers of a runtime under tokio's names.

use super::Scheduler;
use std::time::Duration;

#[cfg(tokio_unstable)]
mod unstable;

/// The numbers of a runtime, which may have ended.
///
/// Of Warmcore's runtimes each number is read when its function is called. [`warmcore_runtime::RuntimeMetrics`] has
/// more.
#[derive(Debug, Clone)]
pub struct RuntimeMetrics {
    scheduler: Scheduler,
}

impl RuntimeMetrics {
    pub(crate) fn of(scheduler: Scheduler) -> Self {
        Self { scheduler }
    }

    /// Returns the number of workers.
    pub fn num_workers(&self) -> usize {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.handle.num_workers(),
            Scheduler::Tokio(handle) => handle.metrics().num_workers(),
        }
    }

    /// Returns how many tasks have not ended.
    pub fn num_alive_tasks(&self) -> usize {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.handle.num_alive_tasks(),
            Scheduler::Tokio(handle) => handle.metrics().num_alive_tasks(),
        }
    }

    /// Returns how many tasks wait in queues that no worker owns. Warmcore has one for each last-level cache. Most tasks
    /// that a thread outside of the runtime spawns wait in the inbox of a worker instead, and are not counted here.
    pub fn global_queue_depth(&self) -> usize {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.handle.injection_queue_depth(),
            Scheduler::Tokio(handle) => handle.metrics().global_queue_depth(),
        }
    }
}

#[cfg(target_has_atomic = "64")]
impl RuntimeMetrics {
    /// Returns how long the worker was busy. Of Warmcore's workers it is the CPU time of the worker's threads.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn worker_total_busy_duration(&self, worker: usize) -> Duration {
        match &self.scheduler {
            Scheduler::Warm(warm) => Duration::from_nanos(warm.handle.metrics().workers[worker].busy_ns),
            Scheduler::Tokio(handle) => handle.metrics().worker_total_busy_duration(worker),
        }
    }

    /// Returns how often the worker parked.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn worker_park_count(&self, worker: usize) -> u64 {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.handle.metrics().workers[worker].stats.parks,
            Scheduler::Tokio(handle) => handle.metrics().worker_park_count(worker),
        }
    }

    /// Returns how often the worker parked and was unparked together: an odd number if it is parked.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn worker_park_unpark_count(&self, worker: usize) -> u64 {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.handle.metrics().workers[worker].park_unpark_count,
            Scheduler::Tokio(handle) => handle.metrics().worker_park_unpark_count(worker),
        }
    }
}
