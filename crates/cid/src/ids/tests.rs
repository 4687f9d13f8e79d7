//! Tests of the ids: comparisons with a simple model, and a test for each claim.
//!
//! `model` implements the rules a second time, and `drive` performs the same operations on the ids and on the
//! model and compares them. `bounds`, `cached`, `held` and `without` have a test for each claim.

mod bounds;
mod cached;
mod drive;
mod held;
mod model;
mod without;

use super::*;
use crate::pcpu_cid::pcpu_cids;
use crate::policy::{CacheLocal, KeptPerCpu, Lowest};
use drive::{Op, Pair, run};
use model::Rules;
use proptest::prelude::*;

type Plain = Ids<Box<[PcpuCid]>>;

const ALL: [Rules; 3] = [Rules::Lowest, Rules::KeptPerCpu, Rules::CacheLocal];

fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    cpus.into_iter().map(CpuId).collect()
}

/// `number` users, each allowed on the first `cpus` CPUs.
fn users(ids: &Plain, number: u32, cpus: u32) -> Vec<User> {
    (0..number).map(|token| ids.add_user(token, &set(0..cpus))).collect()
}

fn hold<'a>(ids: &'a Plain, cpu: u32, user: &mut User) -> HeldCid<'a> {
    ids.enter(CpuId(cpu), user).expect("an id")
}

/// Enters and leaves; returns the id that was held.
fn visit(ids: &Plain, cpu: u32, user: &mut User) -> u32 {
    let held = hold(ids, cpu, user);
    assert!(!held.is_overflow());
    let cid = held.cid().0;
    ids.leave(held, user);
    cid
}

/// Numbers of CPUs, and how many operations on each machine: 1.5 million per policy.
const MACHINES: [(u32, u32); 8] = [
    (1, 100_000),
    (2, 200_000),
    (3, 300_000),
    (8, 500_000),
    (64, 150_000),
    (65, 150_000),
    (384, 80_000),
    (8192, 20_000),
];

fn agrees(rules: Rules) {
    for (cpus, steps) in MACHINES {
        let steps_of_a_run = if cpus < 8 { 1000 } else { 5000 };
        (0..steps / steps_of_a_run).for_each(|seed| run(rules, cpus, seed.into(), steps_of_a_run));
    }
}

#[test]
fn lowest_agrees_with_its_model() {
    agrees(Rules::Lowest);
}

#[test]
fn kept_per_cpu_agrees_with_its_model() {
    agrees(Rules::KeptPerCpu);
}

#[test]
fn cache_local_agrees_with_its_model() {
    agrees(Rules::CacheLocal);
}

fn op(cpus: u32) -> impl Strategy<Value = Op> {
    let (index, cpu) = (0..6u32, 0..cpus);
    prop_oneof![
        2 => (cpu.clone(), 1..4u32).prop_map(|(first, len)| Op::Add { first, len }),
        1 => index.clone().prop_map(|index| Op::Remove { index }),
        6 => (index.clone(), proptest::option::of(cpu.clone())).prop_map(|(index, cpu)| Op::Enter { index, cpu }),
        4 => (index.clone(), 0..3u32).prop_map(|(index, guard)| Op::Leave { index, guard }),
        1 => (index.clone(), cpu.clone()).prop_map(|(index, cpu)| Op::Migrate { index, cpu }),
        1 => (index, cpu.clone(), 0..4u32).prop_map(|(index, first, len)| Op::Mask { index, first, len }),
        1 => cpu.prop_map(|cpu| Op::Allow { cpu }),
        2 => Just(Op::Compact),
        1 => any::<u32>().prop_map(|salt| Op::CompactIf { salt }),
    ]
}

fn history() -> impl Strategy<Value = (u32, u32, Vec<Op>)> {
    (1u32..9, 0u32..4).prop_flat_map(|(cpus, overflow)| {
        (Just(cpus), Just(overflow), proptest::collection::vec(op(cpus), 0..80))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn every_policy_agrees_with_its_model_in_short_histories((cpus, overflow, ops) in history()) {
        for rules in ALL {
            let ids = drive::ids(rules, cpus, overflow);
            let mut pair = Pair::new(&ids, rules, overflow);
            for op in &ops {
                pair.step(*op);
                pair.check_all();
            }
            pair.settles();
        }
    }
}
