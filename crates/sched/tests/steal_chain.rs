//! A worker that steals leaves tasks behind. It notifies the next worker of them as soon as it is not marked as parked itself,
//! so a burst on one worker spreads over all others, one after the other.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use warmcore_sched::{Allowed, Core, Host, Next, PolicyKind, View};
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
