//! Forgotten charges: a `ChargeFuture` that is neither polled again nor dropped has no effect after the end of its
//! account.
//!
//! It stays in its queue, and charges behind it wait unless they fit in addition, until its account has neither a
//! handle nor a child. Then the charge is removed from the queue, and only after that the account's node may be
//! reused.
#![cfg(not(loom))]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use warmcore_budget::{Account, StockKind};

const KINDS: [StockKind; 2] = [StockKind::Rseq, StockKind::Atomic];

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// Makes a charge that waits, and forgets it.
fn forget_a_wait(account: &Account, n: u64) {
    let mut waits = Box::pin(account.charge(n));
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    std::mem::forget(waits);
}

#[test]
fn a_forgotten_charge_does_not_block_later_accounts() {
    for kind in KINDS {
        let account = Account::root("forgetful").kind(kind).limit(10).build();
        let held = account.try_hold(10).unwrap();
        for _ in 0..3 {
            forget_a_wait(&account, 5);
        }
        drop(held);
        drop(account);
        Account::reclaim_idle_all();
        // One of them has the node of the ended account.
        let later: Vec<Account> =
            (0..50).map(|_| Account::root("later").kind(kind).limit(10).build()).collect();
        for account in &later {
            account.try_charge(4).unwrap();
            let mut waits = pin!(account.charge(6));
            let polled = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Ok(_))), "{kind}: {}", account.explain());
            account.uncharge(4).unwrap();
        }
    }
}

#[test]
fn a_forgotten_charge_does_not_block_the_account_above_for_ever() {
    for kind in KINDS {
        let root = Account::root("root").kind(kind).limit(10).build();
        let held = root.try_hold(10).unwrap();
        let child = root.child("forgetful").build();
        forget_a_wait(&child, 5);
        let flag = Arc::<Flag>::default();
        let waker = Waker::from(flag.clone());
        // The two charges do not fit together.
        let mut waits = pin!(root.charge(6));
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(held);
        // As long as the child has a handle, its charge is the first.
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        flag.0.store(false, SeqCst);
        drop(child);
        Account::reclaim_idle_all();
        // The forgotten charge is removed by this thread in `reclaim_idle_all`, or by the crate's background thread if
        // that had begun to reclaim just before.
        let began = Instant::now();
        while !flag.0.load(SeqCst) {
            assert!(began.elapsed() < Duration::from_secs(60), "{kind}: the next one was not woken");
            std::thread::sleep(Duration::from_millis(1));
        }
        let polled = waits.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(polled, Poll::Ready(Ok(_))), "{kind}: {}", root.explain());
        assert_eq!(root.explain().path[0].waiting, 0);
    }
}
