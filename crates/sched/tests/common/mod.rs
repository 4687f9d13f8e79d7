//! Shared by the tests of this crate: machines, and a view whose facts a test sets one by one.
#![allow(dead_code)] // Each test uses a part.

pub mod host;
pub mod script;

use warmcore_sched::{SchedDomains, ShardMask, View};
use warmcore_topo::{MACHINES, Topology, machines};
use warmcore_types::{CpuId, Nanos};

/// A view whose facts a test sets one by one.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub cpus: Vec<Cpu>,
    /// By CPU: its shard, and its place there.
    pub places: Vec<(usize, ShardMask)>,
    pub waiting: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu {
    pub idle: bool,
    pub offline: bool,
    pub stuck: bool,
    pub backlog: u32,
    pub since: Nanos,
    /// When the oldest task of the backlog was queued, if that is not `since`.
    pub oldest: Option<Nanos>,
    pub migration_cost: Nanos,
    pub still_for: Nanos,
    pub hot_until: Nanos,
}

impl Facts {
    /// All CPUs run a task, and no task waits.
    pub fn busy(machine: &SchedDomains) -> Self {
        let all = (0..machine.cpus() as u32).map(CpuId);
        let places = all.map(|cpu| (machine.shard_of(cpu), machine.bit(cpu))).collect();
        Self { cpus: vec![Cpu::default(); machine.cpus()], places, waiting: vec![0; machine.shards()] }
    }

    /// The CPUs of a shard of which `is` is true.
    fn set_in(&self, shard: usize, is: impl Fn(&Cpu) -> bool) -> ShardMask {
        let of_shard = self.cpus.iter().zip(&self.places).filter(|(_, place)| place.0 == shard);
        of_shard.filter(|(cpu, _)| is(cpu)).fold(0, |set, (_, place)| set | place.1)
    }
}

impl View for Facts {
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].idle
    }
    fn is_offline(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].offline
    }
    fn is_stuck(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].stuck
    }
    fn backlog(&self, cpu: CpuId) -> u32 {
        self.cpus[cpu.index()].backlog
    }
    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        self.cpus[cpu.index()].since
    }
    fn still_for(&self, cpu: CpuId, _now: Nanos) -> Nanos {
        self.cpus[cpu.index()].still_for
    }
    fn waits_since(&self, _me: CpuId, cpu: CpuId) -> Nanos {
        let cpu = &self.cpus[cpu.index()];
        cpu.oldest.unwrap_or(cpu.since)
    }
    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        self.cpus[cpu.index()].migration_cost
    }
    fn hot_until(&self, cpu: CpuId) -> Nanos {
        self.cpus[cpu.index()].hot_until
    }
    fn shared_queue_len(&self, shard: usize) -> u32 {
        self.waiting[shard]
    }
    fn idle_in(&self, shard: usize) -> ShardMask {
        self.set_in(shard, |cpu| cpu.idle && !cpu.offline)
    }
    fn backlogs_in(&self, shard: usize) -> ShardMask {
        self.set_in(shard, |cpu| cpu.backlog > 0)
    }
}

/// The domains of a scheduler that has all CPUs of the topology, in its order.
pub fn whole(topology: &Topology) -> SchedDomains {
    SchedDomains::new(topology, &topology.cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>())
}

/// A machine with the given numbers of sockets, LLCs per socket, cores per LLC, and threads per core.
pub fn drawn(sockets: u32, llcs: u32, cores: u32, smt: u32) -> Topology {
    let text = format!(
        "[drawn]\nsockets = {sockets}\nl3_per_socket = {llcs}\ncores_per_l3 = {cores}\nsmt = {smt}\n"
    );
    Topology::from_machine(&text, "drawn").expect("the counts fit")
}

/// The machines of `crates/topo/machines.toml`, and machines of other shapes, with their names.
pub fn all_machines() -> Vec<(String, SchedDomains)> {
    let known = machines(MACHINES).expect("the file is right");
    let mut all: Vec<_> = known
        .into_iter()
        .map(|name| {
            let topology = Topology::from_machine(MACHINES, &name).expect("a machine");
            (name, whole(&topology))
        })
        .collect();
    for (name, [sockets, llcs, cores, smt]) in [
        ("24 LLCs", [2, 12, 8, 2]),
        ("11 LLCs", [1, 11, 8, 2]),
        ("one LLC of 56 cores", [2, 1, 56, 2]),
        ("cores of 8 threads", [1, 2, 6, 8]),
        ("cores of 3 threads", [1, 1, 16, 3]),
        ("SMT and nothing else", [1, 1, 1, 2]),
        ("one CPU", [1, 1, 1, 1]),
    ] {
        all.push((name.into(), whole(&drawn(sockets, llcs, cores, smt))));
    }
    let two = drawn(1, 1, 2, 1);
    let workers: Vec<CpuId> = (0..1024).map(|i| CpuId(i % 2)).collect();
    all.push(("1024 workers on 2 CPUs".into(), SchedDomains::new(&two, &workers)));
    let uneven: Vec<CpuId> = (0..100).map(|i| CpuId(u32::from(i > 60))).collect();
    all.push(("61 and 39 workers on 2 CPUs".into(), SchedDomains::new(&two, &uneven)));
    all.push((
        "a CPU that the topology does not have".into(),
        SchedDomains::new(&two, &[CpuId(0), CpuId(7000), CpuId(1)]),
    ));
    let mut cut_across = drawn(2, 2, 4, 2);
    for cpu in &mut cut_across.cpus {
        // The CPUs of each LLC alternate between two nodes, and those of each node between two sockets.
        cpu.node.0 = cpu.id.0 % 2;
        cpu.socket.0 = cpu.id.0 / 2 % 2;
    }
    all.push(("caches, nodes and sockets across each other".into(), whole(&cut_across)));
    all
}
