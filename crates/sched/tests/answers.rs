//! Every answer names a CPU that is allowed and online, whatever the facts, and is the same twice.

mod common;

use common::{Cpu, Facts, all_machines};
use proptest::prelude::*;
use std::sync::LazyLock;
use warmcore_sched::policy::may;
use warmcore_sched::{
    Allowed, Home, Kernel, Machine, Placed, Policy, PolicyKind, Pull, Sleeps, To, View, Wake, Wakee, Waker,
};
use warmcore_types::{CpuId, LlcId, Nanos, NodeId};

/// Small enough for many cases, and one that is not.
static MACHINES: LazyLock<Vec<(String, Machine)>> =
    LazyLock::new(|| all_machines().into_iter().filter(|(_, machine)| machine.cpus() <= 240).collect());

/// A number that means something: small, great, or none.
fn nanos() -> impl Strategy<Value = Nanos> {
    prop_oneof![Just(0), 0..2_000_000u64, Just(u64::MAX), any::<u64>()].prop_map(Nanos)
}

prop_compose! {
    fn cpu()(idle: bool, offline in prop::bool::weighted(0.3), stuck: bool, hot_until in nanos(),
             backlog in prop_oneof![Just(0), 0..5u32, any::<u32>()], since in nanos(), refill in nanos())
            -> Cpu {
        Cpu { idle, offline, stuck, backlog, since, refill, hot_until, ..Cpu::default() }
    }
}

prop_compose! {
    fn case()(which in 0..MACHINES.len())
             (which in Just(which), cpus in prop::collection::vec(cpu(), MACHINES[which].1.cpus()),
              waiting in prop::collection::vec(prop_oneof![4 => Just(0), 1 => 0..9u32], MACHINES[which].1.shards()),
              home in prop::option::weighted(0.8, 0..MACHINES[which].1.cpus()),
              near in prop::option::weighted(0.9, 0..MACHINES[which].1.cpus()),
              (outside, allowed) in (any::<bool>(), 0..5u8), to in 0..MACHINES[which].1.cpus(),
              (now, refill, debt) in (nanos(), nanos(), nanos()))
             -> (usize, Facts, Wake) {
        let machine = &MACHINES[which].1;
        let mut facts = Facts { cpus, waiting, ..Facts::busy(machine) };
        let cpu = |index| CpuId(index as u32);
        let to = cpu(to);
        let allowed = match allowed {
            0 => Allowed::Cpu(to),
            1 => Allowed::Llc(machine.llc_of(to)),
            2 => Allowed::Node(machine.node_of(to)),
            _ => Allowed::Anywhere,
        };
        // A task's home is a CPU that it may run on; a waker's CPU runs.
        let home = home.map(cpu).filter(|home| may(machine, allowed, *home));
        let waker = match near.map(cpu) {
            Some(near) if !outside => {
                (facts.cpus[near.index()].offline, facts.cpus[near.index()].idle) = (false, false);
                Waker::Cpu(near)
            }
            near => Waker::Outside(near),
        };
        (which, facts, Wake { now, wakee: Wakee { home, refill, debt, woken_from: near.map(cpu), allowed }, waker })
    }
}

