//! The queues of charges that wait, and how these charges are woken. The protocol is in `wait.rs`.

use super::account_ptr::{AccountPtr, on_account, unaccounted};
use crate::outcome::contain;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::task::Waker;
use warmcore_types::ignore_poison;

/// The most waiters of one queue that are woken, or counted, at a time.
pub(super) const AT_ONCE: usize = 64;

/// A charge that waits.
pub(super) struct Waiter {
    pub(super) waker: Waker,
    /// How many units the charge asks for.
    pub(super) n: u64,
    /// The account to charge: the account where the charge waits, or one below.
    pub(super) account: AccountPtr,
}

/// The charges that wait at one account, by ticket.
pub(super) type Queue = BTreeMap<u64, Waiter>;

/// The queues that are not empty, by the account where the charges wait.
type Queues = HashMap<AccountPtr, Queue>;

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(|| Mutex::new(HashMap::new()));
/// The number of waiters. Raised after a charge has entered `QUEUES` and lowered after it has left, without the
/// lock.
pub(super) static WAITERS: AtomicUsize = AtomicUsize::new(0);

pub(super) fn queues() -> MutexGuard<'static, Queues> {
    ignore_poison(QUEUES.lock())
}

/// Whether any charge waits.
pub(super) fn has_waiters() -> bool {
    WAITERS.load(Relaxed) > 0
}

/// Whether a charge waits in an account of the rseq kind. There a restartable section may have left units in a
/// closed stock, which no thread sees before the stock is drained.
pub(super) fn needs_settling() -> bool {
    has_waiters() && queues().keys().any(|ptr| !ptr.kind().is_strict())
}

/// Drains the stocks of each account of the rseq kind where a charge waits, and of all accounts below it.
pub(super) fn settle() {
    let ptrs: Vec<AccountPtr> = queues().keys().copied().filter(|ptr| !ptr.kind().is_strict()).collect();
    for ptr in ptrs {
        on_account!(ptr, |accounts, node| accounts.settle(node));
        ptr.wake_waiters();
    }
}

/// Wakes the first waiter of every queue, and the following ones that fit in addition to it, up to [`AT_ONCE`].
#[cold]
pub(super) fn wake_first_waiters() {
    if !has_waiters() {
        return;
    }
    let mut wakers = Vec::new();
    unaccounted(|| {
        for (at, queue) in queues().iter() {
            let mut free = at.node().free();
            for (i, waiter) in queue.values().take(AT_ONCE).enumerate() {
                if i > 0 && waiter.n > free {
                    break;
                }
                free = free.saturating_sub(waiter.n);
                // A waker that panics when it is cloned, called or dropped must not keep the others from being
                // woken.
                wakers.extend(contain(|| waiter.waker.clone()));
            }
        }
    });
    for waker in wakers {
        contain(|| waker.wake_by_ref());
        unaccounted(|| contain(|| drop(waker)));
    }
}

/// Removes the waiters whose account has neither a handle nor a child left. A `ChargeFuture` borrows a handle, so a
/// future without a handle was forgotten and not dropped: it is never polled again, and would block the charges
/// behind it for ever.
pub(super) fn remove_forgotten() {
    if !has_waiters() {
        return;
    }
    let forgotten: Vec<(AccountPtr, Waiter)> = unaccounted(|| {
        let mut queues = queues();
        let mut forgotten = Vec::new();
        for (at, queue) in queues.iter_mut() {
            forgotten.extend(
                queue.extract_if(.., |_, waiter| waiter.account.node().is_orphan()).map(|(_, w)| (*at, w)),
            );
        }
        queues.retain(|_, queue| !queue.is_empty());
        forgotten
    });
    let were_any = !forgotten.is_empty();
    for (at, Waiter { waker, account, .. }) in forgotten {
        WAITERS.fetch_sub(1, Relaxed);
        on_account!(at, |accounts, node| accounts.end_waiting(node, account.node()));
        unaccounted(|| contain(|| drop(waker)));
    }
    if were_any {
        wake_first_waiters();
    }
}
