//! The decisions of `src/bpf/policy.h`, compiled natively: the same text that the BPF program has.

use std::ops::RangeInclusive;

const NEVER: u64 = u64::MAX;
const RESIDENT: u64 = 1024;
const US: u64 = 1000;
const MS: u64 = 1000 * US;
/// Bits of `warm_place_cost`'s last argument.
const RESIDENTS: u32 = 1;
const RETURN: u32 = 2;
const SIBLING: u32 = 4;

/// The order of `enum pol_hand`.
#[derive(Debug, PartialEq)]
enum Hand {
    Yes,
    Stranger,
    Far,
    Queued,
    RunsOn,
    Bounces,
    New,
    Idle,
}

unsafe extern "C" {
    safe fn warm_is_news(sample: u64, mean: u64) -> bool;
    safe fn warm_mean(mean: u64, sample: u64) -> u64;
    safe fn warm_is_late(ran: u64, mean: u64) -> bool;
    safe fn warm_epoch(now: u64) -> u64;
    safe fn warm_residents(epoch_of_count: u64, cur: i64, prev: i64, epoch: u64) -> u64;
    safe fn warm_place_cost(
        residents: u64,
        return_in: u64,
        mean_run: u64,
        sibling_busy: bool,
        priced: u32,
    ) -> u64;
    safe fn warm_hand_over(
        is_partner: bool,
        is_near: bool,
        home_idles: bool,
        busy: u64,
        hand_pair: u64,
        pair: u64,
        queued: u64,
        post: u64,
        hand: u64,
        bounce: u64,
    ) -> u32;
    safe fn warm_bounce(bounce: u64, is_charged: bool) -> u64;
    safe fn warm_pair(pair: u64, hand: u32) -> u64;
    safe fn warm_wait(llc_is_full: bool, left: u64, queued: u64, waits: u64, pair: u64, busy: u64) -> u32;
    safe fn warm_may_steal(age: u64, bound: u64, left: u64, stay: u64, queued: u64, is_orphan: bool) -> bool;
    safe fn warm_llc_first(llc_vtime: u64, home_vtime: u64) -> bool;
    safe fn warm_balances(load: u64, cpus: u64, load_there: u64, cpus_there: u64, weight: u64) -> bool;
    safe fn warm_is_before(a: u64, b: u64) -> bool;
    safe fn warm_charge(ran: u64, weight: u64) -> u64;
    safe fn warm_vtime_at_wake(vtime: u64, clock: u64, credit: u64, debt: u64) -> u64;
    safe fn warm_vtime_alone(vtime: u64, clock: u64, charge: u64) -> u64;
    safe fn warm_vtime_moved(vtime: u64, from: u64, to: u64) -> u64;
    safe fn warm_runs_on(vtime: u64, first: u64) -> bool;
    safe fn warm_preempts(ran: u64, min_run: u64, curr: u64, wakee: u64, margin: u64) -> bool;
    safe fn warm_busy_pct(old: u64, busy: u64, period: u64, cpus: u64) -> u64;
    safe fn warm_nr_shards(cpus: u32, max: u32) -> u32;
    safe fn warm_shard(index: u32, cpus: u32, max: u32) -> u32;
    safe fn warm_fork_cost(residents: u64, cpus: u64, is_own: bool) -> u64;
}

#[test]
fn runs_below_a_fifth_of_the_mean_teach_nothing() {
    assert!(warm_is_news(7, 0));
    assert!(!warm_is_news(200, 1000));
    assert!(warm_is_news(201, 1000));
}

#[test]
fn a_mean_follows_its_samples() {
    assert_eq!(warm_mean(0, 800), 800);
    let mean = (0..30).fold(100_000, |mean, _| warm_mean(mean, 1000));
    assert!((1000..1020).contains(&mean), "{mean}");
}

#[test]
fn the_last_three_quarters_of_a_run_are_late() {
    assert!(!warm_is_late(250, 1000));
    assert!(warm_is_late(251, 1000));
}

