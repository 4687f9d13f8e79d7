#![doc = include_str!("../README.md")]

mod cpu_set;
mod growing_table;
pub use cpu_set::{CpuSet, ListError};
pub use growing_table::GrowingTable;

use std::fmt;
use std::sync::{LockResult, PoisonError};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the number as an index.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

id!(/** A logical CPU, by the kernel's number. The numbers may have gaps and exceed 1024. */ CpuId, "cpu");
id!(/** A concurrency id: the index of a slot of a tenant's data. At most one thread holds it at a time. */ Cid, "cid");
id!(/** A physical core: the CPUs of one core are SMT siblings. Numbered without gaps. */ CoreId, "core");
id!(/** A last-level cache: the CPUs that share it. Numbered without gaps. */ LlcId, "llc");
id!(/** A NUMA node, by the kernel's number. The numbers may have gaps: node 0 may be missing. */ NodeId, "node");
id!(/** A socket (package). Numbered without gaps. */ SocketId, "socket");

/// What the kernel has counted of a thread so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadUsage {
    /// The thread's CPU time.
    pub cpu: Nanos,
    /// How often another thread got the CPU although this one could run.
    pub preempted: u64,
    /// How often the thread waited in the kernel.
    pub waited: u64,
}

/// A span of time, or a point on a clock that the caller chose, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

/// Returns the guard in `result`, also if a thread panicked while it held the lock. For data that is consistent
/// wherever a panic may occur while the lock is held.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_prints_its_type() {
        assert_eq!(format!("{} {:?} {}", CpuId(1024), Cid(3), LlcId(0)), "cpu1024 cid3 llc0");
        assert_eq!(format!("{:?}", Nanos(7)), "7 ns");
    }
}
