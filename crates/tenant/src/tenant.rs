//! `Tenant`: a group of tasks that share data, and the ids that threads hold while they work for it.
//!
//! A handle is an `Arc` of [`Inner`], which lives at least as long as any handle, guard or data. After that its
//! `PcpuCid`s and slots go back to the pools of all tenants.
//!
//! Before it touches data, a tenant for 384 CPU numbers that was on few CPUs has 1.8 KiB (`tests/memory.rs` measures
//! it): itself, its bitmaps, a name, 8 bytes for every CPU that it was on, and a record in every thread that entered
//! it.

use crate::guard::Guard;
use crate::pcpu_cids::{CPUS_MAX, OVERFLOW_IDS, PooledPcpuCids, Space};
use crate::registry;
use crate::thread;
use bytemuck::Zeroable;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use warmcore_budget::Account;
use warmcore_budget::process::unaccounted;
use warmcore_cid::{CacheLocal, HeldCid, Ids, Policy, Stats, User};
use warmcore_line::Line;
use warmcore_percpu::{IdSource, PerCid};
use warmcore_sys::{affinity, rseq};
use warmcore_types::{Cid, CpuId, CpuSet, ignore_poison};

/// A group of tasks that share data. Cheap to clone: every clone is the same tenant.
///
/// A proxy makes one for each customer:
///
/// ```
/// use warmcore_tenant::Tenant;
///
/// let orders = Tenant::builder().name("orders").build();
/// let same = orders.clone();
/// let search = Tenant::builder().name("search").build();
/// assert_eq!(same.serial(), orders.serial());
/// assert_ne!(search.serial(), orders.serial());
///
/// // Log lines and messages may carry the number in place of the tenant.
/// let found = Tenant::by_serial(search.serial());
/// assert_eq!(found.as_ref().map(Tenant::name), Some("search"));
/// ```
#[derive(Clone)]
pub struct Tenant {
    inner: Arc<Inner>,
}

/// The state of a tenant, to which each handle points. Each poll of a task of the tenant reads it; each such task
/// clones and drops the `Arc` around it, from any CPU. The alignment puts it on other lines than the `Arc`'s counts.
#[derive(Line)]
#[line(pair, default = read_mostly)]
#[repr(align(128))]
pub(crate) struct Inner {
    /// A number that no other tenant of this process ever has.
    pub(crate) serial: u64,
    name: Box<str>,
    weight: u32,
    space: &'static Space,
    pub(crate) ids: Ids<PooledPcpuCids>,
    /// The threads that are the tenant's users, by the kernel's thread id, each with the number of CPUs that its
    /// mask had last. Written by a thread that joins, reads its mask again or ends, and by the compactor. The
    /// compactor takes the lock at most twenty times a second and makes no system call while it holds it. That is
    /// rare enough for a cache line that each poll reads.
    threads: Mutex<BTreeMap<u32, usize>>,
    /// The account to which a thread's allocations are charged while it holds a guard of the tenant.
    pub(crate) account: Option<Account>,
    /// Whether the compactor must compact the tenant's ids: see `registry.rs`.
    is_busy: &'static AtomicBool,
}

