//! Account: a handle to one account of a tree.

use super::charge::Charge;
use super::stock_kind::{StockKind, default_kind};
use super::{AccountPtr, active::unaccounted, atomic, on_account, reclaim, rseq, wait};
use crate::accounts::{AccountConfig, Drained, Explain, Usage};
use crate::outcome::{Event, Listener, OverBudget, OverUncharge, Overrun};
use crate::stock::StockAddr;
use std::fmt;
use std::sync::Arc;
use warmcore_sys::rseq::current_cpu;

/// One account of a tree: a limit, and what is charged to it and to all below. Cheap to clone: every clone
/// is the same account. It ends with its last handle; what is charged then stays charged to its parent
/// until it is given back.
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
    /// The node's, here where a loop may keep it in registers.
    stock_addr: StockAddr,
}

/// How an account is made: [`Account::root`], [`Account::child`].
#[must_use = "`build` makes the account"]
pub struct Builder {
    parent: Option<Account>,
    kind: Option<StockKind>,
    config: AccountConfig,
}

impl Builder {
    fn new(name: String, parent: Option<Account>) -> Self {
        let (limit, soft_limit, guarantee, listener) = (u64::MAX, u64::MAX, 0, None);
        let config =
            AccountConfig { name: unaccounted(|| name.into()), limit, soft_limit, guarantee, listener };
        Self { parent, kind: None, config }
    }

    /// No more than so many units, its children's included. Without: no limit of its own.
    pub fn limit(mut self, units: u64) -> Self {
        self.config.limit = units;
        self
    }

    /// Above so many units there is pressure: [`Event::Pressure`].
    pub fn soft_limit(mut self, units: u64) -> Self {
        self.config.soft_limit = units;
        self
    }

    /// Its parent keeps so many units for it, from the beginning, whatever others use.
    pub fn guarantee(mut self, units: u64) -> Self {
        self.config.guarantee = units;
        self
    }

