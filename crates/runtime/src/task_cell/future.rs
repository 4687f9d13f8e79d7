//! Future: the allocation of a task, and what depends on the type of its future: the poll, the output, the end.
//!
//! A poll catches a panic of the future, drops the future if the task was cancelled, and enters the task's tenant and span.
//! All else in the runtime knows a task by its [`Header`], which begins the allocation, and calls the functions below
//! through [`VTable`].

use super::{RunnableTask, Snapshot, TaskRef, VTable, borrowed_waker};
use crate::error::{JoinError, Outcome, drop_caught};
use crate::header::{Header, TaskAttrs};
use crate::shared::SchedulerRef;
use crate::sync::Ordering::*;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use warmcore_sched::Allowed;

impl VTable {
    /// The functions for this type of future.
    const fn of<F: Future>() -> &'static Self {
        const {
            &Self {
                poll: poll::<F>,
                take_output: take_output::<F>,
                drop_output: drop_output::<F>,
                free: free::<F>,
            }
        }
    }
}

/// Shares no cache line with another task, which may be polled elsewhere.
#[repr(C, align(64))]
struct TaskCell<F: Future> {
    header: Header,
    stage: UnsafeCell<Stage<F>>,
}

impl<F: Future> TaskCell<F> {
    /// With room to align the cell by hand: glibc's `posix_memalign` takes 700 instructions more than `malloc`, which aligns to 16.
    const LAYOUT: Layout = match Layout::from_size_align(size_of::<Self>() + align_of::<Self>(), 16) {
        Ok(layout) => layout,
        Err(_) => panic!("the future is too large"),
    };

    /// Moves the cell to memory of its own.
    fn allocate(self) -> NonNull<Self> {
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc(Self::LAYOUT) };
        if memory.is_null() {
            handle_alloc_error(Self::LAYOUT);
        }
        // At least 16 bytes are left before the cell, and at most its alignment.
        let offset = align_of::<Self>() - memory.addr() % align_of::<Self>();
        // SAFETY: the memory has the cell's size and its alignment, and `offset` leaves the cell's size. Before the cell is room for a
        // pointer, aligned as one.
        unsafe {
            let cell = memory.add(offset).cast::<Self>();
            cell.write(self);
            cell.cast::<*mut u8>().sub(1).write(memory);
            NonNull::new_unchecked(cell)
        }
    }

    /// Drops the cell and frees its memory.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate), and nothing refers to it any more.
    unsafe fn free(cell: NonNull<Self>) {
        // SAFETY: `allocate` wrote the pointer and the cell, as the caller guarantees.
        unsafe {
            let memory = cell.cast::<*mut u8>().sub(1).read();
            cell.drop_in_place();
            dealloc(memory, Self::LAYOUT);
        }
    }
}

enum Stage<F: Future> {
    /// Owned by the thread that polls.
    Future(F),
    /// Owned by the handle, or by the thread of the last poll if the handle was dropped before.
    Output(Outcome<F::Output>),
    /// The future was dropped, or the output was taken.
    Empty,
}

/// The stage of a task.
///
/// # Safety
/// `task` is of this type, and the caller owns what the stage has.
#[inline]
unsafe fn stage<'a, F: Future>(task: NonNull<Header>) -> &'a mut Stage<F> {
    let cell = task.as_ptr().cast::<TaskCell<F>>();
    // SAFETY: as the caller guarantees; `UnsafeCell` lets others read the header meanwhile.
    unsafe { &mut *UnsafeCell::raw_get(&raw const (*cell).stage) }
}

/// See [`VTable::poll`].
#[inline]
unsafe fn poll<F: Future>(task: NonNull<Header>, before: Snapshot) -> bool {
    // SAFETY: as the caller guarantees.
    let (header, stage) = unsafe { (task.as_ref(), stage::<F>(task)) };
    if before.is_new_or_cancelled()
        && (before.is_cancelled() || header.scheduler.shared.is_closing.load(Relaxed))
    {
        cancel(header, stage);
        return true;
    }
    let waker = borrowed_waker(task);
    let cx = &mut Context::from_waker(&waker);
    let polled = catch_unwind(AssertUnwindSafe(|| match header.attrs.as_deref() {
        None => poll_or_drop(stage, cx),
        Some(attrs) => {
            let _span = attrs.span.as_ref().map(|span| span.enter());
            let _here = attrs.tenant.as_ref().map(|tenant| tenant.tenant.enter());
            match &attrs.record {
                None => poll_or_drop(stage, cx),
                Some(record) => record.poll(|| poll_or_drop(stage, cx)),
            }
        }
    }));
    let outcome = match polled {
        Ok(Poll::Pending) => return false,
        Ok(Poll::Ready(output)) => Ok(output),
        Err(panic) => Err(JoinError::panicked(header.name().cloned(), panic)),
    };
    end(header, stage, outcome);
    true
}

