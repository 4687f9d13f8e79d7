//! Warmcore's runtime as an executor, with each of its policies.
//!
//! The runtime has default settings: a worker per CPU. A task spawns on the runtime in which it runs. There are two
//! tenants of equal weight, one for a noisy neighbour and one for the task beside it. If both policies are measured
//! there are two runtimes: on two CPUs they have four workers, which park while other runtimes are measured.

use super::executor::{Executor, Job, Tenancy};
use crate::runtimes;
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;
use warmcore_runtime::{JoinHandle, PolicyKind, Runtime};
use warmcore_tenant::Tenant;

/// Warmcore's runtime.
#[derive(Clone, Copy)]
pub struct Ours {
    runtime: &'static Runtime,
    has_tenants: bool,
}

impl Ours {
    /// The runtime with this policy, which spawns tasks in tenants.
    pub fn get(policy: PolicyKind) -> Self {
        Self { runtime: runtimes::ours(policy), has_tenants: true }
    }

    /// The runtime whose workers share one driver.
    pub fn shared() -> Self {
        Self { runtime: runtimes::ours_shared(), has_tenants: true }
    }

    /// This runtime, whose tasks have no tenant.
    pub fn over(runtime: &'static Runtime) -> Self {
        Self { runtime, has_tenants: false }
    }

    /// The runtime with the default policy, whose tasks have no tenant, as on the other runtimes.
    pub fn without_tenants() -> Self {
        Self { has_tenants: false, ..Self::get(PolicyKind::Home) }
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
