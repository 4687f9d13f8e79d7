//! The driver over tokio, from outside: parks and what ends them, its context, its settings, and the budget of operations.
//!
//! A park that should end has a limit of a minute, and the test fails if the limit ended it.
#![cfg(target_os = "linux")]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::thread::scope;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use warmcore_driver::{
    Driver, OpBudget, TokioDriver, TokioDriverConfig, TokioReactor, is_inside_tokio, sleep, unconstrained,
};
use warmcore_types::Nanos;

const LIMIT: Duration = Duration::from_secs(60);

fn driver() -> TokioDriver {
    TokioDriver::new(TokioDriverConfig::new("test")).unwrap()
}

/// Parks until `is_awake` returns true, and fails at the limit.
fn park(driver: &TokioDriver, is_awake: &dyn Fn() -> bool) {
    let began = Instant::now();
    while !is_awake() {
        let until = Nanos(driver.now().0 + LIMIT.as_nanos() as u64);
        driver.park(Some(until), is_awake);
        assert!(began.elapsed() < LIMIT);
    }
}

/// Calls `act` on another thread once a call of the returned function says that this thread parks.
fn while_parking(act: impl FnOnce() + Send, park: impl FnOnce(&dyn Fn())) {
    let is_parking = &AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(move || {
            while !is_parking.load(SeqCst) {
                std::thread::yield_now();
            }
            act();
        });
        park(&|| is_parking.store(true, SeqCst));
    });
}

#[test]
fn an_unpark_before_a_park_or_during_it_ends_the_park() {
    let (driver, is_awake) = (&driver(), &AtomicBool::new(false));
    let unpark = || {
        is_awake.store(true, SeqCst);
        driver.unpark();
    };
    unpark();
    park(driver, &|| is_awake.load(SeqCst));
    is_awake.store(false, SeqCst);
    while_parking(unpark, |parking| {
        park(driver, &|| {
            let is_awake = is_awake.load(SeqCst);
            parking();
            is_awake
        });
    });
}

#[test]
fn a_park_ends_at_its_time_and_at_an_earlier_one_that_another_thread_sets() {
    let driver = &driver();
    let in_ms = |ms: u64| Nanos(driver.now().0 + ms * 1_000_000);
    let began = driver.now();
    driver.park(Some(in_ms(5)), &|| false);
    // The kernel's clock may differ a little from the driver's.
    assert!(driver.now().0 - began.0 >= 4_000_000);
    let began = Instant::now();
    let set = || driver.wake_at(in_ms(5));
    while_parking(set, |parking| {
        driver.park(Some(in_ms(60_000)), &|| {
            parking();
            false
        });
    });
    assert!(began.elapsed() < LIMIT);
}

#[test]
fn a_parked_driver_serves_timers_and_tasks_of_tokio_s() {
    let driver = Arc::new(driver());
    let slept = Arc::new(AtomicBool::new(false));
    let (sets, of) = (slept.clone(), driver.clone());
    let task = {
        let _entered = driver.enter();
        assert!(is_inside_tokio());
        tokio::spawn(async move {
            sleep(Duration::from_millis(2)).await;
            sets.store(true, SeqCst);
            of.unpark();
        })
    };
    assert!(!is_inside_tokio());
    assert_eq!(driver.foreign_tasks(), 1);
    let before = driver.run_seq();
    park(&driver, &|| slept.load(SeqCst));
    assert!(task.is_finished() && driver.foreign_tasks() == 0);
    // Even while no thread is in the driver.
    let after = driver.run_seq();
    assert!(after > before && (before | after) & 1 == 0, "{before} {after}");
    // Serving without a wait runs a task that is ready.
    let ready = {
        let _entered = driver.enter();
        tokio::spawn(async {})
    };
    driver.poll_events();
    assert!(ready.is_finished());
}

