//! Ids that no user holds: when they stay, are freed, or are used again.

use super::drive::ids;
use super::*;
use crate::bits::SharedBits;
use crate::policy::{Facts, Pick, Used};
use fastrand::Rng;
use std::collections::BTreeSet;

#[test]
fn an_id_in_use_every_period_is_never_taken_and_an_unused_one_is_after_two() {
    for rules in [Rules::KeptPerCpu, Rules::CacheLocal] {
        let ids = ids(rules, 4, 0);
        let mut users = users(&ids, 4, 4);
        // The lower id is the one in use, because KeptPerCpu takes back the ids at or above the number in use.
        let busy = visit(&ids, 1, &mut users[1]);
        let unused = visit(&ids, 3, &mut users[3]);
        assert_eq!(ids.compact(), 2, "the first compaction only sees it unused");
        for _ in 0..100 {
            assert_eq!(visit(&ids, 1, &mut users[1]), busy);
            ids.compact();
            assert_eq!(ids.at(CpuId(1)), Some((Cid(busy), false)));
            assert_eq!(ids.at(CpuId(3)), None, "{rules:?}: id {unused} lay unused for a period");
        }
        assert_eq!(ids.stats().compacted, 1);
    }
}

#[test]
fn a_visit_by_another_user_keeps_an_id_too() {
    for rules in [Rules::KeptPerCpu, Rules::CacheLocal] {
        let ids = ids(rules, 2, 0);
        let mut users = users(&ids, 3, 2);
        for round in 0..10 {
            let user = &mut users[round % 3];
            assert_eq!(visit(&ids, 0, user), 0);
            assert_eq!(ids.compact(), 1);
        }
    }
}

#[test]
fn a_caller_may_decide_which_ids_are_old() {
    let ids = ids(Rules::CacheLocal, 3, 0);
    let mut users = users(&ids, 3, 3);
    (0..3).for_each(|cpu| _ = visit(&ids, cpu, &mut users[cpu as usize]));
    let held = hold(&ids, 2, &mut users[2]);
    let asked = std::cell::RefCell::new(Vec::new());
    let left = ids.compact_if(|cpu, unused| {
        asked.borrow_mut().push((cpu.0, unused));
        cpu.0 == 0
    });
    assert_eq!(asked.take(), [(0, false), (1, false)], "an id in use is not asked about");
    assert_eq!((left, ids.at(CpuId(0)), ids.at(CpuId(1))), (2, None, Some((Cid(1), false))));
    ids.leave(held, &mut users[2]);
}

/// The ids that each of 8 CPUs got, in 40 rounds. At most three CPUs hold ids at once, and three compactions pass
/// before the next ones enter.
fn ids_of_pausing_cpus(rules: Rules) -> Vec<Vec<u32>> {
    let ids = ids(rules, 8, 0);
    let mut users = users(&ids, 8, 8);
    let mut rng = Rng::with_seed(7);
    let mut got = vec![Vec::new(); 8];
    for _ in 0..40 {
        let (first, step) = (rng.u32(..8), [1, 3, 5, 7][rng.u32(..4) as usize]);
        for at in 0..8 {
            // An odd step visits all 8 CPUs, in another order each round.
            let running: Vec<_> = (at..8.min(at + 3)).map(|at| (first + at * step) % 8).collect();
            let mut held: Vec<_> =
                running.iter().map(|cpu| (*cpu, hold(&ids, *cpu, &mut users[*cpu as usize]))).collect();
            for (cpu, held) in held.drain(..) {
                got[cpu as usize].push(held.cid().0);
                ids.leave(held, &mut users[cpu as usize]);
            }
            (0..3).for_each(|_| _ = ids.compact());
            assert_eq!(ids.in_use(), 0, "{rules:?}: every pause is longer than an id is kept");
        }
    }
    got
}

#[test]
fn a_cpu_gets_its_own_id_back_after_every_pause() {
    let got = ids_of_pausing_cpus(Rules::CacheLocal);
    let own: BTreeSet<_> = got.iter().map(|ids| ids[0]).collect();
    assert_eq!(own, (0..8).collect(), "each CPU has an id of its own");
    for (cpu, ids) in got.iter().enumerate() {
        assert!(ids.iter().all(|id| *id == ids[0]), "cpu {cpu} had {ids:?}");
    }
}

