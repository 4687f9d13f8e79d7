//! Locks whose poisoning means nothing.

use std::sync::{LockResult, PoisonError};

/// The guard, also after a panic in another thread that held the lock: for data that is consistent between any two
/// steps that could panic.
///
/// ```
/// # use std::sync::Mutex;
/// # use warmcore_types::ignore_poison;
/// let numbers = Mutex::new(vec![1]);
/// ignore_poison(numbers.lock()).push(2);
/// assert_eq!(*ignore_poison(numbers.lock()), [1, 2]);
/// ```
pub fn ignore_poison<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