#[test]
fn residents_age_out_after_two_epochs() {
    let epoch = warm_epoch(1 << 30);
    assert_eq!(warm_epoch((1 << 30) + (67 * MS)), epoch);
    assert_eq!(warm_residents(epoch, 3, 5, epoch), 5);
    assert_eq!(warm_residents(epoch, 3, 5, epoch + 1), 3);
    assert_eq!(warm_residents(epoch, 3, 5, epoch + 2), 0);
    // Concurrent updates may take a count below 0.
    assert_eq!(warm_residents(epoch, -1, -2, epoch), 0);
}

#[test]
fn fewer_residents_are_cheaper() {
    let cost = |residents| warm_place_cost(residents, NEVER, MS, false, RESIDENTS | RETURN);
    assert_eq!(cost(0), 0);
    assert!(cost(1) < cost(2));
}

#[test]
fn an_owner_that_returns_within_the_run_costs_the_overlap() {
    let cost = |return_in| warm_place_cost(0, return_in, MS, false, RETURN);
    assert_eq!(cost(MS), 0);
    assert_eq!(cost(NEVER), 0);
    assert_eq!(cost(MS / 2), RESIDENT / 2);
    // The hot window is a price and not a ban: at most one resident.
    assert_eq!(cost(0), RESIDENT);
    // Nothing is known of a new task's run.
    assert_eq!(warm_place_cost(0, 0, 0, false, RETURN), 0);
}

#[test]
fn a_busy_sibling_costs_more_than_residents() {
    let all = RESIDENTS | RETURN | SIBLING;
    assert!(warm_place_cost(0, NEVER, MS, true, all) > warm_place_cost(4, 0, MS, false, all));
}

#[test]
fn a_mechanism_that_is_off_has_no_price() {
    assert_eq!(warm_place_cost(9, 0, MS, true, 0), 0);
    assert_eq!(warm_place_cost(9, 0, MS, true, RESIDENTS), 9 * RESIDENT);
}

/// A hand-over that is due, with changes.
fn hand(change: impl FnOnce(&mut [u64; 9])) -> Hand {
    // partner, near, queued, post, bounce, pair, home idles, busy, pair of a hand-over
    let mut v = [1, 1, 0, 20 * US, 0, 0, 1, 40, 0];
    change(&mut v);
    let [partner, near, queued, post, bounce, pair, idles, busy, min] = v;
    match warm_hand_over(partner == 1, near == 1, idles == 1, busy, min, pair, queued, post, 100 * US, bounce)
    {
        0 => Hand::Yes,
        1 => Hand::Stranger,
        2 => Hand::Far,
        3 => Hand::Queued,
        4 => Hand::RunsOn,
        5 => Hand::Bounces,
        6 => Hand::New,
        7 => Hand::Idle,
        n => panic!("no outcome has number {n}"),
    }
}

#[test]
fn a_hand_over_needs_a_near_partner_that_sleeps_at_once() {
    assert_eq!(hand(|_| ()), Hand::Yes);
    assert_eq!(hand(|v| v[0] = 0), Hand::Stranger);
    assert_eq!(hand(|v| v[1] = 0), Hand::Far);
    assert_eq!(hand(|v| (v[1], v[5]) = (0, 3)), Hand::Far);
    assert_eq!(hand(|v| (v[1], v[5]) = (0, 4)), Hand::Yes, "a firm pair comes together");
    assert_eq!(hand(|v| v[2] = 1), Hand::Queued);
    assert_eq!(hand(|v| v[3] = 100 * US), Hand::RunsOn);
    assert_eq!(hand(|v| v[3] = 0), Hand::RunsOn);
    assert_eq!(hand(|v| v[4] = 9), Hand::Bounces);
}

#[test]
fn a_task_whose_home_idles_among_idle_cpus_stays_there() {
    assert_eq!(hand(|v| v[7] = 39), Hand::Idle);
    assert_eq!(hand(|v| (v[6], v[7]) = (0, 39)), Hand::Yes, "its home is busy");
    assert_eq!(hand(|v| (v[5], v[7]) = (4, 39)), Hand::Yes, "a firm pair stays together");
}

