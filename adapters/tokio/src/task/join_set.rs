//! JoinSet: tasks whose outputs are taken in the order in which the tasks end.
//!
//! Each entry has a waker of its own, with which its handle is polled once when the task is inserted. When the task
//! ends, the waker puts the entry's index into a queue and wakes the task that waits in `join_next`. So a call of
//! `join_next` polls only handles of tasks that have ended.

use super::abort_handle::AbortHandle;
use super::id::Id;
use super::join_error::JoinError;
use super::join_handle::JoinHandle;
use super::local::LocalSet;
use crate::runtime::Handle;
use real::task::coop::{poll_proceed, unconstrained};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

#[cfg(all(tokio_unstable, feature = "tracing"))]
mod builder;
#[cfg(all(tokio_unstable, feature = "tracing"))]
pub use builder::Builder;

type Outcome<T> = Result<T, JoinError>;

/// A set of tasks whose outputs are of one type. Outputs are taken in the order in which the tasks end.
///
/// Dropping the set aborts its tasks.
///
/// ```
/// use tokio::task::JoinSet;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), tokio::task::JoinError> {
/// let mut squares = JoinSet::new();
/// for side in 1..=10 {
///     squares.spawn(async move { side * side });
/// }
/// let mut sum = 0;
/// while let Some(square) = squares.join_next().await {
///     sum += square?;
/// }
/// assert_eq!(sum, 385);
/// # Ok(())
/// # }
/// ```
pub struct JoinSet<T> {
    /// `None`: the entry is free.
    entries: Vec<Option<Entry<T>>>,
    /// The indices of free entries.
    free: Vec<usize>,
    finished: Arc<Finished>,
}

enum Entry<T> {
    /// The handle was polled with the waker and was pending.
    Running(JoinHandle<T>, Waker),
    /// The task had ended when it was inserted. In a mutex, so that the set is `Sync` without `T` being so.
    Finished(Id, Mutex<Outcome<T>>),
}

/// The entries whose tasks have ended.
#[derive(Default)]
struct Finished {
    state: Mutex<FinishedState>,
}

#[derive(Default)]
struct FinishedState {
    /// Indices in the order of the tasks' ends. An entry may have been taken since, and its index used again.
    queue: VecDeque<usize>,
    /// The waker of the last `poll_join_next` that was pending.
    waker: Option<Waker>,
}

impl Finished {
    fn state(&self) -> MutexGuard<'_, FinishedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, index: usize) {
        let mut state = self.state();
        state.queue.push_back(index);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn pop(&self) -> Option<usize> {
        self.state().queue.pop_front()
    }

    /// As [`pop`](Self::pop). If the queue is empty, the next `push` wakes `waker`.
    fn pop_or_register(&self, waker: &Waker) -> Option<usize> {
        let mut state = self.state();
        let index = state.queue.pop_front();
        if index.is_none() && !state.waker.as_ref().is_some_and(|last| last.will_wake(waker)) {
            let last = state.waker.replace(waker.clone());
            // A waker's drop may drop a task, which must not happen under the lock.
            drop(state);
            drop(last);
        }
        index
    }
}

/// The waker of an entry.
struct Notify {
    index: usize,
    finished: Arc<Finished>,
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.finished.push(self.index);
    }
}

/// Polls a handle without taking an operation of the budget.
fn poll_handle<T>(handle: &mut JoinHandle<T>, waker: &Waker) -> Poll<Outcome<T>> {
    Pin::new(&mut unconstrained(handle)).poll(&mut Context::from_waker(waker))
}

impl<T> JoinSet<T> {
    /// An empty set.
    pub fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), finished: Arc::default() }
    }

    /// Returns the number of tasks in the set. A task that has ended counts until its output is taken.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether the set has no tasks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn handles(&self) -> impl Iterator<Item = &JoinHandle<T>> {
        self.entries.iter().flatten().filter_map(|entry| match entry {
            Entry::Running(handle, _) => Some(handle),
            Entry::Finished(..) => None,
        })
    }
}

