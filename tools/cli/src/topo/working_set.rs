//! The cost of moving a working set: a CPU walks over 256 KiB that another CPU used last.
//!
//! The walk follows one random cycle through the lines, so that no prefetcher knows the next line, and writes to each
//! line, as a task does with its own data. Two CPUs walk in turn; one pair is timed for each distance. For comparison,
//! one CPU walks over a set that it used last itself.
//!
//! A walk takes 16 µs if the lines are in the core's own cache, and up to 0.5 ms if they are in another socket.

use super::probe::AffinityGuard;
use anyhow::Context;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use warmcore_report::WorkingSet;
use warmcore_sys::{affinity, clock};
use warmcore_topo::{Distance, Topology};
use warmcore_types::CpuId;

const KIB: u32 = 256;
/// The number of walks of each pair; the result is their median.
const WALKS: usize = 31;

/// A line of the set. Only the walking thread writes the fields.
#[repr(C, align(64))]
struct Line {
    next: AtomicU32,
    walks: AtomicU32,
}

/// Times one pair of each distance, and one CPU alone. Empty if `pairs` is.
///
/// # Errors
///
/// The thread's affinity can't be read, or the thread can't be pinned to a CPU of `pairs`.
pub(super) fn time(topology: &Topology, pairs: &[(CpuId, CpuId)]) -> anyhow::Result<Vec<WorkingSet>> {
    let Some(&(first, _)) = pairs.first() else { return Ok(Vec::new()) };
    let mut chosen = BTreeMap::from([(Distance::Same, (first, first))]);
    for &(from, to) in pairs {
        if let Some(distance) = topology.distance(from, to) {
            chosen.entry(distance).or_insert((from, to));
        }
    }
    let allowed = affinity::allowed().context("can't read on which CPUs this thread may run")?;
    let _guard = AffinityGuard(allowed);
    let lines = lines();
    chosen.into_values().map(|(from, to)| pair(&lines, from, to)).collect()
}

/// Makes lines that are linked in one random cycle (Sattolo's shuffle).
fn lines() -> Vec<Line> {
    let count = KIB as usize * 1024 / size_of::<Line>();
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    (1..count).rev().for_each(|i| order.swap(i, rng.usize(..i)));
    order.into_iter().map(|next| Line { next: AtomicU32::new(next), walks: AtomicU32::new(0) }).collect()
}

fn pair(lines: &[Line], from: CpuId, to: CpuId) -> anyhow::Result<WorkingSet> {
    let pin = |cpu: CpuId| affinity::pin(cpu).with_context(|| format!("can't pin a thread to {cpu}"));
    let mut walks = Vec::with_capacity(WALKS);
    for _ in 0..WALKS {
        pin(from)?;
        walk(lines);
        pin(to)?;
        walks.push(walk(lines));
    }
    walks.sort_unstable();
    Ok(WorkingSet { from: from.0, to: to.0, kib: KIB, ns: walks[WALKS / 2] as f64 })
}

/// Writes to each line once; returns the time in ns.
fn walk(lines: &[Line]) -> u64 {
    let (began, mut at) = (clock::now(), 0);
    for _ in 0..lines.len() {
        let line = &lines[at as usize];
        line.walks.store(line.walks.load(Relaxed).wrapping_add(1), Relaxed);
        at = line.next.load(Relaxed);
    }
    clock::now().0 - began.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_writes_each_line_once() {
        let lines = lines();
        walk(&lines);
        walk(&lines);
        assert!(lines.iter().all(|line| line.walks.load(Relaxed) == 2));
    }

    #[test]
    fn a_cpu_with_itself_and_a_pair_of_each_distance_are_timed() {
        let topology = Topology::this_machine().unwrap();
        let cpus: Vec<CpuId> = topology.usable().iter().take(2).collect();
        let [a, b] = cpus[..] else { return };
        let sets = time(&topology, &[(a, b)]).unwrap();
        let pairs: Vec<(u32, u32)> = sets.iter().map(|set| (set.from, set.to)).collect();
        assert_eq!(pairs, [(a.0, a.0), (a.0, b.0)]);
        assert!(sets.iter().all(|set| set.ns > 0.0 && set.kib == 256));
    }
}
