//! Threads that end with a guard in another thread-local: they are counted out when that guard is dropped.
//!
//! Model.   A thread-local that was made before the thread entered is dropped after the thread has been counted out of
//!          its tenants. The guard in it is dropped then.
//! Number.  20 threads, one after the other, with one guard or three.

use std::cell::RefCell;
use std::thread;
use warmcore_tenant::{CacheLocal, Guard, KeptPerCpu, Lowest, Policy, Stats, Tenant};

thread_local! {
    static HELD: RefCell<Vec<Guard<'static>>> = const { RefCell::new(Vec::new()) };
}

/// A thread that ends with so many guards of a tenant.
fn end_with(tenant: &'static Tenant, guards: usize) {
    let ends = move || {
        // Reached first, dropped last.
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
            // What it held is nobody's: all enter, and no id is an overflow's.
            let here = tenant.enter();
            assert!(!here.is_overflow());
            assert_eq!(tenant.stats().users, 1);
        }
    }
}
