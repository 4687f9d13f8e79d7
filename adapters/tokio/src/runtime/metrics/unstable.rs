//! The numbers that tokio does not promise to keep.
//!
//! What Warmcore does not count is 0 on its runtimes, a histogram is off, and the function's documentation says so.

use super::RuntimeMetrics;
use crate::runtime::Scheduler;
use std::ops::Range;
use std::thread::ThreadId;
use std::time::Duration;
use warmcore_runtime::WorkerMetrics;

impl RuntimeMetrics {
    /// The numbers of one of Warmcore's workers, or `tokio` of tokio's runtime.
    #[track_caller]
    fn worker<R>(
        &self,
        worker: usize,
        warm: impl FnOnce(&WorkerMetrics) -> R,
        tokio: impl FnOnce(real::runtime::RuntimeMetrics) -> R,
    ) -> R {
        match &self.scheduler {
            Scheduler::Warm(runtime) => warm(&runtime.handle.metrics().workers[worker]),
            Scheduler::Tokio(handle) => tokio(handle.metrics()),
        }
    }

    /// The numbers of the pool of `spawn_blocking`.
    fn pool(&self) -> real::runtime::RuntimeMetrics {
        match &self.scheduler {
            Scheduler::Warm(runtime) => runtime.blocking().metrics(),
            Scheduler::Tokio(handle) => handle.metrics(),
        }
    }

    /// Returns how many threads the pool of `spawn_blocking` has.
    pub fn num_blocking_threads(&self) -> usize {
        self.pool().num_blocking_threads()
    }

    /// Returns how many threads of the pool of `spawn_blocking` wait for a closure.
    pub fn num_idle_blocking_threads(&self) -> usize {
        self.pool().num_idle_blocking_threads()
    }

    /// Returns how many closures of `spawn_blocking` wait for a thread.
    pub fn blocking_queue_depth(&self) -> usize {
        self.pool().blocking_queue_depth()
    }

    /// The old name of [`num_alive_tasks`](Self::num_alive_tasks).
    #[deprecated = "use `num_alive_tasks`"]
    #[doc(hidden)]
    pub fn active_tasks_count(&self) -> usize {
        self.num_alive_tasks()
    }

    /// The old name of [`global_queue_depth`](Self::global_queue_depth).
    #[deprecated = "use `global_queue_depth`"]
    #[doc(hidden)]
    pub fn injection_queue_depth(&self) -> usize {
        self.global_queue_depth()
    }

    /// Returns how many tasks wait in the worker's queue.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn worker_local_queue_depth(&self, worker: usize) -> usize {
        self.worker(
            worker,
            |worker| worker.local_queue_depth as usize,
            |metrics| metrics.worker_local_queue_depth(worker),
        )
    }

    /// Returns the thread that runs the worker. `None` for Warmcore's workers, whose threads change.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn worker_thread_id(&self, worker: usize) -> Option<ThreadId> {
        self.worker(worker, |_| None, |metrics| metrics.worker_thread_id(worker))
    }
}

#[cfg(target_has_atomic = "64")]
impl RuntimeMetrics {
    /// Returns how many tasks were spawned. A task of Warmcore's runtimes counts from its first poll.
    pub fn spawned_tasks_count(&self) -> u64 {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.handle.metrics().total().first_polls,
            Scheduler::Tokio(handle) => handle.metrics().spawned_tasks_count(),
        }
    }

    /// Returns how many tasks were spawned or woken by threads that are not workers of the runtime.
    pub fn remote_schedule_count(&self) -> u64 {
        match &self.scheduler {
            Scheduler::Warm(warm) => warm.handle.metrics().remote_schedules,
            Scheduler::Tokio(handle) => handle.metrics().remote_schedule_count(),
        }
    }

    /// Returns how many polls the worker made.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn worker_poll_count(&self, worker: usize) -> u64 {
        self.worker(worker, |worker| worker.stats.polls, |metrics| metrics.worker_poll_count(worker))
    }

    /// Returns how long a poll on the worker takes on average.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn worker_mean_poll_time(&self, worker: usize) -> Duration {
        self.worker(
            worker,
            |worker| Duration::from_nanos(worker.mean_poll_ns.into()),
            |metrics| metrics.worker_mean_poll_time(worker),
        )
    }

    /// Returns how many tasks the worker stole. Of Warmcore's workers it is how many were stolen from the worker, so that
    /// the sum over all workers is the same.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn worker_steal_count(&self, worker: usize) -> u64 {
        self.worker(worker, |worker| worker.stats.stolen_tasks, |metrics| metrics.worker_steal_count(worker))
    }

    /// Returns how often the worker stole tasks.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn worker_steal_operations(&self, worker: usize) -> u64 {
        let of_tokio = |metrics: real::runtime::RuntimeMetrics| metrics.worker_steal_operations(worker);
        self.worker(worker, |worker| worker.stats.steal_operations, of_tokio)
    }
}