impl<T: 'static> JoinSet<T> {
    /// Returns a builder, which gives a task a name and spawns it on the set.
    #[cfg(all(tokio_unstable, feature = "tracing"))]
    pub fn build_task(&mut self) -> Builder<'_, T> {
        Builder::new(self)
    }

    /// Spawns a task on the current runtime, as [`spawn`](super::spawn()) does.
    ///
    /// # Panics
    /// If this thread is inside no runtime.
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T>,
        F: Send + 'static,
        T: Send,
    {
        self.insert(super::spawn(future))
    }

    /// Spawns a task on the runtime of `handle`.
    #[track_caller]
    pub fn spawn_on<F>(&mut self, future: F, handle: &Handle) -> AbortHandle
    where
        F: Future<Output = T>,
        F: Send + 'static,
        T: Send,
    {
        self.insert(handle.spawn(future))
    }

    /// Spawns a task on the current `LocalSet` or `LocalRuntime`, as [`spawn_local`](super::spawn_local) does.
    ///
    /// # Panics
    /// If this thread is inside neither.
    #[track_caller]
    pub fn spawn_local<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T>,
        F: 'static,
    {
        self.insert(super::spawn_local(future))
    }

    /// Spawns a task on `local_set`. It runs while that set is polled.
    #[track_caller]
    pub fn spawn_local_on<F>(&mut self, future: F, local_set: &LocalSet) -> AbortHandle
    where
        F: Future<Output = T>,
        F: 'static,
    {
        self.insert(local_set.spawn_local(future))
    }

    /// Calls a closure in the blocking pool of the current runtime, as [`spawn_blocking`](super::spawn_blocking) does.
    ///
    /// # Panics
    /// As that function.
    #[track_caller]
    pub fn spawn_blocking<F>(&mut self, act: F) -> AbortHandle
    where
        F: FnOnce() -> T,
        F: Send + 'static,
        T: Send,
    {
        self.insert(super::spawn_blocking(act))
    }

    /// Calls a closure in the blocking pool of the runtime of `handle`.
    #[track_caller]
    pub fn spawn_blocking_on<F>(&mut self, act: F, handle: &Handle) -> AbortHandle
    where
        F: FnOnce() -> T,
        F: Send + 'static,
        T: Send,
    {
        self.insert(handle.spawn_blocking(act))
    }

    fn insert(&mut self, mut handle: JoinHandle<T>) -> AbortHandle {
        let abort = handle.abort_handle();
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        let waker = Waker::from(Arc::new(Notify { index, finished: self.finished.clone() }));
        let entry = match poll_handle(&mut handle, &waker) {
            Poll::Pending => Entry::Running(handle, waker),
            Poll::Ready(outcome) => {
                self.finished.push(index);
                Entry::Finished(handle.id(), Mutex::new(outcome))
            }
        };
        self.entries[index] = Some(entry);
        abort
    }

    /// Takes the outcome of the entry at `index`. `None`: the entry is free, or was taken since and used again.
    fn take(&mut self, index: usize) -> Option<(Id, Outcome<T>)> {
        let entry = self.entries.get_mut(index)?;
        let taken = match entry.take()? {
            Entry::Finished(id, outcome) => {
                (id, outcome.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            Entry::Running(mut handle, waker) => match poll_handle(&mut handle, &waker) {
                Poll::Ready(outcome) => (handle.id(), outcome),
                Poll::Pending => {
                    *entry = Some(Entry::Running(handle, waker));
                    return None;
                }
            },
        };
        self.free.push(index);
        Some(taken)
    }

    fn try_take(&mut self) -> Option<(Id, Outcome<T>)> {
        loop {
            let index = self.finished.pop()?;
            if let Some(taken) = self.take(index) {
                return Some(taken);
            }
        }
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Id, Outcome<T>)>> {
        if self.is_empty() {
            return Poll::Ready(None);
        }
        let operation = ready!(poll_proceed(cx));
        loop {
            let Some(index) = self.finished.pop_or_register(cx.waker()) else { return Poll::Pending };
            if let Some(taken) = self.take(index) {
                operation.made_progress();
                return Poll::Ready(Some(taken));
            }
        }
    }

    /// Waits until a task of the set ends, and returns its output. `None`: the set is empty.
    ///
    /// If the returned future is dropped before it is ready, no output is lost.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_join_next(cx)).await
    }

    /// As [`join_next`](Self::join_next), with the task's id. A task that panicked or was cancelled has its id in the
    /// error.
    pub async fn join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        poll_fn(|cx| self.poll_join_next_with_id(cx)).await
    }

    /// Returns the output of a task that has ended. `None`: none has, or the set is empty.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.try_take().map(|(_, outcome)| outcome)
    }

    /// As [`try_join_next`](Self::try_join_next), with the task's id.
    pub fn try_join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        self.try_take().map(with_id)
    }

    /// Aborts all tasks, and waits until they have ended.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Waits until all tasks have ended, and returns their outputs in the order of the ends.
    ///
    /// # Panics
    /// If a task panicked, with its panic, or if a task was cancelled. The other tasks are aborted then.
    pub async fn join_all(mut self) -> Vec<T> {
        let mut outputs = Vec::with_capacity(self.len());
        while let Some(outcome) = self.join_next().await {
            match outcome {
                Ok(output) => outputs.push(output),
                Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                Err(error) => panic!("{error}"),
            }
        }
        outputs
    }

    /// Aborts all tasks. They stay in the set: [`join_next`](Self::join_next) returns each as cancelled, unless it has
    /// ended before.
    pub fn abort_all(&mut self) {
        self.handles().for_each(JoinHandle::abort);
    }

    /// Removes all tasks from the set without aborting them.
    pub fn detach_all(&mut self) {
        // Indices that are in the queue by now may be used again; `take` expects that.
        self.entries.clear();
        self.free.clear();
    }

    /// Polls for the output of a task that has ended. `Ready(None)`: the set is empty. If the poll is pending, the end
    /// of any task wakes the context's waker. Only the waker of the last such poll is woken.
    ///
    /// A poll may be pending although a task has ended, if the budget of tokio's [`coop`](super::coop) is used up; the
    /// waker is woken then.
    pub fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        self.poll_take(cx).map(|taken| taken.map(|(_, outcome)| outcome))
    }

    /// As [`poll_join_next`](Self::poll_join_next), with the task's id.
    pub fn poll_join_next_with_id(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<(Id, T), JoinError>>> {
        self.poll_take(cx).map(|taken| taken.map(with_id))
    }
}

fn with_id<T>((id, outcome): (Id, Outcome<T>)) -> Result<(Id, T), JoinError> {
    outcome.map(|output| (id, output))
}

/// The set pins nothing of its own: it keeps handles and outputs, no futures.
impl<T> Unpin for JoinSet<T> {}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.handles().for_each(JoinHandle::abort);
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.len()).finish()
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Spawns a task for each future, on the current runtime.
impl<T, F> FromIterator<F> for JoinSet<T>
where
    F: Future<Output = T>,
    F: Send + 'static,
    T: Send + 'static,
{
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> Self {
        let mut set = Self::new();
        set.extend(futures);
        set
    }
}

/// Spawns a task for each future, on the current runtime.
impl<T, F> Extend<F> for JoinSet<T>
where
    F: Future<Output = T>,
    F: Send + 'static,
    T: Send + 'static,
{
    fn extend<I: IntoIterator<Item = F>>(&mut self, futures: I) {
        for future in futures {
            self.spawn(future);
        }
    }
}

#[cfg(test)]
mod tests;
