//! Every policy, with random facts: a woken task goes where it may run, a CPU to notify is idle and online, and a steal
//! is from where tasks wait.

#[path = "common/answers.rs"]
mod answers;
mod common;

use answers::{Habits, Helps, MACHINES, case};
use proptest::prelude::*;
use warmcore_sched::policy::may;
use warmcore_sched::{
    Allowed, Home, Policy, PolicyKind, SharedQueue, SleepHistory, TargetQueue, View, WakeSource,
};
use warmcore_types::{CpuId, Nanos};

fn habits(policy: PolicyKind) -> Habits {
    let is_home = policy == PolicyKind::Home;
    let helps = if is_home { Helps::WhereStuck } else { Helps::Sometimes };
    Habits { has_one_queue: false, keeps_accrued_costs: is_home, looks_at_all: true, helps }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_woken_task_goes_to_a_cpu_that_it_may_run_on((which, facts, wake) in case()) {
        for policy in PolicyKind::all() {
            answers::a_woken_task_goes_where_it_may(&policy, habits(policy), &MACHINES[which].1, &facts, &wake)?;
        }
    }

    #[test]
    fn a_cpu_to_notify_is_idle_and_online((which, facts, wake) in case()) {
        for policy in PolicyKind::all() {
            answers::a_cpu_to_notify_is_idle(&policy, habits(policy), &MACHINES[which].1, &facts, wake.now)?;
        }
    }

    #[test]
    fn a_steal_is_from_where_tasks_wait((which, facts, wake) in case()) {
        for policy in PolicyKind::all() {
            answers::a_steal_is_from_where_tasks_wait(&policy, habits(policy), &MACHINES[which].1, &facts, wake.now)?;
        }
    }

    #[test]
    fn under_home_an_idle_cpu_is_kicked_for_a_new_task((which, facts, mut wake) in case()) {
        let machine = &MACHINES[which].1;
        (wake.wakee.prev_cpu, wake.waker) = (None, WakeSource::Outside(None));
        let is_idle = |cpu: &CpuId| facts.is_idle(*cpu) && !facts.is_offline(*cpu);
        let mut idle = (0..machine.cpus() as u32).map(CpuId).filter(is_idle);
        let placed = PolicyKind::Home.wake(machine, &facts, &wake);
        if idle.any(|cpu| may(machine, wake.wakee.allowed, cpu)) {
            let kicked = placed.kick.filter(is_idle);
            prop_assert!(kicked.is_some(), "{placed:?}");
            // A task that may run anywhere is in the queue that the kicked CPU searches first.
            let there = kicked.map(|cpu| match wake.wakee.allowed {
                Allowed::Anywhere => TargetQueue::Shard(machine.shard_of(cpu)),
                _ => TargetQueue::Cpu(cpu),
            });
            prop_assert_eq!(Some(placed.to), there);
        }
    }

    #[test]
    fn a_policy_by_name_answers_as_the_policy((which, facts, wake) in case()) {
        let machine = &MACHINES[which].1;
        let plain = [Home::DEFAULT.wake(machine, &facts, &wake), SharedQueue.wake(machine, &facts, &wake)];
        prop_assert_eq!(PolicyKind::all().map(|kind| kind.wake(machine, &facts, &wake)), plain);
    }

    #[test]
    fn a_hot_window_moves_only_forward(sleeps in prop::collection::vec((0..900_000u64, 0..900_000u64), 1..200)) {
        let (mut task, mut now, mut hot_until) = (SleepHistory::default(), 1, Nanos(0));
        for (runs, sleeps) in sleeps {
            now += runs;
            let before = hot_until;
            hot_until = task.sleep_on(Nanos(now), hot_until);
            prop_assert!(hot_until >= before);
            prop_assert!(hot_until == before || hot_until.0 <= now + 400_000, "kept longer than a migration costs");
            now += sleeps;
            task.wake(Nanos(now));
            prop_assert!(task.average.0 <= 400_000);
        }
    }

    #[test]
    fn the_average_is_within_a_tenth_18_sleeps_after_a_change(old in 1..400_000u64, new in 1_000..400_000u64) {
        let mut task = SleepHistory { since: Nanos(0), average: Nanos(old) };
        let mut now = 1;
        for _ in 0..18 {
            task.sleep(Nanos(now));
            now += new;
            task.wake(Nanos(now));
        }
        // (7/8)^18 = 0.09: each sleep changes the average by an eighth of the difference. 16 ns for the rounding.
        prop_assert!(task.average.0.abs_diff(new) <= old.abs_diff(new) / 10 + 16, "{:?}", task.average);
    }

    #[test]
    fn a_long_sleep_does_not_change_the_average(average in 1..400_000u64, slept in 400_001..u64::MAX / 2) {
        let mut task = SleepHistory { since: Nanos(0), average: Nanos(average) };
        task.sleep(Nanos(7));
        task.wake(Nanos(7 + slept));
        prop_assert_eq!(task.average, Nanos(average));
    }
}

#[test]
fn each_policy_is_parsed_from_its_name() {
    for policy in PolicyKind::all() {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!(PolicyKind::all()[0], PolicyKind::default());
}

#[test]
fn a_task_whose_cpus_are_all_offline_runs_on_another() {
    PolicyKind::all().iter().for_each(answers::a_task_whose_cpus_are_gone_runs_elsewhere);
}

/// With the LIFO slot two tasks that wake each other run in turn while others wait. That is allowed only if they have data
/// that would cost much to move, and for twelve polls of up to 0.4 ms.
#[test]
fn the_lifo_slot_serves_heavy_tasks_a_limited_number_of_times() {
    let home = warmcore_sched::policy::Home::DEFAULT;
    let polls = |us: u64| home.max_lifo_polls(Nanos(us * 1_000), home.migration_cost(Nanos(us * 1_000)));
    assert_eq!(polls(1), 0);
    assert_eq!(home.max_lifo_polls(Nanos(100_000), Nanos(5_000)), 0, "long polls without data");
    assert_eq!((polls(20), polls(400), polls(404)), (12, 12, 0));
    assert_eq!(home.max_lifo_polls(Nanos(2_000), Nanos(20_000)), 12, "short polls with much data");
    assert_eq!(home.max_lifo_polls(Nanos(100_003), Nanos(25_000)), 12, "data that is evicted at each poll");
    assert_eq!(polls(10_000), 0);
}