    /// Called on what happens to this account and to those below that have no listener of their own: in the
    /// thread that caused it, with no lock of budget's held. Memory that it allocates is charged to nobody.
    ///
    /// A panic in it goes no further: the panic hook tells of it, and the charge goes on as if the listener had
    /// returned. Under a [`BudgetAlloc`](super::BudgetAlloc) any allocation may call the listener, so it takes no
    /// lock that is held somewhere while memory is allocated.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        let listener = move |event: &Event| unaccounted(|| listener(event));
        self.config.listener = Some(unaccounted(|| Arc::new(listener) as Listener));
        self
    }

    /// Of which kind the tree's stocks are; without, [`default_kind`]. For a root: a child is of its
    /// parent's kind, and [`build`](Self::build) panics if it is told otherwise.
    pub fn kind(mut self, kind: StockKind) -> Self {
        self.kind = Some(kind);
        self
    }

    /// No limit of the tree is ever exceeded, and nothing that fits is refused: [`StockKind::Atomic`].
    pub fn strict(self) -> Self {
        self.kind(StockKind::Atomic)
    }

    /// Makes the account. Panics where [`try_build`](Self::try_build) is refused or does, and without address space.
    #[track_caller]
    pub fn build(self) -> Account {
        match self.try_build() {
            Ok(account) => account,
            Err(over) => panic!("the parent has too little left for the guarantee: {over}"),
        }
    }

    /// Makes the account, or says that its parent has no room for its guarantee. Panics if the
    /// tree would be more than [`DEPTH_MAX`](crate::DEPTH_MAX) deep.
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
    /// A handle that was counted.
    fn at(ptr: AccountPtr) -> Self {
        Self { ptr, stock_addr: ptr.stock_addr() }
    }

    /// A tree's uppermost account.
    pub fn root(name: impl Into<String>) -> Builder {
        Builder::new(name.into(), None)
    }

    /// An account below this one.
    pub fn child(&self, name: impl Into<String>) -> Builder {
        Builder::new(name.into(), Some(self.clone()))
    }

    /// Charges `n` units to this account and all above it, or none. They stay charged until they are
    /// [uncharged](Self::uncharge): [`try_hold`](Self::try_hold) does that by itself.
    ///
    /// **Touches** this CPU's stock; every 500th time or so, and near a limit, the accounts.
    #[inline(always)]
    pub fn try_charge(&self, n: u64) -> Result<(), OverBudget> {
        self.ptr.try_charge(self.stock_addr, n)
    }

    /// Charges `n` units, whatever the limits: for what has happened already. `Err` says which account is
    /// over, and by how much; the units are charged all the same. Panics above 2^60 units.
    pub fn force_charge(&self, n: u64) -> Result<(), Overrun> {
        self.ptr.force_charge(n)
    }

    /// Gives back units that were charged to this very account, on any thread.
    ///
    /// More than are charged is an error, and changes nothing. It is found at once, unless another CPU has a
    /// stock of this account that takes them: then the next drain finds less in use than there is in stocks.
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

    /// Charges several accounts, of any trees, or none of them. What was charged before the one that is
    /// full is given back, and was charged until then.
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

    /// Empties the stocks of this account and of all below, on all CPUs, from this one. Nobody is woken,
    /// signalled or interrupted.
    ///
    /// **Touches** every such stock: two cache misses each.
    pub fn drain_all(&self) -> Drained {
        let drained = on_account!(self.ptr, |accounts, node| accounts.drain_all(node));
        self.ptr.wake_waiters();
        drained
    }

    /// How much is charged, and how exact that is.
    ///
    /// **Touches** this account.
    pub fn usage(&self) -> Usage {
        on_account!(self.ptr, |accounts, node| accounts.usage(node))
    }

    /// How much is used at one moment of this call, guarantees of accounts below counted as used: empties the stocks as [`drain_all`](Self::drain_all)
    /// does. With [`StockKind::Rseq`] it may be off by what sections under way spend at that moment.
    pub fn exact_usage(&self) -> u64 {
        let usage = on_account!(self.ptr, |accounts, node| accounts.exact_usage(node));
        self.ptr.wake_waiters();
        usage
    }

    /// The most that ever was charged, stocks included.
    pub fn peak(&self) -> u64 {
        on_account!(self.ptr, |accounts, node| accounts.peak(node))
    }

    /// Where its units are: used, in stocks, by CPU; which account on its path is the fullest.
    pub fn explain(&self) -> Explain {
        // The list of CPUs grows under the accounts' locks.
        unaccounted(|| on_account!(self.ptr, |accounts, node| accounts.explain(node)))
    }

    /// Its limit; `u64::MAX`: none.
    pub fn limit(&self) -> u64 {
        on_account!(self.ptr, |accounts, node| accounts.limit(node))
    }

    /// Changes the limit. Below what is used, it refuses every charge until usage is below it.
    pub fn set_limit(&self, units: u64) {
        on_account!(self.ptr, |accounts, node| accounts.set_limit(node, units));
        self.ptr.wake_waiters();
        // There may be room now.
        wait::wake_first_waiters();
    }

    /// Changes the soft limit.
    pub fn set_soft_limit(&self, units: u64) {
        on_account!(self.ptr, |accounts, node| accounts.set_soft_limit(node, units));
    }

    /// Changes what its parent keeps for it; an error if that has no room for more.
    pub fn set_guarantee(&self, units: u64) -> Result<(), OverBudget> {
        let result = on_account!(self.ptr, |accounts, node| accounts.set_guarantee(node, units));
        self.ptr.wake_waiters();
        result
    }

    /// What it is called.
    pub fn name(&self) -> Arc<str> {
        self.ptr.node().name()
    }

    /// The account above, if it is no root.
    pub fn parent(&self) -> Option<Account> {
        let parent = self.ptr.node().parent()?;
        on_account!(self.ptr, |accounts, _node| accounts.add_handle(parent));
        Some(Account::at(AccountPtr::new(parent, self.kind())))
    }

    /// Of which kind its tree's stocks are.
    pub fn kind(&self) -> StockKind {
        self.ptr.kind()
    }

    /// Closes what nobody used since the last call, as the thread of this module does ten times a second.
    pub fn reclaim_idle_all() {
        reclaim::reclaim_idle();
    }

    /// The CPU's number as charges see it.
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
        unaccounted(|| on_account!(self.ptr, |accounts, node| accounts.drop_handle(node)));
        self.ptr.wake_waiters();
    }
}

/// The same account.
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
