//! Scheduling domains: which CPUs of a scheduler share a core, an LLC, a node or a socket.
//!
//! The CPUs are sorted by (socket, node, LLC, core), so that each domain of a CPU is an interval. A *shard* is a set of
//! CPUs that share one queue: the CPUs of an LLC, or, if these are more than [`SHARD_CPUS_MAX`], of a part of it. The
//! parts contain whole cores; only a core with more CPUs than that is cut itself.
//!
//! A CPU that searches goes through its own shard first, then through the shards of its domains from the innermost to
//! the outermost. In each domain the search begins with the shard after those already searched. In another shard it
//! begins at the index that the CPU has in its own shard, modulo the other shard's size, so that neighbours do not all
//! begin with the same CPU.
//!
//! Where caches, nodes and sockets overlap in part, an LLC counts as being on the node and socket of its first CPU:
//! CPUs that share a cache stay together.
//!
//! # Cost
//! About 48 KiB for 1024 CPUs; nothing is written after `new`. The number of loads for the first ten CPUs of a search
//! does not grow with the machine.

use std::ops::Range;
use warmcore_topo::{Cpu, Distance, Topology};
use warmcore_types::{CoreId, CpuId, LlcId, NodeId, SocketId};

/// A set of CPUs of one shard: bit `i` is CPU `i` of [`SchedDomains::cpus_of`].
pub type ShardMask = u16;

/// The largest number of CPUs that one shard has.
pub const SHARD_CPUS_MAX: usize = ShardMask::BITS as usize;

#[derive(Debug, Clone)]
struct CpuInfo {
    kernel_cpu: CpuId,
    core: CoreId,
    llc: LlcId,
    node: NodeId,
    shard: u32,
    /// The CPU's index in `sorted`.
    at: u32,
    /// The set of this CPU alone.
    bit: ShardMask,
    /// The set of the CPUs of its core, in its shard.
    core_mates: ShardMask,
    /// The interval of its core in `sorted`.
    core_at: (u32, u32),
    /// Its index in `numbered`.
    number_at: u32,
}

#[derive(Debug, Clone)]
struct Shard {
    /// The interval of its CPUs in `sorted`.
    cpus: Range<usize>,
    /// Intervals of shards, each within the next: the shard itself; the shards of its core, which are several if the
    /// core has more CPUs of the scheduler than a shard may have; of its LLC; of its node; of its socket; all shards.
    domains: [Range<usize>; 6],
}

/// Which CPUs of a scheduler share a core, an LLC, a node or a socket.
#[derive(Debug, Clone)]
pub struct SchedDomains {
    cpu_infos: Vec<CpuInfo>,
    sorted: Vec<CpuId>,
    /// The same CPUs as in `sorted`, but within each LLC sorted by the kernel's numbers.
    numbered: Vec<CpuId>,
    shards: Vec<Shard>,
}

