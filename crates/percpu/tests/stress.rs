//! Tests of operations under signals, preemption and migration, on every backend. `cargo xtask test --full` runs
//! this with `WARMCORE_PERCPU` unset, `rseq`, `atomic` and `plain`, and with lengthened sections (feature
//! `delay`).
//!
//! The negative control `sys::rseq::tests::a_section_that_is_never_armed_loses_updates` shows that a broken section
//! fails under the same conditions.
#![cfg(not(loom))]

use bytemuck::Zeroable;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use warmcore_percpu::{Backend, Counter, FreeList, Gauge, LocalU64, PerCid, PerCpu, backend, field};
use warmcore_sys::{affinity, rseq};

/// Operations of the long test. Debug builds run a fifth, since each operation costs many times more there.
const OPERATIONS: u64 = if cfg!(debug_assertions) { 20_000_000 } else { 100_000_000 };
const THREADS: u64 = 8;
/// The time between two signals and moves of a thread.
const EVERY: Duration = Duration::from_millis(1);

fn lengthen_sections() {
    // This lengthens a section to about 20 ns, forty times its normal length. 10⁸ sections still take only
    // seconds.
    #[cfg(feature = "delay")]
    rseq::section::DELAY_SPINS.store(60, Relaxed);
}

/// Runs the tests of this file one after the other, since they count the signals and aborts of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on threads that are signalled and moved every millisecond. On the `rseq` backend it repeats that until a
/// section was aborted, and panics if none was in `ROUNDS_MAX` rounds, because then nothing was tested. Returns the
/// number of rounds.
fn disturbed(work: impl Fn(u64) + Sync) -> u64 {
    const ROUNDS_MAX: u64 = 100;
    lengthen_sections();
    install_handler();
    let aborts = rseq::aborts();
    for round in 1..=ROUNDS_MAX {
        disturbed_once(&work);
        if !matches!(backend(), Backend::Rseq(_)) || rseq::aborts() > aborts {
            return round;
        }
    }
    panic!("no section was aborted in {ROUNDS_MAX} rounds: nothing was tested");
}

fn disturbed_once(work: &(impl Fn(u64) + Sync)) {
    let done = AtomicBool::new(false);
    let cpus: Vec<_> = affinity::allowed().unwrap().iter().collect();
    let (handles, working) = (Mutex::new(Vec::new()), AtomicU64::new(THREADS));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (handles, working, done) = (&handles, &working, &done);
            scope.spawn(move || {
                // SAFETY: no arguments; both are only compared and used while this thread lives.
                handles.lock().unwrap().push(unsafe { (libc::pthread_self(), libc::gettid()) });
                work(thread);
                if working.fetch_sub(1, AcqRel) == 1 {
                    done.store(true, Release);
                }
                while !done.load(Acquire) {
                    std::thread::sleep(EVERY);
                }
                // The thread is removed from the list before it ends, so that no signal is sent to a dead thread.
                handles.lock().unwrap().clear();
            });
        }
        let mut round = 0;
        while !done.load(Acquire) {
            std::thread::sleep(EVERY);
            for (i, (pthread, tid)) in handles.lock().unwrap().iter().enumerate() {
                let cpu = cpus[(i + round) % cpus.len()];
                let mask: warmcore_types::CpuSet = [cpu].into_iter().collect();
                // SAFETY: a thread in the list lives, and the list is locked; the mask's own length.
                unsafe {
                    libc::syscall(
                        libc::SYS_sched_setaffinity,
                        *tid,
                        mask.words().len() * 8,
                        mask.words().as_ptr(),
                    );
                    libc::pthread_kill(*pthread, libc::SIGUSR1);
                }
            }
            round += 1;
        }
    });
}

/// Ends the loops of the other threads when dropped, also after a panic; otherwise the test would hang.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// Incremented by the signal handler, which may interrupt any thread in any section.
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static IN_HANDLER: std::sync::LazyLock<Counter> = std::sync::LazyLock::new(Counter::new);

