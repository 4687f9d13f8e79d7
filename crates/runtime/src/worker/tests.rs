//! Tests of one worker, driven poll by poll, on a clock that the test advances: sleeps, hot windows, long polls, event
//! intervals, and run times of tenants.

use super::*;
use crate::common::{Hear, heard};
use crate::context;
use crate::join::JoinHandle;
use crate::runtime::{remote, shared};
use crate::spawn::TaskBuilder;
use crate::sync::{AtomicBool, AtomicU64, Mutex};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;
use tracing::{Level, Metadata};
use warmcore_driver::{Driver, Entered};
use warmcore_sched::{Home, PolicyKind, SchedDomains, View, WorkerStats};
use warmcore_tenant::Tenant;
use warmcore_topo::Topology;
use warmcore_types::{CpuSet, ignore_poison};

const US: u64 = 1_000;

/// After a long poll each poll is measured for this long, as the core's documentation says.
const MEASURED_FOR: u64 = 1_000_000 * US;

/// The clock of a driver, which advances only when a test advances it. The driver's `park` returns at once.
#[derive(Default)]
struct Script {
    clock: AtomicU64,
}

/// A worker's driver, whose clock the test advances through another reference.
struct Scripted(Arc<Script>);

impl Driver for Scripted {
    fn now(&self) -> Nanos {
        Nanos(self.0.clock.load(Relaxed))
    }
    fn park(&self, _until: Option<Nanos>, _is_awake: &dyn Fn() -> bool) {}
    fn poll_events(&self) {}
    fn unpark(&self) {}
    fn enter(&self) -> Entered<'_> {
        Entered::none()
    }
    fn wake_at(&self, _at: Nanos) {}
    fn close(&self) {}
}

/// The waker of a task that sleeps, for the test to wake.
type Bell = Arc<Mutex<Option<std::task::Waker>>>;

struct World {
    script: Arc<Script>,
    worker: Worker,
}

impl World {
    fn new() -> Self {
        Self::with(PolicyKind::Home)
    }

    fn with(policy: PolicyKind) -> Self {
        let text = "[drawn]\nsockets = 1\nl3_per_socket = 1\ncores_per_l3 = 2\nsmt = 1\n";
        let topology = Topology::from_machine(text, "drawn").unwrap();
        let cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let machine = SchedDomains::new(&topology, &cpus);
        let script = Arc::new(Script { clock: AtomicU64::new(1_000_000 * US) });
        let remotes = (0..2).map(|_| remote(Box::new(Scripted(script.clone())))).collect();
        let pin_to = vec![CpuSet::default(); 2];
        let shared = shared("test".into(), remotes, machine, policy, Duration::from_millis(1), pin_to);
        let worker = Worker::new(Arc::new(shared), CpuId(0), Rc::new(OpBudget::new()));
        Self { script, worker }
    }

    fn pass(&self, ns: u64) {
        self.script.clock.fetch_add(ns, Relaxed);
    }

    fn now(&self) -> u64 {
        self.script.clock.load(Relaxed)
    }

    /// Spawns a task whose polls take `ns` each, and which sleeps after each poll until its bell is rung.
    fn sleeper(&self, ns: u64) -> (JoinHandle<()>, Bell) {
        let (bell, script) = (Bell::default(), self.script.clone());
        let rung = bell.clone();
        let sleeps = poll_fn(move |cx| {
            script.clock.fetch_add(ns, Relaxed);
            *ignore_poison(rung.lock()) = Some(cx.waker().clone());
            Poll::Pending
        });
        (TaskBuilder::of(&self.worker.shared).spawn(sleeps), bell)
    }

    /// Polls the next task, and measures that poll. False: no task waits.
    fn step(&self) -> bool {
        self.worker.core.set_until_sample(0);
        self.poll_next()
    }

    /// Polls the next task, in an event interval that does not end by then, and does not measure that poll.
    fn step_unmeasured(&self) {
        self.worker.core.set_until_sample(1000);
        self.worker.core.set_event_interval(1000);
        assert!(self.poll_next());
    }

