//! A handle to one account of a tree.

use super::account_ptr::{AccountPtr, atomic, on_account, rseq, unaccounted};
use super::{Charge, StockKind, default_kind, reclaim, waiters};
use crate::accounts::{AccountConfig, Drained, Explain, Usage};
use crate::outcome::{Event, Listener, OverBudget, OverUncharge, Overrun};
use crate::stock::StockAddr;
use std::fmt;
use std::sync::Arc;
use warmcore_sys::rseq::current_cpu;

/// One account of a tree: a limit, and what is charged to it and to all accounts below. Cheap to clone: every
/// clone is a handle to the same account. The account ends when it has neither a handle nor an account below. Units
/// that are still charged then stay charged to its parent until they are given back.
///
/// ```
/// use warmcore_budget::Account;
///
/// let server = Account::root("server").limit(1 << 30).build();
/// let tenant = server.child("tenant").limit(64 << 20).build();
///
/// let buffer = tenant.try_hold(4096)?;         // a `Charge`: given back when dropped
/// assert!(tenant.usage().charged >= 4096);
/// assert!(server.usage().charged >= 4096);
/// drop(buffer);
/// assert_eq!(server.exact_usage(), 0);
///
/// let over = tenant.try_hold(1 << 30).unwrap_err();
/// assert_eq!(over.account(), "tenant");
/// # Ok::<(), warmcore_budget::OverBudget>(())
/// ```
pub struct Account {
    pub(super) ptr: AccountPtr,
    /// A copy of the node's stock address, so that a loop may keep it in a register.
    stock_addr: StockAddr,
}

/// Builds an account: [`Account::root`], [`Account::child`].
///
/// A batch job must leave units for requests, and no limit is to be exceeded, not even for a moment:
///
/// ```
/// use warmcore_budget::Account;
///
/// let server = Account::root("server").limit(100).strict().build();
/// let requests = server.child("requests").guarantee(30).build();
/// let batch = server.child("batch").build();
///
/// assert_eq!(batch.try_charge(80).unwrap_err().account(), "server"); // 70 are left for it
/// batch.try_charge(70)?;
/// requests.try_charge(30)?;
/// assert_eq!(server.exact_usage(), 100);
/// # Ok::<(), warmcore_budget::OverBudget>(())
/// ```
#[must_use = "`build` makes the account"]
pub struct AccountBuilder {
    parent: Option<Account>,
    kind: Option<StockKind>,
    config: AccountConfig,
}

impl AccountBuilder {
    fn new(name: String, parent: Option<Account>) -> Self {
        let (limit, soft_limit, guarantee, listener) = (u64::MAX, u64::MAX, 0, None);
        let config =
            AccountConfig { name: unaccounted(|| name.into()), limit, soft_limit, guarantee, listener };
        Self { parent, kind: None, config }
    }

    /// Sets the limit for the units of this account and of all below. By default an account has no limit of its own.
    /// The limits of the accounts above apply in any case.
    pub fn limit(mut self, units: u64) -> Self {
        self.config.limit = units;
        self
    }

    /// Sets the usage above which [`Event::Pressure`] is reported.
    pub fn soft_limit(mut self, units: u64) -> Self {
        self.config.soft_limit = units;
        self
    }

    /// Sets how many units the parent keeps for this account from the beginning. Only this account and those below it
    /// can use them.
    pub fn guarantee(mut self, units: u64) -> Self {
        self.config.guarantee = units;
        self
    }

