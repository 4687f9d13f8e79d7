//! Ids that a user holds: from the entry until the leave.

use super::drive::ids;
use super::*;
use fastrand::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

#[test]
fn nested_entries_get_the_same_id_and_may_leave_in_any_order() {
    for rules in ALL {
        for last in 0..3 {
            let ids = ids(rules, 4, 0);
            let mut users = users(&ids, 1, 4);
            let user = &mut users[0];
            let mut guards: Vec<_> = [2, 2, 3].map(|cpu| Some(hold(&ids, cpu, user))).into();
            assert!(guards.iter().flatten().all(|held| held.cid() == Cid(0)));
            let last = guards[last].take().expect("a guard");
            for guard in guards.into_iter().flatten() {
                ids.leave(guard, user);
                assert_eq!(ids.held_cid(user), Some(Cid(0)));
                ids.compact();
                assert_eq!(ids.held_cid(user), Some(Cid(0)));
            }
            ids.leave(last, user);
            assert!(!ids.holds(user));
            ids.compact();
            ids.compact();
            assert_eq!(ids.in_use(), 0, "{rules:?}");
        }
    }
}

#[test]
fn a_user_that_moves_while_it_holds_keeps_its_id_until_it_leaves() {
    let ids = ids(Rules::CacheLocal, 4, 1);
    let mut users = users(&ids, 2, 4);
    let [a, b] = &mut users[..] else { panic!("two users") };
    let held = hold(&ids, 0, a);
    ids.migrate(a, CpuId(3));
    assert_eq!(ids.at(CpuId(0)), Some((held.cid(), true)), "an id in use does not move");
    let nested = hold(&ids, 3, a);
    assert_eq!((nested.cid(), ids.at(CpuId(3))), (held.cid(), None));
    let other = hold(&ids, 0, b);
    assert!(other.is_overflow(), "the id of cpu 0 is in use until its user leaves");
    let cid = held.cid();
    ids.leave(nested, a);
    ids.leave(held, a);
    ids.leave(other, b);
    assert_eq!(visit(&ids, 3, a), cid.0, "now its id follows");
    assert_eq!((ids.at(CpuId(0)), ids.stats().moves), (None, 1));
}

#[test]
fn overflow_ids_run_out_and_come_back() {
    for rules in ALL {
        let ids = ids(rules, 2, 2);
        let mut users = users(&ids, 4, 2);
        let [a, b, c, d] = &mut users[..] else { panic!("four users") };
        let on_cpu = hold(&ids, 1, a);
        let [first, second] = [hold(&ids, 1, b), hold(&ids, 1, c)];
        assert_eq!([&on_cpu, &first, &second].map(|held| held.is_overflow()), [false, true, true]);
        assert_eq!([on_cpu.cid().0, first.cid().0, second.cid().0], [0, 2, 3]);
        assert_eq!(ids.allocated(), [0..1, 2..4]);
        assert!(ids.enter(CpuId(1), d).is_none() && !ids.holds(d));
        let stats = ids.stats();
        assert_eq!((stats.overflow_in_use, stats.overflows, stats.in_use), (2, 2, 1));
        ids.leave(first, b);
        let third = hold(&ids, 1, d);
        assert_eq!((third.cid().0, third.is_overflow()), (2, true));
        ids.leave(on_cpu, a);
        ids.leave(second, c);
        ids.leave(third, d);
        assert_eq!(ids.stats().overflow_in_use, 0);
        assert_eq!(visit(&ids, 1, d), 0, "the CPU's id is free again");
    }
}

#[test]
fn a_user_with_an_overflow_id_gets_the_same_one_on_every_cpu() {
    for rules in ALL {
        let ids = ids(rules, 2, 2);
        let mut users = users(&ids, 2, 2);
        let [a, b] = &mut users[..] else { panic!("two users") };
        visit(&ids, 0, a);
        let other = hold(&ids, 1, b);
        let overflow = hold(&ids, 1, a);
        assert!(overflow.is_overflow());
        // The user moves back while it holds the overflow id. Except under `Lowest`, CPU 0 still has the id of its
        // visit.
        let nested = hold(&ids, 0, a);
        assert_eq!(nested.cid(), overflow.cid(), "{rules:?}");
        ids.leave(nested, a);
        assert!(ids.holds(a));
        ids.leave(overflow, a);
        assert!(!ids.holds(a));
        ids.leave(other, b);
    }
}

