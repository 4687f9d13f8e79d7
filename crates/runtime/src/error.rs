//! Errors: why a task returned no output, and why a runtime could not be built.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use warmcore_types::ignore_poison;

/// Why a task returned no output.
///
/// A panic ends its task only. The task's handle returns it as an error, with the task's name if it has one:
///
/// ```
/// let runtime = warmcore_runtime::Runtime::new()?;
/// let rows = vec![3u32, 0, 5];
/// let report = runtime.task_builder().name("report").spawn(async move {
///     rows.iter().map(|row| 60 / row).sum::<u32>()
/// });
/// let error = runtime.block_on(report).unwrap_err();
/// assert!(error.is_panic() && !error.is_cancelled());
/// assert_eq!(error.to_string(), "task \"report\" panicked: attempt to divide by zero");
/// # Ok::<(), warmcore_runtime::BuildError>(())
/// ```
pub struct JoinError {
    inner: Box<Inner>,
}

/// How a task ended.
pub(crate) type Outcome<T> = Result<T, JoinError>;

struct Inner {
    name: Option<Arc<str>>,
    /// `None`: the task was cancelled. In a mutex, so that the error is `Sync`.
    panic: Option<Mutex<Box<dyn Any + Send>>>,
}

/// A text as a field of an event or a span; without a text the field has no value. Older versions of `tracing`, which
/// adopted programs have in their lock files, take no `Option` there: 0.1.26 does not.
pub(crate) fn field<'a>(text: &'a Option<&str>) -> &'a dyn tracing::Value {
    match text {
        Some(text) => text,
        None => &tracing::field::Empty,
    }
}

impl JoinError {
    #[cold]
    pub(crate) fn cancelled(name: Option<Arc<str>>) -> Self {
        Self { inner: Box::new(Inner { name, panic: None }) }
    }

    #[cold]
    pub(crate) fn panicked(name: Option<Arc<str>>, panic: Box<dyn Any + Send>) -> Self {
        if let Some(instead) = panic_text(&*panic).and_then(instead) {
            // If the task's handle was dropped, no other report names the call to make instead. A panic of the
            // subscriber must not replace the task's outcome.
            let name = name.as_deref();
            let tell =
                || tracing::error!(name = field(&name), "a task called what tokio refuses here; {instead}");
            _ = catch_unwind(AssertUnwindSafe(tell));
        }
        Self { inner: Box::new(Inner { name, panic: Some(Mutex::new(panic)) }) }
    }

    /// Whether the task was aborted, or cancelled because the runtime shut down.
    pub fn is_cancelled(&self) -> bool {
        self.inner.panic.is_none()
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        self.inner.panic.is_some()
    }

    /// The panic's payload. `Err`: the task did not panic.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        let mut this = self;
        match this.inner.panic.take() {
            Some(panic) => Ok(ignore_poison(panic.into_inner())),
            None => Err(this),
        }
    }

    /// The panic's payload. Panics if the task was cancelled.
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
        let Some(panic) = &self.inner.panic else { return write!(f, "was cancelled") };
        write!(f, "panicked")?;
        let panic = ignore_poison(panic.lock());
        let Some(text) = panic_text(&**panic) else { return Ok(()) };
        write!(f, ": {text}")?;
        instead(text).map_or(Ok(()), |instead| write!(f, "; {instead}"))
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

/// What to call in place of the call that tokio refused with this panic. `None`: the text is none of those below. The
/// panic comes from a task of this runtime, or from a task of `tokio::spawn` whose error a task of this runtime
/// unwrapped.
fn instead(panic: &str) -> Option<&'static str> {
    /// A part of the text of tokio's panic, and what to call instead.
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

/// Drops a value. A panic meanwhile is caught, and its payload leaked, because dropping that may panic again.
pub(crate) fn drop_caught<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(panic);
    }
}

/// The text of a panic, if its payload is one.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

/// Why a runtime could not be built.
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
