//! TaskCell: a spawned future, in one allocation with its state and its header, and what refers to it.
//!
//! | | is | ends |
//! |---|---|---|
//! | [`RunnableTask`] | a task that was woken or spawned; at most one of each task | by [`start`](RunnableTask::start), or cancels the task when dropped |
//! | [`Running`] | a task during its poll | by [`end`](Running::end) |
//! | [`TaskRef`] | a reference, of a handle or a waker | when dropped |
//!
//! `state.rs` has the word that decides which of these exist, `future.rs` the part that depends on the future's type: the
//! allocation, the poll, the output. A list of owned tasks has a reference to each task in it, until its future is dropped.
//!
//! # Cost
//! A task takes 112 bytes and its future, rounded up to lines of 64 bytes, 64 bytes to align them, 16 bytes in the list of owned
//! tasks, and its [`TaskAttrs`](crate::header::TaskAttrs) if it has a name, a tenant or a span. Without whole lines 16 pairs of
//! tasks on two workers had 0.95 of the round trips.

use crate::context;
use crate::error::drop_caught;
use crate::header::Header;
use crate::inbox::Linked;
use crate::sync::AtomicPtr;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::task::{RawWaker, RawWakerVTable, Waker};
use warmcore_budget::process::unaccounted;
use warmcore_sched::{Share, Task, TaskState};
use warmcore_types::CpuId;

pub(crate) mod future;
mod join_waker;
mod state;

pub(crate) use join_waker::JoinWaker;
pub(crate) use state::State;
use state::{Snapshot, WakeByVal};

/// The functions of one type of future. Each takes a task of that type.
pub(crate) struct VTable {
    /// Polls the future, or drops it if the task was cancelled or the runtime shuts down. Returns whether the task has its output now.
    /// The caller owns the future.
    poll: unsafe fn(NonNull<Header>, Snapshot) -> bool,
    /// Moves the output to an `Option<Outcome<T>>`, which stays `None` if the output was taken before. The caller owns the
    /// output.
    pub(crate) take_output: unsafe fn(NonNull<Header>, to: *mut ()),
    /// Drops the output, if it was not taken. The caller owns it.
    pub(crate) drop_output: unsafe fn(NonNull<Header>),
    /// Frees a task without references.
    free: unsafe fn(NonNull<Header>),
}

/// A task that was woken or spawned, and must be polled. Dropping it cancels the task: its future is dropped on this thread,
/// and its handle becomes ready.
#[derive(Debug)]
pub(crate) struct RunnableTask(NonNull<Header>);

// SAFETY: `make` demands that the future may be polled on the threads on which its caller lets it be polled.
unsafe impl Send for RunnableTask {}
// SAFETY: a shared reference only reads the header, which is `Sync`.
unsafe impl Sync for RunnableTask {}

impl RunnableTask {
    #[inline]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the task has a reference of its own.
        unsafe { self.0.as_ref() }
    }

    /// Begins the task's poll.
    #[inline]
    pub(crate) fn start(self) -> Running {
        let task = ManuallyDrop::new(self).0;
        // SAFETY: the reference of the runnable task is that of the poll now.
        let before = unsafe { task.as_ref() }.state.start();
        Running { task, before }
    }

    /// Cancels a task that no worker will run.
    pub(crate) fn cancel(self) {
        drop(self);
    }

    /// Queues the task, as a wake does.
    pub(crate) fn schedule(self) {
        context::schedule(self, false);
    }
}

impl Drop for RunnableTask {
    fn drop(&mut self) {
        self.header().state.set_cancelled();
        let running = RunnableTask(self.0).start();
        let is_ready = running.poll();
        debug_assert!(is_ready, "the poll of a cancelled task ends it");
        running.end(is_ready);
    }
}

impl Task for RunnableTask {
    #[inline]
    fn state(&self) -> &TaskState {
        &self.header().sched
    }

    fn kind(&self) -> usize {
        self.header().kind()
    }

    #[inline]
    fn share(&self) -> Share {
        self.header().share()
    }

    fn unaccounted<R>(grow: impl FnOnce() -> R) -> R {
        unaccounted(grow)
    }
}

// SAFETY: the pointer is to an allocation of a `Header`, which is aligned to more than 2, and does not move.
unsafe impl Linked for RunnableTask {
    #[inline]
    fn into_raw(self) -> *mut () {
        ManuallyDrop::new(self).0.as_ptr().cast()
    }

    #[inline]
    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: `raw` came from `into_raw`, as the caller guarantees, and `into_raw` never returns null.
        Self(unsafe { NonNull::new_unchecked(raw.cast()) })
    }

    #[inline]
    fn link(&self) -> &AtomicPtr<()> {
        &self.header().link
    }
}

/// A task during its poll. The thread that has it owns the future.
///
/// Dropping it cancels the task: that happens if the clock of a driver panics around a poll.
#[must_use = "dropping it cancels the task"]
pub(crate) struct Running {
    task: NonNull<Header>,
    /// The task's state when the poll began.
    before: Snapshot,
}

