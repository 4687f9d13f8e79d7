//! Counters: what each worker has done so far.
//!
//! The worker adds to its own counters by a load and a store, which takes 1 ns. Other threads add to `unparks`,
//! `stolen_tasks` and `hot_*` by atomic additions. A reader gets each counter as it was at some moment during the read.
//! The runtime's reader computes `polls` and `same_worker`, and adds the park that goes on to `parked_ns`.

use crate::sync::{AtomicU64, Ordering::*};
use warmcore_line::{Line, Padded};

macro_rules! stats {
    (
        worker { $($(#[doc = $doc:literal])* $name:ident,)* }
        anyone { $($(#[doc = $doc_of_anyone:literal])* $anyones:ident,)* }
    ) => {
        /// One worker's counters. The counters that the worker writes come first; they share no cache line with the
        /// others.
        #[derive(Debug, Default, Line)]
        #[line(pair)]
        #[repr(C, align(128))]
        pub struct Counters {
            $($(#[doc = $doc])* #[line(owner = "worker")] pub $name: AtomicU64,)*
            // It takes no space; its alignment moves the next field to a new line.
            #[line(contended)]
            begin_anyone: [Padded<()>; 0],
            $($(#[doc = $doc_of_anyone])* #[line(contended)] pub $anyones: AtomicU64,)*
        }

        stats! { read $($(#[doc = $doc])* $name,)* $($(#[doc = $doc_of_anyone])* $anyones,)* }
    };
    (read $($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// The values of one worker's counters.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
        #[non_exhaustive]
        pub struct WorkerStats {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The values at some moment during the call.
            pub fn read(&self) -> WorkerStats {
                WorkerStats { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl WorkerStats {
            /// The names of the counters, as in JSON.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// The counters, in the order of the names.
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$name),*]
            }
        }

        impl std::ops::AddAssign for WorkerStats {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

stats! {
    worker {
        /// Polls.
        polls,
        /// Polls of tasks that this worker polled last.
        same_worker,
        /// Polls of tasks that another worker of the same last-level cache polled last.
        same_llc,
        /// Polls of tasks that were polled last on another last-level cache of the same node.
        other_llc,
        /// Polls of tasks that were polled last on another node.
        other_node,
        /// First polls of tasks.
        first_polls,
        /// Wakes on the worker's thread, by tasks or its driver, that put a task into another worker's inbox or
        /// into an injection queue.
        remote_wakes,
        /// Times that the worker had no task and took tasks from another queue.
        steal_operations,
        /// Tasks that the worker took from a neighbour while it had tasks itself, because they were polled less
        /// often there, their tenant was behind, or the neighbour stood still.
        balanced,
        /// Times that the worker parked.
        parks,
        /// Time that the worker was parked in its driver, in ns. Tasks of `tokio::spawn` run there, so their run time
        /// is included: see `WorkerMetrics::busy_ns`.
        parked_ns,
        /// Times that the worker served sockets and timers without parking.
        event_polls,
        /// Polls found to have taken longer than the threshold. Several that were not measured may count as one.
        long_polls,
    }
    anyone {
        /// Times that another thread unparked the worker.
        unparks,
        /// Tasks that other workers took from this one.
        stolen_tasks,
        /// Idle workers that were passed over, because each was kept for a task that sleeps briefly, by wakes that
        /// chose this worker.
        hot_kept,
        /// Times that the idle worker was kept for a task, and another woken task went to it.
        hot_broken,
    }
}

impl Counters {
    /// Adds to a counter that only the caller writes.
    #[inline]
    pub fn add(number: &AtomicU64, n: u64) {
        number.store(number.load(Relaxed) + n, Relaxed);
    }
}
