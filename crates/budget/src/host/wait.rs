//! Wait: a charge that waits for room.
//!
//! Model.   Who does not fit stands in the queue of the account that is full, in the order in which they
//!          asked. While a queue is not empty, the stocks below are closed, so that all that comes back
//!          comes by; and nobody else is charged there, so that the first, however large, is not overtaken
//!          for ever. What comes back wakes the first; the first that fits wakes the next. One that is full
//!          elsewhere by then moves there, and keeps its place by the order of asking.
//! Number.  A wait that need not wait is a `try_charge`.
//! Protocol. Who waits is in the queue and counted in the account (`begin_waiting`) before it looks at usage
//!          for the last time; who gives back lowers usage and then looks at the count. So either the one
//!          sees the room or the other sees the waiter. The waker is in place before each look.
//! Writers. Queues: under `QUEUES`. No waker is called or dropped under it, and what is allocated under it,
//!          by a waker that is cloned too, is charged to nobody.
//! Source.  tokio `sync/batch_semaphore.rs`; it takes units for the first as they come, and so holds what it
//!          can't use yet.

use super::{Account, Charge, Site, current::unbilled, on_site, tidy};
use crate::accounts::Node;
use crate::contain::contain;
use crate::outcome::OverBudget;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use warmcore_sys::rseq::current_cpu;

/// A charge that waits.
struct Waiting {
    waker: Waker,
    /// Whose charge it is: the account where it waits, or one below.
    by: Site,
}

/// By account, by order of asking.
type Queues = HashMap<Site, BTreeMap<u64, Waiting>>;

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(|| Mutex::new(HashMap::new()));
/// How many wait. Raised after a charge has entered `QUEUES` and lowered after it has left, without the lock.
static WAITERS: AtomicUsize = AtomicUsize::new(0);
/// How many asked so far.
static TICKETS: AtomicU64 = AtomicU64::new(0);

fn queues() -> MutexGuard<'static, Queues> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether somebody waits.
pub(super) fn is_awaited() -> bool {
    WAITERS.load(Relaxed) > 0
}

/// Whether a section under way may have left something that nobody sees, where somebody waits.
pub(super) fn needs_settling() -> bool {
    is_awaited() && queues().keys().any(|site| !site.kind().is_strict())
}

/// Brings to light what such sections have left.
pub(super) fn settle() {
    let sites: Vec<Site> = queues().keys().copied().filter(|site| !site.kind().is_strict()).collect();
    for site in sites {
        on_site!(site, |accounts, node| accounts.settle(node));
        site.pass_on();
    }
}

/// Wakes the first of every queue.
#[cold]
pub(super) fn wake_heads() {
    if !is_awaited() {
        return;
    }
    // One that panics, when it is cloned, called or dropped, keeps no other from being woken.
    let first = |queue: &BTreeMap<_, Waiting>| Some(queue.first_key_value()?.1.waker.clone());
    let heads: Vec<Waker> =
        unbilled(|| queues().values().filter_map(|queue| contain(|| first(queue)).flatten()).collect());
    for waker in heads {
        contain(|| waker.wake_by_ref());
        unbilled(|| contain(|| drop(waker)));
    }
}

