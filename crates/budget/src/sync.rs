//! The seam through which atomics and locks enter, so that loom can stand in for them.

#[cfg(loom)]
pub(crate) use self::seen::{AtomicU32, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

/// Locks, also after a panic elsewhere: what is under these locks is whole between any two steps
/// that could panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits a little for somebody who is in the middle of a few instructions, or was preempted there.
/// It sleeps before long: a thread of higher priority that spun would keep that one from its CPU.
pub(crate) fn pause(tries: u32) {
    #[cfg(loom)]
    {
        let _ = tries;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    match tries {
        0..16 => std::hint::spin_loop(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

/// Of all accesses to an atomic, loom 0.7 remembers the last one only, to tell which orders are worth a
/// try: a thread that loads, and then swaps, hides from it who had looked before. So here each access
/// comes after one to a second atomic beside it, a swap that always fails: loom takes any two of them
/// for rivals, and they order nothing.
#[cfg(loom)]
mod seen {
    use loom::sync::atomic::{self as base, Ordering};

    macro_rules! atomic {
        ($Atomic:ident, $value:ty, $($act:ident)+) => {
            #[derive(Debug)]
            pub(crate) struct $Atomic {
                atomic: base::$Atomic,
                seen: base::AtomicBool,
            }

            impl $Atomic {
                pub(crate) fn new(value: $value) -> Self {
                    Self { atomic: base::$Atomic::new(value), seen: base::AtomicBool::new(false) }
                }

                fn see(&self) -> &base::$Atomic {
                    let _ = self.seen.compare_exchange(true, true, Ordering::Relaxed, Ordering::Relaxed);
                    &self.atomic
                }

                pub(crate) fn load(&self, order: Ordering) -> $value {
                    self.see().load(order)
                }

                #[allow(dead_code, reason = "which of them are used, is elsewhere's")]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    self.see().store(value, order);
                }

                $(
                    #[allow(dead_code, reason = "as above")]
                    pub(crate) fn $act(&self, value: $value, order: Ordering) -> $value {
                        self.see().$act(value, order)
                    }
                )+

                #[allow(dead_code, reason = "as above")]
                pub(crate) fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.see().compare_exchange(old, new, success, failure)
                }

                #[allow(dead_code, reason = "as above")]
                pub(crate) fn compare_exchange_weak(
                    &self,
                    old: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.see().compare_exchange(old, new, success, failure)
                }
            }

            impl Default for $Atomic {
                fn default() -> Self {
                    Self::new(0)
                }
            }
        };
    }

    atomic!(AtomicU32, u32, swap fetch_add fetch_sub fetch_or fetch_and);
    atomic!(AtomicU64, u64, swap fetch_add fetch_sub fetch_or fetch_and fetch_max);
}