    /// Sets a function that is called on events of this account and of accounts below that have no nearer listener.
    /// It runs on the thread that caused the event, which holds no lock for which another call of this crate waits.
    /// Memory that it allocates on that thread is charged to no account.
    ///
    /// A panic of the listener does not unwind into the charge: the panic hook reports it, and the charge
    /// continues as if the listener had returned. Under a [`BudgetAlloc`](super::BudgetAlloc) any allocation may
    /// call the listener, so it must not take a lock under which memory is allocated elsewhere.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    /// use warmcore_budget::{Account, Event};
    ///
    /// let pressures = Arc::new(AtomicU32::new(0));
    /// let count = pressures.clone();
    /// let cache = Account::root("cache").limit(100).soft_limit(80).on_event(move |event| {
    ///     if let Event::Pressure { .. } = event {
    ///         count.fetch_add(1, Relaxed); // a real listener would evict entries here
    ///     }
    /// });
    /// let cache = cache.build();
    /// cache.try_charge(90)?;
    /// assert_eq!(pressures.load(Relaxed), 1);
    /// # Ok::<(), warmcore_budget::OverBudget>(())
    /// ```
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        let listener = move |event: &Event| unaccounted(|| listener(event));
        self.config.listener = Some(unaccounted(|| Arc::new(listener) as Listener));
        self
    }

    /// Sets the stock kind of the tree; [`default_kind`] by default. Useful for a root only: a child has its
    /// parent's kind, and [`build`](Self::build) panics if another kind was set.
    pub fn kind(mut self, kind: StockKind) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Selects [`StockKind::Atomic`]: only a [forced charge](Account::force_charge) exceeds a limit of the tree, and a
    /// charge that fits is refused only while other charges wait.
    pub fn strict(self) -> Self {
        self.kind(StockKind::Atomic)
    }

    /// Makes the account. Panics if [`try_build`](Self::try_build) returns an error or panics.
    #[track_caller]
    pub fn build(self) -> Account {
        match self.try_build() {
            Ok(account) => account,
            Err(over) => panic!("the parent has too little left for the guarantee: {over}"),
        }
    }

    /// Makes the account. Returns an error if its parent, or an account above that, has too little left for its
    /// guarantee, or if charges wait there. Panics if the tree would be deeper than [`DEPTH_MAX`](crate::DEPTH_MAX), if
    /// the kind is not the parent's, if [`default_kind`] is needed and panics, if no address space is left, or if there
    /// are 2^24 - 1 accounts already.
    pub fn try_build(self) -> Result<Account, OverBudget> {
        let Self { parent, kind, config } = self;
        let parent_kind = parent.as_ref().map(Account::kind);
        if let (Some(asked), Some(is)) = (kind, parent_kind) {
            assert!(asked == is, "{}: a tree is of one kind, {is} here; {asked} was asked", config.name);
        }
        let kind = parent_kind.or(kind).unwrap_or_else(default_kind);
        let up = parent.as_ref().map(|parent| parent.ptr.node());
        let node = unaccounted(|| match kind {
            StockKind::Rseq => rseq().create(up, config),
            StockKind::Atomic => atomic().create(up, config),
        })?;
        reclaim::ensure();
        Ok(Account::at(AccountPtr::new(node, kind)))
    }
}

impl Account {
    /// Makes a handle. The caller has counted it in the node already.
    fn at(ptr: AccountPtr) -> Self {
        Self { ptr, stock_addr: ptr.stock_addr() }
    }

    /// Builds the root of a tree.
    pub fn root(name: impl Into<String>) -> AccountBuilder {
        AccountBuilder::new(name.into(), None)
    }

    /// Builds an account below this one.
    pub fn child(&self, name: impl Into<String>) -> AccountBuilder {
        AccountBuilder::new(name.into(), Some(self.clone()))
    }

    /// Charges `n` units to this account and all above it, or none. They stay charged until they are
    /// [uncharged](Self::uncharge); a [`Charge`] from [`try_hold`](Self::try_hold) does that when it is dropped.
    ///
    /// **Touches** this CPU's stock; the accounts too once in some hundreds of charges, for a charge that is too large
    /// for a stock, and near a limit.
    ///
    /// A cache charges each entry when it is inserted, and gives the units back when it is evicted:
    ///
    /// ```
    /// use warmcore_budget::Account;
    ///
    /// let cache = Account::root("cache").limit(100).build();
    /// cache.try_charge(60)?;
    /// assert!(cache.try_charge(60).is_err()); // 40 are left: evict first
    /// cache.uncharge(60).expect("it was charged");
    /// cache.try_charge(60)?;
    /// assert_eq!(cache.exact_usage(), 60);
    /// # Ok::<(), warmcore_budget::OverBudget>(())
    /// ```
    #[inline(always)]
    pub fn try_charge(&self, n: u64) -> Result<(), OverBudget> {
        self.ptr.try_charge(self.stock_addr, n)
    }

    /// Charges `n` units even if they exceed a limit, for units that are in use already. `Err` names the account
    /// that is furthest over its limit, and by how much; the units are charged all the same. Panics above 2^60
    /// units, and if the usage of an account would reach 2^64.
    pub fn force_charge(&self, n: u64) -> Result<(), Overrun> {
        self.ptr.force_charge(n)
    }

