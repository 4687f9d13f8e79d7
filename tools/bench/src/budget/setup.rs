//! Shared by the budget cases: the names of the variants, accounts of each kind, and the trait [`Gate`], which has what
//! a case needs of an account or of a hand-written peer.

use crate::case::CaseCtx;
use crate::measure::pinned;
use std::fmt::Display;
use std::thread::Thread;
use warmcore_budget::stock::{LockedStocks, Stocks};
use warmcore_budget::{Account, AccountConfig, Accounts, Node, StockKind};
use warmcore_percpu::{Backend, backend};
use warmcore_sys::affinity;
use warmcore_sys::rseq::current_cpu;

/// Warmcore's accounts with stocks (units that a CPU holds ready) that restartable sequences access: the default where
/// the kernel offers them.
pub const RSEQ: &str = "warmcore rseq";
/// Warmcore's accounts with one atomic word per stock: the strict kind, whose charges never exceed a limit.
pub const ATOMIC_STOCKS: &str = "warmcore atomic";
/// The published design, a lock in each stock. Not offered to users: a thread that holds the lock may be preempted.
pub const LOCK: &str = "warmcore lock (reference)";
/// One atomic for all threads; a compare-and-swap charges it if the sum is within the limit.
pub const ATOMIC: &str = "one shared atomic";
/// Three atomics, charged from leaf to root; if one refuses, the charges below it are undone.
pub const ATOMICS: &str = "three atomics, leaf to root";
pub const STD_MUTEX: &str = "std Mutex";
pub const PARKING_LOT: &str = "parking_lot Mutex";
/// Each thread caches free units, which only that thread can reach.
pub const CACHED: &str = "thread-cached, no drain";

/// A limit that is never reached.
pub const LIMIT: u64 = 1 << 40;

/// Whether this process runs restartable sections (rseq). If not, the kind of stock that needs them is left out.
pub fn on_rseq() -> bool {
    matches!(backend(), Backend::Rseq(_))
}

/// The name of the default kind, with which the other variants are compared.
pub fn ours() -> &'static str {
    if on_rseq() { RSEQ } else { ATOMIC_STOCKS }
}

pub fn default_kind() -> StockKind {
    if on_rseq() { StockKind::Rseq } else { StockKind::Atomic }
}

/// Makes `count` leaves in one group of one root. Each account has this limit.
pub fn leaves(kind: StockKind, limit: u64, count: usize) -> Vec<Account> {
    let group = Account::root("root").limit(limit).kind(kind).build().child("group").limit(limit).build();
    (0..count).map(|_| group.child("leaf").limit(limit).build()).collect()
}

/// As [`leaves`], with [`StockKind::Rseq`]; `None` if restartable sections don't run here.
pub fn rseq_leaves(limit: u64, count: usize) -> Option<Vec<Account>> {
    on_rseq().then(|| leaves(StockKind::Rseq, limit, count))
}

/// Accounts with a lock in each stock.
pub fn locked() -> Accounts<LockedStocks> {
    Accounts::new(LockedStocks::new(affinity::nr_cpu_ids() as u32))
}

/// As [`leaves`], with a lock in each stock.
pub fn locked_leaves(accounts: &Accounts<LockedStocks>, limit: u64, count: usize) -> Vec<LockedLeaf<'_>> {
    let group = create(accounts, Some(create(accounts, None, "root", limit)), "group", limit);
    let leaf = |_| LockedLeaf { accounts, leaf: create(accounts, Some(group), "leaf", limit) };
    (0..count).map(leaf).collect()
}

/// Makes an account that has a limit, and no soft limit, guarantee or listener.
pub fn create<'a, S: Stocks>(
    accounts: &'a Accounts<S>,
    parent: Option<&Node>,
    name: &str,
    limit: u64,
) -> &'a Node {
    let config =
        AccountConfig { name: name.into(), limit, soft_limit: u64::MAX, guarantee: 0, listener: None };
    accounts.create(parent, config).expect("without a guarantee nothing is refused")
}

/// A way to keep one account within a limit. The methods that a case times are inlined into its loops, as in a user's
/// program.
pub trait Gate: Sync {
    /// Charges `n` units. Returns false if they don't fit.
    fn charge(&self, n: u64) -> bool;

    /// Uncharges `n` units.
    fn uncharge(&self, n: u64);

    /// Charges `n` units; panics if they don't fit.
    #[inline(always)]
    fn must_charge(&self, n: u64) {
        must_fit(self.charge(n));
    }

    /// Charges 1 and uncharges it.
    #[inline(always)]
    fn pair(&self) {
        self.must_charge(1);
        self.uncharge(1);
    }

