//! Waiting charges: first come, first served, and no charge keeps waiting while it fits.
//!
//! Where the order matters, futures are polled by hand, and a waker records its calls: the test then checks whether the
//! call that freed units had called the waker when it returned. Under stress, three or four threads sleep until they
//! are woken: 30 000 charges for each thread.
#![cfg(not(loom))]

use fastrand::Rng;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use warmcore_budget::process::ChargeFuture;
use warmcore_budget::{Account, Charge, OverBudget, StockKind};

const KINDS: [StockKind; 2] = [StockKind::Rseq, StockKind::Atomic];

/// Charges of each thread in the long tests. Debug builds make a sixth of them.
const CHARGES: u64 = if cfg!(debug_assertions) { 5000 } else { 30_000 };

fn root(kind: StockKind, limit: u64) -> Account {
    Account::root("root").kind(kind).limit(limit).build()
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Release);
    }
}

/// A charge that waits, polled by hand.
struct Waiter<'a> {
    future: Pin<Box<ChargeFuture<'a>>>,
    flag: Arc<Flag>,
}

impl<'a> Waiter<'a> {
    /// Makes a charge and polls it once. Panics unless it has to wait.
    fn new(account: &'a Account, n: u64) -> Self {
        let mut waiter = Self { future: Box::pin(account.charge(n)), flag: Arc::default() };
        assert!(waiter.poll().is_none(), "it fitted");
        waiter
    }

    /// Polls the charge, whether it was woken or not.
    fn poll(&mut self) -> Option<Result<Charge, OverBudget>> {
        self.flag.0.store(false, Release);
        match self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(self.flag.clone()))) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    fn is_woken(&self) -> bool {
        self.flag.0.load(Acquire)
    }

    /// Asserts that the previous call has woken the charge. The background thread may have taken over the wake:
    /// then the charge is woken a little later, and that is counted in `LATE`.
    fn expect_wake(&self) {
        if !self.is_woken() {
            LATE.fetch_add(1, Relaxed);
            while !self.is_woken() {
                std::thread::yield_now();
            }
        }
    }

    /// Asserts that the charge was woken and is granted.
    fn take(mut self) -> Charge {
        self.expect_wake();
        self.poll().expect("it is not granted").expect("it was refused")
    }
}

/// How often a waiter was not woken by the call that freed the units. Each test makes each such call at least once for
/// each of the two kinds, so a call that never wakes by itself is counted at least twice, which is above `LATE_MAX`.
static LATE: AtomicU64 = AtomicU64::new(0);
const LATE_MAX: u64 = 1;

/// Runs the tests one after the other, because each could wake waiters of the others.
struct Alone(#[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

fn alone() -> Alone {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    LATE.store(0, Relaxed);
    Alone(alone)
}

impl Drop for Alone {
    fn drop(&mut self) {
        let late = LATE.load(Relaxed);
        assert!(
            std::thread::panicking() || late <= LATE_MAX,
            "{late} were not woken by the call that freed units"
        );
    }
}

/// Polls the future, and sleeps between polls until it is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Sleeper(std::thread::Thread);
    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Sleeper(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

fn waiting(account: &Account) -> u32 {
    account.explain().path[0].waiting
}

#[test]
fn a_charge_that_fits_does_not_wait() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 100);
        let held = block_on(root.charge(100)).unwrap();
        assert_eq!(block_on(root.charge(0)).unwrap().units(), 0);
        assert_eq!((held.units(), waiting(&root)), (100, 0));
    }
}

#[test]
fn a_charge_that_can_never_fit_is_refused_at_once() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 100);
        let leaf = root.child("leaf").build();
        assert!(block_on(leaf.charge(101)).unwrap_err().exceeds_limit());
        assert!(block_on(leaf.charge(u64::MAX)).unwrap_err().exceeds_limit());
        // A charge that can never fit is also refused if it waited behind other charges, when it is the first.
        let held = leaf.try_hold(100).unwrap();
        let first = Waiter::new(&leaf, 1);
        let mut hopeless = Waiter::new(&leaf, 100);
        root.set_limit(50);
        drop(held);
        let first = first.take();
        hopeless.expect_wake();
        assert!(hopeless.poll().unwrap().unwrap_err().exceeds_limit());
        drop(first);
        assert_eq!((waiting(&root), root.exact_usage()), (0, 0));
    }
}

