//! The model of a machine that other crates use.
//!
//! `cpus` has, for each online CPU, the ids of its groups; `cores`, `llcs`, `nodes` and `sockets` list the CPUs of each
//! group. Core, LLC and socket ids are dense, in the order of their smallest CPU: `llcs[id.index()]` is that LLC. CPU
//! and node numbers are the kernel's and sparse: `cpus` and `nodes` are sorted by them and searched.
//!
//! With 8192 CPUs, `cpus` has 160 KiB and a look-up takes at most 14 comparisons.

use crate::TopoError;
#[cfg(feature = "serde")]
use serde::Serialize;
use std::path::PathBuf;
use warmcore_types::{CoreId, CpuId, CpuSet, LlcId, NodeId, SocketId};

#[cfg(test)]
mod tests;

/// A machine: its CPUs, and which of them share cores, caches, nodes and sockets.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Topology {
    /// The source of the model: a directory, a file, or a machine file's section.
    pub source: String,
    /// The processor's name, if the source has it.
    pub model: Option<String>,
    /// The online CPUs, ascending by id.
    pub cpus: Vec<Cpu>,
    /// The physical cores, by id.
    pub cores: Vec<Core>,
    /// The last-level caches, by id.
    pub llcs: Vec<Llc>,
    /// The NUMA nodes, ascending by id; a node of memory alone has no CPUs.
    pub nodes: Vec<Node>,
    /// The sockets, by id.
    pub sockets: Vec<Socket>,
    /// Every CPU number that may ever come online.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::list"))]
    pub possible: CpuSet,
    /// The CPUs that are possible and not online.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::list"))]
    pub offline: CpuSet,
    /// The CPUs that were excluded from load balancing at boot (`isolcpus=`).
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::list"))]
    pub isolated: CpuSet,
    /// The CPUs that have no timer tick while only one task runs (`nohz_full=`).
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::list"))]
    pub nohz_full: CpuSet,
    /// The online CPUs that this process, or the one that wrote the capture, may run on. `None` if the source does not
    /// have them.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::maybe_list"))]
    pub allowed: Option<CpuSet>,
    /// The smallest CPU quota of that process's cgroups, if one of them has a quota.
    pub quota: Option<Quota>,
    /// The size of a cache line in bytes.
    pub line_bytes: u32,
    /// Whether only the CPUs are known, and all count as cores of one cache; the first note has the reason. See
    /// [`Topology::this_machine`].
    pub is_flat: bool,
    /// Messages about information that was missing, about what is assumed instead, and about groups that look unusual.
    pub notes: Vec<String>,
}

/// An online CPU and the groups that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Cpu {
    /// The kernel's number.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::id"))]
    pub id: CpuId,
    /// Its physical core.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::id"))]
    pub core: CoreId,
    /// Its last-level cache.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::id"))]
    pub llc: LlcId,
    /// Its NUMA node.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::id"))]
    pub node: NodeId,
    /// Its socket.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::id"))]
    pub socket: SocketId,
}

/// A physical core. If Linux splits a core into halves with a cache each (POWER), a half counts as a core.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Core {
    /// Dense, in the order of the smallest CPU.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::id"))]
    pub id: CoreId,
    /// Its online CPUs: SMT siblings.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::list"))]
    pub cpus: CpuSet,
    /// Size of the L1 data cache that it uses.
    pub l1d_kib: Option<u32>,
    /// Size of the L2 that it uses: the whole L2, also if several cores share it.
    pub l2_kib: Option<u32>,
}

/// A last-level cache: the cache of the highest level that the source lists for its CPUs, or an assumed one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Llc {
    /// Dense, in the order of the smallest CPU.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::id"))]
    pub id: LlcId,
    /// The online CPUs that share it.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::list"))]
    pub cpus: CpuSet,
    /// Its level; 0 if no shared cache is known, so that the socket counts as one.
    pub level: u8,
    /// Its size.
    pub size_kib: Option<u32>,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Node {
    /// The kernel's number.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::id"))]
    pub id: NodeId,
    /// Its online CPUs.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::list"))]
    pub cpus: CpuSet,
    /// The firmware's relative distances to every node, in the order of `nodes`, 10 being local. Empty if the source
    /// has none.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::distances"))]
    pub distances: Vec<(NodeId, u32)>,
}

/// A socket (package).
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Socket {
    /// Dense, in the order of the smallest CPU; not the firmware's number.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::id"))]
    pub id: SocketId,
    /// Its online CPUs.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serial::list"))]
    pub cpus: CpuSet,
}

