//! A worker that steals notifies the next one, while it is itself still marked as parked and may be the one that the policy
//! names. The tasks that are left wait until the worker that they are queued at has ended its event interval.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use warmcore_sched::{Allowed, Core, Host, Next, PolicyKind, View};
use warmcore_types::{CpuId, Nanos};

#[test]
fn tasks_that_a_steal_leaves_are_notified_of_within_an_event_interval() {
    let host = TestHost::new(PolicyKind::Home);
    host.set_clock(Nanos(1_000_000));
    let workers = host.workers().machine().cpus() as u32;
    let core = |worker| Core::new(&host, CpuId(worker), Nanos(1_000_000_000));
    let cores: Vec<_> = (0..workers).map(core).collect();
    for core in &cores[1..] {
        core.search(&host);
        assert!(matches!(core.next(&host), Next::Park(None)));
    }
    let unparked = || {
        let mut all = Vec::new();
        host.drain_unparked(|cpu| all.push(cpu));
        all
    };
    (0..40).for_each(|task| cores[0].schedule(&host, host.task(task, Allowed::Anywhere, 0), false));
    let [thief] = unparked()[..] else { panic!("one worker is notified of the tasks") };
    let core = &cores[thief.index()];
    core.unparked(&host);
    core.resume();
    assert!(matches!(core.next(&host), Next::Search));
    core.search(&host);
    assert!(matches!(core.next(&host), Next::Run(_)));
    assert!(host.workers().backlog(CpuId(0)) > 8, "the steal leaves tasks");
    drop(unparked());
    // The worker of the tasks ends its interval.
    let mut now = 1_000_000;
    loop {
        match cores[0].next(&host) {
            Next::Run(queued) => {
                cores[0].begin_poll(&host, &queued.task);
                now += 100_000;
                host.set_clock(Nanos(now));
                cores[0].end_poll(false);
            }
            Next::Maintain => break cores[0].maintained(&host),
            other => panic!("{other:?}"),
        }
    }
    let next = unparked();
    assert!(next.len() == 1 && next[0] != thief, "{next:?} after {thief}");
    assert!(!host.workers().is_idle(next[0]));
}