    /// Polls the next task. False: no task waits.
    fn poll_next(&self) -> bool {
        let worker = &self.worker;
        loop {
            match worker.core.next(&worker.shared) {
                Next::Run(queued) => {
                    worker.poll(queued.task);
                    return true;
                }
                Next::Maintain => worker.maintain(),
                Next::Search => return false,
                Next::Park(_) | Next::Shutdown => unreachable!("the worker is not marked as parked"),
            }
        }
    }

    /// Lets the worker search for tasks of the other worker, which has none, and then go on.
    fn search(&self) {
        self.worker.core.search(&self.worker.shared);
        self.worker.core.resume(&self.worker.shared);
    }

    fn hot_until(&self) -> u64 {
        self.worker.shared.workers.hot_until(CpuId(0)).0
    }

    fn stats(&self) -> WorkerStats {
        self.worker.core.remote().counters.read()
    }
}

fn ring(bell: &Bell) {
    let waker = ignore_poison(bell.lock()).take();
    waker.expect("it sleeps").wake();
}

/// Aborts the tasks of a test, and polls them to their end, since a task that sleeps would keep its runtime in memory.
fn end_all(world: &World, tasks: impl IntoIterator<Item = JoinHandle<()>>) {
    tasks.into_iter().for_each(|task| task.abort());
    while world.step() {}
}

/// The time that the worker reads once a round of polls may be late by a round, so a sleep is not measured by it.
#[test]
fn a_sleep_is_measured_by_the_clock_of_its_end() {
    for (polls, each, recorded) in [(3, 130 * US, true), (1, 17 * US, true), (31, 100 * US, false)] {
        let world = World::new();
        let _being = context::set_current(&world.worker);
        let (sleeper, bell) = world.sleeper(5 * US);
        assert!(world.step());
        let script = world.script.clone();
        let waker = TaskBuilder::of(&world.worker.shared).spawn(async move {
            for poll in 1..=polls {
                script.clock.fetch_add(each, Relaxed);
                if poll == polls {
                    ring(&bell);
                }
                crate::yield_now().await;
            }
        });
        for _ in 0..polls {
            // These polls are not measured, so only the wake reads the clock.
            world.step_unmeasured();
        }
        let slept = sleeper.header().sched.usual_sleep();
        assert_eq!(u64::from(slept), if recorded { polls * each } else { 0 }, "{polls} polls of {each} ns");
        end_all(&world, [sleeper, waker]);
    }
}

/// It may wait for what the driver brings.
#[test]
fn a_task_that_yields_alone_lets_the_driver_be_polled_soon() {
    let yields = || async {
        loop {
            crate::yield_now().await;
        }
    };
    for (tasks, polls, at_least, at_most) in [(1, 400, 100, 103), (2, 400, 0, 3)] {
        let world = World::new();
        let _being = context::set_current(&world.worker);
        let handles: Vec<JoinHandle<()>> =
            (0..tasks).map(|_| TaskBuilder::of(&world.worker.shared).spawn(yields())).collect();
        let asked = || world.stats().event_polls;
        let mut before = asked();
        for poll in 0..100 + polls {
            assert!(world.step());
            if poll == 99 {
                // By now the worker knows that polls are short.
                before = asked();
            }
        }
        let asked = asked() - before;
        assert!((at_least..=at_most).contains(&asked), "{tasks} tasks, {asked} times in {polls} polls");
        end_all(&world, handles);
    }
}

#[test]
fn a_yield_is_no_sleep_and_opens_no_window() {
    let world = World::new();
    let _being = context::set_current(&world.worker);
    let script = world.script.clone();
    let yields = TaskBuilder::of(&world.worker.shared).spawn(async move {
        loop {
            script.clock.fetch_add(5 * US, Relaxed);
            crate::yield_now().await;
        }
    });
    let script = world.script.clone();
    let other = TaskBuilder::of(&world.worker.shared).spawn(async move {
        loop {
            script.clock.fetch_add(100 * US, Relaxed);
            crate::yield_now().await;
        }
    });
    for _ in 0..20 {
        assert!(world.step());
        world.search();
    }
    let learned =
        (yields.header().sched.usual_sleep(), other.header().sched.usual_sleep(), world.hot_until());
    assert_eq!(learned, (0, 0, 0), "sleeps of yields, and a window");
    end_all(&world, [yields, other]);
}

