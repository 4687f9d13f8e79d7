//! Spawn: `TaskBuilder`, which gives a task its name, tenant and placement, and the functions that spawn.

use crate::context;
use crate::error::field;
use crate::header::TaskAttrs;
use crate::join::JoinHandle;
use crate::shared::{SchedulerRef, Shared};
use crate::task_cell::future::make;
use crate::tenant_stats::TenantRef;
use std::fmt;
use std::future::poll_fn;
use std::panic::Location;
use std::sync::Arc;
use std::task::Poll;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use warmcore_budget::process::unaccounted;
use warmcore_record::TaskRecord;
use warmcore_sched::Allowed;
use warmcore_tenant::Tenant;
use warmcore_types::{CpuId, LlcId, NodeId};

/// Panics because a call needs a runtime and this thread is inside none.
#[track_caller]
pub(crate) fn no_runtime() -> ! {
    // A program that came from tokio may still have `#[tokio::main]`.
    let tokios = match warmcore_driver::is_inside_tokio() {
        true => {
            "; the runtime of tokio's that is here is not one: `#[warmcore::main]` in the place of `#[tokio::main]` \
             makes one, and a thread of `spawn_blocking` takes a `Handle` along"
        }
        false => "",
    };
    panic!(
        "no runtime here: call this from a task, inside Runtime::block_on or Runtime::enter, or use \
         Runtime::spawn{tokios}"
    )
}

/// Where a task may run.
///
/// Two tasks that read the same table run on one last-level cache, which then holds the table once:
///
/// ```
/// use std::sync::Arc;
/// use warmcore_runtime::{Placement, Runtime};
///
/// let runtime = Runtime::new()?;
/// let near = Placement::llc(runtime.metrics().workers[0].llc);
/// let table: Arc<[u64]> = (0..1000).collect();
/// let halves = [0..500, 500..1000].map(|half| {
///     let table = table.clone();
///     runtime.task_builder().placement(near).spawn(async move { table[half].iter().sum::<u64>() })
/// });
/// let mut sum = 0;
/// for half in halves {
///     sum += runtime.block_on(half)?;
/// }
/// assert_eq!(sum, 499_500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// On any worker.
    #[default]
    Anywhere,
    /// On the worker of this CPU alone; if several workers share the CPU, on the first of them.
    Cpu(CpuId),
    /// On the workers of one last-level cache.
    Llc(LlcId),
    /// On the workers of one NUMA node.
    Node(NodeId),
}

impl Placement {
    /// On the worker of this CPU alone: [`Placement::Cpu`].
    pub const fn cpu(cpu: u32) -> Self {
        Self::Cpu(CpuId(cpu))
    }

    /// On the workers of this last-level cache, as `warmcore topo` numbers them.
    pub const fn llc(llc: u32) -> Self {
        Self::Llc(LlcId(llc))
    }

    /// On the workers of this NUMA node.
    pub const fn node(node: u32) -> Self {
        Self::Node(NodeId(node))
    }
}

/// Sets the attributes of a task and spawns it. [`Runtime::task_builder`](crate::Runtime::task_builder) and
/// [`task_builder`] return one.
///
/// A task for a customer runs with the customer's share of the workers, and long polls are reported with its name:
///
/// ```
/// use warmcore_runtime::Runtime;
/// use warmcore_tenant::Tenant;
///
/// let runtime = Runtime::new()?;
/// let customer = Tenant::builder().name("customer 7").weight(200).build();
/// let task = runtime.task_builder().name("rebuild the index").tenant(&customer).spawn(async { 42 });
/// assert_eq!(task.name(), Some("rebuild the index"));
/// assert_eq!(runtime.block_on(task)?, 42);
///
/// let tenants = runtime.metrics().tenants;
/// assert_eq!((tenants[0].name.as_str(), tenants[0].weight), ("customer 7", 200));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "`spawn` starts the task"]
pub struct TaskBuilder {
    /// The scheduler of the worker or the thread that spawns. On a worker cloning it touches no cache line that all workers share.
    scheduler: Arc<SchedulerRef>,
    attrs: Option<Box<TaskAttrs>>,
    placement: Placement,
    /// `Some`: the task begins on the less loaded of two of these workers, if it may run on any of them.
    begins_among: Option<Allowed>,
}

