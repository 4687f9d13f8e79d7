//! Ours: our runtime as a host, by each of its policies.
//!
//! Model.   As its users have it: a worker per CPU, nothing tuned. Spawning from a task goes by the runtime that
//!          the task is in; two tenants of equal weight stand for the noisy neighbour and the other one.
//! Number.  Two runtimes if both policies run: four threads on two CPUs, asleep while others run.

use super::executor::{Executor, Job, Tenancy};
use crate::runtimes;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;
use warmcore_runtime::{JoinHandle, PolicyKind, Runtime};
use warmcore_tenant::Tenant;

/// A policy of our runtime, as it can be asked for from another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// The one that makes promises.
    Home,
    /// A queue per last-level cache, as published.
    SharedQueue,
}

/// Our runtime.
#[derive(Clone, Copy)]
pub struct Ours {
    runtime: &'static Runtime,
    has_tenants: bool,
}

impl Ours {
    /// By a policy.
    pub fn get(policy: Policy) -> Self {
        let runtime = runtimes::ours(match policy {
            Policy::Home => PolicyKind::Home,
            Policy::SharedQueue => PolicyKind::SharedQueue,
        });
        Self { runtime, has_tenants: true }
    }

    /// By the policy that promises; all tasks are of no tenant, as those of the other hosts.
    pub fn without_tenants() -> Self {
        Self { has_tenants: false, ..Self::get(Policy::Home) }
    }
}

fn tenant(of: Tenancy) -> &'static Tenant {
    static TENANTS: OnceLock<[Tenant; 2]> = OnceLock::new();
    let [hogs, quick] =
        TENANTS.get_or_init(|| ["hogs", "quick"].map(|name| Tenant::builder().name(name).build()));
    if of == Tenancy::Hogs { hogs } else { quick }
}

impl Executor for Ours {
    type Join<T: Send + 'static> = JoinHandle<T>;

    fn block_on<F: Future>(self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    fn spawn<F: Job>(self, future: F) -> Self::Join<F::Output> {
        warmcore_runtime::spawn(future)
    }

    fn spawn_nth<F: Job>(self, _: usize, future: F) -> Self::Join<F::Output> {
        self.runtime.spawn(future)
    }

    fn spawn_for<F: Job>(self, of: Tenancy, _: usize, future: F) -> Self::Join<F::Output> {
        match self.has_tenants {
            true => self.runtime.spawn_in(tenant(of), future),
            false => self.runtime.spawn(future),
        }
    }

    async fn join<T: Send + 'static>(task: Self::Join<T>) -> T {
        task.await.expect("a task of a case neither panics nor is aborted")
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        warmcore_runtime::yield_now()
    }

    fn sleep(time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    fn scope(self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        self.runtime.with_context(|| {
            warmcore_runtime::scope(|scope| (0..jobs).for_each(|number| scope.spawn(move || job(number))));
        });
    }
}