#[test]
fn a_window_opens_when_the_worker_goes_idle() {
    let world = World::new();
    let _being = context::set_current(&world.worker);
    let wakes_itself = Arc::new(AtomicBool::new(false));
    let (bell, script, wakes) = (Bell::default(), world.script.clone(), wakes_itself.clone());
    let rung = bell.clone();
    let task = TaskBuilder::of(&world.worker.shared).spawn(poll_fn(move |cx| {
        script.clock.fetch_add(5 * US, Relaxed);
        *ignore_poison(rung.lock()) = Some(cx.waker().clone());
        if wakes.load(Relaxed) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }));
    assert!(world.step());
    world.pass(50 * US);
    ring(&bell);
    assert_eq!(u64::from(task.header().sched.usual_sleep()), 50 * US);
    wakes_itself.store(true, Relaxed);
    assert!(world.step());
    world.search();
    assert_eq!(world.hot_until(), 0, "it was woken during its poll");
    wakes_itself.store(false, Relaxed);
    assert!(world.step());
    assert_eq!(world.hot_until(), 0, "it sleeps, and its worker has not gone idle");
    world.search();
    assert_eq!(world.hot_until(), world.now() + 50 * US);
    end_all(&world, [task]);
}

/// The events that were heard, with their fields.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Hear for Told {
    fn wants(&self, of: &Metadata<'_>) -> bool {
        of.is_event() && *of.level() == Level::WARN
    }

    fn event(&self, text: String) {
        ignore_poison(self.0.lock()).push(text);
    }
}

#[test]
fn every_long_poll_is_counted_and_one_a_second_is_told_with_its_task() {
    let world = World::new();
    let _being = context::set_current(&world.worker);
    let script = world.script.clone();
    let task = TaskBuilder::of(&world.worker.shared).name("honest").spawn(async move {
        loop {
            script.clock.fetch_add(2_000 * US, Relaxed);
            crate::yield_now().await;
        }
    });
    let told = Told::default();
    heard(told.clone(), || {
        for polls in [100, 800] {
            (0..polls).for_each(|_| assert!(world.step()));
        }
    });
    assert_eq!(world.stats().long_polls, 900);
    let told = ignore_poison(told.0.lock()).clone();
    // The first long poll, and the first after a second, which is 500 polls later.
    assert_eq!(told.len(), 2, "{told:?}");
    for (told, unreported) in told.iter().zip([0, 499]) {
        assert!(
            told.contains("task=honest") && told.ends_with(&format!(" unreported={unreported}")),
            "{told}"
        );
    }
    end_all(&world, [task]);
}

/// The worker changes its thread after each poll, as if its tasks called `block_in_place`. The time of its last report
/// and the number of long polls that it did not report outlive the thread.
#[test]
fn a_worker_that_changes_hands_tells_of_long_polls_once_a_second_all_the_same() {
    let mut world = World::new();
    let script = world.script.clone();
    let being = context::set_current(&world.worker);
    let task = TaskBuilder::of(&world.worker.shared).name("honest").spawn(async move {
        loop {
            script.clock.fetch_add(2_000 * US, Relaxed);
            crate::yield_now().await;
        }
    });
    drop(being);
    let told = Told::default();
    heard(told.clone(), || {
        for _ in 0..900 {
            let being = context::set_current(&world.worker);
            assert!(world.step());
            drop(being);
            world.worker = Worker::new(world.worker.shared.clone(), CpuId(0), Rc::new(OpBudget::new()));
        }
    });
    let told = ignore_poison(told.0.lock()).clone();
    assert_eq!(told.len(), 2, "{told:?}");
    for (told, unreported) in told.iter().zip([0, 499]) {
        assert!(told.ends_with(&format!(" unreported={unreported}")), "{told}");
    }
    let _being = context::set_current(&world.worker);
    end_all(&world, [task]);
}

