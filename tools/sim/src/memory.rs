//! Memory: what touching data costs, by where it was touched before.
//!
//! There are two kinds of data. An *extent* is a working set that is always passed over as a whole: the model knows
//! which caches have it (`memory/caches.rs`), which core wrote it last, the node of its pages and whether they exist.
//! A *line* is a lock or a counter, with its owner and sharers (`memory/line.rs`).
//!
//! # Cost
//!
//! A pass costs the same for each of its lines. If the core's own L1 or L2 has them, it is the cost of streaming;
//! otherwise the latency of the nearest cache that has them, or of memory, divided by the number of accesses that
//! overlap. A write invalidates all other copies, so the latency of the farthest one counts. A page that is not there
//! yet costs a fault: see [`Pages`]. A core that leaves a deep idle state finds its own caches flushed into the
//! last-level cache, and makes its first pass at its base clock; transfers from other cores and from memory take as
//! long as usual.
//!
//! 16 KiB are 256 lines. On 2 × EPYC 9654 a pass that writes them takes 346 ns if the core's own L1 has them, 1472 ns
//! from that of a core under the same L3, 6400 ns from another L3, 12 480 ns from the other socket; and 346 + 11 600 ns
//! if it is the first write to the four pages, which are copied. The model of an extent takes 216 bytes, and 16 in the
//! list of each core that has it (at most 64 extents in a list). Simulating a pass over an extent that the core's own
//! caches have takes 30 ns.
//!
//! # Source
//!
//! LRU stack distances: an extent that is only passed over as a whole is in an LRU cache as a whole or not at all,
//! since all its lines are equally deep in the stack.
//!
//! # Not simulated
//!
//! Associativity; replacement that is not LRU; prefetch, except as overlap; passes over a part of an extent (model
//! parts that are used separately as several extents); the true order of eviction from a last-level cache: the model
//! orders by when an extent came in or was requested by another core, and ignores hits in L2; more than eight
//! last-level caches that share an extent (the one that had the oldest request is forgotten, as if it had evicted the
//! extent).

use crate::costs::Costs;
use caches::{Caches, Extent, Found};
use line::Line;
use warmcore_topo::{Distance, Topology};
use warmcore_types::{CpuId, Nanos, NodeId};

mod caches;
mod line;
#[cfg(test)]
mod tests;

/// The size of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Identifies an extent: a working set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u32);

/// Identifies a line: a lock or a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(pub u32);

/// The state of an extent's pages before the first touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// They exist: no touch faults.
    Touched,
    /// The first read and the first write of each page fault and get a cleared page. After a write no read faults.
    Anonymous,
    /// The first write to each page faults, and copies it.
    CopyOnWrite,
}

/// What a pass does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads every line.
    Read,
    /// Reads and writes every line.
    Write,
}

/// The indexes of a CPU's core, last-level cache, node and socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuLocation {
    core: u32,
    llc: u32,
    node: u32,
    socket: u32,
}

impl CpuLocation {
    const NOWHERE: Self = Self { core: NOWHERE, llc: NOWHERE, node: NOWHERE, socket: NOWHERE };

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

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Lines passed over.
    pub lines: u64,
    /// Lines that the core's own caches had.
    pub resident: u64,
    /// Lines that the core's last-level cache had, or another core under it.
    pub llc: u64,
    /// Lines that the core's own caches did not have and that came from another last-level cache, or of which a write
    /// found the farthest copy there.
    pub other_cache: u64,
    /// Lines that no cache had.
    pub memory: u64,
    /// Page faults.
    pub faults: u64,
}

/// A machine's caches and memory, and what is in them.
#[derive(Debug, Clone)]
pub struct Memory {
    costs: Costs,
    line_bytes: u64,
    /// By CPU number; `None` if there is no such CPU.
    cpus: Vec<Option<CpuLocation>>,
    /// By the node's index: its number, and a location on it.
    nodes: Vec<(NodeId, CpuLocation)>,
    caches: Caches,
    extents: Vec<Extent>,
    lines: Vec<Line>,
    /// By core: its caches were flushed by an idle state, and it has touched no extent since.
    cold: Vec<bool>,
    counts: Counts,
}

const NOWHERE: u32 = u32::MAX;

