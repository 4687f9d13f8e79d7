//! Locks whose poisoning is ignored.

use std::sync::{LockResult, PoisonError};

/// Returns the guard, also if another thread panicked while it held the lock. For data that is consistent at each
/// point where a panic could occur.
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
