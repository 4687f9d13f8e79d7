//! Hooked: calls the runtime's task hooks for a task, on Warmcore's scheduler and on tokio's alike.

use super::id::Id;
use crate::runtime::{Handle, TaskHooks, TaskMeta};
use pin_project_lite::pin_project;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

pin_project! {
    /// A task's future. `hooks` is `None` if the runtime has no task hooks.
    pub(crate) struct Hooked<F> {
        id: Id,
        spawned_at: &'static Location<'static>,
        hooks: Option<Arc<TaskHooks>>,
        // `None` only within `drop`.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Hooked<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            this.future.set(None);
            if let Some(hooks) = this.hooks {
                hooks.on_terminate(&TaskMeta::new(*this.id, this.spawned_at));
            }
        }
    }
}

impl<F> Hooked<F> {
    /// The hook for spawned tasks is called here.
    #[track_caller]
    pub(crate) fn new(handle: &Handle, id: Id, future: F) -> Self {
        let (spawned_at, hooks) = (Location::caller(), handle.task_hooks());
        if let Some(hooks) = &hooks {
            hooks.on_spawn(&TaskMeta::new(id, spawned_at));
        }
        Self { id, spawned_at, hooks, future: Some(future) }
    }
}

impl<F: Future> Future for Hooked<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let future = this.future.as_pin_mut().expect("it is polled before its drop");
        let Some(hooks) = this.hooks else { return future.poll(cx) };
        let meta = TaskMeta::new(*this.id, this.spawned_at);
        hooks.before_poll(&meta);
        let _after = AfterPoll { hooks, meta };
        future.poll(cx)
    }
}

/// Calls the hook after a poll, whether the poll returns or panics.
struct AfterPoll<'a> {
    hooks: &'a TaskHooks,
    meta: TaskMeta<'a>,
}

impl Drop for AfterPoll<'_> {
    fn drop(&mut self) {
        self.hooks.after_poll(&self.meta);
    }
}
