//! Builder: spawns a task with a name.

use super::blocking;
use super::id::Id;
use super::identified::Identified;
use super::join_handle::JoinHandle;
use super::local::LocalSet;
use super::recorded::recorded;
use super::spawn::spawn_named;
use crate::runtime::{Handle, Scheduler};
use std::future::Future;
use std::io;

/// Gives a task a name and spawns it. `tokio-console` and, for tasks on a multi-thread runtime, `warmcore top` show the
/// name.
///
/// ```ignore
/// let reader = tokio::task::Builder::new().name("reader").spawn(read(socket))?;
/// ```
#[derive(Default, Debug)]
pub struct Builder<'a> {
    name: Option<&'a str>,
}

impl<'a> Builder<'a> {
    /// A builder without a name.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the task's name.
    pub fn name(&self, name: &'a str) -> Self {
        Self { name: Some(name) }
    }

    /// As [`spawn`](super::spawn()). Always returns `Ok`.
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> io::Result<JoinHandle<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Ok(spawn_named(&Handle::current(), future, self.name))
    }

    /// As [`Handle::spawn`]. Always returns `Ok`.
    #[track_caller]
    pub fn spawn_on<F>(self, future: F, handle: &Handle) -> io::Result<JoinHandle<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Ok(spawn_named(handle, future, self.name))
    }

    /// As [`spawn_local`](super::spawn_local). Always returns `Ok`.
    #[track_caller]
    pub fn spawn_local<F>(self, future: F) -> io::Result<JoinHandle<F::Output>>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let id = Id::next();
        Ok(JoinHandle::tokio(id, self.real().spawn_local(recorded(self.name, Identified::new(id, future)))?))
    }

    /// As [`LocalSet::spawn_local`]. Always returns `Ok`.
    #[track_caller]
    pub fn spawn_local_on<F>(self, future: F, local_set: &LocalSet) -> io::Result<JoinHandle<F::Output>>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        Ok(local_set.spawn_named(future, self.name))
    }

    /// As [`spawn_blocking`](super::spawn_blocking), but returns an error if the pool refuses the closure: the runtime
    /// is shutting down, or the system refuses the pool's first thread.
    #[track_caller]
    pub fn spawn_blocking<F, R>(self, act: F) -> io::Result<JoinHandle<R>>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.spawn_blocking_on(act, &Handle::current())
    }

    /// As [`spawn_blocking`](Self::spawn_blocking), in the pool of the runtime of `handle`.
    #[track_caller]
    pub fn spawn_blocking_on<F, R>(self, act: F, handle: &Handle) -> io::Result<JoinHandle<R>>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let id = Id::next();
        let handle = match handle.scheduler() {
            Scheduler::Warm(warm) => {
                self.real().spawn_blocking_on(blocking::inside(handle, id, act), warm.blocking())
            }
            Scheduler::Tokio(real) => self.real().spawn_blocking_on(blocking::identified(id, act), real),
        };
        Ok(JoinHandle::tokio(id, handle?))
    }

    /// Tokio's builder, with the same name.
    fn real(&self) -> real::task::Builder<'a> {
        let builder = real::task::Builder::new();
        match self.name {
            Some(name) => builder.name(name),
            None => builder,
        }
    }
}
