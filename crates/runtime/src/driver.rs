//! Driver: tokio's own runtime as the sockets and timers of one worker.
//!
//! Model.   A current-thread runtime per worker. Its context is entered once, for as long as the worker lives;
//!          its driver runs only inside `block_on`, which is where the worker parks. A wake while parked makes
//!          the parked future ready by its waker, which writes to the driver's event descriptor. Waits shorter
//!          than tokio's millisecond end by a timer descriptor on the same driver.
//! Number.  To ask without waiting: 450 ns. To sleep and be kicked: 5 to 15 µs, the kernel's.
//! Writers. The worker's thread parks; any thread kicks, and turns the driver of one that is in a long poll.

use crate::host::Host;
use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::sync::RwLock;
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};
use warmcore_sys::clock;
use warmcore_sys::timer::Timer;
use warmcore_terms::Nanos;

pub(crate) struct Tokio {
    handle: tokio::runtime::Handle,
    /// `None`: closed.
    runtime: RwLock<Option<Runtime>>,
    /// Of the parked future; it is the same every time.
    waker: OnceLock<Waker>,
    timer: RwLock<Option<AsyncFd<Timer>>>,
}

impl Tokio {
    pub(crate) fn new(name: &str, blocking_threads_max: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name(format!("{name}-blocking"))
            .max_blocking_threads(blocking_threads_max)
            .build()?;
        let handle = runtime.handle().clone();
        let timer = {
            let _context = handle.enter();
            // SAFETY: the timer owns its descriptor and never gives it to anybody else.
            unsafe { AsyncFd::register(Timer::new()?) }?
        };
        let (runtime, timer) = (RwLock::new(Some(runtime)), RwLock::new(Some(timer)));
        Ok(Self { handle, runtime, waker: OnceLock::new(), timer })
    }

    fn drive<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let runtime = self.runtime.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        runtime.as_ref().map(|runtime| runtime.block_on(future))
    }
}

impl Host for Tokio {
    fn now(&self) -> Nanos {
        clock::now()
    }

    fn park(&self, until: Option<Nanos>, is_awake: &dyn Fn() -> bool) {
        let timer = self.timer.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let timer = timer.as_ref().zip(until);
        if let Some((timer, until)) = timer {
            let rest = until.0.saturating_sub(self.now().0);
            // A timer that can't be set is as one that rings at once: the caller looks again.
            if rest == 0 || timer.get_ref().set(Duration::from_nanos(rest)).is_err() {
                return self.turn();
            }
        }
        self.drive(poll_fn(|cx| {
            self.waker.get_or_init(|| cx.waker().clone());
            if is_awake() {
                return Poll::Ready(());
            }
            match timer.map(|(timer, _)| timer.poll_read_ready(cx)) {
                None | Some(Poll::Pending) => Poll::Pending,
                Some(Poll::Ready(rang)) => {
                    if let Ok(mut rang) = rang {
                        rang.clear_ready();
                    }
                    Poll::Ready(())
                }
            }
        }));
        if let Some((timer, _)) = timer {
            timer.get_ref().stop();
        }
    }

    fn turn(&self) {
        let mut asked = false;
        self.drive(poll_fn(|cx| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    fn kick(&self) {
        // Without a waker nobody has parked yet; who is about to, looks at `is_awake` after it is set.
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    fn within(&self, act: &mut dyn FnMut()) {
        let _context = self.handle.enter();
        act();
    }

    fn foreign_tasks(&self) -> usize {
        self.handle.metrics().num_alive_tasks()
    }

    fn close(&self) {
        self.timer.write().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let runtime = self.runtime.write().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }

    fn handle(&self) -> Option<tokio::runtime::Handle> {
        Some(self.handle.clone())
    }
}