#[test]
fn the_settings_are_kept() {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    static NAMED: AtomicUsize = AtomicUsize::new(0);
    const STACK: usize = 16 << 20;
    let config = TokioDriverConfig {
        thread_name: Arc::new(|| format!("blocking-{}", NAMED.fetch_add(1, SeqCst))),
        thread_stack_size: Some(STACK),
        thread_keep_alive: Some(Duration::from_millis(1)),
        enable_time: false,
        on_run: || _ = RUNS.fetch_add(1, SeqCst),
        clock: || Nanos(7),
        ..TokioDriverConfig::new("test")
    };
    let driver = TokioDriver::new(config).unwrap();
    assert_eq!(driver.now(), Nanos(7));
    let entered = driver.enter();
    let (out, threads) = channel();
    let call = || {
        let out = out.clone();
        tokio::task::spawn_blocking(move || {
            // Half of the stack, and more than a thread has if no size is set.
            let deep = [1_u8; STACK / 2];
            let sum: usize = std::hint::black_box(&deep).iter().map(|byte| usize::from(*byte)).sum();
            out.send((sum, std::thread::current().name().map(str::to_owned))).unwrap();
        });
        threads.recv_timeout(LIMIT).unwrap()
    };
    assert_eq!(call(), (STACK / 2, Some("blocking-0".to_owned())));
    // The first thread ends soon, and then another one is named.
    let began = Instant::now();
    while call().1.as_deref() == Some("blocking-0") {
        assert!(began.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(10));
    }
    let sleeps = std::panic::catch_unwind(|| tokio::time::sleep(Duration::ZERO));
    assert!(sleeps.is_err(), "without timers");
    drop(entered);
    // The driver runs again after a wait. The timer ends the wait: an unpark that comes before the thread waits would
    // end the park without a wait.
    let before = RUNS.load(SeqCst);
    driver.park(Some(Nanos(driver.now().0 + 5_000_000)), &|| false);
    assert!(RUNS.load(SeqCst) > before);
}

/// Receives from a channel that is never empty. Returns the number of operations until one is refused.
fn operations(at_most: usize) -> usize {
    let (out, mut messages) = mpsc::unbounded_channel();
    (0..=at_most).for_each(|n| out.send(n).unwrap());
    let mut cx = Context::from_waker(Waker::noop());
    (0..at_most).take_while(|_| pin!(poll_fn(|cx| messages.poll_recv(cx))).poll(&mut cx).is_ready()).count()
}

#[test]
fn polls_that_share_a_budget_do_127_operations_and_a_closure_outside_of_it_any_number() {
    let thread = std::thread::spawn(|| {
        let without_budget = operations(1000);
        let budget = OpBudget::new();
        budget.begin_poll();
        let in_one_poll = operations(1000);
        let outside = unconstrained(|| operations(1000));
        let still_empty = operations(1000);
        budget.begin_poll();
        (without_budget, in_one_poll, outside, still_empty, operations(1000))
    });
    assert_eq!(thread.join().unwrap(), (1000, 127, 1000, 0, 127));
}

#[test]
fn closing_waits_for_blocking_operations_only_if_that_is_set() {
    for close_waits in [true, false] {
        let driver =
            TokioDriver::new(TokioDriverConfig { close_waits, ..TokioDriverConfig::new("test") }).unwrap();
        let is_done = Arc::new(AtomicBool::new(false));
        let (sets, (begun, begins), (end, ends)) = (is_done.clone(), channel(), channel::<()>());
        {
            let _entered = driver.enter();
            tokio::task::spawn_blocking(move || {
                begun.send(()).unwrap();
                // Ends by itself only where the close waits for it.
                let limit = if close_waits { Duration::from_millis(20) } else { LIMIT };
                _ = ends.recv_timeout(limit);
                sets.store(true, SeqCst);
            });
        }
        begins.recv_timeout(LIMIT).unwrap();
        driver.close();
        assert_eq!(is_done.load(SeqCst), close_waits);
        drop(end);
    }
}

#[test]
fn a_closed_driver_returns_at_once_and_its_sockets_fail() {
    let driver = driver();
    driver.close();
    driver.park(None, &|| false);
    driver.poll_events();
    driver.unpark();
    driver.wake_at(Nanos(0));
    let _entered = driver.enter();
    let socket = pin!(tokio::net::TcpStream::connect("127.0.0.1:1"));
    let outcome = socket.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(outcome, Poll::Ready(Err(_))), "{outcome:?}");
}

/// Two drivers of one reactor.
fn two() -> [TokioDriver; 2] {
    let reactor = Arc::new(TokioReactor::new(TokioDriverConfig::new("test")).unwrap());
    [TokioDriver::on(&reactor), TokioDriver::on(&reactor)]
}

/// Starts a task on the driver that ends after two milliseconds, and returns whether it has ended.
fn timer_on(driver: &TokioDriver) -> impl Fn() -> bool {
    let _entered = driver.enter();
    let task = tokio::spawn(sleep(Duration::from_millis(2)));
    move || task.is_finished()
}