#[test]
fn without_recent_ids_a_cpu_loses_its_id_in_a_pause() {
    for rules in [Rules::Lowest, Rules::KeptPerCpu] {
        let got = ids_of_pausing_cpus(rules);
        assert!(
            got.iter().all(|ids| ids.contains(&0) && ids.iter().any(|id| *id != 0)),
            "{rules:?}: {got:?}"
        );
        assert!(got.iter().flatten().all(|id| *id < 3), "{rules:?} has more ids than users ran at once");
    }
}

#[test]
fn an_id_follows_its_user_to_a_cpu_that_never_had_one_and_is_freed_otherwise() {
    let ids = ids(Rules::CacheLocal, 8, 0);
    let mut users = users(&ids, 2, 8);
    let [a, b] = &mut users[..] else { panic!("two users") };
    assert_eq!([visit(&ids, 0, a), visit(&ids, 1, b)], [0, 1]);
    ids.migrate(a, CpuId(5));
    assert_eq!((ids.at(CpuId(0)), ids.at(CpuId(5))), (None, Some((Cid(0), false))));
    assert_eq!(visit(&ids, 5, a), 0);
    ids.migrate(a, CpuId(1));
    assert_eq!((ids.at(CpuId(5)), ids.at(CpuId(1))), (None, Some((Cid(1), false))));
    let stats = ids.stats();
    assert_eq!((stats.moves, stats.freed_by_moves, stats.in_use), (1, 1, 1));
}

#[test]
fn a_move_frees_no_id_when_every_cpu_can_have_one() {
    for rules in [Rules::KeptPerCpu, Rules::CacheLocal] {
        let ids = ids(rules, 2, 0);
        let mut users = users(&ids, 2, 2);
        let [a, b] = &mut users[..] else { panic!("two users") };
        assert_eq!([visit(&ids, 0, a), visit(&ids, 1, b), visit(&ids, 1, a)], [0, 1, 1]);
        assert_eq!(ids.at(CpuId(0)), Some((Cid(0), false)), "{rules:?}");
        assert_eq!(ids.stats().freed_by_moves, 0);
    }
}

/// Returns whether a move frees the id that the user leaves. There are three CPUs. One user may use all of them;
/// the other, which moves, may use `its_cpus`.
fn frees_when_it_moves(rules: Rules, its_cpus: u32) -> bool {
    let ids = ids(rules, 3, 0);
    let (mut all, mut some) = (ids.add_user(0, &set(0..3)), ids.add_user(1, &set(0..its_cpus)));
    assert_eq!([visit(&ids, 0, &mut some), visit(&ids, 1, &mut all)], [0, 1]);
    ids.migrate(&some, CpuId(1));
    let stats = ids.stats();
    assert_eq!((stats.users, stats.nr_cpus_allowed, stats.moves), (2, 3, 0));
    assert_eq!(ids.at(CpuId(0)).is_none(), stats.freed_by_moves == 1);
    stats.freed_by_moves == 1
}

#[test]
fn kept_per_cpu_compares_users_with_the_movers_mask_and_cache_local_with_the_tenants() {
    assert!(frees_when_it_moves(Rules::KeptPerCpu, 3), "3 CPUs in its mask, 2 users");
    assert!(!frees_when_it_moves(Rules::KeptPerCpu, 2), "2 CPUs in its mask, 2 users");
    assert!(frees_when_it_moves(Rules::CacheLocal, 3) && frees_when_it_moves(Rules::CacheLocal, 2));
}

#[test]
fn a_changed_mask_counts_for_its_user_and_adds_new_cpus_to_the_tenant() {
    let ids = ids(Rules::KeptPerCpu, 8, 0);
    let (mut a, mut b) = (ids.add_user(0, &set([0])), ids.add_user(1, &set([1])));
    assert_eq!([visit(&ids, 0, &mut a), visit(&ids, 1, &mut b)], [0, 1]);
    assert!(!ids.needs_mask(CpuId(0), &mut a), "on its own CPU");
    assert!(!ids.needs_mask(CpuId(1), &mut a), "on a CPU in the tenant's set");
    assert!(ids.needs_mask(CpuId(5), &mut a));
    ids.allow_user(&mut a, &set([1, 5, 6, 99]));
    assert!(!ids.needs_mask(CpuId(5), &mut a));
    assert_eq!(ids.stats().nr_cpus_allowed, 4, "0, 1, 5 and 6; there is no 99");
    ids.migrate(&a, CpuId(1));
    assert_eq!((ids.at(CpuId(0)), ids.stats().freed_by_moves), (None, 1), "2 users, 3 CPUs in its mask");
    ids.allow_user(&mut b, &set([1, 0]));
    visit(&ids, 0, &mut a);
    ids.migrate(&b, CpuId(0));
    assert_eq!(ids.stats().freed_by_moves, 1, "2 users, 2 CPUs in its mask");
    assert_eq!(ids.stats().nr_cpus_allowed, 4, "the set does not shrink");
}