/// Drops the future of a task that was cancelled.
#[cold]
fn cancel<F: Future>(header: &Header, stage: &mut Stage<F>) {
    let mut drop_future = || {
        end(header, stage, Err(JoinError::cancelled(header.name().cloned())));
        Poll::Ready(())
    };
    _ = match header.record() {
        None => drop_future(),
        Some(record) => record.poll(drop_future),
    };
}

/// Drops the future and stores `outcome`, or the panic if the drop panics.
fn end<F: Future>(header: &Header, stage: &mut Stage<F>, outcome: Outcome<F::Output>) {
    let dropped = catch_unwind(AssertUnwindSafe(|| *stage = Stage::Empty));
    let outcome = match dropped {
        Ok(()) => outcome,
        Err(panic) => {
            // The stage is empty by now, so the future is not dropped twice.
            drop_caught(outcome);
            Err(JoinError::panicked(header.name().cloned(), panic))
        }
    };
    *stage = Stage::Output(outcome);
}

/// Polls a future that is never moved. If the poll panics, the future is dropped while the panic unwinds, as the locals
/// of the poll are: what it owns sees `std::thread::panicking`, so that a lock that it holds is poisoned. A panic of
/// that drop is caught.
#[inline]
fn poll_or_drop<F: Future>(stage: &mut Stage<F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    /// Dropped only by a panic.
    struct Unwinds<'a, F: Future>(&'a mut Stage<F>);
    impl<F: Future> Drop for Unwinds<'_, F> {
        fn drop(&mut self) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| *self.0 = Stage::Empty)) {
                drop_caught(panic);
            }
        }
    }
    let unwinds = Unwinds(stage);
    let Stage::Future(future) = &mut *unwinds.0 else { unreachable!("polled after its end") };
    // SAFETY: the future is in the task's allocation, and is dropped there.
    let polled = unsafe { Pin::new_unchecked(future) }.poll(cx);
    std::mem::forget(unwinds);
    polled
}

/// See [`VTable::take_output`].
unsafe fn take_output<F: Future>(task: NonNull<Header>, to: *mut ()) {
    // SAFETY: as the caller guarantees.
    let (stage, to) = unsafe { (stage::<F>(task), &mut *to.cast::<Option<Outcome<F::Output>>>()) };
    if let Stage::Output(outcome) = std::mem::replace(stage, Stage::Empty) {
        *to = Some(outcome);
    }
}

/// See [`VTable::drop_output`].
unsafe fn drop_output<F: Future>(task: NonNull<Header>) {
    // SAFETY: as the caller guarantees.
    let stage = unsafe { stage::<F>(task) };
    if let Stage::Output(outcome) = stage
        && std::mem::needs_drop::<F::Output>() | outcome.is_err()
    {
        drop_caught(std::mem::replace(stage, Stage::Empty));
    }
}

/// See [`VTable::free`].
unsafe fn free<F: Future>(task: NonNull<Header>) {
    // SAFETY: no reference is left.
    let waker = unsafe { &mut *task.as_ptr() }.join_waker.take();
    if let Some(waker) = waker {
        // A waker of the program that panics must not take the thread along that gave up the last reference.
        drop_caught(waker);
    }
    // SAFETY: `make` allocated it as such a cell, and no reference is left.
    unsafe { TaskCell::free(task.cast::<TaskCell<F>>()) };
}

/// Makes a task. The caller schedules it, and makes the task's handle of the reference. The task was spawned where this is
/// called. It enters a list of owned tasks when a poll returns pending, or the caller puts it there.
///
/// # Safety
/// If `F` or its output borrows, the caller ensures that the task ends before the borrow does. If `F` is not `Send`,
/// the caller ensures that one thread polls and drops it.
#[track_caller]
pub(crate) unsafe fn make<F: Future>(
    scheduler: Arc<SchedulerRef>,
    allowed: Allowed,
    attrs: Option<Box<TaskAttrs>>,
    future: F,
) -> (RunnableTask, TaskRef) {
    let header = Header::new(VTable::of::<F>(), scheduler, allowed, attrs);
    let task = TaskCell { header, stage: UnsafeCell::new(Stage::Future(future)) }.allocate().cast::<Header>();
    // SAFETY: the task was just allocated, with two references.
    let header = unsafe { task.as_ref() };
    header.begin();
    (RunnableTask(task), TaskRef(task))
}