#[test]
fn waiters_are_served_in_order() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 1000);
        let leaves = [root.child("a").build(), root.child("b").build()];
        let mut held = leaves[0].try_hold(1000).unwrap();
        let mut waiters: Vec<Waiter> = (0..20).map(|i| Waiter::new(&leaves[i % 2], 10)).collect();
        assert_eq!(waiting(&root), 20);
        let mut served = Vec::new();
        while !waiters.is_empty() {
            held.shrink(10);
            // The waiters are polled from the last to the first: only the first is granted.
            for waiter in waiters.iter_mut().skip(1).rev() {
                assert!(waiter.poll().is_none(), "it overtook another charge");
            }
            served.push(waiters.remove(0).take());
        }
        assert_eq!((waiting(&root), root.exact_usage()), (0, 1000));
        drop((held, served));
        assert_eq!(root.exact_usage(), 0);
    }
}

/// The first waiter may be polled late. Units that suffice for it and for those behind it are not idle meanwhile.
#[test]
fn waiters_that_fit_are_woken_and_served_before_the_first_is_polled() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 1000);
        let leaves = [root.child("a").build(), root.child("b").build()];
        let mut held = leaves[0].try_hold(1000).unwrap();
        let mut waiters: Vec<Waiter> = (0..20).map(|i| Waiter::new(&leaves[i % 2], 10)).collect();
        held.shrink(100);
        let last = waiters.split_off(10);
        waiters.iter().for_each(Waiter::expect_wake);
        assert!(last.iter().all(|waiter| !waiter.is_woken()), "it does not fit");
        // Polled from the last to the first.
        let served: Vec<Charge> = waiters.into_iter().rev().map(Waiter::take).collect();
        assert_eq!((waiting(&root), root.usage().charged), (10, 1000));
        drop((last, held, served));
        assert_eq!(root.exact_usage(), 0);
    }
}

#[test]
fn a_bypassing_waiter_leaves_units_for_those_before_it() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 1000);
        let mut held = root.try_hold(1000).unwrap();
        let large = Waiter::new(&root, 500);
        let (fits, mut does_not) = (Waiter::new(&root, 60), Waiter::new(&root, 60));
        held.shrink(600);
        let fits = fits.take();
        assert!(
            !does_not.is_woken() && does_not.poll().is_none(),
            "it would take units that the first one needs"
        );
        let large = large.take();
        held.shrink(100);
        drop((does_not.take(), fits, large, held));
        assert_eq!((waiting(&root), root.exact_usage()), (0, 0));
    }
}

#[test]
fn a_bypassing_waiter_leaves_units_in_shared_accounts_below() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 1000);
        let (shared, other) =
            (root.child("shared").limit(500).build(), root.child("other").limit(100).build());
        let mut held = root.try_hold(1000).unwrap();
        let large = Waiter::new(&shared, 500);
        let (mut beside, elsewhere) = (Waiter::new(&shared, 30), Waiter::new(&other, 30));
        assert_eq!((waiting(&root), waiting(&shared)), (3, 0));
        held.shrink(560);
        assert!(
            beside.poll().is_none(),
            "it would take units that the first one needs in the account they share"
        );
        // The charges before this one do not need units of its account.
        let elsewhere = elsewhere.take();
        let large = large.take();
        beside.expect_wake();
        assert!(beside.poll().is_none());
        assert_eq!((waiting(&root), waiting(&shared)), (0, 1));
        drop(large);
        drop((beside.take(), elsewhere, held));
        assert_eq!((waiting(&root), root.exact_usage()), (0, 0));
    }
}

