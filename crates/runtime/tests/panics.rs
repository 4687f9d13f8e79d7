//! What a task's panic leaves behind.

mod limit;

use limit::with_workers;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::panicking;

/// A future that panics in its first poll, and in its drop if `drops_badly`. Its drop says whether a panic unwinds.
struct Panics {
    drops_badly: bool,
    sends: mpsc::Sender<bool>,
}

impl Future for Panics {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        panic!("of a poll")
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.sends.send(panicking()).unwrap();
        if self.drops_badly {
            panic!("of a drop");
        }
    }
}

#[test]
fn a_future_that_panics_is_dropped_while_the_panic_unwinds() {
    with_workers(1, |runtime| {
        for drops_badly in [false, true] {
            let (sends, dropped) = mpsc::channel();
            let error = runtime.block_on(runtime.spawn(Panics { drops_badly, sends })).unwrap_err();
            assert_eq!(error.into_panic().downcast_ref(), Some(&"of a poll"));
            assert_eq!(dropped.iter().collect::<Vec<_>>(), [true]);
        }
    });
}

/// A waker that says that it was called, and panics.
struct PanicsWhenWoken(mpsc::SyncSender<()>);

impl Wake for PanicsWhenWoken {
    fn wake(self: Arc<Self>) {
        self.0.send(()).unwrap();
        panic!("of a waker");
    }
}

#[test]
fn a_waker_that_panics_at_a_tasks_end_ends_neither_the_worker_nor_the_task() {
    with_workers(1, |runtime| {
        let (sends, woken) = mpsc::sync_channel(1);
        let (go, wait) = mpsc::channel();
        let mut task = runtime.spawn(async move { wait.recv().unwrap() });
        let waker = Waker::from(Arc::new(PanicsWhenWoken(sends)));
        assert!(Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
        go.send(42).unwrap();
        woken.recv().unwrap();
        assert_eq!(runtime.block_on(task).unwrap(), 42);
        assert_eq!(runtime.block_on(runtime.spawn(async { 43 })).unwrap(), 43);
    });
}
