//! What can go wrong: a task that did not return, a runtime that can't be made.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;

/// Why a task returned nothing.
pub struct JoinError {
    inner: Box<Inner>,
}

struct Inner {
    name: Option<Arc<str>>,
    /// `None`: it was aborted. Under a lock, so that the error is `Sync`.
    panic: Option<Mutex<Box<dyn Any + Send>>>,
}

impl JoinError {
    #[cold]
    pub(crate) fn aborted(name: Option<Arc<str>>) -> Self {
        Self { inner: Box::new(Inner { name, panic: None }) }
    }

    #[cold]
    pub(crate) fn panicked(name: Option<Arc<str>>, panic: Box<dyn Any + Send>) -> Self {
        Self { inner: Box::new(Inner { name, panic: Some(Mutex::new(panic)) }) }
    }

    /// It was aborted, or the runtime shut down.
    pub fn is_aborted(&self) -> bool {
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
            Some(panic) => Ok(panic.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())),
            None => Err(this),
        }
    }

    /// What it panicked with. Panics if it was aborted.
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
            None => write!(f, "was aborted"),
            Some(panic) => {
                let panic = panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                match crate::task::panic_text(&**panic) {
                    Some(text) => write!(f, "panicked: {text}"),
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