/// Each of the two small charges is the first in the queue of its own account, and behind a large charge in the root's
/// queue. Only one of the two fits in addition to the large one.
#[test]
fn two_bypassing_waiters_do_not_take_the_same_units() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 1000);
        let leaves = [root.child("a").limit(30).build(), root.child("b").limit(30).build()];
        let arrived = AtomicU64::new(0);
        for round in 1..=CHARGES / 10 {
            let mut held = root.try_hold(940).unwrap();
            let full = leaves.each_ref().map(|leaf| leaf.try_hold(30).unwrap());
            let mut large = Box::pin(root.charge(500));
            let mut context = Context::from_waker(Waker::noop());
            assert!(large.as_mut().poll(&mut context).is_pending());
            let mut small = leaves.each_ref().map(|leaf| Box::pin(leaf.charge(30)));
            assert!(small.iter_mut().all(|small| small.as_mut().poll(&mut context).is_pending()));
            assert_eq!(leaves.each_ref().map(waiting), [1, 1]);
            drop(full);
            held.shrink(470);
            let charges = std::thread::scope(|scope| {
                let threads = small.each_mut().map(|small| {
                    let arrived = &arrived;
                    scope.spawn(move || {
                        arrived.fetch_add(1, SeqCst);
                        while arrived.load(SeqCst) < 2 * round {
                            std::thread::yield_now();
                        }
                        match small.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                            Poll::Ready(charge) => Some(charge.unwrap()),
                            Poll::Pending => None,
                        }
                    })
                });
                threads.map(|thread| thread.join().unwrap())
            });
            let served = charges.iter().flatten().count();
            assert!(served <= 1, "both are charged, and overtake the large one");
            assert!(large.as_mut().poll(&mut context).is_ready(), "{}", root.explain());
        }
    }
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 1000);
        let leaf = root.child("leaf").build();
        let mut held = leaf.try_hold(1000).unwrap();
        let mut large = Waiter::new(&leaf, 800);
        let mut small: Vec<Waiter> = (0..5).map(|_| Waiter::new(&leaf, 1)).collect();
        for _ in 0..79 {
            held.shrink(10);
            assert!(large.poll().is_none());
            assert!(small.iter_mut().all(|small| small.poll().is_none()));
            let over = leaf.try_charge(1).unwrap_err();
            assert!(over.is_queued() && over.account() == "root", "{over}");
            assert!(root.try_charge(1).unwrap_err().is_queued());
        }
        held.shrink(10);
        let large = large.take();
        // No units are left for the small charges, which continue to wait in their order.
        assert!(small.iter_mut().all(|small| small.poll().is_none()));
        held.shrink(5);
        let small: Vec<Charge> = small.into_iter().map(Waiter::take).collect();
        leaf.try_charge(0).unwrap();
        assert!(!leaf.try_charge(1).unwrap_err().is_queued());
        drop((large, small, held));
        assert_eq!((waiting(&root), root.exact_usage()), (0, 0));
    }
}

#[test]
fn a_dropped_waiter_wakes_the_next() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 100);
        let mut held = root.try_hold(100).unwrap();
        let (first, second, third) = (Waiter::new(&root, 90), Waiter::new(&root, 10), Waiter::new(&root, 10));
        held.shrink(20);
        first.expect_wake();
        assert!(!second.is_woken());
        // The first charge was woken, but is dropped and not polled.
        drop(first);
        let second = second.take();
        let third = third.take();
        // Dropping a charge in the middle of the queue wakes no other, and does not break the order.
        let (first, middle, last) = (Waiter::new(&root, 5), Waiter::new(&root, 5), Waiter::new(&root, 5));
        drop(middle);
        assert!(!last.is_woken());
        held.shrink(10);
        let first = first.take();
        drop((last.take(), first, second, third, held));
        assert_eq!((waiting(&root), root.exact_usage()), (0, 0));
    }
}

#[test]
fn a_grant_that_is_not_polled_is_given_back() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 100);
        let held = root.try_hold(100).unwrap();
        let first = Waiter::new(&root, 100);
        let second = Waiter::new(&root, 100);
        drop(held);
        drop(first.take());
        drop(second.take());
        assert_eq!((waiting(&root), root.exact_usage()), (0, 0));
    }
}

