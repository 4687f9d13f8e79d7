//! Park: how a thread without a driver's own waiting waits for a waker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Parked {
    thread: Thread,
    /// Written by wakes, and by the thread before each poll.
    is_woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // ORDERING: Release; pairs with the Acquire in `block_on`: the poll sees the writes that the waking thread made
        // before.
        if !self.is_woken.swap(true, Release) {
            self.thread.unpark();
        }
    }
}

/// Calls `poll` until it returns ready, and parks the thread until the waker is called in between.
pub(crate) fn block_on(poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
    let parked = Arc::new(Parked { thread: std::thread::current(), is_woken: AtomicBool::new(true) });
    let waker = Waker::from(parked.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        // ORDERING: Acquire; pairs with the Release in `wake_by_ref`.
        if parked.is_woken.swap(false, Acquire) {
            if poll(&mut cx).is_ready() {
                return;
            }
        } else {
            std::thread::park();
        }
    }
}
