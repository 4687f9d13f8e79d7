//! A worker that took light tasks from an injection queue serves its shard: threads outside give the light tasks that they spawn to it
//! until it must have come back, and unpark no other.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use warmcore_sched::{Allowed, Core, Host, Next, PolicyKind};
use warmcore_types::{CpuId, Nanos};

const BEGIN: u64 = 1_000_000;
/// Tasks from here on are of another kind.
const OTHER_KIND: u32 = 1000;

struct Test {
    host: TestHost,
}

impl Test {
    /// All workers are parked, and polls of tasks below [`OTHER_KIND`] are known to take so many ns.
    fn new(polls: Option<u64>) -> (Self, Vec<Core<TestHost>>) {
        let test = Self { host: TestHost::new(PolicyKind::Home) };
        test.at(0);
        let core = |worker| Core::new(&test.host, CpuId(worker), Nanos(1_000_000_000));
        let cores: Vec<_> = (0..test.host.workers().machine().cpus() as u32).map(core).collect();
        polls.into_iter().for_each(|took| cores[0].learn_first_poll(&test.host, 1, took));
        cores.iter().for_each(|core| test.host.park(core));
        (test, cores)
    }

    fn at(&self, ns: u64) {
        self.host.set_clock(Nanos(BEGIN + ns));
    }

    /// A thread outside spawns a task. Returns the workers that it unparks.
    fn spawn(&self, number: u32) -> Vec<CpuId> {
        self.host.workers().schedule_external(&self.host, self.host.task(number, Allowed::Anywhere, 0), None);
        self.host.unparked()
    }

    /// The worker takes tasks and polls the first of them. Returns the workers that it unparks.
    fn poll_one(&self, core: &Core<TestHost>) -> Vec<CpuId> {
        self.host.poll_next(core);
        self.host.unparked()
    }

    /// Each of these tasks comes `gap` ns after the worker ran out of them. Unparked, it is there after 8 µs. Returns how often it
    /// waited awake.
    fn run(&self, server: &Core<TestHost>, tasks: std::ops::Range<u32>, gap: u64) -> usize {
        tasks
            .filter(|n| {
                let began = self.host.now(server.me()).0;
                self.host.comes.set(Some((*n, gap)));
                self.host.waited_until.set(None);
                server.search(&self.host);
                if self.host.comes.take().is_some() {
                    assert!(matches!(server.next(&self.host), Next::Park(_)));
                    self.at(began - BEGIN + gap);
                    assert_eq!(self.spawn(*n), [server.me()]);
                    self.at(began - BEGIN + gap + 8_000);
                    self.host.wake(server);
                }
                assert_eq!(self.poll_one(server), []);
                self.host.waited_until.get().inspect(|until| assert!(until.0 - began <= 20_000)).is_some()
            })
            .count()
    }

    /// Spawns a task, and the worker that is unparked for it polls it.
    fn serve_one<'a>(&self, cores: &'a [Core<TestHost>], number: u32) -> &'a Core<TestHost> {
        let [worker] = self.spawn(number)[..] else { panic!("one worker is unparked") };
        self.host.wake(&cores[worker.index()]);
        assert_eq!(self.poll_one(&cores[worker.index()]), []);
        &cores[worker.index()]
    }
}

#[test]
fn while_a_worker_serves_the_queue_no_other_is_unparked_and_it_finds_what_came() {
    let (test, cores) = Test::new(Some(500));
    let server = test.serve_one(&cores, 0);
    test.at(15_000);
    (1..6).for_each(|n| assert_eq!(test.spawn(n), [], "the kick would take longer"));
    (1..6).for_each(|_| assert_eq!(test.poll_one(server), [], "it leaves none to others"));
    test.at(40_000);
    assert_eq!(test.spawn(6).len(), 1, "it has not come back since");
}

#[test]
fn as_many_tasks_as_are_worth_a_kick_end_the_service() {
    // The last of 20 waits for 200 µs.
    for (tasks, others) in [(19, 0), (20, 1)] {
        let (test, cores) = Test::new(Some(10_000));
        let server = test.serve_one(&cores, 0);
        (1..=tasks).for_each(|n| assert_eq!(test.spawn(n), []));
        assert_eq!(test.poll_one(server).len(), others, "{tasks} tasks");
    }
}

