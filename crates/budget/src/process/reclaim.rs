//! Tidy: the thread that gives back what idle CPUs hold ready.
//!
//! Model.   Every 100 ms it closes the stocks that were not used since the last time, without disturbing
//!          their CPUs, and frees accounts that are done with. While somebody waits for room in an account of
//!          the fast kind it looks there more often, since a section under way when the stocks were closed may
//!          have left something that nobody else sees.
//! Number.  10 000 accounts of which 10 have stocks: 10 000 loads and some 20 looks, 30 µs.
//! Writers. The thread; it begins with the first account and ends with the last.

use super::{ATOMIC, RSEQ, active::unaccounted, wait};
use crate::accounts::Accounts;
use crate::contain::contain;
use crate::stock::Stocks;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};
use warmcore_sys::{affinity, fork, signals};

/// A stock that nobody used for so long is given back, at the latest after twice that.
pub const RECLAIM_PERIOD: Duration = Duration::from_millis(100);

/// While somebody waits in an account of the fast kind.
const SETTLE_PERIOD: Duration = Duration::from_millis(5);

static RUNS: Mutex<bool> = Mutex::new(false);
/// Told when a first charge begins to wait in an account of the fast kind, and when memory came back for which one waits.
static CHANGED: Condvar = Condvar::new();

/// Whether this process was forked from one that had accounts.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked from one that had accounts: budget's locks may be held for ever here, by threads that
/// the parent has, the one that tidies for one.
pub(super) fn is_forked() -> bool {
    IS_FORKED.load(Relaxed)
}

extern "C" fn note_fork() {
    IS_FORKED.store(true, Relaxed);
}

fn runs() -> MutexGuard<'static, bool> {
    RUNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sees to it that the thread runs.
pub(super) fn ensure() {
    static ONCE: Once = Once::new();
    // Where there is no memory for it, a child may wait for a lock that stays held there.
    ONCE.call_once(|| _ = fork::in_children(note_fork));
    let mut runs = runs();
    if !*runs {
        let builder = std::thread::Builder::new;
        let spawn = || builder().name("warmcore-budget".to_owned()).stack_size(256 << 10).spawn(run);
        // A thread of ours takes nobody's signals. Without one to be had, idle stocks are given back when
        // somebody needs them, and by the next account that is made.
        *runs = unaccounted(|| signals::blocked(spawn)).is_ok();
    }
}

/// A first charge begins to wait for room, or there is some. Takes no lock; a charge that comes in the moment
/// before the thread sleeps is seen at the next round.
pub(super) fn notify_reclaimer() {
    CHANGED.notify_all();
}

/// One round.
pub(super) fn reclaim_idle() {
    fn round<S: Stocks>(accounts: &Accounts<S>) -> bool {
        unaccounted(|| accounts.reclaim_idle());
        accounts.take_pending_wake()
    }
    wait::remove_forgotten();
    let is_pending = RSEQ.get().is_some_and(round) | ATOMIC.get().is_some_and(round);
    if is_pending || wait::has_waiters() {
        wait::wake_first_waiters();
    }
}

/// Wakes for who could not: see `AccountPtr::wake_waiters_elsewhere`.
fn wake_waiters() {
    let is_pending = RSEQ.get().is_some_and(Accounts::take_pending_wake)
        | ATOMIC.get().is_some_and(Accounts::take_pending_wake);
    if is_pending {
        wait::wake_first_waiters();
    }
}

fn run() {
    // It does not stay on its maker's CPU, which may be a worker's.
    if let Ok(cpus) = affinity::allowed_to_main() {
        let _ = affinity::set_allowed(&cpus);
    }
    // Wakers and listeners that panic are contained where they are called. Whatever else does, the thread goes on:
    // without it idle stocks stay, and a charge that waits for what a section has left waits for ever.
    while contain(rounds).is_none() {}
}

/// Round after round, the first after a period, until there is no account.
fn rounds() {
    let mut guard = runs();
    let mut due = Instant::now() + RECLAIM_PERIOD;
    loop {
        let accounts = RSEQ.get().map_or(0, Accounts::accounts) + ATOMIC.get().map_or(0, Accounts::accounts);
        if accounts == 0 {
            *guard = false;
            return;
        }
        let rest = due.saturating_duration_since(Instant::now());
        let period = if wait::needs_settling() { rest.min(SETTLE_PERIOD) } else { rest };
        // Woken when somebody begins to wait: the period may be another one now.
        let (back, timeout) = CHANGED.wait_timeout(guard, period).unwrap_or_else(PoisonError::into_inner);
        drop(back);
        if Instant::now() >= due {
            reclaim_idle();
            // From now: late is harmless, but two that follow each other closely take what is in use.
            due = Instant::now() + RECLAIM_PERIOD;
        } else if timeout.timed_out() {
            wait::settle();
        }
        wake_waiters();
        guard = runs();
    }
}
