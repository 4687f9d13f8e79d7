//! Loom models of the `atomic` backend's sum. Run by `cargo xtask test --full`.

use super::*;
use crate::sync::AtomicU64;
use ::loom::{model, sync::Arc, thread};

impl Sum {
    /// A sum before its first add.
    fn unbound_for_model() -> Self {
        Self {
            active: AtomicPtr::new(std::ptr::null_mut()),
            words: OnceLock::new(),
            state: Padded::new(Mutex::new(SumState::default())),
        }
    }

    fn for_model() -> Self {
        let sum = Self::unbound_for_model();
        sum.bind(&SumState::default());
        sum
    }

    fn add_in(&self, slot: usize, n: u64) {
        self.add_to(|_| slot, n);
    }

    fn exact_locked(&self) -> u64 {
        let state = ignore_poison(self.state.lock());
        match self.words.get() {
            Some(words) => self.exact_with_locked_adds(words, &state),
            None => state.direct,
        }
    }
}

/// Two threads make the first add at the same time, while a third reads.
#[test]
fn first_adds_are_counted_once() {
    model(|| {
        let sum = Arc::new(Sum::unbound_for_model());
        let adder = thread::spawn({
            let sum = sum.clone();
            move || {
                sum.add_in(0, 1); // x
                sum.add_in(1, 10); // y
            }
        });
        let other = thread::spawn({
            let sum = sum.clone();
            move || sum.add_in(0, 100)
        });
        let seen = sum.exact_locked();
        assert_ne!(seen % 100, 10, "it contains y, but not x before it");
        adder.join().unwrap();
        other.join().unwrap();
        assert_eq!(sum.exact_locked(), 111);
    });
}

/// Add x happens before add y. They are in different slots, which the reader reads one after the other.
#[test]
fn a_snapshot_is_one_moment() {
    model(|| {
        let sum = Arc::new(Sum::for_model());
        let adder = thread::spawn({
            let sum = sum.clone();
            move || {
                sum.add_in(0, 1); // x
                sum.add_in(1, 10); // y
            }
        });
        let seen = sum.exact_locked();
        assert_ne!(seen, 10, "it contains y, but not x before it");
        adder.join().unwrap();
        assert_eq!(sum.exact_locked(), 11);
    });
}

/// Add x happens before add y, which another thread begins after x returned.
#[test]
fn a_snapshot_is_one_moment_across_threads() {
    model(|| {
        let (sum, told) = (Arc::new(Sum::for_model()), Arc::new(AtomicU64::new(0)));
        let x = thread::spawn({
            let (sum, told) = (sum.clone(), told.clone());
            move || {
                sum.add_in(0, 1);
                told.store(1, Release);
            }
        });
        let y = thread::spawn({
            let (sum, told) = (sum.clone(), told.clone());
            move || {
                if told.load(Acquire) == 1 {
                    sum.add_in(1, 10);
                }
            }
        });
        assert_ne!(sum.exact_locked(), 10, "it contains y, but not x before it");
        x.join().unwrap();
        y.join().unwrap();
    });
}

#[test]
fn successive_drains_lose_and_repeat_nothing() {
    model(|| {
        let sum = Arc::new(Sum::for_model());
        let adders: Vec<_> = (0..2)
            .map(|slot| {
                let sum = sum.clone();
                thread::spawn(move || sum.add_in(slot, 1 + 9 * slot as u64))
            })
            .collect();
        let first = sum.drain();
        let second = sum.drain();
        adders.into_iter().for_each(|a| a.join().unwrap());
        assert_eq!(first + second + sum.drain(), 11);
        assert_eq!(sum.sum(), 0);
    });
}

#[test]
fn two_on_one_slot_lose_nothing() {
    model(|| {
        let sum = Arc::new(Sum::for_model());
        let other = thread::spawn({
            let sum = sum.clone();
            move || sum.add_in(0, 1)
        });
        sum.add_in(0, 1);
        other.join().unwrap();
        assert_eq!(sum.sum(), 2);
    });
}
