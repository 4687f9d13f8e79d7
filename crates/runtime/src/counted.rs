//! The clock of `cargo xtask instructions`: it counts polls.
//!
//! Under Valgrind a program runs 50 times slower. A worker that reads the real clock there asks its driver every 30
//! polls, and every 512 natively; how often changes from run to run. With this clock a poll takes as long as a poll of
//! a task that only wakes another, whatever the machine does, and the same work is the same instructions each time.
//!
//! Nothing is added to a poll: the time is computed from the number of polls that the worker publishes anyway.
//! Compiled only with the feature `counted-clock`, which is for that bench alone.

use crate::context;
use crate::sync::Ordering::*;
use std::sync::atomic::AtomicU64;
use warmcore_types::Nanos;

/// A poll with its wake, without what the future does, takes 80 to 200 ns where `benches/poll.rs` was run.
const POLL_NS: u64 = 200;

/// The clock moves on by so much each time it is read, so that no poll takes no time at all.
const READ_NS: u64 = 100;

/// Not 0, which says in several places that there is no time.
const START_NS: u64 = 1_000_000_000;

/// How often the clock was read. Written without a lock, which would be counted: the bench has one worker, and if another
/// thread reads the clock at the same moment the two reads count as one.
static READS: AtomicU64 = AtomicU64::new(0);

/// The time on the current thread: of a worker's by its polls, of another's by reads alone.
pub(crate) fn now() -> Nanos {
    // A worker counts each poll twice.
    let polls = context::with_worker(|worker| {
        worker.map_or(0, |worker| worker.remote().status.poll_seq.load(Relaxed) / 2)
    });
    let reads = READS.load(Relaxed);
    READS.store(reads + 1, Relaxed);
    Nanos(START_NS + polls * POLL_NS + reads * READ_NS)
}
