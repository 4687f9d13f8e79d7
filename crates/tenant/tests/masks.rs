//! Affinity masks that change after their threads joined a tenant.
#![cfg(target_os = "linux")]

use std::sync::mpsc;
use std::time::{Duration, Instant};
use warmcore_sys::affinity;
use warmcore_tenant::Tenant;
use warmcore_types::CpuSet;

/// Waits until the tenant's set has this many CPUs.
fn becomes(tenant: &Tenant, nr_cpus_allowed: usize) {
    let began = Instant::now();
    while tenant.stats().nr_cpus_allowed as usize != nr_cpus_allowed {
        assert!(began.elapsed() < Duration::from_secs(60), "not {nr_cpus_allowed}: {:?}", tenant.stats());
        std::thread::sleep(Duration::from_millis(5));
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
    std::thread::scope(|scope| {
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