#[test]
fn two_tasks_are_handed_over_once_they_have_alternated_often_enough() {
    let mut pair = 0;
    for _ in 0..4 {
        assert_eq!(hand(|v| (v[5], v[8]) = (pair, 4)), Hand::New);
        pair = warm_pair(pair, 6);
    }
    assert_eq!(hand(|v| (v[5], v[8]) = (pair, 4)), Hand::Yes);
    assert_eq!(warm_pair(pair, 4), 2, "the waker ran on");
}

#[test]
fn a_bounce_forbids_hand_overs_for_about_thirty_wakes() {
    let mut bounce = warm_bounce(0, true);
    let mut wakes = 0;
    while hand(|v| v[4] = bounce) == Hand::Bounces {
        bounce = warm_bounce(bounce, false);
        wakes += 1;
    }
    assert_eq!(wakes, 32);
    assert_eq!(warm_bounce(0, false), 0);
    let capped = (0..100).fold(0, |b, _| warm_bounce(b, true));
    assert!(capped < 240, "{capped}");
}

const NO: u32 = 0;
const RATION: u32 = 1;
const PAIR: u32 = 2;

#[test]
fn a_wait_for_home_is_short_known_rationed_and_alone() {
    // The longest wait is 400 µs, and the ration 5 of 100.
    let wait = |left, queued, waits| warm_wait(false, left, queued, waits, 0, 100);
    assert_eq!(wait(300 * US, 0, 4), RATION);
    assert_eq!(wait(0, 0, 0), NO, "the end of the run is unknown");
    assert_eq!(wait(500 * US, 0, 0), NO, "it is too far away");
    assert_eq!(wait(300 * US, 1, 0), NO, "another task waits");
    assert_eq!(wait(300 * US, 0, 5), NO, "the ration is used up");
}

#[test]
fn a_wait_for_a_full_llc_needs_no_prediction_but_the_ration() {
    let wait = |queued, waits| warm_wait(true, 0, queued, waits, 0, 100);
    assert_eq!(wait(0, 4), RATION);
    assert_eq!(wait(1, 4), NO);
    assert_eq!(wait(0, 5), NO);
}

#[test]
fn a_pair_waits_in_a_busy_llc_without_a_ration() {
    let pair = (0..4).fold(0, |pair, _| warm_pair(pair, Hand::Yes as u32));
    // The longest wait of a pair is 2 ms, from 60 % busy on.
    for llc_is_full in [false, true] {
        let wait = |left, queued, pair, busy| warm_wait(llc_is_full, left, queued, 100, pair, busy);
        assert_eq!(wait(2000 * US, 0, pair, 60), PAIR);
        assert_eq!(wait(2000 * US, 0, pair, 59), NO, "the LLC is not busy");
        assert_eq!(wait(2001 * US, 0, pair, 60), NO, "the home is busy for too long");
        assert_eq!(wait(0, 0, pair, 60), NO, "it is not known for how long");
        assert_eq!(wait(2000 * US, 1, pair, 60), NO, "another task waits");
        assert_eq!(wait(2000 * US, 0, pair - 1, 60), NO, "it is no firm pair");
    }
    assert_eq!(warm_pair(pair, Hand::Bounces as u32), pair / 2);
    assert_eq!(warm_pair(pair, Hand::Far as u32), pair + 1);
    assert_eq!(warm_pair(pair, Hand::Stranger as u32), pair);
    assert!((0..100).fold(0, |pair, _| warm_pair(pair, Hand::Yes as u32)) <= 8);
}

