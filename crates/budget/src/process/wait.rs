//! Wait: a charge that waits for room.
//!
//! Model.   Who does not fit stands in the queue of the account that is full, in the order in which they
//!          asked. While a queue is not empty, the stocks below are closed, so that all that comes back
//!          comes by; and nobody else is charged there, so that the first, however large, is not overtaken
//!          for ever. What comes back wakes the first and those behind it that fit besides; the first that fits
//!          wakes the next. One behind the first is charged where all before it would still fit afterwards, here and
//!          in the accounts below that they share with it, so room is not left unused until the first is polled. One
//!          that is full elsewhere by then moves there, and keeps its place by the order of asking.
//! Number.  A wait that need not wait is a `try_charge`.
//! Protocol. Who waits is in the queue and counted in the account (`begin_waiting`) before it looks at usage
//!          for the last time; who gives back lowers usage and then looks at the count. So either the one
//!          sees the room or the other sees the waiter. The waker is in place before each look.
//! Writers. Queues: under `QUEUES`. No waker is called or dropped under it, and what is allocated under it,
//!          by a waker that is cloned too, is charged to nobody.
//! Source.  tokio `sync/batch_semaphore.rs`; it takes units for the first as they come, and so holds what it
//!          can't use yet.

use super::{Account, AccountPtr, Charge, active::unaccounted, on_account, reclaim};
use crate::accounts::Node;
use crate::contain::contain;
use crate::outcome::OverBudget;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{LazyLock, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Waker};
use warmcore_sys::rseq::current_cpu;
use warmcore_types::ignore_poison;

/// So many of those that wait in one queue are woken, and looked at, at once.
const AT_ONCE: usize = 64;

/// A charge that waits.
struct Waiter {
    waker: Waker,
    /// How many units it asks for.
    n: u64,
    /// Whose charge it is: the account where it waits, or one below.
    by: AccountPtr,
}

/// By account, by order of asking.
type Queues = HashMap<AccountPtr, BTreeMap<u64, Waiter>>;

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(|| Mutex::new(HashMap::new()));
/// How many wait. Raised after a charge has entered `QUEUES` and lowered after it has left, without the lock.
static WAITERS: AtomicUsize = AtomicUsize::new(0);
/// Held while a charge that is behind others in a queue on its path is made, so that two of them don't both take the room
/// that is left beside those before them.
static BYPASS: Mutex<()> = Mutex::new(());
/// How many asked so far.
static TICKETS: AtomicU64 = AtomicU64::new(0);

fn queues() -> MutexGuard<'static, Queues> {
    ignore_poison(QUEUES.lock())
}

/// Whether somebody waits.
pub(super) fn has_waiters() -> bool {
    WAITERS.load(Relaxed) > 0
}

/// Whether a section under way may have left something that nobody sees, where somebody waits.
pub(super) fn needs_settling() -> bool {
    has_waiters() && queues().keys().any(|ptr| !ptr.kind().is_strict())
}

/// Brings to light what such sections have left.
pub(super) fn settle() {
    let ptrs: Vec<AccountPtr> = queues().keys().copied().filter(|ptr| !ptr.kind().is_strict()).collect();
    for ptr in ptrs {
        on_account!(ptr, |accounts, node| accounts.settle(node));
        ptr.wake_waiters();
    }
}

/// Wakes the first of every queue, and those behind it for which there is room besides.
#[cold]
pub(super) fn wake_first_waiters() {
    if !has_waiters() {
        return;
    }
    let mut heads = Vec::new();
    unaccounted(|| {
        for (at, queue) in queues().iter() {
            let mut free = at.node().free();
            for (i, waiting) in queue.values().take(AT_ONCE).enumerate() {
                if i > 0 && waiting.n > free {
                    break;
                }
                free = free.saturating_sub(waiting.n);
                // One that panics, when it is cloned, called or dropped, keeps no other from being woken.
                heads.extend(contain(|| waiting.waker.clone()));
            }
        }
    });
    for waker in heads {
        contain(|| waker.wake_by_ref());
        unaccounted(|| contain(|| drop(waker)));
    }
}

/// Takes those out of their queues whose account has no handle any more. A `ChargeFuture` borrows one, so it was forgotten
/// and not dropped: it is never polled again, and all charges behind it would wait for ever.
pub(super) fn remove_forgotten() {
    if !has_waiters() {
        return;
    }
    let lost: Vec<(AccountPtr, Waiter)> = unaccounted(|| {
        let mut queues = queues();
        let mut lost = Vec::new();
        for (at, queue) in queues.iter_mut() {
            lost.extend(
                queue.extract_if(.., |_, waiting| waiting.by.node().is_orphan()).map(|(_, w)| (*at, w)),
            );
        }
        queues.retain(|_, queue| !queue.is_empty());
        lost
    });
    let were_some = !lost.is_empty();
    for (at, Waiter { waker, by, .. }) in lost {
        WAITERS.fetch_sub(1, Relaxed);
        on_account!(at, |accounts, node| accounts.end_waiting(node, by.node()));
        unaccounted(|| contain(|| drop(waker)));
    }
    if were_some {
        wake_first_waiters();
    }
}

