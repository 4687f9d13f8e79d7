//! Loom models of ids: only the holder of an id accesses its slot, and it sees there what the last holder wrote.
//! `cargo xtask test --full` runs them.
//!
//! In loom a read-modify-write always sees the newest store, so a compare-and-swap that fails on an outdated
//! value is not in these models. Every caller of such a compare-and-swap continues as if it had run a moment
//! earlier.

use super::*;
use crate::pcpu_cid::{PcpuCid, pcpu_cids};
use crate::policy::{CacheLocal, Destination, Facts, KeptPerCpu, LeftBehind, Lowest};
use ::loom::{cell::UnsafeCell, model, sync::Arc, thread};
use std::sync::atomic as real;

/// For models with too many orders to try them all: tries those with at most three preemptions.
fn bounded(act: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(act);
}

/// Ids, and a slot without atomics for each id: loom fails a model in which two threads write one slot and
/// neither sees the other's write.
struct Tenant {
    ids: Ids<Box<[PcpuCid]>>,
    slots: Vec<UnsafeCell<u32>>,
    /// Not loom's atomic, so it orders nothing in the model.
    visits: real::AtomicU32,
}

impl Tenant {
    fn new(cpus: u32, overflow: u32, policy: &'static dyn Policy) -> Arc<Self> {
        Arc::new(Self {
            ids: Ids::new(pcpu_cids(cpus), overflow, policy),
            slots: (0..cpus + overflow).map(|_| UnsafeCell::new(0)).collect(),
            visits: real::AtomicU32::new(0),
        })
    }

    fn user(&self, token: u32) -> User {
        self.user_of(token, self.ids.pcpu_cids.cpus())
    }

    fn user_of(&self, token: u32, cpus: u32) -> User {
        self.ids.add_user(token, &(0..cpus).map(CpuId).collect())
    }

    fn enter(&self, cpu: u32, user: &mut User) -> HeldCid<'_> {
        let held = self.ids.enter(CpuId(cpu), user).expect("an overflow id for every thread");
        self.visits.fetch_add(1, real::Ordering::Relaxed);
        // SAFETY: no other thread has the id now; loom fails the test otherwise.
        self.slots[held.cid().0 as usize].with_mut(|slot| unsafe { *slot += 1 });
        held
    }

    /// Enters, writes to the id's slot, and leaves.
    fn visit(&self, cpu: u32, user: &mut User) -> Cid {
        let held = self.enter(cpu, user);
        let cid = held.cid();
        if let Some(pcpu_cid) = held.pcpu_cid {
            assert_eq!(pcpu_cid.cid_word().cid(), Some(cid), "the PcpuCid has another id");
        }
        self.ids.leave(held, user);
        cid
    }

    /// Removes all users, and checks that the ids that CPUs have are the ids in use.
    fn end<const N: usize>(&self, users: [User; N]) {
        let mut cids = Vec::new();
        let (cpus, occupied) = (self.ids.pcpu_cids.cpus(), &self.ids.occupied);
        for number in 0..cpus {
            let pcpu_cid = self.ids.pcpu_cids.pcpu_cid(CpuId(number));
            assert_eq!(occupied.contains(number), pcpu_cid.state() != State::Empty, "{pcpu_cid:?}");
            if pcpu_cid.state() != State::Empty {
                cids.push(pcpu_cid.cid_word().assigned_cid().0);
            }
        }
        cids.sort_unstable();
        let used: Vec<_> = (0..cpus).filter(|cid| self.ids.used.contains(*cid)).collect();
        assert_eq!((&used, used.len() as u32), (&cids, self.ids.used.len()));
        users.into_iter().for_each(|user| self.ids.remove_user(user));
        let stats = self.ids.stats();
        assert_eq!((stats.users, stats.overflow_in_use), (0, 0));
    }

    fn is_overflow(&self, cid: Cid) -> bool {
        cid.0 >= self.ids.pcpu_cids.cpus()
    }
}

/// The thread that drops a tenant sees what all threads wrote to its slots.
impl Drop for Tenant {
    fn drop(&mut self) {
        // SAFETY: this is the last handle, so no other thread accesses the slots.
        let sum = |slot: &UnsafeCell<u32>| slot.with(|slot| unsafe { *slot });
        if !std::thread::panicking() {
            assert_eq!(self.slots.iter().map(sum).sum::<u32>(), self.visits.load(real::Ordering::Relaxed));
        }
    }
}

