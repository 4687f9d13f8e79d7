//! What an unpark that a host loses would cost. [`Host::unpark`](warmcore_sched::Host::unpark) must not lose one: the core
//! asks once for each time that a worker was marked as parked.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use warmcore_sched::{Allowed, Core, Host, Next, PolicyKind, View};
use warmcore_types::{CpuId, Nanos};

/// A host, and its workers, which are all parked.
fn all_parked() -> (TestHost, Vec<Core<TestHost>>) {
    let host = TestHost::new(PolicyKind::Home);
    host.set_clock(Nanos(1_000_000));
    let workers = host.workers().machine().cpus() as u32;
    let cores = (0..workers).map(|worker| Core::new(&host, CpuId(worker), Nanos(1_000_000)));
    let cores: Vec<_> = cores.inspect(|core| core.search(&host)).collect();
    assert!(cores.iter().all(|core| matches!(core.next(&host), Next::Park(None))));
    (host, cores)
}

/// The worker's driver has returned for another reason. Returns whether the worker finds a task.
fn finds_a_task(host: &TestHost, core: &Core<TestHost>) -> bool {
    host.wake(core);
    let mut next = core.next(host);
    if matches!(next, Next::Search) {
        core.search(host);
        next = core.next(host);
    }
    matches!(next, Next::Run(_))
}

#[test]
fn a_new_task_whose_unpark_is_lost_waits_for_any_worker_that_comes_back() {
    for worker in 0..6 {
        let (host, cores) = all_parked();
        host.workers().schedule_external(&host, host.task(0, Allowed::Anywhere, 0), None);
        assert_eq!(host.unparked().len(), 1);
        assert!(finds_a_task(&host, &cores[worker]), "worker {worker}");
    }
}

#[test]
fn a_task_in_an_inbox_whose_unpark_is_lost_waits_for_that_worker() {
    let (host, cores) = all_parked();
    host.workers().push_inbox(&host, host.task(0, Allowed::Anywhere, 0), CpuId(2));
    assert_eq!(host.unparked(), [CpuId(2)]);
    host.workers().push_inbox(&host, host.task(1, Allowed::Anywhere, 0), CpuId(2));
    assert_eq!(host.unparked(), [], "one unpark for each park");
    assert!(!host.workers().is_idle(CpuId(2)));
    for worker in [0, 1, 3, 4, 5, 2] {
        assert_eq!(finds_a_task(&host, &cores[worker]), worker == 2);
    }
}

/// A search passes over workers that are marked as parked, so this one is not any more when it has a task: even if its thread stays
/// in the driver for long, and whether another thread has unparked it before or not.
#[test]
fn a_task_that_its_own_driver_wakes_ends_the_park_and_others_see_it() {
    let id = CpuId(2);
    for is_unparked in [false, true] {
        let (host, cores) = all_parked();
        let (core, workers) = (&cores[2], host.workers());
        let is_in_the_set =
            || workers.idle_in(workers.machine().shard_of(id)) & workers.machine().bit(id) != 0;
        workers.push_inbox(&host, host.task(0, Allowed::Anywhere, 0), id);
        host.wake(core);
        let Next::Run(queued) = core.next(&host) else { panic!("a task waits") };
        core.begin_poll(&host, &queued.task);
        core.end_poll(false);
        host.park(core);
        assert!(is_in_the_set());
        host.unparked();
        assert!(!is_unparked || workers.try_unpark(&host, id));
        core.schedule(&host, queued.task, false);
        assert_eq!(host.unparked(), [id], "once, by whoever changed the word");
        assert!(!is_in_the_set() && !workers.is_idle(id) && workers.backlog(id) == 1);
        assert!(finds_a_task(&host, core));
    }
}