impl TaskBuilder {
    pub(crate) fn of(shared: &Arc<Shared>) -> Self {
        Self::at(context::scheduler(shared))
    }

    fn at(scheduler: Arc<SchedulerRef>) -> Self {
        Self { scheduler, attrs: None, placement: Placement::Anywhere, begins_among: None }
    }

    fn attrs(&mut self) -> &mut TaskAttrs {
        self.attrs.get_or_insert_default()
    }

    /// Sets the name that panics, long polls and traces show.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.attrs().name = Some(name.into());
        self
    }

    /// Sets the tenant: polls run with its ids and account, and share the workers by its weight.
    pub fn tenant(mut self, tenant: &Tenant) -> Self {
        // SAFETY: the task's scheduler keeps the runtime, and with it the counters, for longer than the task counts.
        let tenant = unsafe { self.scheduler.shared.tenant_stats.tenant_ref(tenant) };
        self.attrs().tenant = Some(tenant);
        self
    }

    /// Sets the span that the task's polls are in. Without it they are in a span `task` of the target `warmcore::task`, with
    /// the fields `name` and `tenant`, if a subscriber listens to that target at level `trace`. That span has no parent,
    /// because a task may outlive the code that spawned it.
    pub fn span(mut self, span: tracing::Span) -> Self {
        self.attrs().span = Some(span);
        self
    }

    /// Sets where the task may run. [`spawn`](Self::spawn) panics if the runtime has no worker there.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Starts the task on the less loaded of two workers, and not near the task that spawns it. The two are the next
    /// worker in turn and a random worker, of the workers on which the task may run. If both are in a long poll, or
    /// have ended, the others are compared too. Tasks of `tokio::spawn` count as load, tasks that were spawned otherwise from the end of
    /// their first poll on.
    ///
    /// Use it for tasks that live long and have their own sockets. A socket is driven by the worker on which it was
    /// created, so a connection that its task creates (`TcpStream::from_std`) is driven by the worker on which the task
    /// begins.
    pub fn least_loaded(mut self) -> Self {
        self.begins_among = Some(Allowed::Anywhere);
        self
    }

    /// As [`least_loaded`](Self::least_loaded), among the workers of one last-level cache. Later the task may run on
    /// other workers too. If the runtime has no worker there the call has no effect.
    pub fn least_loaded_in(mut self, llc: LlcId) -> Self {
        self.begins_among = Some(Allowed::Llc(llc));
        self
    }

    /// Spawns the task. Panics if the runtime has no worker where the task may run.
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let allowed = self.allowed();
        let begins_on =
            self.begins_among.and_then(|among| self.scheduler.shared.least_loaded(allowed, among));
        let attrs = recorded(in_span(self.attrs));
        // SAFETY: the future and its output are `Send` and `'static`.
        let (task, handle) = unsafe { make(self.scheduler, allowed, attrs, future) };
        if let Some(worker) = begins_on {
            // It counts as that worker's load from now on.
            handle.enter_owned_tasks(handle.as_ptr(), worker);
        }
        // SAFETY: `make` made the task of an `F`, and returned the reference of its one handle.
        let handle = unsafe { JoinHandle::<F::Output>::new(handle) };
        if task.header().is_refused()
            && context::with_worker_of(&handle.scheduler().shared, |worker| worker.is_none())
        {
            // As with tokio, the future is dropped here. What a worker's thread spawns is queued instead: if it ended at once, a task
            // that spawns and joins for ever would never return pending, and not see that it is cancelled itself.
            task.cancel();
            return handle;
        }
        match begins_on {
            Some(worker) => {
                let shared = &*handle.scheduler().shared;
                shared.workers.push_inbox(shared, task, worker);
            }
            None => context::schedule_new(task, handle.scheduler()),
        }
        handle
    }

    #[track_caller]
    fn allowed(&self) -> Allowed {
        let machine = self.scheduler.shared.workers.machine();
        let workers = || (0..machine.cpus() as u32).map(CpuId);
        let allowed = match self.placement {
            Placement::Anywhere => return Allowed::Anywhere,
            Placement::Cpu(cpu) => workers().find(|at| machine.kernel_cpu(*at) == cpu).map(Allowed::Cpu),
            Placement::Llc(llc) => Some(Allowed::Llc(llc)),
            Placement::Node(node) => Some(Allowed::Node(node)),
        };
        match allowed.filter(|allowed| workers().any(|worker| machine.allows(*allowed, worker))) {
            Some(allowed) => allowed,
            None => panic!("no worker on {:?}: the runtime has {} workers", self.placement, machine.cpus()),
        }
    }
}

