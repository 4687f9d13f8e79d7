use super::*;
use crate::{Runtime, spawn_in, yield_now};
use std::time::{Duration, Instant};
use warmcore_sched::SAMPLE_MASK;

fn runtime() -> Runtime {
    Runtime::builder().worker_threads(2).observe(false).build().unwrap()
}

fn of<'a>(tenants: &'a [TenantMetrics], name: &str) -> &'a TenantMetrics {
    tenants.iter().find(|tenant| tenant.name == name).unwrap_or_else(|| panic!("no {name} in {tenants:?}"))
}

/// Calls `look` until it returns a value. The thread that drops a task's future counts the task's end, which may be
/// after the join.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_poll_of_a_tenants_task_is_counted_and_none_of_another() {
    let runtime = runtime();
    let (gold, bronze) =
        (Tenant::builder().name("gold").weight(300).build(), Tenant::builder().name("bronze").build());
    runtime.block_on(async {
        for _ in 0..50 {
            spawn_in(&gold, yield_now()).await.unwrap();
        }
        spawn_in(&bronze, async {}).await.unwrap();
        crate::spawn(yield_now()).await.unwrap();
    });
    let tenants =
        until(|| Some(runtime.metrics().tenants).filter(|all| all.iter().all(|it| it.num_alive_tasks == 0)));
    assert_eq!(tenants.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["gold", "bronze"]);
    let gold = of(&tenants, "gold");
    assert_eq!((gold.polls, gold.weight, gold.num_alive_tasks), (100, 300, 0));
    assert_eq!(of(&tenants, "bronze").polls, 1);
}

#[test]
fn a_task_counts_as_alive_until_its_future_is_gone_also_if_it_is_aborted_or_panics() {
    let runtime = runtime();
    let tenant = Tenant::builder().name("busy").build();
    let alive = |runtime: &Runtime| of(&runtime.metrics().tenants, "busy").num_alive_tasks;
    let waiting: Vec<_> = (0..3).map(|_| runtime.spawn_in(&tenant, std::future::pending::<()>())).collect();
    assert_eq!(alive(&runtime), 3);
    waiting[0].abort();
    until(|| (alive(&runtime) == 2).then_some(()));
    let panicked = runtime.block_on(runtime.spawn_in(&tenant, async { panic!("on purpose") }));
    panicked.unwrap_err();
    until(|| (alive(&runtime) == 2).then_some(()));
    // A task that is never spawned is not counted.
    drop(runtime.task_builder().tenant(&tenant));
    assert_eq!(alive(&runtime), 2);
    let shared = runtime.shared.clone();
    drop(runtime);
    assert_eq!(of(&shared.tenant_stats.read(), "busy").num_alive_tasks, 0);
}

#[test]
#[cfg_attr(feature = "counted-clock", ignore = "that clock counts polls, and a long one is none to it")]
fn of_long_polls_all_that_they_ran_for_is_counted() {
    let runtime = runtime();
    let tenant = Tenant::builder().name("slow").build();
    let spin = |n: u32| async move {
        let mut ran = Duration::ZERO;
        for _ in 0..n {
            let began = Instant::now();
            while began.elapsed() < Duration::from_micros(200) {}
            ran += began.elapsed();
            yield_now().await;
        }
        ran
    };
    // `spin(200)` comes first so that the average duration of the task's polls is known, and each later poll is
    // measured.
    let task = runtime.spawn_in(&tenant, async move {
        spin(200).await;
        let began = Instant::now();
        // The poll that reads `before` is counted after the reading, as a whole. `spin` ends with a yield, so that poll
        // has no work of the first `spin`.
        yield_now().await;
        let before = counted();
        let ran = spin(100).await;
        (counted() - before, ran, began.elapsed())
    });
    fn counted() -> u64 {
        of(&crate::Handle::current().metrics().tenants, "slow").run_ns
    }
    let (counted, ran, wall) = runtime.block_on(task).unwrap();
    // All polls that computed had ended at the second reading. The tolerance is for the difference of two clocks.
    let (least, most) = (ran.as_nanos() as u64 * 9 / 10, wall.as_nanos() as u64 * 11 / 10);
    assert!((least..=most).contains(&counted), "{counted} ns are counted of {ran:?}, within {wall:?}");
}

#[test]
fn a_poll_that_is_measured_by_chance_stands_for_those_before_it() {
    // The gap between two sampled polls is 1 to 32 polls, each with the same probability. This takes each gap once.
    let polls = (1..=32).sum::<u64>();
    let scale_sample = |ran| scale_sample(ran, SAMPLE_MASK + 2);
    assert_eq!(scale_sample(32), polls);
    assert_eq!(scale_sample(32 * 1_000), polls * 1_000);
    assert_eq!((scale_sample(0), scale_sample(1), scale_sample(2)), (0, 16, 33));
    // A poll of an hour, of a task whose polls were short before.
    assert_eq!(scale_sample(3_600_000_000_000), 59_400_000_000_000);
}

#[test]
fn a_tenant_that_is_gone_is_listed_no_more_and_the_next_one_on_its_seat_begins_at_nothing() {
    let stats = TenantStats::default();
    let mut highest = 0;
    // Other tests of this process have tenants at the same time, so the indexes are not known, but they stay small.
    for _ in 0..1000 {
        let tenant = Tenant::builder().name("short").build();
        highest = highest.max(tenant.index());
        // SAFETY: `stats` is not moved, and lives until the end of the test.
        let tenant_ref = unsafe { stats.tenant_ref(&tenant) };
        let fresh = &stats.read()[0];
        assert_eq!((fresh.polls, fresh.run_ns, fresh.num_alive_tasks), (0, 0, 0));
        tenant_ref.begin();
        tenant_ref.count_poll();
        tenant_ref.count_run(7);
        let now = &stats.read()[0];
        assert_eq!((now.polls, now.run_ns, now.num_alive_tasks), (1, 7, 1));
        tenant_ref.end();
        drop((tenant_ref, tenant));
        assert_eq!(stats.read(), []);
    }
    let slots = stats.slots.iter().filter_map(OnceLock::get).count();
    assert!(slots <= highest + 1, "{slots} slots, and never a place above {highest}");
}

#[test]
fn nothing_that_is_kept_of_a_tenant_keeps_it_alive() {
    let runtime = runtime();
    let tenant = Tenant::builder().name("gone").build();
    let serial = tenant.serial();
    runtime.block_on(runtime.spawn_in(&tenant, yield_now())).unwrap();
    drop(tenant);
    until(|| Tenant::by_serial(serial).is_none().then_some(()));
    assert_eq!(runtime.metrics().tenants, []);
}

#[test]
fn two_runtimes_count_apart() {
    let (a, b) = (runtime(), runtime());
    let tenant = Tenant::builder().name("both").build();
    a.block_on(a.spawn_in(&tenant, yield_now())).unwrap();
    a.block_on(b.spawn_in(&tenant, async {})).unwrap();
    assert_eq!(of(&a.metrics().tenants, "both").polls, 2);
    assert_eq!(of(&b.metrics().tenants, "both").polls, 1);
}
