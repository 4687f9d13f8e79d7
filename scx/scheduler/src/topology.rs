//! The tables that the BPF program reads: shards, their CPUs, and their order by distance.
//!
//! A shard is a last-level cache (LLC), or an equal part of one with more than `max_cpus` CPUs, so that a queue is
//! shared by a bounded number of CPUs. Siblings are neighbours within a shard.

use crate::tables::{MAX_CPUS, MAX_SHARDS};
use anyhow::{Result, bail};
use warmcore_topo::Topology;
use warmcore_types::CpuId;

unsafe extern "C" {
    safe fn warm_nr_shards(cpus: u32, max: u32) -> u32;
    safe fn warm_shard(index: u32, cpus: u32, max: u32) -> u32;
}

/// A shard: its CPUs and the LLC that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The LLC's number.
    pub llc: u32,
    /// Its CPUs; siblings are neighbours.
    pub cpus: Vec<u32>,
    /// The other shards, nearest first.
    pub near: Vec<u32>,
}

/// The shards of a machine.
#[derive(Debug)]
pub struct Shards {
    /// By number.
    pub shards: Vec<Shard>,
    /// One above the largest possible CPU number.
    pub nr_cpu_ids: u32,
    /// Whether a core has several CPUs.
    pub has_smt: bool,
}

impl Shards {
    /// Returns the shards of `topo`, of at most `max_cpus` CPUs each.
    ///
    /// # Errors
    /// Returns an error if the machine is larger than the program's tables.
    pub fn new(topo: &Topology, max_cpus: u32) -> Result<Self> {
        let nr_cpu_ids = topo.possible.last().max(topo.cpus.last().map(|c| c.id)).map_or(1, |c| c.0 + 1);
        if nr_cpu_ids as usize > MAX_CPUS {
            bail!(
                "this machine may have CPU {}: scx_warm supports CPUs 0 to {}",
                nr_cpu_ids - 1,
                MAX_CPUS - 1
            );
        }
        let mut shards = Vec::new();
        for llc in &topo.llcs {
            let mut cpus: Vec<CpuId> = llc.cpus.iter().collect();
            cpus.sort_by_key(|c| (topo.cpu(*c).map(|c| c.core), *c));
            let (len, first) = (cpus.len() as u32, shards.len());
            shards.extend((0..warm_nr_shards(len, max_cpus)).map(|_| Shard {
                llc: llc.id.0,
                cpus: vec![],
                near: vec![],
            }));
            for (i, cpu) in cpus.iter().enumerate() {
                shards[first + warm_shard(i as u32, len, max_cpus) as usize].cpus.push(cpu.0);
            }
        }
        if shards.len() > MAX_SHARDS {
            bail!(
                "{} LLCs and parts of LLCs: scx_warm supports {MAX_SHARDS}; raise --shard-cpus",
                shards.len()
            );
        }
        let near: Vec<Vec<u32>> = (0..shards.len()).map(|own| by_distance(topo, &shards, own)).collect();
        for (shard, near) in shards.iter_mut().zip(near) {
            shard.near = near;
        }
        Ok(Self { shards, nr_cpu_ids, has_smt: topo.cores.iter().any(|c| c.cpus.len() > 1) })
    }
}

/// Returns all shards but `own`, nearest first: by LLC, node, the firmware's distance of the nodes, and socket.
/// Equally near ones start after `own`, so that not all shards turn to the same one first.
fn by_distance(topo: &Topology, shards: &[Shard], own: usize) -> Vec<u32> {
    let cpu = |s: usize| CpuId(shards[s].cpus[0]);
    let mut others: Vec<usize> = (0..shards.len()).filter(|s| *s != own).collect();
    others.sort_by_key(|&s| {
        let nodes = topo.cpu(cpu(own)).zip(topo.cpu(cpu(s)));
        (
            topo.distance(cpu(own), cpu(s)).filter(|_| shards[s].llc != shards[own].llc),
            nodes.and_then(|(a, b)| topo.node_distance(a.node, b.node)),
            (s + shards.len() - own) % shards.len(),
        )
    });
    others.into_iter().map(|s| s as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmcore_topo::MACHINES;

    fn shards(machine: &str, max_cpus: u32) -> Shards {
        let topo = Topology::from_machine(MACHINES, machine).expect("a known machine");
        Shards::new(&topo, max_cpus).expect("it fits")
    }

    #[test]
    fn each_llc_of_genoa_is_one_shard_with_siblings_side_by_side() {
        let s = shards("epyc9654_2p", 16);
        assert_eq!((s.shards.len(), s.nr_cpu_ids, s.has_smt), (24, 384, true));
        assert_eq!(s.shards[0].cpus[..4], [0, 192, 1, 193]);
        assert_eq!(s.shards[0].near.len(), 23);
        // The eleven other LLCs of the socket come before those of the other socket.
        assert!(s.shards[3].near[..11].iter().all(|n| *n < 12), "{:?}", s.shards[3].near);
        assert_eq!(s.shards[3].near[0], 4);
    }

    #[test]
    fn a_large_llc_is_split_and_its_parts_are_nearest() {
        let s = shards("epyc9654_2p", 4);
        assert_eq!(s.shards.len(), 96);
        assert_eq!(s.shards[5].llc, s.shards[s.shards[5].near[2] as usize].llc);
        assert!(s.shards.iter().all(|s| s.cpus.len() == 4));
    }

    #[test]
    fn too_many_shards_are_refused() {
        let topo = Topology::from_machine(MACHINES, "epyc9654_2p").expect("a known machine");
        assert!(Shards::new(&topo, 1).expect_err("384 shards").to_string().contains("--shard-cpus"));
    }
}