/// Runs `act` on another thread, which returns the user.
fn go(
    tenant: &Arc<Tenant>,
    mut user: User,
    act: impl FnOnce(&Tenant, &mut User) + 'static,
) -> thread::JoinHandle<User> {
    let tenant = tenant.clone();
    thread::spawn(move || {
        act(&tenant, &mut user);
        user
    })
}

#[test]
fn two_threads_on_one_cpu() {
    // In how many runs A's two entries got 0, 1 and 2 overflow ids. Each number must occur.
    static OVERFLOWS: [real::AtomicU32; 3] = [const { real::AtomicU32::new(0) }; 3];
    model(|| {
        let tenant = Tenant::new(1, 1, &CacheLocal);
        let (mut a, b) = (tenant.user(0), tenant.user(1));
        let b = go(&tenant, b, |tenant, b| {
            tenant.visit(0, b);
            tenant.visit(0, b);
        });
        let cids = [tenant.visit(0, &mut a), tenant.visit(0, &mut a)];
        let b = b.join().unwrap();
        let ours = cids.into_iter().filter(|cid| tenant.is_overflow(*cid)).count();
        OVERFLOWS[ours].fetch_add(1, real::Ordering::Relaxed);
        let stats = tenant.ids.stats();
        assert_eq!((stats.in_use, stats.overflow_in_use), (1, 0));
        // No other thread runs, so there is no overflow.
        assert_eq!(tenant.visit(0, &mut a), Cid(0));
        tenant.end([a, b]);
    });
    assert!(OVERFLOWS.iter().all(|n| n.load(real::Ordering::Relaxed) > 0), "{OVERFLOWS:?}");
}

/// Overflow ids are unique too, and pass from thread to thread through the lock.
#[test]
fn three_threads_on_one_cpu() {
    model(|| {
        let tenant = Tenant::new(1, 2, &CacheLocal);
        let (mut a, b, c) = (tenant.user(0), tenant.user(1), tenant.user(2));
        let held = tenant.enter(0, &mut a);
        let b = go(&tenant, b, |tenant, b| _ = tenant.visit(0, b));
        let c = go(&tenant, c, |tenant, c| _ = tenant.visit(0, c));
        tenant.ids.leave(held, &mut a);
        tenant.end([a, b.join().unwrap(), c.join().unwrap()]);
    });
}

/// A has left id 0 on CPU 0 and comes back to it, while compactions make it stale and take it, and B gets the lowest
/// free id on CPU 1.
#[test]
fn enter_against_compaction() {
    static TAKEN: real::AtomicU32 = real::AtomicU32::new(0);
    model(|| {
        let tenant = Tenant::new(2, 0, &KeptPerCpu);
        let (mut a, mut b) = (tenant.user(0), tenant.user(1));
        tenant.visit(0, &mut a);
        let a = go(&tenant, a, |tenant, a| {
            tenant.visit(0, a);
            tenant.visit(0, a);
        });
        tenant.ids.compact();
        tenant.ids.compact();
        if tenant.visit(1, &mut b) == Cid(0) {
            TAKEN.fetch_add(1, real::Ordering::Relaxed);
        }
        tenant.end([a.join().unwrap(), b]);
    });
    assert!(TAKEN.load(real::Ordering::Relaxed) > 0, "no compaction took the id");
}

/// As `enter_against_compaction`, with A's entry, B's entry and the second compaction on three threads.
#[test]
fn enter_against_compaction_and_another() {
    model(|| {
        let tenant = Tenant::new(2, 0, &KeptPerCpu);
        let (mut a, b) = (tenant.user(0), tenant.user(1));
        tenant.visit(0, &mut a);
        tenant.ids.compact();
        let a = go(&tenant, a, |tenant, a| _ = tenant.visit(0, a));
        let b = go(&tenant, b, |tenant, b| _ = tenant.visit(1, b));
        tenant.ids.compact();
        tenant.end([a.join().unwrap(), b.join().unwrap()]);
    });
}

/// A leaves its id, a compaction makes it stale, B enters.
#[test]
fn a_stale_id_is_entered_with_its_data() {
    model(|| {
        let tenant = Tenant::new(1, 1, &CacheLocal);
        let (a, mut b) = (tenant.user(0), tenant.user(1));
        let a = go(&tenant, a, |tenant, a| {
            tenant.visit(0, a);
            tenant.visit(0, a);
        });
        tenant.ids.compact();
        tenant.visit(0, &mut b);
        tenant.end([a.join().unwrap(), b]);
    });
}