/// Numbers that only tokio's runtimes have.
macro_rules! tokios {
    ($($(#[$meta:meta])* $name:ident($($argument:ident),*) -> $of:ty;)*) => {
        impl RuntimeMetrics {$(
            $(#[$meta])*
            #[allow(deprecated, reason = "it calls tokio's function of the same name")]
            pub fn $name(&self $(, $argument: usize)*) -> $of {
                match &self.scheduler {
                    Scheduler::Warm(_) => Default::default(),
                    Scheduler::Tokio(handle) => handle.metrics().$name($($argument),*),
                }
            }
        )*}
    };
}

tokios! {
    /// Whether the histogram of polls is on. Warmcore's runtimes have none.
    poll_time_histogram_enabled() -> bool;
    /// The old name of `poll_time_histogram_enabled`.
    #[deprecated = "use `poll_time_histogram_enabled`"]
    #[doc(hidden)]
    poll_count_histogram_enabled() -> bool;
    /// Returns the number of the histogram's buckets. 0 for Warmcore's runtimes.
    poll_time_histogram_num_buckets() -> usize;
    /// The old name of `poll_time_histogram_num_buckets`.
    #[deprecated = "use `poll_time_histogram_num_buckets`"]
    #[doc(hidden)]
    poll_count_histogram_num_buckets() -> usize;
    /// Returns which durations a bucket counts. None for Warmcore's runtimes.
    poll_time_histogram_bucket_range(bucket) -> Range<Duration>;
    /// The old name of `poll_time_histogram_bucket_range`.
    #[deprecated = "use `poll_time_histogram_bucket_range`"]
    #[doc(hidden)]
    poll_count_histogram_bucket_range(bucket) -> Range<Duration>;
}

#[cfg(target_has_atomic = "64")]
tokios! {
    /// Returns how many polls of the worker are in a bucket. 0 for Warmcore's workers.
    poll_time_histogram_bucket_count(worker, bucket) -> u64;
    /// The old name of `poll_time_histogram_bucket_count`.
    #[deprecated = "use `poll_time_histogram_bucket_count`"]
    #[doc(hidden)]
    poll_count_histogram_bucket_count(worker, bucket) -> u64;
    /// Returns how often tasks used up their budget of operations. 0 for Warmcore's runtimes.
    budget_forced_yield_count() -> u64;
    /// Returns how often the worker was unparked and found no task. 0 for Warmcore's workers.
    worker_noop_count(worker) -> u64;
    /// Returns how many tasks the worker's thread spawned or woke. 0 for Warmcore's workers.
    worker_local_schedule_count(worker) -> u64;
    /// Returns how often the worker's queue was full. 0 for Warmcore's workers, whose queues grow.
    worker_overflow_count(worker) -> u64;
}

#[cfg(all(tokio_1_53, feature = "schedule-latency"))]
tokios! {
    /// Whether the histogram of the time between a wake and a poll is on. Warmcore's runtimes have none.
    schedule_latency_histogram_enabled() -> bool;
    /// Returns the number of that histogram's buckets. 0 for Warmcore's runtimes.
    schedule_latency_histogram_num_buckets() -> usize;
    /// Returns which durations a bucket of that histogram counts. None for Warmcore's runtimes.
    schedule_latency_histogram_bucket_range(bucket) -> Range<Duration>;
    /// Returns how many polls of the worker are in a bucket of that histogram. 0 for Warmcore's workers.
    schedule_latency_histogram_bucket_count(worker, bucket) -> u64;
}

#[cfg(all(target_has_atomic = "64", feature = "net"))]
tokios! {
    /// Returns how many descriptors were registered with the driver. 0 for Warmcore's runtimes.
    io_driver_fd_registered_count() -> u64;
    /// Returns how many descriptors were deregistered. 0 for Warmcore's runtimes.
    io_driver_fd_deregistered_count() -> u64;
    /// Returns how many events the driver got. 0 for Warmcore's runtimes.
    io_driver_ready_count() -> u64;
}
