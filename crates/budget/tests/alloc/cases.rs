//! Tests of the charging allocator over another allocator. There is a test binary for each such allocator, which
//! includes this file.

use super::kit::{bytes, on_each_kind, poll, used};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::thread;
use warmcore_budget::process::{ActiveAccount, enter, within};
use warmcore_budget::{Account, Event};

/// The size of the header of a block that is aligned to a word or less, in bytes.
const HEADER: u64 = size_of::<usize>() as u64;

#[test]
fn the_active_account_is_charged_and_scopes_nest() {
    on_each_kind(|kind| {
        let (outer, inner) =
            (Account::root("outer").kind(kind).build(), Account::root("inner").kind(kind).build());
        let before = bytes(777);
        let (first, second, third) = {
            let _outer = enter(&outer);
            let first = bytes(1000);
            let second = {
                let _inner = enter(&inner);
                bytes(500)
            };
            (first, second, bytes(10))
        };
        let after = bytes(777);
        assert_eq!((used(&outer), used(&inner)), (1000 + 10 + 2 * HEADER, 500 + HEADER));
        drop((before, after, second));
        assert_eq!((used(&outer), used(&inner)), (1010 + 2 * HEADER, 0));
        drop((first, third));
        assert_eq!(used(&outer), 0);
    });
}

#[test]
fn a_block_is_aligned_and_kept_and_charged_with_its_header() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).build();
        for align in (0..=12).map(|log2| 1usize << log2) {
            let header = align.max(HEADER as usize);
            for size in [1, 7, 64, 100, 4096, 5000, 300_000] {
                let layout = Layout::from_size_align(size, align).unwrap();
                let check = |block: *mut u8, size: usize| {
                    assert!(!block.is_null() && block.addr().is_multiple_of(align), "{block:?}, {layout:?}");
                    assert_eq!(used(&account), (size + header) as u64, "{layout:?}");
                };
                let fill = |block: *mut u8, from: usize, to: usize| {
                    // SAFETY: inside the block.
                    (from..to).for_each(|at| unsafe { block.add(at).write(at as u8) });
                };
                let is_kept = |block: *mut u8, end: usize| {
                    // SAFETY: inside the block, and written.
                    (0..end).all(|at| unsafe { block.add(at).read() } == at as u8)
                };
                let _current = enter(&account);
                // SAFETY: the layout is not empty; each block is used with its present size and freed once.
                unsafe {
                    let block = std::hint::black_box(alloc(layout));
                    check(block, size);
                    fill(block, 0, size);
                    let block = realloc(block, layout, size * 3);
                    check(block, size * 3);
                    assert!(is_kept(block, size));
                    fill(block, size, size * 3);
                    let layout = Layout::from_size_align(size * 3, align).unwrap();
                    let block = realloc(block, layout, size.div_ceil(2));
                    check(block, size.div_ceil(2));
                    assert!(is_kept(block, size.div_ceil(2)));
                    dealloc(block, Layout::from_size_align(size.div_ceil(2), align).unwrap());
                }
                assert_eq!(used(&account), 0, "{layout:?}");
                // SAFETY: as above. Memory that was freed a moment ago is not zero.
                unsafe {
                    let block = std::hint::black_box(alloc_zeroed(layout));
                    check(block, size);
                    assert!((0..size).all(|at| block.add(at).read() == 0), "{layout:?}");
                    dealloc(block, layout);
                }
                assert_eq!(used(&account), 0, "{layout:?}");
            }
        }
    });
}

#[test]
fn a_resized_block_stays_with_its_account() {
    on_each_kind(|kind| {
        let [mine, other] = ["mine", "other"].map(|name| Account::root(name).kind(kind).build());
        let mut bytes: Vec<u8> = {
            let _current = enter(&mine);
            Vec::with_capacity(1000)
        };
        bytes.reserve_exact(5000);
        assert_eq!(used(&mine), 5000 + HEADER);
        {
            let _current = enter(&other);
            bytes.reserve_exact(50_000);
            assert_eq!((used(&mine), used(&other)), (50_000 + HEADER, 0));
            bytes.shrink_to(2000);
            assert_eq!((used(&mine), used(&other)), (2000 + HEADER, 0));
        }
        bytes.shrink_to(100);
        assert_eq!(used(&mine), 100 + HEADER);
        let _current = enter(&mine);
        bytes.shrink_to_fit();
        assert_eq!(used(&mine), 0);
    });
}

