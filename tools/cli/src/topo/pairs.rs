//! Which pairs of CPUs are timed.
//!
//! With up to 16 CPUs, all pairs are timed. With more CPUs: all pairs within a core; within each last-level cache, its
//! first core with each of its other cores, and all pairs of cores of the first cache if it has at most 16; between
//! caches, one to four cores of each cache with those of every other cache. At most 512 pairs of each of these four
//! kinds are timed. So on the known machines each CPU is in at least one pair, the times show if a reported cache is in
//! fact two, and each distance has several pairs. On 2 × EPYC 9654 with 384 CPUs, these are 192 + 168 + 21 + 276 = 657
//! pairs of 73 536.

use std::collections::BTreeSet;
use warmcore_topo::Topology;
use warmcore_types::{CpuId, CpuSet};

/// Up to this many CPUs, all pairs are timed and, from three CPUs on, printed as a matrix. With more CPUs it is also
/// the size up to which all cores of the first cache are timed, and, with up to 16 caches, the most cores that are
/// timed with cores of other caches.
pub(super) const ALL_PAIRS_CPUS_MAX: usize = 16;
/// The most pairs of one kind that are timed; they are picked at equal steps from all pairs of the kind.
const PAIRS_OF_A_KIND_MAX: usize = 512;
/// The most cores of a cache that are timed with cores of other caches.
const ENVOYS_MAX: usize = 4;

/// The pairs of `cpus` to be timed, each once, the smaller number first.
pub(super) fn pairs(t: &Topology, cpus: &CpuSet) -> Vec<(CpuId, CpuId)> {
    let cpus: Vec<CpuId> = cpus.iter().filter(|c| t.cpu(*c).is_some()).collect();
    if cpus.len() <= ALL_PAIRS_CPUS_MAX {
        return all(&cpus);
    }
    let within = |set: &CpuSet| cpus.iter().copied().filter(|c| set.contains(*c)).collect::<Vec<_>>();
    let cores: Vec<Vec<CpuId>> = t.cores.iter().map(|c| within(&c.cpus)).collect();
    let siblings = cores.iter().flat_map(|core| all(core)).collect();
    // The first CPUs of the cores, cache by cache.
    let firsts: BTreeSet<CpuId> = cores.iter().filter_map(|core| core.first().copied()).collect();
    let caches: Vec<Vec<CpuId>> = t
        .llcs
        .iter()
        .map(|llc| firsts.iter().copied().filter(|c| llc.cpus.contains(*c)).collect::<Vec<_>>())
        .filter(|cache| !cache.is_empty())
        .collect();
    let star =
        |cache: &Vec<CpuId>| cache[1..].iter().map(|other| ordered(cache[0], *other)).collect::<Vec<_>>();
    let stars = caches.iter().flat_map(star).collect();
    let full = caches.first().filter(|c| c.len() <= ALL_PAIRS_CPUS_MAX).map_or(Vec::new(), |c| all(c));
    let each = (ALL_PAIRS_CPUS_MAX / caches.len().max(1)).clamp(1, ENVOYS_MAX);
    let between = all(&caches.iter().flat_map(|cache| evenly(cache, each)).collect::<Vec<_>>());
    let kinds = [siblings, stars, full, between];
    let picked: BTreeSet<_> = kinds.iter().flat_map(|kind| evenly(kind, PAIRS_OF_A_KIND_MAX)).collect();
    picked.into_iter().collect()
}

fn ordered(a: CpuId, b: CpuId) -> (CpuId, CpuId) {
    (a.min(b), a.max(b))
}

fn all(cpus: &[CpuId]) -> Vec<(CpuId, CpuId)> {
    (0..cpus.len()).flat_map(|i| (i + 1..cpus.len()).map(move |j| ordered(cpus[i], cpus[j]))).collect()
}

/// Picks at most `n` items evenly, including the first.
fn evenly<T: Copy>(all: &[T], n: usize) -> Vec<T> {
    let kept = all.len().min(n);
    (0..kept).map(|i| all[i * all.len() / kept]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use warmcore_topo::{Distance, MACHINES, machines};

    #[test]
    fn up_to_16_cpus_all_pairs_are_timed_and_one_cpu_has_none() {
        let t = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
        let first = |n| (0..n).map(CpuId).collect::<CpuSet>();
        assert_eq!(pairs(&t, &first(16)).len(), 120);
        assert_eq!(pairs(&t, &first(2)), [(CpuId(0), CpuId(1))]);
        assert!(pairs(&t, &first(1)).is_empty() && pairs(&t, &CpuSet::new()).is_empty());
    }

    #[test]
    fn a_sample_has_each_cpu_and_each_distance_and_only_what_is_allowed() {
        for name in machines(MACHINES).unwrap() {
            let t = Topology::from_machine(MACHINES, &name).unwrap();
            let sample = pairs(&t, &t.online());
            assert!(
                sample.len() <= 4 * PAIRS_OF_A_KIND_MAX && sample.is_sorted(),
                "{name}: {}",
                sample.len()
            );
            let seen: CpuSet = sample.iter().flat_map(|(a, b)| [*a, *b]).collect();
            assert_eq!(seen, t.online(), "{name}");
            let mut distances = BTreeMap::<Distance, usize>::new();
            for (a, b) in &sample {
                *distances.entry(t.distance(*a, *b).unwrap()).or_default() += 1;
            }
            assert!(distances.len() >= 2 && distances.values().all(|n| *n >= 4), "{name}: {distances:?}");

            let allowed: CpuSet = t.online().iter().filter(|c| c.0 % 3 == 1).collect();
            let sample = pairs(&t, &allowed);
            assert!(
                sample.iter().all(|(a, b)| a < b && allowed.contains(*a) && allowed.contains(*b)),
                "{name}"
            );
        }
        let genoa = Topology::from_machine(MACHINES, "epyc9654_2p").unwrap();
        assert_eq!(pairs(&genoa, &genoa.online()).len(), 657);
    }
}
