//! The charging allocator called from this crate itself: by what it allocates and frees, by listeners and
//! wakers, and under locks of the program.

#[allow(dead_code)]
#[path = "alloc/kit.rs"]
mod kit;

use kit::{bytes, on_each_kind, poll, used};
use std::alloc::System;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;
use warmcore_budget::process::{BudgetAlloc, enter, within};
use warmcore_budget::{Account, Event};

#[global_allocator]
static ALLOC: BudgetAlloc<System> = BudgetAlloc::new(System);

/// Charges the account up to its limit or beyond, so that every charge to it takes the longest path.
fn full(account: &Account) -> warmcore_budget::Charge {
    account.force_hold(account.limit()).0
}

#[test]
fn accounts_are_made_read_and_dropped_in_a_full_scope() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).limit(10_000).on_event(|_| ()).build();
        let held = full(&account);
        {
            let _current = enter(&account);
            let children: Vec<Account> =
                (0..300).map(|n| account.child(format!("child {n}")).build()).collect();
            for child in &children {
                child.force_charge(10).unwrap_err();
            }
            assert!(account.explain().to_string().contains("account: "));
            assert!(format!("{account:?}").contains("account"));
            account.drain_all();
            account.set_limit(5_000);
            account.set_limit(10_000);
            for child in children {
                child.uncharge(10).unwrap();
            }
        }
        drop(held);
        Account::reclaim_idle_all();
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn memory_of_the_budget_itself_is_charged_to_no_account() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).build();
        let parent = Account::root("parent").kind(kind).build();
        {
            let _current = enter(&account);
            // Orphans: ended, but with charges.
            let held: Vec<_> = (0..2000)
                .map(|n| {
                    let child = parent.child(format!("child {n}")).on_event(|_| ()).build();
                    child.try_hold(10).unwrap()
                })
                .collect();
            Account::reclaim_idle_all();
            drop(held);
            Account::reclaim_idle_all();
        }
        assert_eq!((used(&account), used(&parent)), (0, 0));
    });
}

#[test]
fn explain_returns_where_its_scope_becomes_full() {
    on_each_kind(|kind| {
        let root = Account::root("root").kind(kind).limit(1 << 20).build();
        let children: Vec<Account> = (0..50).map(|_| root.child("child").build()).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let filler = {
            let (root, is_over) = (root.clone(), is_over.clone());
            thread::spawn(move || {
                while !is_over.load(SeqCst) {
                    // Opens stocks, of which explain makes a list; then they are drained.
                    children.iter().for_each(|child| child.try_hold(1).map(drop).unwrap());
                    thread::yield_now();
                    drop(full(&root));
                }
            })
        };
        for _ in 0..3000 {
            let _current = enter(&root);
            drop(root.explain());
        }
        is_over.store(true, SeqCst);
        filler.join().unwrap();
        assert_eq!(used(&root), 0);
    });
}

#[test]
fn memory_of_a_listener_is_charged_to_no_account() {
    on_each_kind(|kind| {
        let events = Arc::new(Mutex::new(Vec::<String>::new()));
        let heard = events.clone();
        let account = Account::root("account")
            .kind(kind)
            .limit(1000)
            // The listener has a lock: what it allocates must not call the listener again.
            .on_event(move |event| heard.lock().unwrap().push(format!("{event:?}")))
            .build();
        let held = full(&account);
        {
            let _current = enter(&account);
            for _ in 0..100 {
                assert!(account.try_charge(500).is_err());
            }
        }
        drop(held);
        assert!(events.lock().unwrap().len() >= 100);
        assert_eq!(used(&account), 0, "the texts are still there");
    });
}

#[test]
fn a_listener_made_in_a_scope_is_charged_to_no_account() {
    on_each_kind(|kind| {
        let outer = Account::root("outer").kind(kind).build();
        let texts = [1u64; 100];
        let inner = {
            let _current = enter(&outer);
            Account::root("inner").kind(kind).on_event(move |_| _ = std::hint::black_box(&texts)).build()
        };
        assert_eq!(used(&outer), 0);
        drop(inner);
        assert_eq!(used(&outer), 0);
    });
}

#[test]
fn a_listener_may_make_and_drop_accounts_when_a_guarantee_is_refused() {
    on_each_kind(|kind| {
        let spare = Arc::new(Mutex::new(None::<Account>));
        let given_up = spare.clone();
        let root = Account::root("root")
            .kind(kind)
            .limit(1000)
            .on_event(move |event| {
                if let Event::Pressure { .. } = event {
                    drop(given_up.lock().unwrap().take());
                }
            })
            .build();
        *spare.lock().unwrap() = Some(root.child("spare").guarantee(800).build());
        // It fits once the listener has dropped the spare account.
        let child = root.child("child").guarantee(700).try_build().expect("it fits by then");
        assert!(spare.lock().unwrap().is_none());
        *spare.lock().unwrap() = Some(root.child("spare").guarantee(200).build());
        child.set_guarantee(900).expect("and again");
        drop(child);
        assert_eq!(used(&root), 0);
    });
}

#[test]
fn a_listener_that_is_dropped_may_do_anything() {
    on_each_kind(|kind| {
        struct Busy(Account);
        impl Drop for Busy {
            fn drop(&mut self) {
                let child = self.0.child("last").build();
                let _current = enter(&child);
                drop(bytes(1000));
                drop(child.explain());
                drop(self.0.explain());
                Account::reclaim_idle_all();
            }
        }
        let root = Account::root("root").kind(kind).build();
        for _ in 0..10 {
            let busy = Busy(root.clone());
            let account = root.child("account").on_event(move |_| _ = std::hint::black_box(&busy)).build();
            let _current = enter(&root);
            drop(account);
        }
        Account::reclaim_idle_all();
        assert_eq!(used(&root), 0);
    });
}

