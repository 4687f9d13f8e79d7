//! The compactor (the thread `warmcore-cids`) runs only while there are tenants. This test has a process of its own,
//! because other tests make tenants too.

use std::time::{Duration, Instant};
use warmcore_tenant::Tenant;

fn compactors() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "warmcore-cids").count()
}

fn becomes(count: usize) {
    let began = Instant::now();
    while compactors() != count {
        assert!(began.elapsed() < Duration::from_secs(60), "{} compactors, not {count}", compactors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_compactor_runs_only_while_there_are_tenants() {
    assert_eq!(compactors(), 0);
    for _ in 0..3 {
        let (one, other) = (Tenant::builder().build(), Tenant::builder().build());
        becomes(1);
        drop(one.enter());
        drop(one);
        becomes(1);
        drop(other);
        becomes(0);
    }
}
