//! Tests with queries that use the pool: queries that spill, that fail with the account's name, and that share a
//! root account.

use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::DataFusionError;
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::functions_aggregate::expr_fn::{count, sum};
use datafusion::logical_expr::JoinType;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext, col, lit};
use std::sync::{Arc, OnceLock};
use warmcore_budget::{Account, StockKind};
use warmcore_datafusion::BudgetPool;

const MIB: u64 = 1 << 20;

/// Rows of the table: 64 MB in two columns.
const ROWS: i64 = 4_000_000;
/// Rows of a batch. The number is small because a merge of spilled files needs two batches of each file at once.
const BATCH: i64 = 1024;

/// The number of different keys.
const KEYS: i64 = 1_000_000;

/// A table of `ROWS` unordered rows. Four rows on average have the same key; each row has a different value.
fn table() -> Arc<MemTable> {
    static TABLE: OnceLock<Arc<MemTable>> = OnceLock::new();
    let make = || {
        let batch = |begin: i64| {
            let rows = begin..(begin + BATCH).min(ROWS);
            // The factor is odd, so the product is a permutation of all 32-bit numbers.
            let value = |row: i64| i64::from((row as u32).wrapping_mul(0x9e37_79b1));
            let column = |of: &dyn Fn(i64) -> i64| -> ArrayRef {
                Arc::new(Int64Array::from_iter_values(rows.clone().map(of)))
            };
            let (keys, values) = (column(&|row| value(row) % KEYS), column(&value));
            RecordBatch::try_from_iter([("k", keys), ("v", values)]).unwrap()
        };
        let batches: Vec<_> = (0..ROWS).step_by(BATCH as usize).map(batch).collect();
        Arc::new(MemTable::try_new(batches[0].schema(), vec![batches]).unwrap())
    };
    Arc::clone(TABLE.get_or_init(make))
}

/// A session over a pool, made as in the README.
fn session(pool: Arc<dyn MemoryPool>) -> SessionContext {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc();
    // One partition: of several, the first may leave no memory for the last, and the query fails at random,
    // with DataFusion's greedy pool too.
    let config = SessionConfig::new().with_target_partitions(1).with_batch_size(BATCH as usize);
    // The memory that every sort keeps for its merge. The default of 10 MB is too much for the limits of these
    // tests.
    let config = config.with_sort_spill_reservation_bytes(1 << 20);
    SessionContext::new_with_config_rt(config, runtime.unwrap())
}

fn unlimited() -> SessionContext {
    session(Arc::new(UnboundedMemoryPool::default()))
}

type Query = fn(DataFrame) -> Result<DataFrame, DataFusionError>;

/// All rows, sorted by one column: rows sorted by several columns take more memory than DataFusion expects
/// when it reserves memory for a merge.
fn sorted(table: DataFrame) -> Result<DataFrame, DataFusionError> {
    table.sort(vec![col("v").sort(true, false)])
}

/// A row for each key.
fn grouped(table: DataFrame) -> Result<DataFrame, DataFusionError> {
    table.aggregate(vec![col("k")], vec![count(col("v")).alias("n"), sum(col("v")).alias("s")])
}

/// Grouped, then sorted: two operators that spill.
fn grouped_and_sorted(table: DataFrame) -> Result<DataFrame, DataFusionError> {
    grouped(table)?.sort(vec![col("s").sort(false, false), col("k").sort(true, false)])
}

/// The result of a query.
struct Outcome {
    rows: Vec<RecordBatch>,
    spills: usize,
    spilled_bytes: usize,
}

impl Outcome {
    /// The rows, each as the values of its columns.
    fn values(&self) -> impl Iterator<Item = Vec<i64>> + '_ {
        self.rows.iter().flat_map(|batch| {
            let columns: Vec<_> = batch.columns().iter().map(|c| c.as_primitive::<Int64Type>()).collect();
            (0..batch.num_rows()).map(move |row| columns.iter().map(|c| c.value(row)).collect::<Vec<_>>())
        })
    }

    /// Asserts that `self` and `other` have the same rows; if `ordered`, in the same order.
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

