//! The time to enter a tenant on another CPU than last time, under the tenant's lock.
//!
//! The id allocator runs alone, with CPU numbers as arguments: 384 CPUs, 64 users that all move, and 64 others whose
//! ids stay in use. There are several ways in which the allocator can choose the id of an entry. For each way there is
//! a set-up, which is not timed, then 64 timed entries, each with its leave. The tenant's statistics must show that
//! every entry was decided that way.
//!
//! 64 entries take 20 to 30 ns each, with all data in the cache: 2 µs between two readings of the clock.

use crate::case::CaseCtx;
use crate::measure::pinned;
use warmcore_cid::{CacheLocal, Ids, PcpuCid, Stats, User, pcpu_cids};
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;
use warmcore_types::{CpuId, CpuSet};

const CPUS: u32 = 384;
const MOVERS: u32 = 64;
/// The first CPU of the users that don't move.
const OTHERS_FROM: u32 = 256;
/// The most that an entry may take: for the lock, and for reading two per-CPU words and a bitmap.
const NS_MAX: f64 = 200.0;
/// The number of set-ups in a round.
const BATCHES: usize = 12;

type BenchIds = Ids<Box<[PcpuCid]>>;

/// A way in which the allocator chooses the id of an entry.
struct Path {
    name: &'static str,
    /// The number of further users that never enter; they only raise the bound on ids.
    idle: u32,
    /// Brings the tenant into a state in which the next entries are decided this way.
    prepare: fn(&mut EnterBench),
    /// Returns the CPU on which the moving user `i` enters.
    to: fn(u32) -> u32,
    /// Returns how many entries were decided this way, from the tenant's statistics.
    count: fn(&Stats) -> u64,
}

const PATHS: [Path; 5] = [
    Path {
        name: "recent id free",
        idle: 64,
        prepare: |bench| {
            bench.forget();
            bench.go(|i| 64 + i);
            bench.forget();
        },
        to: |i| i,
        count: |stats| stats.recent_hits,
    },
    Path {
        name: "an id never used",
        idle: 64,
        prepare: EnterBench::forget,
        to: |i| 64 + i,
        count: |s| s.expansions,
    },
    Path {
        name: "lowest free id",
        idle: 0,
        prepare: EnterBench::forget,
        to: |i| 64 + i,
        count: |s| s.lowest,
    },
    Path { name: "the id follows its task", idle: 64, prepare: |_| (), to: |i| 64 + i, count: |s| s.moves },
    Path {
        name: "the id is freed, the recent one taken",
        idle: 64,
        prepare: |bench| {
            // Each destination CPU remembers an id that is free.
            bench.forget();
            bench.go(|i| 64 + i);
            bench.forget();
            bench.go(|i| 128 + i);
        },
        to: |i| 64 + i,
        count: |s| s.freed_by_moves,
    },
];

struct EnterBench {
    ids: BenchIds,
    /// The users that don't move, then those that move, then those that never enter.
    users: Vec<User>,
}

impl EnterBench {
    fn new(idle: u32) -> Self {
        let ids = Ids::new(pcpu_cids(CPUS), 64, &CacheLocal);
        let all: CpuSet = (0..CPUS).map(CpuId).collect();
        let users = (0..2 * MOVERS + idle).map(|token| ids.add_user(token, &all)).collect();
        let mut bench = Self { ids, users };
        bench.stay();
        bench.go(|i| i);
        bench
    }

    fn visit(ids: &BenchIds, user: &mut User, cpu: u32) {
        let held = ids.enter(CpuId(cpu), user).expect("no id is missing");
        ids.leave(held, user);
    }

    /// Makes the moving users enter and leave on these CPUs.
    fn go(&mut self, to: fn(u32) -> u32) {
        for (i, user) in (0..MOVERS).zip(&mut self.users[MOVERS as usize..]) {
            Self::visit(&self.ids, user, to(i));
        }
    }

    /// Makes the other users enter and leave on the CPUs on which they stay.
    fn stay(&mut self) {
        for (i, user) in (0..MOVERS).zip(&mut self.users) {
            Self::visit(&self.ids, user, OTHERS_FROM + i);
        }
    }

    /// Runs two compactions, which free the ids of the moving users. The CPUs remember these ids.
    fn forget(&mut self) {
        for _ in 0..2 {
            self.stay();
            self.ids.compact();
        }
        self.stay();
    }

    fn end(self) {
        self.users.into_iter().for_each(|user| self.ids.remove_user(user));
    }
}

/// Runs one set-up and its entries. Returns the time of the entries in ns, and how many were decided this way.
fn batch(path: &Path) -> (u64, u64) {
    let mut bench = EnterBench::new(path.idle);
    (path.prepare)(&mut bench);
    let before = (path.count)(&bench.ids.stats());
    let began = clock::now().0;
    bench.go(path.to);
    let ns = clock::now().0 - began;
    let went = (path.count)(&bench.ids.stats()) - before;
    bench.end();
    (ns, went)
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let mut samples = vec![Vec::new(); PATHS.len()];
    let slice = |i: usize| {
        let (path, mut ns) = (&PATHS[i], 0);
        for _ in 0..BATCHES {
            let (took, went) = batch(path);
            anyhow::ensure!(
                went == u64::from(MOVERS),
                "{}: {went} of {MOVERS} entries went that way",
                path.name
            );
            ns += took;
        }
        samples[i].push(ns as f64 / (BATCHES as f64 * f64::from(MOVERS)));
        Ok(())
    };
    pinned(ctx.cpus.own, || ctx.in_rounds(ctx.effort.rounds, PATHS.len(), slice))?;
    let row = |(path, ns): (&Path, &Vec<f64>)| {
        Row::of(ctx.name, path.name, "time", "ns", ns).promise(Bound::AtMost, NS_MAX)
    };
    Ok(PATHS.iter().zip(&samples).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_decided_the_way_that_its_row_says() {
        for path in &PATHS {
            assert_eq!(batch(path).1, u64::from(MOVERS), "{}", path.name);
        }
    }
}