    /// Returns to the account the units that the calling thread caches, if the gate has such a cache. A thread calls
    /// this before it ends.
    fn leave(&self) {}

    /// The number of units that are charged and not in use, while about `held` units are in use; `None` if the gate
    /// can't tell.
    fn stranded(&self, _held: u64) -> Option<u64> {
        None
    }

    /// The units in use, including those that threads cache; 0 if the gate can't tell.
    fn usage(&self) -> u64 {
        0
    }
}

impl<G: Gate> Gate for &G {
    #[inline(always)]
    fn charge(&self, n: u64) -> bool {
        (**self).charge(n)
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        (**self).uncharge(n);
    }

    #[inline(always)]
    fn must_charge(&self, n: u64) {
        (**self).must_charge(n);
    }

    fn leave(&self) {
        (**self).leave();
    }

    fn stranded(&self, held: u64) -> Option<u64> {
        (**self).stranded(held)
    }

    fn usage(&self) -> u64 {
        (**self).usage()
    }
}

/// A gate with stocks that another CPU can drain.
pub trait Drain: Gate {
    /// Drains the stocks of all CPUs, and returns the number of stocks that were open.
    fn drain(&self) -> u32;

    /// Charges and uncharges many times.
    fn churn(&self) {
        (0..64).for_each(|_| self.pair());
    }
}

impl Gate for Account {
    #[inline(always)]
    fn charge(&self, n: u64) -> bool {
        self.try_charge(n).is_ok()
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        must(self.uncharge(n));
    }

    #[inline(always)]
    fn must_charge(&self, n: u64) {
        must(self.try_charge(n));
    }

    fn stranded(&self, _: u64) -> Option<u64> {
        Some(self.explain().stranded())
    }

    fn usage(&self) -> u64 {
        self.exact_usage()
    }
}

impl Drain for Account {
    fn drain(&self) -> u32 {
        self.drain_all().stocks
    }
}

/// A leaf of accounts with a lock in each stock.
#[derive(Clone, Copy)]
pub struct LockedLeaf<'a> {
    accounts: &'a Accounts<LockedStocks>,
    pub leaf: &'a Node,
}

impl Gate for LockedLeaf<'_> {
    #[inline(always)]
    fn charge(&self, n: u64) -> bool {
        self.accounts.try_charge(self.leaf, current_cpu, n).is_ok()
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        must(self.accounts.uncharge(self.leaf, current_cpu, n));
    }

    #[inline(always)]
    fn must_charge(&self, n: u64) {
        must(self.accounts.try_charge(self.leaf, current_cpu, n));
    }

    fn stranded(&self, _: u64) -> Option<u64> {
        Some(self.accounts.explain(self.leaf).stranded())
    }

    fn usage(&self) -> u64 {
        self.accounts.exact_usage(self.leaf)
    }
}

impl Drain for LockedLeaf<'_> {
    fn drain(&self) -> u32 {
        self.accounts.drain_all(self.leaf).stocks
    }
}

/// Panics if a charge or an uncharge failed: in these cases everything fits.
#[inline(always)]
pub fn must<E: Display>(result: Result<(), E>) {
    if let Err(error) = result {
        refused(&error);
    }
}

#[inline(always)]
pub fn must_fit(is_charged: bool) {
    if !is_charged {
        refused(&"full");
    }
}

#[cold]
#[inline(never)]
pub fn refused(error: &dyn Display) -> ! {
    panic!("what fits was refused: {error}")
}

/// Uncharges what a measurement left charged, so that the accounts can be removed.
pub fn settle<'a>(accounts: impl IntoIterator<Item = &'a Account>) {
    for account in accounts {
        must(account.uncharge(account.exact_usage()));
    }
}

/// Runs `ask` pinned to the measuring CPU, beside two threads on the partner's CPU: a worker, and a helper, which `ask`
/// gets and may unpark. `end` must make both return; the helper is unparked after it.
pub fn with_worker<T>(
    ctx: &CaseCtx,
    work: impl FnOnce() + Send,
    help: impl FnOnce() + Send,
    ask: impl FnOnce(&Thread) -> anyhow::Result<T>,
    end: impl FnOnce(),
) -> anyhow::Result<T> {
    let partner = ctx.partner();
    pinned(ctx.cpus.own, || {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = affinity::pin(partner);
                work();
            });
            let helper = scope.spawn(move || {
                let _ = affinity::pin(partner);
                help();
            });
            let result = ask(helper.thread());
            end();
            helper.thread().unpark();
            result
        })
    })
}
