//! A process's report on its runtime, and the difference between two reports.
//!
//! A worker is busy while its thread uses a CPU: in tasks of the runtime, in its driver, or in tasks of `tokio::spawn`,
//! which run inside the driver and are called foreign. The share of foreign tasks is the CPU time of the thread minus
//! the time that it spent outside of the driver, so it includes the work of the driver itself; it is 0 for a worker
//! without foreign tasks. The time of a tenant is an estimate: with 10 000 short polls a second its error is about 4 %.
//!
//! Source: docs/json.md, "top".

use anyhow::bail;
use serde::Deserialize;
use std::collections::HashMap;
use warmcore_results::printable::printable;
use warmcore_runtime::observe::{SCHEMA, TaskGroupMetrics};
use warmcore_runtime::{RuntimeMetrics, TenantMetrics, WorkerStats};

/// The report of a process on one of its runtimes.
#[derive(Debug, Clone, Deserialize)]
pub struct Snapshot {
    /// The process id.
    pub pid: u32,
    /// The name of the program.
    pub process: String,
    /// The runtime's name.
    pub name: String,
    /// The name of the runtime's policy.
    pub policy: String,
    /// The time of the report, on the process's clock.
    pub at_ns: u64,
    /// The age of the runtime.
    pub up_ns: u64,
    /// The numbers of the runtime, its workers and its tenants.
    #[serde(flatten)]
    pub metrics: RuntimeMetrics,
    /// The tasks by name or spawn location, and by tenant.
    #[serde(default)] // an older program reports none
    pub task_groups: Vec<TaskGroupMetrics>,
}

/// The fields whose names differ in the previous version of the schema: that name, and the present one.
const RENAMED: [(&str, &str); 8] = [
    ("living", "num_alive_tasks"),         // alias
    ("outside_wakes", "remote_schedules"), // alias
    ("shelves", "injection_queue_depths"), // alias
    ("waiting", "local_queue_depth"),
    ("poll_ns", "mean_poll_ns"),
    ("home", "same_worker"),
    ("first", "first_polls"),
    ("pulls", "steal_operations"),
];

/// The number of characters of a name that are shown.
const NAME_MAX: usize = 64;

/// Cuts a name to [`NAME_MAX`] characters, and replaces unprintable ones by spaces.
fn shown(name: &str) -> String {
    printable(name, ' ').chars().take(NAME_MAX).collect()
}

impl Snapshot {
    /// Reads a report of this version of the schema or of the previous one. It may come from any process: its names are
    /// made printable, and error messages repeat no part of its text but the version's number.
    pub fn parse(line: &str) -> anyhow::Result<Self> {
        const PREVIOUS: u32 = SCHEMA - 1;
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let wrong = |what: &'static str| {
            move |at: serde_json::Error| {
                anyhow::anyhow!("{what} (line {}, column {})", at.line(), at.column())
            }
        };
        let Version { schema } = serde_json::from_str(line).map_err(wrong("the answer has no version"))?;
        let line = match schema {
            SCHEMA => line.to_owned(),
            // In JSON, text cannot contain an unescaped quote, so only the names of fields are replaced.
            PREVIOUS => RENAMED.iter().fold(line.to_owned(), |line, (old, new)| {
                line.replace(&format!("\"{old}\":"), &format!("\"{new}\":"))
            }),
            _ => bail!(
                "the process speaks version {schema}, and this command version {SCHEMA}: use the `warmcore` of \
                 the version that the process was built with"
            ),
        };
        let mut said: Self =
            serde_json::from_str(&line).map_err(wrong("the answer is not what its version says"))?;
        for text in [&mut said.process, &mut said.name, &mut said.policy] {
            *text = shown(text);
        }
        said.metrics.tenants.iter_mut().for_each(|tenant| tenant.name = shown(&tenant.name));
        for group in &mut said.task_groups {
            for text in [&mut group.name, &mut group.tenant].into_iter().flatten() {
                *text = shown(text);
            }
            for text in group.location.iter_mut() {
                *text = printable(text, ' ');
            }
        }
        Ok(said)
    }
}

