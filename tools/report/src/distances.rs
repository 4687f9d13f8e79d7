//! The cost of moving data between two CPUs of a machine, by what the two CPUs share.

use super::inputs::Probe;
use super::markup::amount;
use std::collections::BTreeMap;
use warmcore_topo::{Distance, Topology};
use warmcore_types::CpuId;

/// The pairs of CPUs that share the same thing, and the cost of moving data between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    /// What the two CPUs share: `the core`, `the node`.
    pub shared: &'static str,
    /// The number of hand-overs that were timed; a pair of CPUs counts once for each direction.
    pub timed: usize,
    /// The time of one cache line: the median of the pairs and, with two times or more, the least and the most. Empty
    /// if none was timed.
    pub line: String,
    /// The time of a working set of 256 KiB, if it was timed.
    pub working_set: String,
}

fn shared(distance: Distance) -> &'static str {
    match distance {
        Distance::Same => "itself",
        Distance::Smt => "the core",
        Distance::Llc => "the last-level cache",
        Distance::Node => "the node",
        Distance::Socket => "the socket",
        Distance::Other => "only the machine",
    }
}

/// The costs by distance, the nearest first.
pub(super) fn moves(t: &Topology, probe: &Probe) -> Vec<Move> {
    let mut lines = probe.times(t);
    let mut sets: BTreeMap<Distance, f64> = BTreeMap::new();
    for set in &probe.working_sets {
        if let Some(distance) = t.distance(CpuId(set.from), CpuId(set.to)) {
            sets.insert(distance, set.ns);
        }
    }
    let all: std::collections::BTreeSet<Distance> = lines.keys().chain(sets.keys()).copied().collect();
    let of = |distance: Distance| {
        let times = lines.remove(&distance).unwrap_or_default();
        let ns = |ns| amount(ns, "ns");
        let line = match times[..] {
            [] => String::new(),
            [one] => ns(one),
            [least, .., most] => format!("{} ({} … {})", ns(times[times.len() / 2]), ns(least), ns(most)),
        };
        let working_set = sets.get(&distance).copied().map(ns).unwrap_or_default();
        Move { shared: shared(distance), timed: times.len(), line, working_set }
    };
    all.into_iter().map(of).collect()
}
