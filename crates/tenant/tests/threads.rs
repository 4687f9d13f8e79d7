//! Threads of a tenant that change: their affinity masks, after they joined, and their ends.

use std::cell::RefCell;
use std::thread;
use warmcore_tenant::{CacheLocal, Guard, KeptPerCpu, Lowest, Policy, Stats, Tenant};

thread_local! {
    static HELD: RefCell<Vec<Guard<'static>>> = const { RefCell::new(Vec::new()) };
}

/// Runs a thread that ends with this many guards of a tenant.
fn end_with(tenant: &'static Tenant, guards: usize) {
    let ends = move || {
        // Rust promises no order; in fact the thread-local that is used first is dropped last.
        HELD.with(|held| held.borrow_mut().reserve(guards));
        let here: Vec<_> = (0..guards).map(|_| tenant.enter()).collect();
        HELD.with(|held| held.borrow_mut().extend(here));
    };
    thread::spawn(ends).join().unwrap();
}

/// A thread-local that was made before the thread entered is dropped after the thread has left its other tenants. Its
/// guard is dropped then. 20 threads do this, one after the other, with one guard or three.
#[test]
fn a_guard_that_is_dropped_late_leaves_no_user() {
    let policies: [&'static dyn Policy; 3] = [&CacheLocal, &KeptPerCpu, &Lowest];
    for policy in policies {
        for guards in [1, 3] {
            let tenant: &'static Tenant = Box::leak(Box::new(Tenant::builder().policy(policy).build()));
            for _ in 0..20 {
                end_with(tenant, guards);
                let Stats { users, .. } = tenant.stats();
                assert_eq!(users, 0, "{policy:?}, {guards} guards");
            }
            // The ids of the ended threads are free: an entry gets no overflow id.
            let here = tenant.enter();
            assert!(!here.is_overflow());
            assert_eq!(tenant.stats().users, 1);
        }
    }
}

#[cfg(target_os = "linux")]
mod masks {
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};
    use warmcore_sys::affinity;
    use warmcore_tenant::Tenant;
    use warmcore_types::CpuSet;

    /// Waits until the tenant's set has this many CPUs.
    fn becomes(tenant: &Tenant, nr_cpus_allowed: usize) {
        let began = Instant::now();
        while tenant.stats().nr_cpus_allowed as usize != nr_cpus_allowed {
            assert!(began.elapsed() < Duration::from_secs(60), "not {nr_cpus_allowed}: {:?}", tenant.stats());
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_mask_that_was_widened_counts_before_its_thread_moves() {
        let all = affinity::allowed().unwrap();
        let one: CpuSet = all.first().into_iter().collect();
        if all.len() < 2 {
            return println!("skipped: there is one CPU");
        }
        let tenant = Tenant::builder().build();
        let (tell, told) = mpsc::channel();
        let (go, going) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let (tenant, all, one) = (&tenant, &all, &one);
            scope.spawn(move || {
                affinity::set_allowed(one).unwrap();
                // The guard keeps the tenant busy. There is no second entry, which would update the mask.
                let _here = tenant.enter();
                tell.send(()).unwrap();
                going.recv().unwrap();
                affinity::set_allowed(all).unwrap();
                tell.send(()).unwrap();
                let _ = going.recv();
            });
            told.recv().unwrap();
            assert_eq!(tenant.stats().nr_cpus_allowed, 1);
            go.send(()).unwrap();
            told.recv().unwrap();
            becomes(tenant, all.len());
            drop(go);
        });
        assert_eq!(tenant.stats().nr_cpus_allowed as usize, all.len(), "the set does not shrink");
    }
}