/// The rates of a worker per second, and the share of the time in which it was busy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(missing_docs, reason = "as in `WorkerStats`")]
pub struct Rates {
    /// The share of the time in which the worker's thread used a CPU, from 0 to 1.
    pub busy: f64,
    /// The share of the time in foreign tasks and in the driver that runs them, from 0 to 1; 0 without such tasks.
    pub foreign: f64,
    pub polls: f64,
    pub same_worker: f64,
    pub same_llc: f64,
    pub other_llc: f64,
    pub other_node: f64,
    pub first_polls: f64,
    pub steal_operations: f64,
    pub long_polls: f64,
}

/// A worker that is busy for at most this share of the time is not reported as dominated by foreign tasks.
const BUSY_MIN: f64 = 0.25;

impl Rates {
    /// Whether the worker is busy for more than `BUSY_MIN` and spends most of that time in foreign tasks.
    pub fn is_dominated(&self) -> bool {
        self.busy > BUSY_MIN && self.foreign > self.busy / 2.0
    }
}

/// What a tenant used in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Use {
    /// The tenant's index in the snapshot.
    pub tenant: usize,
    /// CPU time per second, which is a number of CPUs.
    pub run: f64,
    /// The tenant's share of the CPU time of all tenants, from 0 to 1.
    pub share: f64,
    /// Polls per second.
    pub polls: f64,
}

/// What a group of tasks used in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GroupUse {
    /// The group's index in the snapshot.
    pub group: usize,
    /// CPU time per second, which is a number of CPUs.
    pub run: f64,
    /// Polls per second.
    pub polls: f64,
    /// Share of the polls on another worker than the task's poll before, from 0 to 1.
    pub moved: f64,
    /// Share of the polls at another last-level cache than the task's poll before, from 0 to 1.
    pub moved_llc: f64,
}

/// What tells the groups of tasks of one report apart.
fn group_key(group: &TaskGroupMetrics) -> (Option<&str>, Option<&str>, Option<u64>) {
    (group.name.as_deref(), group.location.as_deref(), group.tenant_serial)
}

/// A report, and the rates since an earlier report of the same process.
#[derive(Debug, Clone)]
pub struct Interval {
    /// The later report.
    pub now: Snapshot,
    /// By worker.
    pub rates: Vec<Rates>,
    /// By tenant, the one with the most CPU time in the interval first.
    pub uses: Vec<Use>,
    /// By group of tasks, the one with the most CPU time in the interval first.
    pub group_uses: Vec<GroupUse>,
    /// Wakes per second by threads that are not workers.
    pub remote_schedules: f64,
}

