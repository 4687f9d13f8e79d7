//! Ids: the concurrency ids of one tenant.
//!
//! Model.   Every CPU has a seat ([`Seat`]) in the tenant. Who enters takes the seat of its CPU
//!          and, with it, the id that the seat keeps; who leaves, leaves the id there. That is one
//!          compare-and-swap and one store, on a line that no other CPU writes. Who comes back after
//!          a pause retakes the id that its CPU had, if it is free: a bit more to set, and still no
//!          lock, since CPUs that pause alike come back at the same moment. All else (an id
//!          for an empty seat, a task that moved, compaction) happens under the tenant's lock and
//!          asks the [`Policy`].
//! Number.  Enter and leave: 2.3 ns on a 3.7 GHz Zen 4, whose floor for a compare-and-swap and
//!          a store is 2.2; no clock is read. Under the lock, 64 ids on 384 CPUs: about 35 ns.
//! Protocol. An id belongs to one seat from the moment its bit is set, by who holds that seat
//!          already, until it is freed: first the seat is emptied, by its holder or by a CAS that
//!          fails if somebody entered; then what the seat remembers is written; then the bit is
//!          cleared. Seats are held by one at a time. So ids are unique, nothing that takes seats
//!          (`ids/take.rs`) takes one in use, and who sets a bit finds its seat in order.
//! Writers. Seats: see there. Bits of ids and seats: who takes an id or gives it back. Everything
//!          else: the lock's holder.
//! Source.  Linux `kernel/sched/core.c`, concurrency ids; the seat's two words and its epoch
//!          of one bit are our own.

use crate::bits::{Bits, SharedBits};
use crate::policy::{Owner, Pick, Policy, Used};
use crate::seat::{CID_END, Rest, Seat, Seats, State, Token};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*, lock};
use warmcore_line::{Line, Padded};
use warmcore_types::{Cid, CpuId, CpuSet};

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
    /// The CPU whose seat it took last; `NOWHERE` before, after an overflow, and if its seat is its
    /// own.
    cpu: u32,
    /// The CPU on which it took a seat of its own last.
    own_cpu: u32,
    /// The seat that it took last.
    seat: u32,
    /// What stood in that seat.
    rest: Rest,
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
    /// Its number among the users whose ids are their own.
    task: Option<u32>,
}

const NOWHERE: u32 = u32::MAX;

/// An id that is held until it goes back through [`Ids::leave`].
#[derive(Debug)]
#[must_use = "the id is held until `leave`"]
pub struct Held<'a> {
    /// None: an overflow id.
    seat: Option<&'a Seat>,
    rest: Rest,
}

impl Held<'_> {
    /// The id.
    #[inline(always)]
    pub fn cid(&self) -> Cid {
        self.rest.cid_held()
    }

    /// Whether it is an overflow id: the CPU's was held by somebody who lost the CPU with it.
    pub fn is_overflow(&self) -> bool {
        self.seat.is_none()
    }
}

/// The concurrency ids of one tenant.
///
/// `enter`, `leave` and the others take the CPU as an argument: no clock is read here and no thread
/// asked. Time comes in as calls of [`compact`](Ids::compact). Nothing is allocated after `new`.
#[derive(Debug, Line)]
#[line(pair)]
#[repr(C, align(128))]
pub struct Ids<S: Seats> {
    #[line(read_mostly)]
    seats: S,
    #[line(read_mostly)]
    policy: &'static dyn Policy,
    /// Ids that a seat has. Its words are written by whoever takes an id or gives it back.
    #[line(read_mostly)]
    used: SharedBits,
    /// Seats that have an id, so that compaction looks at no other. Written after the id is used,
    /// and before it is free.
    #[line(read_mostly)]
    seated: SharedBits,
    #[line(contended)]
    shared: Padded<Mutex<Shared>>,
    /// What is read or counted without the lock.
    #[line(contended)]
    seen: Seen,
}

/// The ends are written under the lock, and read by every sum over slots.
#[derive(Debug, Default)]
struct Seen {
    /// Every id of a seat was below this, ever.
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
    /// Numbers of users whose ids are their own.
    tasks: Bits,
    owner: Owner,
    counts: Stats,
}

