//! Policies that only a simulation has: with random facts every answer names a CPU that is allowed and online, if there
//! is one; with the facts in `fixtures/wakes` the answers are the golden ones; and a policy that wraps another one forwards
//! every method.

#[path = "../../../crates/sched/tests/common/answers.rs"]
mod answers;
#[path = "../../../crates/sched/tests/common/mod.rs"]
mod common;
#[path = "../../../crates/sched/tests/common/golden.rs"]
mod golden;

use answers::{Habits, Helps, MACHINES, case};
use proptest::prelude::*;
use warmcore_sched::{Home, Policy, SharedQueue, SleepHistory};
use warmcore_sim::policy::{Kernel, KernelPolicy, SimPolicyKind};
use warmcore_types::Nanos;

const OURS: [SimPolicyKind; 3] =
    [SimPolicyKind::PrevCpu, SimPolicyKind::GlobalFifo, SimPolicyKind::WorkSteal];

fn habits(policy: SimPolicyKind) -> Habits {
    let has_one_queue = policy != SimPolicyKind::PrevCpu;
    let helps = if has_one_queue { Helps::Always } else { Helps::Sometimes };
    Habits { has_one_queue, keeps_accrued_costs: false, looks_at_all: false, helps }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_woken_task_goes_to_a_cpu_that_it_may_run_on((which, facts, wake) in case()) {
        for policy in OURS {
            answers::a_woken_task_goes_where_it_may(&policy, habits(policy), &MACHINES[which].1, &facts, &wake)?;
        }
    }

    #[test]
    fn a_cpu_to_notify_is_idle_and_online((which, facts, wake) in case()) {
        for policy in OURS {
            answers::a_cpu_to_notify_is_idle(&policy, habits(policy), &MACHINES[which].1, &facts, wake.now)?;
        }
    }

    #[test]
    fn a_steal_is_from_where_tasks_wait((which, facts, wake) in case()) {
        for policy in OURS {
            answers::a_steal_is_from_where_tasks_wait(&policy, habits(policy), &MACHINES[which].1, &facts, wake.now)?;
        }
    }

    #[test]
    fn a_policy_of_the_product_by_name_answers_as_the_policy((which, facts, wake) in case()) {
        let machine = &MACHINES[which].1;
        let plain = [
            Policy::wake(&Home::DEFAULT, machine, &facts, &wake),
            Policy::wake(&SharedQueue, machine, &facts, &wake),
        ];
        let [home, shared_queue, ..] = SimPolicyKind::all();
        prop_assert_eq!([home, shared_queue].map(|kind| Policy::wake(&kind, machine, &facts, &wake)), plain);
    }

    #[test]
    fn the_posted_average_never_jumps_and_is_halved_by_a_long_sleep(average in 0..500_000u64, slept in 0..1_000_000u64) {
        let mut task = SleepHistory { since: Nanos(0), average: Nanos(average) };
        task.sleep(Nanos(7));
        Kernel::default().learn_sleep(&mut task, Nanos(7 + slept));
        let after = match slept {
            0 => average,
            1..500_000 => (average as i64 + (slept as i64 - average as i64) / 8) as u64,
            500_000.. => average / 2,
        };
        prop_assert_eq!(task.average, Nanos(after));
    }
}

/// Version 2 of hot windows as posted, step by step, and where `SleepHistory` differs.
#[test]
fn the_first_sleep_counts_an_eighth_as_posted_and_whole_for_home() {
    let (mut posted, mut ours) = (SleepHistory::default(), SleepHistory::default());
    let mut averages = Vec::new();
    let mut now = 1_000_000;
    for slept in [80_000, 80_000, 500_000, 400_000] {
        let both = [&mut posted, &mut ours];
        both.into_iter().for_each(|task| _ = task.sleep(Nanos(now)));
        now += slept;
        Kernel::default().learn_sleep(&mut posted, Nanos(now));
        ours.wake(Nanos(now));
        averages.push((posted.average.0, ours.average.0));
    }
    // A sleep that is as long as the migration cost is a long one as posted. For Home 400 µs is the longest short one.
    assert_eq!(averages, [(10_000, 80_000), (18_750, 80_000), (9_375, 80_000), (58_203, 120_000)]);
}

#[test]
fn each_policy_is_found_by_its_name() {
    for policy in SimPolicyKind::all() {
        assert_eq!(SimPolicyKind::by_name(&policy.to_string()), Some(policy));
    }
    assert_eq!(SimPolicyKind::by_name("homely"), None);
}

#[test]
fn a_task_whose_cpus_are_all_offline_runs_on_another() {
    OURS.iter().for_each(answers::a_task_whose_cpus_are_gone_runs_elsewhere);
}

#[test]
fn every_policy_says_what_the_files_say() {
    golden::check(&SimPolicyKind::all(), |_| false, |_, _| true);
}

/// The names of the methods of a trait, or of the implementation of a trait for a type, in a source file of the workspace.
fn methods(path: &str, of: &str) -> Vec<String> {
    let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect(&path);
    let (_, rest) = text.split_once(of).unwrap_or_else(|| panic!("no `{of}` in {path}"));
    let (body, _) = rest.split_once("\n}\n").expect("it ends");
    // Of a method that a macro defines, the line has its name, its arguments and its answer.
    let of_macro = |line| {
        str::strip_prefix(line, "        ").filter(|line| line.contains(") -> ") && line.ends_with(';'))
    };
    let names = body
        .lines()
        .filter_map(|line| line.strip_prefix("    fn ").or_else(|| of_macro(line))?.split('(').next());
    names.map(str::to_owned).collect()
}

/// A method with a default that a wrapper lacks would answer for the wrapped policy.
#[test]
fn policies_that_wrap_others_forward_every_method() {
    let policy = methods("crates/sched/src/policy.rs", "pub trait Policy {");
    let view = methods("crates/sched/src/facts.rs", "pub trait View {");
    assert!(policy.len() > 15 && view.len() > 10, "{policy:?}, {view:?}");
    let counted = "tools/sim/src/simulation/runtime/counted.rs";
    for (path, of, all) in [
        (counted, "Policy for Counted<P> {", &policy),
        (counted, "View for CountingView<'_, V> {", &view),
        ("tools/sim/src/policy/kind.rs", "impl Policy for SimPolicyKind {", &policy),
    ] {
        let forwarded = methods(path, of);
        let missing: Vec<_> = all.iter().filter(|method| !forwarded.contains(method)).collect();
        assert!(missing.is_empty(), "{path}: `{of}` does not forward {missing:?}");
    }
    let kind = methods("crates/sched/src/policy/kind.rs", "impl Policy for PolicyKind {");
    for (path, of) in
        [("home.rs", "impl Policy for Home {"), ("shared_queue.rs", "impl Policy for SharedQueue {")]
    {
        let of = methods(&format!("crates/sched/src/policy/{path}"), of);
        let missing: Vec<_> = of.iter().filter(|method| !kind.contains(method)).collect();
        assert!(missing.is_empty(), "`PolicyKind` does not forward {missing:?}");
    }
}
