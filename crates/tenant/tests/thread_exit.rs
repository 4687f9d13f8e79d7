//! Threads that end with a guard in another thread-local: they leave the tenant when that guard is dropped.
//!
//! A thread-local that was made before the thread entered is dropped after the thread has left its other tenants. Its guard
//! is dropped then. 20 threads do this, one after the other, with one guard or three.

use std::cell::RefCell;
use std::thread;
use warmcore_tenant::{CacheLocal, Guard, KeptPerCpu, Lowest, Policy, Stats, Tenant};

thread_local! {
    static HELD: RefCell<Vec<Guard<'static>>> = const { RefCell::new(Vec::new()) };
}

/// Runs a thread that ends with this many guards of a tenant.
fn end_with(tenant: &'static Tenant, guards: usize) {
    let ends = move || {
        // The first thread-local that is used is dropped last.
        HELD.with(|held| held.borrow_mut().reserve(guards));
        let here: Vec<_> = (0..guards).map(|_| tenant.enter()).collect();
        HELD.with(|held| held.borrow_mut().extend(here));
    };
    thread::spawn(ends).join().unwrap();
}

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