/// Whether a CPU may be named: it is allowed and online, or nothing is.
fn is_right(machine: &Machine, facts: &Facts, allowed: Allowed, cpu: CpuId) -> bool {
    let online = || (0..machine.cpus() as u32).map(CpuId).filter(|cpu| !facts.is_offline(*cpu));
    let is_online = !facts.is_offline(cpu) || online().next().is_none();
    let is_allowed = may(machine, allowed, cpu) || !online().any(|cpu| may(machine, allowed, cpu));
    is_online && is_allowed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_wakee_goes_where_it_may_and_somebody_is((which, facts, wake) in case()) {
        let machine = &MACHINES[which].1;
        let allowed = wake.wakee.allowed;
        for policy in PolicyKind::all() {
            let placed = policy.wake(machine, &facts, &wake);
            prop_assert_eq!(placed, policy.wake(machine, &facts, &wake));
            let Placed { to, kick, debt, hot_kept, hot_broken } = placed;
            match to {
                To::Cpu(cpu) => {
                    prop_assert!(is_right(machine, &facts, allowed, cpu), "{policy}: {placed:?}");
                    prop_assert!(kick.is_none_or(|kick| kick == cpu), "{policy}: {placed:?}");
                    prop_assert!(kick.is_none_or(|kick| facts.is_idle(kick)), "{policy}: {placed:?}");
                }
                To::Shard(shard) => {
                    prop_assert_eq!(allowed, Allowed::Anywhere);
                    prop_assert!(shard < machine.shards());
                    prop_assert!(kick.is_none_or(|kick| facts.is_idle(kick) && !facts.is_offline(kick)));
                    let is_served = machine.cpus_of(shard).iter().any(|cpu| !facts.is_offline(*cpu));
                    let is_one_for_all = matches!(policy, PolicyKind::GlobalFifo | PolicyKind::WorkSteal);
                    prop_assert!(is_served || is_one_for_all || facts.cpus.iter().all(|cpu| cpu.offline));
                }
            }
            if let (To::Cpu(cpu), true) = (to, hot_broken) {
                prop_assert!(facts.hot_until(cpu) > wake.now);
            }
            prop_assert!(policy == PolicyKind::Home || (debt, hot_kept, hot_broken) == (Nanos(0), 0, false));
        }
    }

    #[test]
    fn under_home_nobody_sleeps_beside_a_new_task((which, facts, mut wake) in case()) {
        let machine = &MACHINES[which].1;
        (wake.wakee.home, wake.waker) = (None, Waker::Outside(None));
        let is_idle = |cpu: &CpuId| facts.is_idle(*cpu) && !facts.is_offline(*cpu);
        let mut idle = (0..machine.cpus() as u32).map(CpuId).filter(is_idle);
        let placed = PolicyKind::Home.wake(machine, &facts, &wake);
        if idle.any(|cpu| may(machine, wake.wakee.allowed, cpu)) {
            let kicked = placed.kick.filter(is_idle);
            prop_assert!(kicked.is_some(), "{placed:?}");
            // What may run anywhere lies where the one looks first that is woken for it.
            let there = kicked.map(|cpu| match wake.wakee.allowed {
                Allowed::Anywhere => To::Shard(machine.shard_of(cpu)),
                _ => To::Cpu(cpu),
            });
            prop_assert_eq!(Some(placed.to), there);
        }
    }

    #[test]
    fn who_is_called_to_help_sleeps_and_is_online((which, facts, wake) in case()) {
        let machine = &MACHINES[which].1;
        let is_idle = |cpu: &CpuId| facts.is_idle(*cpu) && !facts.is_offline(*cpu);
        let any = (0..machine.cpus() as u32).map(CpuId).any(|cpu| is_idle(&cpu));
        for policy in PolicyKind::all() {
            for at in [0, machine.cpus() - 1] {
                let called = policy.help(machine, &facts, CpuId(at as u32), wake.now);
                prop_assert!(called.is_none_or(|cpu| is_idle(&cpu)), "{policy}: {called:?}");
                // Home has conditions, and a stuck CPU is the one that is always met.
                let never_misses = match policy {
                    PolicyKind::PrevCpu | PolicyKind::SharedQueue => false,
                    PolicyKind::Home => facts.is_stuck(CpuId(at as u32)),
                    PolicyKind::GlobalFifo | PolicyKind::WorkSteal => true,
                };
                prop_assert!(!never_misses || called.is_some() == any, "{policy}: {called:?}");
            }
        }
    }

    #[test]
    fn a_pull_is_from_where_somebody_waits((which, facts, wake) in case()) {
        let machine = &MACHINES[which].1;
        let somebody = |me: CpuId| {
            facts.waiting.iter().any(|n| *n > 0)
                || machine.others(me).any(|cpu| facts.backlog(cpu) > 0)
        };
        for policy in PolicyKind::all() {
            for me in [CpuId(0), CpuId(machine.cpus() as u32 - 1)] {
                match policy.pull(machine, &facts, me, wake.now) {
                    Pull::Shard(shard) => prop_assert!(facts.waiting_in(shard) > 0),
                    Pull::From { cpu, at_most } => {
                        prop_assert!(cpu != me && (1..=facts.backlog(cpu)).contains(&at_most));
                    }
                    Pull::Until(at) => prop_assert!(at > wake.now && policy == PolicyKind::Home),
                    Pull::Nothing => {
                        let looks_at_all = matches!(policy, PolicyKind::Home | PolicyKind::SharedQueue);
                        prop_assert!(!(looks_at_all && somebody(me)), "{policy}");
                    }
                }
            }
        }
    }

    #[test]
    fn who_shares_takes_no_more_than_makes_both_even((which, facts, _) in case()) {
        let machine = &MACHINES[which].1;
        let (me, other) = (CpuId(0), CpuId(machine.cpus() as u32 - 1));
        let (here, there) = (facts.backlog(me), facts.backlog(other));
        for policy in PolicyKind::all() {
            let come = policy.balance(machine, &facts, me, other);
            prop_assert!(come == 0 || here.saturating_add(come) <= there - come, "{policy}: {come}");
        }
    }

    #[test]
    fn a_policy_asked_by_name_answers_as_itself((which, facts, wake) in case()) {
        use warmcore_sched::{GlobalFifo, PrevCpu, SharedQueue, WorkSteal};
        let machine = &MACHINES[which].1;
        let plain = [
            Home.wake(machine, &facts, &wake),
            SharedQueue.wake(machine, &facts, &wake),
            PrevCpu.wake(machine, &facts, &wake),
            GlobalFifo.wake(machine, &facts, &wake),
            WorkSteal.wake(machine, &facts, &wake),
        ];
        prop_assert_eq!(PolicyKind::all().map(|kind| kind.wake(machine, &facts, &wake)), plain);
    }

    #[test]
    fn a_hot_window_moves_only_forward(sleeps in prop::collection::vec((0..900_000u64, 0..900_000u64), 1..200)) {
        let (mut task, mut now, mut hot_until) = (Sleeps::default(), 1, Nanos(0));
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
        let mut task = Sleeps { since: Nanos(0), average: Nanos(old) };
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
        let mut task = Sleeps { since: Nanos(0), average: Nanos(average) };
        task.sleep(Nanos(7));
        task.wake(Nanos(7 + slept));
        prop_assert_eq!(task.average, Nanos(average));
    }

    #[test]
    fn the_posted_average_never_jumps_and_is_halved_by_a_long_sleep(average in 0..500_000u64, slept in 0..1_000_000u64) {
        let mut task = Sleeps { since: Nanos(0), average: Nanos(average) };
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

/// Version 2 of hot windows as posted, step by step; and where ours differs.
#[test]
fn the_first_sleep_counts_an_eighth_as_posted_and_whole_for_home() {
    let (mut posted, mut ours) = (Sleeps::default(), Sleeps::default());
    let mut averages = Vec::new();
    let mut now = 1_000_000;
    for slept in [80_000, 80_000, 500_000, 499_999] {
        let both = [&mut posted, &mut ours];
        both.into_iter().for_each(|task| _ = task.sleep(Nanos(now)));
        now += slept;
        Kernel::default().learn_sleep(&mut posted, Nanos(now));
        Home.learn_sleep(&mut ours, Nanos(now));
        averages.push((posted.average.0, ours.average.0));
    }
    // As long as a migration costs is long as posted, and the last short one for Home.
    assert_eq!(averages, [(10_000, 80_000), (18_750, 80_000), (9_375, 132_500), (70_703, 178_437)]);
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
    let machine = common::whole(&common::drawn(1, 2, 2, 1));
    let mut facts = Facts::busy(&machine);
    facts.cpus[2].offline = true;
    for allowed in [Allowed::Cpu(CpuId(2)), Allowed::Llc(LlcId(9)), Allowed::Node(NodeId(9))] {
        let wakee = Wakee { home: Some(CpuId(2)), allowed, ..Wakee::default() };
        let wake = Wake { now: Nanos(0), wakee, waker: Waker::Outside(None) };
        for policy in PolicyKind::all() {
            let To::Cpu(cpu) = policy.wake(&machine, &facts, &wake).to else { panic!("{policy}: shared") };
            assert_ne!(cpu, CpuId(2), "{policy}: {allowed:?}");
        }
    }
}

/// Two that talk take turns while the others wait: only if their data are worth it, and a millisecond at most.
#[test]
fn heavy_ones_that_talk_take_turns_for_a_while() {
    let chain = |poll_us: u64| warmcore_sched::policy::Home.chain_max(Nanos(poll_us * 1_000));
    assert_eq!(chain(1), 0);
    assert_eq!(chain(20), 16);
    assert_eq!(chain(200), 5);
    assert_eq!(chain(10_000), 0);
}