/// How much CPU time a cgroup may use.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Quota {
    /// Quota over period: 1.5 is one and a half CPUs.
    pub cpus: f64,
    /// The file that sets the quota.
    pub file: PathBuf,
}

/// The distance of two CPUs, by the nearest thing that they share. Ordered, nearest first.
///
/// On a machine whose LLC spans nodes, two CPUs of one LLC are `Llc` apart, whatever their nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Distance {
    /// The same CPU.
    Same,
    /// The same core.
    Smt,
    /// The same last-level cache.
    Llc,
    /// The same NUMA node.
    Node,
    /// The same socket.
    Socket,
    /// No common socket: the two CPUs only share the machine.
    Other,
}

impl Topology {
    /// The online CPU of this number and the groups that it belongs to. `None` if no CPU of this number is online.
    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |c| c.id).ok().map(|i| &self.cpus[i])
    }

    /// The core of an online CPU.
    pub fn core_of(&self, cpu: CpuId) -> Option<&Core> {
        self.cores.get(self.cpu(cpu)?.core.index())
    }

    /// The last-level cache of an online CPU.
    pub fn llc_of(&self, cpu: CpuId) -> Option<&Llc> {
        self.llcs.get(self.cpu(cpu)?.llc.index())
    }

    /// The socket of an online CPU.
    pub fn socket_of(&self, cpu: CpuId) -> Option<&Socket> {
        self.sockets.get(self.cpu(cpu)?.socket.index())
    }

    /// The node of an online CPU.
    pub fn node_of(&self, cpu: CpuId) -> Option<&Node> {
        self.node(self.cpu(cpu)?.node)
    }

    /// A node by the kernel's number.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |n| n.id).ok().map(|i| &self.nodes[i])
    }

    /// The online CPUs of the same core, including `cpu`.
    pub fn siblings(&self, cpu: CpuId) -> Option<&CpuSet> {
        self.core_of(cpu).map(|c| &c.cpus)
    }

    /// The online CPUs.
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().map(|c| c.id).collect()
    }

    /// The CPUs to use: [`Topology::allowed`], or all that are online if the source does not have them.
    pub fn usable(&self) -> CpuSet {
        self.allowed.clone().unwrap_or_else(|| self.online())
    }

    /// The distance of two online CPUs: the nearest thing that they share. `None` if one of them is not online.
    pub fn distance(&self, a: CpuId, b: CpuId) -> Option<Distance> {
        let (a, b) = (self.cpu(a)?, self.cpu(b)?);
        Some(match () {
            _ if a.id == b.id => Distance::Same,
            _ if a.core == b.core => Distance::Smt,
            _ if a.llc == b.llc => Distance::Llc,
            _ if a.node == b.node => Distance::Node,
            _ if a.socket == b.socket => Distance::Socket,
            _ => Distance::Other,
        })
    }

    /// The firmware's distance between two nodes, if the source has one.
    pub fn node_distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        self.node(from)?.distances.iter().find(|(n, _)| *n == to).map(|&(_, d)| d)
    }

    /// Checks that the model is consistent. The readers call it last; call it after building or changing a `Topology`
    /// by hand.
    ///
    /// # Errors
    /// Returns an error that names the broken invariant and the values.
    pub fn check(&self) -> Result<(), TopoError> {
        let wrong = |fact: String| Err(TopoError::contradiction(&self.source, fact));
        let online = self.online();
        if online.is_empty() {
            return wrong("has no online CPU".into());
        }
        if !self.cpus.is_sorted_by(|a, b| a.id < b.id) || !self.nodes.is_sorted_by(|a, b| a.id < b.id) {
            return wrong("its CPUs or nodes are not in the order of their numbers, each once".into());
        }
        self.partition("core", &online, self.cores.iter().map(|c| (c.id.0, &c.cpus)), |c| c.core.0)?;
        self.partition("llc", &online, self.llcs.iter().map(|l| (l.id.0, &l.cpus)), |c| c.llc.0)?;
        self.partition("socket", &online, self.sockets.iter().map(|s| (s.id.0, &s.cpus)), |c| c.socket.0)?;
        self.partition("node", &online, self.nodes.iter().map(|n| (n.id.0, &n.cpus)), |c| c.node.0)?;
        self.dense("core", self.cores.iter().map(|c| (c.id.0, &c.cpus)))?;
        self.dense("llc", self.llcs.iter().map(|l| (l.id.0, &l.cpus)))?;
        self.dense("socket", self.sockets.iter().map(|s| (s.id.0, &s.cpus)))?;
        for core in &self.cores {
            let first = core.cpus.first().and_then(|c| self.llc_of(c));
            if !first.is_some_and(|llc| core.cpus.is_subset(&llc.cpus)) {
                return wrong(format!("{} (CPUs {}) lies in more than one LLC", core.id, core.cpus));
            }
        }
        for node in &self.nodes {
            let to = node.distances.iter().map(|(id, _)| *id);
            if !node.distances.is_empty() && !to.eq(self.nodes.iter().map(|n| n.id)) {
                return wrong(format!("{} does not give one distance to each node, in order", node.id));
            }
        }
        if !online.is_subset(&self.possible) || !self.offline.is_subset(&self.possible) {
            return wrong(format!(
                "CPUs {online} online and {} offline are not all possible ({})",
                self.offline, self.possible
            ));
        }
        if !self.offline.intersection(&online).is_empty() {
            return wrong(format!("CPUs {} are both online and offline", self.offline.intersection(&online)));
        }
        if self.allowed.as_ref().is_some_and(|a| a.is_empty() || !a.is_subset(&online)) {
            return wrong("allows this process no CPU, or one that is not online".into());
        }
        if !self.line_bytes.is_power_of_two() {
            return wrong(format!("a cache line of {} bytes is no power of two", self.line_bytes));
        }
        Ok(())
    }

    /// Checks that each online CPU is in exactly one of `groups`, and that this is the group that its `Cpu`
    /// names.
    fn partition<'a>(
        &self,
        what: &str,
        online: &CpuSet,
        groups: impl Iterator<Item = (u32, &'a CpuSet)>,
        of: impl Fn(&Cpu) -> u32,
    ) -> Result<(), TopoError> {
        let wrong = |fact: String| Err(TopoError::contradiction(&self.source, fact));
        let mut seen = CpuSet::new();
        for (id, cpus) in groups {
            for cpu in cpus.iter() {
                if !seen.insert(cpu) {
                    return wrong(format!("{cpu} is in two {what}s, {what}{id} being the second"));
                }
                match self.cpu(cpu) {
                    None => return wrong(format!("{what}{id} has {cpu}, which is not online")),
                    Some(c) if of(c) != id => {
                        return wrong(format!("{cpu} is in {what}{id} and says {what}{}", of(c)));
                    }
                    Some(_) => {}
                }
            }
        }
        if seen != *online {
            return wrong(format!("CPUs {} are in no {what}", online.difference(&seen)));
        }
        Ok(())
    }

    /// Checks that ids count from 0 in the order of the smallest CPU, and that no group is empty.
    fn dense<'a>(
        &self,
        what: &str,
        groups: impl Iterator<Item = (u32, &'a CpuSet)>,
    ) -> Result<(), TopoError> {
        let mut last = None;
        for (index, (id, cpus)) in groups.enumerate() {
            let first = cpus.first();
            if id as usize != index || first <= last {
                let fact =
                    format!("{what}{id} (CPUs {cpus}) is out of order: ids count up with the smallest CPU");
                return Err(TopoError::contradiction(&self.source, fact));
            }
            last = first;
        }
        Ok(())
    }
}

/// How ids and CPU sets look in JSON: an id as its number, a CPU set as its list string (`"0-3,8"`).
///
/// The crate `types` does not depend on serde, so the fields of the model name these functions.
#[cfg(feature = "serde")]
mod serial {
    use super::*;
    use serde::Serializer;

    /// An id as the number in it.
    pub trait Number {
        fn number(&self) -> u32;
    }

    macro_rules! number {
        ($($id:ty),*) => { $(impl Number for $id {
            fn number(&self) -> u32 {
                self.0
            }
        })* };
    }
    number!(CpuId, CoreId, LlcId, NodeId, SocketId);

    pub fn id<S: Serializer>(id: &impl Number, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u32(id.number())
    }

    pub fn list<S: Serializer>(set: &CpuSet, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(set)
    }

    pub fn maybe_list<S: Serializer>(set: &Option<CpuSet>, s: S) -> Result<S::Ok, S::Error> {
        set.as_ref().map(CpuSet::to_string).serialize(s)
    }

    /// Distances as pairs `[node, distance]`.
    pub fn distances<S: Serializer>(distances: &[(NodeId, u32)], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(distances.iter().map(|(node, distance)| (node.0, distance)))
    }
}
