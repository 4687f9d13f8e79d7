//! Models of whole runtimes under shuttle's schedules: real tasks, workers, queues and policies, with a driver that has no
//! sockets.
//!
//! The driver parks on a condition variable, and its clock advances at each read. In half of the runs no timer ever
//! expires. A task that waits while all workers stay parked is then a deadlock, which shuttle reports. In the other
//! half every timer expires at once, so that parked workers check, watch and steal all the time.
//!
//! The models run for a minute in all, in `cargo xtask test --full`. To replay a failure, put the schedule that shuttle prints
//! into `REPLAY`.

use super::*;
use crate::spawn::{Placement, yield_now};
use crate::sync::threads::Condvar;
use crate::sync::{AtomicBool, Mutex};
use crate::worker;
use ::shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use ::shuttle::{Config, Runner, future::block_on, thread};
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::AtomicU64 as PlainU64;
use std::task::{Context, Poll, Waker};
use warmcore_driver::{Driver, Entered};
use warmcore_sched::{PolicyKind, SchedDomains, View};
use warmcore_topo::Topology;
use warmcore_types::Nanos;

/// A schedule that failed. If set, no other schedule runs.
const REPLAY: Option<&str> = None;

/// Schedules of each scheduler, for each model and policy.
const SCHEDULES: usize = 500;

/// Preemptions in a schedule of `PctScheduler`.
const PREEMPTIONS: usize = 3;

/// How often the thread that waits for the end yields at most. By then all tasks must have ended.
const YIELDS_MAX: usize = 20_000;

/// Whether timers expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timers {
    Never,
    AtOnce,
}

/// A driver without sockets. `events` wakes tasks as a socket's event would.
struct ModelDriver {
    clock: Arc<PlainU64>,
    timers: Timers,
    state: Mutex<Sleep>,
    condvar: Condvar,
}

#[derive(Default)]
struct Sleep {
    is_unparked: bool,
    ready: Vec<Waker>,
}

impl ModelDriver {
    /// Wakes these wakers from inside the driver, as a socket's event does.
    fn events(&self, wakers: impl IntoIterator<Item = Waker>) {
        ignore_poison(self.state.lock()).ready.extend(wakers);
        self.condvar.notify_one();
    }

    fn serve(&self) {
        let ready = std::mem::take(&mut ignore_poison(self.state.lock()).ready);
        ready.into_iter().for_each(Waker::wake);
    }
}

/// A worker's driver, which the model reads through another reference.
struct Modelled(Arc<ModelDriver>);

impl Deref for Modelled {
    type Target = ModelDriver;
    fn deref(&self) -> &ModelDriver {
        &self.0
    }
}

impl Driver for Modelled {
    fn now(&self) -> Nanos {
        Nanos(self.clock.fetch_add(1_000, std::sync::atomic::Ordering::Relaxed))
    }

    fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool) {
        let expires = until.filter(|_| self.timers == Timers::AtOnce);
        if let Some(at) = expires {
            self.clock.fetch_max(at.0, std::sync::atomic::Ordering::Relaxed);
            thread::yield_now();
        }
        loop {
            self.serve();
            let mut state = ignore_poison(self.state.lock());
            if is_awake() || expires.is_some() {
                return;
            }
            if !state.is_unparked && state.ready.is_empty() {
                state = self.condvar.wait(state).unwrap();
            }
            state.is_unparked = false;
        }
    }

    fn poll_events(&self) {
        self.serve();
    }

    fn unpark(&self) {
        ignore_poison(self.state.lock()).is_unparked = true;
        self.condvar.notify_one();
    }

    fn enter(&self) -> Entered<'_> {
        Entered::none()
    }

    fn wake_at(&self, _at: Nanos) {
        if self.timers == Timers::AtOnce {
            self.unpark();
        }
    }

    fn close(&self) {}
}

/// A runtime and its workers' drivers.
struct Model {
    runtime: Runtime,
    drivers: Vec<Arc<ModelDriver>>,
    /// Number of futures that are not dropped.
    futures: Arc<PlainU64>,
}

