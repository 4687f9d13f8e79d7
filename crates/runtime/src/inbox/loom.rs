//! Loom models of the inbox. `cargo xtask test --full` runs them.

use super::*;
use crate::sync::fence;
use ::loom::{
    cell::UnsafeCell,
    model,
    sync::{Arc, atomic::AtomicUsize},
    thread,
};
use warmcore_sched::Inbox as _;

/// A task. The thread that pushes it writes `written`, the thread that takes it reads it.
pub(crate) struct Item {
    number: usize,
    written: UnsafeCell<usize>,
    link: AtomicPtr<()>,
}

impl Item {
    pub(crate) fn new(number: usize) -> Box<Self> {
        let item = Box::new(Self { number, written: UnsafeCell::new(0), link: AtomicPtr::new(AWAKE) });
        // SAFETY: no other thread can reach the new item.
        item.written.with_mut(|written| unsafe { *written = number });
        item
    }

    /// Loom fails here unless the push happens before the take.
    pub(crate) fn open(&self) -> usize {
        // SAFETY: the caller owns the item.
        let written = self.written.with(|written| unsafe { *written });
        assert_eq!(written, self.number);
        self.number
    }
}

// SAFETY: a box's own conversions to a pointer and back; the item does not move.
unsafe impl Linked for Box<Item> {
    fn into_raw(self) -> *mut () {
        Box::into_raw(self).cast()
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: as the caller guarantees.
        unsafe { Box::from_raw(raw.cast()) }
    }

    fn link(&self) -> &AtomicPtr<()> {
        &self.link
    }
}

/// A worker, and how often it was unparked.
struct Remote {
    inbox: Inbox<Box<Item>>,
    unparks: AtomicUsize,
}

impl Remote {
    fn new() -> Arc<Self> {
        Arc::new(Self { inbox: Inbox::default(), unparks: AtomicUsize::new(0) })
    }

    /// Takes all tasks, and returns their numbers.
    fn take(&self) -> Vec<usize> {
        let mut numbers = Vec::new();
        self.inbox.take(|item| numbers.push(item.open()));
        numbers
    }

    fn push(&self, number: usize) {
        match self.inbox.push(Item::new(number)) {
            Ok(true) => _ = self.unparks.fetch_add(1, Relaxed),
            Ok(false) => {}
            Err(_) => panic!("the inbox is not closed"),
        }
    }
}

/// Two threads push while the worker takes tasks and parks. No task is lost, and if a task is pushed after the worker
/// parked, the worker is unparked once.
#[test]
fn a_parked_worker_is_unparked_once_and_no_task_is_lost() {
    model(|| {
        let remote = Remote::new();
        let pushers = [1, 2].map(|number| {
            let remote = remote.clone();
            thread::spawn(move || remote.push(number))
        });
        let mut seen = remote.take();
        let has_parked = remote.inbox.try_park();
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        let unparks = remote.unparks.load(Relaxed);
        let rest = remote.take();
        if has_parked {
            assert_eq!(unparks, usize::from(!rest.is_empty()), "one unpark a park, if a task was pushed");
        } else {
            assert!(!rest.is_empty(), "the worker did not park, though no task was pushed");
            assert_eq!(unparks, 0);
        }
        seen.extend(rest);
        seen.sort();
        assert_eq!(seen, [1, 2]);
    });
}

/// The tasks that one thread pushes are taken in the order in which it pushed them, whatever other threads push in
/// between.
#[test]
fn tasks_of_one_thread_come_in_its_order() {
    model(|| {
        let remote = Remote::new();
        let pushers = [[1, 2], [11, 12]].map(|numbers| {
            let remote = remote.clone();
            thread::spawn(move || numbers.into_iter().for_each(|number| remote.push(number)))
        });
        let mut seen = remote.take();
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        seen.extend(remote.take());
        for [first, second] in [[1, 2], [11, 12]] {
            let at = |number| seen.iter().position(|seen| *seen == number).expect("lost");
            assert!(at(first) < at(second), "{seen:?}");
        }
        assert_eq!(seen.len(), 4);
    });
}

/// The worker and a stealing thread take at the same time, while a third thread pushes.
#[test]
fn two_threads_that_take_share_the_tasks() {
    model(|| {
        let remote = Remote::new();
        remote.push(1);
        let pusher = thread::spawn({
            let remote = remote.clone();
            move || remote.push(2)
        });
        let puller = thread::spawn({
            let remote = remote.clone();
            move || remote.take()
        });
        let mut seen = remote.take();
        pusher.join().unwrap();
        seen.extend(puller.join().unwrap());
        seen.extend(remote.take());
        seen.sort();
        assert_eq!(seen, [1, 2]);
    });
}