#[test]
fn an_uncharged_block_is_charged_to_the_account_that_grows_it() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).build();
        let mut bytes: Vec<u8> = Vec::with_capacity(1000);
        {
            let _current = enter(&account);
            bytes.shrink_to(500);
            assert_eq!(used(&account), 0, "nothing that was there before is charged for becoming smaller");
            bytes.reserve_exact(700);
            assert_eq!(used(&account), 700 + HEADER);
        }
        drop(bytes);
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn memory_freed_on_another_thread_returns_to_its_account() {
    on_each_kind(|kind| {
        let [mine, other] = ["mine", "other"].map(|name| Account::root(name).kind(kind).build());
        let (send, receive) = mpsc::channel::<Vec<Box<[u64]>>>();
        let freer = {
            let other = other.clone();
            thread::spawn(move || {
                let _current = enter(&other);
                receive.iter().for_each(drop);
            })
        };
        for round in 0..200 {
            let blocks = {
                let _current = enter(&mine);
                (0..50).map(|n| vec![n; 1 + n as usize * round % 300].into_boxed_slice()).collect()
            };
            send.send(blocks).unwrap();
        }
        drop(send);
        freer.join().unwrap();
        assert_eq!((used(&mine), used(&other)), (0, 0));
    });
}

/// A future that allocates at each poll and when it is dropped, and frees nothing.
struct Hoarder {
    hoard: Arc<Mutex<Vec<Box<[u8]>>>>,
    polls: usize,
}

impl Hoarder {
    fn take(&self, bytes: usize) {
        self.hoard.lock().unwrap().push(vec![0; bytes].into_boxed_slice());
    }
}

impl Future for Hoarder {
    type Output = usize;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<usize> {
        self.polls += 1;
        self.take(100);
        if self.polls < 3 { Poll::Pending } else { Poll::Ready(self.polls) }
    }
}

impl Drop for Hoarder {
    fn drop(&mut self) {
        self.take(1000);
    }
}

#[test]
fn a_future_is_charged_at_each_poll_and_when_it_is_dropped() {
    on_each_kind(|kind| {
        let [mine, other] = ["mine", "other"].map(|name| Account::root(name).kind(kind).build());
        // The vector's memory is charged to no account.
        let hoard = Arc::new(Mutex::new(Vec::with_capacity(16)));
        let mut future = within(&mine, Hoarder { hoard: hoard.clone(), polls: 0 });
        assert_eq!(used(&mine), 0);
        for polls in 1..=2 {
            let _other = enter(&other);
            assert!(poll(&mut future).is_pending());
            let _between = bytes(4096);
            assert_eq!(used(&mine), polls * (100 + HEADER));
        }
        assert_eq!(poll(&mut future), Poll::Ready(3));
        {
            let _other = enter(&other);
            drop(future);
        }
        assert_eq!((used(&mine), used(&other)), (3 * (100 + HEADER) + 1000 + HEADER, 0));
        // A future that is dropped before its end, and one that was never polled.
        let mut future = within(&mine, Hoarder { hoard: hoard.clone(), polls: 0 });
        assert!(poll(&mut future).is_pending());
        drop(future);
        drop(within(&mine, Hoarder { hoard: hoard.clone(), polls: 0 }));
        assert_eq!(used(&mine), 4 * (100 + HEADER) + 3 * (1000 + HEADER));
        drop(hoard);
        assert_eq!(used(&mine), 0);
    });
}

#[test]
fn futures_of_two_accounts_polled_in_turn_do_not_mix() {
    on_each_kind(|kind| {
        let accounts = ["a", "b", "c"].map(|name| Account::root(name).kind(kind).build());
        let inner = accounts[2].clone();
        let mut tasks = accounts.each_ref().map(|account| {
            let inner = inner.clone();
            Box::pin(within(account, async move {
                let mut kept = Vec::with_capacity(4);
                for n in 0..4 {
                    kept.push(vec![n as u8; 100]);
                    within(&inner, async { kept.push(vec![0; 50]) }).await;
                    Yield(false).await;
                }
                kept
            }))
        });
        let mut kept = Vec::new();
        for _ in 0..5 {
            for task in &mut tasks {
                if let Poll::Ready(blocks) = poll(task) {
                    kept.push(blocks);
                }
            }
        }
        assert_eq!(kept.len(), 3);
        let (hundreds, fifties) = (4 * (100 + HEADER), 4 * (50 + HEADER));
        // Each list of blocks has a capacity of 8, charged to the account of the future that made it.
        let list = 8 * size_of::<Vec<u8>>() as u64 + HEADER;
        let expected = [hundreds + list, hundreds + list, hundreds + list + 3 * fifties];
        assert_eq!(accounts.each_ref().map(used), expected);
        drop((tasks, kept));
        assert_eq!(accounts.each_ref().map(used), [0; 3]);
    });
}

