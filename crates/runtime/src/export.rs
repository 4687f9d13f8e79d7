//! Export: the runtime's numbers under the names of the crate `metrics`, for whichever exporter a program has.
//!
//! Model.   The workers count as they always do. Now and then a task reads what they have counted and says it: as
//!          counters what only grows, as gauges what is now. Labels say which worker, CPU, last-level cache and
//!          node; `runtime` is the runtime's name, `tenant` a tenant's. Tenants of one name are one series: their
//!          sum, in which what was told of a tenant stays when it ends, as a counter must not fall: exporters keep
//!          the highest, and would stand still until the next tenant of the name has passed the last. What a tenant
//!          did between the last look and its end is not told, nor is one that no look found.
//! Number.  20 series a worker, 3 a name of tenants: 10 000 tenants of as many names are 30 000 series, which an
//!          exporter keeps when they are gone, unless it forgets what is idle; of ten names they are 30. A name
//!          whose tenants are gone is told once more and then no longer, so that it is idle. Here 16 bytes and the
//!          name are kept of each name that was ever told. A look takes about 5 µs a worker and 2 µs a tenant, on
//!          whoever looks; nothing is added to a poll.
//! Writers. Whoever records; one at a time, `Exported`.

use crate::join::JoinHandle;
use crate::runtime::Handle;
use crate::runtime_metrics::{RuntimeMetrics, WorkerMetrics};
use ::metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;
use warmcore_tenant::Tenant;
use warmcore_types::ignore_poison;

pub(crate) mod exported;

use exported::OfName;

macro_rules! names {
    ($($(#[doc = $doc:literal])* $name:ident: $kind:ident $unit:ident = $text:literal,)*) => {
        $($(#[doc = $doc])* const $name: &str = concat!("warmcore_runtime_", $text);)*

        /// Tells the exporter what each name means, and in which unit. Once, after it was installed.
        pub fn describe_metrics() {
            $($kind!($name, Unit::$unit, concat!($($doc),*).trim());)*
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$($name),*];
    };
}

names! {
    /// Tasks polled, by how far that was from where each was polled last: same_worker, same_llc, other_llc, other_node; first: the first time.
    POLLS: describe_counter Count = "polls_total",
    /// Times that a worker without work found some elsewhere.
    STEAL_OPERATIONS: describe_counter Count = "steal_operations_total",
    /// Wakes by a worker's tasks that went to another worker's queue.
    REMOTE_WAKES: describe_counter Count = "remote_wakes_total",
    /// Tasks that a worker took from a neighbour that had more to do.
    BALANCED: describe_counter Count = "balanced_total",
    /// Tasks that other workers took from this one.
    STOLEN_TASKS: describe_counter Count = "stolen_tasks_total",
    /// Times that a worker fell asleep.
    PARKS: describe_counter Count = "parks_total",
    /// How long a worker was parked in its driver, where tasks of tokio::spawn run.
    PARKED: describe_counter Nanoseconds = "parked_nanoseconds_total",
    /// Times that a worker asked for sockets and timers without sleeping.
    EVENT_POLLS: describe_counter Count = "event_polls_total",
    /// Times that somebody ended a worker's sleep.
    UNPARKS: describe_counter Count = "unparks_total",
    /// Polls that took longer than the runtime's limit.
    LONG_POLLS: describe_counter Count = "long_polls_total",
    /// Hot windows: kept, the worker was idle and passed over because a task was to come back; broken, another task got it.
    HOT_WINDOWS: describe_counter Count = "hot_windows_total",
    /// Wakes by threads that are no workers.
    REMOTE_SCHEDULES: describe_counter Count = "remote_schedules_total",
    /// Tasks that wait in a worker's queue.
    LOCAL_QUEUE_DEPTH: describe_gauge Count = "local_queue_depth",
    /// 1: the worker sleeps.
    IDLE: describe_gauge Count = "idle",
    /// 1: the worker is in a poll that is longer than the runtime's limit.
    STUCK: describe_gauge Count = "stuck",
    /// What a worker's tasks run for at a time, on average.
    MEAN_POLL: describe_gauge Nanoseconds = "mean_poll_nanoseconds",
    /// Tasks that were spawned with tokio's spawn; they stay on one worker.
    FOREIGN_TASKS: describe_gauge Count = "foreign_tasks",
    /// Tasks that wait for whoever of a last-level cache's workers is free first, by shard of a cache.
    INJECTION_QUEUE_DEPTH: describe_gauge Count = "injection_queue_depth",
    /// Tasks that are not gone yet.
    ALIVE_TASKS: describe_gauge Count = "num_alive_tasks",
    /// Polls of a tenant's tasks.
    TENANT_POLLS: describe_counter Count = "tenant_polls_total",
    /// What the polls of a tenant's tasks ran for; of short polls one of sixteen is measured and stands for the others.
    TENANT_RUN: describe_counter Nanoseconds = "tenant_run_nanoseconds_total",
    /// A tenant's tasks that are not gone yet.
    TENANT_ALIVE_TASKS: describe_gauge Count = "tenant_num_alive_tasks",
    /// Ids that a tenant's tasks hold or that are kept for them.
    TENANT_IDS: describe_gauge Count = "tenant_ids",
    /// Entries into a tenant that found the CPU's id held by a thread that was preempted.
    TENANT_OVERFLOWS: describe_counter Count = "tenant_overflows_total",
    /// What is charged to a tenant's account, in the account's units: used, and in stocks.
    TENANT_CHARGED: describe_gauge Count = "tenant_charged_units",
    /// The limit of a tenant's account, if it has one.
    TENANT_LIMIT: describe_gauge Count = "tenant_limit_units",
}

/// Says what the runtime's workers and tenants have done, to the exporter that is installed; again after each
/// `period`, by a task of that runtime, until the handle that this returns aborts it or the runtime ends. Dropping
/// the handle leaves it alone.
///
/// An exporter that is asked for numbers, as Prometheus's is, can be served fresher ones by [`record_now`].
pub fn record_metrics(handle: &Handle, period: Duration) -> JoinHandle<Infallible> {
    let of = handle.clone();
    handle.task_builder().name("warmcore-metrics").spawn(async move {
        let mut ticks = tokio::time::interval(period.max(Duration::from_millis(1)));
        // After a stop of the whole process one look is as good as all that were missed.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            record_now(&of);
        }
    })
}

/// Says it once, now. Who says it at the same time for the same runtime waits.
///
/// What was told of a tenant stays in its name's counters when it ends. A name whose tenants are all gone has no
/// living tasks, is told so once, and not again until there is one of that name.
pub fn record_now(handle: &Handle) {
    // Held until all is said: who looked earlier and speaks later would bring back tenants that are gone.
    let mut exported = ignore_poison(handle.shared.exported.lock());
    let now = handle.metrics();
    record(&handle.shared.name, &now, &exported.by_name(&now.tenants));
}

/// Says what a tenant's ids and its account are now, which are the same for all runtimes. What its tasks ran for is
/// in [`record_now`].
///
/// Tenants of one name are one series here, too, and each call overwrites it; when the tenant ends its gauges stay as
/// they were told last.
///
/// **Touches** the account and the pcpu_cid of each CPU of the tenant, for reading.
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
    let with = |key: &'static str, value: &'static str| {
        let mut labels = place.to_vec();
        labels.push((key, value.to_owned()));
        labels
    };
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