/// A waker whose clones are boxes.
fn boxed() -> Waker {
    fn table() -> &'static RawWakerVTable {
        static TABLE: RawWakerVTable = RawWakerVTable::new(
            |_| {
                drop(std::hint::black_box(bytes(100)));
                RawWaker::new(Box::into_raw(Box::new([0u64; 64])).cast(), table())
            },
            // SAFETY: a box made by `clone`.
            |data| unsafe { drop(Box::from_raw(data.cast::<[u64; 64]>().cast_mut())) },
            |_| (),
            // SAFETY: a box made by `clone`.
            |data| unsafe { drop(Box::from_raw(data.cast::<[u64; 64]>().cast_mut())) },
        );
        &TABLE
    }
    let data = Box::into_raw(Box::new([0u64; 64]));
    // SAFETY: the table's functions own the box behind `data`, and may be called on any thread.
    unsafe { Waker::from_raw(RawWaker::new(data.cast(), table())) }
}

#[test]
fn futures_wait_in_a_full_scope_with_wakers_that_allocate() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).limit(1000).build();
        let held = full(&account);
        {
            let _current = enter(&account);
            let wakers = [boxed(), boxed()];
            let mut waiting: Vec<_> = (0..20).map(|_| Box::pin(account.charge(900))).collect();
            for waker in wakers.iter().chain(&wakers) {
                for future in &mut waiting {
                    assert!(future.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
                }
            }
            // Drops the futures at the front, in the middle and at the back of the queue.
            for at in [0, 9, 17, 0] {
                drop(waiting.remove(at));
            }
        }
        drop(held);
        Account::reclaim_idle_all();
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn futures_wait_and_are_served_inside_of_their_own_account() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).limit(100_000).build();
        let held = full(&account);
        let mut waiting: Vec<_> = (0..20)
            .map(|_| {
                Box::pin(within(&account, async {
                    let charge = account.charge(1000).await.unwrap();
                    drop((bytes(500), charge));
                }))
            })
            .collect();
        assert!(waiting.iter_mut().all(|future| poll(future).is_pending()));
        drop(held);
        while !waiting.is_empty() {
            waiting.retain_mut(|future| poll(future).is_pending());
        }
        assert_eq!(used(&account), 0);
    });
}

/// A queue like an executor's run queue: wakers take its lock.
struct Queue {
    lock: Mutex<Vec<Vec<u8>>>,
    is_woken: AtomicBool,
    thread: thread::Thread,
}

impl Wake for Queue {
    fn wake(self: Arc<Self>) {
        let _queue = self.lock.lock().unwrap();
        self.is_woken.store(true, SeqCst);
        self.thread.unpark();
    }
}

#[test]
fn memory_is_allocated_and_freed_under_the_lock_that_a_waker_takes() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).limit(10_000).build();
        let mut held = full(&account);
        let blocks: Vec<Vec<u8>> = {
            let _current = enter(&account);
            (0..10).map(|_| bytes(2000)).collect()
        };
        let queue = Arc::new(Queue {
            lock: Mutex::new(blocks),
            is_woken: AtomicBool::new(false),
            thread: thread::current(),
        });
        let waker = Waker::from(queue.clone());
        let mut future = pin!(account.charge(9_000));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        held.shrink(held.units());
        // Freeing makes units available, and allocating may notice that.
        {
            let mut blocks = queue.lock.lock().unwrap();
            blocks.clear();
            let _current = enter(&account);
            blocks.shrink_to(100);
            blocks.reserve_exact(200);
            *blocks = Vec::new();
        }
        // Waits for the pending wake.
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(charge) => break drop(charge.unwrap()),
                Poll::Pending => {
                    while !queue.is_woken.swap(false, SeqCst) {
                        thread::park();
                    }
                }
            }
        }
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn freed_memory_wakes_waiters() {
    on_each_kind(|kind| {
        static WOKEN: AtomicU32 = AtomicU32::new(0);
        struct Unpark(thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                WOKEN.fetch_add(1, SeqCst);
                self.0.unpark();
            }
        }
        let account = Account::root("account").kind(kind).limit(100_000).build();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        for _ in 0..20 {
            let block = {
                let _current = enter(&account);
                bytes(90_000)
            };
            let mut future = pin!(account.charge(50_000));
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let freer = thread::spawn(move || drop(block));
            let charge = loop {
                let seen = WOKEN.load(SeqCst);
                if let Poll::Ready(charge) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    break charge.unwrap();
                }
                while WOKEN.load(SeqCst) == seen {
                    thread::park();
                }
            };
            drop(charge);
            freer.join().unwrap();
        }
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn listeners_in_a_scope_may_use_every_operation() {
    on_each_kind(|kind| {
        let own = Arc::new(OnceLock::<Account>::new());
        let depth = AtomicU32::new(0);
        let account = Account::root("account")
            .kind(kind)
            .limit(50_000)
            .on_event({
                let own = own.clone();
                move |event| {
                    let Some(own) = own.get().filter(|_| depth.fetch_add(1, SeqCst) == 0) else { return };
                    let _current = enter(own);
                    let child = own.child(format!("{event:?}")).build();
                    let _ = own.try_charge(100_000);
                    drop((child.explain(), own.explain(), own.drain_all()));
                    Account::reclaim_idle_all();
                    own.exact_usage();
                    depth.store(0, SeqCst);
                }
            })
            .build();
        own.set(account.child("below").build()).unwrap();
        let below = own.get().unwrap();
        {
            let _current = enter(below);
            let blocks: Vec<Vec<u8>> = (0..100).map(|_| vec![0; 1000]).collect();
            drop(blocks);
            account.drain_all();
        }
        assert_eq!(used(&account), 0);
    });
}