/// Makes a tenant: see [`Tenant::builder`].
///
/// A customer that pays for twice the time, with a memory limit:
///
/// ```
/// use warmcore_budget::Account;
/// use warmcore_tenant::Tenant;
///
/// let server = Account::root("server").limit(1 << 30).build();
/// let memory = server.child("orders").limit(64 << 20).build();
/// let orders = Tenant::builder().name("orders").weight(200).account(&memory).build();
/// assert_eq!((orders.name(), orders.weight()), ("orders", 200));
/// assert_eq!(orders.account().map(Account::limit), Some(64 << 20));
/// ```
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
    /// Sets the name that messages and metrics use; `tenant` by default.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets which ids CPUs get; [`CacheLocal`] by default.
    pub fn policy(self, policy: &'static dyn Policy) -> Self {
        Self { policy, ..self }
    }

    /// Charges what a thread allocates while it holds a guard of the tenant to `account`, if the global allocator is a
    /// [`BudgetAlloc`](warmcore_budget::process::BudgetAlloc).
    pub fn account(self, account: &Account) -> Self {
        Self { account: Some(account.clone()), ..self }
    }

    /// Sets the tenant's share of a runtime's time, on all workers together, while tasks of several tenants have
    /// work: twice the time of a tenant of half the weight, however long their polls take and however many tasks
    /// each has. If this tenant does not use its share, other tenants get the time: when it has fewer busy tasks
    /// than there are workers, or while its tasks wait for its budget for longer than some milliseconds. Weights
    /// are compared among tenants of the same runtime; all tasks without a tenant count as one tenant of weight
    /// 100.
    ///
    /// 100 by default. [`build`](Self::build) panics at 0 and above 10 000.
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// Makes the tenant as on a machine with `cpus` CPU numbers, to measure what that costs. [`build`](Self::build)
    /// panics if this machine has more CPU numbers, and above 65536.
    pub fn cpus(self, cpus: u32) -> Self {
        Self { cpus: Some(cpus), ..self }
    }

    /// Makes the tenant. Panics if no address space is left, if 2^24 tenants are alive, if
    /// [`backend`](warmcore_percpu::backend()) panics, or at a [weight](Self::weight) or a [number of CPUs](Self::cpus)
    /// that is not possible. If no backend is chosen yet, this call chooses it, which takes 5 to 50 ms.
    #[track_caller]
    pub fn build(self) -> Tenant {
        let here = affinity::nr_cpu_ids() as u32;
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
            ids: Ids::new(space.pcpu_cids(), OVERFLOW_IDS, self.policy),
            threads: Mutex::new(BTreeMap::new()),
            is_busy,
        });
        Tenant { inner }
    }
}

impl Tenant {
    /// Returns a builder with the name `tenant`, [`CacheLocal`] ids, weight 100 and no account.
    pub fn builder() -> Builder {
        Builder { name: "tenant".to_owned(), policy: &CacheLocal, cpus: None, account: None, weight: 100 }
    }