impl Model {
    fn new(workers: usize, policy: PolicyKind, timers: Timers) -> Self {
        let text = "[drawn]\nsockets = 1\nl3_per_socket = 2\ncores_per_l3 = 2\nsmt = 1\n";
        let topology = Topology::from_machine(text, "drawn").unwrap();
        let cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).take(workers).collect();
        let clock = Arc::new(PlainU64::new(1_000_000));
        let driver = |_| {
            let (state, condvar) = (Mutex::default(), Condvar::new());
            Arc::new(ModelDriver { clock: clock.clone(), timers, state, condvar })
        };
        let drivers: Vec<Arc<ModelDriver>> = (0..workers).map(driver).collect();
        let remotes = drivers.iter().map(|driver| remote(Box::new(Modelled(driver.clone())))).collect();
        let machine = SchedDomains::new(&topology, &cpus);
        let mut shared = shared("model".into(), remotes, machine, policy, Duration::ZERO, Vec::new());
        // Makes the model independent of the CPU on which the real thread runs.
        shared.worker_on = Box::new([]);
        let runtime = Runtime { shared: Arc::new(shared), observer: None };
        for worker in 0..workers {
            worker::thread::start_worker(&runtime.shared, CpuId(worker as u32)).unwrap();
        }
        Self { runtime, drivers, futures: Arc::default() }
    }

    /// Spawns a task whose polls and drop are checked.
    fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.spawn(Checked::new(&self.futures, future))
    }

    /// Drops the runtime, and checks that every thread ends and that no future is left.
    fn end(self) {
        let futures = self.futures.clone();
        self.end_beside_others();
        assert_eq!(futures.load(std::sync::atomic::Ordering::SeqCst), 0, "futures outlive the runtime");
    }

    /// As `end`, if other threads may still spawn.
    fn end_beside_others(self) {
        let Self { runtime, .. } = self;
        let shared = &runtime.shared;
        shared.close_tasks();
        let mut ended = (0..YIELDS_MAX).map(|_| {
            thread::yield_now();
            shared.num_alive_tasks() == 0
        });
        assert!(ended.any(|ended| ended), "tasks that do not end: {:?}", runtime_metrics::read(shared));
        drop(runtime);
    }
}

/// A future that checks that only one thread polls it at a time, and that it is not polled after its end.
struct Checked<F> {
    future: Pin<Box<F>>,
    is_polled: AtomicBool,
    has_ended: bool,
    alive: Arc<PlainU64>,
}

impl<F> Checked<F> {
    fn new(alive: &Arc<PlainU64>, future: F) -> Self {
        alive.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let (future, is_polled) = (Box::pin(future), AtomicBool::new(false));
        Self { future, is_polled, has_ended: false, alive: alive.clone() }
    }
}

impl<F: Future> Future for Checked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        assert!(!self.has_ended, "polled after its end");
        assert!(!self.is_polled.swap(true, SeqCst), "polled by two at a time");
        let polled = self.future.as_mut().poll(cx);
        self.has_ended = polled.is_ready();
        assert!(self.is_polled.swap(false, SeqCst), "polled by two at a time");
        polled
    }
}

