//! Loom models of the `atomic` backend's stacks. Run by `cargo xtask test --full`.

use super::*;
use crate::sync::Mutex;
use ::loom::{cell::UnsafeCell, model, sync::Arc, thread};
use warmcore_types::ignore_poison;

/// Stacks with a capacity of 2 items.
fn stacks() -> Arc<Stacks> {
    Arc::new(Stacks { words: Words::for_model(1, ITEMS + 2), capacity: 2 })
}

/// An item is an address: the thread that pops it must see what was written to that address before the push.
#[test]
fn an_item_is_seen_with_its_contents() {
    model(|| {
        let stacks = stacks();
        let content = Arc::new(UnsafeCell::new(0));
        let pusher = thread::spawn({
            let (stacks, content) = (stacks.clone(), content.clone());
            move || {
                // SAFETY: no thread reads the content before the item is pushed.
                content.with_mut(|c| unsafe { *c = 7 });
                stacks.try_lock(0).is_some_and(|stack| stack.push(1))
            }
        });
        if stacks.try_lock(0).and_then(|stack| stack.pop()).is_some() {
            // SAFETY: this thread popped it. Loom fails the test if the write does not happen before this.
            content.with(|c| assert_eq!(unsafe { *c }, 7));
        }
        pusher.join().unwrap();
    });
}

#[test]
fn an_item_is_popped_once() {
    model(|| {
        let stacks = stacks();
        assert!(stacks.try_lock(0).unwrap().push(1));
        let popper = thread::spawn({
            let stacks = stacks.clone();
            move || stacks.try_lock(0).and_then(|stack| stack.pop())
        });
        let (ours, theirs) = (stacks.try_lock(0).and_then(|stack| stack.pop()), popper.join().unwrap());
        assert!(ours.is_none() || theirs.is_none(), "both got {ours:?}");
        let left = stacks.try_lock(0).unwrap().pop();
        assert_eq!([ours, theirs, left].iter().flatten().count(), 1);
    });
}

#[test]
fn successive_drains_lose_and_repeat_nothing() {
    model(|| {
        let (stacks, depot) = (stacks(), Arc::new(Mutex::new(Vec::new())));
        let pusher = thread::spawn({
            let (stacks, depot) = (stacks.clone(), depot.clone());
            move || (1..=3).for_each(|item| stacks.push_or(0, item, || ignore_poison(depot.lock())))
        });
        let drain = || {
            let mut depot = ignore_poison(depot.lock());
            let mut items = std::mem::take(&mut *depot);
            stacks.drain_into(&mut items);
            items
        };
        let mut all = drain();
        pusher.join().unwrap();
        all.extend(drain());
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    });
}
