//! What a sensitivity run of drains needs: a machine of any size, and the time of Warmcore's own drain on it.

use super::sim::{Case, Method, drain};
use warmcore_sim::costs::Costs;
use warmcore_sim::machine::SimMachine;
use warmcore_topo::Topology;

/// A machine of this many CPUs, built like a Genoa.
pub(crate) fn grown(cpus: usize) -> SimMachine {
    let super::DrainMachine { costs, topology } = super::DrainMachine::grown(cpus);
    SimMachine { name: format!("{cpus} CPUs, built like epyc9654_2p"), costs, topology, is_known: false }
}

/// A drain of `cpus` CPUs with stock, in ns.
pub(crate) fn ours_ns(costs: &Costs, topology: &Topology, cpus: usize) -> f64 {
    drain(costs, topology, &Case::plain(cpus), Method::Ours, 0).ns as f64
}
