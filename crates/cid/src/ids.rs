//! The concurrency ids of one tenant.
//!
//! Every CPU has a [`PcpuCid`] in the tenant. A user is a task or thread of the tenant. A user that enters takes the
//! `PcpuCid` of its CPU, if no other user holds it, and the id that is cached there. When the user leaves, the id stays
//! cached (except under `Lowest`). Such an entry costs one compare-and-swap and the leave one store, on a cache line
//! that other CPUs rarely write. A user that comes back after a compaction freed its id *retakes* the id, if the id is
//! still free and the policy allows it: this sets a bit in `used` and one in `occupied`. It takes no lock either,
//! because users that pause together come back at the same moment, and would wait for each other. Everything else
//! happens under the tenant's lock. There the [`Policy`] decides which id an empty `PcpuCid` gets, what becomes of the
//! id of a user that moved, and which ids a compaction takes.
//!
//! # Protocol
//! An id belongs to one `PcpuCid` from the moment its bit in `used` is set until that bit is cleared, except that a
//! move, under the lock, passes it to another `PcpuCid`. The thread that sets the bit holds the `PcpuCid` already.
//! Freeing an id takes three steps: first the `PcpuCid` is emptied, by its holder or by a compare-and-swap that fails
//! if a user entered; then the id that the `PcpuCid` must remember is written; then the bit is cleared. One user at a
//! time holds a `PcpuCid`. So ids are unique, the code that takes ids back (`ids/reclaim.rs`) takes none in use, and
//! a thread that sets the bit of a freed id sees what the `PcpuCid` remembers.
//!
//! The module `pcpu_cid` lists the writers of a `PcpuCid`. The thread that takes or frees an id writes the id's bit
//! in `used` and the CPU's bit in `occupied`. `Lockless` names the writers of its fields. Everything else is written
//! under the lock.
//!
//! # Cost
//! Enter and leave: 2.3 ns on a 3.7 GHz Zen 4, where a compare-and-swap and a store alone take 2.2; no clock is read.
//! With an entry under the lock, in a tenant of 384 CPUs that uses 64 ids: about 35 ns.
//!
//! # Source
//! Linux `kernel/sched/core.c`, concurrency ids. Not from Linux: that a `PcpuCid` is two words (its state and its
//! `cid_word`), and that an id's age is one bit (cached or stale).

use crate::bits::{Bits, SharedBits};
use crate::pcpu_cid::{CID_END, CidWord, PcpuCid, PcpuCids, State, Token};
use crate::policy::{Pick, Policy, Used};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*};
use warmcore_line::{Line, Padded};
use warmcore_types::{Cid, CpuId, CpuSet, ignore_poison};

mod reclaim;
mod stats;
mod unguarded;

pub use stats::Stats;

/// A task or thread that belongs to a tenant, and the CPU where it was last. Made by [`Ids::add_user`] and kept by the
/// caller, for one thread at a time.
#[derive(Debug)]
#[must_use = "it counts as a user until `remove_user`"]
pub struct User {
    token: Token,
    /// The CPU whose `PcpuCid` this user took last; `NOWHERE` before its first entry, and after an entry that did not
    /// get the CPU's id.
    cpu: u32,
    /// The `cid_word` of that `PcpuCid` when this user took it. If the policy keeps no ids, without the recall that
    /// is set there from the start.
    cid_word: CidWord,
    /// On how many CPUs this user may run.
    nr_cpus_allowed: u32,
    /// The value of `Shared::mask_changes` that `needs_mask` read last, or `add_user` if `needs_mask` read none yet.
    mask_changes: u32,
    /// The number of entries that this user has not left yet, without the outermost.
    nested: u32,
    /// How many of this user's entries have no [`HeldCid`]: `leave_unguarded` ends those.
    unguarded: u32,
    /// The overflow id that this user holds.
    overflow: Option<Cid>,
}

const NOWHERE: u32 = u32::MAX;

