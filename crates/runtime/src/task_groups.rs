//! TaskGroups: number, polls, run time and moves of tasks by name or spawn location, for `warmcore top`.
//!
//! The tasks of one name and one tenant form a group. Tasks without a name are grouped by the line of the program that
//! spawned them. All but the number of tasks is counted only while a client looks (`observe.rs`). Polls and run time are from
//! the polls that workers measure anyway, about one of sixteen: each counts for as many polls as it stands for. Each move
//! of a task to another worker is counted. Each worker adds to a table of its own. The number of tasks is taken from the lists of owned tasks at each look.
//!
//! # Cost
//! A task keeps the address of its spawn location, 8 bytes. While no client looks, a measured poll and a poll after a
//! move load a flag. While a client looks, they also hash the group's name and take the lock of its worker's table. A look visits each task, or,
//! where more than 65 536 tasks are alive, one of every few; those count for the others. A group takes about 100 bytes
//! on each worker that polled its tasks.

use crate::header::Header;
use crate::shared::Remote;
use crate::sync::{AtomicBool, Mutex, Ordering::*};
use crate::tenant_stats::{TenantRef, scale_sample};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;
use warmcore_budget::process::unaccounted;
use warmcore_line::Padded;
use warmcore_types::{CpuId, ignore_poison};

/// Largest number of groups that a worker tells apart, and that a look returns. The others are counted as one.
const GROUPS_MAX: usize = 1000;

/// Largest number of tasks that a look visits.
const VISITED_MAX: usize = 1 << 16;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Origin {
    Name(Arc<str>),
    Location(&'static Location<'static>),
    /// Of tasks beyond the largest number of groups.
    Any,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    origin: Origin,
    /// The tenant's serial number.
    tenant: Option<u64>,
}

impl Key {
    const OTHERS: Self = Self { origin: Origin::Any, tenant: None };

    fn of(header: &Header) -> Self {
        let origin = match header.name() {
            Some(name) => Origin::Name(name.clone()),
            None => Origin::Location(header.spawned_at),
        };
        Self { origin, tenant: header.tenant().map(|tenant| tenant.tenant.serial()) }
    }
}

#[derive(Default)]
struct Counts {
    /// The tenant's name.
    tenant: Option<Arc<str>>,
    num_alive_tasks: usize,
    half_polls: u64,
    run_ns: u64,
    moves: u64,
    llc_moves: u64,
}

impl Counts {
    fn of(header: &Header) -> Self {
        Self { tenant: header.tenant().map(TenantRef::name).map(Arc::from), ..Self::default() }
    }

    fn add(&mut self, other: &Self) {
        self.num_alive_tasks += other.num_alive_tasks;
        self.half_polls += other.half_polls;
        self.run_ns += other.run_ns;
        self.moves += other.moves;
        self.llc_moves += other.llc_moves;
    }
}

type Table = HashMap<Key, Counts>;

/// The groups of one runtime: see the module's documentation.
pub(crate) struct TaskGroups {
    /// Whether polls are counted. Written by the thread that answers clients, read by workers after measured polls.
    is_counted: AtomicBool,
    /// By worker. Written by the worker, read by the thread that answers clients.
    tables: Box<[Padded<Mutex<Table>>]>,
}

impl TaskGroups {
    pub(crate) fn new(workers: usize) -> Self {
        let tables = (0..workers).map(|_| Padded::new(Mutex::new(Table::new()))).collect();
        Self { is_counted: AtomicBool::new(false), tables }
    }

    /// Switches the counting of polls and run time on or off. The numbers begin at zero each time that it is switched on.
    pub(crate) fn count(&self, is_wanted: bool) {
        if self.is_counted.swap(is_wanted, Relaxed) && !is_wanted {
            self.tables.iter().for_each(|table| *ignore_poison(table.lock()) = Table::new());
        }
    }

    /// Counts a poll of the task by this worker, which took `ran` ns and stands for `half_polls` halves of a poll.
    pub(crate) fn record_poll(&self, worker: CpuId, header: &Header, ran: u64, half_polls: u32) {
        self.record(worker, header, |counts| {
            counts.half_polls += u64::from(half_polls);
            counts.run_ns += scale_sample(ran, half_polls);
        });
    }