#[test]
fn a_waiter_is_woken_by_every_way_to_free_units() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 1000);
        let (leaf, other) = (root.child("leaf").build(), root.child("other").build());
        let waits = |makes_room: &mut dyn FnMut()| {
            let waiter = Waiter::new(&leaf, 10);
            makes_room();
            drop(waiter.take());
        };
        let mut held = Some(other.try_hold(1000).unwrap());
        waits(&mut || root.set_limit(1010));
        root.set_limit(1000);
        waits(&mut || held.as_mut().unwrap().shrink(10));
        held.as_mut().unwrap().grow(&other, 10).unwrap();
        waits(&mut || drop(held.as_mut().unwrap().split(10)));
        held.take();
        let mut kept = root.try_hold(900).unwrap();
        other.set_guarantee(100).unwrap();
        waits(&mut || other.set_guarantee(90).unwrap());
        other.set_guarantee(100).unwrap();
        let mut victim = Some(other);
        waits(&mut || drop(victim.take()));
        kept.grow(&root, 90).unwrap();
        let mut held = Some(root.try_hold(10).unwrap());
        // Units are freed on another thread, and by the drop of a charge that outlived its account.
        waits(&mut || std::thread::scope(|scope| scope.spawn(|| held.take()).join().map(drop).unwrap()));
        let mut orphaned = Some(root.child("dropped").build().try_hold(10).unwrap());
        waits(&mut || drop(orphaned.take()));
        root.try_charge(10).unwrap();
        waits(&mut || root.uncharge(10).unwrap());
        drop(kept);
        assert_eq!((waiting(&root), root.exact_usage()), (0, 0));
    }
}

#[test]
fn units_in_stocks_are_free_for_waiters() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 1_000_000);
        let (leaf, other) = (root.child("leaf").build(), root.child("other").build());
        (0..1000).for_each(|_| drop(other.try_hold(10).unwrap()));
        let held = leaf.try_hold(900_000).unwrap();
        // A charge of all units that are not in use fits, although some are in the other account's stock.
        let all = block_on(leaf.charge(100_000)).unwrap();
        let waiter = Waiter::new(&leaf, 50_000);
        drop(all);
        drop((waiter.take(), held));
        assert_eq!(root.exact_usage(), 0);
    }
}

#[test]
fn a_waiter_moves_to_the_full_account_above_and_keeps_its_order() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 100);
        let leaf = root.child("leaf").limit(10).build();
        let other = root.child("other").build();
        let mine = leaf.try_hold(10).unwrap();
        let mut rest = other.try_hold(90).unwrap();
        let mut early = Waiter::new(&leaf, 10);
        assert_eq!((waiting(&leaf), waiting(&root)), (1, 0));
        let mut late = Waiter::new(&other, 5);
        assert_eq!((waiting(&leaf), waiting(&root)), (1, 1));
        // A forced charge takes what the leaf gives back, before `early` is polled.
        root.force_charge(10).unwrap_err();
        drop(mine);
        early.expect_wake();
        assert!(early.poll().is_none());
        assert_eq!((waiting(&leaf), waiting(&root)), (0, 2));
        // `early` has the earlier ticket.
        rest.shrink(10);
        assert!(late.poll().is_none());
        let early = early.take();
        rest.shrink(5);
        let late = late.take();
        root.uncharge(10).unwrap();
        drop((early, late, rest));
        assert_eq!((waiting(&leaf), waiting(&root), root.exact_usage()), (0, 0, 0));
    }
}

#[test]
fn the_first_ticket_does_not_move_between_two_queues() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 100);
        let leaf = root.child("leaf").limit(50).build();
        let (mut mine, mut rest) = (leaf.try_hold(50).unwrap(), root.try_hold(50).unwrap());
        let first = Waiter::new(&leaf, 10);
        let (second, third) = (Waiter::new(&leaf, 10), Waiter::new(&root, 10));
        assert_eq!((waiting(&leaf), waiting(&root)), (2, 1));
        // Other charges wait in the leaf and in the root, with later tickets.
        mine.shrink(10);
        let first = first.take();
        mine.shrink(10);
        let second = second.take();
        rest.shrink(10);
        let third = third.take();
        drop((first, second, third, mine, rest));
        assert_eq!((waiting(&leaf), waiting(&root), root.exact_usage()), (0, 0, 0));
    }
}

