use super::*;
use crate::header::TaskAttrs;
use crate::mock::{have_pended, workers};
use crate::shared::SchedulerRef;
use crate::task_cell::future::make;
use crate::{Runtime, yield_now};
use std::future::pending;
use warmcore_sched::Allowed;
use warmcore_tenant::Tenant;

fn runtime() -> Runtime {
    Runtime::builder().worker_threads(2).observe(false).build().unwrap()
}

fn groups(runtime: &Runtime) -> Vec<TaskGroupMetrics> {
    runtime.shared.task_groups.read(&runtime.shared.remotes)
}

async fn yields(polls: u64) {
    for _ in 1..polls {
        yield_now().await;
    }
}

#[test]
fn tasks_are_told_apart_by_name_or_spawn_location_and_tenant() {
    let runtime = runtime();
    let tenant = Tenant::builder().name("gold").build();
    let line = line!() + 1;
    let same_line = [(); 3].map(|()| runtime.spawn(pending::<()>()));
    let of_tenant =
        [(); 2].map(|()| runtime.task_builder().name("read").tenant(&tenant).spawn(pending::<()>()));
    let named = runtime.handle().task_builder().name("read").spawn(pending::<()>());
    have_pended(&runtime.shared, 6);
    let mut found = groups(&runtime);
    found.sort_by_key(|group| group.num_alive_tasks);
    let [read, read_gold, located] = &found[..] else { panic!("{found:?}") };
    assert_eq!((read.name.as_deref(), read.tenant.as_deref(), read.num_alive_tasks), (Some("read"), None, 1));
    assert_eq!(read_gold.name.as_deref(), Some("read"));
    assert_eq!((read_gold.tenant.as_deref(), read_gold.num_alive_tasks), (Some("gold"), 2));
    assert_eq!(read_gold.tenant_serial, Some(tenant.serial()));
    assert_eq!((located.name.as_deref(), located.num_alive_tasks), (None, 3));
    let location = located.location.as_deref().unwrap();
    assert!(location.contains(&format!("{}:{line}:", file!())), "{location}");
    drop((same_line, of_tenant, named));
}

#[test]
fn each_way_to_spawn_passes_its_callers_location_on() {
    let runtime = runtime();
    let first = line!();
    let tenant = Tenant::builder().name("gold").build();
    let mut tasks = vec![
        runtime.spawn(pending::<()>()),
        runtime.spawn_in(&tenant, pending::<()>()),
        runtime.handle().spawn(pending::<()>()),
        runtime.task_builder().spawn(pending::<()>()),
    ];
    runtime.block_on(async {
        tasks.push(crate::spawn(pending::<()>()));
        tasks.push(crate::spawn_in(&tenant, pending::<()>()));
        tasks.push(crate::task_builder().spawn(pending::<()>()));
    });
    let last = line!();
    have_pended(&runtime.shared, tasks.len());
    let found = groups(&runtime);
    assert_eq!(found.len(), tasks.len(), "{found:?}");
    for group in found {
        let location = group.location.unwrap();
        let line = location.strip_prefix(file!()).and_then(|rest| rest.split(':').nth(1)?.parse().ok());
        assert!(line.is_some_and(|line: u32| first < line && line < last), "{location}");
    }
}

#[test]
fn polls_are_counted_while_a_client_looks_and_about_as_many_as_there_were() {
    const POLLS: u64 = 100_000;
    let runtime = runtime();
    let run = |polls| runtime.block_on(runtime.task_builder().name("yields").spawn(yields(polls))).unwrap();
    let counted =
        || groups(&runtime).iter().find(|it| it.name.as_deref() == Some("yields")).map(|it| it.polls);
    let count = |is_wanted| runtime.shared.task_groups.count(is_wanted);
    run(10_000);
    assert_eq!(counted(), None);
    count(true);
    run(POLLS);
    // About 6250 polls are measured, at random; the square root of that is 79.
    let about = POLLS - POLLS / 10..=POLLS + POLLS / 10;
    assert!(counted().is_some_and(|polls| about.contains(&polls)), "{:?}", counted());
    let run_ns = groups(&runtime)[0].run_ns;
    assert!(run_ns > POLLS, "{run_ns}");
    // A second look goes on.
    count(true);
    run(POLLS);
    assert!(counted().is_some_and(|polls| polls > POLLS * 3 / 2), "{:?}", counted());
    count(false);
    run(10_000);
    assert_eq!(counted(), None);
}

#[test]
fn each_move_is_counted_for_the_group_of_its_task() {
    let runtime = runtime();
    runtime.shared.task_groups.count(true);
    let moved = || runtime.metrics().total();
    while moved().same_llc + moved().other_llc + moved().other_node < 10 {
        // Tasks that block: a worker without tasks takes some from the other.
        let blocks = || async {
            for _ in 0..20 {
                std::thread::sleep(std::time::Duration::from_micros(100));
                yield_now().await;
            }
        };
        let tasks: Vec<_> = (0..20).map(|_| runtime.task_builder().name("blocks").spawn(blocks())).collect();
        tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
    }
    let found = groups(&runtime);
    let all = moved();
    let sum = |of: fn(&TaskGroupMetrics) -> u64| found.iter().map(of).sum::<u64>();
    assert_eq!(sum(|group| group.moves), all.same_llc + all.other_llc + all.other_node);
    assert_eq!(sum(|group| group.llc_moves), all.other_llc + all.other_node);
    assert_eq!(found.iter().filter(|group| group.moves > 0).count(), 1, "{found:?}");
}

#[test]
fn groups_beyond_the_largest_number_are_counted_as_one() {
    let (_mocks, shared) = workers(1, 1);
    let shared = Arc::new(shared);
    let scheduler = Arc::new(SchedulerRef { shared: shared.clone() });
    let groups = TaskGroups::new(1);
    groups.count(true);
    for _ in 0..2 {
        for task in 0..GROUPS_MAX + 50 {
            let attrs = TaskAttrs { name: Some(format!("task {task}").into()), ..TaskAttrs::default() };
            // SAFETY: the future and its output are `Send` and `'static`.
            let (task_of, _) =
                unsafe { make(scheduler.clone(), Allowed::Anywhere, Some(Box::new(attrs)), async {}) };
            groups.record_poll(CpuId(0), task_of.header(), 1000 + task as u64, 4);
        }
    }
    let found = groups.read(&[]);
    assert_eq!(found.len(), GROUPS_MAX + 1);
    let others: Vec<_> = found.iter().filter(|group| group.name.is_none()).collect();
    assert_eq!(others.len(), 1);
    assert_eq!((others[0].location.as_deref(), others[0].tenant.as_deref()), (None, None));
    // No poll is lost: each was counted for two.
    let polls: u64 = found.iter().map(|group| group.polls).sum();
    assert_eq!(polls, 2 * 2 * (GROUPS_MAX as u64 + 50));
}

#[test]
fn a_visit_of_every_third_slot_sees_a_third_of_the_tasks() {
    let runtime = Runtime::builder().worker_threads(1).observe(false).build().unwrap();
    let tasks: Vec<_> = (0..3000).map(|_| runtime.spawn(pending::<()>())).collect();
    have_pended(&runtime.shared, tasks.len());
    for (step, seen) in [(1, 3000), (3, 1000), (1000, 3), (5000, 1)] {
        let mut visited = 0;
        runtime.shared.remotes[0].owned_tasks.visit(step, |_| visited += 1);
        assert_eq!(visited, seen, "{step}");
    }
    drop(tasks);
}