fn install_handler() {
    extern "C" fn handler(_: libc::c_int) {
        SIGNALS.fetch_add(1, Relaxed);
        // Without sections, an add could block on a snapshot that the interrupted thread has in progress.
        if matches!(backend(), Backend::Rseq(_)) {
            IN_HANDLER.add(1);
        }
    }
    IN_HANDLER.add(0);
    // SAFETY: the handler is async-signal-safe: it does an atomic operation, and an add in a section.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn a_hundred_million_disturbed_adds_are_exact() {
    let _alone = alone();
    let (counter, gauge) = (Counter::new(), Gauge::new());
    #[derive(Zeroable)]
    struct Stats {
        hits: LocalU64,
        misses: LocalU64,
    }
    let (per_cid, per_cpu) = (PerCid::<Stats>::new(), PerCpu::<Stats>::new());
    let each = OPERATIONS / THREADS;
    let signals = (SIGNALS.load(Relaxed), IN_HANDLER.sum());
    let rounds = disturbed(|thread| {
        for i in 0..each {
            counter.add(1);
            gauge.add(if i % 2 == 0 { 3 } else { -3 });
            per_cid.add(field!(Stats, hits), 1);
            per_cpu.add(field!(Stats, misses), thread);
            per_cid.add(field!(Stats, misses), 2);
        }
    });
    let all = each * THREADS * rounds;
    assert_eq!((counter.sum(), counter.snapshot()), (all, all));
    // `each` is even, so every thread ends at the level at which it began.
    assert_eq!(gauge.snapshot(), 0);
    assert_eq!(per_cid.sum(field!(Stats, hits)), all);
    assert_eq!(per_cid.sum(field!(Stats, misses)), 2 * all);
    assert_eq!(per_cpu.sum(field!(Stats, misses)), each * rounds * (0..THREADS).sum::<u64>());
    if matches!(backend(), Backend::Rseq(_)) {
        let seen = (SIGNALS.load(Relaxed) - signals.0, IN_HANDLER.sum() - signals.1);
        assert!(seen.0 > 0 && seen.0 == seen.1, "{} signals counted {} times", seen.0, seen.1);
    }
}

#[test]
fn successive_drains_lose_and_repeat_nothing() {
    let _alone = alone();
    let (counter, drained, running) = (Counter::new(), AtomicU64::new(0), AtomicBool::new(true));
    let each = OPERATIONS / THREADS / 2;
    let rounds = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while running.load(Acquire) {
                    drained.fetch_add(counter.drain_all(), Relaxed);
                }
            });
        }
        let _stop = Stop(&running);
        disturbed(|_| (0..each).for_each(|_| counter.add(1)))
    });
    assert_eq!(drained.into_inner() + counter.drain_all(), each * THREADS * rounds);
    assert_eq!((counter.sum(), counter.drain_all()), (0, 0));
}

/// A snapshot is at least the sum of the adds that returned before it, and at most the sum of all adds that have begun.
#[test]
fn a_snapshot_contains_what_returned_before_it_and_nothing_begun_after() {
    let _alone = alone();
    let counter = Counter::new();
    let (begun, returned) = (AtomicU64::new(0), AtomicU64::new(0));
    let running = AtomicBool::new(true);
    let each = OPERATIONS / THREADS / 20;
    // Several adds between two locked instructions: interrupts are taken after locked instructions, so with one add
    // between them hardly any section would be interrupted.
    const BURST: u64 = 64;
    let mut snapshots = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stop = Stop(&running);
            disturbed(|_| {
                for _ in 0..each / BURST {
                    begun.fetch_add(BURST, SeqCst);
                    (0..BURST).for_each(|_| counter.add(1));
                    returned.fetch_add(BURST, SeqCst);
                }
            });
        });
        let mut last = 0;
        while running.load(Acquire) {
            let least = returned.load(SeqCst).max(last);
            let seen = counter.snapshot();
            let most = begun.load(SeqCst);
            assert!((least..=most).contains(&seen), "{least} returned before, {seen} seen, {most} begun");
            (last, snapshots) = (seen, snapshots + 1);
        }
    });
    assert_eq!(counter.snapshot(), returned.into_inner());
    assert!(snapshots > 10, "only {snapshots} snapshots met the adds");
}

/// Each item is the index of a flag that is set while a thread owns the item, which detects two owners at once.
#[test]
fn an_item_has_one_owner_and_none_is_lost() {
    let _alone = alone();
    const ITEMS: u64 = 3000;
    let owned: Vec<AtomicBool> = (0..=ITEMS).map(|_| AtomicBool::new(false)).collect();
    let list: FreeList<NonZeroU64> = FreeList::with_capacity(30);
    (1..=ITEMS).filter_map(NonZeroU64::new).for_each(|item| list.push(item));
    let take = |item: NonZeroU64| {
        assert!(!owned[item.get() as usize].swap(true, AcqRel), "{item} has two owners");
        item
    };
    let give = |item: NonZeroU64| {
        assert!(owned[item.get() as usize].swap(false, AcqRel), "{item} had no owner");
        item
    };
    let (running, rounds) = (AtomicBool::new(true), OPERATIONS / THREADS / 100);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while running.load(Acquire) {
                for item in list.drain_all() {
                    take(item);
                    list.push(give(item));
                }
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let _stop = Stop(&running);
        disturbed(|thread| {
            let (mut held, mut batch) = (Vec::new(), Vec::new());
            for i in 0..rounds {
                if (i + thread) % 16 == 0 {
                    let want = 1 + (i % 50) as usize;
                    let got = list.pop_batch(&mut batch, want);
                    assert!(got == batch.len() && got <= want);
                    held.extend(batch.drain(..).map(take));
                    let mut back: Vec<_> = held.drain(..held.len() / 2).map(give).collect();
                    list.push_batch(&mut back);
                    assert!(back.is_empty());
                }
                held.extend(list.pop().map(take));
                if held.len() > 40 || i % 3 == 0 {
                    held.drain(..).for_each(|item| list.push(give(item)));
                }
            }
            held.drain(..).for_each(|item| list.push(give(item)));
        });
    });
    assert_eq!(list.len() as u64, ITEMS);
    let mut all: Vec<u64> = list.drain_all().into_iter().map(NonZeroU64::get).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=ITEMS).collect::<Vec<_>>());
}