/// Where a charge is in a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Eligibility {
    First,
    /// Behind others, with room for them and for itself.
    FitsBehind,
    /// Behind others that need the room, or too many to look at.
    MustWait,
}

impl Eligibility {
    /// The turn at `at` of a charge of `n` units to `by` that asked at `ticket`.
    fn of(at: &Node, queue: Option<&BTreeMap<u64, Waiter>>, ticket: u64, by: AccountPtr, n: u64) -> Self {
        let before =
            || queue.into_iter().flat_map(|queue| queue.range(..ticket)).map(|(_, w)| w).take(AT_ONCE);
        let (count, units) = before().fold((0, n), |(i, sum), w| (i + 1, sum.saturating_add(w.n)));
        match count {
            0 => return Self::First,
            AT_ONCE => return Self::MustWait,
            _ => {}
        }
        // Those before may be charged meanwhile, and count twice then: asked later, it may have come true.
        let needs = |waiting: &Waiter, a: &Node| waiting.by.node().path().any(|b| std::ptr::eq(a, b));
        let shared = |a: &Node| before().filter(|w| needs(w, a)).fold(n, |sum, w| sum.saturating_add(w.n));
        // The stocks below `at` are closed, so what is free there is seen; above, the charge itself finds out.
        let mut below = by.node().path().take_while(|a| !std::ptr::eq(*a, at));
        let has_room = units <= at.free() && below.all(|a| units <= a.free() || shared(a) <= a.free());
        if has_room { Self::FitsBehind } else { Self::MustWait }
    }
}

/// [`BYPASS`], where no other charge holds it.
fn try_lock_bypass() -> Option<MutexGuard<'static, ()>> {
    match BYPASS.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Whether a charge of `n` units to `site` comes before all that wait at `node`, which is on its path, and asked before
/// `ticket`, or leaves room for them. In the latter case `behind` holds [`BYPASS`] from before the look on.
fn may_charge(
    ptr: AccountPtr,
    node: &Node,
    ticket: u64,
    n: u64,
    behind: &RefCell<Option<MutexGuard<'static, ()>>>,
) -> bool {
    let node = ptr.node().path().find(|a| std::ptr::eq(*a, node)).expect("it is on the path");
    let eligibility =
        || Eligibility::of(node, queues().get(&AccountPtr::new(node, ptr.kind())), ticket, ptr, n);
    match eligibility() {
        Eligibility::First => true,
        Eligibility::MustWait => false,
        Eligibility::FitsBehind if behind.borrow().is_some() => true,
        Eligibility::FitsBehind => {
            // Held elsewhere, by a charge whose listener may have called this: this one stays in the queue, and is
            // woken when it is the first, or by the next round of the thread that tidies.
            *behind.borrow_mut() = try_lock_bypass();
            behind.borrow().is_some() && eligibility() != Eligibility::MustWait
        }
    }
}

/// A charge that is waited for: [`Account::charge`]. Dropped, it waits no more. One that is forgotten
/// ([`std::mem::forget`]) keeps its place, and all behind it waiting for which there is no room besides, until its account has no handle and no child.
#[must_use = "a future does nothing until it is polled"]
#[derive(Debug)]
pub struct ChargeFuture<'a> {
    account: &'a Account,
    n: u64,
    /// When it asked, once it was refused.
    ticket: Option<u64>,
    /// Where it waits.
    at: Option<AccountPtr>,
}

impl Account {
    /// Charges `n` units as soon as there is room: first come, first served, on any executor. Where there is room for
    /// those before it and for itself it does not wait until they are polled. An error only if it can never fit. What was granted and not taken up, because the future was dropped, is given back.
    pub fn charge(&self, n: u64) -> ChargeFuture<'_> {
        ChargeFuture { account: self, n, ticket: None, at: None }
    }
}

