//! JoinError: why a task returned no output.

use super::id::Id;
use std::any::Any;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Why a task returned no output: it panicked, or it was cancelled.
///
/// ```
/// # #[tokio::main]
/// # async fn main() {
/// let error = tokio::spawn(async { panic!("boom") }).await.unwrap_err();
/// assert!(error.is_panic());
/// assert_eq!(error.to_string(), format!("task {} panicked with message \"boom\"", error.id()));
/// # }
/// ```
pub struct JoinError {
    id: Id,
    reason: Reason,
}

enum Reason {
    Cancelled,
    /// In a mutex, so that the error is `Sync`.
    Panicked(Mutex<Box<dyn Any + Send>>),
}

impl JoinError {
    #[cold]
    pub(crate) fn warm(id: Id, error: warmcore_runtime::JoinError) -> Self {
        Self::new(id, error.try_into_panic().ok())
    }

    #[cold]
    pub(crate) fn tokio(id: Id, error: real::task::JoinError) -> Self {
        Self::new(id, error.try_into_panic().ok())
    }

    /// `panic` is the payload of the panic; without one the task was cancelled.
    fn new(id: Id, panic: Option<Box<dyn Any + Send>>) -> Self {
        Self { id, reason: panic.map_or(Reason::Cancelled, |panic| Reason::Panicked(Mutex::new(panic))) }
    }

    /// Whether the task was cancelled: it was aborted, or its runtime shut down.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.reason, Reason::Cancelled)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.reason, Reason::Panicked(_))
    }

    /// Returns the panic's payload, which [`resume_unwind`](std::panic::resume_unwind) takes.
    ///
    /// # Panics
    /// If the task did not panic.
    #[track_caller]
    pub fn into_panic(self) -> Box<dyn Any + Send + 'static> {
        self.try_into_panic().expect("`JoinError` reason is not a panic.")
    }

    /// Returns the panic's payload, or the error itself if the task did not panic.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send + 'static>, Self> {
        match self.reason {
            Reason::Panicked(panic) => Ok(panic.into_inner().unwrap_or_else(PoisonError::into_inner)),
            Reason::Cancelled => Err(self),
        }
    }

    /// Returns the task's id.
    pub fn id(&self) -> Id {
        self.id
    }
}

/// Calls `act` with the text of a panic, if its payload is one.
fn with_text<R>(panic: &Mutex<Box<dyn Any + Send>>, act: impl FnOnce(Option<&str>) -> R) -> R {
    let panic = panic.lock().unwrap_or_else(PoisonError::into_inner);
    let text = panic.downcast_ref::<String>().map(String::as_str);
    act(text.or_else(|| panic.downcast_ref::<&'static str>().copied()))
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match &self.reason {
            Reason::Cancelled => write!(f, "task {id} was cancelled"),
            Reason::Panicked(panic) => with_text(panic, |text| match text {
                Some(text) => write!(f, "task {id} panicked with message {text:?}"),
                None => write!(f, "task {id} panicked"),
            }),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match &self.reason {
            Reason::Cancelled => write!(f, "JoinError::Cancelled({id:?})"),
            Reason::Panicked(panic) => with_text(panic, |text| match text {
                Some(text) => write!(f, "JoinError::Panic({id:?}, {text:?}, ...)"),
                None => write!(f, "JoinError::Panic({id:?}, ...)"),
            }),
        }
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> Self {
        Self::other(match error.reason {
            Reason::Cancelled => "task was cancelled",
            Reason::Panicked(_) => "task panicked",
        })
    }
}
