//! Process: tasks that share data and concurrency ids. The kernel's `mm`.
//!
//! A task that gets a CPU enters its process's ids there, and leaves them when it loses the CPU. At intervals, when a
//! tick finds a running task of the process, ids that are unused by the rule of [`Expiry`], and ids that are not below
//! the policy's bound, are freed. An id may have an area of data ([`Plan::area`]); a task touches the area of its
//! current id. Per CPU and process: 8 bytes for ids, 8 for the time of their last use.
//!
//! # Source
//!
//! Linux 6.4 to 6.12 `task_tick_mm_cid`, `sched_mm_cid_remote_clear_old`: age is measured by the clock of the CPU
//! that keeps the id, which stands still while that CPU is idle.

use crate::cids::{CidRules, ProcessCids};
use crate::memory::{Access, ExtentId, Memory, Pages};
use warmcore_cid::Stats;
use warmcore_types::{Cid, CpuId, CpuSet, Nanos};

/// When an id counts as unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expiry {
    /// It was not used between two scans, which is the rule of `warmcore_cid`.
    #[default]
    TwoScans,
    /// It was not used for this long, by the simulation's clock.
    Age(Nanos),
    /// It was not used for this long by the clock of its CPU, which stands still while that CPU is idle: the kernel's
    /// rule.
    AgeThere(Nanos),
    /// Never.
    Never,
}

/// The settings of a process.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The rules by which the process's tasks get ids.
    pub rules: CidRules,
    /// When an id counts as unused.
    pub expiry: Expiry,
    /// The data of each id: its size in bytes, and what its pages are at first. `None`: no data.
    pub area: Option<(u64, Pages)>,
}

impl Plan {
    /// Ids by these rules, without data.
    pub fn new(rules: impl Into<CidRules>) -> Self {
        Self { rules: rules.into(), expiry: Expiry::default(), area: None }
    }

    /// Gives each id this much data.
    pub fn with_area(self, bytes: u64, pages: Pages) -> Self {
        Self { area: Some((bytes, pages)), ..self }
    }

    /// Sets when an id counts as unused.
    pub fn with_expiry(self, expiry: Expiry) -> Self {
        Self { expiry, ..self }
    }
}

/// A process.
pub struct Process {
    pub(crate) cids: ProcessCids,
    plan: Plan,
    /// The largest number of tasks that it had at the same time.
    members: u32,
    /// Numbers of tasks that have left the process, for new tasks.
    free: Vec<u32>,
    areas: Vec<Option<ExtentId>>,
    /// By CPU: when its id was last used.
    used_at: Vec<u64>,
    next_scan: u64,
    entries: u64,
}

impl Process {
    pub(crate) fn new(cpus: u32, plan: Plan) -> Self {
        Self {
            cids: ProcessCids::new(cpus, 0, plan.rules),
            plan,
            members: 0,
            free: Vec::new(),
            areas: Vec::new(),
            used_at: vec![0; cpus as usize],
            next_scan: 0,
            entries: 0,
        }
    }

    /// Counters of its ids.
    pub fn stats(&self) -> Stats {
        self.cids.stats()
    }

    /// The id of a CPU, and whether a task uses it now.
    pub fn at(&self, cpu: CpuId) -> Option<(Cid, bool)> {
        self.cids.at(cpu)
    }

    /// The number of areas that were touched.
    pub fn areas(&self) -> usize {
        self.areas.iter().flatten().count()
    }

    /// How often a task got a CPU, and with it an id.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Adds a task that may run on these CPUs. Returns the task's number.
    pub(crate) fn join(&mut self, allowed: &CpuSet) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.members += 1;
            self.members - 1
        });
        self.cids.add_task(at, allowed);
        at
    }

    /// Removes a task, which holds no id.
    pub(crate) fn part(&mut self, at: u32) {
        self.cids.remove_task(at);
        self.free.push(at);
    }

    /// A task gets a CPU.
    pub(crate) fn enter(&mut self, at: u32, cpu: CpuId, now: Nanos) {
        self.entries += 1;
        self.used_at[cpu.index()] = now.0;
        let cid = self.cids.enter(at, cpu);
        assert!(cid.is_some(), "{cpu} runs one task at a time, and its id is in use");
    }

    /// A task loses its CPU.
    pub(crate) fn leave(&mut self, at: u32, cpu: CpuId, now: Nanos) {
        self.used_at[cpu.index()] = now.0;
        self.cids.leave(at);
    }

    /// A pass over the data of a task's current id. Takes 0 ns if the ids have no data.
    pub(crate) fn touch(
        &mut self,
        at: u32,
        memory: &mut Memory,
        cpu: CpuId,
        how: Access,
        now: Nanos,
    ) -> Nanos {
        let (Some(cid), Some((bytes, pages))) = (self.cids.held_cid(at), self.plan.area) else {
            return Nanos(0);
        };
        if self.areas.len() <= cid.index() {
            self.areas.resize(cid.index() + 1, None);
        }
        let extent = *self.areas[cid.index()].get_or_insert_with(|| memory.extent(bytes, pages, None));
        memory.touch(cpu, extent, how, now)
    }

    /// Handles a tick that found one of the process's tasks running. Returns whether a scan was due; a scan frees
    /// unused ids.
    ///
    /// `clock` returns the clock of a CPU, for [`Expiry::AgeThere`].
    pub(crate) fn tick(&mut self, now: Nanos, every: Nanos, clock: impl Fn(CpuId) -> Nanos) -> bool {
        if now.0 < self.next_scan {
            return false;
        }
        self.next_scan = now.0 + every.0;
        let (cids, used_at) = (&mut self.cids, &self.used_at);
        let is_past = |cpu: CpuId, clock: Nanos, age: Nanos| {
            used_at.get(cpu.index()).is_some_and(|used| clock.0 >= used.saturating_add(age.0))
        };
        match self.plan.expiry {
            Expiry::TwoScans => cids.compact(),
            Expiry::Age(age) => cids.compact_if(|cpu| is_past(cpu, now, age)),
            Expiry::AgeThere(age) => {
                cids.compact_if(|cpu| cpu.index() < used_at.len() && is_past(cpu, clock(cpu), age))
            }
            Expiry::Never => cids.compact_if(|_| false),
        };
        true
    }
}
