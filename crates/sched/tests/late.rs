//! A CPU that stands still while tasks wait there is in a long poll, or its thread waits for a CPU of the machine. Wakers run its
//! tasks themselves then, and busy CPUs take over those that wait.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use common::{Facts, drawn, whole};
use std::sync::atomic::Ordering::Relaxed;
use warmcore_sched::{Allowed, Core, Home, Host, Inbox, Next, Policy, PolicyKind, TargetQueue, Task, View};
use warmcore_sched::{Wake, WakeSource, Wakee};
use warmcore_types::{CpuId, Nanos};

const HOME: CpuId = CpuId(0);
const WAKER: CpuId = CpuId(1);

/// Where a task goes that costs 4 µs to move and is woken by [`WAKER`].
fn goes_to(facts: &Facts) -> TargetQueue {
    wake(facts, Nanos(4_000), Allowed::Anywhere)
}

/// Where a task goes that ran at [`HOME`] and is woken by [`WAKER`].
fn wake(facts: &Facts, migration_cost: Nanos, allowed: Allowed) -> TargetQueue {
    let machine = whole(&drawn(1, 1, 2, 1));
    let wakee =
        Wakee { prev_cpu: Some(HOME), migration_cost, far_cost: migration_cost, allowed, ..Wakee::default() };
    let wake = Wake { now: Nanos(1_000_000), wakee, waker: WakeSource::Cpu(WAKER) };
    Home::DEFAULT.wake(&machine, facts, &wake).to
}

#[test]
fn a_task_runs_where_it_is_woken_once_its_cpu_has_stood_still_for_four_times_as_long_as_a_kick_takes() {
    let mut facts = Facts::busy(&whole(&drawn(1, 1, 2, 1)));
    facts.cpus[0].still_for = Nanos(79_999);
    assert_eq!(goes_to(&facts), TargetQueue::Cpu(HOME));
    facts.cpus[0].still_for = Nanos(80_000);
    assert_eq!(goes_to(&facts), TargetQueue::Cpu(WAKER));
}

