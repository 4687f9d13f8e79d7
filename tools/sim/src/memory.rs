//! Memory: what touching data costs, by where it was touched before.
//!
//! Model.   Two kinds of data. An *extent* is a working set that is always passed over as a whole: who has it
//!          (`memory/caches.rs`), who wrote it last, on which node it lives, whether its pages exist. A *line* is a
//!          lock or a counter: its owner and its sharers (`memory/line.rs`). A pass costs so much per line: from the
//!          own L1 or L2 what streaming costs; from elsewhere the latency of the nearest place that has it, of
//!          which several overlap. A write takes all other copies away. The first write to a page that
//!          does not exist yet costs a fault. A core that was in a deep state finds its own caches emptied into the
//!          one behind them, and passes over the first extent at its base clock.
//! Number.  16 KiB are 256 lines. On 2 × EPYC 9654: 346 ns from the own L1, 1472 from a neighbour's under the same
//!          L3, 6400 from another L3, 12 480 from the other socket, 11 600 more where its four pages are first
//!          written. 216 bytes for an extent, and 16 for each of at most 64 that a core still has. A pass over
//!          what the own core has: 30 ns to simulate.
//! Writers. `touch`, `slept`, `read_line`, `write_line`: one thread, as everything in a simulation.
//! Source.  LRU stack distances: an extent whose passes are whole is in an LRU cache as a whole or not at all,
//!          since every line of it is as far down the stack as the others. Hardware's replacement is not LRU; see
//!          "What is left out" below.
//!
//! **What is left out.** Associativity; prefetch beyond what overlapping stands for; parts of an extent (split what
//! is used apart); a last-level cache's order of eviction, which is by when an extent came in or was asked for by
//! another core, not by hits in L2; more than eight last-level caches that share one extent (the oldest is
//! forgotten, and would be found in memory).

use crate::costs::Costs;
use caches::{Caches, Extent, Found};
use line::Line;
use warmcore_topo::{Distance, Topology};
use warmcore_types::{CpuId, Nanos, NodeId};

mod caches;
mod line;
#[cfg(test)]
mod tests;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// A working set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u32);

/// A lock, a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(pub u32);

/// What is known of an extent's pages at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// All exist: nothing faults.
    Touched,
    /// The first touch of each faults and gives a cleared one.
    Anonymous,
    /// The first write to each faults and copies it.
    CopyOnWrite,
}

/// What a pass does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads every line.
    Read,
    /// It reads and writes every line.
    Write,
}

/// Where a CPU is: all by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuLocation {
    core: u32,
    llc: u32,
    node: u32,
    socket: u32,
}

impl CpuLocation {
    fn distance(self, other: Self) -> Distance {
        match () {
            _ if self.core == other.core => Distance::Smt,
            _ if self.llc == other.llc => Distance::Llc,
            _ if self.node == other.node => Distance::Node,
            _ if self.socket == other.socket => Distance::Socket,
            _ => Distance::Other,
        }
    }
}

/// What happened in the caches so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Lines passed over.
    pub lines: u64,
    /// … that the own core had.
    pub resident: u64,
    /// … that the own last-level cache had, or another core under it.
    pub llc: u64,
    /// … that came from another last-level cache.
    pub other_cache: u64,
    /// … that came from memory.
    pub memory: u64,
    /// Page faults.
    pub faults: u64,
}

/// A machine's caches and memory, and what is in them.
#[derive(Debug, Clone)]
pub struct Memory {
    costs: Costs,
    line_bytes: u64,
    /// By CPU number; `NOWHERE` where there is none.
    cpu_indices: Vec<u32>,
    /// By index of the CPU.
    cpus: Vec<CpuLocation>,
    /// Each node by index: its number and a place on it.
    nodes: Vec<(NodeId, CpuLocation)>,
    caches: Caches,
    extents: Vec<Extent>,
    lines: Vec<Line>,
    /// By core: it came out of a state that emptied its caches, and touched nothing since.
    cold: Vec<bool>,
    counts: Counts,
}

