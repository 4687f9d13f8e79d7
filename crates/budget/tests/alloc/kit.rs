//! Helpers for tests of the charging allocator.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;
use warmcore_budget::{Account, StockKind};

/// After this time a test counts as hung.
const NEVER: Duration = Duration::from_secs(60);

/// Runs a test on a tree of either kind, on a thread of its own; a hang fails.
pub fn on_each_kind(test: impl Fn(StockKind) + Clone + Send + 'static) {
    for kind in [StockKind::Rseq, StockKind::Atomic] {
        let (test, (done, is_done)) = (test.clone(), mpsc::channel());
        let thread = thread::spawn(move || {
            test(kind);
            let _ = done.send(());
        });
        match is_done.recv_timeout(NEVER) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("on {kind} it hangs"),
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                thread.join().unwrap_or_else(|_| panic!("on {kind} it fails"));
            }
        }
    }
}

/// Units in use by an account. What this call itself allocates is charged to no account.
pub fn used(account: &Account) -> u64 {
    account.exact_usage()
}

/// A block that the compiler cannot remove.
pub fn bytes(n: usize) -> Vec<u8> {
    std::hint::black_box(vec![0; n])
}

/// Polls once.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}