impl<S: Seats> Ids<S> {
    /// A tenant without users. Ids below `seats.cpus()` are for CPUs; `overflow` more, above them,
    /// for who finds its CPU's id held.
    pub fn new(seats: S, overflow: u32, policy: &'static dyn Policy) -> Self {
        let cpus = seats.cpus();
        let ids = cpus.saturating_add(overflow);
        assert!(cpus > 0 && ids < CID_END, "{cpus} CPUs and {overflow} overflow ids; an id has 24 bits");
        let tasks = if policy.has_task_seats() { cpus } else { 0 };
        let shared = Shared {
            overflow: Bits::new(overflow),
            allowed: Bits::new(cpus),
            mask_changes: 0,
            tasks: Bits::new(tasks),
            owner: Owner::Cpu,
            counts: Stats::default(),
        };
        let ids = Self {
            seats,
            policy,
            used: SharedBits::new(cpus),
            seated: SharedBits::new(cpus + tasks),
            shared: Padded::new(Mutex::new(shared)),
            seen: Seen::default(),
        };
        let mut shared = lock(&ids.shared);
        shared.owner = policy.owner(&ids.facts(&shared), None);
        drop(shared);
        ids
    }

    /// The policy.
    pub fn policy(&self) -> &'static dyn Policy {
        self.policy
    }

    /// Counts a task or thread in, with the CPUs that it may use. `token`: a number that no other
    /// user has now. Panics if that is one of the three highest of 32 bits.
    pub fn add_user(&self, token: u32, allowed: &CpuSet) -> User {
        let token = Token::new(token);
        let mut shared = lock(&self.shared);
        shared.counts.users += 1;
        let nr_cpus_allowed = self.allow_more(&mut shared, allowed);
        self.settle_owner(&mut shared);
        User {
            token,
            cpu: NOWHERE,
            own_cpu: NOWHERE,
            seat: NOWHERE,
            rest: Rest::default(),
            nr_cpus_allowed,
            mask_changes: shared.mask_changes,
            nested: 0,
            unguarded: 0,
            overflow: None,
            task: None,
        }
    }

    /// Counts it out. An id that it left on a CPU stays there until a compaction; one of its own
    /// is free. Panics if it still holds one.
    pub fn remove_user(&self, mut user: User) {
        let mut shared = lock(&self.shared);
        assert!(!self.holds(&user), "a user is counted out that still holds an id: {user:?}");
        shared.counts.users -= 1;
        self.free_own(&mut shared, &mut user);
        self.settle_owner(&mut shared);
    }

    /// Adds CPUs that a user may use from now on. The set only grows, as the kernel's does.
    pub fn allow(&self, cpus: &CpuSet) {
        let mut shared = lock(&self.shared);
        self.allow_more(&mut shared, cpus);
        self.settle_owner(&mut shared);
    }

    /// Replaces the CPUs that a user may use: what it may use from now on counts for itself, and the tenant's set gets
    /// what is new in it. To be called after its mask was changed (`sched_setaffinity`, a cpuset).
    pub fn allow_user(&self, user: &mut User, cpus: &CpuSet) {
        let mut shared = lock(&self.shared);
        user.nr_cpus_allowed = self.allow_more(&mut shared, cpus);
        self.settle_owner(&mut shared);
    }

    /// Has each user that moves from now on read its mask again, once: [`is_beyond_masks`](Ids::is_beyond_masks) is true
    /// then. For a host that finds another number of CPUs in the mask of a thread that is not the one it runs on.
    pub fn say_masks_changed(&self) {
        let shared = &mut *lock(&self.shared);
        shared.mask_changes = shared.mask_changes.wrapping_add(1);
    }

    /// Whether `user` moved to a CPU that no user was allowed on so far, or moved after a mask was
    /// [changed](Ids::say_masks_changed): the host should read its mask again for [`allow_user`](Ids::allow_user). Without
    /// that, the entry adds this one CPU to the tenant's set. It is asked before the mask is read, so that a change
    /// behind the reading is asked for at the next move.
    ///
    /// **Touches** nothing if the user was on `cpu` last; else it takes the tenant's lock, as the entry does then.
    pub fn is_beyond_masks(&self, cpu: CpuId, user: &mut User) -> bool {
        if user.cpu == cpu.0 || user.own_cpu == cpu.0 {
            return false;
        }
        let shared = lock(&self.shared);
        let seen = std::mem::replace(&mut user.mask_changes, shared.mask_changes);
        seen != shared.mask_changes || !shared.allowed.contains(cpu.0)
    }

    /// Whether a CPU was counted in: a user was allowed on it, or came to it.
    #[cfg(all(test, not(loom)))]
    fn is_allowed(&self, cpu: CpuId) -> bool {
        lock(&self.shared).allowed.contains(cpu.0)
    }

    /// An id for `user`, which runs on `cpu`. None: so many hold an overflow id that there is none
    /// left.
    ///
    /// Who holds one already gets the same, and leaves as often as it entered.
    ///
    /// **Touches** the line of this CPU's seat, for writing, if the user was here last.
    #[inline(always)]
    pub fn enter(&self, cpu: CpuId, user: &mut User) -> Option<Held<'_>> {
        self.enter_at_once(cpu, user).or_else(|| self.enter_slowly(cpu, user))
    }

    /// As [`enter`](Ids::enter), if this user was here last and its CPU kept the id. None: ask
    /// `enter`.
    #[inline(always)]
    pub fn enter_at_once(&self, cpu: CpuId, user: &mut User) -> Option<Held<'_>> {
        if user.cpu != cpu.0 {
            return None;
        }
        let seat = self.seats.seat(cpu.0);
        if !seat.enter(user.token) {
            return None;
        }
        if seat.rest() != user.rest {
            return self.look_again(cpu, cpu.0, user);
        }
        Some(Held { seat: Some(seat), rest: user.rest })
    }

    /// Gives an id back, if that is all there is to it: mostly it is.
    ///
    /// **Touches** the line of the seat, for writing.
    #[inline(always)]
    pub fn leave_at_once<'a>(&self, held: Held<'a>) -> Result<(), Held<'a>> {
        // Equal means: no flag is set. One that is set just now is seen by the next entry.
        match held.seat {
            Some(seat) if seat.rest() == held.rest => {
                seat.leave();
                Ok(())
            }
            _ => Err(held),
        }
    }

    /// Gives the id back that `enter` gave this user. Panics if it was another one, and there is
    /// more to it than to leave the seat.
    pub fn leave(&self, held: Held<'_>, user: &mut User) {
        if let Err(held) = self.leave_at_once(held) {
            self.leave_slowly(held, user);
        }
    }

    #[cold]
    fn leave_slowly(&self, held: Held<'_>, user: &mut User) {
        let shared = &mut *lock(&self.shared);
        let Some(seat) = held.seat else {
            assert_eq!(user.overflow, Some(held.cid()), "an id is left by who does not hold it");
            if user.nested > 0 {
                user.nested -= 1;
                return;
            }
            user.overflow = None;
            return self.free_overflow(shared, held.cid());
        };
        let is_users = user.seat != NOWHERE && std::ptr::eq(seat, self.seats.seat(user.seat));
        assert!(is_users, "{} is left by who does not hold it: {user:?}", held.cid());
        if user.nested > 0 {
            user.nested -= 1;
            seat.set_rest(seat.rest().nested(user.nested > 0));
        } else if seat.rest().is_asked() {
            seat.vacate();
            self.free(user.seat, seat.rest().recent());
        } else {
            // Set by `make_leave_slow`; the next holder finds the seat as any other.
            seat.set_rest(seat.rest().nested(false));
            seat.leave();
        }
    }

    /// Sees to it that [`leave_at_once`](Ids::leave_at_once) refuses what this user holds now, so that its host hears of
    /// the leave. Nothing if it holds nothing.
    pub fn make_leave_slow(&self, user: &User) {
        let _shared = lock(&self.shared);
        // An overflow id takes the slow way by itself.
        if let Some(seat) = self.held(user).and_then(|held| held.seat) {
            seat.set_rest(seat.rest().nested(true));
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
    fn held(&self, user: &User) -> Option<Held<'_>> {
        if let Some(cid) = user.overflow {
            return Some(Held { seat: None, rest: Rest::of(cid) });
        }
        let seat = (user.seat != NOWHERE).then(|| self.seats.seat(user.seat))?;
        (seat.state() == State::Held(user.token)).then_some(Held { seat: Some(seat), rest: user.rest })
    }

    /// The seat was kept and is held now, but it is not what this user left there.
    #[cold]
    fn look_again(&self, cpu: CpuId, number: u32, user: &mut User) -> Option<Held<'_>> {
        let seat = self.seats.seat(number);
        let rest = seat.rest();
        if rest.is_asked() {
            let shared = &mut *lock(&self.shared);
            seat.vacate();
            self.free(number, seat.rest().recent());
            return self.enter_locked(shared, cpu, user);
        }
        // Another id: this CPU got one while we were away.
        user.rest = rest;
        Some(Held { seat: Some(seat), rest })
    }

    #[cold]
    #[inline(never)]
    fn enter_slowly(&self, cpu: CpuId, user: &mut User) -> Option<Held<'_>> {
        // No lock for who comes back after a while, or takes its own id along.
        if user.cpu == cpu.0 || user.own_cpu == cpu.0 {
            let seat = self.seats.seat(user.seat);
            if seat.enter(user.token) || seat.enter_old(user.token) {
                return match seat.rest() == user.rest {
                    true => Some(Held { seat: Some(seat), rest: user.rest }),
                    false => self.look_again(cpu, user.seat, user),
                };
            }
            if let Some(held) = self.retake(user) {
                return Some(held);
            }
        }
        self.enter_locked(&mut lock(&self.shared), cpu, user)
    }

    /// The id that this user left here, which is nobody's by now, if the policy has no say in it.
    ///
    /// Two that pause alike come back at the same moment: under the lock one would wait for the other.
    fn retake(&self, user: &User) -> Option<Held<'_>> {
        let (seat, cid) = (self.seats.seat(user.seat), user.rest.cid()?);
        // ORDERING: Relaxed, here and below; a bound that falls now has us asked by the next compaction.
        let bound = self.seen.retake_end.load(Relaxed);
        if cid.0 >= bound || seat.rest() != user.rest {
            return None;
        }
        // First the seat, so that nobody else has it while we look for the id; then the id.
        if !seat.claim(user.token) {
            return None;
        }
        if !self.used.insert(cid.0) {
            seat.vacate();
            return None;
        }
        // Whoever freed it wrote first what the seat is to remember (an id that moved is forgotten),
        // and knew the bound: with the id we got both.
        if seat.rest() != user.rest || cid.0 >= self.seen.retake_end.load(Relaxed) {
            self.used.remove(cid.0);
            seat.vacate();
            return None;
        }
        self.seated.insert(user.seat);
        self.seen.retaken.fetch_add(1, Relaxed);
        // As `pick` does. Mostly it is not above, and then its line is not written.
        if self.seen.max_nr_cid.load(Relaxed) > bound {
            self.seen.max_nr_cid.fetch_min(bound, Relaxed);
        }
        Some(Held { seat: Some(seat), rest: user.rest })
    }

    fn enter_locked(&self, shared: &mut Shared, cpu: CpuId, user: &mut User) -> Option<Held<'_>> {
        if let Some(held) = self.held(user) {
            user.nested += 1;
            if let Some(seat) = held.seat {
                seat.set_rest(seat.rest().nested(true));
            }
            return Some(held);
        }
        self.arrive(shared, cpu);
        let number = match shared.owner {
            Owner::Task => self.task_seat(shared, user),
            Owner::Cpu => {
                if user.task.is_some() {
                    self.free_own(shared, user);
                } else if user.cpu != NOWHERE && user.cpu != cpu.0 {
                    self.look_behind(shared, user, cpu);
                }
                Some(cpu.0)
            }
        };
        let Some(rest) = number.and_then(|number| self.sit(shared, number, user.token)) else {
            return self.overflow(shared, user);
        };
        let number = number?;
        let is_cpus = number == cpu.0;
        (user.cpu, user.own_cpu) = if is_cpus { (cpu.0, NOWHERE) } else { (NOWHERE, cpu.0) };
        (user.seat, user.rest) = (number, rest);
        Some(Held { seat: Some(self.seats.seat(number)), rest })
    }

    /// Counts a CPU in that somebody came to. Panics if there is none with that number.
    fn arrive(&self, shared: &mut Shared, cpu: CpuId) {
        assert!(cpu.0 < self.seats.cpus(), "{cpu}, and there are {} CPU numbers", self.seats.cpus());
        if shared.allowed.insert(cpu.0) {
            self.settle_owner(shared);
        }
    }

    /// The seat of a user whose ids are its own.
    fn task_seat(&self, shared: &mut Shared, user: &mut User) -> Option<u32> {
        if user.task.is_none() {
            user.task = shared.tasks.lowest_gap(shared.tasks.width());
            user.task.map(|task| shared.tasks.insert(task));
        }
        Some(self.seats.cpus() + user.task?)
    }

    /// A user that has a seat of its own has none any more.
    fn free_own(&self, shared: &mut Shared, user: &mut User) {
        let Some(task) = user.task.take() else { return };
        shared.tasks.remove(task);
        let number = self.seats.cpus() + task;
        let seat = self.seats.seat(number);
        if seat.take() {
            self.free(number, seat.rest().recent());
        }
    }

    /// Holds a seat, and says with which id. None if somebody else holds it, or there is no id.
    fn sit(&self, shared: &mut Shared, number: u32, token: Token) -> Option<Rest> {
        let seat = self.seats.seat(number);
        loop {
            match seat.state() {
                State::Held(_) => return None,
                State::Kept | State::Old if seat.rest().is_asked() => {
                    if seat.take() {
                        self.free(number, seat.rest().recent());
                    }
                }
                State::Kept | State::Old => {
                    if seat.enter(token) || seat.enter_old(token) {
                        return Some(seat.rest());
                    }
                }
                State::Empty => {
                    // The seat first: its recent id may be retaken without the lock.
                    if seat.claim(token) {
                        let Some(cid) = self.pick(shared, seat.rest().cid()) else {
                            seat.vacate();
                            return None;
                        };
                        let rest = Rest::of(cid);
                        // Who may not keep it is asked for it from the start.
                        seat.set_rest(if self.policy.keeps() { rest } else { rest.asked() });
                        self.seated.insert(number);
                        return Some(rest);
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
        counts.handed_out = counts.handed_out.max(cid.0 + 1);
        // ORDERING: Relaxed; who reads slots up to here was told of them by somebody who came later.
        self.seen.cids_end.store(counts.handed_out, Relaxed);
        Some(cid)
    }

    fn overflow(&self, shared: &mut Shared, user: &mut User) -> Option<Held<'_>> {
        // Wherever it was, it is not there now: the next entry looks at what it holds first.
        (user.cpu, user.own_cpu, user.seat) = (NOWHERE, NOWHERE, NOWHERE);
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
        Some(Cid(self.seats.cpus() + gap))
    }

    fn free_overflow(&self, shared: &mut Shared, cid: Cid) {
        let gap = cid.0.checked_sub(self.seats.cpus());
        assert!(gap.is_some_and(|gap| shared.overflow.remove(gap)), "{cid} is left, and nobody holds it");
    }

    /// Adds CPUs to the tenant's set. Says how many there are with such numbers, new or not.
    fn allow_more(&self, shared: &mut Shared, cpus: &CpuSet) -> u32 {
        let known = self.seats.cpus();
        let mut count = 0;
        for cpu in cpus.iter().filter(|cpu| cpu.0 < known) {
            shared.allowed.insert(cpu.0);
            count += 1;
        }
        count
    }

    /// An overflow id for who is no user: a thread that is about to end. It goes back through
    /// [`leave_as_guest`](Ids::leave_as_guest). None: there is none left.
    pub fn enter_as_guest(&self) -> Option<Held<'_>> {
        let cid = self.take_overflow(&mut lock(&self.shared))?;
        Some(Held { seat: None, rest: Rest::of(cid) })
    }

    /// Gives back what [`enter_as_guest`](Ids::enter_as_guest) gave. Panics if it is not that.
    pub fn leave_as_guest(&self, held: Held<'_>) {
        self.free_overflow(&mut lock(&self.shared), held.cid());
    }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
