//! The decisions of `src/bpf/policy.h`, compiled natively, against those of `crates/sched` where both decide the same: whether a
//! wake finds its previous CPU idle, how deep it searches, which idle CPUs are kept for an owner, and in whose queue it waits if it
//! finds none. The order of the CPUs, and the fallback of a task whose CPUs are offline, are the host's.

#[path = "../../../crates/sched/tests/common/mod.rs"]
mod common;
#[path = "../../../crates/sched/tests/common/golden.rs"]
mod golden;

use common::{Facts, all_machines, drawn, whole};
use fastrand::Rng;
use std::fmt;
use warmcore_sched::policy::near::{Found, find_idle, llc_shards, nearest_allowed, takes};
use warmcore_sched::{
    Allowed, Policy, SchedDomains, SharedQueue, StealDecision, View, Wake, WakeDecision, WakeSource, Wakee,
};
use warmcore_types::{CpuId, Nanos};

/// `struct pol_search`.
#[repr(C)]
struct Search {
    first_kept: i64,
    first_llc: u64,
    kept: u64,
}

/// `struct pol_seen`.
#[repr(C)]
struct Seen {
    cpu: u64,
    llc: u64,
    depth: u64,
    is_allowed: bool,
    may_keep: bool,
    is_kept: bool,
}

/// `enum pol_look`.
const TAKE: u32 = 1;
const END: u32 = 2;

/// `POL_USE_SCALE`.
const SCALE: u64 = 1024;

unsafe extern "C" {
    safe fn warm_scan_depth(cpus: u64, used: u64) -> u64;
    safe fn warm_is_in_reach(steps: u64, depth: u64) -> bool;
    safe fn warm_look(search: &mut Search, seen: &Seen) -> u32;
}

fn depth(machine: &SchedDomains, view: &impl View, near: CpuId) -> u64 {
    let cpus = || llc_shards(machine, near).flat_map(|shard| machine.cpus_of(shard));
    let is_busy = |cpu: &&CpuId| !view.is_idle(**cpu) || view.is_offline(**cpu);
    warm_scan_depth(cpus().count() as u64, cpus().filter(is_busy).count() as u64 * SCALE)
}

/// `mode=shared-queue` of the scheduler: its wakes of tasks that ran before.
struct Native;

impl fmt::Display for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shared-queue")
    }
}

impl Policy for Native {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        let allowed = wake.wakee.allowed;
        let home = nearest_allowed(machine, view, wake.wakee.prev_cpu.expect("it ran before"), allowed);
        let is_idle = |cpu: &CpuId| view.is_idle(*cpu) && takes(machine, view, allowed, *cpu);
        if is_idle(&home) {
            return WakeDecision::on(home, true);
        }
        let depth = depth(machine, view, home);
        let others = llc_shards(machine, home).flat_map(|shard| machine.cpus_from(home, shard));
        let in_reach = (1..).zip(others).take_while(|(steps, _)| warm_is_in_reach(*steps, depth));
        let found = in_reach.map(|(_, cpu)| cpu).find(is_idle);
        // The home's queue: where it is idle but not allowed, the fallback of both is the same.
        found.map_or(WakeDecision::on(home, view.is_idle(home)), |cpu| WakeDecision::on(cpu, true))
    }

    fn steal(&self, _: &SchedDomains, _: &impl View, _: CpuId, _: Nanos) -> StealDecision {
        unreachable!("only wakes are compared")
    }

    fn cpu_to_notify(&self, _: &SchedDomains, _: &impl View, _: CpuId, _: Nanos) -> Option<CpuId> {
        unreachable!("only wakes are compared")
    }
}

