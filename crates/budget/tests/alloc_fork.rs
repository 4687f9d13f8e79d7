//! The charging allocator in children of fork: a child can allocate, in whatever state the parent's other threads
//! were at the fork.
//!
//! Threads charge, drain and refuse all the time, under this crate's locks, while children are forked. A child
//! has only its own thread, and allocates in the same accounts. A child that waits for a lock whose holder does
//! not exist there is killed, and fails the test. 200 children for each kind. Before the allocator checked for a
//! fork, one of 40 hung.

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

/// After this time a child counts as hung.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// Allocates in the account. One of the blocks is larger than what the root's limit leaves, so its charge is refused
/// and then forced.
fn allocate(account: &Account, rounds: usize) {
    let _current = enter(account);
    for round in 0..rounds {
        let all = [bytes(64), bytes(3000), bytes(70 << 10), vec![round as u8; 1]];
        drop(std::hint::black_box(all));
    }
}

/// Forks a child that allocates, and returns whether it finishes.
fn child_ends(account: &Account) -> bool {
    // SAFETY: the child allocates and calls `_exit`; anything else that it calls is the subject of the test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The alarm ends a child that hangs, also if the parent was killed meanwhile. SAFETY: no memory;
        // `SIGALRM` ends the process.
        unsafe { libc::alarm(3 * HANGS_AFTER.as_secs() as u32) };
        allocate(account, 100);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let (began, mut status) = (Instant::now(), 0);
    let mut has_ended = false;
    while !has_ended && began.elapsed() < HANGS_AFTER {
        // SAFETY: writes to the given number.
        has_ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child;
        thread::sleep(Duration::from_micros(200));
    }
    if !has_ended {
        // SAFETY: a child of this process that was not waited for.
        unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, &mut status, 0)) };
    }
    has_ended && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn children_of_fork_allocate_whatever_lock_was_held() {
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
