//! Sim: CPUs charge an account, then one CPU collects the units in their stocks (units that a CPU holds ready for an
//! account).
//!
//! `warmcore_budget` with locked stocks decides which stock holds what: CPUs charge an account, and [`Traced`] records
//! which stocks its `drain_all` examined and emptied. Simulated cache lines give the cost; each stock's line was
//! written last by its own CPU. Three methods to collect: *upstream* reads every CPU's stock, one after the other, and
//! queues work for each other CPU whose stock has units; *patched* also reads every stock, and locks and empties those
//! that have units itself; *ours* is what `drain_all` did: it locks only the stocks of CPUs that may have one, without
//! a read before. On 2 × EPYC 7601, 128 serial reads take 24 µs.
//!
//! # Source
//!
//! Linux 6.2 mm/memcontrol.c, `drain_all_stock`; kernel/workqueue.c, kernel/sched/core.c.

use super::traced::{Step, Traced};
use warmcore_budget::stock::LockedStocks;
use warmcore_budget::{AccountConfig, Accounts};
use warmcore_sim::costs::Costs;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::memory::{LineId, Memory};
use warmcore_sim::random::{Purpose, Random, below};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos};

/// How stocks are collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Upstream,
    Patched,
    Ours,
}

/// The number of lines that queueing work for another CPU takes from it. Each depends on the one before: the work in
/// the stock (`work->data`), the CPU's `pool_workqueue`, its worker pool's lock and list, the first idle worker, that
/// worker's task (`pi_lock`, `state`), the CPU's list of wakes to do. Data on an adjacent line are fetched along. The
/// interrupt itself is posted.
pub(super) const QUEUE_LINES: usize = 6;

/// The conditions of a drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    /// How many CPUs charge: those of the lowest numbers.
    pub charging: usize,
    /// How many of a thousand of them have a stock when it is collected.
    pub with_stock_per_mille: u64,
    /// What remote reads take when neighbouring ones overlap, per thousand ns that they take one after the other.
    pub overlap_per_mille: u64,
    /// The number of lines that queueing work takes.
    pub queue_lines: usize,
    /// The account's limit in units. If it is close to the charged units, no CPU gets a stock.
    pub limit: u64,
}

impl Case {
    /// The case in which only the number of charging CPUs is given: all of them have a stock, and reads do not overlap.
    pub fn plain(charging: usize) -> Self {
        Self {
            charging,
            with_stock_per_mille: 1000,
            overlap_per_mille: 1000,
            queue_lines: QUEUE_LINES,
            limit: u64::MAX,
        }
    }
}

/// The cost of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Drain {
    /// Its time in ns.
    pub ns: u64,
    /// The number of stocks that were emptied.
    pub stocks: usize,
    /// The number of CPUs that were interrupted.
    pub interrupted: usize,
}

/// The memory of a machine, and by CPU the line of its stock and the lines that queueing work takes.
struct Lines {
    memory: Memory,
    stock: Vec<LineId>,
    queue: Vec<Vec<LineId>>,
    now: Nanos,
}

impl Lines {
    /// The lines after every CPU has written its own, as if each had charged and had run a task.
    fn new(costs: &Costs, topology: &Topology, queue_lines: usize) -> Self {
        let mut memory = Memory::new(costs, topology);
        let (mut stock, mut queue) = (Vec::new(), Vec::new());
        for cpu in &topology.cpus {
            let mut own = || {
                let line = memory.line();
                memory.write_line(cpu.id, line, Nanos(0));
                line
            };
            stock.push(own());
            queue.push((0..queue_lines).map(|_| own()).collect());
        }
        // Long after those writes.
        Self { memory, stock, queue, now: Nanos(1_000_000_000) }
    }

    fn read(&mut self, from: CpuId, line: LineId, per_mille: u64) {
        let took = self.memory.read_line(from, line, self.now).0;
        self.now.0 += took * per_mille / 1000;
    }

    fn write(&mut self, from: CpuId, line: LineId) {
        self.now.0 += self.memory.write_line(from, line, self.now).0;
    }
}

/// The CPUs that have a stock of the account: a part of those that charge, drawn for each seed.
fn holders(case: &Case, topology: &Topology, seed: u64) -> Vec<CpuId> {
    let mut charging: Vec<CpuId> = topology.cpus.iter().take(case.charging).map(|cpu| cpu.id).collect();
    let count = (charging.len() as u64 * case.with_stock_per_mille).div_ceil(1000) as usize;
    let random = Random::new(seed);
    charging.sort_by_key(|cpu| (random.bits(u64::from(cpu.0), Purpose::Load, 0), *cpu));
    charging.truncate(count);
    charging.sort();
    charging
}

/// Charges an account on some CPUs, drains it from a random CPU, and returns the cost of that drain by `method`.
pub(super) fn drain(machine: &SimMachine, case: &Case, method: Method, seed: u64) -> Drain {
    let SimMachine { costs, topology, .. } = machine;
    let end = topology.cpus.last().map_or(0, |cpu| cpu.id.0 + 1);
    let accounts = Accounts::new(Traced::new(LockedStocks::new(end)));
    let plan = AccountConfig {
        name: "drained".into(),
        limit: case.limit,
        soft_limit: u64::MAX,
        guarantee: 0,
        listener: None,
    };
    let account = accounts.create(None, plan).unwrap_or_else(|over| panic!("{over}"));
    for cpu in holders(case, topology, seed) {
        accounts.try_charge(account, || cpu, 1).unwrap_or_else(|over| panic!("{over}"));
    }
    accounts.stocks().take_steps();
    let drained = accounts.drain_all(account);
    let steps = accounts.stocks().take_steps();
    let mut taken: Vec<CpuId> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Take(cpu) => Some(*cpu),
            Step::Look(_) => None,
        })
        .collect();
    assert_eq!(drained.stocks as usize, taken.len(), "what was emptied was taken");
    taken.sort();

    let index = below(Random::new(seed).bits(0, Purpose::Neighbour, 0), topology.cpus.len() as u64) as usize;
    let drainer = topology.cpus[index].id;
    let mut lines = Lines::new(costs, topology, case.queue_lines);
    let start = lines.now;
    let index = |cpu: CpuId| topology.cpus.binary_search_by_key(&cpu, |c| c.id).ok();
    let mut interrupted = 0;
    if method == Method::Ours {
        for step in &steps {
            let (Step::Look(cpu) | Step::Take(cpu)) = *step;
            if let Some(index) = index(cpu) {
                // The examination and the emptying of a stock both take its lock.
                let line = lines.stock[index];
                lines.write(drainer, line);
            }
        }
    } else {
        for (index, cpu) in topology.cpus.iter().enumerate() {
            let line = lines.stock[index];
            lines.read(drainer, line, case.overlap_per_mille);
            if taken.binary_search(&cpu.id).is_err() {
                continue;
            }
            if method == Method::Patched || cpu.id == drainer {
                lines.write(drainer, line);
                continue;
            }
            for line in lines.queue[index].clone() {
                lines.write(drainer, line);
            }
            interrupted += 1;
        }
    }
    Drain { ns: lines.now.0 - start.0, stocks: taken.len(), interrupted }
}