    /// Holds an id of this tenant on this thread until the guard is dropped. No other thread has the same id at the
    /// same time. A thread that already holds an id of this tenant gets the same id again, unless it is about to end.
    ///
    /// Guards are for short work. A thread that sleeps with a guard may keep the id of a CPU in use; other threads that
    /// enter on that CPU then get overflow ids. Panics if this thread needs an overflow id and other threads hold all
    /// 4096. Must not be called from signal handlers and global allocators, because these may run in the middle of this
    /// function on the same thread.
    ///
    /// **Touches** the line of this CPU's `PcpuCid`, for writing, if this thread entered on this CPU last and its id is
    /// still there; otherwise usually also the tenant's lock.
    ///
    /// ```
    /// let tenant = warmcore_tenant::Tenant::builder().name("orders").build();
    /// let here = tenant.enter();
    /// assert_eq!(tenant.enter().cid(), here.cid()); // a call deeper in the same work
    ///
    /// let there = std::thread::scope(|scope| {
    ///     scope.spawn(|| tenant.enter().cid()).join().expect("it does not panic")
    /// });
    /// assert_ne!(there, here.cid()); // so the two threads write different slots
    /// ```
    #[inline(always)]
    pub fn enter(&self) -> Guard<'_> {
        self.inner.enter()
    }

    /// Makes a zeroed `T` for every id; each call makes new ones. The result keeps the tenant alive. Panics if no
    /// address space is left: for a `T` above 2 KiB it reserves addresses for the slots of all ids, overflow ids
    /// included.
    ///
    /// **Touches** no slot: a page takes memory when it is first written.
    ///
    /// Four threads count for one customer, each in a slot of its own:
    ///
    /// ```
    /// use bytemuck::Zeroable;
    /// use warmcore_percpu::{LocalU64, field};
    /// use warmcore_tenant::Tenant;
    ///
    /// #[derive(Zeroable)]
    /// struct Traffic {
    ///     requests: LocalU64,
    /// }
    ///
    /// let tenant = Tenant::builder().name("orders").build();
    /// let traffic = tenant.data::<Traffic>();
    /// std::thread::scope(|scope| {
    ///     for _ in 0..4 {
    ///         scope.spawn(|| traffic.owned_slot(&tenant.enter()).add(field!(Traffic, requests), 100));
    ///     }
    /// });
    /// assert_eq!(traffic.sum(field!(Traffic, requests)), 400);
    /// ```
    pub fn data<T: Zeroable + Sync>(&self) -> PerCid<T> {
        // The pages, and the list of pages, are shared with other tenants' data.
        unaccounted(|| PerCid::of(&self.inner.space.data, self.inner.clone()))
    }

    /// Returns counts of the events of the tenant's ids, and their present state.
    ///
    /// If `overflows` grows, threads wait or are preempted while they hold guards, and the tenant takes memory for more
    /// slots:
    ///
    /// ```
    /// let tenant = warmcore_tenant::Tenant::builder().name("orders").build();
    /// let guard = tenant.enter();
    /// let stats = tenant.stats();
    /// assert_eq!((stats.users, stats.overflows), (1, 0)); // one thread, with the id of its CPU
    /// drop(guard);
    /// assert_eq!(tenant.stats().overflow_in_use, 0);
    /// ```
    pub fn stats(&self) -> Stats {
        self.inner.ids.stats()
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// A number that no other tenant of this process ever has.
    pub fn serial(&self) -> u64 {
        self.inner.serial
    }

    /// A small number that no other tenant has at the same time, for an index into a table with an entry for each
    /// tenant. A later tenant may get the number when this tenant is gone.
    pub fn index(&self) -> usize {
        registry::index_of(self.inner.serial)
    }

    /// The tenant with this [`serial`](Self::serial), if it is alive. A serial refers to a tenant without keeping it
    /// alive.
    pub fn by_serial(serial: u64) -> Option<Self> {
        registry::tenant(serial).map(|inner| Self { inner })
    }

    /// The tenant's weight, which sets its share of a runtime's time: see [`Builder::weight`].
    pub fn weight(&self) -> u32 {
        self.inner.weight
    }

    /// The account to which a thread's allocations are charged while it holds a guard of the tenant; `None` if the
    /// tenant was made without one.
    pub fn account(&self) -> Option<&Account> {
        self.inner.account.as_ref()
    }

    /// The policy that chooses the tenant's ids.
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
        if let Some(user) = thread::cached_user(self.serial) {
            // SAFETY: this thread's record; it is not looked up again before `enter_fast` returns.
            if let Some(held) = self.ids.enter_fast(cpu, unsafe { &mut *user }) {
                return Guard::new(self, held);
            }
        }
        Guard::new(self, self.enter_slow(cpu, read_mask))
    }

    /// The slow path of `enter`: for a thread without a cached record, on another CPU than at its last entry, or with
    /// an id already, or if the CPU has no id, or one that is in use or was not used lately. `mask` reads the CPUs that
    /// this thread may run on.
    #[cold]
    #[inline(never)]
    fn enter_slow(&self, cpu: CpuId, mask: impl Fn() -> CpuSet) -> HeldCid<'_> {
        let held = match thread::user(self.serial).or_else(|| self.join(&mask)) {
            Some(user) => {
                // SAFETY: as in `enter`.
                let user = unsafe { &mut *user };
                if self.ids.needs_mask(cpu, user) {
                    let allowed = mask();
                    self.ids.allow_user(user, &allowed);
                    if let Some(known) = self.threads().get_mut(&affinity::this_thread()) {
                        *known = allowed.len();
                    }
                }
                self.ids.enter(cpu, user)
            }
            None => self.ids.enter_overflow(),
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

    /// Makes this thread a user, unless it is about to end and has left its tenants already.
    fn join(&self, mask: impl Fn() -> CpuSet) -> Option<*mut User> {
        // Registers an rseq area: without one, the thread would need a call to get its CPU at each entry.
        rseq::register_thread();
        let allowed = mask();
        thread::join(self.serial, |token| {
            let user = self.ids.add_user(token, &allowed);
            // Removed by `forget_thread`.
            self.threads().insert(affinity::this_thread(), allowed.len());
            user
        })
    }

    fn threads(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        ignore_poison(self.threads.lock())
    }

    /// Removes this thread, which is about to end, from `threads`: its mask does not count any more.
    pub(crate) fn forget_thread(&self) {
        self.threads().remove(&affinity::this_thread());
    }

    /// Adds the CPUs on which the tenant's threads may run now to the tenant's set. If a thread's number of CPUs
    /// changed, each user reads its mask again at its next move: `sched_setaffinity` and a changed cpuset send no
    /// notice. `read` returns the mask of the thread with this kernel thread id.
    ///
    /// No lock is held during the system calls: threads that join and end do not wait for them, and a fork in that
    /// moment copies no held lock.
    fn update_masks(&self, masks: &mut Masks, read: impl Fn(u32) -> CpuSet) {
        let Masks { numbers, masks } = masks;
        numbers.clear();
        numbers.extend(self.threads().keys());
        for number in &*numbers {
            masks.entry(*number).or_insert_with(|| read(*number));
        }
        let mut is_changed = false;
        let mut threads = self.threads();
        numbers.retain(|number| {
            // If the thread has ended meanwhile, its kernel id may now belong to a thread of another process.
            let Some(known) = threads.get_mut(number) else { return false };
            // 0: the kernel did not return a mask.
            let now = masks[number].len();
            is_changed |= now > 0 && std::mem::replace(known, now) != now;
            true
        });
        // Under the lock, so that a thread's mask does not count after the thread called `forget_thread`.
        if is_changed {
            self.ids.notify_masks_changed();
        }
        drop(threads);
        self.ids.allow(&numbers.iter().flat_map(|number| masks[number].iter()).collect());
    }

    #[cold]
    pub(crate) fn leave_slow(&self, held: HeldCid<'_>) {
        match thread::user(self.serial) {
            // SAFETY: as in `enter`.
            Some(user) => self.ids.leave(held, unsafe { &mut *user }),
            None => self.ids.leave_overflow(held),
        }
        thread::leave_tenants_late();
    }

    /// Updates the masks of the tenant's threads and compacts its ids. If no CPU has an id after that, clears `is_busy`
    /// and then reads the number of ids again: that read finds the id of a thread that got it before the store, and a
    /// thread that gets an id later sees the store and sets `is_busy`.
    pub(crate) fn compact(&self, masks: &mut Masks) {
        self.update_masks(masks, |thread| affinity::allowed_to(thread).unwrap_or_default());
        if self.ids.compact() > 0 {
            return;
        }
        // ORDERING: SeqCst; pairs with the load in `enter_slow`, as `Ids::in_use` says.
        self.is_busy.store(false, SeqCst);
        if self.ids.in_use() > 0 {
            self.is_busy.store(true, SeqCst);
        }
    }
}

