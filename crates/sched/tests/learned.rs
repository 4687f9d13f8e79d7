//! What waking a worker costs is learned from its wakes, and what maintenance costs from the times when its driver has no event.
//! The cost of a move is tested in `refill.rs`.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use std::sync::atomic::Ordering;
use warmcore_sched::{Allowed, Core, Host, Next, PolicyKind, View};
use warmcore_types::{CpuId, Nanos};

const ME: CpuId = CpuId(0);

/// The worker parks and is unparked for a task; its thread runs again after this time.
fn wake(host: &TestHost, core: &Core<TestHost>, took: u64) {
    host.park(core);
    let at = host.now(ME).0 + 100_000;
    host.set_clock(Nanos(at));
    host.workers().push_inbox(host, host.task(0, Allowed::Anywhere, 0), ME);
    host.set_clock(Nanos(at + took));
    host.wake(core);
    host.poll_next(core);
}

fn learned(host: &TestHost) -> u64 {
    host.workers().wakeup_cost(ME).0
}

/// After forty wakes of 5 µs.
fn after_short_ones() -> (TestHost, Core<TestHost>) {
    let host = TestHost::new(PolicyKind::Home);
    host.set_clock(Nanos(1_000_000));
    let core = Core::new(&host, ME, Nanos(1_000_000_000));
    assert_eq!(learned(&host), 20_000, "before the first wake");
    (0..40).for_each(|_| wake(&host, &core, 5_000));
    assert!((4_900..5_200).contains(&learned(&host)), "{}", learned(&host));
    (host, core)
}

#[test]
fn wakes_that_take_ten_times_as_long_are_learned_in_twelve() {
    let (host, core) = after_short_ones();
    (0..12).for_each(|_| wake(&host, &core, 50_000));
    assert!((35_000..50_000).contains(&learned(&host)), "{}", learned(&host));
    (0..40).for_each(|_| wake(&host, &core, 5_000));
    assert!(learned(&host) < 5_500, "and back: {}", learned(&host));
}

/// A quota of CPU time stops all threads of the process for 50 ms at a time.
#[test]
fn a_stop_of_all_workers_for_50_ms_counts_little_and_is_forgotten() {
    let (host, core) = after_short_ones();
    wake(&host, &core, 50_000_000);
    assert!(learned(&host) < 7_000, "{}", learned(&host));
    (0..8).for_each(|_| wake(&host, &core, 5_000));
    assert!(learned(&host) < 5_700, "{}", learned(&host));
    // Ten stops in a row are no wakes: the most is more than a wake takes.
    (0..20).for_each(|_| wake(&host, &core, 50_000_000));
    assert_eq!(learned(&host), 100_000);
}

#[test]
fn a_parked_worker_is_kicked_for_a_task_that_has_waited_for_ten_of_its_wakeups() {
    for (wakeup, waited, is_kicked) in
        [(5_000, 190_000, false), (5_000, 210_000, true), (40_000, 300_000, false), (40_000, 450_000, true)]
    {
        let (host, core) = after_short_ones();
        (0..60).for_each(|_| wake(&host, &core, wakeup));
        host.park(&core);
        let busy = Core::new(&host, CpuId(1), Nanos(1_000_000_000));
        busy.schedule(&host, host.task(1, Allowed::Anywhere, 0), false);
        host.set_clock(Nanos(host.now(ME).0 + waited));
        busy.set_event_interval(0);
        assert!(matches!(busy.next(&host), Next::Maintain));
        assert_eq!(host.unparked().last(), Some(&ME), "of the wakes before");
        busy.maintained(&host);
        assert_eq!(host.unparked(), Vec::from_iter(is_kicked.then_some(ME)), "{wakeup} {waited}");
    }
}

