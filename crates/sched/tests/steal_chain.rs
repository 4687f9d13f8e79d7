//! A worker that steals leaves tasks behind. It notifies the next worker of them as soon as it is not marked as parked itself,
//! so a burst on one worker spreads over all others, one after the other.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use warmcore_sched::{Allowed, Core, Distance, FarSearch, Host, MIN_STEAL_DELAY, Next, PolicyKind, View};
use warmcore_types::{CpuId, Nanos};

#[test]
fn a_worker_that_steals_notifies_another_one_of_the_tasks_that_it_left() {
    let host = TestHost::new(PolicyKind::Home);
    host.set_clock(Nanos(1_000_000));
    let workers = host.workers().machine().cpus() as u32;
    let core = |worker| Core::new(&host, CpuId(worker), Nanos(1_000_000_000));
    let cores: Vec<_> = (0..workers).map(core).collect();
    for core in &cores[1..] {
        core.search(&host);
        assert!(matches!(core.next(&host), Next::Park(None)));
    }
    (0..40).for_each(|task| cores[0].schedule(&host, host.task(task, Allowed::Anywhere, 0), false));
    let [thief] = host.unparked()[..] else { panic!("one worker is notified of the tasks") };
    let core = &cores[thief.index()];
    host.wake(core);
    assert!(matches!(core.next(&host), Next::Search));
    core.search(&host);
    assert!(host.workers().backlog(CpuId(0)) > 8, "the steal leaves tasks");
    let next = host.unparked();
    assert!(next.len() == 1 && next[0] != thief, "{next:?} after {thief}");
    assert!(!host.workers().is_idle(next[0]));
    assert!(matches!(core.next(&host), Next::Run(_)));
}

/// To look at all workers takes long, so a worker does that rarely; but where another one asks for it, it looks for a while.
#[test]
fn a_worker_of_another_cache_looks_where_it_was_asked_to() {
    let host = TestHost::new(PolicyKind::Home);
    host.set_clock(Nanos(1_000_000));
    let (workers, machine) = (host.workers(), host.workers().machine());
    let core = |worker| Core::new(&host, CpuId(worker), Nanos(1_000_000_000));
    let cores: Vec<_> = (0..machine.cpus() as u32).map(core).collect();
    let is_far = |core: &&Core<TestHost>| machine.distance(CpuId(0), core.me()) > Distance::Llc;
    let far: Vec<_> = cores.iter().filter(is_far).collect();
    let look = |core: &Core<TestHost>| {
        core.search(&host);
        matches!(core.next(&host), Next::Run(_))
    };
    assert!(far.len() > 1 && !far.iter().any(|core| look(core)));
    // Those that share a cache with the first worker are awake, so another one is asked.
    let (began, delay) = (1_000_000 + MIN_STEAL_DELAY.0 / 2, MIN_STEAL_DELAY.0);
    host.set_clock(Nanos(began));
    cores[0].read_clock(&host);
    (0..40).for_each(|task| cores[0].schedule(&host, host.task(task, Allowed::Anywhere, 0), false));
    let [asked] = host.unparked()[..] else { panic!("one worker is asked") };
    for core in &far {
        host.wake(core);
        assert!(!look(core), "no task is due, and all have looked a short time ago");
        let looks =
            if core.me() == asked { FarSearch::Shard(machine.shard_of(CpuId(0))) } else { FarSearch::None };
        assert_eq!(workers.far_search(core.me()), looks, "{}", core.me());
    }
    let core = &cores[asked.index()];
    host.set_clock(Nanos(began + 3 * delay));
    host.wake(core);
    assert!(look(core));
    while let Next::Run(queued) = core.next(&host) {
        core.begin_poll(&host, &queued.task);
        core.end_poll(false);
    }
    host.set_clock(Nanos(began + 20 * delay));
    (0..2).for_each(|_| core.search(&host));
    assert_eq!(
        workers.far_search(asked),
        FarSearch::None,
        "it has looked everywhere, and then nowhere in particular"
    );
}