/// Adds the default span to a task that has no span, if a subscriber listens to that span's target at level `trace`.
/// Without a subscriber that costs one load.
#[inline]
fn in_span(attrs: Option<Box<TaskAttrs>>) -> Option<Box<TaskAttrs>> {
    if LevelFilter::current() < Level::TRACE {
        return attrs;
    }
    in_span_if_heard(attrs)
}

#[cold]
fn in_span_if_heard(attrs: Option<Box<TaskAttrs>>) -> Option<Box<TaskAttrs>> {
    let given = attrs.as_deref();
    if given.is_some_and(|attrs| attrs.span.is_some()) {
        return attrs;
    }
    let name = given.and_then(|attrs| attrs.name.as_deref());
    let tenant = given.and_then(|attrs| attrs.tenant.as_ref()).map(TenantRef::name);
    let (name, tenant) = (field(&name), field(&tenant));
    let span = tracing::trace_span!(target: "warmcore::task", parent: None, "task", name, tenant);
    if span.is_disabled() {
        return attrs;
    }
    let mut attrs = attrs.unwrap_or_default();
    attrs.span = Some(span);
    Some(attrs)
}

/// Adds what a recorded task carries, if the recorder is on. Off, that costs one load.
#[inline]
#[track_caller]
fn recorded(attrs: Option<Box<TaskAttrs>>) -> Option<Box<TaskAttrs>> {
    match warmcore_record::is_on() {
        true => recorded_at(attrs, Location::caller()),
        false => attrs,
    }
}

#[cold]
fn recorded_at(
    attrs: Option<Box<TaskAttrs>>,
    location: &'static Location<'static>,
) -> Option<Box<TaskAttrs>> {
    let mut attrs = attrs.unwrap_or_default();
    // What the recorder keeps of a name and of this thread is not the tenant's.
    attrs.record = unaccounted(|| TaskRecord::spawned(location, attrs.name.as_deref()));
    Some(attrs)
}

impl fmt::Debug for TaskBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskBuilder").field("placement", &self.placement).finish_non_exhaustive()
    }
}

/// Spawns a task on the current thread's runtime. Panics if the thread is inside none.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    task_builder().spawn(future)
}

/// Spawns a task of a tenant on the current thread's runtime, as [`Runtime::spawn_in`](crate::Runtime::spawn_in) does.
#[track_caller]
pub fn spawn_in<F>(tenant: &Tenant, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    task_builder().tenant(tenant).spawn(future)
}

/// A builder of tasks on the current thread's runtime. Panics if the thread is inside none.
#[track_caller]
pub fn task_builder() -> TaskBuilder {
    // A `match` and not a closure, in which `track_caller` would lose the caller's location.
    match context::current_scheduler() {
        Some(scheduler) => TaskBuilder::at(scheduler),
        None => no_runtime(),
    }
}

/// As [`task_builder`], or `None` if the thread is inside no runtime. On a worker it touches no cache line that all workers
/// share.
pub fn try_task_builder() -> Option<TaskBuilder> {
    context::current_scheduler().map(TaskBuilder::at)
}

/// Returns `Pending` once, and wakes the task. A worker may poll other tasks of its queue before it polls this one
/// again.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