#[test]
fn a_changed_mask_is_needed_once_by_each_user_at_its_next_move() {
    let ids = ids(Rules::KeptPerCpu, 8, 0);
    let (mut a, mut b) = (ids.add_user(0, &set([0])), ids.add_user(1, &set([1])));
    assert_eq!([visit(&ids, 0, &mut a), visit(&ids, 1, &mut b)], [0, 1]);
    // As a caller that reads masks does: the tenant's set has the CPU before the user enters there.
    ids.allow(&set([0, 1, 2]));
    assert!(!ids.needs_mask(CpuId(1), &mut a));
    ids.notify_masks_changed();
    assert!(!ids.needs_mask(CpuId(0), &mut a), "on its own CPU");
    assert!(ids.needs_mask(CpuId(1), &mut a));
    ids.allow_user(&mut a, &set([0, 1, 2]));
    assert!(!ids.needs_mask(CpuId(1), &mut a), "needed once");
    ids.migrate(&a, CpuId(1));
    assert_eq!((ids.at(CpuId(0)), ids.stats().freed_by_moves), (None, 1), "2 users, 3 CPUs in its mask");
    assert!(ids.needs_mask(CpuId(0), &mut b), "the other user needs it too");
    let mut later = ids.add_user(2, &set([0]));
    assert!(!ids.needs_mask(CpuId(0), &mut later), "its mask is new");
    [a, b, later].into_iter().for_each(|user| ids.remove_user(user));
}

#[test]
fn before_6_13_an_id_may_be_picked_beyond_the_allowed_cpus() {
    // Two ids are in use, as many as CPUs are allowed.
    let used = SharedBits::new(8);
    (0..2).for_each(|cid| _ = used.insert(cid));
    let facts = Facts { users: 2, nr_cpus_allowed: 2, max_nr_cid: 2, in_use: 2, cpus: 8 };
    let pick = |policy: &dyn Policy| policy.pick(&facts, None, &Used(&used)).map(Pick::cid);
    assert_eq!([pick(&Lowest), pick(&KeptPerCpu), pick(&CacheLocal)], [Some(Cid(2)), Some(Cid(2)), None]);
    assert_eq!([Lowest.end(&facts), KeptPerCpu.end(&facts), CacheLocal.end(&facts)], [8, 8, 2]);
}

#[test]
fn a_move_to_a_cpu_beyond_all_masks_takes_no_other_users_id() {
    for rules in [Rules::KeptPerCpu, Rules::CacheLocal] {
        let ids = ids(rules, 8, 4);
        let mut users = users(&ids, 3, 2);
        let [a, b, c] = &mut users[..] else { panic!("three users") };
        visit(&ids, 0, a);
        ids.migrate(a, CpuId(5));
        let held = [hold(&ids, 0, b), hold(&ids, 1, c)];
        assert!(
            held.iter().all(|held| !held.is_overflow()),
            "{rules:?}: no user holds the ids of cpus 0 and 1"
        );
        let [on_0, on_1] = held;
        ids.leave(on_0, b);
        ids.leave(on_1, c);
    }
}

#[test]
fn a_cpu_whose_id_is_free_never_gives_an_overflow_id() {
    for rules in ALL {
        let ids = ids(rules, 8, 4);
        let mut users = users(&ids, 11, 8);
        (0..7).for_each(|cpu| _ = visit(&ids, cpu, &mut users[cpu as usize]));
        // 6 users stay. Under `KeptPerCpu` and `CacheLocal` 7 CPUs have an id.
        users.drain(6..).for_each(|user| ids.remove_user(user));
        let held = hold(&ids, 7, &mut users[0]);
        assert!(!held.is_overflow(), "{rules:?}: no user runs, and 7 CPUs have an id: {:?}", ids.stats());
        ids.leave(held, &mut users[0]);
    }
}
