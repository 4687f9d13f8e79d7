//! A tenant that can't be made, for lack of address space, gives its index back.
//!
//! The test limits the address space of its process to 64 MiB more than it has, so it is the only one in this file.
//! 65536 CPU numbers need more than 256 MiB of addresses.

#![cfg(target_os = "linux")]

use std::fs;
use std::panic::catch_unwind;
use warmcore_tenant::Tenant;

/// A number of CPU numbers for which the address space does not suffice.
const CPUS: u32 = 65536;

fn leave_64_mib() {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: the call has no requirements.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let bytes = pages * page + (64 << 20);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the kernel reads the struct during the call only.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// Waits until the compactor's thread, which starts with the first tenant and needs address space too, has started.
fn await_the_compactor() {
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
fn a_tenant_that_cannot_be_made_gives_its_index_back() {
    let first = Tenant::builder().build();
    await_the_compactor();
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
