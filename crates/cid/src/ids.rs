//! Ids: the concurrency ids of one tenant.
//!
//! Model.   Every CPU has a pcpu_cid ([`PcpuCid`]) in the tenant. Who enters takes the pcpu_cid of its CPU
//!          and, with it, the id that the pcpu_cid keeps; who leaves, leaves the id there. That is one
//!          compare-and-swap and one store, on a line that no other CPU writes. Who comes back after
//!          a pause retakes the id that its CPU had, if it is free: a bit more to set, and still no
//!          lock, since CPUs that pause alike come back at the same moment. All else (an id
//!          for an empty pcpu_cid, a task that moved, compaction) happens under the tenant's lock and
//!          asks the [`Policy`].
//! Number.  Enter and leave: 2.3 ns on a 3.7 GHz Zen 4, whose floor for a compare-and-swap and
//!          a store is 2.2; no clock is read. Under the lock, 64 ids on 384 CPUs: about 35 ns.
//! Protocol. An id belongs to one pcpu_cid from the moment its bit is set, by who holds that pcpu_cid
//!          already, until it is freed: first the pcpu_cid is emptied, by its holder or by a CAS that
//!          fails if somebody entered; then what the pcpu_cid remembers is written; then the bit is
//!          cleared. PcpuCids are held by one at a time. So ids are unique, nothing that takes pcpu_cids
//!          (`ids/take.rs`) takes one in use, and who sets a bit finds its pcpu_cid in order.
//! Writers. PcpuCids: see there. Bits of ids and pcpu_cids: who takes an id or gives it back. Everything
//!          else: the lock's holder.
//! Source.  Linux `kernel/sched/core.c`, concurrency ids; the pcpu_cid's two words and its epoch
//!          of one bit are our own.

use crate::bits::{Bits, SharedBits};
use crate::pcpu_cid::{CID_END, CidWord, PcpuCid, PcpuCids, State, Token};
use crate::policy::{Pick, Policy, Used};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*};
use warmcore_line::{Line, Padded};
use warmcore_types::{Cid, CpuId, CpuSet, ignore_poison};

mod look;
mod take;
mod unguarded;

pub use look::Stats;

/// A task or thread that belongs to a tenant, and where it was last. Made by [`Ids::add_user`],
/// kept by the host, one thread's at a time.
#[derive(Debug)]
#[must_use = "it counts as a user until `remove_user`"]
pub struct User {
    token: Token,
    /// The CPU whose pcpu_cid it took last; `NOWHERE` before, and after an overflow.
    cpu: u32,
    /// What stood in that pcpu_cid.
    cid_word: CidWord,
    /// On how many CPUs it may run itself.
    nr_cpus_allowed: u32,
    /// `Shared::mask_changes` when that was asked for.
    mask_changes: u32,
    /// Guards beyond the first.
    nested: u32,
    /// How many of them nobody keeps: `leave_unguarded` gives those back.
    unguarded: u32,
    /// The overflow id that it holds.
    overflow: Option<Cid>,
}

const NOWHERE: u32 = u32::MAX;

/// An id that is held until it goes back through [`Ids::leave`].
#[derive(Debug)]
#[must_use = "the id is held until `leave`"]
pub struct HeldCid<'a> {
    /// None: an overflow id.
    pcpu_cid: Option<&'a PcpuCid>,
    cid_word: CidWord,
}

impl HeldCid<'_> {
    /// The id.
    #[inline(always)]
    pub fn cid(&self) -> Cid {
        self.cid_word.assigned_cid()
    }

    /// Whether it is an overflow id: the CPU's was held by somebody who lost the CPU with it.
    pub fn is_overflow(&self) -> bool {
        self.pcpu_cid.is_none()
    }
}