#[test]
fn heavy_tasks_and_those_that_may_run_there_alone_stay_with_a_cpu_that_stands_still() {
    let mut facts = Facts::busy(&whole(&drawn(1, 1, 2, 1)));
    facts.cpus[0].still_for = Nanos(10_000_000);
    assert_eq!(wake(&facts, Nanos(19_999), Allowed::Anywhere), TargetQueue::Cpu(WAKER));
    assert_eq!(wake(&facts, Nanos(20_000), Allowed::Anywhere), TargetQueue::Cpu(HOME));
    assert_eq!(wake(&facts, Nanos(1_000), Allowed::Cpu(HOME)), TargetQueue::Cpu(HOME));
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

/// [`WAKER`] looks at all other workers of the machine in its maintenance, at the end of intervals of 20 µs.
fn look(host: &TestHost, core: &Core<TestHost>, at: u64) {
    for now in [at - 20_000, at].repeat(5) {
        host.set_clock(Nanos(now));
        core.set_event_interval(0);
        assert!(matches!(core.next(host), Next::Maintain));
        core.maintained(host);
    }
}

/// The number of tasks that [`WAKER`] polls, and of tasks that are left at [`HOME`], when `WAKER` has looked at 1 ms and at this
/// time. Of eight tasks six wait in queues of `HOME` and two in its inbox; one in each may run there alone.
fn taken_over(policy: PolicyKind, now: u64) -> (usize, usize) {
    let host = TestHost::new(policy);
    host.set_clock(Nanos(980_000));
    let [home, waker] = [HOME, WAKER].map(|cpu| Core::new(&host, cpu, Nanos(1_000_000)));
    let push = |number| {
        let allowed = if number == 2 || number == 7 { Allowed::Cpu(HOME) } else { Allowed::Anywhere };
        host.workers().push_inbox(&host, host.task(number, allowed, 0), HOME);
    };
    (0..6).for_each(push);
    home.schedule(&host, host.task(8, Allowed::Cpu(HOME), 0), false);
    let Next::Run(first) = home.next(&host) else { panic!("tasks wait") };
    (6..8).for_each(push);
    look(&host, &waker, 1_000_000);
    look(&host, &waker, now);
    let mut polled = 0;
    while let Next::Run(queued) = waker.next(&host) {
        assert_ne!(queued.task.state().allowed(), Allowed::Cpu(HOME));
        waker.begin_poll(&host, &queued.task);
        waker.end_poll(false);
        polled += 1;
    }
    drop(first);
    let mut left = 0;
    while let Next::Run(queued) = home.next(&host) {
        home.begin_poll(&host, &queued.task);
        home.end_poll(false);
        left += 1;
    }
    let [taker, from] = [WAKER, HOME].map(|cpu| &host.workers().remote(cpu).counters);
    assert_eq!([taker.balanced.load(Relaxed), from.stolen_tasks.load(Relaxed)], [polled as u64; 2]);
    (polled, left)
}

#[test]
fn a_busy_worker_takes_over_half_of_what_waits_at_one_that_stands_still_and_what_was_handed_to_it() {
    assert_eq!(taken_over(PolicyKind::Home, 1_079_000), (0, 8), "too early");
    assert_eq!(taken_over(PolicyKind::Home, 1_081_000), (3, 5), "two of the queues, one of the inbox");
    assert_eq!(taken_over(PolicyKind::SharedQueue, 1_081_000).0, 0);
}

#[test]
fn what_may_not_come_is_looked_at_once_in_a_while() {
    let host = TestHost::new(PolicyKind::Home);
    host.set_clock(Nanos(980_000));
    let waker = Core::new(&host, WAKER, Nanos(1_000_000));
    host.workers().push_inbox(&host, host.task(0, Allowed::Cpu(HOME), 0), HOME);
    look(&host, &waker, 1_000_000);
    look(&host, &waker, 1_100_000);
    assert_eq!(host.workers().still_for(HOME, Nanos(2_000_000)), Nanos(0));
    assert_eq!(host.workers().still_for(HOME, Nanos(2_200_000)), Nanos(100_000));
}

#[test]
fn a_worker_that_polls_does_not_stand_still() {
    let host = TestHost::new(PolicyKind::Home);
    host.set_clock(Nanos(980_000));
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
    assert_eq!(host.workers().still_for(HOME, Nanos(2_000_000)), Nanos(0), "unparked, but not on a CPU yet");
    home.unparked(&host);
    home.resume(&host);
    assert_eq!(host.workers().still_for(HOME, Nanos(2_000_000)), Nanos(0), "awake again");
}

/// A worker whose task yields.
struct Yields {
    host: TestHost,
    core: Core<TestHost>,
}

impl Yields {
    fn new() -> Self {
        let host = TestHost::new(PolicyKind::Home);
        host.set_clock(Nanos(1_000_000));
        let core = Core::new(&host, HOME, Nanos(1_000_000));
        core.schedule(&host, host.task(0, Allowed::Anywhere, 0), false);
        Self { host, core }
    }

    /// A poll that takes so many ns, for some of which the thread does not run: because others take the CPU, or because it waits. Returns
    /// whether it was measured, and whether it was measured and found long.
    fn poll(&self, ns: u64, (lost, taken, waited): (u64, u64, u64)) -> (bool, bool) {
        let (host, core) = (&self.host, &self.core);
        let mut next = core.next(host);
        if matches!(next, Next::Maintain) {
            core.maintained(host);
            next = core.next(host);
        }
        let Next::Run(queued) = next else { panic!("one task yields") };
        core.begin_poll(host, &queued.task);
        let is_sampled = core.is_sampled();
        if is_sampled {
            core.draw_sample();
        }
        let since = host.now(HOME);
        host.set_clock(Nanos(since.0 + ns));
        let before = host.lost.get();
        host.lost.set((before.0 + lost, before.1 + taken, before.2 + waited));
        let is_long = is_sampled && {
            let ran = core.end_sample(host, since);
            core.is_long(host, ran)
        };
        if is_long {
            core.count_long_poll(host);
        }
        core.schedule(host, queued.task, true);
        core.end_poll(true);
        (is_sampled, is_long)
    }

    /// Polls of so many ns, of which one in a thousand takes 10 ms longer. Returns how many counted as long, and how many were measured.
    fn polls(&self, polls: u32, ns: u64, lost: (u64, u64, u64)) -> (u64, usize) {
        let counter = &self.host.workers().remote(HOME).counters.long_polls;
        let before = counter.load(Relaxed);
        let poll = |poll: u32| match poll % 1000 {
            500 => self.poll(ns + 10_000_000, lost),
            _ => self.poll(ns, (0, 0, 0)),
        };
        let measured = (0..polls).filter(|number| poll(*number).0).count();
        (counter.load(Relaxed) - before, measured)
    }
}

#[test]
fn a_poll_is_not_long_if_other_threads_had_the_cpu() {
    let count = |lost| Yields::new().polls(50_000, 1_000, lost).0;
    assert_eq!(count((0, 0, 0)), 50);
    assert_eq!(count((5_000_000, 1, 0)), 50, "it ran for 5 ms");
    assert_eq!(count((9_500_000, 1, 0)), 0);
    assert_eq!(count((9_500_000, 0, 1)), 50, "it waited in a system call");
    assert_eq!(count((9_500_000, 1, 1)), 50, "and lost the CPU besides");
}

#[test]
fn that_others_had_the_cpu_counts_for_one_poll() {
    let yields = Yields::new();
    (0..2_000).for_each(|_| _ = yields.poll(1_000, (0, 0, 0)));
    yields.poll(4_000_000, (3_900_000, 1, 0));
    yields.core.read_clock(&yields.host);
    assert_eq!(yields.core.take_lost(&yields.host), 3_900_000);
    assert_eq!(yields.core.take_lost(&yields.host), 0);
}

/// What the watchdog finds to be long.
#[test]
fn a_poll_that_another_worker_found_long_was_preempted_if_the_rest_is_short() {
    for (lost, was_preempted) in
        [((9_500_000, 1, 0), true), ((5_000_000, 1, 0), false), ((9_500_000, 0, 1), false)]
    {
        let yields = Yields::new();
        (0..2_000).for_each(|_| _ = yields.poll(1_000, (0, 0, 0)));
        yields.core.set_until_sample(10);
        assert!(!yields.poll(10_000_000, lost).0);
        assert_eq!(yields.core.was_preempted(&yields.host), was_preempted, "{lost:?}");
    }
}

/// 11 s with polls of 1 µs, the same again after 160 s, and 15 s with polls of 5 µs.
#[test]
fn each_short_poll_is_measured_for_a_second_in_160_and_each_longer_one_as_long_as_there_are_long_ones() {
    let yields = Yields::new();
    for _ in 0..2 {
        let (long, measured) = yields.polls(1_000_000, 1_000, (0, 0, 0));
        assert_eq!(long, 1000);
        assert!(
            (100_000..200_000).contains(&measured),
            "90 909 in the first second, one of 16 of the others: {measured}"
        );
        yields.host.set_clock(Nanos(yields.host.now(HOME).0 + 150_000_000_000));
        yields.core.read_clock(&yields.host);
        yields.poll(1_000, (150_000_000_000, 1, 0));
    }
    let (long, measured) = Yields::new().polls(1_000_000, 5_000, (0, 0, 0));
    assert_eq!(long, 1000);
    assert!(measured > 999_000, "{measured}");
}