impl Memory {
    /// A machine with empty caches.
    pub fn new(costs: &Costs, topology: &Topology) -> Self {
        let end = topology.cpus.last().map_or(0, |cpu| cpu.id.index() + 1);
        let (mut cpus, mut cores) = (vec![None; end], vec![CpuLocation::NOWHERE; topology.cores.len()]);
        for cpu in &topology.cpus {
            let node = topology.nodes.iter().position(|node| node.id == cpu.node).unwrap_or(0) as u32;
            let location = CpuLocation { core: cpu.core.0, llc: cpu.llc.0, node, socket: cpu.socket.0 };
            cpus[cpu.id.index()] = Some(location);
            cores[cpu.core.index()] = location;
        }
        let nodes = (0..).zip(&topology.nodes).map(|(n, node)| {
            let some = cpus.iter().flatten().find(|location| location.node == n).copied();
            (node.id, CpuLocation { core: NOWHERE, node: n, ..some.unwrap_or(CpuLocation::NOWHERE) })
        });
        let nodes = nodes.collect();
        let kib = |name: &str| costs.ps(name) * 1024 / 1000;
        Self {
            line_bytes: (costs.ps("line_bytes") / 1000).max(1),
            cpus,
            nodes,
            cold: vec![false; cores.len()],
            caches: Caches::new(
                cores,
                topology.llcs.len(),
                kib("l2_kib").max(kib("l1d_kib")),
                kib("llc_kib"),
            ),
            extents: Vec::new(),
            lines: Vec::new(),
            counts: Counts::default(),
            costs: costs.clone(),
        }
    }

    /// Creates a working set that is in no cache. `home`: the node of its pages; `None`: the node of the CPU that
    /// touches it first, or that later takes page faults on it.
    pub fn extent(&mut self, bytes: u64, pages: Pages, home: Option<NodeId>) -> ExtentId {
        let home = home.and_then(|id| self.nodes.iter().position(|(node, _)| *node == id));
        self.extents.push(Extent::new(bytes, pages, home.map_or(NOWHERE, |n| n as u32)));
        ExtentId(self.extents.len() as u32 - 1)
    }

    /// Passes once over all of an extent. Returns how long that takes, which does not depend on `now`: the caller has
    /// to separate passes of several CPUs in time.
    ///
    /// # Panics
    /// With a CPU that is not online, or an extent that does not exist.
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
            // The fault has just copied or cleared the pages, so the core has them.
            let pass = self.passed(lines, self.costs.resident(), cold);
            let faulting = faults.saturating_mul(self.fault_ps(extent, cold)).saturating_add(500) / 1000;
            return Nanos(pass.0.saturating_add(faulting));
        }
        // What takes cycles takes longer until the clock has risen again; a transfer from another core or from memory
        // does not.
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
            // The core has the lines; the other copies have to be invalidated.
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

    /// Records that all threads of this CPU's core were idle for this long. If that is long enough for a deep idle
    /// state, it has flushed the core's caches into the last-level cache. Returns the idle state; `None` if the time is
    /// too short for any.
    pub fn slept(&mut self, cpu: CpuId, idle: Nanos) -> Option<&crate::costs::CState> {
        let location = self.location(cpu);
        let state = self.costs.cstate_after(idle);
        if state.is_some_and(|state| state.flushes) {
            self.caches.flush_core(&mut self.extents, location);
            self.cold[location.core as usize] = true;
        }
        state
    }

    /// Creates a line that is in no cache.
    pub fn line(&mut self) -> LineId {
        self.lines.push(Line::default());
        LineId(self.lines.len() as u32 - 1)
    }

    /// Reads a line at `now`. Returns how long that takes.
    pub fn read_line(&mut self, cpu: CpuId, line: LineId, now: Nanos) -> Nanos {
        let location = self.location(cpu);
        self.lines[line.0 as usize].read(&self.costs, location, now)
    }

    /// Writes a line at `now`, or changes it atomically. Returns how long that takes. If the line comes from elsewhere,
    /// the next access by a core that has no copy waits until it has arrived.
    pub fn write_line(&mut self, cpu: CpuId, line: LineId, now: Nanos) -> Nanos {
        let location = self.location(cpu);
        self.lines[line.0 as usize].write(&self.costs, location, now)
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The costs that it uses.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The memory that the model takes, in bytes, approximately.
    pub fn bytes(&self) -> u64 {
        let lines = self.lines.iter().map(Line::bytes).sum::<usize>();
        let extents = self.extents.capacity() * size_of::<Extent>();
        let cpus = self.cpus.capacity() * size_of::<Option<CpuLocation>>();
        (lines + extents + cpus + self.cold.capacity() + self.caches.bytes()) as u64
    }

    fn location(&self, cpu: CpuId) -> CpuLocation {
        let location = self.cpus.get(cpu.index()).copied().flatten();
        location.unwrap_or_else(|| panic!("{cpu} touches memory, and it is not online"))
    }
}