/// The id is stale at first. Whether the visit or the compaction comes first, the CPU has an id after both.
#[test]
fn compaction_takes_nothing_used_since_the_last() {
    model(|| {
        let tenant = Tenant::new(1, 0, &CacheLocal);
        let mut a = tenant.user(0);
        tenant.visit(0, &mut a);
        tenant.ids.compact();
        let a = go(&tenant, a, |tenant, a| _ = tenant.visit(0, a));
        tenant.ids.compact();
        let a = a.join().unwrap();
        assert_eq!(tenant.ids.in_use(), 1);
        tenant.end([a]);
    });
}

/// A moves from CPU 0 to CPU 1, which has no id, so A's id follows; unless B, which used the id on CPU 0 too,
/// holds it again.
#[test]
fn enter_against_migrate() {
    static MOVES: [real::AtomicU32; 2] = [const { real::AtomicU32::new(0) }; 2];
    model(|| {
        let tenant = Tenant::new(2, 1, &CacheLocal);
        let (mut a, mut b) = (tenant.user(0), tenant.user(1));
        tenant.visit(0, &mut a);
        tenant.visit(0, &mut b);
        let b = go(&tenant, b, |tenant, b| _ = tenant.visit(0, b));
        tenant.visit(1, &mut a);
        MOVES[tenant.ids.stats().moves as usize].fetch_add(1, real::Ordering::Relaxed);
        tenant.end([a, b.join().unwrap()]);
    });
    assert!(MOVES.iter().all(|n| n.load(real::Ordering::Relaxed) > 0), "{MOVES:?}");
}

/// C was on CPU 1 with another id, which is free now; A's id moves there with A, and C enters
/// on the fast path as soon as the id is there.
#[test]
fn a_moved_id_comes_with_its_data() {
    model(|| {
        let tenant = Tenant::new(2, 2, &KeptPerCpu);
        let (mut a, mut c) = (tenant.user(0), tenant.user(2));
        tenant.visit(0, &mut a);
        assert_eq!(tenant.visit(1, &mut c), Cid(1));
        tenant.ids.compact();
        tenant.visit(0, &mut a);
        assert_eq!(tenant.ids.compact(), 1);
        let c = go(&tenant, c, |tenant, c| _ = tenant.visit(1, c));
        tenant.visit(0, &mut a);
        tenant.ids.migrate(&a, CpuId(1));
        tenant.visit(1, &mut a);
        tenant.end([a, c.join().unwrap()]);
    });
}

/// A was on CPU 0 with id 0. Now C has id 0 on CPU 1, and B has left id 1 on CPU 0.
#[test]
fn an_id_that_another_user_left_does_not_move() {
    model(|| {
        let tenant = Tenant::new(3, 0, &KeptPerCpu);
        let (mut a, mut b, mut c) = (tenant.user(0), tenant.user(1), tenant.user(2));
        assert_eq!(tenant.visit(0, &mut a), Cid(0));
        assert_eq!(tenant.ids.compact_if(|_, _| true), 0);
        assert_eq!(tenant.visit(1, &mut c), Cid(0));
        assert_eq!(tenant.visit(0, &mut b), Cid(1));
        let c = go(&tenant, c, |tenant, c| _ = tenant.visit(1, c));
        assert_eq!(tenant.visit(2, &mut a), Cid(2));
        tenant.end([a, b, c.join().unwrap()]);
    });
}

/// A's move from CPU 0 to CPU 1, which has an id, frees the id that A left on CPU 0, unless B, which used it too,
/// enters there first.
#[test]
fn enter_against_an_id_freed_by_a_move() {
    model(|| {
        let tenant = Tenant::new(2, 1, &Freeing);
        let (mut a, mut b) = (tenant.user(0), tenant.user(1));
        tenant.visit(1, &mut b);
        tenant.visit(0, &mut a);
        tenant.visit(0, &mut b);
        let b = go(&tenant, b, |tenant, b| _ = tenant.visit(0, b));
        tenant.visit(1, &mut a);
        tenant.end([a, b.join().unwrap()]);
    });
}

/// A policy that frees an id that is left behind if the destination has an id, with any number of users.
/// `KeptPerCpu` and `CacheLocal` do so only with fewer users than CPUs, so with a third CPU in the model.
#[derive(Debug)]
struct Freeing;

impl crate::policy::sealed::Sealed for Freeing {}

