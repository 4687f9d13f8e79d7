#![doc = include_str!("../README.md")]
//!
//! # Notes on the pool
//!
//! A consumer's reservations are charged to an account: `try_grow` is `try_charge`, `grow` is `force_charge`,
//! `shrink` is `uncharge`. `try_grow` is refused if the account or any account above it refuses, and other
//! charges to these accounts count as well. A [fair](BudgetPool::fair) pool has two accounts below the given
//! one: one for consumers that can spill, one for the others. With a limit of 64 MiB of which 4 MiB cannot be
//! spilled, and 4 consumers that can spill, each of their reservations may have 15 MiB.
//!
//! Source: DataFusion's `GreedyMemoryPool` and `FairSpillPool`; its issues 24994 for their locks, 17334 for
//! `keep_for_unspillable`.

use datafusion_common::{DataFusionError, Result, resources_datafusion_err};
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use warmcore_budget::{Account, OverBudget};

/// A [`MemoryPool`] that charges an account: `try_grow` obeys the limits of the account and of all accounts
/// above it, `grow` may exceed them. Units are bytes.
///
/// Any number of pools may charge one account. [`Account::set_limit`] also applies to queries that already run.
#[derive(Debug)]
pub struct BudgetPool {
    account: Account,
    fair: Option<Fair>,
}

/// The additional state of a fair pool.
#[derive(Debug)]
struct Fair {
    spillable: Account,
    unspillable: Account,
    /// The guarantee of `unspillable`.
    kept: u64,
    /// Registered consumers that can spill: an operator registers one for each partition.
    spillers: AtomicU64,
}

impl BudgetPool {
    /// Makes a pool that grants reservations first come, first served, as `GreedyMemoryPool` does. For queries
    /// that do not spill, or spill in one operator.
    pub fn new(account: Account) -> Self {
        Self { account, fair: None }
    }

    /// Makes a pool that works as `FairSpillPool`: the account's own limit, less the memory that cannot be
    /// spilled, is divided equally among the consumers that can spill; that part is the most that each of
    /// their reservations may have. The other reservations are first come, first served. For queries in which
    /// several operators spill.
    ///
    /// Unlike that of `FairSpillPool`, `try_grow` also obeys the limit as a whole: if a late reservation asks
    /// for its part before the other reservations have spilled what is above theirs, it is refused. If the
    /// account itself has no limit, a reservation has no such part.
    pub fn fair(account: Account) -> Self {
        let child = |name| account.child(format!("{}/{name}", account.name())).build();
        let (spillable, unspillable) = (child("spillable"), child("unspillable"));
        let fair = Fair { spillable, unspillable, kept: 0, spillers: AtomicU64::new(0) };
        Self { account, fair: Some(fair) }
    }

    /// Keeps this number of bytes of a fair pool for consumers that cannot spill, so that consumers that can
    /// spill do not take all memory. Returns an error if the account has too little left for that now. Does
    /// nothing to other pools.
    pub fn keep_for_unspillable(mut self, bytes: u64) -> Result<Self, OverBudget> {
        if let Some(fair) = &mut self.fair {
            fair.unspillable.set_guarantee(bytes)?;
            fair.kept = bytes;
        }
        Ok(self)
    }

    /// The account from which the pool was made.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The account that a consumer's memory is charged to.
    #[inline]
    fn of(&self, consumer: &MemoryConsumer) -> &Account {
        match &self.fair {
            None => &self.account,
            Some(fair) if consumer.can_spill() => &fair.spillable,
            Some(fair) => &fair.unspillable,
        }
    }

    /// The most bytes that a reservation of a consumer that can spill may have.
    fn share(&self, fair: &Fair) -> u64 {
        let limit = self.account.limit();
        if limit == u64::MAX {
            return limit;
        }
        let others = fair.unspillable.usage().charged.max(fair.kept);
        limit.saturating_sub(others) / fair.spillers.load(Relaxed).max(1)
    }