    /// Counts a poll by this worker of a task whose poll before was on another worker.
    pub(crate) fn record_move(&self, worker: CpuId, header: &Header, is_other_llc: bool) {
        self.record(worker, header, |counts| {
            counts.moves += 1;
            counts.llc_moves += u64::from(is_other_llc);
        });
    }

    fn record(&self, worker: CpuId, header: &Header, add: impl FnOnce(&mut Counts)) {
        if !self.is_counted.load(Relaxed) {
            return;
        }
        let mut table = ignore_poison(self.tables[worker.index()].lock());
        let key = Key::of(header);
        add(match table.contains_key(&key) {
            true => table.get_mut(&key).expect("it is there"),
            // The table belongs to the runtime and not to the task's account.
            false if table.len() < GROUPS_MAX => {
                unaccounted(|| table.entry(key).or_insert_with(|| Counts::of(header)))
            }
            false => unaccounted(|| table.entry(Key::OTHERS).or_default()),
        });
    }

    /// The groups that have a task, or had a poll while polls were counted: those with the longest run time first.
    pub(crate) fn read(&self, remotes: &[Remote]) -> Vec<TaskGroupMetrics> {
        let mut all = Table::new();
        for table in &self.tables {
            for (key, counts) in &*ignore_poison(table.lock()) {
                let sum = all
                    .entry(key.clone())
                    .or_insert_with(|| Counts { tenant: counts.tenant.clone(), ..Counts::default() });
                sum.add(counts);
            }
        }
        let alive: usize = remotes.iter().map(|remote| remote.owned_tasks.count() as usize).sum();
        let step = alive.div_ceil(VISITED_MAX).max(1);
        for remote in remotes {
            remote.owned_tasks.visit(step, |header| {
                all.entry(Key::of(header)).or_insert_with(|| Counts::of(header)).num_alive_tasks += step;
            });
        }
        let mut others = all.remove(&Key::OTHERS).unwrap_or_default();
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(_, counts)| std::cmp::Reverse((counts.run_ns, counts.num_alive_tasks)));
        all.drain(GROUPS_MAX.min(all.len())..).for_each(|(_, counts)| others.add(&counts));
        let mut groups: Vec<_> =
            all.into_iter().map(|(key, counts)| TaskGroupMetrics::of(key, counts)).collect();
        if others.num_alive_tasks > 0 || others.half_polls > 0 {
            groups.push(TaskGroupMetrics::of(Key::OTHERS, others));
        }
        groups
    }
}

/// Numbers of the tasks of one name, or of one spawn location if they have no name, and of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[non_exhaustive]
pub struct TaskGroupMetrics {
    /// The tasks' name, if they have one.
    pub name: Option<String>,
    /// File, line and column of the call that spawned the tasks, if they have no name. Without both, these are the tasks
    /// that were too many to be told apart.
    pub location: Option<String>,
    /// Name of the tasks' tenant.
    pub tenant: Option<String>,
    /// The tenant's serial number: [`Tenant::serial`](warmcore_tenant::Tenant::serial).
    pub tenant_serial: Option<u64>,
    /// The tasks that are alive and whose first poll has ended. An estimate if the runtime has more than 65 536.
    pub num_alive_tasks: usize,
    /// Polls of the tasks while a client looked: an estimate from about one of sixteen.
    pub polls: u64,
    /// Run time of the tasks while a client looked, in ns: an estimate from the same polls.
    pub run_ns: u64,
    /// Polls of the tasks on another worker than the poll before, while a client looked.
    #[cfg_attr(feature = "serde", serde(default))]
    pub moves: u64,
    /// Those of them at another last-level cache.
    #[cfg_attr(feature = "serde", serde(default))]
    pub llc_moves: u64,
}

impl TaskGroupMetrics {
    fn of(key: Key, counts: Counts) -> Self {
        let (name, location) = match key.origin {
            Origin::Name(name) => (Some(name.to_string()), None),
            Origin::Location(location) => (None, Some(location.to_string())),
            Origin::Any => (None, None),
        };
        Self {
            name,
            location,
            tenant: counts.tenant.map(|name| name.to_string()),
            tenant_serial: key.tenant,
            num_alive_tasks: counts.num_alive_tasks,
            polls: counts.half_polls / 2,
            run_ns: counts.run_ns,
            moves: counts.moves,
            llc_moves: counts.llc_moves,
        }
    }
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests;
