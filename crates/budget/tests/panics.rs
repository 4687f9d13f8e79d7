//! Panics in code that this crate calls: wakers, listeners, and what a listener owns.
//!
//! Each of them panics at every call. The charge under way is finished, other waiters are woken, and the
//! background thread continues. That it continues is checked by an idle stock, which only that thread takes back: the
//! test fails if it does not within 60 s; the thread's period is 0.1 s.
#![cfg(not(loom))]

use std::future::Future;
use std::panic::panic_any;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use warmcore_budget::{Account, Event, StockKind};

const KINDS: [StockKind; 2] = [StockKind::Rseq, StockKind::Atomic];

const HANGS_AFTER: Duration = Duration::from_secs(60);

/// A value that panics when it is dropped. The first panic has another such value as its payload.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0.fetch_add(1, SeqCst) == 0 {
            panic_any(Bomb(self.0.clone()));
        }
        panic!("dropped again, as planned");
    }
}

/// A waker that panics each time it is called.
#[derive(Default)]
struct BadWaker(AtomicUsize);

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
        panic!("woken, as planned");
    }
}

#[derive(Default)]
struct GoodWaker(AtomicBool);

impl Wake for GoodWaker {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < HANGS_AFTER, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the background thread has taken back the units of an idle stock; no charge here needs them.
#[track_caller]
fn the_thread_goes_on(kind: StockKind) {
    let account = Account::root("idle").kind(kind).build();
    account.try_charge(1).unwrap();
    wait_until("an idle stock is given back", || account.usage().charged == 1);
    account.uncharge(1).unwrap();
}

#[test]
fn a_waker_that_panics_does_not_end_the_background_thread() {
    for kind in KINDS {
        let account = Account::root("full").kind(kind).limit(10).build();
        let _held = account.try_hold(10).unwrap();
        let mut waits = pin!(account.charge(1));
        let bad = Arc::<BadWaker>::default();
        let waker = Waker::from(bad.clone());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // While a charge waits, the thread wakes the first of its queue in each round.
        wait_until("it is woken again", || bad.0.load(SeqCst) >= 3);
        the_thread_goes_on(kind);
    }
}

#[test]
fn a_waker_that_panics_does_not_stop_other_wakes() {
    for kind in KINDS {
        let root = Account::root("root").kind(kind).build();
        let accounts: Vec<Account> = (0..32).map(|_| root.child("full").limit(10).build()).collect();
        let held: Vec<_> = accounts.iter().map(|account| account.try_hold(10).unwrap()).collect();
        let (bad, good) = (Arc::<BadWaker>::default(), Arc::<GoodWaker>::default());
        // One of the queues has a waker at its head that does not panic; the order of the queues is random.
        let mut waits: Vec<_> = accounts.iter().map(|account| Box::pin(account.charge(1))).collect();
        for (i, waits) in waits.iter_mut().enumerate() {
            let waker = if i == 7 { Waker::from(good.clone()) } else { Waker::from(bad.clone()) };
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        good.0.store(false, SeqCst);
        // Frees units in all accounts, so that this thread wakes the waiters.
        root.set_limit(u64::MAX - 1);
        assert!(good.0.load(SeqCst), "{kind}: not woken");
        drop(held);
        let polled = waits[7].as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(_))));
    }
}

#[test]
fn a_listener_that_panics_changes_no_charge() {
    for kind in KINDS {
        let calls = Arc::<AtomicUsize>::default();
        let counted = calls.clone();
        let listener = move |_: &Event| {
            counted.fetch_add(1, SeqCst);
            panic!("in a listener, as planned");
        };
        let root = Account::root("root").kind(kind).limit(1000).soft_limit(500).on_event(listener).build();
        let child = root.child("child").build();
        // Over the soft limit, to the limit, refused, and forced.
        child.try_charge(600).unwrap();
        assert_eq!(root.exact_usage(), 600);
        child.try_charge(400).unwrap();
        assert!(child.try_charge(1).is_err());
        assert_eq!(root.exact_usage(), 1000);
        let over = child.force_charge(500).unwrap_err();
        assert_eq!((over.account(), over.by()), ("root", 500));
        assert_eq!((root.exact_usage(), child.exact_usage()), (1500, 1500));
        child.uncharge(1500).unwrap();
        assert_eq!((root.exact_usage(), child.exact_usage()), (0, 0));
        assert!(calls.load(SeqCst) >= 3, "{kind}: {calls:?}");
    }
}

#[test]
fn what_a_listener_owns_may_panic_where_the_account_ends() {
    for kind in KINDS {
        let dropped = Arc::<AtomicUsize>::default();
        let bomb = Bomb(dropped.clone());
        let account = Account::root("listening").kind(kind).on_event(move |_| _ = &bomb).build();
        let charge = account.try_hold(100).unwrap();
        drop(account);
        assert_eq!(dropped.load(SeqCst), 0);
        // The account has ended: the background thread finds that nothing is charged to it any more.
        drop(charge);
        wait_until("the listener is dropped", || dropped.load(SeqCst) > 0);
        the_thread_goes_on(kind);
        // An account that ends here, with its last handle.
        let bomb = Bomb(Arc::default());
        drop(Account::root("listening").kind(kind).on_event(move |_| _ = &bomb).build());
    }
}
