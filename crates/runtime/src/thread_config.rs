//! ThreadConfig: what a program sets for the threads of a runtime: their names, their stacks, and functions that they
//! call.
//!
//! A runtime whose program sets none of the functions pays one load and one branch each time that a worker parks, and
//! nothing in a poll.

use crate::error::drop_caught;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A function that threads of the runtime call.
pub(crate) type Hook = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct ThreadConfig {
    /// Returns the name of the next thread. `None`: the runtime's name and the worker's number.
    pub(crate) name: Option<Arc<dyn Fn() -> String + Send + Sync>>,
    /// In bytes. `None`: the default of `std::thread`.
    pub(crate) stack_size: Option<usize>,
    pub(crate) on_start: Option<Hook>,
    pub(crate) on_stop: Option<Hook>,
    pub(crate) on_park: Option<Hook>,
    pub(crate) on_unpark: Option<Hook>,
}

impl fmt::Debug for ThreadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, stack_size, on_start, on_stop, on_park, on_unpark } = self;
        f.debug_struct("ThreadConfig")
            .field("name", &name.as_ref().map(|_| "..."))
            .field("stack_size", stack_size)
            .field("on_start", &on_start.is_some())
            .field("on_stop", &on_stop.is_some())
            .field("on_park", &on_park.is_some())
            .field("on_unpark", &on_unpark.is_some())
            .finish()
    }
}

/// Calls a function that the program set. A panic of it does not end the thread: the panic hook has printed it, and
/// without this thread the tasks of its worker would wait for ever.
#[inline]
pub(crate) fn call(hook: &Option<Hook>) {
    if let Some(hook) = hook {
        call_caught(hook);
    }
}

#[cold]
fn call_caught(hook: &Hook) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| hook())) {
        drop_caught(panic);
    }
}
