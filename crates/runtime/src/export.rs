//! Export: reports the runtime's numbers as metrics of the crate `metrics`, to the exporter that the program installs.
//!
//! [`record_now`] reads the workers' counts and reports them: numbers that only grow as counters, other numbers as
//! gauges. Labels name the worker, CPU, last-level cache and node. The label `runtime` is the runtime's name, `tenant`
//! a tenant's name.
//!
//! In [`record_now`], tenants of the same name share one series, which is the sum of their numbers. When a tenant ends,
//! its reported polls and run time stay in the sum, since an exporter ignores a counter that falls. Polls and run time
//! of a tenant between the last report and its end are not reported.
//!
//! # Cost
//! There are 21 series for each worker, 3 for each name of tenants, 1 for each shard, and 2 for the runtime;
//! [`record_tenant`] adds up to 4 for a name. A name whose tenants have all ended is reported once more and then no
//! longer, so that an exporter that drops idle series drops it. For each name whose tenant has ended, the runtime keeps
//! the name and 16 bytes. A report takes the reporting thread about 5 µs a worker and 2 µs a tenant, and adds nothing
//! to a poll. One thread reports at a time.

#[cfg(feature = "tokio")]
use crate::join::JoinHandle;
use crate::runtime::Handle;
use crate::runtime_metrics::{RuntimeMetrics, WorkerMetrics};
use ::metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use std::collections::BTreeMap;
#[cfg(feature = "tokio")]
use std::convert::Infallible;
#[cfg(feature = "tokio")]
use std::time::Duration;
use warmcore_tenant::Tenant;
use warmcore_types::ignore_poison;

pub(crate) mod exported;

use exported::OfName;

