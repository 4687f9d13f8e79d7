//! No address space: a tenant that can't be made leaves no trace.
//!
//! Model.   The process may map little more than it has. A limit is the whole process's, so this test is alone in its file.
//! Number.  65536 CPU numbers are 256 MiB of addresses; 64 MiB are left.

#![cfg(target_os = "linux")]

use std::fs;
use std::panic::catch_unwind;
use warmcore_tenant::Tenant;

/// More CPU numbers than there are addresses left for.
const CPUS: u32 = 65536;

fn leave_64_mib() {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: no arguments that could be wrong.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let bytes = pages * page + (64 << 20);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: reads the struct during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// A thread that begins needs address space, too: the compactor begins with the first tenant.
fn until_the_compactor_waits() {
    let waits = || {
        fs::read_dir("/proc/self/task").unwrap().any(|task| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.contains("(warmcore-cids) S")
        })
    };
    while !waits() {
        std::thread::yield_now();
    }
}

#[test]
fn a_tenant_that_cannot_be_made_gives_its_place_back() {
    let first = Tenant::builder().build();
    until_the_compactor_waits();
    leave_64_mib();
    for _ in 0..10 {
        let panic = catch_unwind(|| Tenant::builder().cpus(CPUS).build()).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("no address space"), "{text}");
    }
    let next = Tenant::builder().build();
    assert_eq!(next.index(), first.index() + 1);
    drop(first.enter());
    drop(next.enter());
}
