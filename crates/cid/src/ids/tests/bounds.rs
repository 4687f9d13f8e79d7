//! The number of ids in use, and the highest of them.

use super::drive::ids;
use super::*;
use fastrand::Rng;

#[test]
fn four_threads_on_384_cpus_hold_four_ids_after_reentering_and_a_compaction() {
    for seed in 0..3000 {
        let ids = ids(Rules::CacheLocal, 384, 4);
        let mut users = users(&ids, 4, 384);
        let mut rng = Rng::with_seed(seed);
        let mut at = [(); 4].map(|()| rng.u32(..384));
        let mut held = [const { None }; 4];
        for _ in 0..40 {
            let index = rng.u32(..4) as usize;
            match held[index].take() {
                Some(guard) => ids.leave(guard, &mut users[index]),
                None => {
                    if rng.u32(..100) < 60 {
                        at[index] = rng.u32(..384);
                    }
                    held[index] = ids.enter(CpuId(at[index]), &mut users[index]);
                }
            }
            if rng.u32(..100) < 5 {
                ids.compact();
            }
        }
        let mut reenter = || {
            for index in 0..4 {
                if let Some(guard) = held[index].take() {
                    ids.leave(guard, &mut users[index]);
                    held[index] = ids.enter(CpuId(at[index]), &mut users[index]);
                }
            }
        };
        reenter();
        assert!(ids.compact() <= 4, "seed {seed}: {:?}", ids.stats());
        reenter();
        ids.compact();
        for held in held.into_iter().flatten().filter(|held| !held.is_overflow()) {
            assert!(held.cid().0 < 4, "seed {seed}: {}", held.cid());
        }
    }
}

#[test]
fn fewer_users_have_fewer_ids() {
    for rules in ALL {
        let ids = ids(rules, 384, 0);
        let mut users = users(&ids, 384, 384);
        let mut held: Vec<_> =
            users.iter_mut().zip(0..).map(|(user, cpu)| Some(hold(&ids, cpu, user))).collect();
        assert_eq!(ids.compact(), 384, "no id in use is taken");
        let mut last = users.pop().expect("the user on cpu 383");
        let on_383 = held.pop().flatten().expect("its id");
        assert_eq!(on_383.cid().0, 383);
        for (mut user, held) in users.into_iter().zip(held) {
            ids.leave(held.expect("an id"), &mut user);
            ids.remove_user(user);
        }
        ids.compact();
        assert_eq!(ids.at(CpuId(383)), Some((on_383.cid(), true)), "{rules:?} took an id in use");
        ids.leave(on_383, &mut last);
        // Lowest and CacheLocal recalled the id at the compaction above; KeptPerCpu takes it at one of these two.
        ids.compact();
        ids.compact();
        assert_eq!(visit(&ids, 383, &mut last), 0, "{rules:?}");
        assert!(ids.compact() <= 1);
        assert_eq!(ids.allocated(), [0..384, 384..384]);
    }
}

#[test]
fn an_id_above_the_bound_goes_back_at_the_first_reentry_after_a_compaction() {
    let ids = ids(Rules::CacheLocal, 8, 0);
    let mut users = users(&ids, 8, 8);
    (0..8).for_each(|cpu| assert_eq!(visit(&ids, cpu, &mut users[cpu as usize]), cpu));
    let mut last = users.pop().expect("a user");
    let held = hold(&ids, 7, &mut last);
    users.into_iter().for_each(|user| ids.remove_user(user));
    assert_eq!((ids.compact(), held.cid().0), (1, 7));
    ids.leave(held, &mut last);
    assert_eq!(ids.in_use(), 0);
    assert_eq!(visit(&ids, 7, &mut last), 0);
}

/// Leaves as a holder would that read the `cid_word` just before the recall set its flag there.
fn leave_unaware_of_a_recall(held: HeldCid<'_>) {
    held.pcpu_cid.expect("a pcpu_cid").leave();
}

#[test]
fn an_id_recalled_too_late_goes_back_at_the_next_entry() {
    for (index, is_old) in [(0, false), (0, true), (1, false), (1, true)] {
        let ids = ids(Rules::CacheLocal, 8, 0);
        let mut users = users(&ids, 8, 8);
        (0..8).for_each(|cpu| _ = visit(&ids, cpu, &mut users[cpu as usize]));
        users.swap(0, 7);
        let held = hold(&ids, 7, &mut users[0]);
        users.drain(2..).for_each(|user| ids.remove_user(user));
        ids.compact();
        leave_unaware_of_a_recall(held);
        if is_old {
            ids.pcpu_cids.pcpu_cid(CpuId(7)).mark_stale();
        }
        assert_eq!(ids.at(CpuId(7)), Some((Cid(7), false)));
        assert!(visit(&ids, 7, &mut users[index]) < 2, "user {index}, old: {is_old}");
        assert!(ids.compact() <= 2);
    }
}

#[test]
fn cpus_may_be_allowed_while_ids_are_held() {
    for rules in ALL {
        let ids = ids(rules, 64, 0);
        let mut users: Vec<_> = (0..4).map(|token| ids.add_user(token, &set([0]))).collect();
        let held = hold(&ids, 0, &mut users[0]);
        assert_eq!((ids.stats().nr_cpus_allowed, held.cid().0), (1, 0));
        ids.allow(&set([1, 2, 70]));
        assert_eq!(ids.stats().nr_cpus_allowed, 3, "cpu 70 is beyond the end");
        assert_eq!(ids.held_cid(&users[0]), Some(Cid(0)));
        let second = hold(&ids, 1, &mut users[1]);
        // No user was allowed on this CPU, but one runs there.
        let third = hold(&ids, 40, &mut users[2]);
        assert!(ids.is_allowed(CpuId(40)) && !ids.is_allowed(CpuId(41)));
        assert_eq!(ids.stats().nr_cpus_allowed, 4, "{rules:?}");
        assert_eq!([held.cid().0, second.cid().0, third.cid().0], [0, 1, 2], "{rules:?}");
        ids.leave(second, &mut users[1]);
        ids.leave(held, &mut users[0]);
        ids.leave(third, &mut users[2]);
    }
}

#[test]
fn cpus_above_1023_get_small_ids() {
    for rules in ALL {
        let ids = ids(rules, 8192, 0);
        let mut users: Vec<_> =
            (0..3).map(|token| ids.add_user(token, &set([0, 1024, 4095, 8191]))).collect();
        let held: Vec<_> = users
            .iter_mut()
            .zip([8191, 1024, 4095])
            .zip(0..)
            .map(|((user, cpu), cid)| {
                let held = hold(&ids, cpu, user);
                assert_eq!(held.cid(), Cid(cid));
                assert_eq!(ids.at(CpuId(cpu)), Some((Cid(cid), true)));
                held
            })
            .collect();
        assert_eq!(ids.compact(), 3);
        for (held, user) in held.into_iter().zip(&mut users) {
            ids.leave(held, user);
        }
        assert_eq!(ids.allocated(), [0..3, 8192..8192]);
    }
}