/// Takes those out of their queues whose account has no handle any more. A `Charging` borrows one, so it was forgotten
/// and not dropped: it is never polled again, and all charges behind it would wait for ever.
pub(super) fn let_lost_go() {
    if !is_awaited() {
        return;
    }
    let lost: Vec<(Site, Waiting)> = unbilled(|| {
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
    for (at, Waiting { waker, by }) in lost {
        WAITERS.fetch_sub(1, Relaxed);
        on_site!(at, |accounts, node| accounts.end_waiting(node, by.node()));
        unbilled(|| contain(|| drop(waker)));
    }
    if were_some {
        wake_heads();
    }
}

/// Whether nobody who waits at `node`, which is on the path of `site`, asked before `ticket`.
fn is_before_all(site: Site, node: &Node, ticket: u64) -> bool {
    let node = site.node().path().find(|a| std::ptr::eq(*a, node)).expect("it is on the path");
    let queues = queues();
    let first = queues.get(&Site::new(node, site.kind())).and_then(|queue| queue.first_key_value());
    first.is_none_or(|(first, _)| ticket <= *first)
}

/// A charge that is waited for: [`Account::charge`]. Dropped, it waits no more. One that is forgotten
/// ([`std::mem::forget`]) keeps its place, and all behind it waiting, until its account has no handle and no child.
#[must_use = "a future does nothing until it is polled"]
#[derive(Debug)]
pub struct Charging<'a> {
    account: &'a Account,
    n: u64,
    /// When it asked, once it was refused.
    ticket: Option<u64>,
    /// Where it waits.
    at: Option<Site>,
}

impl Account {
    /// Charges `n` units as soon as there is room: first come, first served, on any executor. An error only
    /// if it can never fit. What was granted and not taken up, because the future was dropped, is given back.
    pub fn charge(&self, n: u64) -> Charging<'_> {
        Charging { account: self, n, ticket: None, at: None }
    }
}

impl Charging<'_> {
    /// Enters the queue of the account that is full.
    fn join(&mut self, over: &OverBudget, waker: &Waker) {
        let ticket = *self.ticket.get_or_insert_with(|| TICKETS.fetch_add(1, Relaxed));
        let kind = self.account.kind();
        let node = self.account.site.node().path().find(|node| node.key() == over.0.key);
        let at = Site::new(node.expect("what was full is on the path"), kind);
        let (waker, by) = (waker.clone(), self.account.site);
        unbilled(|| {
            queues().entry(at).or_default().insert(ticket, Waiting { waker, by });
        });
        WAITERS.fetch_add(1, Relaxed);
        self.at = Some(at);
        on_site!(at, |accounts, node| accounts.begin_waiting(node, by.node()));
        at.pass_on();
        tidy::hurry();
    }

    /// Leaves the queue it is in; who is first now is woken, as there may be room.
    fn leave(&mut self) {
        let (Some(at), Some(ticket)) = (self.at.take(), self.ticket) else { return };
        let (mine, next) = unbilled(|| {
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
        on_site!(at, |accounts, node| accounts.end_waiting(node, self.account.site.node()));
        if let Some(next) = next {
            contain(|| next.wake());
        }
        drop(mine);
    }

    /// Whether it is first where it waits. Its waker is in place from now on.
    fn is_first(&self, at: Site, waker: &Waker) -> bool {
        let ticket = self.ticket.expect("who waits has a ticket");
        let (is_first, before) = unbilled(|| {
            let mut queues = queues();
            let queue = queues.get_mut(&at).expect("its queue is there while it is in it");
            let is_first = queue.first_key_value().is_some_and(|(first, _)| *first == ticket);
            let place = &mut queue.get_mut(&ticket).expect("it is in its queue").waker;
            let before = (!place.will_wake(waker)).then(|| std::mem::replace(place, waker.clone()));
            (is_first, before)
        });
        drop(before);
        is_first
    }
}

impl Future for Charging<'_> {
    type Output = Result<Charge, OverBudget>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (account, n) = (self.account, self.n);
        loop {
            let result = match self.at {
                None => account.try_charge(n),
                Some(at) if !self.is_first(at, cx.waker()) => return Poll::Pending,
                Some(_) => {
                    let (site, cpu) = (account.site, current_cpu());
                    let ticket = self.ticket.expect("who waits has a ticket");
                    // By order of asking wherever somebody waits: were it by the place in one queue, two
                    // who need room in both could send each other from one to the other for ever.
                    let is_first = |node: &Node| is_before_all(site, node, ticket);
                    let result = on_site!(site, |accounts, node| accounts.charge_slowly(
                        node,
                        cpu,
                        n,
                        Some(&is_first)
                    ));
                    site.pass_on();
                    result
                }
            };
            match result {
                Ok(()) => {
                    // Before others are let in: should leaving panic, the units are given back.
                    let charge = Charge::new(account.site, n);
                    self.leave();
                    return Poll::Ready(Ok(charge));
                }
                Err(over) if over.is_hopeless() => {
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

impl Drop for Charging<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
