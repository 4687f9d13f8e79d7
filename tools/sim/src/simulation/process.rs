//! Process: tasks that share data, and the concurrency ids under which they run. The kernel's `mm`.
//!
//! Model.   A task that gets a CPU enters its process's ids there, and leaves with the CPU. Every so often, when a
//!          tick meets a running task of the process, ids that nobody used are taken back, by the crate's own rule.
//!          Each id has an area of data; a task touches that of the id under which it runs.
//! Number.  16 bytes per CPU and process for pcpu_cids, 8 for when each was used last.
//! Writers. The simulation; `expiry` before it runs.
//! Source.  Linux 6.4 to 6.12 `task_tick_mm_cid`, `sched_mm_cid_remote_clear_old`: what is old is judged by the
//!          clock of the CPU that keeps the id, which stands still while that CPU idles.

use crate::cids::{CidRules, ProcessCids};
use crate::memory::{Access, ExtentId, Memory, Pages};
use warmcore_cid::Stats;
use warmcore_types::{Cid, CpuId, CpuSet, Nanos, NodeId};

/// What counts as unused when ids are taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expiry {
    /// Unused between two scans: the crate's own.
    #[default]
    TwoScans,
    /// Unused for so long, by a clock that all share.
    Age(Nanos),
    /// Unused for so long by the clock of its CPU, which stands still while that CPU idles: the kernel's.
    AgeThere(Nanos),
    /// Nothing ever.
    Never,
}

/// The data of one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// How large.
    pub bytes: u64,
    /// What its pages are at first.
    pub pages: Pages,
    /// Where they live. `None`: where they are touched first.
    pub home: Option<NodeId>,
}

/// What is to be known of a process.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Which id a CPU gets.
    pub rules: CidRules,
    /// What counts as unused.
    pub expiry: Expiry,
    /// The data of each id. `None`: there is none to touch.
    pub area: Option<Area>,
}

impl Plan {
    /// Ids by these rules, without data.
    pub fn new(rules: impl Into<CidRules>) -> Self {
        Self { rules: rules.into(), expiry: Expiry::default(), area: None }
    }

    /// Each id has so much data.
    pub fn with_area(self, bytes: u64, pages: Pages) -> Self {
        Self { area: Some(Area { bytes, pages, home: None }), ..self }
    }

    /// What counts as unused.
    pub fn with_expiry(self, expiry: Expiry) -> Self {
        Self { expiry, ..self }
    }
}

/// A process.
pub struct Process {
    cids: ProcessCids,
    plan: Plan,
    /// How many numbers of tasks were in use at once.
    members: u32,
    /// Numbers of tasks that left.
    free: Vec<u32>,
    areas: Vec<Option<ExtentId>>,
    /// By CPU: when its id was used last.
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

    /// What happened to its ids.
    pub fn stats(&self) -> Stats {
        self.cids.stats()
    }

    /// The id that a CPU has now, and whether somebody runs under it.
    pub fn at(&self, cpu: CpuId) -> Option<(Cid, bool)> {
        self.cids.at(cpu)
    }

    /// Areas that were touched.
    pub fn areas(&self) -> usize {
        self.areas.iter().flatten().count()
    }

    /// How often a task got a CPU under an id.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// A task more, which may run there.
    pub(crate) fn join(&mut self, allowed: &CpuSet) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.members += 1;
            self.members - 1
        });
        self.cids.add_task(at, allowed);
        at
    }

    /// One of its tasks may run only there from now on.
    pub(crate) fn allow(&mut self, at: u32, cpus: &CpuSet) {
        self.cids.allow_task(at, cpus);
    }

    /// A task less. It holds nothing.
    pub(crate) fn part(&mut self, at: u32) {
        self.cids.remove_task(at);
        self.free.push(at);
    }

    /// A task gets a CPU.
    pub(crate) fn enter(&mut self, at: u32, cpu: CpuId, now: Nanos) {
        self.entries += 1;
        self.used_at[cpu.index()] = now.0;
        let cid = self.cids.enter(at, cpu);
        assert!(cid.is_some(), "{cpu} runs one task at a time, and its seat is held");
    }

    /// It loses the CPU.
    pub(crate) fn leave(&mut self, at: u32, cpu: CpuId, now: Nanos) {
        self.used_at[cpu.index()] = now.0;
        self.cids.leave(at);
    }

    /// The id under which a task runs.
    pub(crate) fn cid(&self, at: u32) -> Option<Cid> {
        self.cids.held_cid(at)
    }

    /// A pass over the data of the id under which a task runs.
    pub(crate) fn touch(
        &mut self,
        at: u32,
        memory: &mut Memory,
        cpu: CpuId,
        how: Access,
        now: Nanos,
    ) -> Nanos {
        let (Some(cid), Some(area)) = (self.cid(at), self.plan.area) else { return Nanos(0) };
        if self.areas.len() <= cid.index() {
            self.areas.resize(cid.index() + 1, None);
        }
        let Area { bytes, pages, home } = area;
        let extent = *self.areas[cid.index()].get_or_insert_with(|| memory.extent(bytes, pages, home));
        memory.touch(cpu, extent, how, now)
    }

    /// A tick met one of its tasks. Whether a scan was due; if so, ids that nobody used are free now.
    ///
    /// `clock`: what the clock of a CPU says, if the rule asks for that.
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
