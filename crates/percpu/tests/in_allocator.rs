//! A global allocator that counts its calls in static counters: the first add of each counter comes from inside an
//! allocation. The only test of its file.
#![cfg(target_os = "linux")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use warmcore_percpu::{Counter, Gauge, PerCpu};

static CALLS: Counter = Counter::new();
static BYTES: Gauge = Gauge::new();
static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static CALLS_BESIDE: AtomicU64 = AtomicU64::new(0);
static BYTES_BESIDE: AtomicU64 = AtomicU64::new(0);

struct Counting;

fn count(bytes: i64, calls: u64) {
    if IS_COUNTING.load(SeqCst) {
        CALLS.add(calls);
        BYTES.add(bytes);
        CALLS_BESIDE.fetch_add(calls, SeqCst);
        BYTES_BESIDE.fetch_add(bytes as u64, SeqCst);
    }
}

// SAFETY: forwards to `System`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64, 1);
        // SAFETY: the caller guarantees it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64), 0);
        // SAFETY: the caller guarantees it.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOC: Counting = Counting;

#[test]
fn an_allocator_counts_in_counters_from_its_first_call_on() {
    // A hang would be inside the allocator, where the test harness could not report it.
    // SAFETY: no memory; `SIGALRM` ends the process.
    unsafe { libc::alarm(60) };
    IS_COUNTING.store(true, SeqCst);
    // The first add of each counter is inside an allocation. The first add of `CALLS` allocates memory itself, and
    // these nested allocations add to both counters before it returns.
    let slots: Vec<PerCpu<u64>> = (0..300).map(|_| PerCpu::new()).collect();
    let threads: Vec<_> = (0..4).map(|n| std::thread::spawn(move || vec![n; 1000].len())).collect();
    let allocated: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    drop(slots);
    IS_COUNTING.store(false, SeqCst);
    assert_eq!(allocated, 4000);
    assert!(CALLS.sum() > 10);
    assert_eq!((CALLS.sum(), CALLS.snapshot()), (CALLS_BESIDE.load(SeqCst), CALLS_BESIDE.load(SeqCst)));
    assert_eq!(
        (BYTES.sum() as u64, BYTES.snapshot() as u64),
        (BYTES_BESIDE.load(SeqCst), BYTES_BESIDE.load(SeqCst))
    );
    // SAFETY: as above.
    unsafe { libc::alarm(0) };
}
