//! Executor: spawns the tasks that hyper needs: streams of HTTP/2, and connections of a client.

use warmcore_runtime::{Handle, TaskBuilder};
use warmcore_tenant::Tenant;

/// A `hyper::rt::Executor` for servers and clients, which spawns on a runtime of `warmcore-runtime`.
#[derive(Debug, Clone)]
pub struct Executor {
    pub(crate) handle: Handle,
    tenant: Option<Tenant>,
}

impl Executor {
    /// Makes an executor that spawns on the handle's runtime.
    pub fn new(handle: Handle) -> Self {
        Self { handle, tenant: None }
    }

    /// Makes an executor that spawns on the current thread's runtime. Panics if the thread is inside none.
    #[track_caller]
    pub fn current() -> Self {
        Self::new(Handle::current())
    }

    /// Sets the tenant of the tasks that the executor spawns.
    pub fn tenant(self, tenant: &Tenant) -> Self {
        Self { tenant: Some(tenant.clone()), ..self }
    }

    /// A builder of tasks with the executor's tenant.
    pub(crate) fn task_builder(&self) -> TaskBuilder {
        let task = self.handle.task_builder();
        match &self.tenant {
            Some(tenant) => task.tenant(tenant),
            None => task,
        }
    }
}

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        // Detached: hyper learns of the task's end through its own channels.
        drop(self.task_builder().spawn(future));
    }
}
