//! Owned: ids that belong to tasks, and how they change their owner.

use super::drive::ids;
use super::*;

#[test]
fn ids_follow_tasks_while_there_are_few() {
    let ids = ids(Rules::TaskOwned, 8, 0);
    let mut users = users(&ids, 8, 8);
    for round in 0..8 {
        for (n, user) in users.iter_mut().enumerate() {
            assert_eq!(visit(&ids, (n as u32 + round) % 8, user), n as u32);
        }
        ids.compact();
    }
    assert_eq!((ids.stats().lowest, ids.in_use()), (8, 8));
    ids.remove_user(users.remove(3));
    assert_eq!(ids.in_use(), 7, "its own id is free");
}

#[test]
fn a_change_of_owner_and_back_loses_no_id() {
    // 10 ids: a quarter more than the 8 CPUs allowed, and there are as many CPUs.
    let ids = ids(Rules::TaskOwned, 10, 4);
    let mut users = users(&ids, 10, 8);
    let mut held: Vec<_> = users
        .iter_mut()
        .zip(0..)
        .map(|(user, n)| {
            let held = hold(&ids, n % 8, user);
            assert_eq!(held.cid().0, n);
            held
        })
        .collect();
    // One user too many: ids belong to CPUs from now on, and those held go back on leaving.
    users.push(ids.add_user(10, &set([])));
    assert_eq!(ids.compact(), 10);
    for (held, user) in held.drain(..).zip(&mut users) {
        ids.leave(held, user);
    }
    assert_eq!(ids.in_use(), 0);
    for cpu in 0..8 {
        let first = visit(&ids, cpu, &mut users[cpu as usize]);
        assert_eq!(visit(&ids, cpu, &mut users[10]), first, "the id is the CPU's");
    }
    assert_eq!(ids.in_use(), 8);
    let on_cpu = hold(&ids, 2, &mut users[2]);
    // 5 are half of the machine, which is less than three quarters of 8: 4 own their ids again.
    while users.len() > 5 {
        ids.remove_user(users.pop().expect("a user"));
    }
    assert_eq!(ids.in_use(), 8);
    ids.remove_user(users.pop().expect("a user"));
    assert_eq!(ids.in_use(), 1, "all but the one in use");
    ids.leave(on_cpu, &mut users[2]);
    assert_eq!(ids.in_use(), 0);
    for cpu in [0, 7, 3] {
        assert_eq!([0, 1, 2, 3].map(|n| visit(&ids, cpu, &mut users[n])), [0, 1, 2, 3]);
    }
    assert_eq!(ids.in_use(), 4);
}

#[test]
fn a_compaction_does_not_forget_who_was_asked_by_a_change_of_owner() {
    let ids = ids(Rules::TaskOwned, 2, 0);
    let mut users = users(&ids, 2, 2);
    let held = hold(&ids, 0, &mut users[0]);
    users.push(ids.add_user(2, &set([])));
    ids.compact();
    ids.leave(held, &mut users[0]);
    assert_eq!(ids.in_use(), 0, "the id was its task's, and tasks own none now");
    let [first, second] = [0, 1].map(|n| visit(&ids, 1, &mut users[n]));
    assert_eq!(first, second, "the id is the CPU's");
    assert_eq!(ids.at(CpuId(1)), Some((Cid(first), false)));
}

#[test]
fn a_user_that_takes_its_own_id_along_counts_the_cpu_in_where_it_enters() {
    let ids = ids(Rules::TaskOwned, 8, 0);
    let mut user = ids.add_user(0, &set([0]));
    visit(&ids, 0, &mut user);
    visit(&ids, 5, &mut user);
    assert!(ids.is_allowed(CpuId(5)));
    assert_eq!(ids.stats().nr_cpus_allowed, 2);
}

#[test]
#[should_panic(expected = "cpu9, and there are 8 CPU numbers")]
fn entering_beyond_the_end_panics_also_with_an_id_of_ones_own() {
    let ids = ids(Rules::TaskOwned, 8, 0);
    let mut user = ids.add_user(0, &set([0]));
    visit(&ids, 0, &mut user);
    visit(&ids, 9, &mut user);
}
