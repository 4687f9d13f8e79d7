//! Charges that wait until they fit.
//!
//! A charge that does not fit waits in the queue of the full account, in the order of tickets. While a queue is not
//! empty, the stocks of the account and below stay closed, so that no returned unit stays in a stock there. New charges
//! that are not forced are refused there, so that they do not overtake a large charge at the front for ever. Returned
//! units wake the first waiter, and the following ones that fit in addition to it, up to `AT_ONCE`. When the first
//! waiter leaves the queue, it wakes the next. A waiter behind the first may be granted if fewer than `AT_ONCE` are
//! before it and all of them would still fit afterwards, in this account and in the accounts below that they share with
//! it. So units that the first waiter leaves free do not have to wait until it is polled. A waiter that finds another
//! account on its path full moves to that account's queue; its ticket decides its place there.
//!
//! # Protocol
//!
//! A waiter enters the queue and is counted in the account (`begin_waiting`) before it reads usage for the last
//! time. An uncharge lowers usage and then reads the count. So either the waiter sees the units or the uncharge
//! sees the waiter. The waiter stores its waker before each read.
//!
//! Queues change under `QUEUES`. No waker is called or dropped under that lock, and memory that is allocated
//! under it, also by a waker's clone, is charged to no account.
//!
//! # Source
//!
//! tokio `sync/batch_semaphore.rs`. It differs: there the first waiter gets units as they are returned, and so
//! holds units before it can use them.

use super::account_ptr::{AccountPtr, on_account, unaccounted};
use super::waiters::{AT_ONCE, Queue, WAITERS, Waiter, queues};
use super::{Account, Charge, reclaim};
use crate::accounts::Node;
use crate::outcome::{OverBudget, contain};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Waker};
use warmcore_sys::rseq::current_cpu;

/// Held while a charge that is behind others in a queue on its path tries to pass them. Without this lock, two such
/// charges could both take the units that the charges before them leave.
static BYPASS: Mutex<()> = Mutex::new(());
/// The next ticket: charges are served in the order of their tickets.
static TICKETS: AtomicU64 = AtomicU64::new(0);

/// Whether a waiting charge may be granted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Eligibility {
    First,
    /// Behind other charges, with enough units for them and for this one.
    FitsBehind,
    /// Behind charges that need the units, or behind `AT_ONCE` charges or more.
    MustWait,
}

impl Eligibility {
    /// The eligibility of a charge of `n` units to `account` with this ticket, in the queue at `at`, an account on the
    /// path of `account`.
    fn of(at: &Node, queue: Option<&Queue>, ticket: u64, account: AccountPtr, n: u64) -> Self {
        let before =
            || queue.into_iter().flat_map(|queue| queue.range(..ticket)).map(|(_, w)| w).take(AT_ONCE);
        let (count, units) = before().fold((0, n), |(i, sum), w| (i + 1, sum.saturating_add(w.n)));
        match count {
            0 => return Self::First,
            AT_ONCE => return Self::MustWait,
            _ => {}
        }
        // A waiter that is granted meanwhile counts twice here, in its queue and in usage: then this charge waits
        // now and may be granted later.
        let needs = |waiter: &Waiter, a: &Node| waiter.account.node().path().any(|b| std::ptr::eq(a, b));
        let shared = |a: &Node| before().filter(|w| needs(w, a)).fold(n, |sum, w| sum.saturating_add(w.n));
        // The stocks of `at` and below are closed, so `free` misses no units in them. Whether the accounts above
        // `at` have room is checked by the charge itself.
        let mut below = account.node().path().take_while(|a| !std::ptr::eq(*a, at));
        let fits = units <= at.free() && below.all(|a| units <= a.free() || shared(a) <= a.free());
        if fits { Self::FitsBehind } else { Self::MustWait }
    }
}

/// Takes [`BYPASS`] unless another charge holds it.
fn try_lock_bypass() -> Option<MutexGuard<'static, ()>> {
    match BYPASS.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Whether a charge of `n` units to `ptr` is before all charges that wait at `node`, an account on its path, or
/// leaves enough units for those before it. In the latter case `bypass` holds the lock [`BYPASS`], taken before the
/// decision; if another charge holds the lock, the result is false.
fn may_charge(
    ptr: AccountPtr,
    node: &Node,
    ticket: u64,
    n: u64,
    bypass: &RefCell<Option<MutexGuard<'static, ()>>>,
) -> bool {
    let node = ptr.node().path().find(|a| std::ptr::eq(*a, node)).expect("it is on the path");
    let eligibility =
        || Eligibility::of(node, queues().get(&AccountPtr::new(node, ptr.kind())), ticket, ptr, n);
    match eligibility() {
        Eligibility::First => true,
        Eligibility::MustWait => false,
        Eligibility::FitsBehind if bypass.borrow().is_some() => true,
        Eligibility::FitsBehind => {
            // If another charge holds the lock (perhaps the charge whose listener is polling this one), this charge
            // stays in the queue. It is woken when it is the first, or by the background thread's next round.
            *bypass.borrow_mut() = try_lock_bypass();
            bypass.borrow().is_some() && eligibility() != Eligibility::MustWait
        }
    }
}

