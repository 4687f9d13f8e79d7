//! The number of ids that a tenant of four threads holds on a machine of 384 CPUs.
//!
//! The id allocator alone runs random interleavings of entering, leaving, moving and compacting. Now and then all
//! running threads leave and enter again and a compaction runs; then the held ids are counted. Half of the moves go to
//! one of eight CPUs, so that several threads often use the same CPU. A thread that finds its CPU's id in use gets an
//! overflow id, which is not counted. The rows are deterministic. 4000 interleavings of 300 steps take 0.3 s.

use crate::case::CaseCtx;
use crate::measure::check_interrupted;
use fastrand::Rng;
use warmcore_cid::{HeldCid, Ids, Policy, User, pcpu_cids, policy};
use warmcore_results::names::cid::OURS;
use warmcore_results::{Bound, Row};
use warmcore_types::{CpuId, CpuSet};

const CPUS: usize = 384;
const FAVOURITES: usize = 8;
/// The number of threads: at most this many run at the same time, and each needs an id.
const THREADS: u32 = 4;
const STEPS: usize = 300;

/// The result of one interleaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    /// The most ids that were held when they were counted.
    held: u32,
    /// One more than the highest id that was given out, without overflow ids: the number of slots that threads may have
    /// touched with them.
    slots: u32,
}

fn interleaving(policy: &'static dyn Policy, seed: u64) -> Found {
    let ids = Ids::new(pcpu_cids(CPUS as u32), 64, policy);
    let all: CpuSet = (0..CPUS as u32).map(CpuId).collect();
    let mut rng = Rng::with_seed(seed);
    let mut threads: Vec<(User, CpuId, Option<HeldCid>)> =
        (0..THREADS).map(|token| (ids.add_user(token, &all), CpuId(token), None)).collect();
    let mut held = 0;
    for _ in 0..STEPS {
        let (user, cpu, holds) = &mut threads[rng.usize(..THREADS as usize)];
        match rng.usize(..16) {
            0 => _ = ids.compact(),
            1 => {
                // Every running thread leaves and enters again, and a compaction runs.
                for (user, cpu, holds) in &mut threads {
                    if let Some(held) = holds.take() {
                        ids.leave(held, user);
                        *holds = ids.enter(*cpu, user);
                    }
                }
                ids.compact();
                held = held.max(ids.stats().in_use);
            }
            _ => match holds.take() {
                Some(held) => ids.leave(held, user),
                None => {
                    if rng.usize(..3) == 0 {
                        let end = if rng.usize(..2) == 0 { FAVOURITES } else { CPUS };
                        *cpu = CpuId(rng.usize(..end) as u32);
                    }
                    *holds = ids.enter(*cpu, user);
                }
            },
        }
    }
    for (mut user, _, holds) in threads {
        if let Some(held) = holds {
            ids.leave(held, &mut user);
        }
        ids.remove_user(user);
    }
    Found { held, slots: ids.stats().allocated }
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let each = if ctx.effort.is_quick() { 1000 } else { 4000 };
    let mut rows = Vec::new();
    for (i, policy) in policy::ALL.into_iter().enumerate() {
        let mut found = Vec::new();
        for seed in 0..each {
            check_interrupted()?;
            found.push(interleaving(policy, seed));
        }
        let of = |number: fn(&Found) -> u32| found.iter().map(|f| f64::from(number(f))).collect::<Vec<_>>();
        let most = found.iter().map(|f| f.held).max().unwrap_or(0);
        let row = Row::exact(ctx.name, policy.name(), "most ids held", "ids", f64::from(most), each);
        rows.push(row.promise_if(policy.name() == OURS, Bound::AtMost, f64::from(THREADS)));
        rows.push(Row::of(ctx.name, policy.name(), "slots ever touched", "slots", &of(|f| f.slots)));
        ctx.part_of(i + 1, policy::ALL.len());
    }
    rows.push(Row::exact(ctx.name, super::area::BY_CPU, "slots ever touched", "slots", CPUS as f64, 1));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmcore_cid::CacheLocal;

    #[test]
    fn the_same_seed_finds_the_same_and_cache_local_holds_no_more_than_run() {
        for seed in 0..100 {
            let found = interleaving(&CacheLocal, seed);
            assert_eq!(found, interleaving(&CacheLocal, seed));
            assert!(
                0 < found.held && found.held <= THREADS && found.slots < CPUS as u32,
                "{seed}: {found:?}"
            );
        }
    }
}
