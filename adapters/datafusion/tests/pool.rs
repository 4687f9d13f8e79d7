//! Tests of the pool with DataFusion's reservations, without a query.

use datafusion_common::DataFusionError;
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, TrackConsumersPool,
};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use warmcore_budget::{Account, Event, StockKind};
use warmcore_datafusion::BudgetPool;

const MIB: usize = 1 << 20;

fn consumer(pool: &Arc<dyn MemoryPool>, name: &str, can_spill: bool) -> MemoryReservation {
    MemoryConsumer::new(name).with_can_spill(can_spill).register(pool)
}

fn text(error: DataFusionError) -> String {
    match error {
        DataFusionError::ResourcesExhausted(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reservation_is_charged_until_it_is_freed() {
    for kind in [StockKind::Rseq, StockKind::Atomic] {
        let server = Account::root("server").kind(kind).limit(64 << 20).build();
        let pool: Arc<dyn MemoryPool> = Arc::new(BudgetPool::new(server.child("queries").build()));
        let (a, b) = (consumer(&pool, "a", true), consumer(&pool, "b", false));
        a.try_grow(3 * MIB).unwrap();
        b.grow(MIB);
        b.try_grow(0).unwrap();
        a.shrink(MIB);
        assert_eq!((pool.reserved(), server.exact_usage()), (3 * MIB, 3 << 20));
        let part = a.split(MIB / 2);
        drop(a);
        assert_eq!(pool.reserved(), MIB + MIB / 2);
        std::thread::spawn(|| drop(part)).join().unwrap();
        b.resize(17);
        assert_eq!(pool.reserved(), 17);
        drop(b);
        assert_eq!((pool.reserved(), server.exact_usage()), (0, 0));
    }
}

#[test]
fn an_error_names_the_consumer_and_the_account_that_is_full() {
    let server = Account::root("server").strict().limit(10 << 20).build();
    let pool: Arc<dyn MemoryPool> = Arc::new(BudgetPool::new(server.child("acme").limit(64 << 20).build()));
    let (sort, join) = (consumer(&pool, "Sort[0]", true), consumer(&pool, "Join", false));
    sort.try_grow(8 * MIB).unwrap();
    join.try_grow(MIB / 2).unwrap();
    assert_eq!(
        text(join.try_grow(4 * MIB).unwrap_err()),
        "Failed to allocate additional 4.0 MB for Join with 512.0 KB already allocated for this reservation \
         - server is full: 8.5 MB of 10.0 MB used"
    );
    assert!(text(join.try_grow(11 * MIB).unwrap_err()).ends_with("the limit of server is 10.0 MB"));
    assert!(text(join.try_grow(usize::MAX).unwrap_err()).ends_with("the limit of acme is 64.0 MB"));
    // The refused reservations left no charge behind.
    assert_eq!((join.size(), pool.reserved()), (MIB / 2, 8 * MIB + MIB / 2));
}

#[test]
fn the_limit_is_the_smallest_on_the_path_and_can_change() {
    let server = Account::root("server").limit(10 << 20).build();
    let acme = server.child("acme").build();
    let pool = Arc::new(BudgetPool::new(acme.clone()));
    assert!(matches!(pool.memory_limit(), MemoryLimit::Finite(limit) if limit == 10 * MIB));
    assert_eq!(pool.to_string(), "budget(account: acme, used: 0.0 B, limit: 10.0 MB)");
    assert_eq!(pool.account(), &acme);
    acme.set_limit(1 << 20);
    assert!(matches!(pool.memory_limit(), MemoryLimit::Finite(MIB)));
    let shared: Arc<dyn MemoryPool> = pool;
    let sort = consumer(&shared, "Sort", true);
    assert!(sort.try_grow(2 * MIB).is_err());
    acme.set_limit(4 << 20);
    sort.try_grow(2 * MIB).unwrap();

    let unlimited = BudgetPool::new(Account::root("alone").build());
    assert!(matches!(unlimited.memory_limit(), MemoryLimit::Infinite));
    assert_eq!(unlimited.to_string(), "budget(account: alone, used: 0.0 B, no limit)");
}

#[test]
fn grow_goes_over_the_limit_and_the_listener_is_called() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = Arc::clone(&heard);
    let listener = move |event: &Event| hear.lock().unwrap().push(event.clone());
    let acme = Account::root("acme").limit(1 << 20).on_event(listener).build();
    let pool: Arc<dyn MemoryPool> = Arc::new(BudgetPool::new(acme.clone()));
    let merge = consumer(&pool, "Merge", false);
    merge.grow(3 * MIB);
    assert_eq!((pool.reserved(), merge.size()), (3 * MIB, 3 * MIB));
    let over = |event: &Event| matches!(event, Event::Overrun(over) if over.by() == 2 << 20);
    assert!(heard.lock().unwrap().iter().any(over), "{heard:?}");
    assert!(merge.try_grow(1).is_err());
    drop(merge);
    assert_eq!(acme.exact_usage(), 0);
}

#[test]
fn a_fair_pool_divides_spillable_memory() {
    let acme = Account::root("acme").strict().limit(64 << 20).build();
    let pool: Arc<dyn MemoryPool> = Arc::new(BudgetPool::fair(acme.clone()));
    let join = consumer(&pool, "Join", false);
    join.try_grow(4 * MIB).unwrap();
    let sorts: Vec<_> = (0..4).map(|i| consumer(&pool, &format!("Sort[{i}]"), true)).collect();
    for sort in &sorts {
        sort.try_grow(15 * MIB).unwrap();
    }
    assert_eq!(
        text(sorts[3].try_grow(1).unwrap_err()),
        "Failed to allocate additional 1.0 B for Sort[3] with 15.0 MB already allocated for this reservation \
         - its fair share of acme is 15.0 MB of 64.0 MB"
    );
    drop(sorts);
    // Consumers that cannot spill have no share: each of them may take all that is left.
    join.try_grow(60 * MIB).unwrap();
    assert_eq!((pool.reserved(), acme.exact_usage()), (64 * MIB, 64 << 20));
    drop(join);
    assert_eq!((pool.reserved(), acme.exact_usage()), (0, 0));
}

#[test]
fn memory_kept_for_unspillable_consumers_is_available_to_them() {
    let acme = Account::root("acme").strict().limit(64 << 20).build();
    let keep = |bytes| BudgetPool::fair(acme.clone()).keep_for_unspillable(bytes);
    assert_eq!(keep(65 << 20).unwrap_err().account(), "acme");
    let pool: Arc<dyn MemoryPool> = Arc::new(keep(14 << 20).unwrap());
    assert_eq!(pool.reserved(), 0);
    let (sort, join) = (consumer(&pool, "Sort", true), consumer(&pool, "Join", false));
    assert!(sort.try_grow(51 * MIB).is_err());
    sort.try_grow(50 * MIB).unwrap();
    join.try_grow(14 * MIB).unwrap();
    assert!(text(join.try_grow(1).unwrap_err()).ends_with("acme is full: 64.0 MB of 64.0 MB used"));
    drop((sort, join, pool));
    assert_eq!(acme.exact_usage(), 0);
}

#[test]
fn the_tracker_of_datafusion_names_the_largest_consumers() {
    let acme = Account::root("acme").limit(4 << 20).build();
    let five = NonZeroUsize::new(5).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(TrackConsumersPool::new(BudgetPool::new(acme), five));
    let (sort, join) = (consumer(&pool, "Sort", true), consumer(&pool, "Join", false));
    sort.try_grow(3 * MIB).unwrap();
    let error = text(join.try_grow(2 * MIB).unwrap_err());
    assert!(error.contains("(can spill: true) consumed 3.0 MB") && error.contains("acme is full"), "{error}");
}

#[test]
fn threads_that_fill_a_pool_stay_within_the_limit_and_leave_nothing() {
    let acme = Account::root("acme").strict().limit(8 << 20).build();
    let pool: Arc<dyn MemoryPool> = Arc::new(BudgetPool::new(acme.clone()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let sort = consumer(&pool, &format!("Sort[{thread}]"), true);
            scope.spawn(move || {
                for i in 0..20_000usize {
                    // Give everything back on a refusal, as an operator that spills does.
                    if sort.try_grow(1 + i * 7919 % 9000).is_err() {
                        sort.free();
                    }
                }
            });
        }
    });
    assert_eq!(pool.reserved(), 0);
    assert!(acme.peak() <= 8 << 20, "{}", acme.peak());
}