/// The future of [`Account::charge`]. Dropping it ends the wait. A future that is forgotten
/// ([`std::mem::forget`]) keeps its place in the queue until its account has no handle and no child, and the background
/// thread finds that. Until then, charges behind it wait unless they fit in addition to it.
#[must_use = "a future does nothing until it is polled"]
#[derive(Debug)]
pub struct ChargeFuture<'a> {
    account: &'a Account,
    n: u64,
    /// The charge's place in the order; set when the charge is first refused.
    ticket: Option<u64>,
    /// The account where the charge waits.
    at: Option<AccountPtr>,
}

impl Account {
    /// Charges `n` units as soon as they fit: first come, first served, on any executor. A charge that fits beside all
    /// those before it usually does not wait for them, unless they are 64 or more. Returns an error only if the charge
    /// is larger than a limit on its path. The future holds no units between two polls, so dropping it gives up only
    /// its place in the queue.
    ///
    /// ```
    /// use warmcore_budget::{Account, OverBudget};
    ///
    /// async fn copy(tenant: &Account, from: &[u8]) -> Result<Vec<u8>, OverBudget> {
    ///     let _charge = tenant.charge(from.len() as u64).await?; // waits while the tenant is at its limit
    ///     Ok(from.to_vec())
    /// }
    /// ```
    pub fn charge(&self, n: u64) -> ChargeFuture<'_> {
        ChargeFuture { account: self, n, ticket: None, at: None }
    }
}

impl ChargeFuture<'_> {
    /// Enters the queue of the account that refused the charge.
    fn join(&mut self, over: &OverBudget, waker: &Waker) {
        let ticket = *self.ticket.get_or_insert_with(|| TICKETS.fetch_add(1, Relaxed));
        let kind = self.account.kind();
        let node = self.account.ptr.node().path().find(|node| node.key() == over.0.key);
        let at = AccountPtr::new(node.expect("what was full is on the path"), kind);
        let (waker, n, account) = (waker.clone(), self.n, self.account.ptr);
        let is_drained_often = unaccounted(|| {
            let mut queues = queues();
            let is_drained_often = kind.is_strict() || queues.keys().any(|ptr| !ptr.kind().is_strict());
            queues.entry(at).or_default().insert(ticket, Waiter { waker, n, account });
            is_drained_often
        });
        WAITERS.fetch_add(1, Relaxed);
        self.at = Some(at);
        on_account!(at, |accounts, node| accounts.begin_waiting(node, account.node()));
        at.wake_waiters();
        // While a charge waits in an account of the rseq kind, the background thread drains more often. It is notified
        // for the first such charge, so that it shortens its present wait.
        if !is_drained_often {
            reclaim::notify_reclaimer();
        }
    }

    /// Removes the charge from its queue, if it is in one. If it was the first, wakes the next, which may fit.
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

    /// Whether the charge may be granted at the account where it waits. Also stores the charge's waker.
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

    /// Tries to charge the units if the charge may be granted at `at`; `None` if it has to wait.
    fn charge_if_eligible(&self, at: AccountPtr, waker: &Waker) -> Option<Result<(), OverBudget>> {
        let (ptr, n) = (self.account.ptr, self.n);
        if self.eligibility(at, waker) == Eligibility::MustWait {
            return None;
        }
        let ticket = self.ticket.expect("a charge that waits has a ticket");
        let bypass = RefCell::new(None);
        // The ticket decides in every queue. If the time of joining a queue decided, two charges whose paths share two
        // full accounts could each be first in one queue, and move between the queues for ever.
        let may_charge = |node: &Node| may_charge(ptr, node, ticket, n, &bypass);
        let cpu = current_cpu();
        let result = on_account!(ptr, |accounts, node| accounts.charge_slow(node, cpu, n, Some(&may_charge)));
        // Released before other waiters are woken, which may need the lock.
        drop(bypass);
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
                    // Made before the queue is left: if leaving panics, the units are given back.
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
    fn a_panic_under_the_bypass_lock_does_not_poison_it() {
        let panics = std::thread::spawn(|| {
            let _behind = BYPASS.lock();
            panic!("while it is held");
        });
        assert!(panics.join().is_err() && BYPASS.is_poisoned());
        // Another test of this process may hold the lock for a moment.
        while try_lock_bypass().is_none() {
            std::thread::yield_now();
        }
    }
}
