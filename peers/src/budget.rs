//! Budgets: charges bytes to a limit and gives them back, with Warmcore's accounts, DataFusion's memory pools and
//! `governor`.
//!
//! Warmcore's variants charge a tenant's account, three levels deep, each with a limit; there is one for each kind of
//! stock. A pool of DataFusion has one limit. Each thread has a reservation in each pool, as DataFusion makes one for
//! each partition. Two of the pools are Warmcore's, behind DataFusion's trait. No variant comes near its limit; a
//! refusal is an error. If a case has two threads, both use the same account, pool or limiter.
//!
//! A *pair* is a charge and an uncharge. A pool takes at least three locked operations for a pair, two of them for the
//! reservation. DataFusion's default also takes a lock and looks up its consumer.
//!
//! # Differences
//! `governor` limits a rate: charges expire with time, and a pair is one call. It counts in cells, each of which takes
//! at least a nanosecond to expire; a cell is 512 bytes here. DataFusion's default is the pool that
//! `RuntimeEnvBuilder::with_memory_limit` makes: a greedy pool inside a pool that tracks the five largest consumers.

use crate::rows_over;
use anyhow::ensure;
use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation, TrackConsumersPool,
};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use warmcore_bench::CaseCtx;
use warmcore_bench::measure::{Measured, Variant};
use warmcore_budget::process::default_kind;
use warmcore_budget::{Account, StockKind};
use warmcore_datafusion::BudgetPool;
use warmcore_line::Padded;
use warmcore_results::{Bound, Row};

/// DataFusion's default.
const DEFAULT: &str = "DataFusion Track(Greedy)";

/// The promise for the case ring with two threads: the smallest ratio of the time of DataFusion's default to Warmcore's
/// time.
const DEFAULT_OVER_RSEQ_MIN: f64 = 15.0;

/// A limit in bytes that is far above all charges.
const LIMIT: usize = 1 << 30;

/// A charge is given back after this many further charges.
const RING: usize = 64;

/// The bytes of each charge of a hit.
const HIT: usize = 256;

/// How many operations the second thread does before it checks whether it should stop.
const BATCH: u64 = 4096;

/// A limit, as one thread uses it.
trait Held {
    /// Charges `n` bytes. Returns whether they were within the limit.
    fn charge(&self, n: usize) -> bool;
    fn uncharge(&self, n: usize);
}

impl Held for Account {
    #[inline(always)]
    fn charge(&self, n: usize) -> bool {
        self.try_charge(n as u64).is_ok()
    }

    #[inline(always)]
    fn uncharge(&self, n: usize) {
        // An uncharge of more than was charged would show in the usage at the end.
        let _ = Account::uncharge(self, n as u64);
    }
}

impl Held for MemoryReservation {
    #[inline(always)]
    fn charge(&self, n: usize) -> bool {
        self.try_grow(n).is_ok()
    }

    #[inline(always)]
    fn uncharge(&self, n: usize) {
        self.shrink(n);
    }
}

/// Bytes in governor's cells: one more than the whole cells.
fn cells(n: usize) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add((n >> 9) as u32)
}

impl Held for DefaultDirectRateLimiter {
    #[inline(always)]
    fn charge(&self, n: usize) -> bool {
        self.check_n(cells(n)).is_ok_and(|fits| fits.is_ok())
    }

    fn uncharge(&self, _: usize) {}
}

/// A limiter with a key for each tenant. There is one tenant.
impl Held for DefaultKeyedRateLimiter<u64> {
    #[inline(always)]
    fn charge(&self, n: usize) -> bool {
        self.check_key_n(black_box(&7), cells(n)).is_ok_and(|fits| fits.is_ok())
    }

    fn uncharge(&self, _: usize) {}
}

/// Sizes from 64 to 4096 bytes, the same for all variants.
fn sizes() -> Vec<usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..1024).map(|_| 64 + (random() % 4033) as usize).collect()
}

/// The operation of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A charge, given back at once.
    Hit,
    /// Charges of random sizes, each given back [`RING`] charges later.
    Ring,
}

impl Work {
    /// Performs the operation `n` times, and returns how many charges were refused.
    #[inline(always)]
    fn run(self, n: u64, sizes: &[usize], held: &impl Held) -> u64 {
        let mut refused = 0;
        match self {
            Work::Hit => {
                for _ in 0..n {
                    refused += u64::from(!held.charge(black_box(HIT)));
                    held.uncharge(black_box(HIT));
                }
            }
            Work::Ring => {
                let mut ring = [0; RING];
                for i in 0..n as usize {
                    let size = sizes[i % sizes.len()];
                    refused += u64::from(!held.charge(size));
                    match std::mem::replace(&mut ring[i % RING], size) {
                        0 => {}
                        old => held.uncharge(old),
                    }
                }
                ring.into_iter().filter(|size| *size > 0).for_each(|size| held.uncharge(size));
            }
        }
        refused
    }
}

/// A tenant's account, three levels deep, and the accounts above it.
fn tenant(kind: StockKind) -> [Account; 3] {
    let server = Account::root("server").kind(kind).limit(4 * LIMIT as u64).build();
    let group = server.child("group").limit(2 * LIMIT as u64).build();
    let tenant = group.child("tenant").limit(LIMIT as u64).build();
    [tenant, group, server]
}

