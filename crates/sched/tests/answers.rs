//! Every answer names a CPU that is allowed and online, whatever the facts, and is the same twice.

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
    Habits { has_one_queue: false, keeps_debts: is_home, looks_at_all: true, helps }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_wakee_goes_where_it_may_run((which, facts, wake) in case()) {
        for policy in PolicyKind::all() {
            answers::a_wakee_goes_where_it_may(&policy, habits(policy), &MACHINES[which].1, &facts, &wake)?;
        }
    }

    #[test]
    fn a_cpu_that_is_called_to_help_is_idle_and_online((which, facts, wake) in case()) {
        for policy in PolicyKind::all() {
            answers::a_called_cpu_is_idle(&policy, habits(policy), &MACHINES[which].1, &facts, wake.now)?;
        }
    }

    #[test]
    fn a_pull_is_from_where_tasks_wait((which, facts, wake) in case()) {
        for policy in PolicyKind::all() {
            answers::a_pull_is_from_where_tasks_wait(&policy, habits(policy), &MACHINES[which].1, &facts, wake.now)?;
        }
    }

    #[test]
    fn a_balance_takes_no_more_than_makes_both_even((which, facts, _) in case()) {
        for policy in PolicyKind::all() {
            answers::a_balance_makes_both_even_at_most(&policy, &MACHINES[which].1, &facts)?;
        }
    }

    #[test]
    fn under_home_nobody_sleeps_beside_a_new_task((which, facts, mut wake) in case()) {
        let machine = &MACHINES[which].1;
        (wake.wakee.prev_cpu, wake.waker) = (None, WakeSource::Outside(None));
        let is_idle = |cpu: &CpuId| facts.is_idle(*cpu) && !facts.is_offline(*cpu);
        let mut idle = (0..machine.cpus() as u32).map(CpuId).filter(is_idle);
        let placed = PolicyKind::Home.wake(machine, &facts, &wake);
        if idle.any(|cpu| may(machine, wake.wakee.allowed, cpu)) {
            let kicked = placed.kick.filter(is_idle);
            prop_assert!(kicked.is_some(), "{placed:?}");
            // What may run anywhere lies where the one looks first that is woken for it.
            let there = kicked.map(|cpu| match wake.wakee.allowed {
                Allowed::Anywhere => TargetQueue::Shard(machine.shard_of(cpu)),
                _ => TargetQueue::Cpu(cpu),
            });
            prop_assert_eq!(Some(placed.to), there);
        }
    }

    #[test]
    fn a_policy_asked_by_name_answers_as_itself((which, facts, wake) in case()) {
        let machine = &MACHINES[which].1;
        let plain = [Home.wake(machine, &facts, &wake), SharedQueue.wake(machine, &facts, &wake)];
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
            prop_assert!(hot_until == before || hot_until.0 <= now + 500_000, "kept longer than a migration costs");
            now += sleeps;
            task.wake(Nanos(now));
            prop_assert!(task.average.0 <= 500_000);
        }
    }

    #[test]
    fn the_average_is_within_a_tenth_18_sleeps_after_a_change(old in 1..500_000u64, new in 1_000..500_000u64) {
        let mut task = SleepHistory { since: Nanos(0), average: Nanos(old) };
        let mut now = 1;
        for _ in 0..18 {
            task.sleep(Nanos(now));
            now += new;
            task.wake(Nanos(now));
        }
        // A tenth of the change, and what eighths lose by rounding.
        prop_assert!(task.average.0.abs_diff(new) <= old.abs_diff(new) / 10 + 16, "{:?}", task.average);
    }

    #[test]
    fn a_long_sleep_says_nothing(average in 1..500_000u64, slept in 500_001..u64::MAX / 2) {
        let mut task = SleepHistory { since: Nanos(0), average: Nanos(average) };
        task.sleep(Nanos(7));
        task.wake(Nanos(7 + slept));
        prop_assert_eq!(task.average, Nanos(average));
    }
}

#[test]
fn a_name_is_read_back() {
    for policy in PolicyKind::all() {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!(PolicyKind::all()[0], PolicyKind::default());
}

#[test]
fn a_task_whose_only_cpu_is_gone_runs_elsewhere_sooner_than_never() {
    PolicyKind::all().iter().for_each(answers::a_task_whose_cpus_are_gone_runs_elsewhere);
}

/// Two that talk take turns while the others wait: only if their data are worth it, and a millisecond at most.
#[test]
fn heavy_ones_that_talk_take_turns_for_a_while() {
    let chain = |poll_us: u64| warmcore_sched::policy::Home.max_lifo_polls(Nanos(poll_us * 1_000));
    assert_eq!(chain(1), 0);
    assert_eq!(chain(20), 16);
    assert_eq!(chain(200), 5);
    assert_eq!(chain(10_000), 0);
}