/// The concurrency ids of one tenant.
///
/// `enter`, `leave` and the others take the CPU as an argument: no clock is read here and no thread
/// asked. Time comes in as calls of [`compact`](Ids::compact). Nothing is allocated after `new`.
#[derive(Debug, Line)]
#[line(pair)]
#[repr(C, align(128))]
pub struct Ids<S: PcpuCids> {
    #[line(read_mostly)]
    pcpu_cids: S,
    #[line(read_mostly)]
    policy: &'static dyn Policy,
    /// Ids that a pcpu_cid has. Its words are written by whoever takes an id or gives it back.
    #[line(read_mostly)]
    used: SharedBits,
    /// PcpuCids that have an id, so that compaction looks at no other. Written after the id is used,
    /// and before it is free.
    #[line(read_mostly)]
    occupied: SharedBits,
    #[line(contended)]
    shared: Padded<Mutex<Shared>>,
    /// What is read or counted without the lock.
    #[line(contended)]
    seen: Seen,
}

/// The ends are written under the lock, and read by every sum over slots.
#[derive(Debug, Default)]
struct Seen {
    /// Every id of a pcpu_cid was below this, ever.
    cids_end: AtomicU32,
    /// Every overflow id was below this, ever.
    overflow_end: AtomicU32,
    /// `Facts::max_nr_cid`. Raised under the lock, lowered by whoever gets an id.
    max_nr_cid: AtomicU32,
    /// `Facts::bound`; 0 if the policy retakes none.
    retake_end: AtomicU32,
    /// Ids taken again without the lock. Written by whoever does: a line more that travels, beside
    /// that of `used`.
    retaken: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    /// Overflow ids, counted from 0.
    overflow: Bits,
    /// Every CPU that any user was ever allowed on.
    allowed: Bits,
    /// How often users were told that a mask changed.
    mask_changes: u32,
    counts: Stats,
}

