//! What can go wrong: a task that did not return, a runtime that can't be made.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use warmcore_types::ignore_poison;

/// Why a task returned nothing.
pub struct JoinError {
    inner: Box<Inner>,
}

struct Inner {
    name: Option<Arc<str>>,
    /// `None`: it was cancelled. Under a lock, so that the error is `Sync`.
    panic: Option<Mutex<Box<dyn Any + Send>>>,
}

impl JoinError {
    #[cold]
    pub(crate) fn cancelled(name: Option<Arc<str>>) -> Self {
        Self { inner: Box::new(Inner { name, panic: None }) }
    }

    #[cold]
    pub(crate) fn panicked(name: Option<Arc<str>>, panic: Box<dyn Any + Send>) -> Self {
        if let Some(instead) = panic_text(&*panic).and_then(instead) {
            // The handle of the task may have been dropped: then this is all that says it. What listens may panic; the
            // task's outcome is not lost by that.
            let name = name.as_deref();
            let tell = || tracing::error!(name, "a task called what tokio refuses here; {instead}");
            _ = catch_unwind(AssertUnwindSafe(tell));
        }
        Self { inner: Box::new(Inner { name, panic: Some(Mutex::new(panic)) }) }
    }

    /// It was cancelled, or the runtime shut down.
    pub fn is_cancelled(&self) -> bool {
        self.inner.panic.is_none()
    }

    /// It panicked.
    pub fn is_panic(&self) -> bool {
        self.inner.panic.is_some()
    }

    /// What it panicked with; `Err`: it did not.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        let mut this = self;
        match this.inner.panic.take() {
            Some(panic) => Ok(ignore_poison(panic.into_inner())),
            None => Err(this),
        }
    }

    /// What it panicked with. Panics if it was cancelled.
    pub fn into_panic(self) -> Box<dyn Any + Send> {
        self.try_into_panic().unwrap_or_else(|error| panic!("into_panic, but {error}"))
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner.name {
            Some(name) => write!(f, "task {name:?} ")?,
            None => write!(f, "a task ")?,
        }
        match &self.inner.panic {
            None => write!(f, "was cancelled"),
            Some(panic) => {
                let panic = ignore_poison(panic.lock());
                match panic_text(&**panic) {
                    Some(text) => {
                        write!(f, "panicked: {text}")?;
                        instead(text).map_or(Ok(()), |instead| write!(f, "; {instead}"))
                    }
                    None => write!(f, "panicked"),
                }
            }
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

/// What to call instead of what tokio refused with this panic, in a task of ours or in one that `tokio::spawn` started
/// and whose error a task of ours unwrapped.
fn instead(panic: &str) -> Option<&'static str> {
    /// A part of what tokio's panic says, and what to do here.
    const REFUSALS: [(&str, &str); 7] = [
        (
            "can call blocking only when running on the multi-threaded runtime",
            "call warmcore::block_in_place, in a task that warmcore::spawn started",
        ),
        (
            "Cannot start a runtime from within a runtime",
            "await the future, or block on it inside warmcore::block_in_place, in a task that warmcore::spawn started",
        ),
        (
            "Cannot block the current thread from within a runtime",
            "block inside warmcore::block_in_place, in a task that warmcore::spawn started",
        ),
        (
            "Cannot drop a runtime in a context where blocking is not allowed",
            "drop it inside warmcore::block_in_place, in a task that warmcore::spawn started",
        ),
        (
            "`spawn_local` called from outside of a `task::LocalSet`",
            "use warmcore::spawn for what is Send; for the rest run a LocalSet in Runtime::block_on",
        ),
        (
            "Can't get a task id when not inside a task",
            "give the task a name with warmcore::task_builder().name(..); only tokio's own tasks have its ids",
        ),
        (
            "there is no reactor running",
            "call it in a task, or inside Runtime::enter or Handle::enter of warmcore's",
        ),
    ];
    REFUSALS.iter().find(|(refusal, _)| panic.contains(refusal)).map(|(_, instead)| *instead)
}

/// What a panic said, if it said something.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

/// Why a runtime can't be made.
#[derive(Debug)]
pub struct BuildError {
    pub(crate) what: String,
    pub(crate) source: Option<io::Error>,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
