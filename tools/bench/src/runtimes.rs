//! The runtimes that `bench wake` and `bench http` compare. Each is made as its documentation recommends.
//!
//! A runtime is made at its first use and lives as long as the process; its threads sleep while other runtimes are
//! measured. It has a worker for each CPU that the process may use. On two CPUs the runtimes of `bench http` have ten
//! threads and smol's reactor; at any time all but two of them sleep. Each policy of Warmcore is a separate runtime.
//!
//! Source: the documentation of tokio and smol.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::runtime::{Builder, Handle};
use warmcore_runtime::{PolicyKind, Runtime};
use warmcore_sys::affinity;
use warmcore_types::CpuId;

/// The CPUs that this process may use: each runtime has a worker for each.
pub fn cpus() -> &'static [CpuId] {
    static CPUS: OnceLock<Vec<CpuId>> = OnceLock::new();
    CPUS.get_or_init(|| affinity::allowed_to_main().map_or(vec![CpuId(0)], |cpus| cpus.iter().collect()))
}

/// Warmcore's runtime with this policy and otherwise default settings.
pub fn ours(policy: PolicyKind) -> &'static Runtime {
    static RUNTIMES: [OnceLock<Runtime>; PolicyKind::all().len()] =
        [const { OnceLock::new() }; PolicyKind::all().len()];
    RUNTIMES[policy as usize].get_or_init(|| make("warmcore", policy))
}

/// A second runtime of Warmcore's, for servers that place each connection on the least loaded worker: tasks of the other
/// servers must not count as load there.
pub fn ours_apart() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| make("spread", PolicyKind::Home))
}

fn make(name: &str, policy: PolicyKind) -> Runtime {
    let builder = Runtime::builder().worker_threads(cpus().len()).policy(policy).name(name);
    builder.build().expect("threads and descriptors can be had")
}

/// Tokio's multi-threaded runtime, with default settings or with each worker pinned to a CPU.
pub fn tokio_threads(is_pinned: bool) -> &'static tokio::runtime::Runtime {
    static RUNTIMES: [OnceLock<tokio::runtime::Runtime>; 2] = [const { OnceLock::new() }; 2];
    RUNTIMES[usize::from(is_pinned)].get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(cpus().len()).enable_all();
        builder.thread_name(if is_pinned { "tokio-pinned" } else { "tokio" });
        if is_pinned {
            let next = AtomicUsize::new(0);
            builder.on_thread_start(move || {
                // An error is ignored: the variant is then the same as the unpinned one, and `doctor` reports that
                // pinning fails.
                let _ = affinity::pin(cpus()[next.fetch_add(1, Relaxed) % cpus().len()]);
            });
        }
        builder.build().expect("threads and an epoll instance can be had")
    })
}

/// One single-threaded tokio runtime on each CPU, each with a pinned thread: tasks never move.
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
    static EXECUTOR: OnceLock<smol::Executor<'static>> = OnceLock::new();
    static THREADS: OnceLock<()> = OnceLock::new();
    let executor = EXECUTOR.get_or_init(smol::Executor::new);
    THREADS.get_or_init(|| {
        for _ in cpus() {
            let work = || smol::block_on(executor.run(std::future::pending::<()>()));
            std::thread::Builder::new().name("smol".into()).spawn(work).expect("a thread can be had");
        }
    });
    executor
}