const NOWHERE: u32 = u32::MAX;

impl Memory {
    /// Empty caches.
    pub fn new(costs: &Costs, topology: &Topology) -> Self {
        let end = topology.cpus.last().map_or(0, |cpu| cpu.id.index() + 1);
        let mut cpu_indices = vec![NOWHERE; end];
        let node_at = |id: NodeId| topology.nodes.iter().position(|n| n.id == id).unwrap_or(0) as u32;
        let mut cpus = Vec::with_capacity(topology.cpus.len());
        for cpu in &topology.cpus {
            cpu_indices[cpu.id.index()] = cpus.len() as u32;
            let (core, llc, socket) = (cpu.core.0, cpu.llc.0, cpu.socket.0);
            cpus.push(CpuLocation { core, llc, node: node_at(cpu.node), socket });
        }
        let nodes = topology.nodes.iter().enumerate().map(|(n, node)| {
            let nowhere = CpuLocation { core: NOWHERE, llc: NOWHERE, node: n as u32, socket: NOWHERE };
            let some = cpus.iter().find(|location| location.node == n as u32);
            (node.id, CpuLocation { core: NOWHERE, ..some.copied().unwrap_or(nowhere) })
        });
        let nodes = nodes.collect();
        let kib = |name: &str| costs.ps(name) * 1024 / 1000;
        Self {
            line_bytes: (costs.ps("line_bytes") / 1000).max(1),
            cpu_indices,
            cpus,
            nodes,
            caches: Caches::new(topology, kib("l2_kib").max(kib("l1d_kib")), kib("llc_kib")),
            extents: Vec::new(),
            lines: Vec::new(),
            cold: vec![false; topology.cores.len()],
            counts: Counts::default(),
            costs: costs.clone(),
        }
    }

    /// A working set of so many bytes that is in no cache. `home`: the node that it lives on; none: of whoever
    /// touches it first, and of whoever writes it first if its pages come with that.
    pub fn extent(&mut self, bytes: u64, pages: Pages, home: Option<NodeId>) -> ExtentId {
        let home = home.and_then(|id| self.nodes.iter().position(|(node, _)| *node == id));
        self.extents.push(Extent::new(bytes, pages, home.map_or(NOWHERE, |n| n as u32)));
        ExtentId(self.extents.len() as u32 - 1)
    }

    /// One pass over all of an extent, at `now`, and how long it takes. That does not depend on `now`: who passes
    /// over the same extent meanwhile is for the simulation to keep apart.
    ///
    /// Panics with a CPU that is not online, or an extent of another memory.
    pub fn touch(&mut self, cpu: CpuId, extent: ExtentId, how: Access, _now: Nanos) -> Nanos {
        let location = self.location(cpu);
        let at = &mut self.extents[extent.0 as usize];
        let faults = at.faults(how, location.node);
        let (lines, home) = (at.bytes.div_ceil(self.line_bytes), at.home);
        let cold = std::mem::take(&mut self.cold[location.core as usize]);
        self.counts.lines += lines;
        if faults == 0 && self.caches.hit(&self.extents, extent.0, location, how) {
            self.counts.resident += lines;
            return self.passed(lines, self.costs.resident(), cold);
        }
        let found = self.caches.find(&self.extents, extent.0, location, how);
        self.caches.touched(&mut self.extents, extent.0, location, how);
        *match found {
            Found::Own | Found::Shared(_) => &mut self.counts.resident,
            Found::Llc | Found::Core(Distance::Smt | Distance::Llc) => &mut self.counts.llc,
            Found::Core(_) => &mut self.counts.other_cache,
            Found::Nowhere => &mut self.counts.memory,
        } += lines;
        if faults > 0 {
            self.counts.faults += faults;
            // Who copied or cleared the pages just now has them.
            let pass = self.passed(lines, self.costs.resident(), cold);
            let faulting = faults.saturating_mul(self.fault_ps(extent, cold)).saturating_add(500) / 1000;
            return Nanos(pass.0.saturating_add(faulting));
        }
        // Cycles take longer before the clock has risen again; what others send does not.
        let in_cycles = matches!(found, Found::Own | Found::Llc);
        self.passed(lines, self.per_line(found, how, location, home), cold && in_cycles)
    }

