#![doc = include_str!("../README.md")]

pub use real::*;

#[cfg(all(target_os = "linux", feature = "rt-multi-thread"))]
mod count;
#[cfg(all(target_os = "linux", feature = "rt-multi-thread"))]
pub mod runtime;
#[cfg(all(target_os = "linux", feature = "rt-multi-thread"))]
pub mod task;
#[cfg(all(target_os = "linux", feature = "rt-multi-thread", feature = "test-util"))]
pub mod time;

#[cfg(all(target_os = "linux", feature = "rt-multi-thread"))]
pub use task::spawn;
#[cfg(all(target_os = "linux", feature = "warmcore_test_multi_thread"))]
pub use warmcore_runtime_derive::test_multi_thread as test;

/// What is Warmcore's and not tokio's.
#[cfg(all(target_os = "linux", feature = "rt-multi-thread"))]
#[doc(hidden)]
pub mod warmcore {
    pub use crate::count::polls;
    /// The attribute to which [`warmcore_runtime_derive::test_multi_thread`] adds a flavor.
    #[cfg(feature = "warmcore_test_multi_thread")]
    pub use real::test;
}