/// The CPUs that this thread may run on; the empty set if the kernel returns no mask.
fn read_mask() -> CpuSet {
    affinity::allowed().unwrap_or_default()
}

/// The masks of threads by kernel thread id, each read once for all tenants that a round of the compactor compacts. If
/// a thread ends within the round and a new thread gets its kernel id, the new thread counts with the old thread's
/// mask until the next round.
#[derive(Default)]
pub(crate) struct Masks {
    masks: BTreeMap<u32, CpuSet>,
    /// The kernel ids of the threads of the tenant that is being compacted.
    numbers: Vec<u32>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        registry::forget(self.serial);
    }
}

// SAFETY: `Ids` counts an id as allocated before it returns the id, and never stops counting it.
unsafe impl IdSource for Inner {
    #[inline]
    fn with_id(&self, act: &mut dyn FnMut(Cid)) {
        if let Some(user) = thread::cached_user(self.serial) {
            // SAFETY: as in `enter`.
            if let Some(cid) = self.ids.held_cid(unsafe { &*user }) {
                return act(cid);
            }
        }
        let guard = self.enter();
        act(guard.cid());
    }

    fn allocated(&self) -> [Range<u32>; 2] {
        self.ids.allocated()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
        cpus.into_iter().map(CpuId).collect()
    }

    #[test]
    fn a_thread_reads_its_mask_again_only_on_a_cpu_beyond_all_masks() {
        let tenant = Tenant::builder().cpus(1024).build();
        let (inner, reads) = (&*tenant.inner, std::cell::Cell::new(0));
        let enter = |cpu: u32, mask: CpuSet| {
            let read = || {
                reads.set(reads.get() + 1);
                mask.clone()
            };
            drop(Guard::new(inner, inner.enter_slow(CpuId(cpu), read)));
            (reads.get(), tenant.stats().nr_cpus_allowed)
        };
        // The compactor reads this thread's real mask.
        let real = read_mask();
        let fresh: Vec<u32> = (0..1024).filter(|cpu| !real.contains(CpuId(*cpu))).take(8).collect();
        let more = |mine: usize| (real.len() + mine) as u32;
        let joined = real.union(&set([fresh[0]]));
        assert_eq!(enter(fresh[0], joined), (1, more(1)), "it joins");
        // Now the compactor does not compare this test's masks with the thread's real mask.
        inner.forget_thread();
        assert_eq!(enter(fresh[0], set(fresh.clone())), (1, more(1)), "on the same CPU");
        assert_eq!(enter(fresh[3], set(fresh[2..6].iter().copied())), (2, more(5)), "all of its new mask");
        assert_eq!(enter(fresh[5], set(fresh.clone())), (2, more(5)), "on a CPU in the tenant's set");
        assert_eq!(enter(fresh[7], CpuSet::new()), (3, more(6)), "a mask that cannot be read: this CPU");
    }