impl<F> Drop for Checked<F> {
    fn drop(&mut self) {
        assert!(!self.is_polled.swap(true, SeqCst), "dropped while it is polled");
        self.alive.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A door: tasks wait for it until it is opened.
#[derive(Default)]
struct Door(Mutex<(bool, Vec<Waker>)>);

impl Door {
    fn open(&self) {
        let wakers = {
            let mut state = ignore_poison(self.0.lock());
            state.0 = true;
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Opens the door by an event of a worker's driver.
    fn open_by(&self, driver: &ModelDriver) {
        let wakers = {
            let mut state = ignore_poison(self.0.lock());
            state.0 = true;
            std::mem::take(&mut state.1)
        };
        driver.events(wakers);
    }

    async fn pass(&self) {
        poll_fn(|cx| {
            let mut state = ignore_poison(self.0.lock());
            if state.0 {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

fn check(model: fn(PolicyKind, Timers)) {
    for policy in PolicyKind::all() {
        for timers in [Timers::Never, Timers::AtOnce] {
            let runs = Arc::new(PlainU64::new(0));
            let counted = runs.clone();
            let run = move || {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                model(policy, timers);
            };
            if let Some(schedule) = REPLAY {
                let mut replay = ReplayScheduler::new_from_encoded(schedule);
                replay.set_allow_incomplete();
                Runner::new(replay, Config::default()).run(run);
                continue;
            }
            println!("{policy}, timers expire {timers:?}");
            Runner::new(RandomScheduler::new(SCHEDULES), Config::default()).run(run.clone());
            Runner::new(PctScheduler::new(PREEMPTIONS, SCHEDULES), Config::default()).run(run);
            assert_eq!(runs.load(std::sync::atomic::Ordering::Relaxed), 2 * SCHEDULES as u64);
        }
    }
}

/// A thread, tasks and a driver spawn and wake tasks, some of which yield. All tasks end and are joined.
#[test]
fn every_task_ends_whatever_wakes_it() {
    check(|policy, timers| {
        let model = Model::new(2, policy, timers);
        let doors: [Arc<Door>; 3] = Default::default();
        let waiting = doors.clone().map(|door| {
            model.spawn(async move {
                door.pass().await;
                yield_now().await;
                1
            })
        });
        let opener = thread::spawn({
            let door = doors[0].clone();
            move || door.open()
        });
        let (by_task, by_driver, driver) = (doors[1].clone(), doors[2].clone(), model.drivers[1].clone());
        let inner = Checked::new(&model.futures, async move { by_driver.open_by(&driver) });
        let chain = model.spawn(async move {
            by_task.open();
            crate::spawn(inner).await.unwrap();
        });
        for task in waiting {
            assert_eq!(block_on(task).unwrap(), 1);
        }
        block_on(chain).unwrap();
        opener.join().unwrap();
        model.end();
    });
}

/// A task that may run on one worker alone runs there, and no stealing worker loses it.
#[test]
fn a_pinned_task_stays_and_ends() {
    check(|policy, timers| {
        let model = Model::new(3, policy, timers);
        let tasks: Vec<_> = (0..3)
            .map(|worker| {
                let cpu = model.runtime.shared.workers.machine().kernel_cpu(CpuId(worker));
                let here = async move {
                    for _ in 0..2 {
                        let at = context::with_worker(|worker| worker.map(|worker| worker.me()));
                        assert_eq!(at, Some(CpuId(worker)));
                        yield_now().await;
                    }
                };
                let spawner = model.runtime.task_builder().placement(Placement::Cpu(cpu));
                spawner.spawn(Checked::new(&model.futures, here))
            })
            .collect();
        tasks.into_iter().for_each(|task| block_on(task).unwrap());
        model.end();
    });
}

/// Two last-level caches. After a worker of one cache was notified for the injection queue of the other, later tasks in
/// that queue are found too.
#[test]
fn a_notification_of_another_cache_is_not_the_last() {
    check(|policy, timers| {
        let model = Model::new(3, policy, timers);
        for _ in 0..2 {
            let tasks: [_; 3] = std::array::from_fn(|_| model.spawn(yield_now()));
            tasks.into_iter().for_each(|task| block_on(task).unwrap());
        }
        model.end();
    });
}

/// A task that the driver wakes counts as queued since its wake, and not since its worker parked. Otherwise it would be
/// stolen at once.
#[test]
fn a_task_woken_by_a_driver_is_queued_since_then() {
    check(|policy, timers| {
        let model = Model::new(1, policy, timers);
        let (door, clock) = (Arc::new(Door::default()), model.drivers[0].clock.clone());
        let opened_at = Arc::new(PlainU64::new(0));
        let tasks: [_; 2] = std::array::from_fn(|_| {
            let (door, opened_at) = (door.clone(), opened_at.clone());
            model.spawn(async move {
                door.pass().await;
                context::with_worker(|worker| {
                    let worker = worker.expect("a task runs on a worker");
                    let since = worker.shared.workers.backlog_since(worker.me()).0;
                    let is_late = since >= opened_at.load(std::sync::atomic::Ordering::SeqCst);
                    let waiting = worker.core.remote().waiting();
                    assert!(waiting == 0 || is_late, "waits since {since}");
                });
            })
        });
        while ignore_poison(door.0.lock()).1.len() < 2 || !model.runtime.shared.workers.is_idle(CpuId(0)) {
            thread::yield_now();
        }
        let slept = clock.fetch_add(1_000_000_000, std::sync::atomic::Ordering::SeqCst);
        opened_at.store(slept + 1_000_000_000, std::sync::atomic::Ordering::SeqCst);
        door.open_by(&model.drivers[0]);
        tasks.into_iter().for_each(|task| block_on(task).unwrap());
        model.end();
    });
}

/// Tasks are aborted while they wait, run or end. Each task returns or is cancelled, and its future is dropped.
#[test]
fn abort_against_run() {
    check(|policy, timers| {
        let model = Model::new(2, policy, timers);
        let door = Arc::new(Door::default());
        let tasks: [_; 2] = std::array::from_fn(|_| {
            let door = door.clone();
            model.spawn(async move {
                yield_now().await;
                door.pass().await;
            })
        });
        let handles = tasks.each_ref().map(JoinHandle::abort_handle);
        let aborter = thread::spawn(move || handles.iter().for_each(crate::AbortHandle::abort));
        door.open();
        for task in tasks {
            let aborted = block_on(task).err();
            assert!(aborted.is_none_or(|error| error.is_cancelled()));
        }
        aborter.join().unwrap();
        assert_eq!(model.futures.load(std::sync::atomic::Ordering::SeqCst), 0);
        model.end();
    });
}

/// The runtime shuts down while tasks spawn, wait and are woken: every handle becomes ready, and no future is left.
#[test]
fn a_shutdown_ends_every_task() {
    check(|policy, timers| {
        let model = Model::new(2, policy, timers);
        let (door, never) = (Arc::new(Door::default()), Arc::new(Door::default()));
        let waits = model.spawn({
            let never = never.clone();
            async move { never.pass().await }
        });
        let passes = model.spawn({
            let door = door.clone();
            async move { door.pass().await }
        });
        let futures = model.futures.clone();
        let spawns = model.spawn(async move {
            for _ in 0..2 {
                drop(crate::spawn(Checked::new(&futures, yield_now())));
                yield_now().await;
            }
        });
        let (handle, futures) = (model.runtime.handle(), model.futures.clone());
        let all = futures.clone();
        let outside = thread::spawn(move || {
            door.open();
            let late = handle.spawn(Checked::new(&futures, yield_now()));
            _ = block_on(late);
        });
        model.end_beside_others();
        assert!(block_on(waits).unwrap_err().is_cancelled());
        _ = block_on(passes);
        _ = block_on(spawns);
        outside.join().unwrap();
        drop(never);
        assert_eq!(all.load(std::sync::atomic::Ordering::SeqCst), 0, "futures outlive the runtime");
    });
}

/// A task that is left in an inbox or a queue after the shutdown does not keep the runtime in memory.
#[test]
fn a_task_spawned_after_shutdown_is_cancelled() {
    check(|policy, timers| {
        let model = Model::new(2, policy, timers);
        let (handle, shared) = (model.runtime.handle(), Arc::downgrade(&model.runtime.shared));
        model.end();
        let task = handle.spawn(async { unreachable!("it began") });
        assert!(block_on(task).unwrap_err().is_cancelled());
        drop(handle);
        assert_eq!(shared.strong_count(), 0, "something keeps the runtime");
    });
}

/// A thread hands its worker off while others wake its tasks, and the runtime shuts down meanwhile or later.
#[test]
fn a_handed_off_worker_runs_on() {
    check(|policy, timers| {
        let model = Model::new(2, policy, timers);
        let door = Arc::new(Door::default());
        let blocked = model.spawn({
            let door = door.clone();
            async move {
                let is_handed_off =
                    context::with_worker(|worker| worker.is_some_and(|worker| worker.hand_off()));
                assert!(is_handed_off);
                door.open();
                yield_now().await;
            }
        });
        let waits = model.spawn(async move { door.pass().await });
        block_on(blocked).unwrap();
        block_on(waits).unwrap();
        model.end();
    });
}

/// Two runtimes, each dropped in a task of the other: neither waits for the other, and both are freed in the end.
#[test]
fn two_runtimes_dropped_in_each_others_tasks_end() {
    check(|policy, timers| {
        let models = [Model::new(1, policy, timers), Model::new(1, policy, timers)];
        let futures = models.each_ref().map(|model| model.futures.clone());
        let shared = models.each_ref().map(|model| Arc::downgrade(&model.runtime.shared));
        let handles = models.each_ref().map(|model| model.runtime.handle());
        let [one, other] = models.map(|model| model.runtime);
        let tasks =
            [other, one].into_iter().zip(handles).zip(&futures).map(|((dropped, handle), futures)| {
                handle.spawn(Checked::new(futures, async move {
                    yield_now().await;
                    drop(dropped);
                }))
            });
        for task in tasks.collect::<Vec<_>>() {
            // The task is cancelled if the other runtime was dropped first.
            assert!(block_on(task).err().is_none_or(|error| error.is_cancelled()));
        }
        for _ in 0..YIELDS_MAX {
            if shared.iter().all(|shared| shared.strong_count() == 0) {
                break;
            }
            thread::yield_now();
        }
        for (shared, futures) in shared.iter().zip(futures) {
            assert_eq!(shared.strong_count(), 0, "something keeps a runtime");
            assert_eq!(futures.load(std::sync::atomic::Ordering::SeqCst), 0, "futures outlive a runtime");
        }
    });
}
