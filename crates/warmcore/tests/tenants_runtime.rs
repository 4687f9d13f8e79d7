//! Runs the two tenants of the example `tenants_runtime`: both serve requests, the tenant with the larger weight serves
//! more, and at the end neither has memory left.

#[path = "../examples/tenants_runtime.rs"]
mod tenants_runtime;

use tenants_runtime::{Report, run};

const ENOUGH: u64 = 2_000;

#[warmcore::test]
async fn the_heavier_tenant_gets_more_and_neither_has_anything_left() {
    let reports = run(ENOUGH).await;
    for Report { name, requests, bytes, ids, peak, limit, left } in &reports {
        assert!(*requests > 0, "{name} starved: {reports:?}");
        assert_eq!(*bytes, requests * (32 << 10), "{name}");
        assert!((1..=u64::from(u32::MAX)).contains(ids), "{reports:?}");
        assert_eq!(*left, 0, "{reports:?}");
        assert!(peak <= &(2 * limit), "{reports:?}");
    }
    let [gold, bronze] = &reports[..] else { panic!("{reports:?}") };
    assert!(gold.requests >= ENOUGH && gold.requests > bronze.requests, "{reports:?}");
}
