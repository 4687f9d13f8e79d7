//! The charging allocator in children of fork: whatever other threads were at, a child's allocations go on.
//!
//! Model.   Threads charge, drain and refuse all the time, under budget's locks, while children are forked. A child has
//!          its own thread alone, and allocates in the same accounts. One that waits for a lock that nobody holds there
//!          is killed, and counted.
//! Number.  200 children on each kind. Before children were told of the fork, one of 40 hung.

#![cfg(target_os = "linux")]

#[allow(dead_code)]
#[path = "alloc/kit.rs"]
mod kit;

use kit::{bytes, on_each_kind, used};
use std::alloc::System;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use warmcore_budget::Account;
use warmcore_budget::process::{BudgetAlloc, enter};

#[global_allocator]
static ALLOC: BudgetAlloc<System> = BudgetAlloc::new(System);

const CHILDREN: usize = 200;

/// So much longer than a child takes that it hangs.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// Allocates in the account, at and over its limit, in sizes that pass by the stocks too.
fn allocate(account: &Account, rounds: usize) {
    let _current = enter(account);
    for round in 0..rounds {
        let all = [bytes(64), bytes(3000), bytes(70 << 10), vec![round as u8; 1]];
        drop(std::hint::black_box(all));
    }
}

/// Whether a child that allocates comes to its end.
fn child_ends(account: &Account) -> bool {
    // SAFETY: the child allocates, and calls `_exit`; what else it may call is the test's subject.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A child that hangs ends all the same where its parent was killed meanwhile.
        // SAFETY: no memory; `SIGALRM` ends the process.
        unsafe { libc::alarm(3 * HANGS_AFTER.as_secs() as u32) };
        allocate(account, 100);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let (began, mut status) = (Instant::now(), 0);
    let mut has_ended = false;
    while !has_ended && began.elapsed() < HANGS_AFTER {
        // SAFETY: writes the number that we give it.
        has_ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child;
        thread::sleep(Duration::from_micros(200));
    }
    if !has_ended {
        // SAFETY: our own child, which was not waited for.
        unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, &mut status, 0)) };
    }
    has_ended && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn children_allocate_whatever_was_locked() {
    on_each_kind(|kind| {
        let root = Account::root("root").kind(kind).limit(100_000).build();
        let account = root.child("account").build();
        let full = root.force_hold(90_000);
        let is_over = AtomicBool::new(false);
        let ended = thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        allocate(&account, 10);
                        drop(root.child("short-lived").build());
                    }
                });
            }
            let ended = (0..CHILDREN).filter(|_| child_ends(&account)).count();
            is_over.store(true, Relaxed);
            ended
        });
        assert_eq!(ended, CHILDREN, "{kind}: so many children of {CHILDREN} came to their end");
        drop(full);
        assert_eq!((used(&account), used(&root)), (0, 0));
    });
}