macro_rules! names {
    ($($(#[doc = $doc:literal])* $name:ident: $kind:ident $unit:ident = $text:literal,)*) => {
        $($(#[doc = $doc])* const $name: &str = concat!("warmcore_runtime_", $text);)*

        /// Gives the exporter the description and the unit of each metric. Call it once, after the exporter was installed.
        pub fn describe_metrics() {
            $($kind!($name, Unit::$unit, concat!($($doc),*).trim());)*
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$($name),*];
    };
}

names! {
    /// Tasks polled, by the distance from the worker that polled the task before: same_worker, same_llc, other_llc, other_node; first for a task's first poll.
    POLLS: describe_counter Count = "polls_total",
    /// Times that a worker without tasks took tasks from another queue.
    STEAL_OPERATIONS: describe_counter Count = "steal_operations_total",
    /// Wakes on a worker's thread that put a task into another worker's inbox or into an injection queue.
    REMOTE_WAKES: describe_counter Count = "remote_wakes_total",
    /// Tasks that a worker with tasks took from a neighbour, because they were polled less often there, their
    /// tenant was behind, or the neighbour stood still.
    BALANCED: describe_counter Count = "balanced_total",
    /// Tasks that other workers took from this one.
    STOLEN_TASKS: describe_counter Count = "stolen_tasks_total",
    /// Times that a worker parked.
    PARKS: describe_counter Count = "parks_total",
    /// How long a worker was parked in its driver. Tasks of tokio::spawn run there, so their run time is included.
    PARKED: describe_counter Nanoseconds = "parked_nanoseconds_total",
    /// Times that a worker served sockets and timers without parking.
    EVENT_POLLS: describe_counter Count = "event_polls_total",
    /// Times that another thread unparked a worker.
    UNPARKS: describe_counter Count = "unparks_total",
    /// Polls that took longer than the runtime's limit.
    LONG_POLLS: describe_counter Count = "long_polls_total",
    /// Wakes that found an idle worker in a hot window, in which the worker is kept for a task that sleeps briefly:
    /// kept, the woken task went to another worker; broken, it went to this worker.
    HOT_WINDOWS: describe_counter Count = "hot_windows_total",
    /// Wakes and spawns by threads that are not workers of the runtime.
    REMOTE_SCHEDULES: describe_counter Count = "remote_schedules_total",
    /// Tasks in a worker's run queue that other workers may steal.
    LOCAL_QUEUE_DEPTH: describe_gauge Count = "local_queue_depth",
    /// 1: the worker is parked.
    IDLE: describe_gauge Count = "idle",
    /// 1: the worker is in a poll that is longer than the runtime's limit.
    STUCK: describe_gauge Count = "stuck",
    /// Average duration of a poll on a worker.
    MEAN_POLL: describe_gauge Nanoseconds = "mean_poll_nanoseconds",
    /// Tasks of tokio::spawn, which stay on one worker.
    FOREIGN_TASKS: describe_gauge Count = "foreign_tasks",
    /// Tasks in an injection queue. The workers of a last-level cache form one or more shards; the workers of a shard
    /// share a queue.
    INJECTION_QUEUE_DEPTH: describe_gauge Count = "injection_queue_depth",
    /// Tasks that are alive.
    ALIVE_TASKS: describe_gauge Count = "num_alive_tasks",
    /// Polls of a tenant's tasks.
    TENANT_POLLS: describe_counter Count = "tenant_polls_total",
    /// Run time of a tenant's tasks. Of short polls about one of sixteen is measured, and the others are taken to
    /// be as long.
    TENANT_RUN: describe_counter Nanoseconds = "tenant_run_nanoseconds_total",
    /// A tenant's tasks that are alive.
    TENANT_ALIVE_TASKS: describe_gauge Count = "tenant_num_alive_tasks",
    /// Concurrency ids that a tenant's tasks hold, or that stay reserved for them.
    TENANT_IDS: describe_gauge Count = "tenant_ids",
    /// Times that a thread entered a tenant while a preempted thread held the CPU's id.
    TENANT_OVERFLOWS: describe_counter Count = "tenant_overflows_total",
    /// Charges to a tenant's account, in its units, stocks included.
    TENANT_CHARGED: describe_gauge Count = "tenant_charged_units",
    /// Limit of a tenant's account, if it has one.
    TENANT_LIMIT: describe_gauge Count = "tenant_limit_units",
}

/// Reports the numbers of the runtime's workers and tenants to the installed exporter, and again after each `period` of
/// 1 ms or more, in a task of that runtime. The reports stop when the returned handle is aborted or the runtime ends,
/// and not when the handle is dropped. The runtime must have timers: [`Builder::enable_time`](crate::Builder::enable_time).
///
/// With an exporter that is asked for its numbers, such as Prometheus's, the program can instead call [`record_now`]
/// before each answer. So can a runtime without tokio's timers: this function needs the feature `tokio` and tokio's
/// drivers, and the task panics without them.
#[cfg(feature = "tokio")]
pub fn record_metrics(handle: &Handle, period: Duration) -> JoinHandle<Infallible> {
    let of = handle.clone();
    handle.task_builder().name("warmcore-metrics").spawn(async move {
        loop {
            record_now(&of);
            // If the process was stopped, one report makes up for all that were missed.
            warmcore_driver::sleep(period.max(Duration::from_millis(1))).await;
        }
    })
}

/// Reports the numbers once. A call for the same runtime from another thread waits.
///
/// A tenant's numbers stay in the counters of its name when it ends. A name whose tenants have all ended is reported
/// with zero tasks once, and then not until a tenant has that name again.
pub fn record_now(handle: &Handle) {
    // The lock is held until the report is complete. Otherwise an older report could overwrite a newer report and bring
    // back tenants that have ended.
    let mut exported = ignore_poison(handle.shared.exported.lock());
    let now = handle.metrics();
    record(&handle.shared.name, &now, &exported.by_name(&now.tenants));
}

/// Reports a tenant's ids and account, which all runtimes share. [`record_now`] reports its run time in one runtime.
///
/// Tenants of the same name share a series, and each call overwrites it. When a tenant ends, its gauges keep their last
/// values.
///
/// **Touches** the account, if the tenant has one, and the id of each CPU that the tenant was entered on, for reading.
pub fn record_tenant(tenant: &Tenant) {
    let (name, stats) = (tenant.name().to_owned(), tenant.stats());
    gauge!(TENANT_IDS, "tenant" => name.clone()).set(f64::from(stats.in_use));
    counter!(TENANT_OVERFLOWS, "tenant" => name.clone()).absolute(stats.overflows);
    let Some(account) = tenant.account() else { return };
    gauge!(TENANT_CHARGED, "tenant" => name.clone()).set(account.usage().charged as f64);
    if account.limit() < u64::MAX {
        gauge!(TENANT_LIMIT, "tenant" => name).set(account.limit() as f64);
    }
}

fn record(runtime: &str, now: &RuntimeMetrics, names: &BTreeMap<String, OfName>) {
    let runtime = runtime.to_owned();
    for (i, worker) in now.workers.iter().enumerate() {
        record_worker(&runtime, i, worker);
    }
    for (shard, waiting) in now.injection_queue_depths.iter().enumerate() {
        let llc = now.workers.iter().find(|worker| worker.shard == shard).map_or(0, |worker| worker.llc);
        let labels = [("runtime", runtime.clone()), ("llc", llc.to_string()), ("shard", shard.to_string())];
        gauge!(INJECTION_QUEUE_DEPTH, &labels).set(f64::from(*waiting));
    }
    for (name, of_name) in names {
        let labels = [("runtime", runtime.clone()), ("tenant", name.clone())];
        counter!(TENANT_POLLS, &labels).absolute(of_name.polls);
        counter!(TENANT_RUN, &labels).absolute(of_name.run_ns);
        gauge!(TENANT_ALIVE_TASKS, &labels).set(of_name.num_alive_tasks as f64);
    }
    gauge!(ALIVE_TASKS, "runtime" => runtime.clone()).set(now.num_alive_tasks as f64);
    counter!(REMOTE_SCHEDULES, "runtime" => runtime).absolute(now.remote_schedules);
}

fn record_worker(runtime: &str, i: usize, worker: &WorkerMetrics) {
    let place = [
        ("runtime", runtime.to_owned()),
        ("worker", i.to_string()),
        ("cpu", worker.cpu.to_string()),
        ("llc", worker.llc.to_string()),
        ("node", worker.node.to_string()),
    ];
    let with = |key: &'static str, value: &str| [&place[..], &[(key, value.to_owned())]].concat();
    let stats = &worker.stats;
    let distances = [
        ("same_worker", stats.same_worker),
        ("same_llc", stats.same_llc),
        ("other_llc", stats.other_llc),
        ("other_node", stats.other_node),
        ("first", stats.first_polls),
    ];
    for (distance, polls) in distances {
        counter!(POLLS, &with("distance", distance)).absolute(polls);
    }
    for (end, windows) in [("kept", stats.hot_kept), ("broken", stats.hot_broken)] {
        counter!(HOT_WINDOWS, &with("end", end)).absolute(windows);
    }
    let counted = [
        (STEAL_OPERATIONS, stats.steal_operations),
        (REMOTE_WAKES, stats.remote_wakes),
        (BALANCED, stats.balanced),
        (STOLEN_TASKS, stats.stolen_tasks),
        (PARKS, stats.parks),
        (PARKED, stats.parked_ns),
        (EVENT_POLLS, stats.event_polls),
        (UNPARKS, stats.unparks),
        (LONG_POLLS, stats.long_polls),
    ];
    for (name, n) in counted {
        counter!(name, &place).absolute(n);
    }
    let measured = [
        (LOCAL_QUEUE_DEPTH, f64::from(worker.local_queue_depth)),
        (IDLE, f64::from(u8::from(worker.is_idle))),
        (STUCK, f64::from(u8::from(worker.is_stuck))),
        (MEAN_POLL, f64::from(worker.mean_poll_ns)),
        (FOREIGN_TASKS, worker.foreign_tasks as f64),
    ];
    for (name, value) in measured {
        gauge!(name, &place).set(value);
    }
}

#[cfg(test)]
mod tests;