impl SchedDomains {
    /// The domains of a scheduler whose CPU `i` is the kernel's CPU `kernel_cpus[i]`. The same CPU of the kernel may
    /// occur several times. A CPU that the topology does not have is taken to be where the topology's first CPU is.
    pub fn new(topology: &Topology, kernel_cpus: &[CpuId]) -> Self {
        let cpu_of = |id: CpuId| topology.cpus.iter().find(|cpu| cpu.id == id).unwrap_or(&topology.cpus[0]);
        let found: Vec<&Cpu> = kernel_cpus.iter().map(|id| cpu_of(*id)).collect();
        // The socket and node of an LLC are those of its first CPU.
        let lead = |llc: LlcId| -> (SocketId, NodeId) {
            let first = topology.cpus.iter().find(|cpu| cpu.llc == llc).unwrap_or(&topology.cpus[0]);
            (first.socket, first.node)
        };
        let keys: Vec<_> = found.iter().map(|cpu| (lead(cpu.llc), cpu.llc, cpu.core)).collect();
        let mut sorted: Vec<CpuId> = (0..found.len() as u32).map(CpuId).collect();
        sorted.sort_by_key(|cpu| (keys[cpu.index()], *cpu));
        let key = |at: usize| keys[sorted[at].index()];

        let mut shards: Vec<Shard> = Vec::new();
        for llc in runs(0..sorted.len(), |at| key(at).1) {
            for cpus in cut(llc, |at| key(at).2) {
                shards.push(Shard { cpus, domains: [const { 0..0 }; 6] });
            }
        }
        let firsts: Vec<_> = shards.iter().map(|shard| key(shard.cpus.start)).collect();
        for i in 0..shards.len() {
            let around = |is_near: &dyn Fn(usize) -> bool| {
                let begin = (0..i).rev().take_while(|at| is_near(*at)).last().unwrap_or(i);
                let end = (i + 1..firsts.len()).take_while(|at| is_near(*at)).last().unwrap_or(i) + 1;
                begin..end
            };
            let ((socket, node), llc, core) = firsts[i];
            shards[i].domains = [
                i..i + 1,
                around(&|at| firsts[at].2 == core),
                around(&|at| firsts[at].1 == llc),
                around(&|at| firsts[at].0 == (socket, node)),
                around(&|at| firsts[at].0.0 == socket),
                0..firsts.len(),
            ];
        }
        let mut cpu_infos: Vec<CpuInfo> = found
            .iter()
            .zip(kernel_cpus)
            .map(|(cpu, kernel_cpu)| CpuInfo {
                kernel_cpu: *kernel_cpu,
                core: cpu.core,
                llc: cpu.llc,
                node: cpu.node,
                shard: 0,
                at: 0,
                bit: 0,
                core_mates: 0,
                core_at: (0, 0),
                number_at: 0,
            })
            .collect();
        let mut numbered = sorted.clone();
        for llc in runs(0..sorted.len(), |at| key(at).1) {
            numbered[llc.clone()].sort_by_key(|cpu| (cpu_infos[cpu.index()].kernel_cpu, *cpu));
            llc.for_each(|at| cpu_infos[numbered[at].index()].number_at = at as u32);
        }
        for core in runs(0..sorted.len(), |at| key(at).2) {
            for at in core.clone() {
                let info = &mut cpu_infos[sorted[at].index()];
                (info.at, info.core_at) = (at as u32, (core.start as u32, core.end as u32));
            }
        }
        for (shard, Shard { cpus, .. }) in shards.iter().enumerate() {
            for at in cpus.clone() {
                let info = &mut cpu_infos[sorted[at].index()];
                (info.shard, info.bit) = (shard as u32, 1 << (at - cpus.start));
                let core = cpus.start.max(info.core_at.0 as usize)..cpus.end.min(info.core_at.1 as usize);
                info.core_mates = core.fold(0, |set, at| set | 1 << (at - cpus.start));
            }
        }
        Self { cpu_infos, sorted, numbered, shards }
    }

    /// The number of CPUs that the scheduler has.
    pub fn cpus(&self) -> usize {
        self.cpu_infos.len()
    }

    /// The number of shards: one per LLC that has CPUs of the scheduler, more for an LLC with many.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The shard that a CPU belongs to.
    #[inline]
    pub fn shard_of(&self, cpu: CpuId) -> usize {
        self.cpu_infos[cpu.index()].shard as usize
    }

    /// The CPUs of a shard.
    #[inline]
    pub fn cpus_of(&self, shard: usize) -> &[CpuId] {
        &self.sorted[self.shards[shard].cpus.clone()]
    }

    /// The set of this CPU alone, in its shard.
    #[inline]
    pub fn bit(&self, cpu: CpuId) -> ShardMask {
        self.cpu_infos[cpu.index()].bit
    }

    /// The kernel's number of a CPU.
    pub fn kernel_cpu(&self, cpu: CpuId) -> CpuId {
        self.cpu_infos[cpu.index()].kernel_cpu
    }

    /// The LLC of a CPU.
    #[inline]
    pub fn llc_of(&self, cpu: CpuId) -> LlcId {
        self.cpu_infos[cpu.index()].llc
    }

