//! Unlisted: a `block_on` of tokio's that `tokio-console` does not list as a task.
//!
//! With `--cfg tokio_unstable` and its feature `tracing`, tokio reports each `block_on` as a task. Those of a driver are no
//! tasks of the program: their spans are made without a subscriber.

#[cfg(not(tokio_unstable))]
pub(crate) use std::convert::identity as unlisted;

/// Returns a future for the next `block_on` on this thread. The subscriber is back before the future's first poll.
#[cfg(tokio_unstable)]
pub(crate) fn unlisted<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let unseen = tracing::subscriber::set_default(tracing::subscriber::NoSubscriber::default());
    async move {
        drop(unseen);
        future.await
    }
}