impl ChargeFuture<'_> {
    /// Enters the queue of the account that is full.
    fn join(&mut self, over: &OverBudget, waker: &Waker) {
        let ticket = *self.ticket.get_or_insert_with(|| TICKETS.fetch_add(1, Relaxed));
        let kind = self.account.kind();
        let node = self.account.ptr.node().path().find(|node| node.key() == over.0.key);
        let at = AccountPtr::new(node.expect("what was full is on the path"), kind);
        let (waker, n, by) = (waker.clone(), self.n, self.account.ptr);
        let is_settled_for = unaccounted(|| {
            let mut queues = queues();
            let is_settled_for = kind.is_strict() || queues.keys().any(|ptr| !ptr.kind().is_strict());
            queues.entry(at).or_default().insert(ticket, Waiter { waker, n, by });
            is_settled_for
        });
        WAITERS.fetch_add(1, Relaxed);
        self.at = Some(at);
        on_account!(at, |accounts, node| accounts.begin_waiting(node, by.node()));
        at.wake_waiters();
        // The thread that tidies looks often from now on, if it does not already. It is not woken for each that waits.
        if !is_settled_for {
            reclaim::notify_reclaimer();
        }
    }

    /// Leaves the queue it is in; who is first now is woken, as there may be room.
    fn leave(&mut self) {
        let (Some(at), Some(ticket)) = (self.at.take(), self.ticket) else { return };
        let (mine, next) = unaccounted(|| {
            let mut queues = queues();
            let queue = queues.get_mut(&at).expect("its queue is there while it is in it");
            let was_first = queue.first_key_value().is_some_and(|(first, _)| *first == ticket);
            let mine = queue.remove(&ticket);
            let next = queue.first_key_value().filter(|_| was_first);
            let next = next.and_then(|(_, next)| contain(|| next.waker.clone()));
            if queue.is_empty() {
                queues.remove(&at);
            }
            (mine, next)
        });
        WAITERS.fetch_sub(1, Relaxed);
        on_account!(at, |accounts, node| accounts.end_waiting(node, self.account.ptr.node()));
        if let Some(next) = next {
            contain(|| next.wake());
        }
        drop(mine);
    }

    /// Its turn where it waits. Its waker is in place from now on.
    fn eligibility(&self, at: AccountPtr, waker: &Waker) -> Eligibility {
        let ticket = self.ticket.expect("a charge that waits has a ticket");
        let (eligibility, before) = unaccounted(|| {
            let mut queues = queues();
            let queue = queues.get_mut(&at).expect("its queue is there while it is in it");
            let eligibility = Eligibility::of(at.node(), Some(queue), ticket, self.account.ptr, self.n);
            let slot = &mut queue.get_mut(&ticket).expect("it is in its queue").waker;
            let before = (!slot.will_wake(waker)).then(|| std::mem::replace(slot, waker.clone()));
            (eligibility, before)
        });
        drop(before);
        eligibility
    }

    /// Charges what it waits for at `at`, if it is its turn there.
    fn charge_if_eligible(&self, at: AccountPtr, waker: &Waker) -> Option<Result<(), OverBudget>> {
        let (ptr, n) = (self.account.ptr, self.n);
        if self.eligibility(at, waker) == Eligibility::MustWait {
            return None;
        }
        let ticket = self.ticket.expect("a charge that waits has a ticket");
        let behind = RefCell::new(None);
        // By order of asking in every queue: were it by the place in one queue, two charges that need room in both could send
        // each other from one to the other for ever.
        let may_charge = |node: &Node| may_charge(ptr, node, ticket, n, &behind);
        let cpu = current_cpu();
        let result = on_account!(ptr, |accounts, node| accounts.charge_slow(node, cpu, n, Some(&may_charge)));
        // Before others are woken, which may be behind too.
        drop(behind);
        ptr.wake_waiters();
        Some(result)
    }
}

impl Future for ChargeFuture<'_> {
    type Output = Result<Charge, OverBudget>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (account, n) = (self.account, self.n);
        loop {
            let result = match self.at {
                None => account.try_charge(n),
                Some(at) => match self.charge_if_eligible(at, cx.waker()) {
                    Some(result) => result,
                    None => return Poll::Pending,
                },
            };
            match result {
                Ok(()) => {
                    // Before others are let in: should leaving panic, the units are given back.
                    let charge = Charge::new(account.ptr, n);
                    self.leave();
                    return Poll::Ready(Ok(charge));
                }
                Err(over) if over.exceeds_limit() => {
                    self.leave();
                    return Poll::Ready(Err(over));
                }
                Err(over) if self.at.is_some_and(|at| at.node().key() == over.0.key) => return Poll::Pending,
                Err(over) => {
                    self.leave();
                    self.join(&over, cx.waker());
                }
            }
        }
    }
}

impl Drop for ChargeFuture<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_one_behind_is_charged_keeps_no_other_from_it() {
        let panics = std::thread::spawn(|| {
            let _behind = BYPASS.lock();
            panic!("while it is held");
        });
        assert!(panics.join().is_err() && BYPASS.is_poisoned());
        // Another test of this process may hold it for a moment.
        while try_lock_bypass().is_none() {
            std::thread::yield_now();
        }
    }
}