/// The name of Warmcore's variant.
fn name(kind: StockKind) -> String {
    format!("warmcore {kind}")
}

/// Warmcore's kinds of stocks: the kind with restartable sequences, if it is the default here, and the portable kind.
fn kinds() -> Vec<StockKind> {
    let rseq = (default_kind() == StockKind::Rseq).then_some(StockKind::Rseq);
    rseq.into_iter().chain([StockKind::Atomic]).collect()
}

/// The case `peers.budget.hit` or `peers.budget.ring`; if `two`, the same name and `.2threads`.
pub fn case(ctx: &CaseCtx, work: Work, two: bool) -> anyhow::Result<Vec<Row>> {
    let (sizes, refused) = (sizes(), AtomicU64::new(0));
    let kinds = kinds();
    let tenants: Vec<[Account; 3]> = kinds.iter().map(|kind| tenant(*kind)).collect();
    let five = NonZeroUsize::new(5).expect("five is not zero");
    let adapted = tenant(kinds[0]);
    let pools: [(String, Arc<dyn MemoryPool>); 6] = [
        ("DataFusion Greedy".to_owned(), Arc::new(GreedyMemoryPool::new(LIMIT))),
        ("DataFusion FairSpill".to_owned(), Arc::new(FairSpillPool::new(LIMIT))),
        (DEFAULT.to_owned(), Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(LIMIT), five))),
        (
            "DataFusion Track(FairSpill)".to_owned(),
            Arc::new(TrackConsumersPool::new(FairSpillPool::new(LIMIT), five)),
        ),
        (format!("{} in DataFusion", name(kinds[0])), Arc::new(BudgetPool::new(adapted[0].clone()))),
        (
            format!("{} in DataFusion, fair", name(kinds[0])),
            Arc::new(BudgetPool::fair(adapted[0].child("fair").limit(LIMIT as u64).build())),
        ),
    ];
    // Each reservation is on separate cache lines, because in DataFusion the partitions' reservations are in boxes far
    // apart.
    let reservation = |pool| Padded::new(MemoryConsumer::new("peers").with_can_spill(true).register(pool));
    let reservations: Vec<[Padded<MemoryReservation>; 2]> =
        pools.iter().map(|(_, pool)| [reservation(pool), reservation(pool)]).collect();
    let quota = Quota::per_second(NonZeroU32::MAX);
    let direct = RateLimiter::direct(quota);
    let keyed = RateLimiter::keyed(quota);

    let (sizes, refused) = (&sizes[..], &refused);
    let mut variants = Vec::new();
    for (kind, [tenant, ..]) in kinds.iter().zip(&tenants) {
        variants.push(variant(&name(*kind), work, two, sizes, refused, [tenant; 2]));
    }
    for ((name, _), [own, partner]) in pools.iter().zip(&reservations) {
        variants.push(variant(name, work, two, sizes, refused, [&**own, &**partner]));
    }
    variants.push(variant("governor direct", work, two, sizes, refused, [&direct; 2]));
    variants.push(variant("governor keyed", work, two, sizes, refused, [&keyed; 2]));

    let measured = ctx.interleave(variants)?;
    let refused = refused.load(Relaxed);
    ensure!(refused == 0, "{refused} charges were refused far below the limit");
    for account in tenants.iter().flatten().chain(&adapted) {
        let left = account.exact_usage();
        ensure!(left == 0, "{left} bytes are charged to {} when all were given back", account.name());
    }
    for ((name, pool), [own, partner]) in pools.iter().zip(&reservations) {
        let left = pool.reserved() + own.size() + partner.size();
        ensure!(left == 0, "{left} bytes are reserved in {name} when all were given back");
    }
    Ok(rows(&measured, &name(kinds[0]), kinds[0] == StockKind::Rseq && work == Work::Ring && two))
}

fn variant<'a, H: Held + Sync>(
    name: &str,
    work: Work,
    two: bool,
    sizes: &'a [usize],
    refused: &'a AtomicU64,
    [own, partner]: [&'a H; 2],
) -> Variant<'a> {
    let run = move |n, held: &H| {
        let no = work.run(n, sizes, held);
        if no > 0 {
            refused.fetch_add(no, Relaxed);
        }
    };
    let variant = Variant::new(name, move |n| run(n, own));
    if !two {
        return variant;
    }
    variant.beside(move || {
        run(BATCH, partner);
        BATCH
    })
}

/// The times, and the ratios of all variants to Warmcore's; if there is a promise, its ratio last.
fn rows(measured: &Measured, ours: &str, promised: bool) -> Vec<Row> {
    let mut rows = rows_over(measured, ours);
    if promised {
        let promise = measured.promise(DEFAULT, ours, Bound::AtLeast, DEFAULT_OVER_RSEQ_MIN);
        rows.retain(|row| !promise.iter().any(|p| (&p.variant, &p.over) == (&row.variant, &row.over)));
        rows.extend(promise);
    }
    rows
}
