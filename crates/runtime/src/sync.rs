//! Atomics, locks and threads, in one place where loom and shuttle can replace them.
//!
//! The cfg for loom is `warmcore_loom`, because tokio compiles no sockets under `loom`, and the default driver and other
//! tests need them.
//! Loom's models test single modules and start no worker, so they use the system's threads and condition variables.

#[cfg(warmcore_loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(any(warmcore_loom, shuttle)))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(warmcore_loom))]
pub(crate) use cell::UnsafeCell;
#[cfg(warmcore_loom)]
pub(crate) use loom::cell::UnsafeCell;

#[cfg(not(warmcore_loom))]
mod cell {
    /// [`std::cell::UnsafeCell`] with the methods of loom's.
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

/// Threads and condition variables.
pub(crate) mod threads {
    #[cfg(shuttle)]
    pub(crate) use shuttle::{
        sync::{Condvar, Mutex, MutexGuard},
        thread::current,
    };
    #[cfg(not(shuttle))]
    pub(crate) use std::{
        sync::{Condvar, Mutex, MutexGuard},
        thread::{Builder, JoinHandle, current, sleep},
    };

    #[cfg(shuttle)]
    pub(crate) use model::{Builder, JoinHandle, sleep};

    /// Shuttle's threads, with the methods of `std::thread` that they lack.
    #[cfg(shuttle)]
    mod model {
        use shuttle::thread;
        use std::io;
        use std::time::Duration;

        /// Lets other threads run.
        pub(crate) fn sleep(_time: Duration) {
            thread::yield_now();
        }

        pub(crate) struct Builder(thread::Builder);

        impl Builder {
            pub(crate) fn new() -> Self {
                Self(thread::Builder::new())
            }

            pub(crate) fn name(self, name: String) -> Self {
                Self(self.0.name(name))
            }

            pub(crate) fn stack_size(self, bytes: usize) -> Self {
                Self(self.0.stack_size(bytes))
            }

            pub(crate) fn spawn<T: Send + 'static>(
                self,
                main: impl FnOnce() -> T + Send + 'static,
            ) -> io::Result<JoinHandle<T>> {
                self.0.spawn(main).map(JoinHandle)
            }
        }

        pub(crate) struct JoinHandle<T>(thread::JoinHandle<T>);

        impl<T> JoinHandle<T> {
            pub(crate) fn thread(&self) -> &thread::Thread {
                self.0.thread()
            }

            /// Always true: in a model the caller joins, and waits.
            pub(crate) fn is_finished(&self) -> bool {
                true
            }

            pub(crate) fn join(self) -> thread::Result<T> {
                self.0.join()
            }
        }
    }
}