#[test]
fn an_idle_cpu_takes_old_tasks_and_orphans() {
    assert!(!warm_may_steal(99, 100, 0, 0, 1, false));
    assert!(warm_may_steal(100, 100, 0, 0, 1, false));
    assert!(warm_may_steal(0, 100, 0, 0, 1, true));
    // A lone task stays while its home is about to be free.
    assert!(!warm_may_steal(100, 100, 50, 50, 1, false));
    assert!(warm_may_steal(100, 100, 51, 50, 1, false), "its home runs on");
    assert!(warm_may_steal(100, 100, 50, 50, 2, false), "two wait");
    assert!(warm_may_steal(100, 100, 0, 50, 1, false), "the run is overdue, or nothing is known of it");
    assert!(warm_may_steal(0, 100, 50, 50, 1, true), "its home is offline");
}

#[test]
fn the_earlier_of_two_queues_is_served_and_home_if_both_are_equal() {
    assert!(warm_llc_first(9, 10));
    assert!(!warm_llc_first(10, 10));
    assert!(!warm_llc_first(11, 10));
    assert!(warm_llc_first(u64::MAX, 3), "virtual times wrap");
}

/// Moves one task a time between two LLCs of 4 CPUs until nothing moves. The task that waits first is random.
fn settle(mut here: Vec<u64>, mut there: Vec<u64>) -> (Vec<u64>, Vec<u64>) {
    let mut random = fastrand::Rng::with_seed(7);
    let load = |tasks: &[u64]| tasks.iter().sum::<u64>();
    let (mut moved, mut quiet) = (0, 0);
    while quiet < 100 {
        let (from, to) =
            if load(&here) > load(&there) { (&mut here, &mut there) } else { (&mut there, &mut here) };
        let first = random.usize(..from.len());
        assert!(!warm_balances(load(from), 4, load(to), 4, 1), "the busier LLC takes a task");
        if from.len() > 4 && warm_balances(load(to), 4, load(from), 4, from[first]) {
            to.push(from.swap_remove(first));
            (moved, quiet) = (moved + 1, 0);
        }
        quiet += 1;
        assert!(moved < 100, "the balance does not end");
    }
    (here, there)
}

#[test]
fn twelve_hogs_end_six_and_six() {
    let settle = |here, there| {
        let (here, there) = settle(vec![100; here], vec![100; there]);
        (here.len(), there.len())
    };
    assert_eq!(settle(4, 8), (6, 6));
    assert_eq!(settle(12, 0), (6, 6));
    assert_eq!(settle(7, 6), (7, 6));
}

#[test]
fn hogs_of_two_weights_end_with_loads_that_are_nearly_equal() {
    for heavy in 0..=8 {
        let (light, mut here) = ([33; 8], vec![100; heavy]);
        here.extend(&light[heavy..]);
        let mut there = vec![100; 8 - heavy];
        there.extend(&light[..heavy]);
        let (here, there) = settle(here, there);
        let (here, there) = (here.iter().sum::<u64>(), there.iter().sum::<u64>());
        assert!(here.abs_diff(there) < 40, "{heavy} heavy ones: {here} and {there}");
    }
}

#[test]
fn balance_moves_what_makes_loads_per_cpu_more_equal() {
    // 8 CPUs with 8 tasks take one from 4 CPUs with 8.
    assert!(warm_balances(800, 8, 800, 4, 100));
    // A heavy task is not moved for a small difference, and is moved if that halves the difference.
    assert!(!warm_balances(400, 4, 799, 4, 300));
    assert!(warm_balances(400, 4, 800, 4, 300));
    // An LLC without CPUs gives all; one without CPUs takes none.
    assert!(warm_balances(9000, 4, 100, 0, 100));
    assert!(!warm_balances(0, 0, 9000, 4, 100));
}

#[test]
fn virtual_time_goes_at_the_weight() {
    assert_eq!(warm_charge(MS, 100), MS);
    assert_eq!(warm_charge(MS, 300), MS / 3);
    assert_eq!(warm_charge(MS, 0), MS);
}

#[test]
fn virtual_time_wraps() {
    assert!(warm_is_before(u64::MAX - 5, 3));
    assert!(!warm_is_before(3, u64::MAX - 5));
    assert_eq!(warm_vtime_moved(10, 20, 5), u64::MAX - 4);
}