/// A future that is pending at its first poll and ready at the second.
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[test]
fn a_panic_leaves_the_scope() {
    on_each_kind(|kind| {
        let [outer, inner] = ["outer", "inner"].map(|name| Account::root(name).kind(kind).build());
        let _outer = enter(&outer);
        let is_caught = catch_unwind(AssertUnwindSafe(|| {
            let _inner = enter(&inner);
            let _bytes = bytes(1000);
            // Panics without the panic hook, which would print a message.
            resume_unwind(Box::new(()));
        }))
        .is_err();
        let block = bytes(10);
        assert_eq!((is_caught, used(&outer), used(&inner)), (true, 10 + HEADER, 0));

        let mut task = Box::pin(within(&inner, async {
            let _bytes = bytes(1000);
            Yield(false).await;
            resume_unwind(Box::new(()));
        }));
        assert!(poll(&mut task).is_pending());
        let is_caught = catch_unwind(AssertUnwindSafe(|| poll(&mut task))).is_err();
        let more = bytes(20);
        assert_eq!((is_caught, used(&inner)), (true, 0));
        drop((block, more, task));
        assert_eq!(used(&outer), 0);
    });
}

#[test]
fn guards_dropped_in_the_wrong_order_leave_no_account_active() {
    on_each_kind(|kind| {
        let [first, second] = ["first", "second"].map(|name| Account::root(name).kind(kind).build());
        let (outer, inner) = (enter(&first), enter(&second));
        drop(outer);
        drop(inner);
        // If the second guard restored the first guard's account, the thread would charge an account that has
        // ended.
        drop(first);
        let bytes = bytes(1000);
        let next: Vec<Account> = (0..10).map(|_| Account::root("next").kind(kind).build()).collect();
        assert_eq!(next.iter().chain([&second]).map(|account| account.usage().charged).sum::<u64>(), 0);
        drop(bytes);
        assert_eq!(next.iter().chain([&second]).map(used).sum::<u64>(), 0);
    });
}

#[test]
fn an_account_may_end_before_its_blocks_are_freed() {
    on_each_kind(|kind| {
        let parent = Account::root("parent").kind(kind).limit(1 << 30).build();
        let account = parent.child("child").limit(1 << 20).build();
        let (mut grows, mut shrinks, freed) = {
            let _current = enter(&account);
            (Vec::<u8>::with_capacity(1000), Vec::<u8>::with_capacity(1000), bytes(1000))
        };
        drop(account);
        // New accounts must not get the node of the dropped one, to which blocks are still charged.
        let next: Vec<Account> = (0..100).map(|_| parent.child("next").build()).collect();
        assert_eq!(used(&parent), 3 * (1000 + HEADER));
        drop(freed);
        grows.reserve_exact(100_000);
        shrinks.shrink_to(10);
        assert_eq!(used(&parent), 100_010 + 2 * HEADER);
        thread::spawn(move || drop((grows, shrinks))).join().unwrap();
        Account::reclaim_idle_all();
        assert_eq!((used(&parent), next.iter().map(used).sum()), (0, 0));
    });
}

struct Last {
    account: Account,
    kept: RefCell<Vec<u8>>,
}

impl Drop for Last {
    fn drop(&mut self) {
        let _current = enter(&self.account);
        let kept = std::mem::take(&mut *self.kept.borrow_mut());
        let more: Vec<Box<[u8]>> = (1..100).map(|n| bytes(n * 10).into_boxed_slice()).collect();
        drop((kept, more));
        let child = self.account.child("made by a destructor").build();
        let _child = enter(&child);
        drop(bytes(100));
    }
}

thread_local! {
    static FIRST: RefCell<Option<Last>> = const { RefCell::new(None) };
    static SECOND: RefCell<Option<Last>> = const { RefCell::new(None) };
    /// This guard is dropped when the thread ends. Until then its account is active while destructors of other
    /// thread-locals run.
    static SCOPE: RefCell<Option<ActiveAccount<'static>>> = const { RefCell::new(None) };
    static THIRD: RefCell<Option<Last>> = const { RefCell::new(None) };
}

