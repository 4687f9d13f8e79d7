//! The clock of `cargo xtask instructions`: it counts polls instead of time.
//!
//! Valgrind slows a program down about 50 times. With the real clock a worker would poll its driver after 30 polls
//! under Valgrind and after 640 natively, and the number would change from run to run. With this clock each poll takes
//! a fixed time, so that the same work takes the same instructions in each run.
//!
//! A poll that does not read the clock has no additional instructions: the time is computed from the number of polls,
//! which the worker publishes anyway. The module is compiled only with the feature `counted-clock`, for that bench.

use crate::context;
use crate::sync::Ordering::*;
use std::sync::atomic::AtomicU64;
use warmcore_types::Nanos;

/// Duration of a poll with its wake, without the future's own work: `benches/poll.rs` measured 80 to 200 ns.
const POLL_NS: u64 = 200;

/// The clock advances by this at each read, so that no poll takes zero time.
const READ_NS: u64 = 100;

/// Not 0, because 0 means "no time" in several fields.
const START_NS: u64 = 1_000_000_000;

/// How often the clock was read. Two reads at the same moment may count as one. An atomic addition would avoid that,
/// but the bench would count it as a locked instruction; and the bench has only one worker.
static READS: AtomicU64 = AtomicU64::new(0);

/// The time on the current thread. On a worker's thread it advances with that worker's polls and with the reads by all
/// threads, on other threads with the reads only.
pub(crate) fn now() -> Nanos {
    // A worker increments `poll_seq` twice for each poll.
    let polls = context::with_worker(|worker| {
        worker.map_or(0, |worker| worker.core.remote().status.poll_seq.load(Relaxed) / 2)
    });
    let reads = READS.load(Relaxed);
    READS.store(reads + 1, Relaxed);
    Nanos(START_NS + polls * POLL_NS + reads * READ_NS)
}
