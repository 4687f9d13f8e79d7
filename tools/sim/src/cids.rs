//! The concurrency ids of one simulated process, by a policy of `warmcore-cid` or by the rules of Linux 6.19.
//!
//! For a policy of `warmcore-cid`, that crate decides, with the code that real threads run. Linux 6.19's ids, which
//! belong to tasks, are not in that crate: `cids/task_owned.rs` imitates them, so that simulations can compare with
//! them.
//!
//! A task is identified by a small number that the caller chooses and that no other task of the process has.

use std::fmt;
use task_owned::TaskOwnedCids;
use warmcore_cid::{Ids, PcpuCid, Policy, Stats, User, pcpu_cids};
use warmcore_types::{Cid, CpuId, CpuSet};

mod task_owned;

/// The rules by which the tasks of a process get ids.
#[derive(Clone, Copy)]
pub enum CidRules {
    /// A policy of `warmcore-cid`.
    Policy(&'static dyn Policy),
    /// Linux 6.19: an id belongs to a task, or to a CPU while the process has many tasks.
    TaskOwned,
}

impl CidRules {
    /// The name in tables: `cache-local`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy(policy) => policy.name(),
            Self::TaskOwned => "task-owned",
        }
    }
}

impl fmt::Debug for CidRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<&'static dyn Policy> for CidRules {
    fn from(policy: &'static dyn Policy) -> Self {
        Self::Policy(policy)
    }
}

impl<P: Policy + 'static> From<&'static P> for CidRules {
    fn from(policy: &'static P) -> Self {
        Self::Policy(policy)
    }
}

/// The concurrency ids of one process.
pub struct ProcessCids(State);

// A process has one of these. A box would only add an indirection to each switch.
#[expect(clippy::large_enum_variant)]
enum State {
    Policy {
        ids: Ids<Box<[PcpuCid]>>,
        /// Indexed by the task's number.
        users: Vec<Option<User>>,
    },
    TaskOwned(TaskOwnedCids),
}

/// The user that stands for a task in a policy of `warmcore-cid`.
fn user_of(users: &mut [Option<User>], task: u32) -> &mut User {
    users[task as usize].as_mut().unwrap_or_else(|| panic!("task {task} is not in the process"))
}

impl ProcessCids {
    /// A process without tasks on a machine of `cpus` CPU numbers. `overflow`: the number of ids beyond those of
    /// CPUs, for tasks that find the id of their CPU in use.
    pub fn new(cpus: u32, overflow: u32, rules: CidRules) -> Self {
        Self(match rules {
            CidRules::Policy(policy) => {
                State::Policy { ids: Ids::new(pcpu_cids(cpus), overflow, policy), users: Vec::new() }
            }
            CidRules::TaskOwned => State::TaskOwned(TaskOwnedCids::new(cpus, overflow)),
        })
    }

    /// Adds a task that may run on these CPUs.
    pub fn add_task(&mut self, task: u32, allowed: &CpuSet) {
        match &mut self.0 {
            State::Policy { ids, users } => {
                if users.len() <= task as usize {
                    users.resize_with(task as usize + 1, || None);
                }
                users[task as usize] = Some(ids.add_user(task, allowed));
            }
            State::TaskOwned(cids) => cids.add_task(task, allowed),
        }
    }

    /// Removes a task. Panics if it holds an id.
    pub fn remove_task(&mut self, task: u32) {
        match &mut self.0 {
            State::Policy { ids, users } => {
                if let Some(user) = users[task as usize].take() {
                    ids.remove_user(user);
                }
            }
            State::TaskOwned(cids) => cids.remove_task(task),
        }
    }

    /// Adds these CPUs to those of the process, and replaces the CPUs that the task may run on. Linux 6.19's ids do not
    /// record the latter.
    pub fn allow_task(&mut self, task: u32, allowed: &CpuSet) {
        match &mut self.0 {
            State::Policy { ids, users } => ids.allow_user(user_of(users, task), allowed),
            State::TaskOwned(cids) => cids.allow(allowed),
        }
    }

    /// Takes an id for a task that starts to run on `cpu`. `None` if it would need an overflow id and all are in use.
    pub fn enter(&mut self, task: u32, cpu: CpuId) -> Option<Cid> {
        match &mut self.0 {
            State::Policy { ids, users } => ids.enter_unguarded(cpu, user_of(users, task)),
            State::TaskOwned(cids) => cids.enter(task, cpu),
        }
    }

    /// Gives back the id of a task that stops running. Does nothing if the task holds none.
    pub fn leave(&mut self, task: u32) {
        match &mut self.0 {
            State::Policy { ids, users } => {
                if let Some(user) = &mut users[task as usize] {
                    ids.leave_unguarded(user);
                }
            }
            State::TaskOwned(cids) => cids.leave(task),
        }
    }

    /// The id that a task holds.
    pub fn held_cid(&self, task: u32) -> Option<Cid> {
        match &self.0 {
            State::Policy { ids, users } => ids.held_cid(users.get(task as usize)?.as_ref()?),
            State::TaskOwned(cids) => cids.held_cid(task),
        }
    }

    /// Takes back ids that were not used between two calls, and ids that are not below the bound (`Policy::bound`).
    /// Linux 6.19's ids do not expire, so for them only the bound counts.
    pub fn compact(&mut self) {
        match &mut self.0 {
            State::Policy { ids, .. } => _ = ids.compact(),
            State::TaskOwned(cids) => cids.compact(),
        }
    }

    /// As [`compact`](Self::compact), but takes back a CPU's unused id if `is_old` returns `true` for the CPU. Linux
    /// 6.19's ids do not expire, so `is_old` is not called for them.
    pub fn compact_if(&mut self, is_old: impl Fn(CpuId) -> bool) {
        match &mut self.0 {
            State::Policy { ids, .. } => _ = ids.compact_if(|cpu, _| is_old(cpu)),
            State::TaskOwned(cids) => cids.compact(),
        }
    }

    /// Counts so far, and how many ids are in use.
    pub fn stats(&self) -> Stats {
        match &self.0 {
            State::Policy { ids, .. } => ids.stats(),
            State::TaskOwned(cids) => cids.stats(),
        }
    }

    /// The id that a CPU has, and whether a task runs with it.
    pub fn at(&self, cpu: CpuId) -> Option<(Cid, bool)> {
        match &self.0 {
            State::Policy { ids, .. } => ids.at(cpu),
            State::TaskOwned(cids) => cids.at(cpu),
        }
    }
}
