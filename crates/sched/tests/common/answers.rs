//! Properties that each answer of a policy must have, with random facts. The tests that include this file choose the
//! policies.
#![allow(dead_code)] // Each test uses a part.

use crate::common::{Cpu, Facts, all_machines};
use proptest::prelude::*;
use std::fmt::Display;
use std::sync::LazyLock;
use warmcore_sched::policy::may;
use warmcore_sched::{
    Allowed, Policy, SchedDomains, StealDecision, TargetQueue, View, Wake, WakeDecision, WakeSource, Wakee,
};
use warmcore_types::{CpuId, LlcId, Nanos, NodeId};

/// The machines with at most 240 CPUs, so that many cases take a short time.
pub static MACHINES: LazyLock<Vec<(String, SchedDomains)>> =
    LazyLock::new(|| all_machines().into_iter().filter(|(_, machine)| machine.cpus() <= 240).collect());

/// A random number of ns: 0, up to 2 ms, the largest, or any.
fn nanos() -> impl Strategy<Value = Nanos> {
    prop_oneof![Just(0), 0..2_000_000u64, Just(u64::MAX), any::<u64>()].prop_map(Nanos)
}

prop_compose! {
    fn cpu()(idle: bool, offline in prop::bool::weighted(0.3), stuck: bool, hot_until in nanos(),
             backlog in prop_oneof![Just(0), 0..5u32, any::<u32>()], since in nanos(), migration_cost in nanos())
            -> Cpu {
        Cpu { idle, offline, stuck, backlog, since, migration_cost, hot_until, ..Cpu::default() }
    }
}

prop_compose! {
    pub fn case()(which in 0..MACHINES.len())
             (which in Just(which), cpus in prop::collection::vec(cpu(), MACHINES[which].1.cpus()),
              waiting in prop::collection::vec(prop_oneof![4 => Just(0), 1 => 0..9u32], MACHINES[which].1.shards()),
              prev_cpu in prop::option::weighted(0.8, 0..MACHINES[which].1.cpus()),
              near in prop::option::weighted(0.9, 0..MACHINES[which].1.cpus()),
              (outside, allowed) in (any::<bool>(), 0..5u8), to in 0..MACHINES[which].1.cpus(),
              (now, migration_cost, accrued_cost) in (nanos(), nanos(), nanos()))
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
        // A task may run on its previous CPU. A waker's CPU is online and not idle.
        let prev_cpu = prev_cpu.map(cpu).filter(|prev_cpu| may(machine, allowed, *prev_cpu));
        let waker = match near.map(cpu) {
            Some(near) if !outside => {
                (facts.cpus[near.index()].offline, facts.cpus[near.index()].idle) = (false, false);
                WakeSource::Cpu(near)
            }
            near => WakeSource::Outside(near),
        };
        (which, facts, Wake { now, wakee: Wakee { prev_cpu, migration_cost, accrued_cost, woken_from: near.map(cpu), allowed, ..Wakee::default() }, waker })
    }
}

/// Whether an answer may name the CPU: it is online, unless no CPU is, and allowed, unless no online CPU is allowed.
fn is_right(machine: &SchedDomains, facts: &Facts, allowed: Allowed, cpu: CpuId) -> bool {
    let online = || (0..machine.cpus() as u32).map(CpuId).filter(|cpu| !facts.is_offline(*cpu));
    let is_online = !facts.is_offline(cpu) || online().next().is_none();
    let is_allowed = may(machine, allowed, cpu) || !online().any(|cpu| may(machine, allowed, cpu));
    is_online && is_allowed
}

/// When a policy must name a CPU to kick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helps {
    /// Whenever a CPU is idle.
    Always,
    /// Whenever a CPU is idle and the CPU with the task is stuck. In other cases it may.
    WhereStuck,
    /// Never, but it may.
    Sometimes,
}

/// Properties in which policies differ.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// The policy has one shared queue for all CPUs. The CPUs of the shard that gives the queue its number may be
    /// offline.
    pub has_one_queue: bool,
    /// The policy uses accrued costs and hot windows, and lets a CPU sleep until a given time.
    pub keeps_accrued_costs: bool,
    /// A CPU that steals looks at all others.
    pub looks_at_all: bool,
    /// When the policy must name a CPU to kick.
    pub helps: Helps,
}

type Checked = Result<(), TestCaseError>;