    /// The node of a CPU.
    #[inline]
    pub fn node_of(&self, cpu: CpuId) -> NodeId {
        self.cpu_infos[cpu.index()].node
    }

    /// Whether a task with this affinity may run on the CPU.
    #[inline]
    pub fn allows(&self, allowed: crate::Allowed, cpu: CpuId) -> bool {
        crate::policy::may(self, allowed, cpu)
    }

    /// The distance between two CPUs.
    #[inline]
    pub fn distance(&self, a: CpuId, b: CpuId) -> Distance {
        let (near, far, same) = (&self.cpu_infos[a.index()], &self.cpu_infos[b.index()], a == b);
        let [.., node, socket, _] = &self.shards[near.shard as usize].domains;
        let there = far.shard as usize;
        match () {
            () if same => Distance::Same,
            () if near.core == far.core => Distance::Smt,
            () if near.llc == far.llc => Distance::Llc,
            () if node.contains(&there) => Distance::Node,
            () if socket.contains(&there) => Distance::Socket,
            () => Distance::Other,
        }
    }

    /// The CPUs at this distance from `cpu` or nearer, `cpu` included.
    #[inline]
    pub fn within(&self, cpu: CpuId, distance: Distance) -> &[CpuId] {
        let info = &self.cpu_infos[cpu.index()];
        let [_, _, llc, node, socket, all] = &self.shards[info.shard as usize].domains;
        let domain = match distance {
            Distance::Same => return &self.sorted[info.at as usize..=info.at as usize],
            Distance::Smt => return &self.sorted[info.core_at.0 as usize..info.core_at.1 as usize],
            Distance::Llc => llc,
            Distance::Node => node,
            Distance::Socket => socket,
            Distance::Other => all,
        };
        &self.sorted[self.shards[domain.start].cpus.start..self.shards[domain.end - 1].cpus.end]
    }

