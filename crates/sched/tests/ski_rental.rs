//! Compares the cost of a task's wakes under Home with two other rules: the task always stays on its CPU, or always
//! follows its waker.
//!
//! One task and some CPUs in one LLC. A wake by another CPU costs a kick if the task's CPU is parked, and a hand-over
//! if it runs; a move costs the migration cost.

mod common;

use common::{Facts, drawn, whole};
use warmcore_sched::{Home, Policy, SchedDomains, TargetQueue, Wake, WakeSource, Wakee};
use warmcore_types::{CpuId, Nanos};

/// The largest ratio of Home's cost, less one migration, to the better of the other two, with one waker, whatever it
/// does.
const RATIO_MAX: u64 = 2;
/// The largest ratio with random wakers in the long run: a tenth more, for chance.
const RATIO_BY_CHANCE_MAX: f64 = 2.2;

/// One wake: the CPU that wakes, and whether the task's CPU is parked.
type Call = (u32, bool);

/// How much more a wake on the previous CPU costs than a wake on the waker's CPU, as the policy computes it.
fn price(machine: &SchedDomains, facts: &mut Facts, home: u32, idle: bool) -> u64 {
    facts.cpus[home as usize].idle = idle;
    let wakee = Wakee {
        first_poll: Nanos(0),
        prev_cpu: Some(CpuId(home)),
        migration_cost: Nanos(u64::MAX),
        ..Wakee::default()
    };
    let waker = WakeSource::Cpu(CpuId(home ^ 1));
    let placed = Home::DEFAULT.wake(machine, facts, &Wake { now: Nanos(0), wakee, waker });
    facts.cpus[home as usize].idle = false;
    placed.accrued_cost.0
}

struct Paid {
    home: u64,
    by_staying: u64,
    by_following: u64,
}

fn pay(machine: &SchedDomains, migration_cost: u64, calls: impl IntoIterator<Item = Call>) -> Paid {
    let mut facts = Facts::busy(machine);
    let (kick, hand_over) = (price(machine, &mut facts, 0, true), price(machine, &mut facts, 0, false));
    let (mut at, mut accrued_cost, mut followed) = (0, Nanos(0), 0);
    let mut paid = Paid { home: 0, by_staying: 0, by_following: 0 };
    for (waker, idle) in calls {
        let cost = |at: u32| {
            if waker == at {
                0
            } else if idle {
                kick
            } else {
                hand_over
            }
        };
        paid.by_staying += cost(0);
        if waker != followed {
            (followed, paid.by_following) = (waker, paid.by_following + migration_cost);
        }
        facts.cpus[at as usize].idle = idle && waker != at;
        let wakee = Wakee {
            prev_cpu: Some(CpuId(at)),
            migration_cost: Nanos(migration_cost),
            accrued_cost,
            ..Wakee::default()
        };
        let wake = Wake { now: Nanos(0), wakee, waker: WakeSource::Cpu(CpuId(waker)) };
        let placed = Home::DEFAULT.wake(machine, &facts, &wake);
        facts.cpus[at as usize].idle = false;
        let TargetQueue::Cpu(to) = placed.to else { panic!("{placed:?}") };
        paid.home += if to.0 == at { cost(at) } else { migration_cost };
        (at, accrued_cost) = (to.0, placed.accrued_cost);
    }
    paid
}

struct Chance(u64);

impl Chance {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[test]
fn against_one_waker_home_pays_at_most_twice_the_better_of_staying_and_following() {
    let machine = whole(&drawn(1, 1, 2, 1));
    let mut chance = Chance(1);
    for round in 0..2000 {
        let migration_cost = chance.next(400_000);
        let calls: Vec<Call> = (0..chance.next(300)).map(|_| (1, chance.next(3) == 0)).collect();
        let Paid { home, by_staying, by_following } = pay(&machine, migration_cost, calls);
        assert!(
            home <= RATIO_MAX * by_staying.min(by_following) + migration_cost,
            "round {round}: {home} ns; {by_staying} by staying, {by_following} by following, migration_cost {migration_cost}"
        );
    }
}

#[test]
fn against_random_wakers_home_pays_about_twice_the_better_at_most() {
    let mut chance = Chance(2);
    let mut worst = 0.0;
    for cpus in [2, 3, 4, 8, 16] {
        let machine = whole(&drawn(1, 1, cpus, 1));
        for _ in 0..60 {
            let migration_cost = 1_000 + chance.next(399_000);
            let weights: Vec<u64> = (0..cpus).map(|_| 1 + chance.next(100).pow(2)).collect();
            let sleeps = chance.next(101);
            let all: u64 = weights.iter().sum();
            let calls: Vec<Call> = (0..20_000)
                .map(|_| {
                    let mut at = chance.next(all);
                    let waker = weights.iter().position(|weight| {
                        let is_here = at < *weight;
                        at = at.saturating_sub(*weight);
                        is_here
                    });
                    (waker.unwrap_or(0) as u32, chance.next(100) < sleeps)
                })
                .collect();
            let Paid { home, by_staying, by_following } = pay(&machine, migration_cost, calls);
            let best = by_staying.min(by_following);
            let ratio = home.saturating_sub(migration_cost) as f64 / best as f64;
            worst = f64::max(worst, ratio);
            assert!(
                ratio <= RATIO_BY_CHANCE_MAX,
                "{cpus} CPUs, weights {weights:?}, {sleeps} % asleep: {home} ns; {by_staying} by staying, \
                 {by_following} by following, migration_cost {migration_cost}"
            );
        }
    }
    println!("worst ratio by chance: {worst:.2}");
}

/// The largest ratio does not hold for these wakers, because a task remembers only its last waker. No rule that does
/// not know the future could keep a ratio of 2 here: with two CPUs and a cost of changing between them, 3 is the best
/// possible.
#[test]
fn wakers_that_know_the_rule_make_home_pay_more() {
    let machine = whole(&drawn(1, 1, 2, 1));
    let migration_cost = 64_000_u64;
    // One CPU wakes the task until the task moves there, then the other CPU does.
    let kicks = migration_cost.div_ceil(price(&machine, &mut Facts::busy(&machine), 0, true)) as u32;
    let calls = (0..1000 * kicks).map(|i| (1 - i / kicks % 2, true));
    let Paid { home, by_staying, by_following } = pay(&machine, migration_cost, calls);
    let ratio = home as f64 / by_staying.min(by_following) as f64;
    println!("led about: {ratio:.2}");
    assert!((2.0..=4.0).contains(&ratio), "{home}; {by_staying} by staying, {by_following} by following");
}
