//! The boxes in a drawing of a machine: which there are, in which order, and their labels.
//!
//! A socket contains nodes, a node last-level caches, a cache cores, a core CPUs. A part that spans two boxes, such as
//! a cache of two nodes, is drawn in each of them, with those of its CPUs that are in this box. `machine_picture` draws
//! the boxes as SVG, `warmcore topo` as text.

use std::collections::BTreeMap;
use warmcore_topo::{Core, Cpu, Llc, Topology};
use warmcore_types::{CpuId, CpuSet, NodeId};

/// A socket.
#[derive(Debug)]
pub struct SocketBox<'a> {
    /// The socket's number.
    pub id: u32,
    /// Its nodes. A socket with one node and the node are drawn as one box.
    pub nodes: Vec<NodeBox<'a>>,
}

/// The part of a node that is in one socket.
#[derive(Debug)]
pub struct NodeBox<'a> {
    /// The node's number.
    pub id: u32,
    /// Whether all of the node's CPUs are in the box.
    pub is_whole: bool,
    /// Its last-level caches.
    pub llcs: Vec<LlcBox<'a>>,
}

/// The part of a last-level cache that is in one node.
#[derive(Debug)]
pub struct LlcBox<'a> {
    /// The cache.
    pub llc: &'a Llc,
    /// Whether all of the cache's CPUs are in the box.
    pub is_whole: bool,
    /// Its cores.
    pub cores: Vec<CoreBox<'a>>,
}

/// The part of a core that is in one last-level cache and node.
#[derive(Debug)]
pub struct CoreBox<'a> {
    /// The core.
    pub core: &'a Core,
    /// The CPUs in the box.
    pub cpus: Vec<CpuId>,
}

impl LlcBox<'_> {
    /// The CPUs in the box.
    pub fn cpus(&self) -> CpuSet {
        self.cores.iter().flat_map(|core| &core.cpus).copied().collect()
    }
}

/// The boxes of the machine's online CPUs. No source tells where an offline CPU is.
pub fn sockets(t: &Topology) -> Vec<SocketBox<'_>> {
    let core = |(id, cpus): (u32, Vec<&Cpu>)| CoreBox {
        core: &t.cores[id as usize],
        cpus: cpus.iter().map(|cpu| cpu.id).collect(),
    };
    let llc = |(id, cpus): (u32, Vec<&Cpu>)| {
        let llc = &t.llcs[id as usize];
        LlcBox {
            llc,
            is_whole: cpus.len() == llc.cpus.len(),
            cores: by(cpus, |cpu| cpu.core.0).map(core).collect(),
        }
    };
    let node = |(id, cpus): (u32, Vec<&Cpu>)| NodeBox {
        id,
        is_whole: t.node(NodeId(id)).is_some_and(|node| node.cpus.len() == cpus.len()),
        llcs: by(cpus, |cpu| cpu.llc.0).map(llc).collect(),
    };
    by(t.cpus.iter().collect(), |cpu| cpu.socket.0)
        .map(|(id, cpus)| SocketBox { id, nodes: by(cpus, |cpu| cpu.node.0).map(node).collect() })
        .collect()
}

/// The CPUs in groups, in the order of the groups' numbers.
fn by(cpus: Vec<&Cpu>, key: impl Fn(&Cpu) -> u32) -> impl Iterator<Item = (u32, Vec<&Cpu>)> {
    let mut groups = BTreeMap::<u32, Vec<&Cpu>>::new();
    cpus.into_iter().for_each(|cpu| groups.entry(key(cpu)).or_default().push(cpu));
    groups.into_iter()
}

/// The label of a last-level cache: its name and, if `size`, its level and size, separated by `between`. If the source
/// lists no cache, `assumed` follows the name in any case.
pub fn llc_label(llc: &Llc, between: &str, size: bool) -> String {
    match llc_cache(llc) {
        cache if cache.is_empty() => format!("{}{between}assumed", llc.id),
        cache if size => format!("{}{between}{cache}", llc.id),
        _ => llc.id.to_string(),
    }
}

/// `L3 32 MiB`; `L3` if the size is not known; empty if the source lists no cache.
pub fn llc_cache(llc: &Llc) -> String {
    match (llc.level, llc.size_kib) {
        (0, _) => String::new(),
        (level, Some(kib)) => format!("L{level} {}", size(kib)),
        (level, None) => format!("L{level}"),
    }
}

/// `L1d 32 KiB, L2 1 MiB`, as far as that is known.
pub fn core_caches(core: &Core) -> String {
    let sizes = [("L1d", core.l1d_kib), ("L2", core.l2_kib)];
    let known = sizes.iter().filter_map(|(name, kib)| Some(format!("{name} {}", size((*kib)?))));
    known.collect::<Vec<_>>().join(", ")
}

/// `48 KiB`, `32 MiB`, `112.5 MiB`.
fn size(kib: u32) -> String {
    match kib {
        k if k < 1024 => format!("{k} KiB"),
        k if k % 1024 == 0 => format!("{} MiB", k / 1024),
        k => format!("{:.1} MiB", f64::from(k) / 1024.0),
    }
}

/// The numbers of sockets, nodes, last-level caches, cores and CPUs: `2 sockets`, `2 nodes`, …
pub fn counts(t: &Topology) -> [String; 5] {
    [
        some(t.sockets.len(), "socket"),
        some(t.nodes.len(), "node"),
        some(t.llcs.len(), "last-level cache"),
        some(t.cores.len(), "core"),
        some(t.cpus.len(), "CPU"),
    ]
}

/// `3 cores`, `1 core`.
pub fn some(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

/// Why a CPU's style differs: it is isolated.
pub const ISOLATED: &str = "isolated at boot (isolcpus=)";
/// Why a CPU's style differs: this process may not use it.
pub const BARRED: &str = "not allowed for this process";
/// The label of the offline CPUs in a legend.
pub const OFFLINE: &str = "offline, place unknown";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_short() {
        let sizes = [(48, "48 KiB"), (1024, "1 MiB"), (115_200, "112.5 MiB"), (1280, "1.2 MiB")];
        sizes.iter().for_each(|(kib, text)| assert_eq!(size(*kib), *text));
    }
}