impl Interval {
    /// Makes an interval from the later report and the rates since the earlier one. The rate of a counter that did not
    /// increase is zero. If both are the same report, all rates are zero; so are those of a worker that the earlier
    /// report does not have.
    pub fn between(before: &Snapshot, now: Snapshot) -> Self {
        let ns = now.at_ns.saturating_sub(before.at_ns);
        let per_second = |before: u64, now: u64| match ns {
            0 => 0.0,
            _ => now.saturating_sub(before) as f64 * 1e9 / ns as f64,
        };
        let rates = now.metrics.workers.iter().enumerate().map(|(i, now)| {
            let Some(before) = before.metrics.workers.get(i) else { return Rates::default() };
            let busy = now.busy_ns.saturating_sub(before.busy_ns);
            let driver = busy.saturating_sub(now.own_ns.saturating_sub(before.own_ns));
            let share = |used: u64| (used as f64 / ns.max(1) as f64).min(1.0);
            let rate = |of: fn(&WorkerStats) -> u64| per_second(of(&before.stats), of(&now.stats));
            Rates {
                busy: share(busy),
                foreign: if now.foreign_tasks > 0 { share(driver) } else { 0.0 },
                polls: rate(|it| it.polls),
                same_worker: rate(|it| it.same_worker),
                same_llc: rate(|it| it.same_llc),
                other_llc: rate(|it| it.other_llc),
                other_node: rate(|it| it.other_node),
                first_polls: rate(|it| it.first_polls),
                steal_operations: rate(|it| it.steal_operations),
                long_polls: rate(|it| it.long_polls),
            }
        });
        let rates = rates.collect();
        let known: HashMap<u64, &TenantMetrics> =
            before.metrics.tenants.iter().map(|it| (it.serial, it)).collect();
        let uses = now.metrics.tenants.iter().enumerate().map(|(tenant, now)| {
            // The counters of a new tenant began at zero.
            let (polls, run_ns) = known.get(&now.serial).map_or((0, 0), |it| (it.polls, it.run_ns));
            let run = per_second(run_ns, now.run_ns) / 1e9;
            Use { tenant, run, share: 0.0, polls: per_second(polls, now.polls) }
        });
        let mut uses: Vec<Use> = uses.collect();
        let all: f64 = uses.iter().map(|it| it.run).sum();
        if all > 0.0 {
            uses.iter_mut().for_each(|it| it.share = it.run / all);
        }
        // The sort is stable, so tenants that did nothing stay in the order of the report.
        uses.sort_by(|a, b| b.run.total_cmp(&a.run).then(b.polls.total_cmp(&a.polls)));
        let known: HashMap<_, _> = before.task_groups.iter().map(|it| (group_key(it), it)).collect();
        let group_uses = now.task_groups.iter().enumerate().map(|(group, now)| {
            let before = known.get(&group_key(now));
            let since = |of: fn(&TaskGroupMetrics) -> u64| per_second(before.map_or(0, |it| of(it)), of(now));
            let polls = since(|it| it.polls);
            // The moves are counted and the polls estimated, so a share of few polls may come out above all of them.
            let share = |moves: f64| if polls > 0.0 { (moves / polls).min(1.0) } else { 0.0 };
            GroupUse {
                group,
                run: since(|it| it.run_ns) / 1e9,
                polls,
                moved: share(since(|it| it.moves)),
                moved_llc: share(since(|it| it.llc_moves)),
            }
        });
        let mut group_uses: Vec<GroupUse> = group_uses.collect();
        let tasks = |it: &GroupUse| now.task_groups[it.group].num_alive_tasks;
        group_uses.sort_by(|a, b| {
            b.run.total_cmp(&a.run).then(b.polls.total_cmp(&a.polls)).then(tasks(b).cmp(&tasks(a)))
        });
        let remote_schedules = per_second(before.metrics.remote_schedules, now.metrics.remote_schedules);
        Self { rates, uses, group_uses, remote_schedules, now }
    }

    /// Returns the sum of one of the rates over all workers.
    pub fn total(&self, of: fn(&Rates) -> f64) -> f64 {
        self.rates.iter().map(of).sum()
    }

    /// Returns the indices of the workers that foreign tasks dominate ([`Rates::is_dominated`]).
    pub fn dominated(&self) -> impl Iterator<Item = usize> {
        self.rates.iter().enumerate().filter(|(_, rates)| rates.is_dominated()).map(|(i, _)| i)
    }

    /// Returns the index of the dominated worker that spends most time in foreign tasks, and the number of workers that
    /// are less than half as busy as this one. `None` if no worker is dominated, or none is less than half as busy.
    pub fn foreign_imbalance(&self) -> Option<(usize, usize)> {
        let foreign = |worker: usize| self.rates[worker].foreign;
        let most = self.dominated().max_by(|a, b| foreign(*a).total_cmp(&foreign(*b)))?;
        let idle = self.rates.iter().filter(|rates| rates.busy < self.rates[most].busy / 2.0).count();
        (idle > 0).then_some((most, idle))
    }

    /// The numbers of the last-level caches, in ascending order, each with the indices of its workers.
    pub fn llcs(&self) -> Vec<(u32, Vec<usize>)> {
        let mut llcs = std::collections::BTreeMap::<u32, Vec<usize>>::new();
        for (i, worker) in self.now.metrics.workers.iter().enumerate() {
            llcs.entry(worker.llc).or_default().push(i);
        }
        llcs.into_iter().collect()
    }
}
