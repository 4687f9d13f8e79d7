//! Self-test: whether this kernel really restarts a disturbed section.
//!
//! Model.   Two threads on one CPU add to one slot through a section that is longer than the
//!          other's naps: each waking preempts it. With restarts the sum is exact and aborts are
//!          seen; a kernel that misses an abort loses an update.
//! Number.  About 20 aborts in 5 to 40 ms; after 100 ms as many as there were must do, and one is
//!          the least. A kernel that misses one abort in a hundred may pass.
//! Source.  Linux 6.19–7.0 on arm64 missed aborts on the same core; version numbers can't tell,
//!          since fixes are backported. So the kernel at hand is asked.

use super::{PercpuMode, RseqArea, Unavailable, aborts, register_thread, section};
use crate::{affinity, map::Region};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How many aborts make a verdict.
const ABORTS_WANTED: u64 = 20;

/// How long to wait for them. A machine that is this busy gets the safe backend.
const GIVE_UP_AFTER: Duration = Duration::from_millis(100);

/// About 50 µs: shorter than a nap of the other thread, longer than a switch to it.
const SPINS: u64 = 100_000;

/// A page per CPU: wide enough for every id.
const SHIFT: u32 = 12;

/// Runs the test on the CPU that the caller is on. `slots` is the number of possible ids.
pub fn selftest(slots: usize) -> Result<(), Unavailable> {
    let region = Region::reserve(slots << SHIFT)
        .map_err(|e| Unavailable(format!("no rseq: its self-test got no memory: {e}")))?;
    let active = AtomicPtr::new(region.start().as_ptr());
    let (done, before) = (AtomicBool::new(false), aborts());
    let (cpu, began) = (affinity::current_cpu(), Instant::now());

    let adder = &|naps: bool| {
        let mut added = 0;
        // An unpinned pair still tells, if the two happen to meet; without aborts there is no verdict.
        let _ = affinity::pin(cpu);
        let area = register_thread().then(|| RseqArea::lookup(PercpuMode::Cpu)).flatten()?;
        while !done.load(Relaxed) {
            // SAFETY: the region has a page for every possible CPU, and only this test knows it.
            added += u64::from(unsafe { section::add_delayed::<SHIFT>(area, &active, 1, SPINS, true) });
            if naps {
                std::thread::sleep(Duration::from_micros(20));
            }
            if aborts() - before >= ABORTS_WANTED || began.elapsed() > GIVE_UP_AFTER {
                done.store(true, Relaxed);
            }
        }
        Some(added)
    };
    let added: Result<Option<u64>, std::io::Error> = std::thread::scope(|scope| {
        let start = |naps| std::thread::Builder::new().spawn_scoped(scope, move || adder(naps));
        let threads = [start(false), start(true)];
        if threads.iter().any(Result::is_err) {
            done.store(true, Relaxed);
        }
        threads.into_iter().map(|thread| Ok(thread?.join().ok().flatten())).sum()
    });

    let slot_word = |slot: usize| {
        // SAFETY: inside the region; both threads are joined.
        unsafe { region.start().add(slot << SHIFT).cast::<AtomicU64>().as_ref() }.load(Relaxed)
    };
    let (kept, seen) = ((0..slots).map(slot_word).sum::<u64>(), aborts() - before);
    match added {
        Err(error) => Err(Unavailable(format!("no rseq: threads for its self-test could not be started: {error}"))),
        Ok(None) => Err(Unavailable("no rseq: threads of this process get no registered area; see `warmcore doctor`".into())),
        Ok(Some(added)) if kept != added => Err(Unavailable(format!(
            "no rseq: kernel {} loses updates, its self-test kept {kept} of {added} adds; \
             a kernel with the fix restores the fast backend",
            crate::platform::kernel()
        ))),
        Ok(Some(_)) if seen == 0 => Err(Unavailable(
            "no rseq: its self-test was never preempted in 100 ms, so nothing is proved; try again on a quieter machine".into(),
        )),
        Ok(Some(_)) => Ok(()),
    }
}
