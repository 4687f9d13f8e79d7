//! Contention: how often a drain finds the lock of a stock (units that a CPU holds ready) held, and how often the CPU
//! that owns the stock finds it held by a drain.
//!
//! Every CPU does its local operations at regular intervals, from a random time on, and holds its stock's lock during
//! each. A drain goes from stock to stock, checks whether the lock is held when it arrives, and holds it for as long as
//! an operation; an owner whose operation begins in that time finds the lock held. Between two loops no CPU charges:
//! all have finished a loop before the drain begins. At the 26 700 operations per CPU and second of the published run
//! on 128 CPUs, of 30 ns each, a lock is held for 8 parts in 10 000 of the time.
//!
//! # Source
//!
//! linux-mm, January 2023: the run of eight hours, with its numbers of operations and drains.

use warmcore_sim::machine::SimMachine;
use warmcore_sim::random::{Purpose, Random, below};
use warmcore_topo::Distance;

/// Operations in the published run: eight hours of charging by all CPUs.
pub(super) const CALLS: u64 = 98_248_009_407;
/// Drains in the same run.
pub(super) const DRAINS: u64 = 592;
/// The length of the same run.
const RUN_NS: u64 = 8 * 3600 * 1_000_000_000;
/// How long an operation holds its stock's lock, in cycles of the base clock: about all of its time.
pub(super) const HELD_CYCLES: u64 = 64;

/// When drains run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// After all CPUs have finished a loop, before the next one.
    BetweenLoops,
    /// While CPUs charge.
    Meanwhile,
}

/// How often a lock was found held, over all drains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Met {
    /// How often the owner held its lock when a drain came.
    pub(super) by_drains: u64,
    /// How often a drain held the lock when its owner came.
    pub(super) by_owners: u64,
}

/// Runs this many drains and counts the locks that were found held.
pub(super) fn met(machine: &SimMachine, when: When, drains: u64, seed: u64) -> Met {
    let SimMachine { costs, topology, .. } = machine;
    let cpus = topology.cpus.len() as u64;
    let period = (RUN_NS * cpus / CALLS).max(1);
    let base_mhz = costs.ps("base_mhz") / 1000;
    let held = HELD_CYCLES * 1000 / base_mhz.max(1);
    let loop_ns = RUN_NS / DRAINS;
    let random = Random::new(seed);
    let mut met = Met::default();
    for drain in 0..drains {
        let bits = |cpu: u64, count| random.bits(cpu, Purpose::Load, 2 * drain + count);
        let phase = |cpu: u64| below(bits(cpu, 0), period);
        // A CPU's last operation begins within the last hundredth of the loop.
        let ends = |cpu: u64| {
            let last = loop_ns - below(bits(cpu, 1), loop_ns / 100);
            last - (last + period - phase(cpu)) % period + held
        };
        let barrier = (0..cpus).map(ends).max().unwrap_or(0);
        let mut now = match when {
            When::BetweenLoops => barrier,
            When::Meanwhile => loop_ns / 2,
        };
        let drainer = &topology.cpus[below(random.bits(drain, Purpose::Neighbour, 0), cpus) as usize];
        for (number, cpu) in topology.cpus.iter().enumerate() {
            let number = number as u64;
            let distance = topology.distance(drainer.id, cpu.id).unwrap_or(Distance::Other);
            now += costs.hand_over(distance) / 1000;
            let is_running = when == When::Meanwhile || now < ends(number);
            let since = (now + period - phase(number)) % period;
            // The draining CPU does no operation of its own in that time.
            let is_other = distance != Distance::Same && is_running;
            let is_held = is_other && since < held;
            met.by_drains += u64::from(is_held);
            // The owner's next operation begins before the drain releases the lock.
            met.by_owners += u64::from(is_other && !is_held && period - since < held);
        }
    }
    met
}
