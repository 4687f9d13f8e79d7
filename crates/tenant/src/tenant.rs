//! Tenant: a group of tasks that share data, and the ids of those that run.
//!
//! Model.   A handle is an `Arc`. What it leads to lives as long as any handle, guard or data; then
//!          its seats and slots go back to where other tenants take theirs.
//! Number.  Before it touches data, a tenant on 384 CPUs is 1.8 KiB: itself, its bitmaps, a name,
//!          8 bytes for every CPU that it was on, and a record in every thread that entered.

use crate::guard::Guard;
use crate::registry;
use crate::seats::{CPUS_MAX, CpuSeats, OVERFLOW_IDS, Space};
use crate::thread;
use bytemuck::Zeroable;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use warmcore_budget::Account;
use warmcore_budget::host::unbilled;
use warmcore_cid::{CacheLocal, Held, Ids, Policy, Stats, User};
use warmcore_line::Line;
use warmcore_percpu::{IdSource, PerCid};
use warmcore_sys::{affinity, rseq};
use warmcore_terms::{Cid, CpuId};

/// A group of tasks that share data. Cheap to clone: every clone is the same tenant.
#[derive(Clone)]
pub struct Tenant {
    inner: Arc<Inner>,
}

/// Each task of a tenant counts the `Arc` that it is in up and down, from any CPU; each poll reads what is here. Aligned,
/// it is on other lines than the counts.
#[derive(Line)]
#[line(pair, default = read_mostly)]
#[repr(align(128))]
pub(crate) struct Inner {
    /// Never given to another tenant.
    pub(crate) serial: u64,
    name: Box<str>,
    weight: u32,
    space: &'static Space,
    pub(crate) ids: Ids<CpuSeats>,
    /// Who pays for what its threads allocate.
    pub(crate) account: Option<Account>,
    /// Whether the compactor is to look at it: see `registry`.
    is_busy: &'static AtomicBool,
}

/// How a tenant is made: [`Tenant::builder`].
#[derive(Debug, Clone)]
#[must_use = "`build` makes the tenant"]
pub struct Builder {
    name: String,
    policy: &'static dyn Policy,
    cpus: Option<u32>,
    account: Option<Account>,
    weight: u32,
}

impl Builder {
    /// What it is called in texts and metrics.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Which ids CPUs get; [`CacheLocal`] if nothing is said.
    pub fn policy(self, policy: &'static dyn Policy) -> Self {
        Self { policy, ..self }
    }

    /// Charges what a thread allocates while it is in the tenant to `account`, if the global allocator is a
    /// [`BudgetAlloc`](warmcore_budget::host::BudgetAlloc).
    pub fn account(self, account: &Account) -> Self {
        Self { account: Some(account.clone()), ..self }
    }

    /// How much of a worker it gets where several tenants' tasks wait: twice as much as one of half the weight.
    /// 100 if nothing is said. [`build`](Self::build) panics at 0 and above 10 000.
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// As on a machine with so many CPU numbers, to see what that costs. [`build`](Self::build)
    /// panics if this machine has more, and above 65536.
    pub fn cpus(self, cpus: u32) -> Self {
        Self { cpus: Some(cpus), ..self }
    }

    /// Makes the tenant. Panics without address space, and where [`mode`](warmcore_percpu::mode())
    /// does; the first one in a process takes as long as that.
    #[track_caller]
    pub fn build(self) -> Tenant {
        let here = affinity::cpu_numbers_end() as u32;
        let cpus = self.cpus.unwrap_or(here);
        assert!(
            (here..=CPUS_MAX).contains(&cpus),
            "{cpus} CPU numbers; {here} to {CPUS_MAX} are possible here"
        );
        let weight = self.weight;
        assert!((1..=10_000).contains(&weight), "a weight of {weight}; 1 to 10000 are possible");
        let space = Space::of(cpus);
        let inner = registry::register(|serial, is_busy| Inner {
            serial,
            name: self.name.into(),
            weight,
            space,
            account: self.account,
            ids: Ids::new(space.seats(self.policy), OVERFLOW_IDS, self.policy),
            is_busy,
        });
        Tenant { inner }
    }
}

impl Tenant {
    /// A tenant without a name and with [`CacheLocal`] ids, until the builder is told otherwise.
    pub fn builder() -> Builder {
        Builder { name: "tenant".to_owned(), policy: &CacheLocal, cpus: None, account: None, weight: 100 }
    }