    /// The smallest limit on the account's path.
    fn limit(&self) -> u64 {
        let above = std::iter::successors(self.account.parent(), Account::parent);
        above.fold(self.account.limit(), |limit, account| limit.min(account.limit()))
    }
}

impl MemoryPool for BudgetPool {
    fn name(&self) -> &str {
        "budget"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        if let Some(fair) = self.fair.as_ref().filter(|_| consumer.can_spill()) {
            fair.spillers.fetch_add(1, Relaxed);
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        if let Some(fair) = self.fair.as_ref().filter(|_| consumer.can_spill()) {
            fair.spillers.fetch_sub(1, Relaxed);
        }
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        // An overrun is reported to the account's listener.
        let _ = self.of(reservation.consumer()).force_charge(additional as u64);
    }

    #[inline]
    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        let result = self.of(reservation.consumer()).uncharge(shrink as u64);
        // This fails if other code uncharged more than it had charged. It must not panic in a release build,
        // because destructors call this method.
        debug_assert!(result.is_ok(), "{result:?}");
    }

    #[inline]
    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if let Some(fair) = self.fair.as_ref().filter(|_| reservation.consumer().can_spill()) {
            let share = self.share(fair);
            if reservation.size().saturating_add(additional) as u64 > share {
                return Err(over_share(reservation, additional, share, &self.account));
            }
        }
        let account = self.of(reservation.consumer());
        account.try_charge(additional as u64).map_err(|over| over_budget(reservation, additional, &over))
    }

    /// Returns the bytes in use: of the account, or the sum of the two accounts of a fair pool, which are
    /// read one after the other. It empties the stocks of all CPUs, so don't call it often.
    fn reserved(&self) -> usize {
        let used = match &self.fair {
            None => self.account.exact_usage(),
            Some(fair) => fair.spillable.exact_usage() + fair.unspillable.exact_usage(),
        };
        used as usize
    }

    fn memory_limit(&self) -> MemoryLimit {
        match self.limit() {
            u64::MAX => MemoryLimit::Infinite,
            limit => MemoryLimit::Finite(limit as usize),
        }
    }
}

/// `budget(account: tenant, used: 3.1 MB, limit: 64.0 MB)`; units in stocks count as used.
impl fmt::Display for BudgetPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = size(self.account.usage().charged);
        write!(f, "{}(account: {}, used: {used}", self.name(), self.account.name())?;
        match self.limit() {
            u64::MAX => f.write_str(", no limit)"),
            limit => write!(f, ", limit: {})", size(limit)),
        }
    }
}

fn size(bytes: u64) -> String {
    human_readable_size(bytes as usize)
}

/// The error text begins as DataFusion's own errors do, because users search for that text; then it names the
/// account that refused, and the reason.
#[cold]
fn over_budget(reservation: &MemoryReservation, additional: usize, over: &OverBudget) -> DataFusionError {
    let (account, used, limit) = (over.account(), size(over.usage()), size(over.limit()));
    let why = if over.exceeds_limit() {
        format!("the limit of {account} is {limit}")
    } else if over.is_queued() {
        format!("other charges wait in {account}")
    } else {
        format!("{account} is full: {used} of {limit} used")
    };
    refused(reservation, additional, &why)
}

/// The error for a reservation above its share. The account need not be full: the rest is kept for other
/// reservations.
#[cold]
fn over_share(
    reservation: &MemoryReservation,
    additional: usize,
    share: u64,
    account: &Account,
) -> DataFusionError {
    let (share, limit) = (size(share), size(account.limit()));
    refused(reservation, additional, &format!("its fair share of {} is {share} of {limit}", account.name()))
}

fn refused(reservation: &MemoryReservation, additional: usize, why: &str) -> DataFusionError {
    resources_datafusion_err!(
        "Failed to allocate additional {} for {} with {} already allocated for this reservation - {why}",
        human_readable_size(additional),
        reservation.consumer().name(),
        human_readable_size(reservation.size())
    )
}
