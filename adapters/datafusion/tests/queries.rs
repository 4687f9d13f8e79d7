//! Real queries over the pool: they spill, they fail by name, they share a root.

use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::DataFusionError;
use datafusion::datasource::MemTable;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::functions_aggregate::expr_fn::{count, sum};
use datafusion::logical_expr::JoinType;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext, col, lit};
use std::sync::{Arc, OnceLock};
use warmcore_budget::{Account, Kind};
use warmcore_datafusion::BudgetPool;

const MIB: u64 = 1 << 20;

/// Rows of the table: 64 MB in two columns.
const ROWS: i64 = 4_000_000;
const BATCH: i64 = 8192;
const PARTITIONS: usize = 2;

/// As many keys, and none twice in a row.
const KEYS: i64 = 1_000_000;

/// A table of `ROWS` rows: key and value, in no order.
fn table() -> Arc<MemTable> {
    static TABLE: OnceLock<Arc<MemTable>> = OnceLock::new();
    let make = || {
        let mut partitions = vec![Vec::new(); PARTITIONS];
        for (i, begin) in (0..ROWS).step_by(BATCH as usize).enumerate() {
            let rows = begin..(begin + BATCH).min(ROWS);
            let key = |row: i64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15u64 as i64).rotate_left(29);
            let keys: ArrayRef =
                Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| key(row).rem_euclid(KEYS))));
            let values: ArrayRef = Arc::new(Int64Array::from_iter_values(rows));
            partitions[i % PARTITIONS]
                .push(RecordBatch::try_from_iter([("k", keys), ("v", values)]).unwrap());
        }
        Arc::new(MemTable::try_new(partitions[0][0].schema(), partitions).unwrap())
    };
    Arc::clone(TABLE.get_or_init(make))
}

/// A session over a pool, as a user would make it; with a disk or without.
fn session(pool: Arc<dyn MemoryPool>, disk: bool) -> SessionContext {
    let mode = if disk { DiskManagerMode::OsTmpDirectory } else { DiskManagerMode::Disabled };
    let disk = DiskManagerBuilder::default().with_mode(mode);
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).with_disk_manager_builder(disk).build_arc();
    // What every sort keeps for its merge: 10 MB of these limits would be all.
    let config = SessionConfig::new()
        .with_target_partitions(PARTITIONS)
        .with_batch_size(BATCH as usize)
        .with_sort_spill_reservation_bytes(1 << 20);
    SessionContext::new_with_config_rt(config, runtime.unwrap())
}

fn unlimited() -> SessionContext {
    session(Arc::new(UnboundedMemoryPool::default()), true)
}

type Query = fn(DataFrame) -> Result<DataFrame, DataFusionError>;

/// All rows in order; ties too.
fn sorted(table: DataFrame) -> Result<DataFrame, DataFusionError> {
    table.sort(vec![col("k").sort(true, false), col("v").sort(true, false)])
}

/// A row for each key.
fn grouped(table: DataFrame) -> Result<DataFrame, DataFusionError> {
    table.aggregate(vec![col("k")], vec![count(col("v")).alias("n"), sum(col("v")).alias("s")])
}

/// Grouped, then sorted: two operators that spill.
fn grouped_and_sorted(table: DataFrame) -> Result<DataFrame, DataFusionError> {
    grouped(table)?.sort(vec![col("s").sort(false, false), col("k").sort(true, false)])
}

/// What a query came to.
struct Outcome {
    rows: Vec<RecordBatch>,
    spills: usize,
    spilled_bytes: usize,
}