/// `close` returns the tasks pushed before it; a later push returns its task.
#[test]
fn a_push_after_close_returns_the_task() {
    model(|| {
        let remote = Remote::new();
        let pushers = [1, 2].map(|number| {
            let remote = remote.clone();
            thread::spawn(move || remote.inbox.push(Item::new(number)).err().map(|item| item.open()))
        });
        let mut seen = Vec::new();
        remote.inbox.close(|item| seen.push(item.open()));
        for pusher in pushers {
            seen.extend(pusher.join().unwrap());
        }
        seen.sort();
        assert_eq!(seen, [1, 2]);
        assert!(!remote.inbox.try_park() && !remote.inbox.try_unpark());
    });
}

/// Two threads unpark and one pushes. Exactly one of the three ends the park, and the pushed task is there.
#[test]
fn one_of_several_unparks_ends_the_park() {
    model(|| {
        let remote = Remote::new();
        assert!(remote.inbox.try_park());
        let unparker = thread::spawn({
            let remote = remote.clone();
            move || usize::from(remote.inbox.try_unpark())
        });
        let pusher = thread::spawn({
            let remote = remote.clone();
            move || remote.push(1)
        });
        let mine = usize::from(remote.inbox.try_unpark());
        let theirs = unparker.join().unwrap();
        pusher.join().unwrap();
        assert_eq!(mine + theirs + remote.unparks.load(Relaxed), 1);
        assert!(!remote.inbox.is_parked());
        assert_eq!(remote.take(), [1]);
    });
}

/// An unparked worker sees what the other thread wrote before, here the shutdown.
#[test]
fn an_unparked_worker_sees_why() {
    model(|| {
        let (remote, why) = (Remote::new(), Arc::new(UnsafeCell::new(false)));
        assert!(remote.inbox.try_park());
        let unparker = thread::spawn({
            let (remote, why) = (remote.clone(), why.clone());
            move || {
                // SAFETY: a parked worker does not read before it is unparked; loom checks it.
                why.with_mut(|why| unsafe { *why = true });
                assert!(remote.inbox.try_unpark());
            }
        });
        while remote.inbox.is_parked() {
            thread::yield_now();
        }
        // SAFETY: as above.
        assert!(why.with(|why| unsafe { *why }));
        unparker.join().unwrap();
    });
}

/// `Core::mark_parked` against `Workers::notify_parked`, `notify_for_inject` and `Runtime::end`. The worker marks itself
/// parked and then searches for tasks. The other thread adds a task, or shuts down, and then looks for parked workers.
/// At least one of the two sees the other's write. Both fences are needed.
#[test]
fn a_parked_worker_sees_the_work_or_is_unparked_for_it() {
    model(|| {
        let remote = Remote::new();
        let (idle, waiting) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let helper = thread::spawn({
            let (remote, idle, waiting) = (remote.clone(), idle.clone(), waiting.clone());
            move || {
                waiting.store(1, Relaxed);
                fence(SeqCst);
                idle.load(Relaxed) > 0 && remote.inbox.is_parked() && remote.inbox.try_unpark()
            }
        });
        assert!(remote.inbox.try_park());
        idle.fetch_add(1, Relaxed);
        fence(SeqCst);
        let has_seen = waiting.load(Relaxed) > 0;
        let is_unparked = helper.join().unwrap();
        assert!(has_seen || is_unparked, "the worker is parked beside work, and was not unparked");
    });
}

/// A worker that wakes while another thread appoints it as the watchdog sees the appointment, or that thread sees that
/// the worker is awake.
#[test]
fn a_worker_that_wakes_while_assigned_sees_it_or_is_seen_awake() {
    model(|| {
        let (remote, watchdog) = (Remote::new(), Arc::new(AtomicUsize::new(0)));
        assert!(remote.inbox.try_park());
        let appointer = thread::spawn({
            let (remote, watchdog) = (remote.clone(), watchdog.clone());
            move || {
                watchdog.store(1, Relaxed);
                fence(SeqCst);
                !remote.inbox.is_parked()
            }
        });
        assert!(remote.inbox.try_unpark());
        fence(SeqCst);
        let is_seen = watchdog.load(Relaxed) == 1;
        assert!(
            appointer.join().unwrap() || is_seen,
            "a worker that polls tasks stays assigned as the watchdog"
        );
    });
}