/// A wake of a worker costs 20 µs until it is learned, and a move four polls: 16 µs, so the tasks are light, or 40 µs.
#[test]
fn an_idle_worker_is_kicked_for_light_tasks_that_wait_as_long_as_that_takes_and_finds_them_unless_others_need_the_last()
 {
    for (poll_ns, parked, others_run, kicks_at) in [
        (4_000, 1, true, 54),
        (4_000, 1, false, 24),
        (4_000, 2, true, 9),
        (4_000, 2, false, 9),
        (4_000, 3, true, 9),
        (10_000, 1, true, 24),
        (10_000, 1, false, 24),
        (10_000, 3, true, 24),
    ] {
        let host = TestHost::new(PolicyKind::Home);
        host.workers().set_others_run(others_run);
        host.set_clock(Nanos(1_000_000));
        let core = |worker| Core::new(&host, CpuId(worker), Nanos(1_000_000_000));
        let cores: Vec<_> = (0..host.workers().machine().cpus() as u32).map(core).collect();
        let busy = &cores[0];
        busy.remote().status.mean_poll_ns.store(poll_ns, Ordering::Relaxed);
        busy.search(&host);
        assert!(matches!(busy.next(&host), Next::Park(None)));
        cores[1..=parked].iter().for_each(|core| host.park(core));
        host.wake(busy);
        let mut kicked = Vec::new();
        let tasks = (1..100).find(|task| {
            busy.schedule(&host, host.task(*task, Allowed::Anywhere, 0), false);
            kicked = host.unparked();
            !kicked.is_empty()
        });
        assert_eq!(tasks, Some(kicks_at), "{poll_ns} ns, {parked} idle workers, {others_run}");
        if poll_ns < 5_000 {
            let thief = &cores[kicked[0].index()];
            host.wake(thief);
            assert!(matches!(thief.next(&host), Next::Search));
            thief.search(&host);
            assert!(matches!(thief.next(&host), Next::Run(_)), "{parked} idle workers");
        }
    }
}

#[test]
fn others_run_if_cpus_were_idle_for_less_than_two_thirds_of_the_time_that_workers_were_parked() {
    let host = TestHost::new(PolicyKind::Home);
    assert!(host.workers().others_run(), "not told yet");
    for (idle, others_run) in [(80, false), (79, true), (0, true), (240, false)] {
        host.workers().compare_idle(idle, 120);
        assert_eq!(host.workers().others_run(), others_run, "{idle}");
    }
}

/// A busy worker: two tasks that yield, and polls of 1 µs.
struct Busy {
    host: TestHost,
    core: Core<TestHost>,
}

impl Busy {
    fn new() -> Self {
        let host = TestHost::new(PolicyKind::Home);
        host.set_clock(Nanos(1_000_000));
        let core = Core::new(&host, ME, Nanos(1_000_000_000));
        (1..=2).for_each(|number| core.schedule(&host, host.task(number, Allowed::Anywhere, 0), false));
        Self { host, core }
    }

    fn takes(&self, ns: u64) {
        self.host.set_clock(Nanos(self.host.now(ME).0 + ns));
    }

    /// The worker polls its driver, which takes `ns` and wakes a task or not. Returns how many polls ran before.
    fn interval(&self, ns: u64, wakes: bool) -> u32 {
        for polls in 0.. {
            match self.core.next(&self.host) {
                Next::Run(queued) => {
                    self.core.begin_poll(&self.host, &queued.task);
                    self.takes(1_000);
                    // A task that the driver woke ends.
                    let yields = TestHost::number(&queued.task) > 0;
                    yields.then(|| self.core.schedule(&self.host, queued.task, true));
                    self.core.end_poll(yields);
                }
                Next::Maintain => {
                    self.takes(ns);
                    wakes.then(|| {
                        self.core.schedule(&self.host, self.host.task(0, Allowed::Anywhere, 0), false)
                    });
                    self.core.maintained(&self.host);
                    return polls;
                }
                next => panic!("a busy worker does not get {next:?}"),
            }
        }
        unreachable!()
    }

    /// How many polls run between two polls of the driver in the end, if each of these takes `ns`.
    fn after(&self, intervals: u32, ns: u64) -> u32 {
        (0..intervals).map(|_| self.interval(ns, false)).last().unwrap_or(0)
    }
}

#[test]
fn maintenance_takes_one_part_in_160_of_a_busy_workers_time() {
    let busy = Busy::new();
    assert!(
        (254..=258).contains(&busy.after(20, 0)),
        "where the clock stands still it is taken to cost 1.6 µs"
    );
    assert!((318..=321).contains(&busy.after(40, 2_000)));
    assert!((398..=401).contains(&busy.after(40, 3_000)));
}

#[test]
fn maintenance_in_which_the_driver_wakes_a_task_says_nothing() {
    let busy = Busy::new();
    busy.after(40, 2_000);
    (0..40).for_each(|_| _ = busy.interval(30_000, true));
    assert!((314..=321).contains(&busy.interval(2_000, false)));
}

#[test]
fn maintenance_that_takes_ten_times_as_long_has_a_limit_and_one_stop_of_50_ms_counts_little() {
    let busy = Busy::new();
    busy.after(40, 2_000);
    busy.interval(50_000_000, false);
    assert!((320..=460).contains(&busy.after(2, 2_000)), "a stop");
    busy.after(20, 2_000);
    assert!((398..=401).contains(&busy.after(12, 20_000)));
    let ms = busy.host.now(ME).0;
    busy.after(1, 20_000);
    assert!(busy.host.now(ME).0 - ms < 450_000, "0.4 ms at most");
    assert!((318..=330).contains(&busy.after(60, 2_000)), "and back");
}
