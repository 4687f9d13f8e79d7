//! Builder: spawns a task with a name on a `JoinSet`.

use super::JoinSet;
use crate::runtime::Handle;
use crate::task::{self, AbortHandle, LocalSet};
use std::fmt;
use std::future::Future;
use std::io;

/// Gives a task a name and spawns it on a [`JoinSet`]; [`JoinSet::build_task`] returns one.
#[must_use = "builders do nothing unless used to spawn a task"]
pub struct Builder<'a, T> {
    set: &'a mut JoinSet<T>,
    builder: task::Builder<'a>,
}

impl<'a, T: 'static> Builder<'a, T> {
    pub(super) fn new(set: &'a mut JoinSet<T>) -> Self {
        Self { set, builder: task::Builder::new() }
    }

    /// Sets the task's name.
    pub fn name(self, name: &'a str) -> Self {
        Self { builder: self.builder.name(name), ..self }
    }

    /// As [`JoinSet::spawn`].
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> io::Result<AbortHandle>
    where
        F: Future<Output = T>,
        F: Send + 'static,
        T: Send,
    {
        Ok(self.set.insert(self.builder.spawn(future)?))
    }

    /// As [`JoinSet::spawn_on`].
    #[track_caller]
    pub fn spawn_on<F>(self, future: F, handle: &Handle) -> io::Result<AbortHandle>
    where
        F: Future<Output = T>,
        F: Send + 'static,
        T: Send,
    {
        Ok(self.set.insert(self.builder.spawn_on(future, handle)?))
    }

    /// As [`JoinSet::spawn_blocking`], but returns an error if the pool refuses the closure.
    #[track_caller]
    pub fn spawn_blocking<F>(self, act: F) -> io::Result<AbortHandle>
    where
        F: FnOnce() -> T,
        F: Send + 'static,
        T: Send,
    {
        Ok(self.set.insert(self.builder.spawn_blocking(act)?))
    }

    /// As [`JoinSet::spawn_blocking_on`], but returns an error if the pool refuses the closure.
    #[track_caller]
    pub fn spawn_blocking_on<F>(self, act: F, handle: &Handle) -> io::Result<AbortHandle>
    where
        F: FnOnce() -> T,
        F: Send + 'static,
        T: Send,
    {
        Ok(self.set.insert(self.builder.spawn_blocking_on(act, handle)?))
    }

    /// As [`JoinSet::spawn_local`].
    #[track_caller]
    pub fn spawn_local<F>(self, future: F) -> io::Result<AbortHandle>
    where
        F: Future<Output = T>,
        F: 'static,
    {
        Ok(self.set.insert(self.builder.spawn_local(future)?))
    }

    /// As [`JoinSet::spawn_local_on`].
    #[track_caller]
    pub fn spawn_local_on<F>(self, future: F, local_set: &LocalSet) -> io::Result<AbortHandle>
    where
        F: Future<Output = T>,
        F: 'static,
    {
        Ok(self.set.insert(self.builder.spawn_local_on(future, local_set)?))
    }
}

impl<T> fmt::Debug for Builder<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("join_set::Builder")
            .field("joinset", &self.set)
            .field("builder", &self.builder)
            .finish()
    }
}