    /// Holds an id of this tenant on this thread until the guard is dropped: nobody else has the
    /// same meanwhile. A thread that holds one gets the same again.
    ///
    /// Guards are for short work. A thread that sleeps with one keeps its CPU's id, and whoever else
    /// enters there gets an overflow id. Panics if 4096 threads hold one of those. Not for signal
    /// handlers and global allocators: they may find the thread in here already.
    ///
    /// **Touches** this CPU's seat, for writing, if this thread entered here last.
    #[inline(always)]
    pub fn enter(&self) -> Guard<'_> {
        self.inner.enter()
    }

    /// A zeroed `T` for every id, new with each call. It keeps the tenant alive. Panics without
    /// address space: above 2 KiB it reserves as much as all ids' slots would take, overflow and all.
    ///
    /// **Touches** nothing; a page of an id's slots exists when it was written.
    pub fn data<T: Zeroable + Sync>(&self) -> PerCid<T> {
        // Its pages, and the list of them, are shared with other tenants' data.
        unbilled(|| PerCid::of(&self.inner.space.data, self.inner.clone()))
    }

    /// What happened to its ids so far, and what is now.
    pub fn stats(&self) -> Stats {
        self.inner.ids.stats()
    }

    /// As it was named.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// A number that no other tenant of this process ever has.
    pub fn serial(&self) -> u64 {
        self.inner.serial
    }

    /// A small number that no other living tenant has: an index for who keeps something for each. The next tenant
    /// gets it when this one is gone.
    pub fn place(&self) -> usize {
        registry::place_of(self.inner.serial)
    }

    /// The tenant with this [`serial`](Self::serial), if it lives. To know one without keeping it alive.
    pub fn by_serial(serial: u64) -> Option<Self> {
        registry::tenant(serial).map(|inner| Self { inner })
    }

    /// How much of a worker it gets, beside others.
    pub fn weight(&self) -> u32 {
        self.inner.weight
    }

    /// The account that pays for what its threads allocate.
    pub fn account(&self) -> Option<&Account> {
        self.inner.account.as_ref()
    }

    /// Its policy.
    pub fn policy(&self) -> &'static dyn Policy {
        self.inner.ids.policy()
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, stats) = (self.name(), self.stats());
        f.debug_struct("Tenant")
            .field("name", &name)
            .field("policy", &self.policy())
            .field("stats", &stats)
            .finish()
    }
}

impl Inner {
    #[inline(always)]
    pub(crate) fn enter(&self) -> Guard<'_> {
        let cpu = rseq::current_cpu();
        if let Some(user) = thread::user_at_home(self.serial) {
            // SAFETY: this thread's record; nobody looks it up until `enter_at_once` returns.
            if let Some(held) = self.ids.enter_at_once(cpu, unsafe { &mut *user }) {
                return Guard::new(self, held);
            }
        }
        Guard::new(self, self.enter_slowly(cpu))
    }

    #[cold]
    #[inline(never)]
    fn enter_slowly(&self, cpu: CpuId) -> Held<'_> {
        let held = match thread::user(self.serial).or_else(|| self.join()) {
            // SAFETY: as in `enter`.
            Some(user) => self.ids.enter(cpu, unsafe { &mut *user }),
            None => self.ids.enter_as_guest(),
        };
        let held = held.unwrap_or_else(|| {
            panic!(
                "{}: {OVERFLOW_IDS} threads hold an overflow id, and there are no more; \
                 hold guards for short work, not while waiting",
                self.name
            )
        });
        // ORDERING: SeqCst; pairs with the store in `compact`.
        if !self.is_busy.load(SeqCst) {
            self.is_busy.store(true, SeqCst);
        }
        held
    }

    /// This thread becomes a user, if it is not about to end.
    fn join(&self) -> Option<*mut User> {
        // Without an area of its own a thread would ask the kernel for its CPU at each entry.
        rseq::register_thread();
        let allowed = affinity::allowed().unwrap_or_default();
        thread::join(self.serial, |token| self.ids.add_user(token, &allowed))
    }

    #[cold]
    pub(crate) fn leave_slowly(&self, held: Held<'_>) {
        match thread::user(self.serial) {
            // SAFETY: as in `enter`.
            Some(user) => self.ids.leave(held, unsafe { &mut *user }),
            None => self.ids.leave_as_guest(held),
        }
        thread::count_out_late();
    }

    /// Compacts. Says that it is not busy any more, then looks once more: who got an id before that is
    /// seen here, and who gets one later sees that it has to say so.
    pub(crate) fn compact(&self) {
        if self.ids.compact() > 0 {
            return;
        }
        // ORDERING: SeqCst; pairs with the load in `enter_slowly`, as `Ids::in_use` says.
        self.is_busy.store(false, SeqCst);
        if self.ids.in_use() > 0 {
            self.is_busy.store(true, SeqCst);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        registry::forget(self.serial);
    }
}

// SAFETY: `Ids` counts an id as handed out before it gives it, and for ever.
unsafe impl IdSource for Inner {
    #[inline]
    fn with_id(&self, act: &mut dyn FnMut(Cid)) {
        if let Some(user) = thread::user_at_home(self.serial) {
            // SAFETY: as in `enter`.
            if let Some(cid) = self.ids.held_cid(unsafe { &*user }) {
                return act(cid);
            }
        }
        let guard = self.enter();
        act(guard.cid());
    }

    fn handed_out(&self) -> [Range<u32>; 2] {
        self.ids.handed_out()
    }
}