/// With polls of 1 ms the driver is polled after each, and with polls of 45 µs after two or three: half as
/// many as if no task yielded.
#[test]
fn a_round_of_one_poll_is_never_two() {
    let rounds = |ns: u64| {
        let world = World::new();
        let _being = context::set_current(&world.worker);
        let script = world.script.clone();
        let yields = || {
            let script = script.clone();
            async move {
                loop {
                    script.clock.fetch_add(ns, Relaxed);
                    crate::yield_now().await;
                }
            }
        };
        // Two tasks, since the interval of a task that yields alone is short anyway.
        let handles = [(); 2].map(|()| TaskBuilder::of(&world.worker.shared).spawn(yields()));
        let (mut rounds, mut polls, mut served) = (Vec::new(), 0, 0);
        for _ in 0..200 {
            if world.stats().event_polls > served {
                rounds.push(polls);
                (polls, served) = (0, world.stats().event_polls);
            }
            // The end of a measured poll could end the interval too.
            world.worker.core.set_until_sample(1000);
            assert!(world.poll_next());
            polls += 1;
        }
        end_all(&world, handles);
        // The average adapts to the polls' duration in the first 20 rounds.
        rounds.split_off(20)
    };
    let one = rounds(1_000 * US);
    assert!(one.len() > 100 && one.iter().all(|round| *round == 1), "{one:?}");
    let two = rounds(45 * US);
    assert!(
        two.contains(&2) && two.contains(&3) && two.iter().all(|round| [2, 3].contains(round)),
        "{two:?}"
    );
}

/// A subscriber that panics at each event.
struct Panics;

impl Hear for Panics {
    fn wants(&self, of: &Metadata<'_>) -> bool {
        of.is_event()
    }

    fn event(&self, text: String) {
        panic!("a subscriber that panics:{text}");
    }
}

#[test]
fn a_subscriber_that_panics_does_not_take_the_outcome_of_a_task() {
    let world = World::new();
    let _being = context::set_current(&world.worker);
    let task =
        TaskBuilder::of(&world.worker.shared).spawn(async { drop(tokio::task::spawn_local(async {})) });
    heard(Panics, || assert!(world.step()));
    assert_eq!(world.worker.core.remote().status.poll_seq.load(Relaxed), 2);
    let outcome = std::pin::pin!(task).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    let Poll::Ready(Err(error)) = outcome else { panic!("it did not end") };
    assert!(error.is_panic() && error.to_string().contains("warmcore::spawn"), "{error}");
}

/// A sampled poll counts for the polls before it that were not measured. Their number is fixed when the poll begins: a
/// long poll that is found at its end changes it for later polls only.
#[test]
fn a_tenants_poll_stands_for_as_many_as_when_it_began() {
    let world = World::new();
    let _being = context::set_current(&world.worker);
    let tenant = Tenant::builder().name("short").build();
    let script = world.script.clone();
    let short = TaskBuilder::of(&world.worker.shared).tenant(&tenant).spawn(async move {
        loop {
            script.clock.fetch_add(US, Relaxed);
            crate::yield_now().await;
        }
    });
    let run_ns = || world.worker.shared.tenant_stats.read()[0].run_ns;
    // After a long poll each poll is measured. The first poll that ends after `MEASURED_FOR` is the last of them.
    world.worker.core.count_long_poll(&world.worker.shared);
    assert!(world.step());
    // The second passes outside of polls, while the driver is polled.
    world.pass(MEASURED_FOR);
    world.worker.core.maintained(&world.worker.shared);
    let before = run_ns();
    assert!(world.step());
    assert_eq!(run_ns() - before, US);
    // Then the first poll that is sampled at random; and after unmeasured polls, one of them long, the next, at whose
    // end the long poll is found.
    assert!(world.step());
    let script = world.script.clone();
    let blocks = TaskBuilder::of(&world.worker.shared)
        .spawn(async move { _ = script.clock.fetch_add(30_000 * US, Relaxed) });
    while !blocks.is_finished() {
        world.step_unmeasured();
    }
    let before = run_ns();
    assert!(world.step());
    assert_eq!(run_ns() - before, US * 33 / 2);
    end_all(&world, [short]);
}