    /// Gives back units that any thread charged to this account, or to a child that has ended.
    ///
    /// Returns an error and gives back nothing if fewer units are charged. This is not always noticed: if this CPU's
    /// stock of the account has room for the surplus, this call returns `Ok`, and the next drain finds more units in
    /// stocks than are charged.
    #[inline(always)]
    pub fn uncharge(&self, n: u64) -> Result<(), OverUncharge> {
        self.ptr.uncharge(self.stock_addr, n)
    }

    /// Charges `n` units until the [`Charge`] is dropped.
    #[inline(always)]
    pub fn try_hold(&self, n: u64) -> Result<Charge, OverBudget> {
        self.try_charge(n)?;
        Ok(Charge::new(self.ptr, n))
    }

    /// As [`force_charge`](Self::force_charge), until the [`Charge`] is dropped.
    pub fn force_hold(&self, n: u64) -> (Charge, Option<Overrun>) {
        let over = self.force_charge(n).err();
        (Charge::new(self.ptr, n), over)
    }

    /// Charges several accounts, of any trees, or none of them. If one is full, the accounts before it in the
    /// list are charged for a moment, and their units are then given back.
    ///
    /// A query needs memory and a connection, and must not hold the one while it lacks the other:
    ///
    /// ```
    /// use warmcore_budget::Account;
    ///
    /// let memory = Account::root("memory").limit(1 << 20).build();
    /// let connections = Account::root("connections").limit(1).build();
    /// connections.try_charge(1)?;
    ///
    /// let over = Account::try_charge_all(&[(&memory, 4096), (&connections, 1)]).unwrap_err();
    /// assert_eq!(over.account(), "connections");
    /// assert_eq!(memory.exact_usage(), 0);
    /// # Ok::<(), warmcore_budget::OverBudget>(())
    /// ```
    pub fn try_charge_all(charges: &[(&Account, u64)]) -> Result<(), OverBudget> {
        for (i, (account, n)) in charges.iter().enumerate() {
            if let Err(over) = account.try_charge(*n) {
                for (account, n) in &charges[..i] {
                    account.uncharge(*n).expect("it was charged a moment ago");
                }
                return Err(over);
            }
        }
        Ok(())
    }

    /// As [`try_charge_all`](Self::try_charge_all), until the [`Charge`]s are dropped.
    pub fn try_hold_all(charges: &[(&Account, u64)]) -> Result<Vec<Charge>, OverBudget> {
        charges.iter().map(|(account, n)| account.try_hold(*n)).collect()
    }

    /// Empties the stocks of this account and of all below, on all CPUs. The calling thread does all the work and
    /// signals or interrupts no other; it wakes only charges that wait for the returned units.
    ///
    /// **Touches** every such stock, two cache misses each, and the accounts.
    pub fn drain_all(&self) -> Drained {
        self.ptr.run_slow_path(|| on_account!(self.ptr, |accounts, node| accounts.drain_all(node)))
    }

    /// How much is charged, and how exact that number is.
    ///
    /// **Touches** this account.
    pub fn usage(&self) -> Usage {
        on_account!(self.ptr, |accounts, node| accounts.usage(node))
    }

    /// Units in use at one moment of this call, unused guarantees of accounts below counted as used. Empties the
    /// stocks as [`drain_all`](Self::drain_all) does. With [`StockKind::Rseq`] it may be wrong by what sections
    /// under way spend or return at that moment.
    pub fn exact_usage(&self) -> u64 {
        self.ptr.run_slow_path(|| on_account!(self.ptr, |accounts, node| accounts.exact_usage(node)))
    }

    /// The most that was ever charged, including units in stocks and charges that an account above then refused.
    pub fn peak(&self) -> u64 {
        on_account!(self.ptr, |accounts, node| accounts.peak(node))
    }

