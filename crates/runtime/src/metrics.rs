//! Metrics: what each worker has done, counted where it happens.
//!
//! Model.   A worker adds to its own numbers by a load and a store. Who looks gets each number as it was at some
//!          moment during the look.
//! Number.  1 ns a number.
//! Writers. `polls` to `long_polls`: the worker. `unparks`, `stolen_tasks`, `hot_*`: whoever does it.

use crate::sync::{AtomicU64, Ordering::*};
use warmcore_line::{Line, Padded};

macro_rules! stats {
    (
        worker { $($(#[doc = $doc:literal])* $name:ident,)* }
        anyone { $($(#[doc = $doc_of_anyone:literal])* $anyones:ident,)* }
    ) => {
        /// One worker's numbers: first those that it writes, on lines of their own.
        #[derive(Debug, Default, Line)]
        #[line(pair)]
        #[repr(C, align(128))]
        pub(crate) struct Stats {
            $(#[line(owner = "worker")] pub(crate) $name: AtomicU64,)*
            // Takes no place; it is aligned, and so is what follows.
            #[line(contended)]
            begin_anyone: [Padded<()>; 0],
            $(#[line(contended)] pub(crate) $anyones: AtomicU64,)*
        }

        stats! { read $($(#[doc = $doc])* $name,)* $($(#[doc = $doc_of_anyone])* $anyones,)* }
    };
    (read $($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// What one worker has done so far.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct WorkerStats {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Stats {
            pub(crate) fn read(&self) -> WorkerStats {
                WorkerStats { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl WorkerStats {
            /// The names, as in metrics.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// The numbers, in the order of the names.
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
        /// Tasks polled.
        polls,
        /// Polls on the worker that polled the task last.
        same_worker,
        /// Polls on another worker of the same last-level cache.
        same_llc,
        /// Polls on another last-level cache of the same node.
        other_llc,
        /// Polls on another node.
        other_node,
        /// First polls.
        first_polls,
        /// Wakes by its tasks that went to another worker's queue.
        remote_wakes,
        /// Times that it found work elsewhere.
        steal_operations,
        /// Tasks that it took from a neighbour that had more to do.
        balanced,
        /// Times that it slept.
        parks,
        /// Nanoseconds that it was parked in its driver, where tasks of `tokio::spawn` run: see
        /// [`WorkerMetrics::busy_ns`].
        parked_ns,
        /// Times that it asked its driver without sleeping.
        event_polls,
        /// Polls that took longer than the runtime's limit.
        long_polls,
    }
    anyone {
        /// Times that it was woken by somebody.
        unparks,
        /// Tasks that others took from it.
        stolen_tasks,
        /// Times that it was idle, and passed over because it was kept for a task.
        hot_kept,
        /// Times that it was given to another task than the one it was kept for.
        hot_broken,
    }
}

impl Stats {
    /// Adds to a number that only the caller writes.
    #[inline]
    pub(crate) fn add(number: &AtomicU64, n: u64) {
        number.store(number.load(Relaxed) + n, Relaxed);
    }
}
