//! Padded: a value on cache lines of its own.
//!
//! The alignment is [`PAIR`](crate::PAIR), so the size is a multiple of that, and no data outside of the `Padded` is on
//! its lines.
//!
//! # Cost
//!
//! A `Padded<AtomicU64>` takes 128 bytes instead of 8, on s390x 256. One per CPU on 384 CPUs takes 48 KiB, on s390x 96
//! KiB.
//!
//! # Source
//!
//! crossbeam-utils `CachePadded`, which also uses 128 bytes on x86-64 and aarch64, but less on some other targets.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// A value on aligned pairs of cache lines that no other data shares.
///
/// **Touches** the lines of the value only; an access does not touch the padding.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use warmcore_line::{PAIR, Padded};
///
/// static REFS: Padded<AtomicU64> = Padded::new(AtomicU64::new(1));
/// REFS.fetch_add(1, Ordering::Relaxed);
/// assert_eq!(size_of_val(&REFS), PAIR);
/// assert_eq!(&raw const REFS as usize % PAIR, 0);
/// ```
// The literals equal `PAIR`, since repr accepts no constant; a test checks them.
#[cfg_attr(target_arch = "s390x", repr(align(256)))]
#[cfg_attr(not(target_arch = "s390x"), repr(align(128)))]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Padded<T> {
    value: T,
}

impl<T> Padded<T> {
    /// Wraps `value` in padding.
    #[inline]
    pub const fn new(value: T) -> Self {
        Padded { value }
    }

    /// Returns the value without its padding.
    #[inline]
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Padded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> From<T> for Padded<T> {
    #[inline]
    fn from(value: T) -> Self {
        Padded::new(value)
    }
}

impl<T: fmt::Debug> fmt::Debug for Padded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAIR;

    #[test]
    fn a_padded_value_fills_whole_pairs() {
        assert_eq!((align_of::<Padded<u8>>(), size_of::<Padded<u8>>()), (PAIR, PAIR));
        assert_eq!(size_of::<Padded<[u8; PAIR + 1]>>(), 2 * PAIR);
    }

    #[test]
    fn neighbours_in_an_array_share_no_pair() {
        let both = [Padded::new(1u8), Padded::new(2u8)];
        let pair = |value: &u8| std::ptr::from_ref(value) as usize / PAIR;
        assert_ne!(pair(&both[0]), pair(&both[1]));
    }

    #[test]
    fn a_padded_value_derefs_prints_and_clones_as_the_value() {
        let mut name = Padded::from(String::from("warm"));
        name.push('!');
        assert_eq!(format!("{name:?}"), "\"warm!\"");
        assert_eq!(name.clone().into_inner(), "warm!");
        assert_eq!(*Padded::<u64>::default(), 0);
    }
}
