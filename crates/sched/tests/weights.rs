//! Weights between a tenant's task, which waits in the run queue, and a task without a tenant, which waits in the ring.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use warmcore_sched::{Allowed, Core, Next, PolicyKind};
use warmcore_types::{CpuId, Nanos};

/// How long a poll takes: so little that tasks without a tenant go into the ring.
const POLL: u64 = 2_000;

#[test]
fn one_task_of_a_tenant_and_one_without_share_a_worker_by_weight() {
    let host = TestHost::new(PolicyKind::Home);
    let mut now = 1_000_000;
    host.set_clock(Nanos(now));
    let core = Core::new(&host, CpuId(0), Nanos(1_000_000));
    // The tenant's weight is 300, that of tasks without a tenant 100.
    for (task, tenant) in [(0, 0), (1, 3)] {
        let task = host.task(task, Allowed::Anywhere, tenant);
        core.begin_poll(&host, &task);
        core.schedule(&host, task, true);
        core.end_poll(true);
    }
    let mut polls = [0_u32; 2];
    while polls.iter().sum::<u32>() < 40_000 {
        match core.next(&host) {
            Next::Run(queued) => {
                let task = queued.task;
                polls[TestHost::number(&task) as usize] += 1;
                let charge = core.begin_poll(&host, &task);
                now += POLL;
                host.set_clock(Nanos(now));
                core.schedule(&host, task, true);
                core.end_poll(true);
                if let Some((share, since)) = charge {
                    core.charge(share, now - since.0);
                }
            }
            Next::Maintain => core.maintained(&host),
            other => panic!("{other:?}"),
        }
    }
    let ratio = f64::from(polls[1]) / f64::from(polls[0]);
    assert!((2.9..3.1).contains(&ratio), "{polls:?}");
}
