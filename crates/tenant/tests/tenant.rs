//! Tests of the public interface of a tenant, on real threads.

use bytemuck::Zeroable;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use warmcore_percpu::{LocalU64, PerCid, field};
use warmcore_sys::affinity;
use warmcore_tenant::{CacheLocal, Guard, KeptPerCpu, Lowest, Policy, Tenant};
use warmcore_types::{Cid, CpuId, CpuSet};

const POLICIES: [&dyn Policy; 3] = [&Lowest, &KeptPerCpu, &CacheLocal];

/// The longest wait for the compactor, which runs every tenth of a second; long enough for a slow machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Zeroable)]
struct Numbers {
    a: LocalU64,
    b: LocalU64,
}

/// Locks out other tests: those that pin threads to CPUs would preempt each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cpus() -> Vec<CpuId> {
    affinity::allowed().unwrap().iter().collect()
}

/// Runs `act` on a new thread, pinned to `cpu` if given.
fn on<R: Send>(cpu: Option<CpuId>, act: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let run = || {
            cpu.into_iter().for_each(|cpu| affinity::pin(cpu).unwrap());
            act()
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Waits until the compactor or another thread has made `is_so` true.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_thread_that_holds_an_id_gets_the_same_again_and_leaves_in_any_order() {
    for policy in POLICIES {
        let tenant = Tenant::builder().policy(policy).build();
        let (first, second, third) = (tenant.enter(), tenant.enter(), tenant.enter());
        assert_eq!((first.cid(), first.cid()), (second.cid(), third.cid()), "{policy:?}");
        drop(first);
        drop(third);
        // Two guards are dropped, one is not: the id is still in use, so no other thread gets it.
        let other = on(Some(affinity::current_cpu()), || tenant.enter().cid());
        assert_ne!(other, second.cid(), "{policy:?}");
        drop(second);
    }
}

#[test]
fn a_thread_that_finds_its_cpus_id_in_use_gets_an_overflow_id() {
    let _alone = alone();
    let tenant = Tenant::builder().name("overflow").build();
    let cpu = cpus()[0];
    let held = on(Some(cpu), || {
        let first = tenant.enter();
        let second = on(Some(cpu), || {
            let second = tenant.enter();
            assert!(second.is_overflow());
            second.cid()
        });
        assert!(!first.is_overflow());
        (first.cid(), second)
    });
    assert_ne!(held.0, held.1);
    let stats = tenant.stats();
    assert_eq!((stats.overflows, stats.overflow_in_use), (1, 0), "{stats:?}");
}

#[test]
fn adds_are_exact_with_a_guard_and_without() {
    for policy in POLICIES {
        let tenant = Tenant::builder().policy(policy).build();
        let data: PerCid<Numbers> = tenant.data();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        data.add(field!(Numbers, a), 1);
                        let guard = tenant.enter();
                        data.owned_slot(&guard).add(field!(Numbers, a), 1);
                        data.add(field!(Numbers, b), 3);
                    }
                });
            }
        });
        assert_eq!(data.sum(field!(Numbers, a)), 400_000, "{policy:?}");
        assert_eq!(data.sum(field!(Numbers, b)), 600_000, "{policy:?}");
    }
}

#[test]
#[should_panic(expected = "the data of one tenant, and a guard of another")]
fn data_refuses_the_guard_of_another_tenant() {
    let (one, other) = (Tenant::builder().build(), Tenant::builder().build());
    let data: PerCid<Numbers> = one.data();
    let guard = other.enter();
    data.owned_slot(&guard).add(field!(Numbers, a), 1);
}

#[test]
#[should_panic(expected = "the data of one tenant, and a guard of another")]
fn data_of_the_kernels_ids_refuses_every_guard() {
    let tenant = Tenant::builder().build();
    let guard = tenant.enter();
    PerCid::<Numbers>::new().owned_slot(&guard);
}

#[test]
fn slots_of_a_dropped_tenant_are_zeroed() {
    for round in 0..200 {
        let tenant = Tenant::builder().build();
        let data: PerCid<Numbers> = tenant.data();
        assert_eq!(data.sum(field!(Numbers, a)), 0, "round {round}");
        data.add(field!(Numbers, a), round + 1);
        assert_eq!(data.sum(field!(Numbers, a)), round + 1);
        assert_eq!(data.iter().count(), 1, "one id was allocated");
    }
}