#[test]
fn a_task_that_runs_alone_owes_nothing_for_it() {
    let after = |vtime: u64, clock, charge| warm_vtime_alone(vtime, clock, charge).wrapping_add(charge);
    assert_eq!(after(1000, 1000, 500), 1000, "it is at the clock");
    assert_eq!(after(1000, 2000, 500), 1500, "it is behind, and catches up");
    assert_eq!(after(10, 20, 500), 20, "virtual times wrap");
}

#[test]
fn a_sleeper_keeps_a_bounded_credit_and_a_runaway_a_bounded_debt() {
    assert_eq!(warm_vtime_at_wake(0, 1000, 50, 500), 950);
    assert_eq!(warm_vtime_at_wake(980, 1000, 50, 500), 980);
    assert_eq!(warm_vtime_at_wake(9000, 1000, 50, 500), 1500);
}

/// Runs tasks of these weights on one CPU as dispatch does: the running one goes on while it is before the first of
/// the queue. Returns the slices that each got.
fn share(weights: &[u64], slices: u64) -> Vec<u64> {
    let mut vtime = vec![0; weights.len()];
    let mut got = vec![0; weights.len()];
    let mut running = 0;
    for _ in 0..slices {
        got[running] += 1;
        vtime[running] += warm_charge(5 * MS, weights[running]);
        let first =
            (0..weights.len()).filter(|t| *t != running).min_by_key(|t| vtime[*t]).expect("several tasks");
        if !warm_runs_on(vtime[running], vtime[first]) {
            running = first;
        }
    }
    got
}

#[test]
fn shares_are_as_the_weights() {
    let got = share(&[100, 300], 4000);
    let within = |share: f64, range: RangeInclusive<f64>| assert!(range.contains(&share), "{got:?}");
    within(got[1] as f64 / got[0] as f64, 2.9..=3.1);
    let got = share(&[100, 100, 100, 300], 6000);
    assert!((2900..=3100).contains(&got[3]), "{got:?}");
}

#[test]
fn a_wakee_interrupts_only_a_long_run_that_is_ahead() {
    assert!(warm_preempts(3 * MS, 2 * MS, 10 * MS, 0, 2 * MS));
    assert!(!warm_preempts(MS, 2 * MS, 10 * MS, 0, 2 * MS));
    assert!(!warm_preempts(3 * MS, 2 * MS, 10 * MS, 9 * MS, 2 * MS));
}

#[test]
fn the_busy_share_is_averaged_and_bounded() {
    assert_eq!(warm_busy_pct(0, 4 * MS, MS, 4), 50);
    assert_eq!(warm_busy_pct(100, 9 * MS, MS, 4), 100);
    assert_eq!(warm_busy_pct(40, 0, MS, 4), 20);
    assert_eq!(warm_busy_pct(40, 0, 0, 0), 20);
}

#[test]
fn shards_cover_an_llc_in_equal_parts() {
    for cpus in 1..=512 {
        for max in [1, 4, 16, 64] {
            let shards = warm_nr_shards(cpus, max);
            let mut sizes = vec![0; shards as usize];
            let of: Vec<u32> = (0..cpus).map(|i| warm_shard(i, cpus, max)).collect();
            assert!(of.is_sorted());
            of.iter().for_each(|s| sizes[*s as usize] += 1);
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            assert!(
                most <= Some(&max) && most.unwrap() - least.unwrap() <= 1,
                "{cpus} CPUs, {max}: {sizes:?}"
            );
        }
    }
}

#[test]
fn a_new_task_goes_to_fewer_residents_per_cpu_and_stays_if_equal() {
    assert!(warm_fork_cost(2, 4, true) < warm_fork_cost(3, 4, false));
    assert!(warm_fork_cost(2, 4, true) < warm_fork_cost(2, 4, false));
    assert!(warm_fork_cost(3, 8, false) < warm_fork_cost(2, 4, true));
    assert_eq!(warm_fork_cost(0, 0, true), NEVER);
}