#[test]
fn items_left_in_a_list_are_dropped_with_it() {
    let _alone = alone();
    use std::sync::Arc;
    let thing = Arc::new(7);
    let list: FreeList<Box<Arc<i32>>> = FreeList::new();
    (0..200).for_each(|_| list.push(Box::new(thing.clone())));
    let popped = list.pop().unwrap();
    assert_eq!((**popped, Arc::strong_count(&thing)), (7, 201));
    drop(list);
    assert_eq!(Arc::strong_count(&thing), 2);
}

#[test]
fn short_lived_threads_lose_nothing() {
    let _alone = alone();
    let (counter, list) = (Counter::new(), FreeList::<NonZeroU64>::new());
    for round in 0..200 {
        std::thread::scope(|scope| {
            for thread in 1..=10 {
                let (counter, list) = (&counter, &list);
                scope.spawn(move || {
                    (0..100).for_each(|_| counter.add(1));
                    list.push(NonZeroU64::new(round * 10 + thread).unwrap());
                });
            }
        });
    }
    assert_eq!(counter.sum(), 200 * 10 * 100);
    assert_eq!(list.drain_all().len(), 200 * 10);
}

/// A thread without a registered area: one made with raw `clone`, or by some language runtimes.
#[test]
fn a_thread_without_a_registered_area_loses_nothing() {
    let _alone = alone();
    const EACH: u64 = 100_000;
    let (counter, list) = (Counter::new(), FreeList::<NonZeroU64>::new());
    #[derive(Zeroable)]
    struct One {
        n: LocalU64,
    }
    let ones = PerCid::<One>::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (counter, list, ones) = (&counter, &list, &ones);
            scope.spawn(move || {
                if thread % 2 == 0 {
                    unregister_area();
                }
                for i in 0..EACH {
                    counter.add(1);
                    ones.add(field!(One, n), 1);
                    if i % 100 == 0 {
                        list.push(NonZeroU64::new(i + 1).unwrap());
                    }
                }
            });
        }
    });
    assert_eq!((counter.sum(), counter.snapshot()), (4 * EACH, 4 * EACH));
    assert_eq!(ones.sum(field!(One, n)), 4 * EACH);
    assert_eq!(list.drain_all().len() as u64, 4 * EACH / 100);
}

/// Unregisters this thread's area, if the backend is `rseq` and glibc registered the area.
fn unregister_area() {
    let Backend::Rseq(rseq::Support { source: rseq::Source::Glibc, .. }) = backend() else { return };
    // SAFETY: the arguments of the very registration that glibc made for this thread; the kernel
    // refuses any other.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let mut thread_pointer: *mut u8;
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer);
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) thread_pointer);
        #[cfg(target_arch = "x86_64")]
        let signature = 0x5305_3053u32;
        #[cfg(target_arch = "aarch64")]
        let signature = 0xd428_bc00u32;
        let area = thread_pointer.offset(*offset);
        assert_eq!(
            libc::syscall(libc::SYS_rseq, area, 32, 1, signature),
            0,
            "{}",
            std::io::Error::last_os_error()
        );
    }
    assert!(rseq::RseqArea::lookup(rseq::PercpuMode::Cpu).is_none(), "still registered");
}

#[test]
fn a_child_of_fork_can_add() {
    let _alone = alone();
    const EACH: u64 = 200_000;
    let counter = Counter::new();
    counter.add(1);
    // SAFETY: the child runs no code that could need a lock held by another thread: adds in
    // sections or locked instructions on its own copy, then _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    (0..EACH).for_each(|_| counter.add(1));
    let exact = counter.sum() == EACH + 1;
    if child == 0 {
        // SAFETY: ends the child without running the harness's destructors.
        unsafe { libc::_exit(if exact { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for this process's own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(exact && status == 0, "parent exact: {exact}, child's status {status}");
}

/// Two threads, with the slots of a machine of 8192 CPUs.
#[test]
fn memory_follows_the_slots_that_two_threads_touch() {
    let _alone = alone();
    #[derive(Zeroable)]
    #[allow(dead_code, reason = "it only takes space")]
    struct Area {
        before: [u64; 300],
        number: LocalU64,
        after: [u64; 199],
    }
    let areas = PerCid::<Area>::with_slots(8192);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..100_000).for_each(|_| areas.add(field!(Area, number), 1)));
        }
    });
    assert_eq!(areas.sum(field!(Area, number)), 200_000);
    let most = affinity::allowed().unwrap().len();
    let pages = areas.resident_bytes().unwrap() / warmcore_sys::map::page_bytes();
    // A slot is 4000 bytes in a stride of 4096, on at most two pages.
    assert!(
        (1..=2 * most).contains(&pages),
        "{pages} pages for at most {most} touched slots of {}",
        areas.slots()
    );
}
