//! Eight threads, which are moved while they run, enter tenants and end. `cargo xtask test --full` runs this on every
//! backend.

use bytemuck::Zeroable;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use warmcore_percpu::{LocalU64, PerCid, field};
use warmcore_sys::affinity;
use warmcore_tenant::{CacheLocal, KeptPerCpu, Lowest, Policy, Tenant};
use warmcore_types::CpuId;

/// Entries under the default policy. Debug builds make a tenth of them, since each takes many times longer.
const ENTRIES: u64 = if cfg!(debug_assertions) { 10_000_000 } else { 100_000_000 };
const THREADS: u64 = 8;
/// Entries between two changes of a thread's affinity.
const MOVE_EVERY: u64 = 50_000;

/// One slot of the data: a count that is exact only if ids are unique, and 1 while a thread holds the slot's id.
#[derive(Zeroable)]
struct Slot {
    entries: LocalU64,
    inside: AtomicU32,
}

/// Repeats the test until a thread has lost its CPU while it held an id: without that, uniqueness was not tested. Fails
/// after `ROUNDS_MAX` rounds without it. With a CPU for each thread, the test runs once.
fn stress(policy: &'static dyn Policy, entries: u64) {
    const ROUNDS_MAX: u32 = 100;
    let has_cpu_each = affinity::allowed().unwrap().len() >= THREADS as usize;
    let is_tested = |overflows| overflows > 0 || has_cpu_each;
    let tested = (0..ROUNDS_MAX).any(|_| is_tested(stress_once(policy, entries)));
    assert!(tested, "{policy:?}: no thread lost its CPU with an id in {ROUNDS_MAX} rounds");
}

/// Returns how many entries found the id of their CPU in use.
fn stress_once(policy: &'static dyn Policy, entries: u64) -> u64 {
    let tenant = Tenant::builder().policy(policy).build();
    let data: PerCid<Slot> = tenant.data();
    let cpus: Vec<CpuId> = affinity::allowed().unwrap().iter().collect();
    let (all, each) = (affinity::allowed().unwrap(), entries / THREADS);
    std::thread::scope(|scope| {
        let work = |thread| {
            let (tenant, data, cpus, all) = (&tenant, &data, &cpus, &all);
            scope.spawn(move || {
                for n in 0..each {
                    if n % MOVE_EVERY == 0 {
                        // Pinned to each CPU in turn, then to none.
                        let to = (thread + n / MOVE_EVERY) as usize % (cpus.len() + 1);
                        match cpus.get(to) {
                            Some(cpu) => affinity::pin(*cpu).unwrap(),
                            None => affinity::set_allowed(all).unwrap(),
                        }
                    }
                    let guard = tenant.enter();
                    let own = data.owned_slot(&guard);
                    // A load and a store on purpose: an atomic swap would hide a second thread.
                    assert_eq!(own.inside.load(Relaxed), 0, "two threads hold {}", guard.cid());
                    own.inside.store(1, Relaxed);
                    own.add(field!(Slot, entries), 1);
                    own.inside.store(0, Relaxed);
                }
            })
        };
        let threads: Vec<_> = (0..THREADS).map(work).collect();
        // A scope ends when the closures return, a join when the threads have ended: then they have left the tenant.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(data.sum(field!(Slot, entries)), each * THREADS, "{policy:?}");
    let stats = tenant.stats();
    assert_eq!((stats.users, stats.overflow_in_use), (0, 0), "{policy:?}: {stats:?}");
    println!("{policy:?}: {stats:?}");
    stats.overflows
}

#[test]
fn sums_are_exact_while_threads_are_moved_cache_local() {
    stress(&CacheLocal, ENTRIES);
}

#[test]
fn sums_are_exact_while_threads_are_moved_other_policies() {
    for policy in [&Lowest as &dyn Policy, &KeptPerCpu] {
        stress(policy, ENTRIES / 20);
    }
}

/// Short-lived threads in short-lived tenants, while another thread uses a tenant that stays.
#[test]
fn sums_are_exact_with_short_lived_tenants_and_threads() {
    let (sum, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let keeper = Tenant::builder().name("stays").build();
        let data: PerCid<Slot> = keeper.data();
        let (sum, done) = (&sum, &done);
        let busy = scope.spawn({
            let keeper = keeper.clone();
            move || {
                while !done.load(Acquire) {
                    drop(keeper.enter());
                }
            }
        });
        for _ in 0..200 {
            let tenant = Tenant::builder().build();
            let own: PerCid<Slot> = tenant.data();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let tenant = tenant.clone();
                        for _ in 0..200 {
                            own.owned_slot(&tenant.enter()).add(field!(Slot, entries), 1);
                            data.add(field!(Slot, entries), 1);
                        }
                    });
                }
            });
            sum.fetch_add(own.sum(field!(Slot, entries)), Relaxed);
        }
        done.store(true, Release);
        busy.join().unwrap();
        assert_eq!(data.sum(field!(Slot, entries)), 200 * 4 * 200);
    });
    assert_eq!(sum.load(Relaxed), 200 * 4 * 200);
}
