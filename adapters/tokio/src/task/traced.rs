//! Traced: the span and the waker events of a task, in the form that `tokio-console` reads.
//!
//! Tokio reports its own tasks so. For a task on Warmcore's scheduler this does the same: the task is polled and dropped
//! in a span `runtime.spawn` of the target `tokio::task`, and each clone, drop and wake of its waker is an event of the
//! target `tokio::task::waker` with the span's id. Without a subscriber for the span, a poll is not changed.

use super::id::Id;
use pin_project_lite::pin_project;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use tracing::instrument::{Instrument, Instrumented};

pin_project! {
    /// A task's future in its span.
    pub(crate) struct Traced<F> {
        #[pin]
        future: Instrumented<F>,
        // The waker of the last poll, if there is a subscriber for the span.
        waker: Option<TracedWaker>,
    }
}

impl<F> Traced<F> {
    /// The span's location is that of the caller.
    #[track_caller]
    pub(crate) fn new(kind: &str, id: Id, name: Option<&str>, future: F) -> Self {
        let spawned_at = Location::caller();
        let span = tracing::trace_span!(
            target: "tokio::task",
            parent: None,
            "runtime.spawn",
            kind = %kind,
            task.name = %name.unwrap_or_default(),
            task.id = id.as_u64(),
            size.bytes = size_of::<F>(),
            loc.file = spawned_at.file(),
            loc.line = spawned_at.line(),
            loc.col = spawned_at.column(),
        );
        Self { future: future.instrument(span), waker: None }
    }
}

impl<F: Future> Future for Traced<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(span) = this.future.span().id() else { return this.future.poll(cx) };
        if !this.waker.as_ref().is_some_and(|last| last.shared.inner.will_wake(cx.waker())) {
            *this.waker = Some(TracedWaker::new(span.into_u64(), cx.waker().clone()));
        }
        let waker = this.waker.as_ref().expect("it was set above");
        this.future.poll(&mut Context::from_waker(&waker.waker))
    }
}

struct Shared {
    /// The id of the task's span.
    span: u64,
    /// The scheduler's waker of the task.
    inner: Waker,
}

impl Shared {
    fn report(&self, operation: &'static str) {
        tracing::trace!(target: "tokio::task::waker", op = operation, task.id = self.span);
    }
}

/// A waker that reports, and what it refers to.
struct TracedWaker {
    shared: Arc<Shared>,
    /// Refers to `shared` but owns no reference, so that its drop, which is not the program's, is not reported.
    waker: ManuallyDrop<Waker>,
}

impl TracedWaker {
    fn new(span: u64, inner: Waker) -> Self {
        let shared = Arc::new(Shared { span, inner });
        // SAFETY: the functions of `VTABLE` expect a pointer to a `Shared` that is in an `Arc`, and each waker but this
        // one owns a reference. This one is neither dropped nor woken by value, and `shared` lives as long as it.
        let waker = ManuallyDrop::new(unsafe { Waker::new(Arc::as_ptr(&shared).cast(), &VTABLE) });
        Self { shared, waker }
    }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// # Safety
/// `shared` came from an `Arc<Shared>` that lives.
unsafe fn clone(shared: *const ()) -> RawWaker {
    let shared: *const Shared = shared.cast();
    // SAFETY: as the caller guarantees.
    unsafe {
        (*shared).report("waker.clone");
        Arc::increment_strong_count(shared);
    }
    RawWaker::new(shared.cast(), &VTABLE)
}

/// # Safety
/// `shared` came from an `Arc<Shared>`, of which the waker owns a reference.
unsafe fn wake(shared: *const ()) {
    // SAFETY: as the caller guarantees.
    let shared = unsafe { Arc::from_raw(shared.cast::<Shared>()) };
    shared.report("waker.wake");
    shared.inner.wake_by_ref();
}

/// # Safety
/// `shared` came from an `Arc<Shared>` that lives.
unsafe fn wake_by_ref(shared: *const ()) {
    // SAFETY: as the caller guarantees.
    let shared = unsafe { &*shared.cast::<Shared>() };
    shared.report("waker.wake_by_ref");
    shared.inner.wake_by_ref();
}

/// # Safety
/// `shared` came from an `Arc<Shared>`, of which the waker owns a reference.
unsafe fn drop_waker(shared: *const ()) {
    // SAFETY: as the caller guarantees.
    let shared = unsafe { Arc::from_raw(shared.cast::<Shared>()) };
    shared.report("waker.drop");
}

#[cfg(test)]
mod tests;
