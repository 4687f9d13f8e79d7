//! An imitation of Linux 6.19's concurrency ids: an id belongs to a task while the process has few tasks, and to a
//! CPU while it has many.
//!
//! While a process has at most a quarter more tasks than can run at once, and no more than there are CPUs, each task
//! keeps the id that it got first, until a compaction takes it back, and takes it to other CPUs. With more tasks, ids
//! belong to CPUs. They belong to tasks again when the tasks are fewer than three quarters of the allowed CPUs and
//! fewer than half of all CPUs. These limits are lower, so that one thread that comes and goes does not change the
//! owners each time. A CPU has no recent id that it takes again, and an id does not become free because it was unused
//! for long.
//!
//! A change between tasks and CPUs frees every id of the former owners that no task holds. An id that a task holds is
//! freed when the task leaves its CPU.
//!
//! # Source
//! Linux 6.19, `kernel/sched/core.c`: `mm_update_max_cids`, `mm_cid_calc_pcpu_thrs`.

use std::collections::{BTreeMap, BTreeSet};
use warmcore_cid::Stats;
use warmcore_types::{Cid, CpuId, CpuSet};

/// What an id belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Cpu(u32),
    /// By the task's index: see [`Task::index`].
    Task(u32),
}

#[derive(Debug, Clone, Copy)]
struct OwnedCid {
    cid: u32,
    /// The task that runs with it.
    holder: Option<u32>,
    /// The holder frees it when it leaves the CPU, instead of giving it back to its owner.
    is_recalled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldCid {
    Of(Owner),
    /// Counted from 0.
    Overflow(u32),
}

#[derive(Debug, Default)]
struct Task {
    /// The task's number among the tasks that own ids: the lowest that was free. `None` until it first enters while ids
    /// belong to tasks, and from when it enters while they belong to CPUs.
    index: Option<u32>,
    held: Option<HeldCid>,
}

/// The ids of one process.
#[derive(Debug)]
pub(super) struct TaskOwnedCids {
    cpus: u32,
    overflow_ids: u32,
    /// The CPUs that any task was ever allowed on, or ran on.
    allowed: BTreeSet<u32>,
    tasks: BTreeMap<u32, Task>,
    owned: BTreeMap<Owner, OwnedCid>,
    used: BTreeSet<u32>,
    overflow: BTreeSet<u32>,
    /// Whether new ids belong to tasks.
    is_by_task: bool,
    counts: Stats,
}

impl TaskOwnedCids {
    pub(super) fn new(cpus: u32, overflow_ids: u32) -> Self {
        Self {
            cpus,
            overflow_ids,
            allowed: BTreeSet::new(),
            tasks: BTreeMap::new(),
            owned: BTreeMap::new(),
            used: BTreeSet::new(),
            overflow: BTreeSet::new(),
            is_by_task: true,
            counts: Stats::default(),
        }
    }

    fn nr_tasks(&self) -> u32 {
        self.tasks.len() as u32
    }

    /// The bound of ids: a quarter more than tasks can run at once, and at most one per CPU.
    fn max_cids(&self) -> u32 {
        let can_run = self.nr_tasks().min(self.allowed.len() as u32);
        (can_run + can_run / 4).min(self.cpus)
    }

    pub(super) fn add_task(&mut self, task: u32, allowed: &CpuSet) {
        self.tasks.insert(task, Task::default());
        self.allow(allowed);
    }

    pub(super) fn remove_task(&mut self, task: u32) {
        let Some(Task { index, held }) = self.tasks.remove(&task) else { return };
        assert_eq!(held, None, "task {task} is removed and holds an id");
        if let Some(index) = index {
            self.free(Owner::Task(index));
        }
        self.update_owner();
    }

    /// Adds CPUs to those that the tasks of the process may run on.
    pub(super) fn allow(&mut self, cpus: &CpuSet) {
        let end = self.cpus;
        self.allowed.extend(cpus.iter().map(|cpu| cpu.0).filter(|cpu| *cpu < end));
        self.update_owner();
    }

    /// Handles a change in the number of tasks or CPUs, after which ids may belong to CPUs instead of tasks or the
    /// reverse.
    fn update_owner(&mut self) {
        let nr_allowed = self.allowed.len() as u32;
        let few = (nr_allowed - nr_allowed / 4).min(self.cpus / 2).max(1);
        let is_by_task = match self.is_by_task {
            true => self.nr_tasks() <= self.max_cids(),
            false => self.nr_tasks() < few,
        };
        if is_by_task == std::mem::replace(&mut self.is_by_task, is_by_task) {
            return;
        }
        for owner in self.owners() {
            if !self.is_current_owner(owner) {
                self.free_or_recall(owner);
            }
        }
    }

    fn is_current_owner(&self, owner: Owner) -> bool {
        matches!(owner, Owner::Task(_)) == self.is_by_task
    }

    fn owners(&self) -> Vec<Owner> {
        self.owned.keys().copied().collect()
    }

