//! Rates: what a touch of a line costs each core, from how often each core touches it.
//!
//! Touches are assumed to be independent of each other (Poisson). A read by core r hits if the core's own last touch
//! is more recent than the last write by any other core. So it misses with P = W / (W + A), where W is the rate of
//! the other cores' writes and A the rate of core r's touches. With R the rate of the other cores' reads, it misses and
//! gets the line from core c, the last to touch it, with probability (w_c + P·r_c) / (W + R + A). A write hits if the
//! core's last write is more recent than the last touch by any other core; else it waits for the farthest core that has
//! the line. While the line is in transfer to a writer, other cores wait: a queue with one server
//! (Pollaczek-Khinchine). The rates of all cores at a distance are summed first, so the time is linear in the number of
//! cores.
//!
//! 224 CPUs of 112 cores that each read and write once per 50 µs: 98 % of the reads miss.
//!
//! # Source
//!
//! The formulas describe in closed form what the lines of `warmcore_sim::memory::Memory` do; `tests/culprit.rs`
//! compares the two. The formulas are inexact in two points. In `Memory` a reader gets the line from the core that got
//! it last, not from the core that touched it last; this only matters among readers with different rates. And the
//! formula for waiting assumes that a core that finds the line in transfer did not have it before.

use warmcore_sim::machine::SimMachine;
use warmcore_topo::Distance;

/// Distances between cores, the nearest first. The last one includes all cores.
const LEVELS: [Distance; 4] = [Distance::Llc, Distance::Node, Distance::Socket, Distance::Other];

/// The cores of a machine and the distances between them.
pub(super) struct Cores {
    /// By CPU number: its core.
    core_of: Vec<usize>,
    /// By core and level: the core's group.
    groups: Vec<[usize; LEVELS.len()]>,
    /// By level: the number of groups.
    counts: [usize; LEVELS.len()],
    /// By level: the cost of a transfer, in ns.
    hand_over: [f64; LEVELS.len()],
    /// The cost of a hit in the core's own cache, in ns.
    own: f64,
}

/// By core: reads and writes per second.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rates(pub Vec<(f64, f64)>);

/// What a touch of a line costs a core, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cost {
    pub read: f64,
    pub write: f64,
}

/// The largest load for the queue's formula, which diverges at 1: a larger one is replaced by this.
const BUSY_MAX: f64 = 0.95;

/// The costs of a line.
#[derive(Debug, Clone)]
pub(super) struct Solved {
    /// By core.
    pub costs: Vec<Cost>,
    /// The share of the time in which the line is in transfer to a writer.
    pub busy: f64,
}

/// A time in ps as whole ns, rounded up as in `Memory`.
fn ns(ps: u64) -> f64 {
    ps.div_ceil(1000) as f64
}

impl Cores {
    pub fn new(machine: &SimMachine) -> Self {
        let SimMachine { costs, topology, .. } = machine;
        let end = topology.cpus.last().map_or(0, |cpu| cpu.id.index() + 1);
        let mut core_of = vec![usize::MAX; end];
        let mut groups = vec![[0; LEVELS.len()]; topology.cores.len()];
        for cpu in &topology.cpus {
            core_of[cpu.id.index()] = cpu.core.index();
            let node = topology.nodes.iter().position(|n| n.id == cpu.node).unwrap_or(0);
            groups[cpu.core.index()] = [cpu.llc.index(), node, cpu.socket.index(), 0];
        }
        let counts = [topology.llcs.len(), topology.nodes.len(), topology.sockets.len(), 1];
        let hand_over = LEVELS.map(|level| ns(costs.hand_over(level)));
        Self { core_of, groups, counts, hand_over, own: ns(costs.l1()) }
    }

    pub fn len(&self) -> usize {
        self.groups.len()
    }

    pub fn core_of(&self, cpu: warmcore_types::CpuId) -> usize {
        self.core_of[cpu.index()]
    }

    pub fn none(&self) -> Rates {
        Rates(vec![(0.0, 0.0); self.len()])
    }

    /// The sum of a value over the cores of each group, by level.
    fn sums(&self, of: impl Fn(usize) -> f64) -> [Vec<f64>; LEVELS.len()] {
        std::array::from_fn(|level| {
            let mut sums = vec![0.0; self.counts[level]];
            for (core, groups) in self.groups.iter().enumerate() {
                sums[groups[level]] += of(core);
            }
            sums
        })
    }

    /// What a touch costs each core, for a line with these rates.
    pub fn solve(&self, line: &Rates) -> Solved {
        let rates = &line.0;
        let reads = self.sums(|core| rates[core].0);
        let writes = self.sums(|core| rates[core].1);
        let last = LEVELS.len() - 1;
        let (all_reads, all_writes) = (reads[last][0], writes[last][0]);
        // By level and group: the probability that a core of the group wrote last, and that no core outside of the
        // group has read since. Then all cores that have the line are in the group.
        let kept: Vec<_> = (0..LEVELS.len())
            .map(|level| {
                let near = self.sums(|core| {
                    let outside = all_reads - reads[level][self.groups[core][level]];
                    share(rates[core].1, all_writes + outside.max(0.0))
                });
                near[level].clone()
            })
            .collect();
        let mut costs = Vec::with_capacity(self.len());
        // Sums over all writes in a second: the ns in which the line is in transfer to the writer, and the squares of
        // these times.
        let (mut busy, mut squares) = (0.0, 0.0);
        for (core, &(own_reads, own_writes)) in rates.iter().enumerate() {
            let own = own_reads + own_writes;
            let others_writes = all_writes - own_writes;
            let miss = share(others_writes, others_writes + own);
            let touches = all_reads + all_writes;
            let mut read = (1.0 - miss) * self.own;
            let alone = share(own_writes, own_writes + touches - own);
            let (mut inside, mut within) = (own_writes + own_reads * miss, alone);
            let mut write = alone * self.own;
            for level in 0..LEVELS.len() {
                let group = self.groups[core][level];
                let hand_over = self.hand_over[level];
                let upto = writes[level][group] + reads[level][group] * miss;
                read += share((upto - inside).max(0.0), touches) * hand_over;
                inside = upto.max(inside);
                let taken = (kept[level][group] - within).max(0.0);
                write += taken * hand_over;
                busy += own_writes * taken * hand_over;
                squares += own_writes * taken * hand_over * hand_over;
                within = kept[level][group].max(within);
            }
            costs.push(Cost { read, write });
        }
        let busy = (busy / 1e9).min(BUSY_MAX);
        let wait = squares / 1e9 / (2.0 * (1.0 - busy));
        for (cost, (_, own_writes)) in costs.iter_mut().zip(rates) {
            let others = share(all_writes - own_writes, all_writes);
            *cost = Cost { read: cost.read + wait * others, write: cost.write + wait * others };
        }
        Solved { costs, busy }
    }
}

impl Rates {
    pub fn add(&mut self, other: &Rates) {
        for (mine, more) in self.0.iter_mut().zip(&other.0) {
            *mine = (mine.0 + more.0, mine.1 + more.1);
        }
    }

    pub fn reads(&self) -> f64 {
        self.0.iter().map(|r| r.0).sum()
    }

    pub fn writes(&self) -> f64 {
        self.0.iter().map(|r| r.1).sum()
    }

    /// Cores that write.
    pub fn writers(&self) -> usize {
        self.0.iter().filter(|r| r.1 > 0.0).count()
    }
}

/// a / b, or 0 if b is 0.
fn share(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
