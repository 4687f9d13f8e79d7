//! Tests a thread of high priority that preempts another thread in the middle of a charge, and then charges too.
//!
//! Both are pinned to one CPU and both are real-time threads, the preempted one too: otherwise the kernel would
//! let the preempted thread run for a moment each second, and a hang would only be a long stall. With a stock
//! behind a lock (`stock::LockedStocks`, as published on linux-mm), the thread of high priority soon spins for a
//! lock whose holder it keeps from running, and would spin for ever. A watchdog thread on another CPU detects
//! that and lowers the priority. With the kinds that users get, the thread finishes. With the lock the hang is at
//! one of the first wakes; therefore that kind is not offered.
#![cfg(all(target_os = "linux", not(loom)))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use warmcore_budget::stock::LockedStocks;
use warmcore_budget::{Account, AccountConfig, Accounts, StockKind};
use warmcore_sys::{affinity, rseq};
use warmcore_types::CpuId;

/// How often the thread of high priority wakes.
const WAKES: u64 = if cfg!(debug_assertions) { 1000 } else { 10_000 };

/// The CPU time after which a thread counts as hung: it was inside one operation, which takes some microseconds,
/// while the other thread did not run at all. CPU time does not depend on how busy the machine is.
const HUNG_NS: u64 = 100_000_000;

/// More than fits into a stock: it goes up the tree.
const LARGE: u64 = 1 << 30;
const LIMIT: u64 = 1 << 40;

/// Makes this thread a real-time one; false if that is not permitted.
fn become_real_time(priority: i32) -> bool {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) == 0 }
}

/// The CPU time that a running thread has used, in ns.
fn cpu_ns(thread: libc::pthread_t) -> u64 {
    let (mut clock, mut at) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the thread lives; both calls write to local variables.
    unsafe {
        assert_eq!(libc::pthread_getcpuclockid(thread, &mut clock), 0);
        assert_eq!(libc::clock_gettime(clock, &mut at), 0);
    }
    at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
}

/// How often this thread was preempted.
fn interruptions() -> i64 {
    // SAFETY: plain numbers, filled by the call.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_nivcsw
    }
}

#[derive(Debug, PartialEq)]
enum End {
    /// The thread of high priority made all its wakes.
    Finished,
    /// The thread of high priority hung, and ended after its priority was lowered.
    Hung,
}

/// Runs `low` again and again on a thread of low priority, and `high` at each wake of a thread of high priority, on the
/// same CPU. The thread of high priority counts as hung only while `is_stuck` returns true. Returns `None` if there is
/// one CPU only, or real-time threads are not permitted.
fn contend(
    low: impl Fn(u64) + Sync,
    high: impl Fn(u64) + Sync,
    mut is_stuck: impl FnMut() -> bool,
) -> Option<End> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cpus: Vec<CpuId> = affinity::allowed().unwrap().iter().collect();
    let [.., watch, shared] = cpus[..] else {
        println!("skipped: one CPU, so the watchdog would not run");
        return None;
    };
    let (may, ended, hung) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let (wakes, inside) = (AtomicU64::new(0), AtomicBool::new(false));
    let threads: [OnceLock<(libc::pthread_t, i32)>; 2] = [const { OnceLock::new() }; 2];
    let begin = |i: usize, priority| {
        affinity::pin(shared).unwrap();
        let is_real_time = become_real_time(priority);
        // SAFETY: no arguments.
        threads[i].set(unsafe { (libc::pthread_self(), libc::gettid()) }).unwrap();
        may.fetch_add(u64::from(is_real_time), AcqRel);
        is_real_time
    };
    let interrupted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (begin, ended, hung, wakes, inside) = (&begin, &ended, &hung, &wakes, &inside);
        let (interrupted, low, high) = (&interrupted, &low, &high);
        affinity::pin(watch).unwrap();
        // The thread of high priority starts first: it sleeps, and the other thread never does.
        let high = scope.spawn(move || {
            if begin(0, 2) {
                for wake in 0..WAKES {
                    // The times differ, so that the wakes come at different moments of the low thread's operations.
                    std::thread::sleep(Duration::from_nanos(20_000 + wake * 7919 % 50_000));
                    inside.store(true, Release);
                    high(wake);
                    inside.store(false, Release);
                    wakes.fetch_add(1, Release);
                    if hung.load(Acquire) {
                        break;
                    }
                }
            }
            ended.store(true, Release);
        });
        let low = scope.spawn(move || {
            if begin(1, 1) {
                for i in 0.. {
                    if ended.load(Acquire) {
                        break;
                    }
                    low(i);
                }
            }
            interrupted.store(interruptions() as u64, Relaxed);
        });
        let (mut seen, mut since) = (u64::MAX, [0, 0]);
        while !(high.is_finished() && low.is_finished()) {
            std::thread::sleep(Duration::from_millis(2));
            if ended.load(Acquire) || hung.load(Acquire) {
                continue;
            }
            let (Some(high), Some(low)) = (threads[0].get(), threads[1].get()) else { continue };
            let now = [cpu_ns(high.0), cpu_ns(low.0)];
            let is_inside = inside.load(Acquire) && is_stuck();
            if !is_inside || wakes.load(Acquire) != seen || now[1] != since[1] {
                (seen, since) = (wakes.load(Acquire), now);
            } else if now[0] - since[0] > HUNG_NS {
                hung.store(true, Release);
                let param = libc::sched_param { sched_priority: 0 };
                // SAFETY: the thread lives, as it hangs.
                assert_eq!(unsafe { libc::sched_setscheduler(high.1, libc::SCHED_OTHER, &param) }, 0);
            }
        }
    });
    let all: warmcore_types::CpuSet = cpus.into_iter().collect();
    affinity::set_allowed(&all).unwrap();
    if may.into_inner() < 2 {
        println!("skipped: no real-time threads for this user; needs CAP_SYS_NICE or `ulimit -r 2`");
        return None;
    }
    let (wakes, interrupted) = (wakes.into_inner(), interrupted.into_inner());
    println!("{wakes} wakes, {interrupted} interruptions");
    assert!(interrupted > 0, "no thread was preempted: nothing was tested");
    Some(if hung.into_inner() { End::Hung } else { End::Finished })
}