impl Outcome {
    /// The columns, one value after another.
    fn values(&self) -> impl Iterator<Item = Vec<i64>> + '_ {
        self.rows.iter().flat_map(|batch| {
            let columns: Vec<_> = batch.columns().iter().map(|c| c.as_primitive::<Int64Type>()).collect();
            (0..batch.num_rows()).map(move |row| columns.iter().map(|c| c.value(row)).collect::<Vec<_>>())
        })
    }

    /// The same rows in the same order, or in any.
    fn assert_same(&self, other: &Outcome, ordered: bool) {
        let rows = |outcome: &Outcome| {
            let mut rows: Vec<Vec<i64>> = outcome.values().collect();
            if !ordered {
                rows.sort_unstable();
            }
            rows
        };
        let (a, b) = (rows(self), rows(other));
        assert_eq!(a.len(), b.len());
        let differs = a.iter().zip(&b).position(|(a, b)| a != b);
        assert!(differs.is_none(), "row {differs:?} differs");
    }
}

async fn run(session: &SessionContext, query: Query) -> Result<Outcome, DataFusionError> {
    let plan = query(session.read_table(table())?)?.create_physical_plan().await?;
    let rows = collect(Arc::clone(&plan), session.task_ctx()).await?;
    let mut outcome = Outcome { rows, spills: 0, spilled_bytes: 0 };
    count_spills(plan.as_ref(), &mut outcome);
    Ok(outcome)
}

fn count_spills(plan: &dyn ExecutionPlan, outcome: &mut Outcome) {
    if let Some(metrics) = plan.metrics() {
        outcome.spills += metrics.spill_count().unwrap_or(0);
        outcome.spilled_bytes += metrics.spilled_bytes().unwrap_or(0);
    }
    plan.children().into_iter().for_each(|child| count_spills(child.as_ref(), outcome));
}

/// The kinds of stocks that this system has.
fn kinds() -> Vec<Kind> {
    let rseq = (warmcore_budget::host::default_kind() == Kind::Rseq).then_some(Kind::Rseq);
    rseq.into_iter().chain([Kind::Word]).collect()
}

/// Runs a query without a limit and below one; it must spill there, and come to the same.
async fn assert_spills_and_agrees(query: Query, limit: u64, ordered: bool, fair: bool) {
    let expected = run(&unlimited(), query).await.unwrap();
    assert_eq!(expected.spills, 0);
    for kind in kinds() {
        let server = Account::root("server").kind(kind).limit(limit).build();
        let account = server.child("queries").limit(limit).build();
        let pool = if fair { BudgetPool::fair(account) } else { BudgetPool::new(account) };
        let pool: Arc<dyn MemoryPool> = Arc::new(pool);
        let limited = session(Arc::clone(&pool), true);
        let found = run(&limited, query).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert!(found.spills > 0 && found.spilled_bytes > 0, "{kind}: nothing was spilled");
        eprintln!("{kind}: {} spills, {} bytes, peak {}", found.spills, found.spilled_bytes, server.peak());
        found.assert_same(&expected, ordered);
        drop(found);
        assert_eq!((pool.reserved(), server.exact_usage()), (0, 0), "{kind}");
        assert!(server.peak() > limit / 4, "{kind}: its peak is {}, so it was not asked", server.peak());
        assert!(server.peak() <= limit, "{kind}: its peak is {}", server.peak());
    }
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap()
        .block_on(future);
}

#[test]
fn a_sort_spills_and_comes_to_the_same() {
    block_on(assert_spills_and_agrees(sorted, 24 * MIB, true, true));
}

#[test]
fn a_group_by_spills_and_comes_to_the_same() {
    block_on(assert_spills_and_agrees(grouped, 24 * MIB, false, false));
}

#[test]
fn two_operators_that_spill_share_a_fair_pool() {
    block_on(assert_spills_and_agrees(grouped_and_sorted, 32 * MIB, true, true));
}