/// The CPU that a wake names is allowed and online if any CPU is both. The CPU that it kicks is idle.
pub fn a_woken_task_goes_where_it_may<P: Policy + Display>(
    policy: &P,
    habits: Habits,
    machine: &SchedDomains,
    facts: &Facts,
    wake: &Wake,
) -> Checked {
    let allowed = wake.wakee.allowed;
    let placed = policy.wake(machine, facts, wake);
    prop_assert_eq!(placed, policy.wake(machine, facts, wake));
    let WakeDecision { to, kick, accrued_cost, hot_kept, hot_broken } = placed;
    match to {
        TargetQueue::Cpu(cpu) => {
            prop_assert!(is_right(machine, facts, allowed, cpu), "{policy}: {placed:?}");
            prop_assert!(kick.is_none_or(|kick| kick == cpu), "{policy}: {placed:?}");
            prop_assert!(kick.is_none_or(|kick| facts.is_idle(kick)), "{policy}: {placed:?}");
        }
        TargetQueue::Shard(shard) => {
            prop_assert_eq!(allowed, Allowed::Anywhere);
            prop_assert!(shard < machine.shards());
            prop_assert!(kick.is_none_or(|kick| facts.is_idle(kick) && !facts.is_offline(kick)));
            let is_served = machine.cpus_of(shard).iter().any(|cpu| !facts.is_offline(*cpu));
            prop_assert!(is_served || habits.has_one_queue || facts.cpus.iter().all(|cpu| cpu.offline));
        }
    }
    if let (TargetQueue::Cpu(cpu), true) = (to, hot_broken) {
        prop_assert!(facts.hot_until(cpu) > wake.now);
    }
    prop_assert!(habits.keeps_accrued_costs || (accrued_cost, hot_kept, hot_broken) == (Nanos(0), 0, false));
    Ok(())
}

/// A CPU that is to be kicked is idle and online.
pub fn a_cpu_to_notify_is_idle<P: Policy + Display>(
    policy: &P,
    habits: Habits,
    machine: &SchedDomains,
    facts: &Facts,
    now: Nanos,
) -> Checked {
    let is_idle = |cpu: &CpuId| facts.is_idle(*cpu) && !facts.is_offline(*cpu);
    let any = (0..machine.cpus() as u32).map(CpuId).any(|cpu| is_idle(&cpu));
    for at in [0, machine.cpus() - 1] {
        let called = policy.cpu_to_notify(machine, facts, CpuId(at as u32), now);
        prop_assert!(called.is_none_or(|cpu| is_idle(&cpu)), "{policy}: {called:?}");
        let never_misses = match habits.helps {
            Helps::Always => true,
            Helps::WhereStuck => facts.is_stuck(CpuId(at as u32)),
            Helps::Sometimes => false,
        };
        prop_assert!(!never_misses || called.is_some() == any, "{policy}: {called:?}");
    }
    Ok(())
}

/// A steal names a queue or another CPU, where tasks wait. A policy that looks at all CPUs does not answer
/// [`StealDecision::Nothing`] while a task waits elsewhere.
pub fn a_steal_is_from_where_tasks_wait<P: Policy + Display>(
    policy: &P,
    habits: Habits,
    machine: &SchedDomains,
    facts: &Facts,
    now: Nanos,
) -> Checked {
    let tasks_wait = |me: CpuId| {
        facts.waiting.iter().any(|n| *n > 0) || machine.others(me).any(|cpu| facts.backlog(cpu) > 0)
    };
    for me in [CpuId(0), CpuId(machine.cpus() as u32 - 1)] {
        match policy.steal(machine, facts, me, now) {
            StealDecision::Shard(shard) => prop_assert!(facts.shared_queue_len(shard) > 0),
            StealDecision::From { cpu, at_most } => {
                prop_assert!(cpu != me && (1..=facts.backlog(cpu)).contains(&at_most));
            }
            StealDecision::Until(at) => prop_assert!(at > now && habits.keeps_accrued_costs),
            StealDecision::Nothing => prop_assert!(!(habits.looks_at_all && tasks_wait(me)), "{policy}"),
        }
    }
    Ok(())
}

/// If all CPUs on which a task may run are offline, it runs on another CPU.
pub fn a_task_whose_cpus_are_gone_runs_elsewhere<P: Policy + Display>(policy: &P) {
    let machine = crate::common::whole(&crate::common::drawn(1, 2, 2, 1));
    let mut facts = Facts::busy(&machine);
    facts.cpus[2].offline = true;
    for allowed in [Allowed::Cpu(CpuId(2)), Allowed::Llc(LlcId(9)), Allowed::Node(NodeId(9))] {
        let wakee = Wakee { prev_cpu: Some(CpuId(2)), allowed, ..Wakee::default() };
        let wake = Wake { now: Nanos(0), wakee, waker: WakeSource::Outside(None) };
        let TargetQueue::Cpu(cpu) = policy.wake(&machine, &facts, &wake).to else {
            panic!("{policy}: shared")
        };
        assert_ne!(cpu, CpuId(2), "{policy}: {allowed:?}");
    }
}