/// An id that a user holds until [`Ids::leave`], or a thread without a user until [`Ids::leave_overflow`].
#[derive(Debug)]
#[must_use = "the id is held until `leave`"]
pub struct HeldCid<'a> {
    /// `None` for an overflow id.
    pcpu_cid: Option<&'a PcpuCid>,
    cid_word: CidWord,
}

impl HeldCid<'_> {
    /// The id.
    #[inline(always)]
    pub fn cid(&self) -> Cid {
        self.cid_word.assigned_cid()
    }

    /// Whether this is an overflow id. [`Ids::enter`] gives one if another user holds the CPU's id, as after it lost
    /// the CPU before its leave; [`Ids::enter_overflow`] gives no others.
    pub fn is_overflow(&self) -> bool {
        self.pcpu_cid.is_none()
    }
}

/// The concurrency ids of one tenant.
///
/// The methods take the CPU as an argument, and read neither a clock nor which thread runs. Each call of
/// [`compact`](Ids::compact) is one step of time. Nothing is allocated after `new`.
#[derive(Debug, Line)]
#[line(pair)]
#[repr(C, align(128))]
pub struct Ids<S: PcpuCids> {
    #[line(read_mostly)]
    pcpu_cids: S,
    #[line(read_mostly)]
    policy: &'static dyn Policy,
    /// The ids that belong to a `PcpuCid`. Written by each thread that takes an id or frees it.
    #[line(read_mostly)]
    used: SharedBits,
    /// The CPUs whose `PcpuCid` has an id; compaction reads no other. A bit is set after the id's bit in `used`,
    /// and cleared before it.
    #[line(read_mostly)]
    occupied: SharedBits,
    #[line(contended)]
    shared: Padded<Mutex<Shared>>,
    /// Fields that are read or written without the lock.
    #[line(contended)]
    lockless: Lockless,
}

/// The fields that are accessed without the lock. `cids_end` and `overflow_end` are written under the lock, and read
/// by each sum over the data that users keep per id.
#[derive(Debug, Default)]
struct Lockless {
    /// One more than the highest id that a `PcpuCid` ever had.
    cids_end: AtomicU32,
    /// One more than the highest overflow id that was ever used; overflow ids are counted from 0.
    overflow_end: AtomicU32,
    /// `Facts::max_nr_cid`. Raised under the lock; lowered to `Facts::bound` by a thread that picks or retakes an id.
    max_nr_cid: AtomicU32,
    /// `Facts::bound`; 0 if the policy does not let users retake ids. Written under the lock, read by `retake`.
    retake_end: AtomicU32,
    /// How many ids were retaken without the lock. Written by the thread that retakes an id. So this line moves
    /// between caches, as the line of `used` does.
    retaken: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    /// The overflow ids in use, counted from 0.
    overflow: Bits,
    /// The tenant's set: every CPU that any user was ever allowed on or entered on, and those that `allow` added.
    allowed: Bits,
    /// How often `notify_masks_changed` was called.
    mask_changes: u32,
    counts: Stats,
}

impl<S: PcpuCids> Ids<S> {
    /// Makes the ids of a tenant without users. Ids below `pcpu_cids.cpus()` are for CPUs. Above them are `overflow`
    /// more, for users that find the id of their CPU in use and for [`enter_overflow`](Ids::enter_overflow).
    ///
    /// Panics if there are no CPUs, or 2^24 ids or more.
    pub fn new(pcpu_cids: S, overflow: u32, policy: &'static dyn Policy) -> Self {
        let cpus = pcpu_cids.cpus();
        let ids = cpus.saturating_add(overflow);
        assert!(cpus > 0 && ids < CID_END, "{cpus} CPUs and {overflow} overflow ids; an id has 24 bits");
        let shared = Shared {
            overflow: Bits::new(overflow),
            allowed: Bits::new(cpus),
            mask_changes: 0,
            counts: Stats::default(),
        };
        Self {
            pcpu_cids,
            policy,
            used: SharedBits::new(cpus),
            occupied: SharedBits::new(cpus),
            shared: Padded::new(Mutex::new(shared)),
            lockless: Lockless::default(),
        }
    }

