use super::*;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[derive(Default)]
struct Counts(AtomicU32);

impl task::Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_future_that_is_not_recorded_is_polled_with_the_runtimes_waker() {
    let waker = Waker::from(Arc::new(Counts::default()));
    let inner = std::future::poll_fn(|cx| Poll::<bool>::Ready(cx.waker().will_wake(&waker)));
    let mut future = std::pin::pin!(record(inner));
    assert_eq!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(true));
}

#[test]
fn the_waker_passes_a_wake_on_and_notes_the_first() {
    let counts = Arc::new(Counts::default());
    let recording = Arc::new(OwnWaker { wake: Wake::new((0, 0)), inner: Waker::from(counts.clone()) });
    let waker = Waker::from(recording.clone());
    waker.wake_by_ref();
    waker.wake();
    assert_eq!(counts.0.load(Relaxed), 2);
    assert_eq!(recording.wake.take().0, 0, "the recorder is off");
}
