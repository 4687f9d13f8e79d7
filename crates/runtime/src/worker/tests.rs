//! Tests of one worker, driven poll by poll, on a clock that the test advances: sleeps, hot windows, long polls, event
//! intervals, and run times of tenants.

use super::long_poll::{MEASURED_FOR, is_one_long};
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
use warmcore_sched::{PolicyKind, SchedDomains};
use warmcore_tenant::Tenant;
use warmcore_topo::Topology;
use warmcore_types::CpuSet;

const US: u64 = 1_000;

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
        let text = "[drawn]\nsockets = 1\nl3_per_socket = 1\ncores_per_l3 = 2\nsmt = 1\n";
        let topology = Topology::from_machine(text, "drawn").unwrap();
        let cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let machine = SchedDomains::new(&topology, &cpus);
        let script = Arc::new(Script { clock: AtomicU64::new(1_000_000 * US) });
        let virtual_times = Arc::default();
        let remotes = (0..2).map(|_| remote(Box::new(Scripted(script.clone())), &virtual_times)).collect();
        let pin_to = vec![CpuSet::default(); 2];
        let shared =
            shared("test".into(), remotes, machine, PolicyKind::Home, Duration::from_millis(1), pin_to);
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
        self.worker.until_sample.set(0);
        if self.worker.remote().inbox.has_tasks() {
            self.worker.drain_inbox();
        }
        self.worker.next_task().map(|(runnable, is_shared)| self.worker.poll(runnable, is_shared)).is_some()
    }

    /// Begins a round that does not end within the next polls.
    fn long_interval(&self) {
        self.worker.ticks_left.set(1000);
        self.worker.event_interval.set(1000);
    }

    fn hot_until(&self) -> u64 {
        self.worker.remote().status.hot_until.load(Relaxed)
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
    for (polls, each, recorded) in [(3, 150 * US, true), (1, 17 * US, true), (31, 100 * US, false)] {
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
            world.worker.until_sample.set(1000);
            world.long_interval();
            let (runnable, is_shared) = world.worker.next_task().unwrap();
            world.worker.poll(runnable, is_shared);
        }
        let slept = sleeper.header().usual_sleep();
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
        let asked = || world.worker.remote().stats.read().event_polls;
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
        world.worker.open_window(Nanos(world.now()));
    }
    let learned = (yields.header().usual_sleep(), other.header().usual_sleep(), world.hot_until());
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
    assert_eq!(u64::from(task.header().usual_sleep()), 50 * US);
    wakes_itself.store(true, Relaxed);
    assert!(world.step());
    world.worker.open_window(Nanos(world.now()));
    assert_eq!(world.hot_until(), 0, "it was woken during its poll");
    wakes_itself.store(false, Relaxed);
    assert!(world.step());
    assert_eq!(world.hot_until(), 0, "it sleeps, and its worker has not gone idle");
    assert_eq!(world.worker.idle(), Idle::Awake);
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
    assert_eq!(world.worker.remote().stats.read().long_polls, 900);
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

#[test]
fn a_round_of_one_poll_is_never_two() {
    let world = World::new();
    let rounds = |ns: u64| {
        let of = |_| {
            world.worker.tune_interval(ns * u64::from(world.worker.event_interval.get()));
            world.worker.event_interval.get()
        };
        // The average adapts to the polls' duration in the first 20 rounds.
        (0..50).map(of).collect::<Vec<u32>>().split_off(20)
    };
    assert_eq!(rounds(1_000 * US), [1; 30]);
    let two = rounds(90 * US);
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
    assert_eq!(world.worker.remote().status.poll_seq.load(Relaxed), 2);
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
    world.worker.count_long_poll(None);
    assert!(world.step());
    world.pass(MEASURED_FOR.0);
    // The second passed outside of polls.
    world.worker.interval_start.set(Nanos(world.now()));
    world.worker.restart_long_poll_check(Nanos(world.now()));
    let before = run_ns();
    assert!(world.step());
    assert_eq!((run_ns() - before, world.worker.sample_mask.get()), (US, SAMPLE_MASK));
    // Then the first poll that is sampled at random; and after unmeasured polls, one of them long, the next, at whose
    // end the long poll is found.
    assert!(world.step());
    let script = world.script.clone();
    let blocks = TaskBuilder::of(&world.worker.shared)
        .spawn(async move { _ = script.clock.fetch_add(30_000 * US, Relaxed) });
    while !blocks.is_finished() {
        world.worker.until_sample.set(1000);
        world.long_interval();
        let (runnable, is_shared) = world.worker.next_task().unwrap();
        world.worker.poll(runnable, is_shared);
    }
    let before = run_ns();
    assert!(world.step());
    assert_eq!((run_ns() - before, world.worker.sample_mask.get()), (US * 33 / 2, 0));
    end_all(&world, [short]);
}

const LIMIT: Nanos = Nanos(1_000_000);

#[test]
fn a_long_poll_among_a_whole_round_of_short_ones_is_seen() {
    for (polls, average) in [(512, 100), (512, 390), (200, 1000), (2, 100_000), (1, 1_000_000)] {
        let others = polls * u64::from(average);
        assert!(
            is_one_long(others + 30_000_000, polls, average, LIMIT),
            "30 ms among {polls} of {average} ns"
        );
        // As the doc of `is_one_long` says: the limit and 0.8 ms more, if a round takes 200 µs.
        assert!(
            polls == 1 || is_one_long(1_801_000, polls, average, LIMIT),
            "1.8 ms among {polls} of {average} ns"
        );
    }
}

#[test]
fn a_round_that_took_four_times_as_long_as_usual_is_none() {
    for (polls, average) in [(512, 390), (200, 1000), (2, 100_000)] {
        assert!(!is_one_long(4 * polls * u64::from(average), polls, average, LIMIT));
    }
    assert!(!is_one_long(5_000_000_000, 0, 100, LIMIT), "no poll ended");
}

#[test]
fn where_no_round_has_ended_yet_long_is_what_short_polls_cannot_take_together() {
    let never = Nanos(u64::MAX);
    assert!(!is_one_long(u64::MAX, 8, 0, never) && !is_one_long(u64::MAX, 8, 100, never));
    assert!(!is_one_long(8_000_000, 8, 0, LIMIT), "eight polls of 1 ms");
    assert!(is_one_long(30_000_000, 8, 0, LIMIT), "30 ms among eight polls");
}
