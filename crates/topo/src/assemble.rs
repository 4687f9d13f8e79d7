//! Makes a checked [`Topology`] from groups of CPUs as a source lists them.
//!
//! A reader passes its groups without ids. Here they are sorted and get ids, and every CPU gets the ids of its
//! groups. A core that spans LLCs is split along them, as Linux schedules by on POWER ("small cores"): POWER10
//! with 12 cores of 8 threads and a cache per 4 threads has 24 cores of 4 and one note. LLCs and cores that span nodes
//! or sockets only lead to a note.

use crate::{Core, Cpu, Llc, Node, Quota, Socket, TopoError, Topology};
use std::collections::BTreeMap;
use warmcore_types::{CoreId, CpuId, CpuSet, LlcId, NodeId, SocketId};

/// What a reader found. [`Parts::assemble`] gives cores, LLCs and sockets their ids.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub source: String,
    pub model: Option<String>,
    pub online: CpuSet,
    pub cores: Vec<Core>,
    pub llcs: Vec<Llc>,
    pub nodes: Vec<Node>,
    pub sockets: Vec<CpuSet>,
    pub possible: CpuSet,
    pub isolated: CpuSet,
    pub nohz_full: CpuSet,
    pub allowed: Option<CpuSet>,
    pub quota: Option<Quota>,
    pub line_bytes: u32,
    pub is_flat: bool,
    pub notes: Vec<String>,
}

/// A core before it has its id.
pub(crate) fn core(cpus: CpuSet, l1d_kib: Option<u32>, l2_kib: Option<u32>) -> Core {
    Core { id: CoreId(0), cpus, l1d_kib, l2_kib }
}

/// An LLC before it has its id.
pub(crate) fn llc(cpus: CpuSet, level: u8, size_kib: Option<u32>) -> Llc {
    Llc { id: LlcId(0), cpus, level, size_kib }
}

impl Parts {
    /// A machine of which only the CPUs are known: each is a core, all are in one socket and node, no caches are
    /// listed, and a cache line has 64 bytes.
    pub fn flat(online: CpuSet) -> Self {
        let alone = |cpu| core(CpuSet::from_iter([cpu]), None, None);
        Self {
            cores: online.iter().map(alone).collect(),
            nodes: vec![Node { id: NodeId(0), cpus: online.clone(), distances: Vec::new() }],
            sockets: vec![online.clone()],
            possible: online.clone(),
            allowed: Some(online.clone()),
            line_bytes: 64,
            is_flat: true,
            online,
            ..Self::default()
        }
    }

    /// Assigns ids, splits cores that span LLCs, adds notes on oddities, and checks the result.
    pub fn assemble(mut self) -> Result<Topology, TopoError> {
        self.assume_llcs();
        self.llcs.sort_by_key(|l| l.cpus.first());
        self.sockets.sort_by_key(CpuSet::first);
        self.nodes.sort_by_key(|n| n.id);
        let llc_of = owners(self.llcs.iter().map(|l| &l.cpus));
        let socket_of = owners(self.sockets.iter());
        let node_of: BTreeMap<CpuId, NodeId> =
            self.nodes.iter().flat_map(|n| n.cpus.iter().map(|c| (c, n.id))).collect();

        self.split_cores(&llc_of);
        self.cores.sort_by_key(|c| c.cpus.first());
        let core_of = owners(self.cores.iter().map(|c| &c.cpus));
        let in_none = |cpu: CpuId, what: &str| {
            TopoError::contradiction(&self.source, format!("{cpu} is online and in no {what}"))
        };
        let cpus = self.online.iter().map(|id| {
            Ok(Cpu {
                id,
                core: core_of.get(&id).copied().map(CoreId).ok_or_else(|| in_none(id, "core"))?,
                llc: llc_of.get(&id).copied().map(LlcId).ok_or_else(|| in_none(id, "cache"))?,
                node: node_of.get(&id).copied().ok_or_else(|| in_none(id, "node"))?,
                socket: socket_of.get(&id).copied().map(SocketId).ok_or_else(|| in_none(id, "socket"))?,
            })
        });
        let cpus = cpus.collect::<Result<Vec<_>, TopoError>>()?;

        let mut topology = Topology {
            cpus,
            cores: self.cores,
            llcs: self.llcs,
            nodes: self.nodes,
            sockets: self.sockets.into_iter().map(|cpus| Socket { id: SocketId(0), cpus }).collect(),
            offline: self.possible.difference(&self.online),
            source: self.source,
            model: self.model,
            possible: self.possible,
            isolated: self.isolated,
            nohz_full: self.nohz_full,
            allowed: self.allowed,
            quota: self.quota,
            line_bytes: self.line_bytes,
            is_flat: self.is_flat,
            notes: self.notes,
        };
        (0..).zip(&mut topology.cores).for_each(|(i, c)| c.id = CoreId(i));
        (0..).zip(&mut topology.llcs).for_each(|(i, l)| l.id = LlcId(i));
        (0..).zip(&mut topology.sockets).for_each(|(i, s)| s.id = SocketId(i));
        topology.check()?;
        note_overlaps(&mut topology);
        Ok(topology)
    }