#[test]
fn a_worker_that_parks_serves_no_more() {
    let (test, cores) = Test::new(Some(500));
    let server = test.serve_one(&cores, 0);
    test.host.park(server);
    assert_eq!(test.spawn(1).len(), 1);
}

#[test]
fn where_polls_are_long_or_not_known_each_task_unparks_a_worker() {
    for polls in [None, Some(21_000), Some(1_000_000)] {
        let (test, cores) = Test::new(polls);
        test.serve_one(&cores, 0);
        assert_eq!(test.spawn(1).len(), 1, "{polls:?}");
    }
}

#[test]
fn a_worker_that_takes_a_task_of_another_kind_serves_no_more_and_leaves_the_rest_to_others() {
    let (test, cores) = Test::new(Some(500));
    let server = test.serve_one(&cores, 0);
    test.at(1_000);
    assert_eq!(test.spawn(OTHER_KIND).len(), 1, "another worker is unparked for it");
    (1..12).for_each(|n| assert_eq!(test.spawn(OTHER_KIND + n), [], "that one is on its way"));
    let waiting = || test.host.workers().inject_queues().map(|queue| queue.len()).sum::<u32>();
    assert_eq!((test.spawn(1), waiting()), (vec![], 12), "a light one goes to the server");
    test.poll_one(server);
    assert!((1..12).contains(&waiting()), "it takes its share");
    let left = waiting();
    assert_eq!((test.spawn(2), waiting()), (vec![], left + 1));
}

#[test]
fn a_worker_that_was_unparked_for_light_tasks_serves_from_then_on() {
    let (test, cores) = Test::new(Some(500));
    let server = test.serve_one(&cores, 0);
    test.host.park(server);
    test.at(100_000);
    assert_eq!(test.spawn(1), [server.me()], "the same one");
    test.host.wake(server);
    assert_eq!(test.spawn(2), [], "before it has taken the first");
}

#[test]
fn a_server_waits_awake_if_tasks_usually_come_sooner_than_it_would_wake() {
    let (test, cores) = Test::new(Some(500));
    let server = test.serve_one(&cores, 0);
    assert_eq!(test.run(server, 1..41, 30_000), 0, "late ones");
    let waits = test.run(server, 41..141, 2_000);
    assert!((90..100).contains(&waits), "it learns that: {waits}");
    assert_eq!(test.run(server, 141..200, 2_000), 59, "and is not unparked any more");
    let in_vain = test.run(server, 200..240, 30_000);
    assert!((1..20).contains(&in_vain), "{in_vain}");
}

#[test]
fn a_server_whose_own_driver_wakes_tasks_stops_waiting() {
    let (test, cores) = Test::new(Some(500));
    let server = test.serve_one(&cores, 0);
    test.run(server, 1..100, 2_000);
    let mut in_vain = 0;
    loop {
        test.host.waited_until.set(None);
        test.host.park(server);
        if test.host.waited_until.get().is_none() {
            break;
        }
        in_vain += 1;
        assert!(in_vain < 20, "it waits for ever");
        test.host.wake(server);
        server.schedule(&test.host, test.host.task(OTHER_KIND, Allowed::Anywhere, 0), false);
        test.poll_one(server);
    }
    assert!(in_vain > 0);
}

#[test]
fn a_server_does_not_wait_beside_a_task_that_it_could_steal() {
    for steals in [true, false] {
        let (test, cores) = Test::new(Some(500));
        let server = test.serve_one(&cores, 0);
        test.run(server, 1..100, 2_000);
        let other = cores.iter().find(|core| core.me() != server.me()).expect("another worker");
        test.host.wake(other);
        if steals {
            other.schedule(&test.host, test.host.task(OTHER_KIND, Allowed::Anywhere, 0), false);
        }
        test.host.set_clock(Nanos(test.host.now(server.me()).0 + 500_000));
        test.host.waited_until.set(None);
        server.search(&test.host);
        assert_eq!(test.host.waited_until.get().is_none(), steals);
        assert_eq!(matches!(server.next(&test.host), Next::Run(_)), steals);
    }
}