    /// The CPUs of the LLC of `cpu` in the order in which Linux searches an LLC: by the kernel's numbers, beginning
    /// after `cpu`. The lowest number follows the highest; `cpu` itself comes last.
    pub fn behind(&self, cpu: CpuId) -> impl Iterator<Item = CpuId> + '_ {
        let (at, llc) = self.number_in_llc(cpu);
        let next = at as usize + 1;
        (next..llc.end).chain(llc.start..next).map(|at| self.numbered[at])
    }

    /// How many CPUs come before `other` in [`behind`](Self::behind)`(cpu)`. Both are of the same LLC.
    pub fn steps_behind(&self, cpu: CpuId, other: CpuId) -> usize {
        let (at, llc) = self.number_in_llc(cpu);
        let there = self.cpu_infos[other.index()].number_at as usize;
        (there + llc.len() - at as usize - 1) % llc.len()
    }

    /// One CPU of each other LLC of the node of `cpu`: the CPU that has the lowest kernel number in that LLC. Begins
    /// with the LLC after the LLC of `cpu`.
    pub fn other_llcs(&self, cpu: CpuId) -> impl Iterator<Item = CpuId> + '_ {
        let [_, _, llc, node, ..] = &self.shards[self.shard_of(cpu)].domains;
        let begins = |shard: &usize| self.shards[*shard].domains[2].start == *shard;
        let others = (llc.end..node.end).chain(node.start..llc.start).filter(begins);
        others.map(|shard| self.numbered[self.shards[shard].cpus.start])
    }

    /// The index of a CPU in `numbered`, and the interval of its LLC there.
    fn number_in_llc(&self, cpu: CpuId) -> (u32, Range<usize>) {
        let info = &self.cpu_infos[cpu.index()];
        let llc = &self.shards[info.shard as usize].domains[2];
        (info.number_at, self.shards[llc.start].cpus.start..self.shards[llc.end - 1].cpus.end)
    }

    /// All other CPUs, nearest first: SMT siblings, the shard, the LLC, the node, the socket, the machine.
    pub fn others(&self, cpu: CpuId) -> impl Iterator<Item = CpuId> + '_ {
        self.shards_from(cpu).flat_map(move |shard| self.cpus_from(cpu, shard))
    }

    /// All shards, nearest first, beginning with the shard of `cpu`.
    pub fn shards_from(&self, cpu: CpuId) -> impl Iterator<Item = usize> + '_ {
        let own = self.shard_of(cpu);
        let domains = &self.shards[own].domains;
        let outward = domains.windows(2).flat_map(|pair| {
            let (inner, outer) = (&pair[0], &pair[1]);
            (inner.end..outer.end).chain(outer.start..inner.start)
        });
        // Most have one shard, or few: no further domain is looked at when all were named.
        std::iter::once(own).chain(outward).take(self.shards())
    }

    /// The CPUs of a shard, without `cpu`, in the order in which `cpu` searches them. In its own shard the CPUs of its
    /// core come first.
    pub fn cpus_from(&self, cpu: CpuId, shard: usize) -> impl Iterator<Item = CpuId> + '_ {
        self.cpus_among(cpu, shard, ShardMask::MAX)
    }

    /// Those of [`cpus_from`](Self::cpus_from) that are in `set`, in the same order. Costs nothing for the others.
    #[inline]
    pub fn cpus_among(&self, cpu: CpuId, shard: usize, set: ShardMask) -> impl Iterator<Item = CpuId> + '_ {
        let bits = ShardMask::BITS as usize;
        let (info, cpus) = (&self.cpu_infos[cpu.index()], self.cpus_of(shard));
        let index = info.bit.trailing_zeros() as usize;
        // The CPUs that come first, and the index at which the search begins. In another shard: the one that this CPU has in its own.
        let (near, begin, set) = match info.shard as usize == shard {
            true => (info.core_mates, index, set & !info.bit),
            false => (ShardMask::MAX, index % cpus.len(), set),
        };
        let set = set & (ShardMask::MAX >> (bits - cpus.len()));
        let from = ShardMask::MAX << begin;
        let parts = [near & from, near & !from, !near & from, !near & !from];
        let mut left = (0..4).fold(0u64, |all, i| all | u64::from(set & parts[i]) << (i * bits));
        std::iter::from_fn(move || {
            let next = left.trailing_zeros() as usize % bits;
            let is_left = left != 0;
            left &= left.wrapping_sub(1);
            is_left.then(|| cpus[next])
        })
    }
}

/// The intervals of equal keys.
fn runs<K: PartialEq>(all: Range<usize>, key: impl Fn(usize) -> K) -> impl Iterator<Item = Range<usize>> {
    let mut at = all.start;
    std::iter::from_fn(move || {
        let begin = at;
        at = (begin..all.end).find(|i| key(*i) != key(begin)).unwrap_or(all.end);
        (begin < at).then_some(begin..at)
    })
}

/// Cuts an LLC into shards of whole cores and about equal size. A core with more CPUs of the scheduler than a shard may
/// have is cut into shards that contain no other core.
fn cut(llc: Range<usize>, core: impl Fn(usize) -> CoreId) -> Vec<Range<usize>> {
    let cores: Vec<Range<usize>> = runs(llc, core).collect();
    let is_big = |core: &Range<usize>| core.len() > SHARD_CPUS_MAX;
    let mut shards = Vec::new();
    for stretch in cores.chunk_by(|a, b| !is_big(a) && !is_big(b)) {
        let (mut at, end) = (stretch[0].start, stretch[stretch.len() - 1].end);
        while at < end {
            let pieces = (end - at).div_ceil(SHARD_CPUS_MAX);
            let even = at + (end - at).div_ceil(pieces);
            let borders = stretch.iter().map(|core| core.end);
            let mut fits = borders.filter(|border| (at + 1..=at + SHARD_CPUS_MAX).contains(border));
            // The first border between two cores at or after the even cut, if the shard is then not too large; else the
            // last border before the cut.
            let next = fits.clone().find(|border| *border >= even).or(fits.next_back()).unwrap_or(even);
            shards.push(at..next);
            at = next;
        }
    }
    shards
}