#[test]
fn data_lives_longer_than_its_tenants_handles() {
    let tenant = Tenant::builder().build();
    let data: PerCid<Numbers> = tenant.data();
    drop(tenant);
    data.add(field!(Numbers, a), 7);
    assert_eq!(data.sum(field!(Numbers, a)), 7);
}

#[test]
fn a_tenant_is_found_by_its_serial_while_alive_and_its_index_is_unique() {
    let _alone = alone();
    let tenants: Vec<Tenant> = (0..10).map(|_| Tenant::builder().build()).collect();
    let indices: std::collections::BTreeSet<usize> = tenants.iter().map(Tenant::index).collect();
    assert_eq!(indices.len(), tenants.len());
    for tenant in tenants {
        let (serial, index) = (tenant.serial(), tenant.index());
        let found = Tenant::by_serial(serial).unwrap();
        assert_eq!((found.serial(), found.index()), (serial, index));
        drop(tenant);
        // The found handle keeps the tenant alive, as any other does.
        assert!(Tenant::by_serial(serial).is_some());
        drop(found);
        assert!(Tenant::by_serial(serial).is_none());
        // The next tenant, with the same index or another, has another serial.
        assert_ne!(Tenant::builder().build().serial(), serial);
    }
    assert!(Tenant::by_serial(0).is_none());
}

#[test]
fn an_unused_id_is_taken_back_and_a_used_one_is_not() {
    let _alone = alone();
    let cpu = cpus()[0];
    let (used, unused) = (Tenant::builder().build(), Tenant::builder().build());
    on(Some(cpu), || {
        drop(unused.enter());
        let guard = used.enter();
        eventually("the unused id is taken back", || unused.stats().in_use == 0);
        assert_eq!(used.stats().in_use, 1);
        let (id, before) = (guard.cid(), used.stats().compactions);
        eventually("three more compactions", || used.stats().compactions >= before + 3);
        assert_eq!((guard.cid(), used.stats().in_use), (id, 1));
    });
    eventually("the other id is taken back, too", || used.stats().in_use == 0);
    // Idle tenants are not compacted until a thread enters again.
    let before = used.stats().compactions;
    drop(used.enter());
    eventually("it is compacted again", || used.stats().compactions > before && used.stats().in_use == 0);
}

#[test]
fn after_a_pause_every_cpu_has_its_id_again() {
    let _alone = alone();
    let cpus = cpus();
    let tenant = Tenant::builder().build();
    let (ask, answers): (Vec<_>, Vec<_>) = cpus
        .iter()
        .map(|&cpu| {
            let ((ask, asked), (answer, answers)) = (mpsc::channel::<()>(), mpsc::channel());
            let tenant = tenant.clone();
            std::thread::spawn(move || {
                affinity::pin(cpu).unwrap();
                asked.iter().for_each(|()| answer.send(tenant.enter().cid()).unwrap());
            });
            (ask, answers)
        })
        .unzip();
    let ids = |order: &[usize]| {
        let mut ids = vec![None; cpus.len()];
        for &cpu in order {
            ask[cpu].send(()).unwrap();
            ids[cpu] = Some(answers[cpu].recv().unwrap());
        }
        ids
    };
    let up: Vec<usize> = (0..cpus.len()).collect();
    let down: Vec<usize> = up.iter().rev().copied().collect();
    // The first round makes the threads users; with all of them as users, each CPU can have an id of its own.
    ids(&up);
    let first = ids(&up);
    assert_eq!(
        first.iter().collect::<BTreeSet<_>>().len(),
        cpus.len(),
        "each CPU has an id of its own: {first:?}"
    );
    for order in [&down, &up, &down] {
        eventually("all ids are taken back", || tenant.stats().in_use == 0);
        assert_eq!(ids(order), first);
    }
}