fn no_thread_hangs(kind: StockKind) {
    let root = Account::root("root").kind(kind).limit(LIMIT).build();
    let leaf = root.child("leaf").build();
    let charge = |account: &Account, n: u64| {
        account.try_charge(n).unwrap();
        account.uncharge(n).unwrap();
    };
    let low = |i: u64| {
        (0..100).for_each(|n| charge(&leaf, n));
        charge(&leaf, LARGE);
        charge(&root, 1);
        match i % 16 {
            0 => drop(root.child("child").guarantee(10).build().try_hold(20).unwrap()),
            1 => assert!(leaf.drain_all().units < LIMIT),
            2 => assert!(root.try_charge(LIMIT + 1).is_err()),
            _ => {}
        }
    };
    let high = |wake: u64| {
        (0..10).for_each(|n| charge(&leaf, n));
        charge(&leaf, LARGE);
        match wake % 8 {
            0 => assert!(root.drain_all().units < LIMIT),
            // A charge that is refused, and decided exactly while other charges may be in flight.
            1 | 2 => assert!(leaf.try_charge(LIMIT + 1).is_err()),
            3 => assert!(root.exact_usage() < LIMIT),
            4 => drop(leaf.child("child").build().try_hold(20).unwrap()),
            5 => {
                root.set_limit(LIMIT - 1);
                root.set_limit(LIMIT);
            }
            6 => Account::reclaim_idle_all(),
            _ => drop(leaf.explain().to_string()),
        }
    };
    let aborts = rseq::aborts();
    let runs_sections =
        kind == StockKind::Rseq && matches!(warmcore_percpu::backend(), warmcore_percpu::Backend::Rseq(_));
    let Some(end) = contend(low, high, || true) else { return };
    assert_eq!(end, End::Finished);
    assert_eq!((leaf.exact_usage(), root.exact_usage()), (0, 0), "{}", leaf.explain());
    println!("{kind}: {} aborts", rseq::aborts() - aborts);
    assert!(!runs_sections || rseq::aborts() > aborts, "no section was interrupted");
}

#[test]
fn no_priority_hangs_a_charge_with_atomic_stocks() {
    no_thread_hangs(StockKind::Atomic);
}

#[test]
fn no_priority_hangs_a_charge_with_rseq_stocks() {
    no_thread_hangs(StockKind::Rseq);
}

#[test]
fn a_high_priority_hangs_a_charge_with_locked_stocks() {
    let accounts = Accounts::new(LockedStocks::new(affinity::nr_cpu_ids() as u32));
    let plan = AccountConfig {
        name: Arc::from("leaf"),
        limit: LIMIT,
        soft_limit: u64::MAX,
        guarantee: 0,
        listener: None,
    };
    let leaf = accounts.create(None, plan).unwrap();
    let here = affinity::current_cpu;
    let charge = |n: u64| {
        accounts.try_charge(leaf, here, n).unwrap();
        accounts.uncharge(leaf, here, n).unwrap();
    };
    let cpus: Vec<CpuId> = affinity::allowed().unwrap().iter().collect();
    let is_held = || cpus.iter().any(|cpu| accounts.stocks().is_held(*cpu, leaf.key()));
    let Some(end) = contend(|_| (1..100).for_each(charge), |_| (1..10).for_each(charge), is_held) else {
        return;
    };
    assert_eq!(end, End::Hung, "the lock was never held when its holder was interrupted");
    assert_eq!(accounts.exact_usage(leaf), 0);
}
