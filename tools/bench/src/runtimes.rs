//! The runtimes and policies that `bench wake` and `bench http` compare. Each has its default settings, except for the
//! number of its threads and for what the variant's name says.
//!
//! A runtime of this file is made at its first use and lives as long as the process; its threads wait while other
//! runtimes are measured. Each has a worker for each CPU of [`cpus`]. On two CPUs the runtimes of `bench http` have
//! twelve workers, and smol has a reactor; the workers of the runtimes that are not measured are parked. Each policy of
//! Warmcore is a separate runtime.
//!
//! Source: the documentation of tokio and smol.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Once, OnceLock};
use tokio::runtime::{Builder, Handle};
use warmcore_runtime::{PolicyKind, Runtime};
use warmcore_sys::affinity;
use warmcore_types::CpuId;

/// A variant of the cases: a runtime that is made in a certain way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contender {
    /// Warmcore's runtime with its default policy. The promises are about this one.
    Ours,
    /// Warmcore with a queue per last-level cache and Linux's placement of woken tasks, after the patches `shared_runq`
    /// for Linux.
    OursSharedQueue,
    /// Warmcore's runtime, whose tasks have no tenant.
    OursWithoutTenants,
    /// Warmcore whose workers share one driver, as in adopted programs.
    OursShared,
    /// Tokio's multi-threaded runtime with default settings and a worker for each CPU.
    Tokio,
    /// As `Tokio`, with each worker pinned to a CPU if the kernel permits it.
    TokioPinned,
    /// One of tokio's single-threaded runtimes on each CPU.
    TokioPerCore,
    /// Smol's executor on a thread for each CPU.
    Smol,
    /// Rayon's thread pool.
    Rayon,
    /// No runtime: one thread, in a loop.
    Alone,
    /// Go's runtime, in a separate process.
    Go,
}

impl Contender {
    /// The name, as in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "warmcore",
            Self::OursSharedQueue => "warmcore shared queue",
            Self::OursWithoutTenants => "warmcore, no tenants",
            Self::OursShared => "warmcore, shared driver",
            Self::Tokio => "tokio",
            Self::TokioPinned => "tokio pinned",
            Self::TokioPerCore => "tokio per core",
            Self::Smol => "smol",
            Self::Rayon => "rayon",
            Self::Alone => "one thread",
            Self::Go => "go",
        }
    }

    /// Whether the variant is one of Warmcore's runtimes.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::OursSharedQueue | Self::OursWithoutTenants | Self::OursShared)
    }
}

/// The CPUs that this process may use, or CPU 0 if that can't be found: each runtime has a worker for each.
pub fn cpus() -> &'static [CpuId] {
    static CPUS: OnceLock<Vec<CpuId>> = OnceLock::new();
    CPUS.get_or_init(|| affinity::allowed_to_main().map_or(vec![CpuId(0)], |cpus| cpus.iter().collect()))
}

/// Warmcore's runtime with this policy and otherwise default settings. Panics if the policy is none of
/// [`PolicyKind::all`].
pub fn ours(policy: PolicyKind) -> &'static Runtime {
    static RUNTIMES: [OnceLock<Runtime>; PolicyKind::all().len()] =
        [const { OnceLock::new() }; PolicyKind::all().len()];
    let at = PolicyKind::all().iter().position(|one| *one == policy).expect("a policy with a name");
    RUNTIMES[at].get_or_init(|| make("warmcore", policy, false))
}

/// Warmcore's runtime with one driver for all its workers.
pub fn ours_shared() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| make("shared", PolicyKind::Home, true))
}

fn make(name: &str, policy: PolicyKind, shares: bool) -> Runtime {
    let builder = Runtime::builder().worker_threads(cpus().len()).policy(policy).share_drivers(shares);
    let builder = if shares { builder.pin(false) } else { builder };
    builder.name(name).build().expect("threads and descriptors can be had")
}

/// Tokio's multi-threaded runtime, with default settings or with each worker pinned to a CPU: one handle, as a slice.
pub fn tokio_threads(is_pinned: bool) -> &'static [Handle] {
    static HANDLES: [OnceLock<[Handle; 1]>; 2] = [const { OnceLock::new() }; 2];
    HANDLES[usize::from(is_pinned)].get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(cpus().len()).enable_all();
        builder.thread_name(if is_pinned { "tokio-pinned" } else { "tokio" });
        if is_pinned {
            let next = AtomicUsize::new(0);
            builder.on_thread_start(move || {
                // An error is ignored: the worker then runs unpinned, and `warmcore doctor` reports that pinning fails.
                let _ = affinity::pin(cpus()[next.fetch_add(1, Relaxed) % cpus().len()]);
            });
        }
        let runtime = builder.build().expect("threads and an epoll instance can be had");
        let handle = runtime.handle().clone();
        // Never drop the runtime: that would end it.
        std::mem::forget(runtime);
        [handle]
    })
}

/// One single-threaded tokio runtime for each CPU, on a thread that is pinned to it if the kernel permits it: a task
/// stays on its runtime's thread.
pub fn tokio_per_core() -> &'static [Handle] {
    static HANDLES: OnceLock<Vec<Handle>> = OnceLock::new();
    let start = |&cpu: &CpuId| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("an epoll instance can be had");
        let handle = runtime.handle().clone();
        let work = move || {
            let _ = affinity::pin(cpu);
            runtime.block_on(std::future::pending::<()>());
        };
        std::thread::Builder::new().name("per-core".into()).spawn(work).expect("a thread can be had");
        handle
    };
    HANDLES.get_or_init(|| cpus().iter().map(start).collect())
}

/// Smol's executor on a thread for each CPU, made in the same way as smol's global executor.
pub fn smol_threads() -> &'static smol::Executor<'static> {
    static EXECUTOR: smol::Executor<'static> = smol::Executor::new();
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        for _ in cpus() {
            let work = || smol::block_on(EXECUTOR.run(std::future::pending::<()>()));
            std::thread::Builder::new().name("smol".into()).spawn(work).expect("a thread can be had");
        }
    });
    &EXECUTOR
}

/// Rayon's pool, with a thread for each CPU.
pub fn rayon_pool() -> &'static rayon::ThreadPool {
    static POOL: OnceLock<rayon::ThreadPool> = OnceLock::new();
    POOL.get_or_init(|| {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(cpus().len());
        builder.build().expect("threads can be had")
    })
}