impl<S: PcpuCids> Ids<S> {
    /// A tenant without users. Ids below `pcpu_cids.cpus()` are for CPUs; `overflow` more, above them,
    /// for who finds its CPU's id held.
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
            seen: Seen::default(),
        }
    }

    /// The policy.
    pub fn policy(&self) -> &'static dyn Policy {
        self.policy
    }

    /// Counts a task or thread in, with the CPUs that it may use. `token`: a number that no other
    /// user has now. Panics if that is one of the three highest of 32 bits.
    pub fn add_user(&self, token: u32, allowed: &CpuSet) -> User {
        let token = Token::new(token);
        let mut shared = ignore_poison(self.shared.lock());
        shared.counts.users += 1;
        let nr_cpus_allowed = self.allow_more(&mut shared, allowed);
        self.update_retake_end(&shared);
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

    /// Counts it out. An id that it left on a CPU stays there until a compaction. Panics if it still holds one.
    pub fn remove_user(&self, user: User) {
        let mut shared = ignore_poison(self.shared.lock());
        assert!(!self.holds(&user), "a user is counted out that still holds an id: {user:?}");
        shared.counts.users -= 1;
        self.update_retake_end(&shared);
    }

    /// Adds CPUs that a user may use from now on. The set only grows, as the kernel's does.
    pub fn allow(&self, cpus: &CpuSet) {
        let mut shared = ignore_poison(self.shared.lock());
        self.allow_more(&mut shared, cpus);
        self.update_retake_end(&shared);
    }

    /// Replaces the CPUs that a user may use: what it may use from now on counts for itself, and the tenant's set gets
    /// what is new in it. To be called after its mask was changed (`sched_setaffinity`, a cpuset).
    pub fn allow_user(&self, user: &mut User, cpus: &CpuSet) {
        let mut shared = ignore_poison(self.shared.lock());
        user.nr_cpus_allowed = self.allow_more(&mut shared, cpus);
        self.update_retake_end(&shared);
    }

    /// Has each user that moves from now on read its mask again, once: [`is_beyond_masks`](Ids::is_beyond_masks) is true
    /// then. For a host that finds another number of CPUs in the mask of a thread that is not the one it runs on.
    pub fn notify_masks_changed(&self) {
        let shared = &mut *ignore_poison(self.shared.lock());
        shared.mask_changes = shared.mask_changes.wrapping_add(1);
    }

    /// Whether `user` moved to a CPU that no user was allowed on so far, or moved after a mask was
    /// [changed](Ids::notify_masks_changed): the host should read its mask again for [`allow_user`](Ids::allow_user). Without
    /// that, the entry adds this one CPU to the tenant's set. It is asked before the mask is read, so that a change
    /// behind the reading is asked for at the next move.
    ///
    /// **Touches** nothing if the user was on `cpu` last; else it takes the tenant's lock, as the entry does then.
    pub fn is_beyond_masks(&self, cpu: CpuId, user: &mut User) -> bool {
        if user.cpu == cpu.0 {
            return false;
        }
        let shared = ignore_poison(self.shared.lock());
        let seen = std::mem::replace(&mut user.mask_changes, shared.mask_changes);
        seen != shared.mask_changes || !shared.allowed.contains(cpu.0)
    }

    /// Whether a CPU was counted in: a user was allowed on it, or came to it.
    #[cfg(all(test, not(loom)))]
    fn is_allowed(&self, cpu: CpuId) -> bool {
        ignore_poison(self.shared.lock()).allowed.contains(cpu.0)
    }

    /// Moves the id of a user that moved to another CPU, before it enters there, as `enter` does by itself.
    #[cfg(test)]
    fn migrate(&self, user: &User, to: CpuId) {
        let shared = &mut *ignore_poison(self.shared.lock());
        self.arrive(shared, to);
        if user.cpu != NOWHERE && user.cpu != to.0 && !self.holds(user) {
            self.release_previous(shared, user, to);
        }
    }

    /// An id for `user`, which runs on `cpu`. None: so many hold an overflow id that there is none
    /// left.
    ///
    /// Who holds one already gets the same, and leaves as often as it entered.
    ///
    /// **Touches** the line of this CPU's pcpu_cid, for writing, if the user was here last.
    #[inline(always)]
    pub fn enter(&self, cpu: CpuId, user: &mut User) -> Option<HeldCid<'_>> {
        self.enter_fast(cpu, user).or_else(|| self.enter_slow(cpu, user))
    }

    /// As [`enter`](Ids::enter), if this user was here last and its CPU kept the id. None: ask
    /// `enter`.
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

    /// Gives an id back, if that is all there is to it: mostly it is.
    ///
    /// **Touches** the line of the pcpu_cid, for writing.
    #[inline(always)]
    pub fn leave_fast<'a>(&self, held: HeldCid<'a>) -> Result<(), HeldCid<'a>> {
        // Equal means: no flag is set. One that is set just now is seen by the next entry.
        match held.pcpu_cid {
            Some(pcpu_cid) if pcpu_cid.cid_word() == held.cid_word => {
                pcpu_cid.leave();
                Ok(())
            }
            _ => Err(held),
        }
    }

    /// Gives the id back that `enter` gave this user. Panics if it was another one, and there is
    /// more to it than to leave the pcpu_cid.
    pub fn leave(&self, held: HeldCid<'_>, user: &mut User) {
        if let Err(held) = self.leave_fast(held) {
            self.leave_slow(held, user);
        }
    }

    #[cold]
    fn leave_slow(&self, held: HeldCid<'_>, user: &mut User) {
        let shared = &mut *ignore_poison(self.shared.lock());
        let Some(pcpu_cid) = held.pcpu_cid else {
            assert_eq!(user.overflow, Some(held.cid()), "an id is left by who does not hold it");
            if user.nested > 0 {
                user.nested -= 1;
                return;
            }
            user.overflow = None;
            return self.free_overflow(shared, held.cid());
        };
        let is_users =
            user.cpu != NOWHERE && std::ptr::eq(pcpu_cid, self.pcpu_cids.pcpu_cid(CpuId(user.cpu)));
        assert!(is_users, "{} is left by who does not hold it: {user:?}", held.cid());
        if user.nested > 0 {
            user.nested -= 1;
            pcpu_cid.set_cid_word(pcpu_cid.cid_word().nested(user.nested > 0));
        } else if pcpu_cid.cid_word().is_asked() {
            pcpu_cid.vacate();
            self.free(CpuId(user.cpu), pcpu_cid.cid_word().recent());
        } else {
            // Set by `make_leave_slow`; the next holder finds the pcpu_cid as any other.
            pcpu_cid.set_cid_word(pcpu_cid.cid_word().nested(false));
            pcpu_cid.leave();
        }
    }

    /// Sees to it that [`leave_fast`](Ids::leave_fast) refuses what this user holds now, so that its host hears of
    /// the leave. Nothing if it holds nothing.
    pub fn make_leave_slow(&self, user: &User) {
        let _shared = ignore_poison(self.shared.lock());
        // An overflow id takes the slow way by itself.
        if let Some(pcpu_cid) = self.held(user).and_then(|held| held.pcpu_cid) {
            pcpu_cid.set_cid_word(pcpu_cid.cid_word().nested(true));
        }
    }

    /// Whether this user holds an id.
    pub fn holds(&self, user: &User) -> bool {
        self.held(user).is_some()
    }

    /// What this user holds, and has not left yet.
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

    /// The pcpu_cid was kept and is held now, but it is not what this user left there.
    #[cold]
    fn revalidate(&self, cpu: CpuId, user: &mut User) -> Option<HeldCid<'_>> {
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        let cid_word = pcpu_cid.cid_word();
        if cid_word.is_asked() {
            let shared = &mut *ignore_poison(self.shared.lock());
            pcpu_cid.vacate();
            self.free(cpu, pcpu_cid.cid_word().recent());
            return self.enter_locked(shared, cpu, user);
        }
        // Another id: this CPU got one while we were away.
        user.cid_word = cid_word;
        Some(HeldCid { pcpu_cid: Some(pcpu_cid), cid_word })
    }

    #[cold]
    #[inline(never)]
    fn enter_slow(&self, cpu: CpuId, user: &mut User) -> Option<HeldCid<'_>> {
        // No lock for who comes back after a while.
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
        self.enter_locked(&mut *ignore_poison(self.shared.lock()), cpu, user)
    }

    /// The id that this user left here, which is nobody's by now, if the policy has no say in it.
    ///
    /// Two that pause alike come back at the same moment: under the lock one would wait for the other.
    fn retake(&self, cpu: CpuId, user: &User) -> Option<HeldCid<'_>> {
        let (pcpu_cid, cid) = (self.pcpu_cids.pcpu_cid(cpu), user.cid_word.cid()?);
        // ORDERING: Relaxed, here and below; a bound that falls now has us asked by the next compaction.
        let bound = self.seen.retake_end.load(Relaxed);
        if cid.0 >= bound || pcpu_cid.cid_word() != user.cid_word {
            return None;
        }
        // First the pcpu_cid, so that nobody else has it while we look for the id; then the id.
        if !pcpu_cid.claim(user.token) {
            return None;
        }
        if !self.used.insert(cid.0) {
            pcpu_cid.vacate();
            return None;
        }
        // Whoever freed it wrote first what the pcpu_cid is to remember (an id that moved is forgotten),
        // and knew the bound: with the id we got both.
        if pcpu_cid.cid_word() != user.cid_word || cid.0 >= self.seen.retake_end.load(Relaxed) {
            self.used.remove(cid.0);
            pcpu_cid.vacate();
            return None;
        }
        self.occupied.insert(cpu.0);
        self.seen.retaken.fetch_add(1, Relaxed);
        // As `pick` does. Mostly it is not above, and then its line is not written.
        if self.seen.max_nr_cid.load(Relaxed) > bound {
            self.seen.max_nr_cid.fetch_min(bound, Relaxed);
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
        self.arrive(shared, cpu);
        if user.cpu != NOWHERE && user.cpu != cpu.0 {
            self.release_previous(shared, user, cpu);
        }
        let Some(cid_word) = self.acquire(shared, cpu, user.token) else {
            return self.overflow(shared, user);
        };
        (user.cpu, user.cid_word) = (cpu.0, cid_word);
        Some(HeldCid { pcpu_cid: Some(self.pcpu_cids.pcpu_cid(cpu)), cid_word })
    }

    /// Counts a CPU in that somebody came to. Panics if there is none with that number.
    fn arrive(&self, shared: &mut Shared, cpu: CpuId) {
        assert!(cpu.0 < self.pcpu_cids.cpus(), "{cpu}, and there are {} CPU numbers", self.pcpu_cids.cpus());
        if shared.allowed.insert(cpu.0) {
            self.update_retake_end(shared);
        }
    }

    /// Holds a pcpu_cid, and says with which id. None if somebody else holds it, or there is no id.
    fn acquire(&self, shared: &mut Shared, cpu: CpuId, token: Token) -> Option<CidWord> {
        let pcpu_cid = self.pcpu_cids.pcpu_cid(cpu);
        loop {
            match pcpu_cid.state() {
                State::InUse(_) => return None,
                State::Cached | State::Stale if pcpu_cid.cid_word().is_asked() => {
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
                    // The pcpu_cid first: its recent id may be retaken without the lock.
                    if pcpu_cid.claim(token) {
                        let Some(cid) = self.pick(shared, pcpu_cid.cid_word().cid()) else {
                            pcpu_cid.vacate();
                            return None;
                        };
                        let cid_word = CidWord::of(cid);
                        // Who may not keep it is asked for it from the start.
                        pcpu_cid.set_cid_word(if self.policy.keeps() { cid_word } else { cid_word.asked() });
                        self.occupied.insert(cpu.0);
                        return Some(cid_word);
                    }
                }
            }
        }
    }

    /// An id that is now in use.
    fn pick(&self, shared: &mut Shared, recent: Option<Cid>) -> Option<Cid> {
        self.seen.max_nr_cid.fetch_min(self.facts(shared).bound(), Relaxed);
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
                self.seen.max_nr_cid.store(cid.0 + 1, Relaxed);
            }
        }
        counts.allocated = counts.allocated.max(cid.0 + 1);
        // ORDERING: Relaxed; who reads slots up to here was told of them by somebody who came later.
        self.seen.cids_end.store(counts.allocated, Relaxed);
        Some(cid)
    }

    fn overflow(&self, shared: &mut Shared, user: &mut User) -> Option<HeldCid<'_>> {
        // Wherever it was, it is not there now: the next entry looks at what it holds first.
        user.cpu = NOWHERE;
        user.overflow = Some(self.take_overflow(shared)?);
        self.held(user)
    }

    fn take_overflow(&self, shared: &mut Shared) -> Option<Cid> {
        let gap = shared.overflow.lowest_gap(shared.overflow.width())?;
        shared.overflow.insert(gap);
        shared.counts.overflows += 1;
        // ORDERING: Relaxed; who reads slots up to here was told of them by somebody who came later.
        let end = self.seen.overflow_end.load(Relaxed).max(gap + 1);
        self.seen.overflow_end.store(end, Relaxed);
        Some(Cid(self.pcpu_cids.cpus() + gap))
    }

    fn free_overflow(&self, shared: &mut Shared, cid: Cid) {
        let gap = cid.0.checked_sub(self.pcpu_cids.cpus());
        assert!(gap.is_some_and(|gap| shared.overflow.remove(gap)), "{cid} is left, and nobody holds it");
    }

    /// Adds CPUs to the tenant's set. Says how many there are with such numbers, new or not.
    fn allow_more(&self, shared: &mut Shared, cpus: &CpuSet) -> u32 {
        let known = self.pcpu_cids.cpus();
        let mut count = 0;
        for cpu in cpus.iter().filter(|cpu| cpu.0 < known) {
            shared.allowed.insert(cpu.0);
            count += 1;
        }
        count
    }

    /// An overflow id for who is no user: a thread that is about to end. It goes back through
    /// [`leave_overflow`](Ids::leave_overflow). None: there is none left.
    pub fn enter_overflow(&self) -> Option<HeldCid<'_>> {
        let cid = self.take_overflow(&mut *ignore_poison(self.shared.lock()))?;
        Some(HeldCid { pcpu_cid: None, cid_word: CidWord::of(cid) })
    }

    /// Gives back what [`enter_overflow`](Ids::enter_overflow) gave. Panics if it is not that.
    pub fn leave_overflow(&self, held: HeldCid<'_>) {
        self.free_overflow(&mut *ignore_poison(self.shared.lock()), held.cid());
    }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
