//! The imitation of Linux 6.19's ids: how ids change their owner, and what holds after any history.

use super::*;
use crate::random::{Purpose, Random, below};

fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    cpus.into_iter().map(CpuId).collect()
}

/// A process of this many tasks, each allowed on the first `allowed` CPUs.
fn process(cpus: u32, overflow: u32, tasks: u32, allowed: u32) -> TaskOwnedCids {
    let mut cids = TaskOwnedCids::new(cpus, overflow);
    (0..tasks).for_each(|task| cids.add_task(task, &set(0..allowed)));
    cids
}

/// Enters and leaves. Returns the id that the task had.
fn visit(cids: &mut TaskOwnedCids, cpu: u32, task: u32) -> u32 {
    let cid = cids.enter(task, CpuId(cpu)).expect("an id");
    assert!(cid.0 < cids.cpus, "{cid} is an overflow id");
    cids.leave(task);
    cid.0
}

fn in_use(cids: &TaskOwnedCids) -> u32 {
    cids.stats().in_use
}

#[test]
fn ids_follow_tasks_while_tasks_are_few() {
    let mut cids = process(8, 0, 8, 8);
    for round in 0..8 {
        for task in 0..8 {
            assert_eq!(visit(&mut cids, (task + round) % 8, task), task);
        }
        cids.compact();
    }
    assert_eq!((cids.stats().lowest, in_use(&cids)), (8, 8));
    cids.remove_task(3);
    assert_eq!(in_use(&cids), 7, "the id of the removed task is free");
}

#[test]
fn a_change_of_owner_and_back_loses_no_id() {
    // 10 ids: a quarter more than the 8 CPUs allowed, and there are as many CPUs.
    let mut cids = process(10, 4, 10, 8);
    for task in 0..10 {
        assert_eq!(cids.enter(task, CpuId(task % 8)), Some(Cid(task)));
    }
    // One task too many: ids belong to CPUs from now on, and those held are freed on leaving.
    cids.add_task(10, &set([]));
    cids.compact();
    assert_eq!(in_use(&cids), 10);
    (0..10).for_each(|task| cids.leave(task));
    assert_eq!(in_use(&cids), 0);
    for cpu in 0..8 {
        let first = visit(&mut cids, cpu, cpu);
        assert_eq!(visit(&mut cids, cpu, 10), first, "the id is the CPU's");
    }
    assert_eq!(in_use(&cids), 8);
    cids.enter(2, CpuId(2)).expect("an id");
    // 5 tasks are half of the machine's 10 CPUs, which is less than three quarters of 8: from 4 tasks on down, ids
    // belong to tasks again.
    (5..=10).rev().for_each(|task| cids.remove_task(task));
    assert_eq!(in_use(&cids), 8);
    cids.remove_task(4);
    assert_eq!(in_use(&cids), 1, "all but the one in use");
    cids.leave(2);
    assert_eq!(in_use(&cids), 0);
    for cpu in [0, 7, 3] {
        assert_eq!([0, 1, 2, 3].map(|task| visit(&mut cids, cpu, task)), [0, 1, 2, 3]);
    }
    assert_eq!(in_use(&cids), 4);
}

#[test]
fn a_compaction_keeps_an_id_recalled_by_a_change_of_owner() {
    let mut cids = process(2, 0, 2, 2);
    cids.enter(0, CpuId(0)).expect("an id");
    cids.add_task(2, &set([]));
    cids.compact();
    cids.leave(0);
    assert_eq!(in_use(&cids), 0, "the id was its task's, and tasks own none now");
    let [first, second] = [0, 1].map(|task| visit(&mut cids, 1, task));
    assert_eq!(first, second, "the id is the CPU's");
    assert_eq!(cids.at(CpuId(1)), Some((Cid(first), false)));
}

#[test]
fn a_task_with_its_own_id_adds_the_cpu_where_it_enters() {
    let mut cids = process(8, 0, 0, 0);
    cids.add_task(0, &set([0]));
    visit(&mut cids, 0, 0);
    visit(&mut cids, 5, 0);
    assert!(cids.allowed.contains(&5));
    assert_eq!(cids.stats().nr_cpus_allowed, 2);
}

#[test]
#[should_panic(expected = "cpu9, and there are 8 CPU numbers")]
fn entering_beyond_the_last_cpu_panics_also_with_an_id_of_the_task() {
    let mut cids = process(8, 0, 0, 0);
    cids.add_task(0, &set([0]));
    visit(&mut cids, 0, 0);
    visit(&mut cids, 9, 0);
}

/// Tasks come, go, move and lose their CPU while they hold an id.
fn random_history(seed: u64) {
    const CPUS: u32 = 6;
    const OVERFLOW: u32 = 3;
    let random = Random::new(seed);
    let mut draws = 0;
    let mut draw = |end: u32| {
        draws += 1;
        below(random.bits(0, Purpose::Load, draws), u64::from(end)) as u32
    };
    let mut cids = process(CPUS, OVERFLOW, 0, 0);
    let mut held: BTreeMap<u32, Option<Cid>> = BTreeMap::new();
    let mut next_task = 0;
    for _ in 0..400 {
        let task =
            (!held.is_empty()).then(|| *held.keys().nth(draw(held.len() as u32) as usize).expect("a task"));
        match (draw(12), task) {
            (0 | 1, _) if held.len() < 14 => {
                cids.add_task(next_task, &set(0..draw(CPUS + 2)));
                held.insert(next_task, None);
                next_task += 1;
            }
            (2, Some(task)) => {
                cids.leave(task);
                cids.remove_task(task);
                held.remove(&task);
            }
            (3, _) => cids.compact(),
            (_, Some(task)) if held[&task].is_some() => {
                assert_eq!(cids.held_cid(task), held[&task], "the id changed while task {task} held it");
                cids.leave(task);
                held.insert(task, None);
            }
            (_, Some(task)) => {
                let cid = cids.enter(task, CpuId(draw(CPUS)));
                assert!(cid.is_none_or(|cid| cid.0 < CPUS + OVERFLOW), "{cid:?}");
                assert!(cid.is_none() || held.values().all(|other| *other != cid), "two tasks hold {cid:?}");
                held.insert(task, cid);
            }
            (_, None) => {}
        }
        let in_use: BTreeSet<u32> = cids.owned.values().map(|owned| owned.cid).collect();
        assert_eq!((&in_use, in_use.len()), (&cids.used, cids.owned.len()), "an id has two owners");
        assert!(cids.owned.iter().all(|(owner, owned)| {
            cids.is_current_owner(*owner) || owned.holder.is_some() && owned.is_recalled
        }));
    }
}

#[test]
fn in_any_history_no_two_tasks_hold_the_same_id_and_former_owners_keep_none() {
    (0..200).for_each(random_history);
}
