//! Everything at once: threads that outnumber the CPUs, that are moved while they run, and end.
//! `cargo xtask test` runs it on every backend.

use bytemuck::Zeroable;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use warmcore_percpu::{LocalU64, PerCid, field};
use warmcore_sys::affinity;
use warmcore_tenant::{CacheLocal, KeptPerCpu, Lowest, Policy, Tenant};
use warmcore_types::CpuId;

/// Entries of the default policy. Debug builds take a tenth: there each costs many times more.
const ENTRIES: u64 = if cfg!(debug_assertions) { 10_000_000 } else { 100_000_000 };
const THREADS: u64 = 8;
/// Entries between two changes of a thread's affinity.
const MOVE_EVERY: u64 = 50_000;

/// One slot of the data: a number that is exact only if ids are unique, and who is there.
#[derive(Zeroable)]
struct Slot {
    entries: LocalU64,
    inside: AtomicU32,
}

/// Until threads lost their CPU while they held an id: before that nothing was tested.
fn stress(policy: &'static dyn Policy, entries: u64) {
    const ROUNDS_MAX: u32 = 100;
    let has_cpu_each = affinity::allowed().unwrap().len() >= THREADS as usize;
    let is_tested = |overflows| overflows > 0 || has_cpu_each;
    let tested = (0..ROUNDS_MAX).any(|_| is_tested(stress_once(policy, entries)));
    assert!(tested, "{policy:?}: nobody lost its CPU with an id in {ROUNDS_MAX} rounds");
}

/// Says how many found their CPU's id held.
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
                        // Now here, now there, now anywhere.
                        let to = (thread + n / MOVE_EVERY) as usize % (cpus.len() + 1);
                        match cpus.get(to) {
                            Some(cpu) => affinity::pin(*cpu).unwrap(),
                            None => affinity::set_allowed(all).unwrap(),
                        }
                    }
                    let guard = tenant.enter();
                    let own = data.owned_slot(&guard);
                    // Not atomic on purpose: a swap would repair what it is to find.
                    assert_eq!(own.inside.load(Relaxed), 0, "{} is held twice", guard.cid());
                    own.inside.store(1, Relaxed);
                    own.add(field!(Slot, entries), 1);
                    own.inside.store(0, Relaxed);
                }
            })
        };
        let threads: Vec<_> = (0..THREADS).map(work).collect();
        // A scope ends with the threads' work, a join with the threads: then they are counted out.
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
fn sums_are_exact_while_threads_are_moved_every_other_policy() {
    for policy in [&Lowest as &dyn Policy, &KeptPerCpu] {
        stress(policy, ENTRIES / 20);
    }
}

/// Threads that live for a moment, in tenants that live for a moment longer.
#[test]
fn tenants_and_threads_come_and_go() {
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