impl Running {
    /// The task, to compare it with others.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *const Header {
        self.task.as_ptr()
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the poll has a reference.
        unsafe { self.task.as_ref() }
    }

    /// Polls the future, or drops it if the task was cancelled or the runtime shuts down. Returns whether the task has its output
    /// now. Does not panic.
    #[inline]
    pub(crate) fn poll(&self) -> bool {
        // SAFETY: the vtable is that of the task's type, and this thread has the future.
        unsafe { (self.header().vtable.poll)(self.task, self.before) }
    }

    /// Ends the poll. `is_ready`: what [`poll`](Self::poll) returned. Returns the task if it was woken meanwhile.
    #[inline]
    pub(crate) fn end(self, is_ready: bool) -> Option<RunnableTask> {
        let this = ManuallyDrop::new(self);
        if is_ready {
            this.complete();
            return None;
        }
        if this.before.is_new() {
            let header = this.header();
            header.enter_owned_tasks(this.task, header.sched.prev_worker().unwrap_or(CpuId(0)));
        }
        let is_woken = this.header().state.pend();
        is_woken.then(|| RunnableTask(this.task))
    }

    /// Ends the last poll: leaves the list of owned tasks, and makes the handle ready.
    #[inline(never)]
    fn complete(&self) {
        let header = self.header();
        let was_owned = header.end();
        let before = header.state.complete();
        if !before.has_join_interest() {
            // SAFETY: the output is this thread's, since the handle was dropped before.
            unsafe { (header.vtable.drop_output)(self.task) };
        } else if before.has_join_waker() {
            // A waker of the program that panics must not take the worker along.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| header.join_waker.wake())) {
                drop_caught(panic);
            }
        }
        let references = 1 + usize::from(was_owned) + usize::from(before.is_scheduled());
        if header.state.release(references) {
            // SAFETY: no reference is left.
            unsafe { (header.vtable.free)(self.task) };
        }
    }
}

impl Drop for Running {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: as in `poll`. If the task has its output already, that is dropped.
        unsafe { (self.header().vtable.poll)(self.task, self.before.cancelled()) };
        self.complete();
    }
}

/// `Send` and `Sync` of the types here rest on this.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Header>();
};

/// A reference to a task.
#[derive(Debug)]
pub(crate) struct TaskRef(NonNull<Header>);

// SAFETY: the header is `Sync`, and the thread that drops the last reference frees a task whose future was dropped before.
unsafe impl Send for TaskRef {}
// SAFETY: as above.
unsafe impl Sync for TaskRef {}

impl TaskRef {
    /// The task, for the functions of its vtable.
    #[inline]
    pub(crate) fn as_ptr(&self) -> NonNull<Header> {
        self.0
    }

    /// Wakes the task so that its next poll drops the future.
    pub(crate) fn cancel(&self) {
        // SAFETY: `cancel` returned true, so the runnable task is this thread's.
        let runnable = self.state.cancel().then(|| unsafe { runnable(self.0) });
        runnable.into_iter().for_each(RunnableTask::schedule);
    }
}

/// The runnable task of a task that the caller has just marked as scheduled.
///
/// # Safety
/// A method of [`State`] said that the caller must queue the task, and this is called once for that.
#[inline]
pub(crate) unsafe fn runnable(task: NonNull<Header>) -> RunnableTask {
    RunnableTask(task)
}

impl Clone for TaskRef {
    #[inline]
    fn clone(&self) -> Self {
        self.state.add_reference();
        Self(self.0)
    }
}

impl Deref for TaskRef {
    type Target = Header;

    #[inline]
    fn deref(&self) -> &Header {
        // SAFETY: this is a reference, so the task is not freed.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for TaskRef {
    #[inline]
    fn drop(&mut self) {
        if self.state.release(1) {
            // SAFETY: no reference is left.
            unsafe { (self.vtable.free)(self.0) };
        }
    }
}

/// The waker of a task, for the time of its poll: it has no reference of its own.
#[inline]
fn borrowed_waker(task: NonNull<Header>) -> ManuallyDrop<Waker> {
    let data = task.as_ptr().cast_const().cast();
    // SAFETY: the functions of `WAKER` are thread-safe. The waker is not dropped, and clones of it have references.
    ManuallyDrop::new(unsafe { Waker::new(data, &WAKER) })
}

static WAKER: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// # Safety
/// `data` is a task to which the caller has a reference, as in the next three functions.
unsafe fn task_of(data: *const ()) -> NonNull<Header> {
    // SAFETY: a waker's pointer is to a header, and so not null.
    unsafe { NonNull::new_unchecked(data.cast_mut().cast()) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the waker has a reference.
    unsafe { task_of(data).as_ref() }.state.add_reference();
    RawWaker::new(data, &WAKER)
}

unsafe fn wake(data: *const ()) {
    // SAFETY: the waker has a reference, which it gives up here.
    let (task, header) = unsafe { (task_of(data), task_of(data).as_ref()) };
    match header.state.wake_by_val() {
        // SAFETY: the state says so.
        WakeByVal::Schedule => unsafe { runnable(task) }.schedule(),
        WakeByVal::Nothing => context::note_yield(task),
        // SAFETY: no reference is left.
        WakeByVal::Free => unsafe { (header.vtable.free)(task) },
    }
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: the waker has a reference.
    let task = unsafe { task_of(data) };
    // SAFETY: as above.
    if unsafe { task.as_ref() }.state.wake_by_ref() {
        // SAFETY: the state says so.
        unsafe { runnable(task) }.schedule();
    } else {
        context::note_yield(task);
    }
}

unsafe fn drop_waker(data: *const ()) {
    // SAFETY: the waker has a reference, which it gives up here.
    drop(TaskRef(unsafe { task_of(data) }));
}
