//! Identified: what belongs to a task, with the task's id.
//!
//! A task's future, the closure of `spawn_blocking` and the output of both are wrapped. While the value is polled,
//! called or dropped, `task::id()` returns the task's id. That costs two writes of a thread-local variable.

use super::id::{CurrentTask, Id};
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project! {
    /// A future, a closure or an output of a task.
    pub(crate) struct Identified<V> {
        id: Id,
        // `None`: it was taken. A future is not taken; it is in an `Option` so that `drop` can drop it in place.
        #[pin]
        value: Option<V>,
    }

    impl<V> PinnedDrop for Identified<V> {
        fn drop(this: Pin<&mut Self>) {
            if std::mem::needs_drop::<V>() && this.value.is_some() {
                let _current = CurrentTask::enter(this.id);
                this.project().value.set(None);
            }
        }
    }
}

impl<V> Identified<V> {
    #[inline]
    pub(crate) fn new(id: Id, value: V) -> Self {
        Self { id, value: Some(value) }
    }

    /// Takes the value, which from now on is not dropped as the task's.
    #[inline]
    pub(crate) fn into_inner(mut self) -> V {
        self.value.take().expect("it is taken once")
    }
}

impl<F: Future> Future for Identified<F> {
    type Output = Identified<F::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        crate::count::count_poll();
        let this = self.project();
        let _current = CurrentTask::enter(*this.id);
        let future = this.value.as_pin_mut().expect("a future is not taken");
        future.poll(cx).map(|output| Identified::new(*this.id, output))
    }
}

impl<F: FnOnce() -> R, R> Identified<F> {
    /// Calls the closure.
    pub(crate) fn call(mut self) -> Identified<R> {
        let _current = CurrentTask::enter(self.id);
        let act = self.value.take().expect("a closure is called once");
        Identified::new(self.id, act())
    }
}

#[cfg(test)]
mod tests;