    /// Reports how many of the account's units are in use and in the stock of each CPU, and how full each account
    /// on its path to the root is.
    ///
    /// A charge of a tenant that uses little is refused. The report names the full account:
    ///
    /// ```
    /// use warmcore_budget::Account;
    ///
    /// let server = Account::root("server").limit(100).build();
    /// let (hog, tenant) = (server.child("hog").build(), server.child("tenant").limit(50).build());
    /// hog.try_charge(100)?;
    /// assert!(tenant.try_charge(1).is_err());
    ///
    /// let explain = tenant.explain(); // `println!("{explain}")` shows all of it
    /// let full = explain.path.iter().find(|level| level.charged == level.limit);
    /// assert_eq!(full.map(|level| &*level.account), Some("server"));
    /// assert_eq!(explain.used(), 0);
    /// # Ok::<(), warmcore_budget::OverBudget>(())
    /// ```
    pub fn explain(&self) -> Explain {
        // The list of CPUs grows under the accounts' locks.
        unaccounted(|| on_account!(self.ptr, |accounts, node| accounts.explain(node)))
    }

    /// The limit; `u64::MAX` if there is none.
    pub fn limit(&self) -> u64 {
        on_account!(self.ptr, |accounts, node| accounts.limit(node))
    }

    /// Changes the limit. With a limit below usage, charges that would add to this account's usage are refused until
    /// enough units were given back, unless they are [forced](Self::force_charge).
    ///
    /// **Touches** this account; for a lower limit, which empties the stocks, all that [`drain_all`](Self::drain_all)
    /// does.
    ///
    /// A server gives a tenant less, and then more, without a restart:
    ///
    /// ```
    /// use warmcore_budget::Account;
    ///
    /// let tenant = Account::root("tenant").limit(100).build();
    /// tenant.try_charge(80)?;
    /// tenant.set_limit(50); // what is charged stays charged
    /// assert!(tenant.try_charge(1).is_err());
    /// tenant.set_limit(200);
    /// tenant.try_charge(100)?;
    /// assert_eq!(tenant.exact_usage(), 180);
    /// # Ok::<(), warmcore_budget::OverBudget>(())
    /// ```
    pub fn set_limit(&self, units: u64) {
        on_account!(self.ptr, |accounts, node| accounts.set_limit(node, units));
        self.ptr.wake_waiters();
        // With a higher limit, waiting charges may fit now.
        waiters::wake_first_waiters();
    }

    /// Changes the soft limit.
    pub fn set_soft_limit(&self, units: u64) {
        on_account!(self.ptr, |accounts, node| accounts.set_soft_limit(node, units));
    }

    /// Changes how many units the parent keeps for this account. Returns an error, and changes nothing, if the parent
    /// or an account above it has too little left, or if charges wait there and this call needs more units.
    pub fn set_guarantee(&self, units: u64) -> Result<(), OverBudget> {
        let result = on_account!(self.ptr, |accounts, node| accounts.set_guarantee(node, units));
        self.ptr.wake_waiters();
        result
    }

    /// The name.
    pub fn name(&self) -> Arc<str> {
        self.ptr.node().name()
    }

    /// The account above; `None` for a root.
    pub fn parent(&self) -> Option<Account> {
        let parent = self.ptr.node().parent()?;
        on_account!(self.ptr, |accounts, _node| accounts.add_handle(parent));
        Some(Account::at(AccountPtr::new(parent, self.kind())))
    }

    /// The stock kind of the tree.
    pub fn kind(&self) -> StockKind {
        self.ptr.kind()
    }

    /// Runs a round of the background thread, which runs one every 100 ms: closes stocks, of all accounts, that were
    /// not used since the last round, and frees accounts that have ended and have no charges left.
    pub fn reclaim_idle_all() {
        reclaim::reclaim_idle();
    }

    /// The number of the CPU that a charge of this thread would use now.
    #[doc(hidden)]
    pub fn cpu() -> u32 {
        current_cpu().0
    }
}

impl Clone for Account {
    fn clone(&self) -> Self {
        on_account!(self.ptr, |accounts, node| accounts.add_handle(node));
        Self { ptr: self.ptr, stock_addr: self.stock_addr }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.ptr.run_slow_path(|| on_account!(self.ptr, |accounts, node| accounts.drop_handle(node)));
    }
}

/// Two handles are equal if they are of the same account.
impl PartialEq for Account {
    fn eq(&self, other: &Self) -> bool {
        self.ptr == other.ptr
    }
}

impl Eq for Account {}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, usage, limit) = (self.name(), self.usage(), self.limit());
        f.debug_struct("Account").field("name", &name).field("usage", &usage).field("limit", &limit).finish()
    }
}