    #[test]
    fn a_threads_mask_is_read_until_it_ends() {
        let tenant = Tenant::builder().build();
        let ends = |leaks: bool| {
            let tenant = &tenant;
            let ends = move || {
                let guard = tenant.enter();
                let threads: Vec<u32> = tenant.inner.threads().keys().copied().collect();
                if leaks {
                    std::mem::forget(guard);
                }
                (threads, affinity::this_thread())
            };
            let (threads, this) = std::thread::scope(|scope| scope.spawn(ends).join()).unwrap();
            assert_eq!(threads, [this]);
            assert!(tenant.inner.threads().is_empty(), "leaks: {leaks}");
        };
        ends(false);
        // The leaked guard's user stays for ever, but the thread's number may later be that of another thread.
        ends(true);
        ends(false);
    }

    #[test]
    fn a_thread_whose_mask_was_widened_reads_it_again_on_any_other_cpu() {
        let tenant = Tenant::builder().policy(&warmcore_cid::KeptPerCpu).cpus(1024).build();
        let inner = &*tenant.inner;
        let reads = std::cell::Cell::new(0);
        let enter = |cpu: u32, mask: CpuSet| {
            let read = || {
                reads.set(reads.get() + 1);
                mask.clone()
            };
            drop(Guard::new(inner, inner.enter_slow(CpuId(cpu), read)));
            reads.get()
        };
        let wide = set(0..4);
        assert_eq!(enter(0, set([0])), 1, "it joins");
        inner.update_masks(&mut Masks::default(), |_| wide.clone());
        // Hides this thread from the compactor, which would find its real mask.
        inner.forget_thread();
        assert!(tenant.stats().nr_cpus_allowed >= 4);
        assert_eq!(enter(0, wide.clone()), 1, "on the same CPU no mask counts");
        assert_eq!(enter(2, wide.clone()), 2, "it moves");
        assert_eq!([enter(3, wide.clone()), enter(0, wide.clone())], [2; 2], "it was read once");
        inner.update_masks(&mut Masks::default(), |_| unreachable!("it has no threads"));
        assert_eq!(enter(1, wide.clone()), 2);
    }

    #[test]
    fn a_thread_joins_and_ends_while_masks_are_read() {
        let tenant = Tenant::builder().build();
        let _here = tenant.enter();
        let (tell, told) = std::sync::mpsc::channel();
        tenant.inner.update_masks(&mut Masks::default(), |_| {
            let (tenant, tell) = (tenant.clone(), tell.clone());
            let thread = std::thread::spawn(move || {
                drop(tenant.enter());
                tell.send(()).unwrap();
            });
            told.recv_timeout(std::time::Duration::from_secs(60)).expect("the thread waits to join");
            thread.join().unwrap();
            read_mask()
        });
        assert_eq!(tenant.inner.threads().len(), 1, "this thread");
    }

    #[test]
    fn the_mask_of_a_thread_that_ended_during_the_pass_does_not_count() {
        let tenant = Tenant::builder().cpus(1024).build();
        let beyond = (0..1024).find(|cpu| !read_mask().contains(CpuId(*cpu))).unwrap();
        let join = || tenant.inner.enter_slow(CpuId(0), read_mask);
        drop(Guard::new(&tenant.inner, join()));
        let before = tenant.stats().nr_cpus_allowed;
        // As if the thread's id belonged to a thread of another process by then.
        tenant.inner.update_masks(&mut Masks::default(), |_| {
            tenant.inner.forget_thread();
            set([beyond])
        });
        assert_eq!(tenant.stats().nr_cpus_allowed, before);
    }
}