#[test]
fn a_query_that_cannot_spill_fails_with_the_name_of_the_account() {
    block_on(async {
        let server = Account::root("server").limit(1 << 30).build();
        let acme = server.child("acme").limit(24 * MIB).build();
        let fails = |disk: bool, query: Query| {
            let session = session(Arc::new(BudgetPool::new(acme.clone())), disk);
            async move {
                let error = run(&session, query).await.err().expect("it needs more than it may have");
                assert!(
                    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
                    "another error: {error:?}"
                );
                error.to_string()
            }
        };
        // Nowhere to spill to.
        let error = fails(false, sorted).await;
        assert!(error.contains("acme is full") || error.contains("fair share of acme"), "{error}");
        // The table that a join keeps in memory.
        let error = fails(true, |table| {
            let right = table.clone().select(vec![(col("k") + lit(1)).alias("r"), col("v").alias("w")])?;
            table.join(right, JoinType::Inner, &["k"], &["r"], None)
        })
        .await;
        assert!(error.contains("acme is full: ") && error.contains("HashJoinInput"), "{error}");
        // What was charged went with the query, or with what tokio still had of it.
        for _ in 0..1000 {
            if server.exact_usage() == 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(server.exact_usage(), 0);
    });
}

#[test]
fn two_sessions_below_one_root_keep_to_their_limits_and_the_roots() {
    block_on(async {
        let expected = run(&unlimited(), sorted).await.unwrap();
        for kind in kinds() {
            let server = Account::root("server").kind(kind).limit(40 * MIB).build();
            let tenant = |name: &str| server.child(name).limit(24 * MIB).build();
            let (acme, zeta) = (tenant("acme"), tenant("zeta"));
            let tasks = [&acme, &zeta].map(|account| {
                let session = session(Arc::new(BudgetPool::new(account.clone())), true);
                tokio::spawn(async move { run(&session, sorted).await })
            });
            for task in tasks {
                let found = task.await.unwrap().unwrap_or_else(|error| panic!("{kind}: {error}"));
                assert!(found.spills > 0, "{kind}: nothing was spilled");
                found.assert_same(&expected, true);
            }
            assert!(
                acme.peak() <= 24 * MIB && zeta.peak() <= 24 * MIB && server.peak() <= 40 * MIB,
                "{kind}"
            );
            assert_eq!((acme.exact_usage(), zeta.exact_usage(), server.exact_usage()), (0, 0, 0), "{kind}");
        }
    });
}

#[test]
#[ignore]
fn temporary_peers() {
    use datafusion::execution::memory_pool::*;
    block_on(async {
        for (q, name) in [(sorted as Query, "sort"), (grouped, "group"), (grouped_and_sorted, "both")] {
            for limit in [16usize, 20, 24, 32, 40] {
                let limit = limit << 20;
                let acc = |k| Account::root("acme").kind(k).limit(limit as u64).build();
                let pools: Vec<(&str, Arc<dyn MemoryPool>)> = vec![
                    ("greedy", Arc::new(GreedyMemoryPool::new(limit))),
                    ("fair", Arc::new(FairSpillPool::new(limit))),
                    ("ours rseq", Arc::new(BudgetPool::new(acc(Kind::Rseq)))),
                    ("ours word", Arc::new(BudgetPool::new(acc(Kind::Word)))),
                    ("ours fair rseq", Arc::new(BudgetPool::fair(acc(Kind::Rseq)))),
                    ("ours fair word", Arc::new(BudgetPool::fair(acc(Kind::Word)))),
                    ("ours fair word keep4", Arc::new(BudgetPool::fair(acc(Kind::Word)).keep_for_unspillable(4 * MIB).unwrap())),
                ];
                for (p, pool) in pools {
                    let t = std::time::Instant::now();
                    let mut s = String::new();
                    for _ in 0..2 {
                        s += &match run(&session(pool.clone(), true), q).await {
                            Ok(o) => format!("ok {} spills; ", o.spills),
                            Err(e) => format!("ERR {}; ", &e.to_string()[..90.min(e.to_string().len())]),
                        };
                    }
                    println!("{name} {} MiB {p}: {s} {:?}", limit >> 20, t.elapsed());
                }
            }
        }
    });
}