impl Policy for Freeing {
    fn name(&self) -> &'static str {
        "freeing"
    }

    fn pick(&self, facts: &Facts, recent: Option<Cid>, used: &Used) -> Option<Pick> {
        KeptPerCpu.pick(facts, recent, used)
    }

    fn left_behind(&self, _: &Facts, _: u32, to: Destination) -> LeftBehind {
        if to.has_id { LeftBehind::Freed } else { LeftBehind::Follows }
    }
}

/// B has left id 1 on CPU 1, and id 0 is free. On another thread `act` enters as B, while the tenant shrinks to one
/// user and compacts. After both, B gets id 0 at each entry. `then`: the CPUs of these entries.
fn recalled(then: &'static [u32], act: impl FnOnce(&Tenant, &mut User) + Copy + Sync + Send + 'static) {
    model(move || {
        let tenant = Tenant::new(2, 0, &CacheLocal);
        let (mut a, mut b) = (tenant.user(0), tenant.user(1));
        tenant.visit(0, &mut a);
        assert_eq!(tenant.visit(1, &mut b), Cid(1));
        assert_eq!(tenant.ids.compact_if(|cpu, _| cpu == CpuId(0)), 1);
        let b = go(&tenant, b, act);
        tenant.ids.remove_user(a);
        tenant.ids.compact();
        let mut b = b.join().unwrap();
        then.iter().for_each(|cpu| assert_eq!(tenant.visit(*cpu, &mut b), Cid(0)));
        assert_eq!(tenant.ids.in_use(), 1);
        tenant.end([b]);
    });
}

#[test]
fn a_recalled_id_is_given_back() {
    recalled(&[1], |tenant, b| {
        tenant.visit(1, b);
        tenant.visit(1, b);
    });
}

/// B may leave at the moment of the recall. It enters on CPU 0, and comes back to CPU 1.
#[test]
fn a_recalled_id_is_not_entered_again() {
    recalled(&[0, 1], |tenant, b| _ = tenant.visit(1, b));
}

/// With nested entries, the inner leave keeps the id and the recall.
#[test]
fn a_recalled_id_is_held_until_the_last_leave() {
    recalled(&[1], |tenant, b| {
        let outer = tenant.enter(1, b);
        assert_eq!(tenant.visit(1, b), outer.cid());
        tenant.ids.leave(outer, b);
    });
}

/// While B gives back a recalled id, C enters on the same CPU.
#[test]
fn a_recalled_id_against_another_user_on_its_cpu() {
    bounded(|| {
        let tenant = Tenant::new(3, 1, &CacheLocal);
        let (mut a, mut b, mut c) = (tenant.user(0), tenant.user(1), tenant.user(2));
        tenant.visit(0, &mut a);
        tenant.visit(1, &mut c);
        assert_eq!(tenant.visit(2, &mut b), Cid(2));
        assert_eq!(tenant.ids.compact_if(|cpu, _| cpu < CpuId(2)), 1);
        let b = go(&tenant, b, |tenant, b| {
            tenant.visit(2, b);
            tenant.visit(2, b);
        });
        tenant.ids.remove_user(a);
        tenant.ids.compact();
        tenant.visit(2, &mut c);
        let mut b = b.join().unwrap();
        assert!(tenant.visit(2, &mut b) < Cid(2));
        assert_eq!(tenant.ids.in_use(), 1);
        tenant.end([b, c]);
    });
}

/// CPU 0 still has id 0, so B may get id 1 again. Then the next compaction takes both ids, or recalls one.
#[test]
fn two_compactions_bring_ids_below_the_bound() {
    static RECALLED: real::AtomicU32 = real::AtomicU32::new(0);
    model(|| {
        let tenant = Tenant::new(2, 0, &CacheLocal);
        let (mut a, mut b) = (tenant.user(0), tenant.user(1));
        tenant.visit(0, &mut a);
        assert_eq!(tenant.visit(1, &mut b), Cid(1));
        tenant.ids.remove_user(a);
        let b = go(&tenant, b, |tenant, b| _ = tenant.visit(1, b));
        tenant.ids.compact();
        let mut b = b.join().unwrap();
        if tenant.visit(1, &mut b) == Cid(0) {
            RECALLED.fetch_add(1, real::Ordering::Relaxed);
        }
        assert!(tenant.ids.compact() <= 1);
        assert_eq!(tenant.visit(1, &mut b), Cid(0));
        assert_eq!(tenant.ids.in_use(), 1);
        tenant.end([b]);
    });
    assert!(RECALLED.load(real::Ordering::Relaxed) > 0, "no id was recalled");
}