#[test]
fn of_two_workers_that_share_sockets_and_timers_each_is_unparked_where_it_is() {
    let drivers = two();
    let [awake, parked] = [[false; 2], [false; 2]].map(|both| both.map(AtomicBool::new));
    for _ in 0..100 {
        scope(|scope| {
            for n in 0..2 {
                let (driver, is_awake, is_parked) = (&drivers[n], &awake[n], &parked[n]);
                scope.spawn(move || {
                    park(driver, &|| {
                        is_parked.store(true, SeqCst);
                        is_awake.load(SeqCst)
                    });
                });
            }
            for n in 0..2 {
                while !parked[n].load(SeqCst) {
                    std::thread::yield_now();
                }
                awake[n].store(true, SeqCst);
                drivers[n].unpark();
            }
        });
        awake.iter().chain(&parked).for_each(|flag| flag.store(false, SeqCst));
    }
}

/// The first worker that parks serves the timers of both. While it is awake for long and serves nothing, the second one,
/// which sleeps beside, does so after it has slept until its time.
#[test]
fn a_worker_that_stays_awake_is_replaced_by_one_that_slept_while_no_thread_served() {
    let [first, second] = &two();
    let has_ended = timer_on(second);
    while !has_ended() {
        first.park(Some(Nanos(first.now().0 + 1_000_000)), &|| false);
    }
    let has_ended = timer_on(first);
    let in_ms = |ms: u64| Some(Nanos(second.now().0 + ms * 1_000_000));
    second.park(in_ms(5), &|| false);
    assert!(!has_ended(), "it slept beside");
    let began = Instant::now();
    while !has_ended() {
        second.park(in_ms(10), &|| false);
        assert!(began.elapsed() < LIMIT, "no thread serves");
    }
    // From now on the first one sleeps beside.
    let has_ended = timer_on(first);
    first.park(in_ms(5), &|| false);
    assert!(!has_ended());
}

#[test]
fn a_worker_that_would_park_where_another_thread_serves_is_unparked_when_that_leaves() {
    let [first, second] = &two();
    let (begun, begins) = channel();
    let (end, ends) = channel::<()>();
    {
        let _entered = first.enter();
        tokio::spawn(async move {
            begun.send(()).unwrap();
            _ = ends.recv_timeout(LIMIT);
        });
    }
    scope(|scope| {
        scope.spawn(|| second.poll_events());
        begins.recv_timeout(LIMIT).unwrap();
        let parks = scope.spawn(|| {
            let began = Instant::now();
            first.park(Some(Nanos(first.now().0 + LIMIT.as_nanos() as u64)), &|| false);
            began.elapsed()
        });
        std::thread::sleep(Duration::from_millis(10));
        drop(end);
        assert!(parks.join().unwrap() < LIMIT);
    });
    // It is the attendant: it serves.
    let has_ended = timer_on(second);
    let began = Instant::now();
    while !has_ended() {
        first.park(Some(Nanos(first.now().0 + 10_000_000)), &|| false);
        assert!(began.elapsed() < LIMIT);
    }
}

#[test]
fn a_time_that_another_thread_sets_ends_the_park_of_a_worker_beside() {
    let [first, second] = &two();
    // The first one attends.
    first.park(Some(Nanos(first.now().0 + 1_000_000)), &|| false);
    let began = Instant::now();
    let set = || second.wake_at(Nanos(second.now().0 + 5_000_000));
    while_parking(set, |parking| {
        second.park(Some(Nanos(second.now().0 + LIMIT.as_nanos() as u64)), &|| {
            parking();
            false
        });
    });
    assert!(began.elapsed() < LIMIT);
}

#[test]
fn sockets_and_timers_that_workers_share_are_closed_with_the_last_worker() {
    let [first, second] = &two();
    first.close();
    first.close();
    let has_ended = timer_on(first);
    let began = Instant::now();
    while !has_ended() {
        second.park(Some(Nanos(second.now().0 + 10_000_000)), &|| false);
        assert!(began.elapsed() < LIMIT);
    }
    second.close();
    let _entered = second.enter();
    let socket = pin!(tokio::net::TcpStream::connect("127.0.0.1:1"));
    let outcome = socket.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(outcome, Poll::Ready(Err(_))), "{outcome:?}");
}