#[test]
fn threads_leave_their_tenants_when_they_end() {
    let tenant = Tenant::builder().build();
    on(None, || {
        drop(tenant.enter());
        let inside = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    drop(tenant.enter());
                    inside.wait();
                    assert_eq!(tenant.stats().users, 5);
                    inside.wait();
                });
            }
        });
        eventually("four threads have ended", || tenant.stats().users == 1);
    });
    assert_eq!(tenant.stats().users, 0);
}

#[test]
fn cpus_are_added_to_the_allowed_set_at_run_time() {
    let _alone = alone();
    let cpus = cpus();
    let tenant = Tenant::builder().build();
    on(Some(cpus[0]), || {
        let guard = tenant.enter();
        assert_eq!(tenant.stats().nr_cpus_allowed, 1);
        for (n, &cpu) in cpus.iter().enumerate() {
            // The thread keeps its id while it holds the guard.
            affinity::pin(cpu).unwrap();
            assert_eq!(tenant.enter().cid(), guard.cid());
            // Another thread on this CPU adds the CPU to the tenant's set, where the first one is already.
            on(Some(cpu), || drop(tenant.enter()));
            assert_eq!(tenant.stats().nr_cpus_allowed as usize, n + 1);
        }
        drop(guard);
        let all: CpuSet = cpus.iter().copied().collect();
        affinity::set_allowed(&all).unwrap();
        drop(tenant.enter());
    });
    assert_eq!(tenant.stats().nr_cpus_allowed as usize, cpus.len());
}

#[test]
fn a_thread_may_be_in_thousands_of_tenants() {
    on(None, || {
        let tenants: Vec<Tenant> = (0..3000).map(|_| Tenant::builder().build()).collect();
        for _ in 0..3 {
            for tenant in &tenants {
                assert!(!tenant.enter().is_overflow());
            }
        }
        assert!(tenants.iter().all(|tenant| tenant.stats().users == 1));
        // All at once.
        let guards: Vec<Guard> = tenants.iter().map(Tenant::enter).collect();
        let again: Vec<Guard> = tenants.iter().map(Tenant::enter).collect();
        assert!(guards.iter().zip(&again).all(|(a, b)| a.cid() == b.cid()));
        drop(guards);
        drop(again);
        // Records of dropped tenants don't accumulate.
        drop(tenants);
        for _ in 0..20_000 {
            drop(Tenant::builder().build().enter());
        }
    });
}

#[test]
fn a_panic_with_a_guard_leaves_the_id() {
    let _alone = alone();
    let tenant = Tenant::builder().build();
    let cpu = cpus()[0];
    on(Some(cpu), || {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = tenant.enter();
            panic!("while the guard lives");
        }));
        assert!(panicked.is_err());
    });
    on(Some(cpu), || assert!(!tenant.enter().is_overflow()));
}

#[test]
fn a_leaked_guard_keeps_its_cpus_id_in_use_and_nothing_else() {
    let _alone = alone();
    let tenant = Tenant::builder().build();
    let data: PerCid<Numbers> = tenant.data();
    let cpu = cpus()[0];
    on(Some(cpu), || std::mem::forget(tenant.enter()));
    for _ in 0..3 {
        on(Some(cpu), || {
            let guard = tenant.enter();
            assert!(guard.is_overflow());
            data.owned_slot(&guard).add(field!(Numbers, a), 1);
        });
    }
    assert_eq!(data.sum(field!(Numbers, a)), 3);
    assert_eq!(tenant.stats().users, 1, "the thread that leaked it is still a user");
}

