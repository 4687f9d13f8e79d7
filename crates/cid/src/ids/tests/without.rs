//! Policies without one of their rules, and entries without a `HeldCid`.

use super::*;
use crate::policy::{self, Policy, Rule, Without};
use std::collections::BTreeMap;

/// Users enter, leave, move and pause: no id is ever held twice, and every id is below the number of CPUs and overflow
/// ids.
fn stays_unique(policy: &'static dyn Policy, seed: u64) {
    const CPUS: u32 = 5;
    let (ids, mut rng) = (Ids::new(pcpu_cids(CPUS), 8, policy), fastrand::Rng::with_seed(seed));
    let mut all: Vec<User> = users(&ids, 8, CPUS);
    let mut held: BTreeMap<usize, (u32, Cid)> = BTreeMap::new();
    for _ in 0..2000 {
        let index = rng.usize(..all.len());
        let cpu = rng.u32(..CPUS);
        match rng.u32(..10) {
            0 => _ = ids.compact(),
            _ if held.contains_key(&index) => {
                assert!(ids.leave_unguarded(&mut all[index]), "the user holds an id");
                held.remove(&index);
            }
            1 => ids.migrate(&all[index], CpuId(cpu)),
            _ if held.values().all(|(on, _)| *on != cpu) => {
                let cid = ids.enter_unguarded(CpuId(cpu), &mut all[index]).expect("an id");
                assert!(
                    cid.0 < CPUS + 8 && held.values().all(|(_, other)| *other != cid),
                    "{policy:?}: {cid}"
                );
                held.insert(index, (cpu, cid));
            }
            _ => {}
        }
    }
    all.iter_mut().for_each(|user| _ = ids.leave_unguarded(user));
    all.into_iter().for_each(|user| ids.remove_user(user));
}

/// The policy without one rule, for each of the rules in the order of [`Rule`].
const fn of(policy: &'static dyn Policy) -> [Without; 6] {
    [
        Without::new(policy, Rule::Keep),
        Without::new(policy, Rule::Expire),
        Without::new(policy, Rule::Recent),
        Without::new(policy, Rule::Expand),
        Without::new(policy, Rule::Follow),
        Without::new(policy, Rule::Bound),
    ]
}

static ALL_WITHOUT: [[Without; 6]; 3] = [of(policy::ALL[0]), of(policy::ALL[1]), of(policy::ALL[2])];

#[test]
fn ids_are_unique_whichever_rule_is_missing() {
    for policy in ALL_WITHOUT.iter().flatten() {
        (0..20).for_each(|seed| stays_unique(policy, seed));
    }
}

#[test]
fn a_missing_rule_has_no_effect_left() {
    static CASES: [Without; 6] = of(&CacheLocal);
    let run = |policy: &'static dyn Policy| {
        let ids: Plain = Ids::new(pcpu_cids(4), 0, policy);
        let mut all = users(&ids, 3, 4);
        let first: Vec<u32> = (0..3).map(|i| visit(&ids, i as u32, &mut all[i])).collect();
        ids.compact();
        ids.compact();
        let kept = ids.in_use();
        let again = visit(&ids, 2, &mut all[2]);
        let stats = ids.stats();
        all.into_iter().for_each(|user| ids.remove_user(user));
        (first, kept, again, stats)
    };
    let (first, kept, again, _) = run(&CacheLocal);
    assert_eq!((first, kept, again), (vec![0, 1, 2], 0, 2));
    let by = |rule: Rule| run(&CASES[rule as usize]);
    assert_eq!(by(Rule::Expire).1, 3, "nothing is taken back");
    assert_eq!(by(Rule::Recent).2, 0, "the lowest one after a pause");
    assert_eq!(by(Rule::Expand).3.expansions, 0, "the lowest one from the beginning");
    assert_eq!((by(Rule::Keep).1, by(Rule::Keep).3.compacted), (0, 0), "no id is left to take");
}

#[test]
fn entries_with_and_without_a_held_cid_are_left_separately() {
    let ids: Plain = Ids::new(pcpu_cids(2), 0, &CacheLocal);
    let mut user = users(&ids, 1, 2).remove(0);
    assert!(!ids.leave_unguarded(&mut user), "the user holds no id");
    let guard = hold(&ids, 1, &mut user);
    assert!(!ids.leave_unguarded(&mut user) && ids.holds(&user), "the entry with a HeldCid stays");
    assert_eq!(ids.enter_unguarded(CpuId(1), &mut user), Some(guard.cid()));
    assert!(ids.leave_unguarded(&mut user) && ids.holds(&user));
    ids.leave(guard, &mut user);
    assert!(!ids.holds(&user) && !ids.leave_unguarded(&mut user));
    ids.remove_user(user);
}
