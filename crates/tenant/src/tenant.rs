//! Tenant: a group of tasks that share data, and the ids of those that run.
//!
//! Model.   A handle is an `Arc`. What it leads to lives as long as any handle, guard or data; then
//!          its pcpu_cids and slots go back to where other tenants take theirs.
//! Number.  Before it touches data, a tenant on 384 CPUs is 1.8 KiB: itself, its bitmaps, a name,
//!          8 bytes for every CPU that it was on, and a record in every thread that entered.

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
    pub(crate) ids: Ids<PooledPcpuCids>,
    /// The threads that are its users, by their numbers, with how many CPUs each was found to be allowed on last. Written by
    /// a thread that joins or ends; the compactor locks it twenty times a second, for no system call, which is rare
    /// enough to stand beside what each poll reads.
    threads: Mutex<BTreeMap<u32, usize>>,
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
    /// [`BudgetAlloc`](warmcore_budget::process::BudgetAlloc).
    pub fn account(self, account: &Account) -> Self {
        Self { account: Some(account.clone()), ..self }
    }

    /// How much of a runtime's time it gets, on all workers together, while tasks of several tenants have work: twice as
    /// much as one of half the weight, whatever their polls take and however many tasks each has. What it does not use
    /// goes to the others: with fewer busy tasks than workers, or while they wait for room in its budget for longer than
    /// some milliseconds. It counts beside tenants of the same runtime; tasks without a tenant are one of weight 100.
    ///
    /// 100 if nothing is said. [`build`](Self::build) panics at 0 and above 10 000.
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// As on a machine with so many CPU numbers, to see what that costs. [`build`](Self::build)
    /// panics if this machine has more, and above 65536.
    pub fn cpus(self, cpus: u32) -> Self {
        Self { cpus: Some(cpus), ..self }
    }

    /// Makes the tenant. Panics without address space, and where [`backend`](warmcore_percpu::backend())
    /// does; the first one in a process takes as long as that.
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
    /// **Touches** this CPU's pcpu_cid, for writing, if this thread entered here last.
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
        unaccounted(|| PerCid::of(&self.inner.space.data, self.inner.clone()))
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
    pub fn index(&self) -> usize {
        registry::index_of(self.inner.serial)
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
        if let Some(user) = thread::cached_user(self.serial) {
            // SAFETY: this thread's record; nobody looks it up until `enter_fast` returns.
            if let Some(held) = self.ids.enter_fast(cpu, unsafe { &mut *user }) {
                return Guard::new(self, held);
            }
        }
        Guard::new(self, self.enter_slow(cpu, read_mask))
    }

    /// `mask`: the CPUs that this thread may run on.
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

    /// This thread becomes a user, if it is not about to end.
    fn join(&self, mask: impl Fn() -> CpuSet) -> Option<*mut User> {
        // Without an area of its own a thread would ask the kernel for its CPU at each entry.
        rseq::register_thread();
        let allowed = mask();
        thread::join(self.serial, |token| {
            let user = self.ids.add_user(token, &allowed);
            // Until `part`.
            self.threads().insert(affinity::this_thread(), allowed.len());
            user
        })
    }

    fn threads(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        ignore_poison(self.threads.lock())
    }

    /// This thread ends: its mask says nothing any more.
    pub(crate) fn part(&self) {
        self.threads().remove(&affinity::this_thread());
    }

    /// Adds what its threads may run on by now, and has a thread whose number of CPUs changed read its mask again when it
    /// moves next: `sched_setaffinity` and a changed cpuset send no notice. `read`: what the thread with this number may
    /// run on.
    ///
    /// A thread joins and ends without waiting for a system call here, and no lock is held during one if the process
    /// forks in that moment.
    fn follow_masks(&self, masks: &mut Masks, read: impl Fn(u32) -> CpuSet) {
        let Masks { numbers, masks } = masks;
        numbers.clear();
        numbers.extend(self.threads().keys());
        for number in &*numbers {
            masks.entry(*number).or_insert_with(|| read(*number));
        }
        let mut is_changed = false;
        let mut threads = self.threads();
        numbers.retain(|number| {
            // A thread that ended meanwhile may have lent its number to another process.
            let Some(known) = threads.get_mut(number) else { return false };
            // 0: the kernel does not say.
            let now = masks[number].len();
            is_changed |= now > 0 && std::mem::replace(known, now) != now;
            true
        });
        // Under the lock: after `part` nothing is said of a thread's mask.
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
        thread::count_out_late();
    }

    /// Follows its threads' masks and compacts. Says that it is not busy any more, then looks once more: a thread that got an
    /// id before that is seen here, and one that gets an id later sees that it has to say that it is busy.
    pub(crate) fn compact(&self, masks: &mut Masks) {
        self.follow_masks(masks, |thread| affinity::allowed_to(thread).unwrap_or_default());
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

/// The CPUs that this thread may run on; none if the kernel does not say.
fn read_mask() -> CpuSet {
    affinity::allowed().unwrap_or_default()
}

/// The masks of threads, each read once for all tenants that a pass looks at. If a thread ends within the pass and another
/// gets its number, the new one counts with the old one's mask until the next pass.
#[derive(Default)]
pub(crate) struct Masks {
    masks: BTreeMap<u32, CpuSet>,
    /// The threads of the tenant that is looked at.
    numbers: Vec<u32>,
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
    fn a_thread_on_a_cpu_where_none_was_allowed_reads_its_mask_again_and_only_then() {
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
        // What the compactor reads is this thread's real mask.
        let real = read_mask();
        let fresh: Vec<u32> = (0..1024).filter(|cpu| !real.contains(CpuId(*cpu))).take(8).collect();
        let more = |mine: usize| (real.len() + mine) as u32;
        let joined = real.union(&set([fresh[0]]));
        assert_eq!(enter(fresh[0], joined), (1, more(1)), "it joins");
        // From here on the compactor does not compare its masks with the real one.
        inner.part();
        assert_eq!(enter(fresh[0], set(fresh.clone())), (1, more(1)), "where it was");
        assert_eq!(enter(fresh[3], set(fresh[2..6].iter().copied())), (2, more(5)), "all of its new mask");
        assert_eq!(enter(fresh[5], set(fresh.clone())), (2, more(5)), "where it is known to be allowed");
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
        // The guard's user stays for ever, but the thread's number may be another process's thread's.
        ends(true);
        ends(false);
    }

    #[test]
    fn a_thread_whose_mask_was_widened_reads_it_again_where_another_thread_may_run() {
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
        inner.follow_masks(&mut Masks::default(), |_| wide.clone());
        // It is no user any more for the compactor, whose own pass finds its real mask.
        inner.part();
        assert!(tenant.stats().nr_cpus_allowed >= 4);
        assert_eq!(enter(0, wide.clone()), 1, "where it was, no mask counts");
        assert_eq!(enter(2, wide.clone()), 2, "it moves");
        assert_eq!([enter(3, wide.clone()), enter(0, wide.clone())], [2; 2], "it was read once");
        inner.follow_masks(&mut Masks::default(), |_| unreachable!("it has no threads"));
        assert_eq!(enter(1, wide.clone()), 2);
    }

    #[test]
    fn a_thread_joins_and_ends_while_masks_are_read() {
        let tenant = Tenant::builder().build();
        let _here = tenant.enter();
        let (tell, told) = std::sync::mpsc::channel();
        tenant.inner.follow_masks(&mut Masks::default(), |_| {
            let (tenant, tell) = (tenant.clone(), tell.clone());
            let thread = std::thread::spawn(move || {
                drop(tenant.enter());
                tell.send(()).unwrap();
            });
            told.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits to join");
            thread.join().unwrap();
            read_mask()
        });
        assert_eq!(tenant.inner.threads().len(), 1, "this thread");
    }

    #[test]
    fn the_mask_of_a_thread_that_ended_meanwhile_does_not_count() {
        let tenant = Tenant::builder().cpus(1024).build();
        let beyond = (0..1024).find(|cpu| !read_mask().contains(CpuId(*cpu))).unwrap();
        let join = || tenant.inner.enter_slow(CpuId(0), read_mask);
        drop(Guard::new(&tenant.inner, join()));
        let before = tenant.stats().nr_cpus_allowed;
        // As when its number is another process's thread's by then.
        tenant.inner.follow_masks(&mut Masks::default(), |_| {
            tenant.inner.part();
            set([beyond])
        });
        assert_eq!(tenant.stats().nr_cpus_allowed, before);
    }
}