    /// Frees an owner's id unless a task holds it. Returns whether it did.
    fn free(&mut self, owner: Owner) -> bool {
        let is_unused = self.owned.get(&owner).is_some_and(|owned| owned.holder.is_none());
        if is_unused && let Some(owned) = self.owned.remove(&owner) {
            assert!(self.used.remove(&owned.cid), "id {} is freed twice", owned.cid);
        }
        is_unused
    }

    fn free_or_recall(&mut self, owner: Owner) {
        if !self.free(owner)
            && let Some(owned) = self.owned.get_mut(&owner)
        {
            owned.is_recalled = true;
        }
    }

    pub(super) fn enter(&mut self, task: u32, cpu: CpuId) -> Option<Cid> {
        assert!(cpu.0 < self.cpus, "{cpu}, and there are {} CPU numbers", self.cpus);
        assert_eq!(self.tasks[&task].held, None, "task {task} enters twice");
        if self.allowed.insert(cpu.0) {
            self.update_owner();
        }
        let owner = if self.is_by_task {
            Owner::Task(self.index_of(task))
        } else {
            self.tasks.get_mut(&task)?.index = None;
            Owner::Cpu(cpu.0)
        };
        if !self.owned.contains_key(&owner)
            && let Some(cid) = self.pick()
        {
            self.used.insert(cid);
            self.owned.insert(owner, OwnedCid { cid, holder: None, is_recalled: false });
        }
        let held = match self.owned.get_mut(&owner).filter(|owned| owned.holder.is_none()) {
            Some(owned) => {
                owned.holder = Some(task);
                HeldCid::Of(owner)
            }
            None => {
                let gap = first_gap(&self.overflow);
                if gap >= self.overflow_ids {
                    return None;
                }
                self.overflow.insert(gap);
                self.counts.overflows += 1;
                HeldCid::Overflow(gap)
            }
        };
        self.tasks.get_mut(&task)?.held = Some(held);
        self.held_cid(task)
    }

    fn index_of(&mut self, task: u32) -> u32 {
        if let Some(index) = self.tasks[&task].index {
            return index;
        }
        let index = first_gap(&self.tasks.values().filter_map(|task| task.index).collect());
        self.tasks.get_mut(&task).expect("it is in the process").index = Some(index);
        index
    }

    /// The lowest free id. It may be at or above [`max_cids`](Self::max_cids): owners keep their ids, so when the
    /// number of tasks has fallen no free id may be below it.
    fn pick(&mut self) -> Option<u32> {
        let cid = first_gap(&self.used);
        if cid >= self.cpus {
            return None;
        }
        self.counts.lowest += 1;
        self.counts.allocated = self.counts.allocated.max(cid + 1);
        Some(cid)
    }

    pub(super) fn leave(&mut self, task: u32) {
        match self.tasks.get_mut(&task).and_then(|task| task.held.take()) {
            None => {}
            Some(HeldCid::Overflow(cid)) => assert!(self.overflow.remove(&cid), "overflow id {cid} is free"),
            Some(HeldCid::Of(owner)) => {
                let owned = self.owned.get_mut(&owner).expect("a held id has an owner");
                owned.holder = None;
                if owned.is_recalled {
                    self.free(owner);
                }
            }
        }
    }

    /// Frees the unused ids that are not below the bound, recalls the ids not below it that a task holds, and then
    /// frees further unused ids, if there are any, until no more ids than the bound are left.
    pub(super) fn compact(&mut self) {
        let (before, bound) = (self.used.len(), self.max_cids());
        for owner in self.owners() {
            if self.owned[&owner].cid >= bound {
                self.free_or_recall(owner);
            } else if self.is_current_owner(owner) {
                self.owned.get_mut(&owner).expect("it is there").is_recalled = false;
            }
        }
        for owner in self.owners() {
            if self.used.len() as u32 > bound {
                self.free(owner);
            }
        }
        self.counts.compactions += 1;
        self.counts.compacted += (before - self.used.len()) as u64;
    }

    pub(super) fn held_cid(&self, task: u32) -> Option<Cid> {
        self.tasks.get(&task)?.held.map(|held| match held {
            HeldCid::Of(owner) => Cid(self.owned[&owner].cid),
            HeldCid::Overflow(cid) => Cid(self.cpus + cid),
        })
    }

    pub(super) fn at(&self, cpu: CpuId) -> Option<(Cid, bool)> {
        self.owned.get(&Owner::Cpu(cpu.0)).map(|owned| (Cid(owned.cid), owned.holder.is_some()))
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            users: self.nr_tasks(),
            nr_cpus_allowed: self.allowed.len() as u32,
            in_use: self.used.len() as u32,
            overflow_in_use: self.overflow.len() as u32,
            ..self.counts
        }
    }
}

/// The lowest number that is not in the set.
fn first_gap(set: &BTreeSet<u32>) -> u32 {
    set.iter().zip(0..).find(|(member, n)| *member != n).map_or(set.len() as u32, |(_, n)| n)
}

#[cfg(test)]
mod tests;