/// The kinds of stocks that this system supports.
fn kinds() -> Vec<StockKind> {
    let rseq = (warmcore_budget::process::default_kind() == StockKind::Rseq).then_some(StockKind::Rseq);
    rseq.into_iter().chain([StockKind::Atomic]).collect()
}

/// Asserts that the account never had more than its limit; with the rseq kind, not more than the limit plus
/// the units that may be in stocks, a hundredth of the limit.
fn assert_within(account: &Account) {
    let over = if account.kind() == StockKind::Rseq { account.limit() / 100 } else { 0 };
    let (peak, limit) = (account.peak(), account.limit());
    assert!(peak <= limit + over, "{}, {}: its peak is {peak} of {limit}", account.name(), account.kind());
}

/// Asserts that everything that was charged is given back within 10 s, by the query or by the last of its
/// tasks that tokio drops.
async fn assert_empty(account: &Account) {
    for _ in 0..1000 {
        if account.exact_usage() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} bytes are left in {}: {}", account.exact_usage(), account.name(), account.explain());
}

/// Runs a query without a limit, and with one for each kind of stock. With the limit the query must spill and
/// return the same rows.
async fn assert_spills_and_agrees(query: Query, limit: u64, ordered: bool, fair: bool) {
    let expected = run(&unlimited(), query).await.unwrap();
    assert_eq!(expected.spills, 0);
    for kind in kinds() {
        let server = Account::root("server").kind(kind).limit(limit).build();
        let account = server.child("queries").limit(limit).build();
        let pool = if fair { BudgetPool::fair(account) } else { BudgetPool::new(account) };
        let pool: Arc<dyn MemoryPool> = Arc::new(pool);
        let limited = session(Arc::clone(&pool));
        let found = run(&limited, query).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert!(found.spills > 0 && found.spilled_bytes > 0, "{kind}: nothing was spilled");
        found.assert_same(&expected, ordered);
        drop(found);
        assert_empty(&server).await;
        assert_eq!(pool.reserved(), 0, "{kind}");
        assert!(server.peak() > limit / 4, "{kind}: its peak is {}, so it was not asked", server.peak());
        assert_within(&server);
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
fn a_sort_that_spills_returns_the_same() {
    block_on(assert_spills_and_agrees(sorted, 24 * MIB, true, false));
}

#[test]
fn a_group_by_that_spills_returns_the_same() {
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
        let session = session(Arc::new(BudgetPool::new(acme.clone())));
        // A join keeps one of its tables in memory and cannot spill it.
        let query: Query = |table| {
            let right = table.clone().select(vec![(col("k") + lit(1)).alias("r"), col("v").alias("w")])?;
            table.join(right, JoinType::Inner, &["k"], &["r"], None)
        };
        let error = run(&session, query).await.err().expect("it needs more than it may have");
        assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("acme is full: ") && text.contains(" for HashJoinInput"), "{text}");
        assert_empty(&server).await;
    });
}

#[test]
fn two_sessions_below_one_root_respect_their_limits_and_the_roots() {
    block_on(async {
        let expected = run(&unlimited(), sorted).await.unwrap();
        for kind in kinds() {
            let server = Account::root("server").kind(kind).limit(40 * MIB).build();
            // The root's limit is less than the sum of the tenants' limits.
            let tenant = |name: &str| server.child(name).limit(24 * MIB).build();
            let (acme, zeta) = (tenant("acme"), tenant("zeta"));
            let tasks = [&acme, &zeta].map(|account| {
                // A sort gives back its memory before its merge asks for memory again; in between the other
                // tenant's sort could take it.
                let pool = BudgetPool::fair(account.clone()).keep_for_unspillable(8 * MIB).unwrap();
                let session = session(Arc::new(pool));
                tokio::spawn(async move { run(&session, sorted).await })
            });
            for task in tasks {
                let found = task.await.unwrap().unwrap_or_else(|error| panic!("{kind}: {error}"));
                assert!(found.spills > 0, "{kind}: nothing was spilled");
                found.assert_same(&expected, true);
            }
            for account in [&acme, &zeta, &server] {
                assert_within(account);
                assert_empty(account).await;
            }
        }
    });
}
