//! A CPU that stands still while tasks wait there is in a long poll, or its thread waits for a CPU of the machine. Wakers run its
//! tasks themselves then, and busy CPUs take over those that wait.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use common::{Facts, drawn, whole};
use warmcore_sched::{Allowed, Core, Home, Host, Inbox, Next, Policy, PolicyKind, TargetQueue, View};
use warmcore_sched::{Wake, WakeSource, Wakee};
use warmcore_types::{CpuId, Nanos};

const HOME: CpuId = CpuId(0);
const WAKER: CpuId = CpuId(1);

/// Where a task goes that costs 4 µs to move and is woken by [`WAKER`].
fn goes_to(facts: &Facts) -> TargetQueue {
    let machine = whole(&drawn(1, 1, 2, 1));
    let wakee = Wakee {
        prev_cpu: Some(HOME),
        migration_cost: Nanos(4_000),
        far_cost: Nanos(4_000),
        ..Wakee::default()
    };
    let wake = Wake { now: Nanos(1_000_000), wakee, waker: WakeSource::Cpu(WAKER) };
    Home::DEFAULT.wake(&machine, facts, &wake).to
}

#[test]
fn a_task_runs_where_it_is_woken_once_its_cpu_has_stood_still_for_four_times_what_the_move_costs() {
    let mut facts = Facts::busy(&whole(&drawn(1, 1, 2, 1)));
    facts.cpus[0].still_for = Nanos(15_999);
    assert_eq!(goes_to(&facts), TargetQueue::Cpu(HOME));
    facts.cpus[0].still_for = Nanos(16_000);
    assert_eq!(goes_to(&facts), TargetQueue::Cpu(WAKER));
}

#[test]
fn it_stays_with_a_cpu_that_stands_still_if_it_would_wait_longer_at_the_waker() {
    let mut facts = Facts::busy(&whole(&drawn(1, 1, 2, 1)));
    // Polls take a quarter of the migration cost here, so ten tasks take 100 µs.
    (facts.cpus[1].migration_cost, facts.cpus[1].backlog) = (Nanos(40_000), 10);
    facts.cpus[0].still_for = Nanos(99_000);
    assert_eq!(goes_to(&facts), TargetQueue::Cpu(HOME));
    facts.cpus[0].still_for = Nanos(101_000);
    assert_eq!(goes_to(&facts), TargetQueue::Cpu(WAKER));
}

/// [`WAKER`] looks at all other workers of the machine in its maintenance.
fn look(host: &TestHost, core: &Core<TestHost>, at: u64) {
    host.set_clock(Nanos(at));
    for _ in 0..5 {
        core.set_event_interval(0);
        assert!(matches!(core.next(host), Next::Maintain));
        core.maintained(host);
    }
}

/// The number of tasks that [`WAKER`] polls, and of tasks that are left at [`HOME`], when `WAKER` has looked at 1 ms and at this
/// time. Four tasks wait in the inbox of `HOME`, one of which may run there alone.
fn taken_over(now: u64) -> (usize, usize) {
    let host = TestHost::new(PolicyKind::Home);
    host.set_clock(Nanos(1_000_000));
    let waker = Core::new(&host, WAKER, Nanos(1_000_000));
    for number in 0..4 {
        let allowed = if number == 2 { Allowed::Cpu(HOME) } else { Allowed::Anywhere };
        host.workers().push_inbox(&host, host.task(number, allowed, 0), HOME);
    }
    look(&host, &waker, 1_000_000);
    look(&host, &waker, now);
    let mut polled = 0;
    while let Next::Run(queued) = waker.next(&host) {
        waker.begin_poll(&host, &queued.task);
        waker.end_poll(false);
        polled += 1;
    }
    let mut left = 0;
    host.workers().remote(HOME).inbox.take(|_| left += 1);
    (polled, left)
}

#[test]
fn a_busy_worker_takes_over_what_waits_at_one_that_stands_still_but_not_what_may_run_there_alone() {
    assert_eq!(taken_over(1_001_000), (0, 4), "too early");
    assert_eq!(taken_over(1_010_000), (3, 1));
}

#[test]
fn a_worker_that_polls_does_not_stand_still() {
    let host = TestHost::new(PolicyKind::Home);
    let [home, waker] = [HOME, WAKER].map(|cpu| Core::new(&host, cpu, Nanos(1_000_000)));
    (0..2).for_each(|number| {
        host.workers().push_inbox(&host, host.task(number, Allowed::Anywhere, 0), HOME);
    });
    look(&host, &waker, 1_000_000);
    assert_eq!(host.workers().still_for(HOME, Nanos(1_000_500)), Nanos(500));
    let Next::Run(queued) = home.next(&host) else { panic!("two tasks wait") };
    home.begin_poll(&host, &queued.task);
    assert_eq!(host.workers().still_for(HOME, Nanos(1_001_000)), Nanos(0));
}

#[test]
fn a_worker_that_has_parked_since_the_last_look_does_not_stand_still() {
    let host = TestHost::new(PolicyKind::Home);
    let [home, waker] = [HOME, WAKER].map(|cpu| Core::new(&host, cpu, Nanos(1_000_000)));
    host.workers().push_inbox(&host, host.task(0, Allowed::Anywhere, 0), HOME);
    look(&host, &waker, 1_000_000);
    host.workers().remote(HOME).inbox.take(drop);
    home.search(&host);
    assert!(matches!(home.next(&host), Next::Park(None)));
    assert_eq!(host.workers().still_for(HOME, Nanos(2_000_000)), Nanos(0), "parked");
    host.workers().push_inbox(&host, host.task(1, Allowed::Anywhere, 0), HOME);
    home.unparked(&host);
    home.resume();
    assert_eq!(host.workers().still_for(HOME, Nanos(2_000_000)), Nanos(0), "awake again");
}