    /// Returns the policy.
    pub fn policy(&self) -> &'static dyn Policy {
        self.policy
    }

    /// Adds a task or thread, with the CPUs that it may use. `token` is a number that no other present user has.
    /// Panics if it is one of the three highest of 32 bits.
    pub fn add_user(&self, token: u32, allowed: &CpuSet) -> User {
        let token = Token::new(token);
        let mut shared = ignore_poison(self.shared.lock());
        shared.counts.users += 1;
        let nr_cpus_allowed = self.add_allowed(&mut shared, allowed);
        User {
            token,
            cpu: NOWHERE,
            cid_word: CidWord::default(),
            nr_cpus_allowed,
            mask_changes: shared.mask_changes,
            nested: 0,
            unguarded: 0,
            overflow: None,
        }
    }

    /// Removes a user. An id that it left on a CPU stays there; compactions may take it. Panics if the user still
    /// holds an id.
    pub fn remove_user(&self, user: User) {
        let mut shared = ignore_poison(self.shared.lock());
        assert!(!self.holds(&user), "a user is removed that still holds an id: {user:?}");
        shared.counts.users -= 1;
        self.update_retake_end(&shared);
    }

    /// Adds CPUs to the tenant's set: the CPUs on which any of its users may run. CPUs that have no `PcpuCid` are left
    /// out. The set only grows, as the kernel's does.
    pub fn allow(&self, cpus: &CpuSet) {
        let shared = &mut *ignore_poison(self.shared.lock());
        self.add_allowed(shared, cpus);
    }

    /// Replaces the CPUs that one user may use, and adds the new ones to the tenant's set. To be called after the
    /// user's affinity mask was changed (`sched_setaffinity`, a cpuset).
    pub fn allow_user(&self, user: &mut User, cpus: &CpuSet) {
        let shared = &mut *ignore_poison(self.shared.lock());
        user.nr_cpus_allowed = self.add_allowed(shared, cpus);
    }

    /// Makes [`needs_mask`](Ids::needs_mask) return true once for each present user, at its next move. For a caller
    /// that finds that the mask of a thread other than the calling one has changed.
    pub fn notify_masks_changed(&self) {
        let shared = &mut *ignore_poison(self.shared.lock());
        shared.mask_changes = shared.mask_changes.wrapping_add(1);
    }

    /// Whether the caller should read the user's affinity mask again, for [`allow_user`](Ids::allow_user): `user`
    /// moved to a CPU that is not in the tenant's set, or moved for the first time since a mask
    /// [changed](Ids::notify_masks_changed). A first entry counts as a move. If `allow_user` is not called, `enter`
    /// adds only this CPU to the tenant's set. Call `needs_mask` before reading the mask: after a later
    /// `notify_masks_changed` it returns true again at the next move.
    ///
    /// **Touches** only `user` if the user was on `cpu` last; otherwise it takes the tenant's lock, as `enter` does
    /// in that case.
    pub fn needs_mask(&self, cpu: CpuId, user: &mut User) -> bool {
        if user.cpu == cpu.0 {
            return false;
        }
        let shared = ignore_poison(self.shared.lock());
        let seen = std::mem::replace(&mut user.mask_changes, shared.mask_changes);
        seen != shared.mask_changes || !shared.allowed.contains(cpu.0)
    }

    /// Whether a CPU is in the tenant's set.
    #[cfg(all(test, not(loom)))]
    fn is_allowed(&self, cpu: CpuId) -> bool {
        ignore_poison(self.shared.lock()).allowed.contains(cpu.0)
    }

    /// Does what `enter` on `to` does first: adds `to` to the tenant's set, and decides what becomes of the id that
    /// the user left on its previous CPU.
    #[cfg(test)]
    fn migrate(&self, user: &User, to: CpuId) {
        let shared = &mut *ignore_poison(self.shared.lock());
        self.add_cpu(shared, to);
        if user.cpu != NOWHERE && user.cpu != to.0 && !self.holds(user) {
            self.release_previous(shared, user, to);
        }
    }

    /// Takes an id for `user`, which runs on `cpu`. Returns `None` if the CPU's id and all overflow ids are in
    /// use.
    ///
    /// A user that already holds an id gets the same id, and must leave as often as it entered.
    ///
    /// **Touches** the line of this CPU's `PcpuCid`, for writing. That is all if the user was on this CPU last and the
    /// CPU still has an id that is neither held nor recalled; otherwise also the set of used ids, the tenant's lock, or
    /// both.
    #[inline(always)]
    pub fn enter(&self, cpu: CpuId, user: &mut User) -> Option<HeldCid<'_>> {
        self.enter_fast(cpu, user).or_else(|| self.enter_slow(cpu, user))
    }

    /// As [`enter`](Ids::enter), but returns `None` unless this user was on this CPU last and an id is cached here that
    /// was used since the last compaction. If it returns `None`, call `enter`.
    #[inline(always)]
    pub fn enter_fast(&self, cpu: CpuId, user: &mut User) -> Option<HeldCid<'_>> {
        if user.cpu != cpu.0 {
            return None;
        }
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        if !pcpu_cid.enter(user.token) {
            return None;
        }
        if pcpu_cid.cid_word() != user.cid_word {
            return self.revalidate(cpu, user);
        }
        Some(HeldCid { pcpu_cid: Some(pcpu_cid), cid_word: user.cid_word })
    }

    /// Gives an id back with one store. Returns the id as an error, unchanged, if [`leave`](Ids::leave) is needed: for
    /// an overflow id, a recalled one, a nested entry, or after [`make_leave_slow`](Ids::make_leave_slow).
    ///
    /// **Touches** the line of the `PcpuCid`, for writing.
    #[inline(always)]
    pub fn leave_fast<'a>(&self, held: HeldCid<'a>) -> Result<(), HeldCid<'a>> {
        // Equal words mean that no flag was set since the entry. If one is set after this comparison, the next entry
        // sees it.
        match held.pcpu_cid {
            Some(pcpu_cid) if pcpu_cid.cid_word() == held.cid_word => {
                pcpu_cid.leave();
                Ok(())
            }
            _ => Err(held),
        }
    }

    /// Gives back the id that `enter` gave this user. If [`leave_fast`](Ids::leave_fast) refuses the id, this panics
    /// unless it is the overflow id of this user, or the id of the CPU where this user entered last.
    pub fn leave(&self, held: HeldCid<'_>, user: &mut User) {
        if let Err(held) = self.leave_fast(held) {
            self.leave_slow(held, user);
        }
    }

    #[cold]
    fn leave_slow(&self, held: HeldCid<'_>, user: &mut User) {
        let shared = &mut *ignore_poison(self.shared.lock());
        let Some(pcpu_cid) = held.pcpu_cid else {
            assert_eq!(user.overflow, Some(held.cid()), "an id is left by a user that does not hold it");
            if user.nested > 0 {
                user.nested -= 1;
                return;
            }
            user.overflow = None;
            return self.free_overflow(shared, held.cid());
        };
        let is_users =
            user.cpu != NOWHERE && std::ptr::eq(pcpu_cid, self.pcpu_cids.pcpu_cid(CpuId(user.cpu)));
        assert!(is_users, "{} is left by a user that does not hold it: {user:?}", held.cid());
        if user.nested > 0 {
            user.nested -= 1;
            pcpu_cid.set_cid_word(pcpu_cid.cid_word().nested(user.nested > 0));
        } else if pcpu_cid.cid_word().is_recalled() {
            pcpu_cid.vacate();
            self.free(CpuId(user.cpu), pcpu_cid.cid_word().recent());
        } else {
            // `make_leave_slow` set the flag. Clear it, or the next entry would find another `cid_word` than it
            // expects.
            pcpu_cid.set_cid_word(pcpu_cid.cid_word().nested(false));
            pcpu_cid.leave();
        }
    }

    /// Makes [`leave_fast`](Ids::leave_fast) refuse the id that this user holds now, so that the slow path of its
    /// caller runs. Does nothing if the user holds none.
    pub fn make_leave_slow(&self, user: &User) {
        let _shared = ignore_poison(self.shared.lock());
        // An overflow id always takes the slow path.
        if let Some(pcpu_cid) = self.held(user).and_then(|held| held.pcpu_cid) {
            pcpu_cid.set_cid_word(pcpu_cid.cid_word().nested(true));
        }
    }

    /// Whether this user holds an id.
    pub fn holds(&self, user: &User) -> bool {
        self.held(user).is_some()
    }

    /// The id that this user holds.
    #[inline]
    pub fn held_cid(&self, user: &User) -> Option<Cid> {
        self.held(user).map(|held| held.cid())
    }

    #[inline]
    fn held(&self, user: &User) -> Option<HeldCid<'_>> {
        if let Some(cid) = user.overflow {
            return Some(HeldCid { pcpu_cid: None, cid_word: CidWord::of(cid) });
        }
        let pcpu_cid = (user.cpu != NOWHERE).then(|| self.pcpu_cids.pcpu_cid(CpuId(user.cpu)))?;
        (pcpu_cid.state() == State::InUse(user.token))
            .then_some(HeldCid { pcpu_cid: Some(pcpu_cid), cid_word: user.cid_word })
    }

    /// Continues an entry that took the CPU's `PcpuCid`, but found another `cid_word` there than `user.cid_word`.
    #[cold]
    fn revalidate(&self, cpu: CpuId, user: &mut User) -> Option<HeldCid<'_>> {
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        let cid_word = pcpu_cid.cid_word();
        if cid_word.is_recalled() {
            let shared = &mut *ignore_poison(self.shared.lock());
            pcpu_cid.vacate();
            self.free(cpu, pcpu_cid.cid_word().recent());
            return self.enter_locked(shared, cpu, user);
        }
        // The CPU got another id since this user left.
        user.cid_word = cid_word;
        Some(HeldCid { pcpu_cid: Some(pcpu_cid), cid_word })
    }

    #[cold]
    #[inline(never)]
    fn enter_slow(&self, cpu: CpuId, user: &mut User) -> Option<HeldCid<'_>> {
        // A user that comes back to its CPU after a pause first tries without the lock.
        if user.cpu == cpu.0 {
            let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
            if pcpu_cid.enter(user.token) || pcpu_cid.enter_stale(user.token) {
                return match pcpu_cid.cid_word() == user.cid_word {
                    true => Some(HeldCid { pcpu_cid: Some(pcpu_cid), cid_word: user.cid_word }),
                    false => self.revalidate(cpu, user),
                };
            }
            if let Some(held) = self.retake(cpu, user) {
                return Some(held);
            }
        }
        let mut shared = ignore_poison(self.shared.lock());
        self.enter_locked(&mut shared, cpu, user)
    }

    /// Takes the id again that this user left on this CPU, if that id is free, the CPU got no other one since, and the
    /// policy allows it without a call of `pick`.
    ///
    /// Not under the lock: CPUs that pause together come back at the same moment, and would wait for each other.
    fn retake(&self, cpu: CpuId, user: &User) -> Option<HeldCid<'_>> {
        let (pcpu_cid, cid) = (self.pcpu_cids.pcpu_cid(cpu), user.cid_word.cid()?);
        // ORDERING: Relaxed, here and below; if the bound falls now, the next compaction takes or recalls this id.
        let bound = self.lockless.retake_end.load(Relaxed);
        if cid.0 >= bound || pcpu_cid.cid_word() != user.cid_word {
            return None;
        }
        // Takes the `PcpuCid` first and then the id, so that no other user can take the `PcpuCid` in between.
        if !pcpu_cid.claim(user.token) {
            return None;
        }
        if !self.used.insert(cid.0) {
            pcpu_cid.vacate();
            return None;
        }
        // The thread that freed the id held the lock, under which `retake_end` is written. Before it cleared the id's
        // bit it wrote what the `PcpuCid` remembers (0 after a move). Setting the bit made both visible here.
        if pcpu_cid.cid_word() != user.cid_word || cid.0 >= self.lockless.retake_end.load(Relaxed) {
            self.used.remove(cid.0);
            pcpu_cid.vacate();
            return None;
        }
        self.occupied.insert(cpu.0);
        self.lockless.retaken.fetch_add(1, Relaxed);
        // As in `pick`. `max_nr_cid` is rarely above the bound, and the comparison saves a locked instruction.
        if self.lockless.max_nr_cid.load(Relaxed) > bound {
            self.lockless.max_nr_cid.fetch_min(bound, Relaxed);
        }
        Some(HeldCid { pcpu_cid: Some(pcpu_cid), cid_word: user.cid_word })
    }

    fn enter_locked(&self, shared: &mut Shared, cpu: CpuId, user: &mut User) -> Option<HeldCid<'_>> {
        if let Some(held) = self.held(user) {
            user.nested += 1;
            if let Some(pcpu_cid) = held.pcpu_cid {
                pcpu_cid.set_cid_word(pcpu_cid.cid_word().nested(true));
            }
            return Some(held);
        }
        self.add_cpu(shared, cpu);
        if user.cpu != NOWHERE && user.cpu != cpu.0 {
            self.release_previous(shared, user, cpu);
        }
        let Some(cid_word) = self.acquire(shared, cpu, user.token) else {
            return self.overflow(shared, user);
        };
        (user.cpu, user.cid_word) = (cpu.0, cid_word);
        Some(HeldCid { pcpu_cid: Some(self.pcpu_cids.pcpu_cid(cpu)), cid_word })
    }

    /// Adds a CPU on which a user enters to the tenant's set. Panics if the CPU has no `PcpuCid`.
    fn add_cpu(&self, shared: &mut Shared, cpu: CpuId) {
        assert!(cpu.0 < self.pcpu_cids.cpus(), "{cpu}, and there are {} CPU numbers", self.pcpu_cids.cpus());
        if shared.allowed.insert(cpu.0) {
            self.update_retake_end(shared);
        }
    }

    /// Takes a CPU's `PcpuCid` and returns its `cid_word`, with an id that the policy picks if the CPU has none.
    /// Returns `None` if another user holds the `PcpuCid`, or if the policy finds no free id.
    fn acquire(&self, shared: &mut Shared, cpu: CpuId, token: Token) -> Option<CidWord> {
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        loop {
            match pcpu_cid.state() {
                State::InUse(_) => return None,
                State::Cached | State::Stale if pcpu_cid.cid_word().is_recalled() => {
                    if pcpu_cid.take() {
                        self.free(cpu, pcpu_cid.cid_word().recent());
                    }
                }
                State::Cached | State::Stale => {
                    if pcpu_cid.enter(token) || pcpu_cid.enter_stale(token) {
                        return Some(pcpu_cid.cid_word());
                    }
                }
                State::Empty => {
                    // Takes the `PcpuCid` first: otherwise another user, which needs no lock for that, could
                    // retake the recent id meanwhile.
                    if pcpu_cid.claim(token) {
                        let Some(cid) = self.pick(shared, pcpu_cid.cid_word().cid()) else {
                            pcpu_cid.vacate();
                            return None;
                        };
                        let cid_word = CidWord::of(cid);
                        // Under a policy that keeps no ids, the id is recalled from the start.
                        pcpu_cid.set_cid_word(if self.policy.keeps() {
                            cid_word
                        } else {
                            cid_word.with_recall()
                        });
                        self.occupied.insert(cpu.0);
                        return Some(cid_word);
                    }
                }
            }
        }
    }

    /// Lets the policy choose a free id, and marks it as used. Returns `None` if the policy finds none.
    fn pick(&self, shared: &mut Shared, recent: Option<Cid>) -> Option<Cid> {
        self.lockless.max_nr_cid.fetch_min(self.facts(shared).bound(), Relaxed);
        let pick = loop {
            let pick = self.policy.pick(&self.facts(shared), recent, &Used(&self.used))?;
            if self.used.insert(pick.cid().0) {
                break pick;
            }
        };
        let (cid, counts) = (pick.cid(), &mut shared.counts);
        match pick {
            Pick::Recent(_) => counts.recent_hits += 1,
            Pick::Lowest(_) => counts.lowest += 1,
            Pick::New(_) => {
                counts.expansions += 1;
                self.lockless.max_nr_cid.store(cid.0 + 1, Relaxed);
            }
        }
        counts.allocated = counts.allocated.max(cid.0 + 1);
        // ORDERING: Relaxed; a thread that needs to read the new slot synchronized with its holder after this store.
        self.lockless.cids_end.store(counts.allocated, Relaxed);
        Some(cid)
    }

    /// Takes an overflow id for a user that cannot get the id of its CPU.
    fn overflow(&self, shared: &mut Shared, user: &mut User) -> Option<HeldCid<'_>> {
        // `NOWHERE` makes the next entry take the lock, where it finds the overflow id that this user holds.
        user.cpu = NOWHERE;
        user.overflow = Some(self.take_overflow(shared)?);
        self.held(user)
    }

    fn take_overflow(&self, shared: &mut Shared) -> Option<Cid> {
        let gap = shared.overflow.lowest_gap(shared.overflow.width())?;
        shared.overflow.insert(gap);
        shared.counts.overflows += 1;
        // ORDERING: Relaxed; as in `pick`.
        let end = self.lockless.overflow_end.load(Relaxed).max(gap + 1);
        self.lockless.overflow_end.store(end, Relaxed);
        Some(Cid(self.pcpu_cids.cpus() + gap))
    }

    fn free_overflow(&self, shared: &mut Shared, cid: Cid) {
        let gap = cid.0.checked_sub(self.pcpu_cids.cpus());
        assert!(gap.is_some_and(|gap| shared.overflow.remove(gap)), "{cid} is left, and no user holds it");
    }

    /// Adds those of `cpus` that have a `PcpuCid` to the tenant's set. Returns how many these are, whether new in the
    /// set or not.
    fn add_allowed(&self, shared: &mut Shared, cpus: &CpuSet) -> u32 {
        let known = self.pcpu_cids.cpus();
        let mut count = 0;
        for cpu in cpus.iter().filter(|cpu| cpu.0 < known) {
            shared.allowed.insert(cpu.0);
            count += 1;
        }
        self.update_retake_end(shared);
        count
    }

    /// Takes an overflow id without a [`User`], for a thread that is about to end.
    /// [`leave_overflow`](Ids::leave_overflow) gives the id back. Returns `None` if all overflow ids are in use.
    pub fn enter_overflow(&self) -> Option<HeldCid<'_>> {
        let mut shared = ignore_poison(self.shared.lock());
        let cid = self.take_overflow(&mut shared)?;
        Some(HeldCid { pcpu_cid: None, cid_word: CidWord::of(cid) })
    }

    /// Gives back an id of [`enter_overflow`](Ids::enter_overflow). Panics if it is no overflow id that is in use.
    pub fn leave_overflow(&self, held: HeldCid<'_>) {
        let mut shared = ignore_poison(self.shared.lock());
        self.free_overflow(&mut shared, held.cid());
    }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