#[test]
fn a_waiter_in_one_leaf_does_not_block_another() {
    let _alone = alone();
    for kind in KINDS {
        let root = root(kind, 1_000_000);
        let (full, free) = (root.child("full").limit(10).build(), root.child("free").build());
        let held = full.try_hold(10).unwrap();
        let waiter = Waiter::new(&full, 10);
        (0..1000).for_each(|_| drop(free.try_hold(50).unwrap()));
        root.try_charge(50).unwrap();
        root.uncharge(50).unwrap();
        assert!(
            full.try_charge(1).unwrap_err().exceeds_limit() || full.try_charge(1).unwrap_err().is_queued()
        );
        full.force_charge(1).unwrap_err();
        full.uncharge(1).unwrap();
        drop(held);
        drop(waiter.take());
        assert_eq!(root.exact_usage(), 0);
    }
}

/// Runs threads that charge, hold the units for a while, and give them back; together they may ask for more than the
/// limit.
fn every_waiter_is_served(kind: StockKind, threads: u64, limit: u64, most: u64) {
    let _alone = alone();
    let root = root(kind, limit);
    let leaves = [root.child("a").build(), root.child("b").limit(limit * 3 / 4).build()];
    let (held, waited) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (leaves, root, held, waited) = (&leaves, &root, &held, &waited);
            scope.spawn(move || {
                let (mut rng, mut kept) = (Rng::with_seed(thread), None);
                for i in 0..CHARGES {
                    let leaf = [&leaves[0], &leaves[1], root][rng.u64(..3) as usize];
                    // Sometimes a charge of half the limit.
                    let n = if i % 64 == 0 { limit / 2 } else { 1 + rng.u64(..most) };
                    if i % 7 == 0 {
                        // The future is dropped before its first poll, while it waits, or when it was granted.
                        let mut future = pin!(leaf.charge(n));
                        let mut context = Context::from_waker(Waker::noop());
                        let _ = rng.u64(..2) == 0 && future.as_mut().poll(&mut context).is_ready();
                        continue;
                    }
                    // A thread gives back its units before it waits: otherwise all threads might wait for each
                    // other.
                    drop(kept.take());
                    let mut has_waited = false;
                    let mut future = pin!(leaf.charge(n));
                    let charge = block_on(std::future::poll_fn(|context| {
                        let poll = future.as_mut().poll(context);
                        has_waited |= poll.is_pending();
                        poll
                    }));
                    waited.fetch_add(u64::from(has_waited), Relaxed);
                    let sum = held.fetch_add(n, SeqCst) + n;
                    assert!(!kind.is_strict() || sum <= limit, "{sum} of {limit} are held");
                    if rng.u64(..4) == 0 {
                        std::thread::yield_now();
                    }
                    held.fetch_sub(n, SeqCst);
                    kept = Some(charge.unwrap());
                }
            });
        }
    });
    println!("{kind}: {} charges, {} waited", threads * CHARGES, waited.into_inner());
    for account in [&leaves[0], &leaves[1], &root] {
        assert_eq!((waiting(account), account.exact_usage()), (0, 0), "{}", account.explain());
        assert_eq!(account.explain().path[0].stocks_disabled, 0);
    }
}

#[test]
fn atomic_stocks_serve_every_waiter() {
    every_waiter_is_served(StockKind::Atomic, 4, 100, 70);
}

#[test]
fn rseq_stocks_serve_every_waiter() {
    every_waiter_is_served(StockKind::Rseq, 4, 100, 70);
}

#[test]
fn atomic_stocks_serve_every_waiter_with_stocks_open() {
    every_waiter_is_served(StockKind::Atomic, 3, 100_000, 50);
}

#[test]
fn rseq_stocks_serve_every_waiter_with_stocks_open() {
    every_waiter_is_served(StockKind::Rseq, 3, 100_000, 50);
}
