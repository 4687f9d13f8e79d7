//! Policies without one of their rules, and ids without guards.

use super::*;
use crate::policy::{self, Policy, Rule, Without};
use std::collections::BTreeMap;

/// Numbers that look random, the same ever.
fn next(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    (*state >> 33) as u32
}

/// Users come, go, move and pause: no id is ever held twice, and none is above what there is.
fn stays_unique(policy: &'static dyn Policy, seed: u64) {
    const CPUS: u32 = 5;
    let (ids, mut state) = (Ids::new(pcpu_cids(CPUS), 8, policy), seed);
    let mut all: Vec<User> = users(&ids, 8, CPUS);
    let mut held: BTreeMap<usize, (u32, Cid)> = BTreeMap::new();
    for _ in 0..2000 {
        let who = next(&mut state) as usize % all.len();
        let cpu = next(&mut state) % CPUS;
        match next(&mut state) % 10 {
            0 => _ = ids.compact(),
            _ if held.contains_key(&who) => {
                assert!(ids.leave_unguarded(&mut all[who]), "it holds one");
                held.remove(&who);
            }
            1 => ids.migrate(&all[who], CpuId(cpu)),
            _ if held.values().all(|(on, _)| *on != cpu) => {
                let cid = ids.enter_unguarded(CpuId(cpu), &mut all[who]).expect("an id");
                assert!(
                    cid.0 < CPUS + 8 && held.values().all(|(_, other)| *other != cid),
                    "{policy:?}: {cid}"
                );
                held.insert(who, (cpu, cid));
            }
            _ => {}
        }
    }
    all.iter_mut().for_each(|user| _ = ids.leave_unguarded(user));
    all.into_iter().for_each(|user| ids.remove_user(user));
}

/// In the order of [`Rule::ALL`].
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
fn without_any_rule_ids_are_still_unique() {
    for policy in ALL_WITHOUT.iter().flatten() {
        (0..20).for_each(|seed| stays_unique(policy, seed));
    }
}

#[test]
fn a_rule_that_is_taken_away_is_gone() {
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
    assert_eq!((by(Rule::Keep).1, by(Rule::Keep).3.compacted), (0, 0), "nothing is left to take");
}

#[test]
fn with_and_without_a_guard_each_gives_back_its_own() {
    let ids: Plain = Ids::new(pcpu_cids(2), 0, &CacheLocal);
    let mut user = users(&ids, 1, 2).remove(0);
    assert!(!ids.leave_unguarded(&mut user), "it holds none");
    let guard = hold(&ids, 1, &mut user);
    assert!(!ids.leave_unguarded(&mut user) && ids.holds(&user), "what stands in a guard stays");
    assert_eq!(ids.enter_unguarded(CpuId(1), &mut user), Some(guard.cid()));
    assert!(ids.leave_unguarded(&mut user) && ids.holds(&user));
    ids.leave(guard, &mut user);
    assert!(!ids.holds(&user) && !ids.leave_unguarded(&mut user));
    ids.remove_user(user);
}