/// Under `Lowest` every id goes back through the lock, and from there to its next holder.
#[test]
fn an_id_given_back_comes_with_its_data() {
    model(|| {
        let tenant = Tenant::new(2, 0, &Lowest);
        let (mut a, b) = (tenant.user(0), tenant.user(1));
        let b = go(&tenant, b, |tenant, b| _ = tenant.visit(1, b));
        tenant.visit(0, &mut a);
        tenant.visit(0, &mut a);
        tenant.end([a, b.join().unwrap()]);
        assert_eq!(tenant.ids.in_use(), 0);
    });
}

/// At its end a tenant reads every slot (`Tenant::drop`).
#[test]
fn last_leave_against_drop() {
    model(|| {
        let tenant = Tenant::new(1, 1, &CacheLocal);
        let (mut a, mut b) = (tenant.user(0), tenant.user(1));
        tenant.visit(0, &mut a);
        thread::spawn({
            let tenant = tenant.clone();
            move || {
                tenant.visit(0, &mut b);
                tenant.ids.remove_user(b);
            }
        });
        tenant.visit(0, &mut a);
        tenant.ids.remove_user(a);
    });
}

/// A comes back to CPU 0 after a pause, and B enters on CPU 2 when the lowest free id is A's.
#[test]
fn an_id_is_retaken_by_one_or_picked_by_another() {
    model(|| {
        let tenant = Tenant::new(3, 2, &CacheLocal);
        let (mut a, mut b) = (tenant.user(0), tenant.user(1));
        assert_eq!((tenant.visit(0, &mut a), tenant.visit(1, &mut b)), (Cid(0), Cid(1)));
        tenant.ids.compact();
        assert_eq!(tenant.ids.compact(), 0);
        let a = go(&tenant, a, |tenant, a| _ = tenant.visit(0, a));
        tenant.visit(2, &mut b);
        tenant.end([a.join().unwrap(), b]);
    });
}

/// A writes and leaves, a compaction takes the id, and C, which was on that CPU too, retakes it.
#[test]
fn a_retaken_id_comes_with_its_data() {
    bounded(|| {
        let tenant = Tenant::new(2, 2, &CacheLocal);
        let (mut a, mut c) = (tenant.user(0), tenant.user(1));
        assert_eq!(tenant.visit(0, &mut a), tenant.visit(0, &mut c));
        let a = go(&tenant, a, |tenant, a| _ = tenant.visit(0, a));
        let c = go(&tenant, c, |tenant, c| _ = tenant.visit(0, c));
        tenant.ids.compact_if(|_, _| true);
        tenant.end([a.join().unwrap(), c.join().unwrap()]);
    });
}

/// A moves to CPU 1, which has B's id, while C comes back to CPU 0. Unless C is there first, the move frees A's id, and
/// CPU 0 forgets it.
#[test]
fn an_id_that_moved_away_is_not_retaken() {
    model(|| {
        let tenant = Tenant::new(4, 2, &CacheLocal);
        let (mut a, mut b, mut c) = (tenant.user(0), tenant.user(1), tenant.user(2));
        assert_eq!((tenant.visit(0, &mut a), tenant.visit(1, &mut b)), (Cid(0), Cid(1)));
        assert_eq!(tenant.visit(0, &mut c), Cid(0));
        let a = go(&tenant, a, |tenant, a| _ = tenant.visit(1, a));
        tenant.visit(0, &mut c);
        tenant.visit(0, &mut c);
        tenant.end([a.join().unwrap(), b, c]);
    });
}

/// Two users of one CPU come back at once, and a compaction follows or runs at the same time.
#[test]
fn two_retake_on_one_cpu() {
    bounded(|| {
        let tenant = Tenant::new(2, 2, &CacheLocal);
        let (mut a, mut b) = (tenant.user(0), tenant.user(1));
        assert_eq!(tenant.visit(0, &mut a), tenant.visit(0, &mut b));
        tenant.ids.compact();
        assert_eq!(tenant.ids.compact(), 0);
        let a = go(&tenant, a, |tenant, a| {
            tenant.visit(0, a);
            tenant.visit(0, a);
        });
        tenant.visit(0, &mut b);
        tenant.ids.compact();
        tenant.end([a.join().unwrap(), b]);
    });
}