    fn passed(&self, lines: u64, per_line_ps: u64, is_slow: bool) -> Nanos {
        let per_line_ps = if is_slow { self.costs.at_base_clock(per_line_ps) } else { per_line_ps };
        Nanos(lines.saturating_mul(per_line_ps).saturating_add(500) / 1000)
    }

    fn per_line(&self, found: Found, how: Access, location: CpuLocation, home: u32) -> u64 {
        let costs = &self.costs;
        match (found, how) {
            (Found::Own, _) | (Found::Shared(_), Access::Read) => costs.resident(),
            // It has them; the others' copies must go.
            (Found::Shared(distance), Access::Write) => costs.taken_overlapped(costs.hand_over(distance)),
            (Found::Llc, _) => costs.read_overlapped(costs.llc()),
            (Found::Core(distance), Access::Read) => costs.read_overlapped(costs.hand_over(distance)),
            (Found::Core(distance), Access::Write) => costs.taken_overlapped(costs.hand_over(distance)),
            (Found::Nowhere, _) => {
                let node = self.nodes[home as usize].1;
                costs.read_overlapped(costs.dram(location.distance(node)))
            }
        }
    }

    fn fault_ps(&self, extent: ExtentId, cold: bool) -> u64 {
        let name = match self.extents[extent.0 as usize].pages {
            Pages::Anonymous => "page_fault_anonymous",
            _ if cold => "page_fault_cow_after_200ms_idle",
            _ => "page_fault_cow_hot",
        };
        self.costs.ps(name)
    }

    /// The core of this CPU, all its threads, was idle for so long: in a deep state its own caches were emptied into
    /// the last-level cache. Says which state it was in.
    pub fn slept(&mut self, cpu: CpuId, idle: Nanos) -> Option<&crate::costs::CState> {
        let location = self.location(cpu);
        if self.costs.cstate_after(idle).is_some_and(|state| state.flushes) {
            self.caches.flush_core(&mut self.extents, location);
            self.cold[location.core as usize] = true;
        }
        self.costs.cstate_after(idle)
    }

    /// A line that is in no cache.
    pub fn line(&mut self) -> LineId {
        self.lines.push(Line::default());
        LineId(self.lines.len() as u32 - 1)
    }

    /// Reads a line at `now`: how long it takes.
    pub fn read_line(&mut self, cpu: CpuId, line: LineId, now: Nanos) -> Nanos {
        let location = self.location(cpu);
        self.lines[line.0 as usize].read(&self.costs, location, now)
    }

    /// Writes a line at `now`, or changes it in one step: how long it takes. While one core takes it, the next one
    /// waits.
    pub fn write_line(&mut self, cpu: CpuId, line: LineId, now: Nanos) -> Nanos {
        let location = self.location(cpu);
        self.lines[line.0 as usize].write(&self.costs, location, now)
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The numbers that it goes by.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Bytes that it takes, about: for a report of what a simulation needs.
    pub fn bytes(&self) -> u64 {
        let lines = self.lines.iter().map(Line::bytes).sum::<usize>();
        let extents = self.extents.capacity() * size_of::<Extent>();
        let cpus = self.cpu_indices.capacity() * 4 + self.cpus.capacity() * size_of::<CpuLocation>();
        (lines + extents + cpus + self.cold.capacity() + self.caches.bytes()) as u64
    }

    fn location(&self, cpu: CpuId) -> CpuLocation {
        let index = self.cpu_indices.get(cpu.index()).copied().unwrap_or(NOWHERE);
        assert!(index != NOWHERE, "{cpu} touches memory, and it is not online");
        self.cpus[index as usize]
    }
}