#[test]
fn leaving_with_another_user_frees_no_id_in_use() {
    let ids = ids(Rules::Lowest, 2, 2);
    let mut users = users(&ids, 3, 2);
    let [a, b, c] = &mut users[..] else { panic!("three users") };
    let on_0 = hold(&ids, 0, a);
    let on_1 = hold(&ids, 1, b);
    // `b` leaves with the id of `a`: a panic is as acceptable as freeing the id of `a`.
    _ = catch_unwind(AssertUnwindSafe(|| ids.leave(on_0, b)));
    if let Some(third) = ids.enter(CpuId(0), c) {
        assert_ne!(third.cid(), on_1.cid(), "{on_1:?} is still held");
    }
}

/// Subtracts one from the number of running threads when dropped, also after a panic: the test runs until it is 0.
struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[test]
fn threads_that_race_with_moves_and_compactions_never_share_an_id() {
    const THREADS: u32 = 4;
    const CPUS: u32 = 3;
    for rules in ALL {
        let ids = ids(rules, CPUS, THREADS);
        let taken: Vec<_> = (0..CPUS + THREADS).map(|_| AtomicBool::new(false)).collect();
        let running = AtomicU32::new(THREADS);
        std::thread::scope(|scope| {
            for token in 0..THREADS {
                let (ids, taken, running) = (&ids, &taken, &running);
                scope.spawn(move || {
                    let _running = Running(running);
                    let mut rng = Rng::with_seed(token.into());
                    let mut user = ids.add_user(token, &set(0..CPUS));
                    let mut cpu = 0;
                    for round in 0..20_000 {
                        if rng.u32(..100) < 20 {
                            cpu = rng.u32(..CPUS);
                        }
                        let held = hold(ids, cpu, &mut user);
                        let slot = &taken[held.cid().index()];
                        assert!(!slot.swap(true, Relaxed), "{rules:?}: two threads hold {}", held.cid());
                        if rng.u32(..100) < 5 {
                            std::thread::yield_now();
                        }
                        slot.store(false, Relaxed);
                        ids.leave(held, &mut user);
                        if round % 500 == 499 {
                            ids.remove_user(user);
                            user = ids.add_user(token, &set(0..CPUS));
                        }
                    }
                    ids.remove_user(user);
                });
            }
            while running.load(Relaxed) > 0 {
                ids.compact();
                std::thread::yield_now();
            }
        });
        ids.compact();
        ids.compact();
        assert_eq!((ids.in_use(), ids.stats().users), (0, 0), "{rules:?}");
    }
}

#[test]
#[should_panic(expected = "cpu8, and there are 8 CPU numbers")]
fn entering_on_a_cpu_beyond_the_end_panics_with_the_numbers() {
    let ids = ids(Rules::CacheLocal, 8, 0);
    let mut user = ids.add_user(0, &set([0]));
    visit(&ids, 0, &mut user);
    visit(&ids, 8, &mut user);
}

#[test]
#[should_panic(expected = "still holds an id")]
fn a_user_that_holds_an_id_cannot_be_removed() {
    let ids = ids(Rules::CacheLocal, 1, 0);
    let mut user = ids.add_user(0, &set([0]));
    let _held = hold(&ids, 0, &mut user);
    ids.remove_user(user);
}

#[test]
fn every_token_but_the_three_highest_fits_in_a_state_word() {
    let ids = ids(Rules::CacheLocal, 1, 0);
    let mut user = ids.add_user(u32::MAX - 3, &set([0]));
    let held = hold(&ids, 0, &mut user);
    assert!(ids.holds(&user));
    ids.leave(held, &mut user);
    for token in u32::MAX - 2..=u32::MAX {
        let added = catch_unwind(AssertUnwindSafe(|| ids.add_user(token, &set([]))));
        assert!(added.is_err(), "token {token}");
    }
    assert_eq!(ids.stats().users, 1, "a refused user is not counted");
}