/// Thread-locals are dropped in no particular order; a destructor may drop a guard, or enter.
#[test]
fn thread_locals_may_hold_guards_and_enter_while_the_thread_ends() {
    struct Late(&'static Tenant, Option<Guard<'static>>);
    impl Drop for Late {
        fn drop(&mut self) {
            drop(self.1.take());
            // The thread is no user any more and holds two overflow ids, or it still is a user and holds one id.
            let (one, other) = (self.0.enter(), self.0.enter());
            assert!(one.is_overflow() || one.cid() == other.cid());
        }
    }
    thread_local! {
        static EARLY: RefCell<Option<Late>> = const { RefCell::new(None) };
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    let tenant: &'static Tenant = Box::leak(Box::new(Tenant::builder().build()));
    on(None, || {
        EARLY.with(|_| {});
        let first = tenant.enter();
        EARLY.with(|early| *early.borrow_mut() = Some(Late(tenant, Some(tenant.enter()))));
        LATE.with(|late| *late.borrow_mut() = Some(Late(tenant, Some(first))));
    });
    eventually("no id is in use", || tenant.stats().in_use == 0);
    assert_eq!(tenant.stats().overflow_in_use, 0);
}

/// As if a thread-local's destructor flushed metrics. The thread-local is older than the thread's records of tenants,
/// so its destructor runs after that of the records.
#[test]
fn a_thread_that_enters_while_it_ends_does_not_stay_a_user() {
    struct Flush(&'static Tenant);
    impl Drop for Flush {
        fn drop(&mut self) {
            drop(self.0.enter());
        }
    }
    thread_local!(static FLUSH: RefCell<Option<Flush>> = const { RefCell::new(None) });
    let tenant: &'static Tenant = Box::leak(Box::new(Tenant::builder().build()));
    for _ in 0..20 {
        on(None, || {
            FLUSH.with(|flush| *flush.borrow_mut() = Some(Flush(tenant)));
            drop(tenant.enter());
        });
    }
    let stats = tenant.stats();
    assert_eq!((stats.users, stats.overflow_in_use), (0, 0), "{stats:?}");
}

/// The slot of an id that was never allocated may hold another tenant's data: it is not accessible.
#[test]
fn an_id_that_was_never_allocated_has_no_slot() {
    let tenant = Tenant::builder().build();
    let data: PerCid<Numbers> = tenant.data();
    assert!(data.get(Cid(0)).is_none() && data.iter().next().is_none());
    let guard = tenant.enter();
    assert!(data.get(guard.cid()).is_some() && data.get(Cid(4000)).is_none());
    assert_eq!(data.iter().map(|(cid, _)| cid).collect::<Vec<_>>(), [guard.cid()]);
}

#[test]
fn a_thread_with_an_overflow_id_keeps_it_on_every_cpu() {
    let _alone = alone();
    let cpus = cpus();
    let tenant = Tenant::builder().build();
    on(Some(cpus[0]), || {
        drop(tenant.enter());
        on(Some(cpus[cpus.len() - 1]), || {
            let _held = tenant.enter();
            // This thread was on the first CPU before, and finds the id of the last one in use.
            on(Some(cpus[0]), || {
                drop(tenant.enter());
                affinity::pin(cpus[cpus.len() - 1]).unwrap();
                let first = tenant.enter();
                assert!(first.is_overflow());
                affinity::pin(cpus[0]).unwrap();
                assert_eq!(tenant.enter().cid(), first.cid());
            });
        });
    });
}

#[test]
fn a_tenant_has_its_name_and_policy() {
    let tenant = Tenant::builder().name("orders").policy(&KeptPerCpu).build();
    assert_eq!((tenant.name(), tenant.policy().name()), ("orders", "kept-per-cpu"));
    assert!(
        format!("{tenant:?}").starts_with("Tenant { name: \"orders\", policy: KeptPerCpu, stats: Stats {")
    );
}

/// CPU numbers up to 8191: more than a fixed set of 1024 holds.
#[test]
fn a_tenant_may_be_made_as_for_a_larger_machine() {
    let tenant = Tenant::builder().cpus(8192).build();
    let data: PerCid<Numbers> = tenant.data();
    data.add(field!(Numbers, b), 2);
    assert!(tenant.enter().cid().0 < 8192);
    assert_eq!(data.slots(), 8192 + 4096);
    assert_eq!(data.sum(field!(Numbers, b)), 2);
}

/// `crates/budget/tests/alloc_*.rs` test this with the charging allocator.
#[test]
fn a_thread_in_a_tenant_is_in_its_account() {
    let account = warmcore_budget::Account::root("tenant").build();
    let tenant = Tenant::builder().account(&account).build();
    assert!(tenant.account() == Some(&account));
    let outer = tenant.enter();
    drop(tenant.enter());
    drop(outer);
    assert_eq!(account.exact_usage(), 0);
}