#[test]
fn destructors_of_a_thread_that_ends_may_allocate_and_free() {
    on_each_kind(|kind| {
        let account: &'static Account = Box::leak(Box::new(Account::root("thread").kind(kind).build()));
        for _ in 0..20 {
            thread::spawn(move || {
                for local in [&FIRST, &SECOND, &THIRD] {
                    let _current = enter(account);
                    let last = Last { account: account.clone(), kept: RefCell::new(vec![1; 1000]) };
                    local.set(Some(last));
                }
                SCOPE.set(Some(enter(account)));
                drop(Box::new([0u8; 100]));
            })
            .join()
            .unwrap();
        }
        Account::reclaim_idle_all();
        assert_eq!(used(account), 0);
    });
}

#[test]
fn threads_made_in_a_scope_leave_nothing() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).build();
        for _ in 0..50 {
            let _current = enter(&account);
            let thread = thread::Builder::new().name("in a scope".to_owned()).spawn({
                let account = account.clone();
                move || {
                    let _current = enter(&account);
                    bytes(1000)
                }
            });
            drop(thread.unwrap().join().unwrap());
        }
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn over_budget_blocks_are_charged_all_the_same() {
    on_each_kind(|kind| {
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = events.clone();
        let account = Account::root("account")
            .kind(kind)
            .limit(10_000)
            .on_event(move |event| heard.lock().unwrap().push(format!("{event:?}")))
            .build();
        let blocks: Vec<Vec<u8>> = {
            let mut blocks = Vec::with_capacity(100);
            let _current = enter(&account);
            blocks.extend((0..100).map(|_| bytes(1000)));
            blocks
        };
        assert_eq!(used(&account), 100 * (1000 + HEADER));
        assert!(account.try_charge(1).is_err());
        let over = events.lock().unwrap().iter().filter(|event| event.starts_with("Overrun")).count();
        assert!(over >= 91, "{over} of 91 allocations went over the limit");
        drop(blocks);
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn impossible_sizes_are_refused_without_a_panic() {
    on_each_kind(|kind| {
        let account = Account::root("account").kind(kind).build();
        let _current = enter(&account);
        for bytes in [1 << 47, 1 << 60, (1 << 60) + 1, 1 << 62, isize::MAX as usize] {
            let mut none = Vec::<u8>::new();
            assert!(none.try_reserve_exact(bytes).is_err(), "{bytes}");
            drop(std::hint::black_box(none));
            let mut block = vec![7u8; 100];
            assert!(block.try_reserve_exact(bytes - 100).is_err(), "{bytes}");
            assert_eq!((block.len(), used(&account)), (100, 100 + HEADER), "{bytes}");
            // The block grows on a thread without an active account, and with another account active.
            thread::scope(|scope| {
                let grow = || assert!(block.try_reserve_exact(bytes - 100).is_err(), "{bytes}");
                scope.spawn(grow).join().unwrap();
            });
        }
        assert_eq!(used(&account), 0);
    });
}

#[test]
fn listeners_may_allocate_and_free_and_charge() {
    on_each_kind(|kind| {
        let side = Account::root("side").kind(kind).limit(500).build();
        let kept: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let cache = kept.clone();
        let account = Account::root("account")
            .kind(kind)
            .limit(100_000)
            .on_event(move |event| {
                // The listener allocates, and frees blocks that are charged to this account.
                let text = format!("{event:?}");
                let freed = match event {
                    Event::Pressure { .. } => std::mem::take(&mut *cache.lock().unwrap()),
                    _ => vec![text.into_bytes()],
                };
                let _current = enter(&side);
                let more = vec![freed.clone(), freed];
                let _ = side.try_charge(600);
                drop(more);
            })
            .build();
        for _ in 0..10 {
            // The cache is not locked while blocks are allocated: an allocation may call the listener, which
            // takes that lock.
            let blocks: Vec<Vec<u8>> = {
                let _current = enter(&account);
                (0..90).map(|_| vec![0; 1000]).collect()
            };
            kept.lock().unwrap().extend(blocks);
            let _current = enter(&account);
            let more: Vec<Vec<u8>> = (0..20).map(|_| vec![0; 1000]).collect();
            let _ = account.try_hold(95_000);
            drop(more);
        }
        kept.lock().unwrap().clear();
        assert_eq!(used(&account), 0);
    });
}
