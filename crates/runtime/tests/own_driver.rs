//! A runtime on drivers that the program brings: tasks run, wake each other and sleep without tokio, and the workers'
//! drivers are the program's.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use warmcore_runtime::driver::{Driver, Entered};
use warmcore_runtime::{Builder, Runtime, yield_now};
use warmcore_types::Nanos;

/// What the drivers of a runtime did, together.
#[derive(Default)]
struct Counts {
    made: Mutex<BTreeSet<usize>>,
    parks: AtomicUsize,
    closed: AtomicUsize,
}

/// A driver that parks on a condition variable and has no sockets.
struct Parker {
    counts: Arc<Counts>,
    began: Instant,
    is_unparked: Mutex<bool>,
    condvar: Condvar,
}

impl Driver for Parker {
    fn now(&self) -> Nanos {
        Nanos(1 + self.began.elapsed().as_nanos() as u64)
    }

    fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool) {
        self.counts.parks.fetch_add(1, Relaxed);
        let mut is_unparked = self.is_unparked.lock().unwrap();
        while !*is_unparked && !is_awake() {
            is_unparked = match until.map(|until| until.0.saturating_sub(self.now().0)) {
                Some(0) => break,
                Some(rest) => self.condvar.wait_timeout(is_unparked, Duration::from_nanos(rest)).unwrap().0,
                None => self.condvar.wait(is_unparked).unwrap(),
            };
        }
        *is_unparked = false;
    }

    fn poll_events(&self) {}

    fn unpark(&self) {
        *self.is_unparked.lock().unwrap() = true;
        self.condvar.notify_one();
    }

    fn wake_at(&self, _at: Nanos) {
        self.unpark();
    }

    fn enter(&self) -> Entered<'_> {
        Entered::none()
    }

    fn close(&self) {
        self.counts.closed.fetch_add(1, Relaxed);
    }
}

fn on_parkers(workers: usize) -> (Builder, Arc<Counts>) {
    let (counts, began) = (Arc::new(Counts::default()), Instant::now());
    let of = counts.clone();
    let make = move |worker| {
        of.made.lock().unwrap().insert(worker);
        let (counts, is_unparked, condvar) = (of.clone(), Mutex::default(), Condvar::new());
        Ok(Box::new(Parker { counts, began, is_unparked, condvar }) as Box<dyn Driver>)
    };
    (Runtime::builder().worker_threads(workers).driver(make), counts)
}

#[test]
fn tasks_run_on_drivers_of_the_program() {
    let (builder, counts) = on_parkers(3);
    let runtime = builder.build().unwrap();
    let (out, numbers) = channel();
    let tasks: Vec<_> = (0..100)
        .map(|number| {
            let out = out.clone();
            runtime.spawn(async move {
                for _ in 0..10 {
                    yield_now().await;
                }
                out.send(number).unwrap();
                number
            })
        })
        .collect();
    let sum = runtime.block_on(async {
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        sum
    });
    assert_eq!(sum, 99 * 100 / 2);
    drop(out);
    assert_eq!(numbers.into_iter().collect::<BTreeSet<usize>>().len(), 100);
    // A wake from a thread outside, while the workers are parked.
    let before = counts.parks.load(Relaxed);
    while counts.parks.load(Relaxed) < before + 3 && runtime.metrics().workers.iter().any(|w| !w.is_idle) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(runtime.block_on(runtime.spawn(async { 7 })).unwrap(), 7);
    assert_eq!(*counts.made.lock().unwrap(), BTreeSet::from([0, 1, 2]));
    drop(runtime);
    assert_eq!(counts.closed.load(Relaxed), 3);
    assert!(counts.parks.load(Relaxed) > 0);
}

#[test]
fn a_driver_that_cannot_be_made_is_an_error_of_build() {
    let refuse = |worker: usize| Err(io::Error::other(format!("none for worker {worker}")));
    let error = Runtime::builder().worker_threads(2).driver(refuse).build().unwrap_err();
    assert_eq!(error.to_string(), "can't make a worker's driver: none for worker 0");
}

#[cfg(not(feature = "tokio"))]
#[test]
fn without_tokio_a_runtime_needs_a_driver() {
    let error = Runtime::builder().build().unwrap_err().to_string();
    assert!(error.contains("feature `tokio`") && error.contains("Builder::driver"), "{error}");
}

#[test]
fn such_a_runtime_enters_no_context_of_tokio_s() {
    let (builder, _counts) = on_parkers(1);
    let runtime = builder.build().unwrap();
    let is_inside =
        runtime.block_on(runtime.spawn(async { tokio::runtime::Handle::try_current().is_ok() })).unwrap();
    assert!(!is_inside);
    let guard = runtime.enter();
    assert!(tokio::runtime::Handle::try_current().is_err());
    assert_eq!(runtime.block_on(warmcore_runtime::spawn(async { 1 })).unwrap(), 1);
    drop(guard);
}
