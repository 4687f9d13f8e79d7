//! AbortHandle: aborts a task, without waiting for it.

use super::id::Id;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

/// Aborts a task; [`JoinHandle::abort_handle`](super::JoinHandle::abort_handle) and the functions of
/// [`JoinSet`](super::JoinSet) that spawn return one. Dropping it does not affect the task.
#[derive(Clone)]
pub struct AbortHandle {
    id: Id,
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    Warm(warmcore_runtime::AbortHandle),
    Tokio(real::task::AbortHandle),
}

impl UnwindSafe for AbortHandle {}
impl RefUnwindSafe for AbortHandle {}

impl AbortHandle {
    pub(crate) fn warm(id: Id, handle: warmcore_runtime::AbortHandle) -> Self {
        Self { id, inner: Inner::Warm(handle) }
    }

    pub(crate) fn tokio(id: Id, handle: real::task::AbortHandle) -> Self {
        Self { id, inner: Inner::Tokio(handle) }
    }

    /// As [`JoinHandle::abort`](super::JoinHandle::abort).
    pub fn abort(&self) {
        match &self.inner {
            Inner::Warm(handle) => handle.abort(),
            Inner::Tokio(handle) => handle.abort(),
        }
    }

    /// As [`JoinHandle::is_finished`](super::JoinHandle::is_finished).
    pub fn is_finished(&self) -> bool {
        match &self.inner {
            Inner::Warm(handle) => handle.is_finished(),
            Inner::Tokio(handle) => handle.is_finished(),
        }
    }

    /// Returns the task's id.
    pub fn id(&self) -> Id {
        self.id
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("id", &self.id).finish()
    }
}
