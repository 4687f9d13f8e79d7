//! What loom proves of the inbox. Run by `cargo xtask test`.

use super::*;
use crate::sync::fence;
use ::loom::{
    cell::UnsafeCell,
    model,
    sync::{Arc, atomic::AtomicUsize},
    thread,
};

/// A task: who wrote `written` handed it over, who takes it reads it.
struct Item {
    number: usize,
    written: UnsafeCell<usize>,
    link: AtomicPtr<()>,
}

impl Item {
    fn new(number: usize) -> Box<Self> {
        let item = Box::new(Self { number, written: UnsafeCell::new(0), link: AtomicPtr::new(AWAKE) });
        // SAFETY: nobody else has it.
        item.written.with_mut(|written| unsafe { *written = number });
        item
    }

    /// Loom fails here if who pushed it does not happen before who took it.
    fn open(&self) -> usize {
        // SAFETY: it is the caller's.
        let written = self.written.with(|written| unsafe { *written });
        assert_eq!(written, self.number);
        self.number
    }
}

// SAFETY: a box's own pair; the item stays where it is.
unsafe impl Linked for Box<Item> {
    fn into_raw(self) -> *mut () {
        Box::into_raw(self).cast()
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: as the caller says.
        unsafe { Box::from_raw(raw.cast()) }
    }

    fn link(&self) -> &AtomicPtr<()> {
        &self.link
    }
}

fn open(taken: Drain<Box<Item>>) -> Vec<usize> {
    taken.map(|item| item.open()).collect()
}

/// A worker and how it sleeps: the kick is a count that only who kicks raises.
struct Remote {
    inbox: Inbox<Box<Item>>,
    kicks: AtomicUsize,
}

impl Remote {
    fn new() -> Arc<Self> {
        Arc::new(Self { inbox: Inbox::new(), kicks: AtomicUsize::new(0) })
    }

    fn push(&self, number: usize) {
        match self.inbox.push(Item::new(number)) {
            Ok(true) => _ = self.kicks.fetch_add(1, Relaxed),
            Ok(false) => {}
            Err(_) => panic!("nobody closed it"),
        }
    }
}

/// Two push while the worker looks and falls asleep: nothing is lost, and who slept was kicked once.
#[test]
fn who_sleeps_is_kicked_once_and_nothing_is_lost() {
    model(|| {
        let remote = Remote::new();
        let pushers = [1, 2].map(|number| {
            let remote = remote.clone();
            thread::spawn(move || remote.push(number))
        });
        let mut seen = open(remote.inbox.take());
        let slept = remote.inbox.try_park();
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        let kicks = remote.kicks.load(Relaxed);
        let rest = open(remote.inbox.take());
        if slept {
            assert_eq!(kicks, usize::from(!rest.is_empty()), "one kick a sleep, if something came");
        } else {
            assert!(!rest.is_empty(), "it did not fall asleep though nothing came");
            assert_eq!(kicks, 0);
        }
        seen.extend(rest);
        seen.sort();
        assert_eq!(seen, [1, 2]);
    });
}

/// What one thread pushes comes out in its order, whoever pushes between.
#[test]
fn what_one_pushed_comes_in_its_order() {
    model(|| {
        let remote = Remote::new();
        let pushers = [[1, 2], [11, 12]].map(|numbers| {
            let remote = remote.clone();
            thread::spawn(move || numbers.into_iter().for_each(|number| remote.push(number)))
        });
        let mut seen = open(remote.inbox.take());
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        seen.extend(open(remote.inbox.take()));
        for [first, second] in [[1, 2], [11, 12]] {
            let at = |number| seen.iter().position(|seen| *seen == number).expect("lost");
            assert!(at(first) < at(second), "{seen:?}");
        }
        assert_eq!(seen.len(), 4);
    });
}

/// The worker and one that pulls take at the same time, while somebody pushes.
#[test]
fn two_that_take_share_what_came() {
    model(|| {
        let remote = Remote::new();
        remote.push(1);
        let pusher = thread::spawn({
            let remote = remote.clone();
            move || remote.push(2)
        });
        let puller = thread::spawn({
            let remote = remote.clone();
            move || open(remote.inbox.take())
        });
        let mut seen = open(remote.inbox.take());
        pusher.join().unwrap();
        seen.extend(puller.join().unwrap());
        seen.extend(open(remote.inbox.take()));
        seen.sort();
        assert_eq!(seen, [1, 2]);
    });
}

/// Closing hands out what came before; what comes after goes back to who pushed it. Nothing is in between.
#[test]
fn who_comes_too_late_keeps_what_he_has() {
    model(|| {
        let remote = Remote::new();
        let pushers = [1, 2].map(|number| {
            let remote = remote.clone();
            thread::spawn(move || remote.inbox.push(Item::new(number)).err().map(|item| item.open()))
        });
        let mut seen = open(remote.inbox.close());
        for pusher in pushers {
            seen.extend(pusher.join().unwrap());
        }
        seen.sort();
        assert_eq!(seen, [1, 2]);
        assert!(!remote.inbox.try_park() && !remote.inbox.try_unpark());
    });
}

/// Two that try_unpark, and one that pushes: one of them all ended the sleep, and it sees why.
#[test]
fn one_of_all_who_rouse_ended_the_sleep() {
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
        assert_eq!(mine + theirs + remote.kicks.load(Relaxed), 1);
        assert!(!remote.inbox.is_parked());
        assert_eq!(open(remote.inbox.take()), [1]);
    });
}

/// Who is roused sees what the other did before: here, that it is over.
#[test]
fn who_was_roused_sees_why() {
    model(|| {
        let (remote, why) = (Remote::new(), Arc::new(UnsafeCell::new(false)));
        assert!(remote.inbox.try_park());
        let unparker = thread::spawn({
            let (remote, why) = (remote.clone(), why.clone());
            move || {
                // SAFETY: who sleeps does not look before it is roused; loom checks it.
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

/// `Worker::idle` against `Shared::notify_parked`, `notify_for_inject` and `Runtime::end`: who sleeps, then looks; who makes
/// work (or an end), then looks who sleeps. One of the two sees the other. Both fences are needed.
#[test]
fn who_falls_asleep_sees_the_work_or_is_roused_for_it() {
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
        assert!(has_seen || is_unparked, "it sleeps beside work, and nobody knows");
    });
}

/// The watch: who wakes while it is appointed sees that it is, or who appointed it sees that it is awake.
#[test]
fn who_wakes_while_it_is_appointed_is_not_the_watcher_unawares() {
    model(|| {
        let (remote, who) = (Remote::new(), Arc::new(AtomicUsize::new(0)));
        assert!(remote.inbox.try_park());
        let appointer = thread::spawn({
            let (remote, who) = (remote.clone(), who.clone());
            move || {
                who.store(1, Relaxed);
                fence(SeqCst);
                !remote.inbox.is_parked()
            }
        });
        assert!(remote.inbox.try_unpark());
        fence(SeqCst);
        let knows = who.load(Relaxed) == 1;
        assert!(appointer.join().unwrap() || knows, "it works, and all take it for the watcher");
    });
}
