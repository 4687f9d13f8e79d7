//! The errors and events of charges and uncharges, and how callbacks of the program are called.

use crate::stock::Key;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A refused charge: which account refused it, and how full that account was.
///
/// ```
/// # use warmcore_budget::Account;
/// let server = Account::root("server").limit(100).build();
/// let hog = server.child("hog").build();
/// let over = hog.try_charge(101).unwrap_err();
/// assert_eq!((over.account(), over.usage(), over.limit()), ("server", 0, 100));
/// ```
///
/// One word wide, so that the result of a charge fits in a register.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct OverBudget(pub(crate) Box<Refused>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) account: Arc<str>,
    pub(crate) asked: u64,
    pub(crate) usage: u64,
    pub(crate) limit: u64,
    pub(crate) is_queued: bool,
    /// The account that refused the charge, and where the charge may wait. It is on the path of the account that was
    /// to be charged.
    pub(crate) key: Key,
}

impl OverBudget {
    /// The name of the account that refused the charge: it is full, or other charges wait there.
    pub fn account(&self) -> &str {
        &self.0.account
    }

    /// How many units were to be charged to that account: fewer than to the accounts below if a guarantee covers the
    /// rest.
    pub fn asked(&self) -> u64 {
        self.0.asked
    }

    /// The usage of that account when the charge was refused.
    pub fn usage(&self) -> u64 {
        self.0.usage
    }

    /// The limit of that account when the charge was refused.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Whether the charge was refused because other charges wait at that account.
    pub fn is_queued(&self) -> bool {
        self.0.is_queued
    }

    /// Whether [`asked`](Self::asked) is larger than the limit, so that the charge cannot fit however many units come
    /// back.
    pub fn exceeds_limit(&self) -> bool {
        self.0.asked > self.0.limit
    }
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused { account, asked, usage, limit, is_queued, .. } = &*self.0;
        let free = limit.saturating_sub(*usage);
        let units = if *asked == 1 { "unit" } else { "units" };
        if self.exceeds_limit() {
            write!(f, "{account}: {asked} {units} asked, its limit is {limit}; ask for less, or raise it")
        } else if *is_queued {
            write!(f, "{account}: {asked} {units} asked while other charges wait; wait as well")
        } else {
            write!(
                f,
                "{account} is full: {asked} {units} asked, {free} free ({usage} of {limit} used); \
                 free some, wait for it, or raise its limit"
            )
        }
    }
}

impl std::error::Error for OverBudget {}

/// The error of an uncharge of more units than are charged. No unit was given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverUncharge(pub(crate) Box<Missing>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) account: Arc<str>,
    pub(crate) asked: u64,
    pub(crate) charged: u64,
}

impl OverUncharge {
    /// The name of the account that was to be uncharged.
    pub fn account(&self) -> &str {
        &self.0.account
    }

    /// How many units were to be uncharged.
    pub fn asked(&self) -> u64 {
        self.0.asked
    }

    /// How many units were charged to this account itself, without the accounts below, when the uncharge was refused.
    pub fn charged(&self) -> u64 {
        self.0.charged
    }
}

impl fmt::Display for OverUncharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { account, asked, charged } = &*self.0;
        write!(
            f,
            "{account}: {asked} units to uncharge, {charged} are charged; uncharge what was charged, once"
        )
    }
}

impl std::error::Error for OverUncharge {}

/// A forced charge left an account over its limit. The units are charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overrun {
    pub(crate) account: Arc<str>,
    pub(crate) by: u64,
}

impl Overrun {
    /// The name of the account that is furthest over its limit.
    pub fn account(&self) -> &str {
        &self.account
    }

    /// By how many units the account is over its limit.
    pub fn by(&self) -> u64 {
        self.by
    }
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {} units over its limit", self.account, self.by)
    }
}

/// An event of an account, for its listener: [`AccountBuilder::on_event`](crate::AccountBuilder::on_event).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Usage is above `limit`, or a charge is about to be refused because the account is full. Not reported again
    /// before usage has fallen below 15/16 of `limit`. A charge that is about to be refused is tried again after the
    /// listener has returned, and may fit if the listener freed units.
    Pressure {
        /// The name of the account.
        account: Arc<str>,
        /// The account's usage, units in stocks included.
        usage: u64,
        /// The soft limit, or the limit if that is lower.
        limit: u64,
    },
    /// A charge was refused because the account is full. Not reported if it was refused because other charges wait
    /// ([`OverBudget::is_queued`]), or if it waits already.
    OverBudget(OverBudget),
    /// A forced charge left the account over its limit.
    Overrun(Overrun),
    /// A call of `drain_all` or `exact_usage` closed open stocks of the account or of accounts below.
    Drained {
        /// The name of the account.
        account: Arc<str>,
        /// Units that came back.
        units: u64,
        /// Stocks that were closed.
        stocks: u32,
    },
}

/// A callback for events, called on the thread that caused them. That thread holds no lock for which another call of
/// this crate waits.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Calls code of the program that may panic: a waker, a listener, or the destructor of what a listener owns. Returns
/// `None` if it panicked.
///
/// The calling thread may be in the middle of a charge, an uncharge or a reclaim. The panic hook reports the panic, and
/// the panic is caught here, so that the charge is finished, the next waiter is woken, and the background thread
/// continues.
pub(crate) fn contain<R>(act: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => Some(result),
        Err(panic) => {
            // The panic's payload may panic when it is dropped.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(again);
            }
            None
        }
    }
}
