//! Per-CPU data that is created after the process has run out of file descriptors.
//!
//! The test creates per-CPU data, lowers the limit on open files to 0, and creates more. The limit is the process's, so
//! this is the only test of its file. A server that is out of descriptors continues to serve its open connections.
//!
//! Source. setrlimit(2), `RLIMIT_NOFILE`.

#![cfg(target_os = "linux")]

use bytemuck::Zeroable;
use warmcore_percpu::{Counter, FreeList, LocalU64, PerCid, PerCpu, field};
use warmcore_sys::affinity::nr_cpu_ids;

#[derive(Zeroable)]
struct Stats {
    hits: LocalU64,
}

fn open_no_more_files() {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads the struct during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    assert!(std::fs::read("/proc/self/status").is_err(), "files still open");
}

#[test]
fn data_is_made_without_a_descriptor() {
    let (before, end) = (PerCid::<Stats>::new(), nr_cpu_ids());
    PerCpu::<Stats>::new();
    open_no_more_files();
    assert_eq!(nr_cpu_ids(), end);
    let (by_cid, by_cpu) = (PerCid::<Stats>::new(), PerCpu::<Stats>::new());
    assert_eq!((by_cid.slots(), by_cpu.slots()), (before.slots(), before.slots()));
    by_cid.add(field!(Stats, hits), 2);
    by_cpu.add(field!(Stats, hits), 3);
    assert_eq!((by_cid.sum(field!(Stats, hits)), by_cpu.sum(field!(Stats, hits))), (2, 3));
    let counter = Counter::new();
    counter.add(4);
    assert_eq!(counter.sum(), 4);
    let list = FreeList::new();
    list.push(Box::new(5));
    // The thread may have migrated: a pop only looks at the current CPU's stack.
    assert_eq!(list.pop().into_iter().chain(list.drain_all()).collect::<Vec<_>>(), [Box::new(5)]);
}