    /// Assumes one LLC of level 0 per socket for the CPUs of which no shared cache is known.
    ///
    /// A private L2 above which no cache is listed (Ampere Altra, QEMU without `l3-cache`) means that the socket has a
    /// shared cache which is not listed. But if some cores of a socket share an L2, L2s are the last level there. A
    /// socket with one online core implies nothing for the others.
    fn assume_llcs(&mut self) {
        let core_of = owners(self.cores.iter().map(|c| &c.cpus));
        let within_core = |set: &CpuSet| {
            let core = set.first().and_then(|cpu| self.cores.get(*core_of.get(&cpu)? as usize));
            core.is_some_and(|c| set.is_subset(&c.cpus))
        };
        let mut private = CpuSet::new();
        for socket in &self.sockets {
            let of_socket = |l: &&Llc| l.level < 3 && !l.cpus.intersection(socket).is_empty();
            if self.llcs.iter().filter(of_socket).all(|l| within_core(&l.cpus)) && !within_core(socket) {
                private.extend(socket.iter());
            }
        }
        self.llcs.retain(|l| l.level >= 3 || !l.cpus.is_subset(&private));
        let mut left = self.online.clone();
        for llc in &self.llcs {
            left = left.difference(&llc.cpus);
        }
        if left.is_empty() {
            return;
        }
        self.notes.push(format!(
            "no cache is listed that cores share on CPUs {left}; in each socket they are taken for one LLC"
        ));
        let shares = self.sockets.iter().map(|s| s.intersection(&left)).filter(|s| !s.is_empty());
        self.llcs.extend(shares.map(|cpus| llc(cpus, 0, None)));
    }

    fn split_cores(&mut self, llc_of: &BTreeMap<CpuId, u32>) {
        let mut split = Vec::new();
        let mut wide = 0;
        for core in self.cores.drain(..) {
            let mut halves = BTreeMap::<_, CpuSet>::new();
            for cpu in core.cpus.iter() {
                halves.entry(llc_of.get(&cpu)).or_default().insert(cpu);
            }
            wide += usize::from(halves.len() > 1);
            split.extend(halves.into_values().map(|cpus| Core { cpus, ..core.clone() }));
        }
        self.cores = split;
        if wide > 0 {
            self.notes.push(format!(
                "{wide} cores span several last-level caches; each part that shares one counts as a core, \
                 {} in all",
                self.cores.len()
            ));
        }
    }
}

/// Puts the CPUs that no node lists into the nodes that `named` has for them, and the rest into one more node.
///
/// A node whose memory is offline, or not allowed to the process that wrote the file, is not listed, although its CPUs
/// are online.
pub(crate) fn assign_remaining(
    left: &CpuSet,
    named: &BTreeMap<CpuId, NodeId>,
    nodes: &mut Vec<Node>,
    notes: &mut Vec<String>,
) {
    if left.is_empty() {
        return;
    }
    notes.push(format!(
        "CPUs {left} are in no node that is listed; theirs have no memory, or none that is known"
    ));
    let unused = NodeId(nodes.iter().map(|n| n.id.0.saturating_add(1)).max().unwrap_or(0));
    for cpu in left.iter() {
        let id = named.get(&cpu).copied().unwrap_or(unused);
        match nodes.iter_mut().find(|n| n.id == id) {
            Some(node) => _ = node.cpus.insert(cpu),
            None => nodes.push(Node { id, cpus: [cpu].into_iter().collect(), distances: Vec::new() }),
        }
    }
    nodes.sort_by_key(|n| n.id);
}

/// The index of each CPU's group; that of the last one, if the CPU is in several.
pub(crate) fn owners<'a>(groups: impl Iterator<Item = &'a CpuSet>) -> BTreeMap<CpuId, u32> {
    (0..).zip(groups).flat_map(|(i, set)| set.iter().map(move |c| (c, i))).collect()
}

/// Adds a note on LLCs and cores that span nodes or sockets, as on some real machines. They are correct, but look wrong
/// when the machine is drawn.
fn note_overlaps(t: &mut Topology) {
    let spans = |set: &CpuSet, of: fn(&Cpu) -> u32| {
        let mut ids = set.iter().filter_map(|c| t.cpu(c)).map(of);
        let first = ids.next();
        ids.any(|id| Some(id) != first)
    };
    let llcs = |of| t.llcs.iter().filter(|llc| spans(&llc.cpus, of)).count();
    let cores = |of| t.cores.iter().filter(|core| spans(&core.cpus, of)).count();
    let cases = [
        (llcs(|c| c.node.0), "LLCs span NUMA nodes, as with sub-NUMA clustering"),
        (llcs(|c| c.socket.0), "LLCs span sockets, which only a virtual machine's do"),
        (cores(|c| c.node.0), "cores span NUMA nodes, which only a virtual machine's do"),
        (cores(|c| c.socket.0), "cores span sockets, which only a virtual machine's do"),
    ];
    for (count, what) in cases.into_iter().filter(|(count, _)| *count > 0) {
        t.notes.push(format!("{count} {what}; taken as listed"));
    }
}