/// `hot_windows=2` of the scheduler.
fn native_search(
    machine: &SchedDomains,
    facts: &Facts,
    near: CpuId,
    now: Nanos,
    wakee: &Wakee,
) -> Option<Found> {
    let mut search = Search { first_kept: -1, first_llc: 0, kept: 0 };
    let found = |cpu: u64, hot_kept: u64, hot_broken: bool| {
        Some(Found { cpu: CpuId(cpu as u32), hot_kept: hot_kept as u8, hot_broken })
    };
    for cpu in std::iter::once(near).chain(machine.others(near)) {
        if !facts.is_idle(cpu) || facts.is_offline(cpu) {
            continue;
        }
        let seen = Seen {
            cpu: u64::from(cpu.0),
            llc: u64::from(machine.llc_of(cpu).0),
            depth: depth(machine, facts, cpu),
            is_allowed: takes(machine, facts, wakee.allowed, cpu),
            may_keep: true,
            is_kept: facts.hot_until(cpu) > now && wakee.prev_cpu != Some(cpu),
        };
        match warm_look(&mut search, &seen) {
            TAKE => return found(seen.cpu, search.kept, false),
            END => break,
            _ => {}
        }
    }
    u64::try_from(search.first_kept).ok().and_then(|cpu| found(cpu, search.kept - 1, true))
}

/// A random situation: how many CPUs idle, are kept or offline differs from one to the next.
fn facts(random: &mut Rng, machine: &SchedDomains, facts: &mut Facts) {
    let [idle, hot, offline] = [random.u8(..), random.u8(..), random.u8(..) / 8];
    for cpu in &mut facts.cpus {
        (cpu.idle, cpu.offline) = (random.u8(..) < idle, random.u8(..) < offline);
        cpu.hot_until = Nanos(if random.u8(..) < hot { random.u64(..2000) } else { 0 });
    }
    assert_eq!(facts.cpus.len(), machine.cpus());
}

fn wake(random: &mut Rng, machine: &SchedDomains) -> Wake {
    let mut cpu = || CpuId(random.u32(..machine.cpus() as u32));
    let (prev_cpu, to, waker) = (Some(cpu()), cpu(), WakeSource::Cpu(cpu()));
    let allowed = match random.u8(..8) {
        0 => Allowed::Cpu(to),
        1 => Allowed::Llc(machine.llc_of(to)),
        2 => Allowed::Node(machine.node_of(to)),
        _ => Allowed::Anywhere,
    };
    Wake { now: Nanos(random.u64(..2000)), wakee: Wakee { prev_cpu, allowed, ..Wakee::default() }, waker }
}

#[test]
fn the_golden_wakes_have_the_same_answers() {
    let ran_before = |wake: &Wake| wake.wakee.prev_cpu.is_some();
    let asked = |kind: &str, wake: Option<&Wake>| kind == "wake" && wake.is_none_or(ran_before);
    let compared = golden::check(&[Native], |name| name != "shared-queue", asked);
    assert!(compared >= 12, "only {compared} wakes were compared");
}

#[test]
fn a_million_random_wakes_have_the_same_answers() {
    // Small ones, and two whose LLCs are as in large ones: a search asks for the depth at each idle CPU.
    let mut machines: Vec<_> = all_machines().into_iter().map(|(_, machine)| machine).collect();
    machines.retain(|machine| machine.cpus() <= 16);
    machines.push(whole(&drawn(1, 3, 7, 1)));
    machines.push(whole(&drawn(2, 2, 4, 2)));
    assert!(machines.len() >= 5, "{}", machines.len());
    let random = &mut Rng::with_seed(27);
    let mut seen = [0u32; 4];
    for number in 0..1_000_000 {
        let machine = &machines[number % machines.len()];
        let mut situation = Facts::busy(machine);
        facts(random, machine, &mut situation);
        let wake = wake(random, machine);
        let placed = SharedQueue.wake(machine, &situation, &wake);
        assert_eq!(Native.wake(machine, &situation, &wake), placed, "{situation:?} {wake:?}");
        let near = wake.wakee.prev_cpu.expect("it has one");
        let found = find_idle(machine, &situation, near, wake.now, &wake.wakee);
        assert_eq!(
            native_search(machine, &situation, near, wake.now, &wake.wakee),
            found,
            "{situation:?} {wake:?}"
        );
        seen[0] += u32::from(placed.kick.is_none());
        seen[1] += u32::from(found.is_none());
        seen[2] += u32::from(found.is_some_and(|found| found.hot_broken));
        seen[3] += u32::from(found.is_some_and(|found| found.hot_kept > 0));
    }
    assert!(seen.iter().all(|cases| *cases > 10_000), "each outcome comes up: {seen:?}");
}
