//! Self-test: whether this kernel aborts sections that are interrupted.
//!
//! Two threads, pinned to one CPU, add to that CPU's slot in sections of 50 µs. One of them sleeps 20 µs after each
//! add. When it wakes, it mostly preempts the other thread, which is nearly always inside a section. If the kernel
//! aborts that section, the sum is exact and the abort is counted. If it does not, an add may be lost.
//!
//! The test ends after 20 aborts, which mostly takes 5 to 40 ms, or else after 100 ms. It fails if an add was lost or
//! if there was no abort. A kernel that misses one abort of a hundred may pass.
//!
//! Source. Linux 6.19 to 7.0 on arm64 missed aborts. The version number does not show whether a kernel is affected,
//! since fixes are backported.

use super::{PercpuMode, RseqArea, Unavailable, aborts, register_thread, section};
use crate::{affinity, map::Region};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The number of aborts after which the test ends.
const ABORTS_WANTED: u64 = 20;

/// The time after which the test ends with fewer aborts. Without any abort the result is an error.
const GIVE_UP_AFTER: Duration = Duration::from_millis(100);

/// The number of spins in a section: about 50 µs.
const SPINS: u64 = 100_000;

/// A slot of 4 KiB per CPU.
const SHIFT: u32 = 12;

/// Runs the test on the current CPU. `slots` is above every possible CPU number.
pub fn selftest(slots: usize) -> Result<(), Unavailable> {
    let region = Region::reserve(slots << SHIFT)
        .map_err(|e| Unavailable(format!("no rseq: its self-test got no memory: {e}")))?;
    let active = AtomicPtr::new(region.start().as_ptr());
    let (done, before) = (AtomicBool::new(false), aborts());
    let (cpu, began) = (affinity::current_cpu(), Instant::now());

    let adder = &|naps: bool| {
        let mut added = 0;
        // If pinning fails, the two threads may still run on one CPU. If they do not, there may be no abort, and then
        // the result is an error.
        let _ = affinity::pin(cpu);
        let area = register_thread().then(|| RseqArea::lookup(PercpuMode::Cpu)).flatten()?;
        while !done.load(Relaxed) {
            // SAFETY: the region has a slot for every possible CPU, and only this test uses it.
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
