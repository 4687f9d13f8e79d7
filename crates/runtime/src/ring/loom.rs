//! Loom models of the ring. `cargo xtask test --full` runs them.

use super::*;
use crate::inbox::Item;
use ::loom::{
    model::Builder,
    sync::{Arc, Mutex},
    thread,
};
use warmcore_sched::Ring as _;

type Ring = super::Ring<Box<Item>>;

/// What other threads do while the worker pushes and pops.
fn check(others: &'static [fn(&Ring) -> Vec<usize>], pushes: usize) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let ring = Arc::new(Ring::default());
        let taken = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = others
            .iter()
            .map(|other| {
                let (ring, taken) = (ring.clone(), taken.clone());
                thread::spawn(move || taken.lock().unwrap().extend(other(&ring)))
            })
            .collect();
        let mut own = Vec::new();
        for number in 1..=pushes {
            while let Err(_full) = ring.push(Item::new(number)) {
                own.extend(ring.pop().map(|item| item.open()));
            }
        }
        own.extend(ring.pop().map(|item| item.open()));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        while let Some(item) = ring.pop() {
            own.push(item.open());
        }
        assert!(own.is_sorted(), "the worker takes tasks in the order of the pushes: {own:?}");
        let mut all = std::mem::take(&mut *taken.lock().unwrap());
        all.extend(own);
        all.sort_unstable();
        assert_eq!(all, (1..=pushes).collect::<Vec<_>>(), "each task is taken once");
        assert_eq!(ring.len(), 0);
    });
}

fn steal_two(ring: &Ring) -> Vec<usize> {
    let mut taken = Vec::new();
    ring.steal(2, |item| taken.push(item.open()));
    assert!(taken.is_sorted());
    taken
}

#[test]
fn a_task_is_popped_or_stolen() {
    check(&[steal_two], 2);
}

#[test]
fn of_two_steals_each_takes_other_tasks() {
    check(&[steal_two, steal_two], 3);
}

/// The ring has four slots, so the fifth task takes the slot of the first one.
#[test]
fn a_slot_is_used_again_after_its_task_was_taken() {
    check(&[steal_two], 6);
}
