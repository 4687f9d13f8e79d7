//! Drops a free list when no address space is left. The only test of its file, since the limit is the process's.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use warmcore_percpu::FreeList;

static DROPPED: AtomicU64 = AtomicU64::new(0);

struct Noted(#[allow(dead_code)] u64);

impl Drop for Noted {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, SeqCst);
    }
}

fn limit_space(bytes: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes, then reads, the struct during the call.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut limit), 0);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
    }
}

#[test]
fn a_list_that_was_never_drained_is_dropped_without_address_space() {
    let list = FreeList::with_capacity(4);
    // A CPU's stack holds 4 items at most; the others are in the list's depot, the part that all CPUs share.
    (0..100).for_each(|n| list.push(Box::new(Noted(n))));
    limit_space(0);
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(list)));
    limit_space(u64::MAX);
    dropped.unwrap();
    assert_eq!(DROPPED.load(SeqCst), 100);
}
