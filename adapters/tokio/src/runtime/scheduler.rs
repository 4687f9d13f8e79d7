//! Scheduler: which runtime a handle belongs to, and what the face keeps for one of Warmcore's.

#[cfg(tokio_unstable)]
use std::sync::Arc;
use warmcore_sys::affinity;

/// The scheduler behind a handle.
#[derive(Debug, Clone)]
pub(crate) enum Scheduler {
    Warm(Warm),
    Tokio(real::runtime::Handle),
}

/// A runtime of Warmcore's.
#[derive(Debug, Clone)]
pub(crate) struct Warm {
    pub(crate) handle: warmcore_runtime::Handle,
}

/// What the face keeps for one of Warmcore's runtimes, in that runtime.
#[derive(Debug)]
pub(crate) struct Attached {
    /// The runtime of tokio's whose threads run the closures of `spawn_blocking`. It has no tasks and no driver.
    pub(crate) blocking: real::runtime::Handle,
    pub(crate) name: Option<String>,
    #[cfg(tokio_unstable)]
    pub(crate) hooks: Option<Arc<super::TaskHooks>>,
    /// Set if `warmcore` built the runtime and not the face, so that no [`Runtime`](super::Runtime) owns the pool.
    pub(crate) _owned: Option<Pool>,
}

/// Lets a thread of the pool run on all CPUs that the process's first thread may use, not only on the CPUs of the worker
/// that started it.
fn leave_the_workers_cpu() {
    // If the system refuses, the thread keeps the worker's CPUs.
    let _ = affinity::allowed_to_main().and_then(|cpus| affinity::set_allowed(&cpus));
}

/// A pool of threads for `spawn_blocking`. Dropping it does not wait for the closures that run.
#[derive(Debug)]
pub(crate) struct Pool(pub(crate) Option<real::runtime::Runtime>);

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(pool) = self.0.take() {
            pool.shutdown_background();
        }
    }
}

impl Warm {
    /// What the face keeps for this runtime. A runtime that the face did not build gets a pool with tokio's limits.
    pub(crate) fn attached(&self) -> &Attached {
        self.handle.attachment(|| {
            let pool = real::runtime::Builder::new_current_thread()
                .thread_name("warmcore-blocking")
                .on_thread_start(leave_the_workers_cpu)
                .build()
                .expect("a runtime of tokio's without drivers needs nothing of the system");
            Attached {
                blocking: pool.handle().clone(),
                name: None,
                #[cfg(tokio_unstable)]
                hooks: None,
                _owned: Some(Pool(Some(pool))),
            }
        })
    }

    /// The runtime of tokio's that runs closures of `spawn_blocking`.
    pub(crate) fn blocking(&self) -> &real::runtime::Handle {
        &self.attached().blocking
    }
}

impl Scheduler {
    /// The scheduler of the current thread's runtime.
    pub(crate) fn try_current() -> Result<Self, real::runtime::TryCurrentError> {
        match warmcore_runtime::Handle::try_current() {
            Some(handle) => Ok(Self::Warm(Warm { handle })),
            None => real::runtime::Handle::try_current().map(Self::Tokio),
        }
    }
}