/// Yields once, and uses up the waker or keeps it.
async fn yield_by(is_by_val: bool) {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        let own = cx.waker().clone();
        match is_by_val {
            true => own.wake(),
            false => own.wake_by_ref(),
        }
        Poll::Pending
    })
    .await;
}

/// Thirty tasks yield after each poll. One that a thread wakes runs before them, and so does one that this task wakes in turn; where
/// polls are short all run in order of arrival.
#[test]
fn who_is_woken_passes_those_that_yield() {
    // The costs of a move, which are not learned here, are taken to be four polls: with the default tasks with polls of 10 µs wait in the
    // run queue, and there is a LIFO slot.
    let rings = PolicyKind::Changed(Home { lifo_order_min_cost: Nanos(u64::MAX), ..Home::DEFAULT });
    let home = PolicyKind::Home;
    let cases = [(home, 10 * US, 0..=2), (rings, 10 * US, 0..=0), (home, US, 58..=62), (rings, US, 58..=62)];
    for ((policy, poll, expected), is_by_val) in
        cases.into_iter().flat_map(|case| [(case.clone(), true), (case, false)])
    {
        let world = World::with(policy);
        let _being = context::set_current(&world.worker);
        let polls = Arc::new(AtomicU64::new(0));
        let spawn_hog = || {
            let (script, polls) = (world.script.clone(), polls.clone());
            TaskBuilder::of(&world.worker.shared).spawn(async move {
                loop {
                    script.clock.fetch_add(poll, Relaxed);
                    polls.fetch_add(1, Relaxed);
                    yield_by(is_by_val).await;
                }
            })
        };
        let hogs: Vec<JoinHandle<()>> = (0..30).map(|_| spawn_hog()).collect();
        let (second, second_bell) = world.sleeper(0);
        let (first_bell, rings) = (Bell::default(), second_bell.clone());
        let rung = first_bell.clone();
        let first = TaskBuilder::of(&world.worker.shared).spawn(poll_fn(move |cx| {
            let sleeps = ignore_poison(rung.lock()).replace(cx.waker().clone()).is_none();
            if !sleeps {
                ring(&rings);
            }
            Poll::Pending
        }));
        // In its second poll another thread wakes it.
        let (third_bell, polls_between) = (Bell::default(), Arc::new(AtomicU64::new(u64::MAX)));
        let (slept, counted, between) = (third_bell.clone(), polls.clone(), polls_between.clone());
        let mut polled_at = vec![];
        let third = TaskBuilder::of(&world.worker.shared).spawn(poll_fn(move |cx| {
            let waker = cx.waker().clone();
            polled_at.push(counted.load(Relaxed));
            match polled_at[..] {
                [_] => *ignore_poison(slept.lock()) = Some(waker),
                [_, _] => std::thread::scope(|scope| _ = scope.spawn(|| waker.wake())),
                [_, before, now] => between.store(now - before, Relaxed),
                _ => {}
            }
            Poll::Pending
        }));
        // The worker learns how long polls are, and all three fall asleep.
        (0..200).for_each(|_| assert!(world.step()));
        let before = polls.load(Relaxed);
        let waker = ignore_poison(first_bell.lock()).clone().expect("it sleeps");
        std::thread::scope(|scope| _ = scope.spawn(|| waker.wake()));
        for is_rung in [true, false] {
            while ignore_poison(second_bell.lock()).is_none() != is_rung {
                world.step_unmeasured();
            }
        }
        let passed = polls.load(Relaxed) - before;
        assert!(expected.contains(&passed), "{passed} polls of {poll} ns before those that were woken");
        ring(&third_bell);
        (0..100).for_each(|_| world.step_unmeasured());
        // The one that is woken waits for one round at most, and the two one after the other for two.
        let between = polls_between.load(Relaxed);
        assert!(
            between <= expected.end() / 2,
            "{between} polls of {poll} ns before the one woken in its poll"
        );
        end_all(&world, hogs.into_iter().chain([first, second, third]));
    }
}
