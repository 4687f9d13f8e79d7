//! A model of the rules of concurrency ids, in simple and slow code.
//!
//! A map from CPUs to ids, a set of the ids in use, and an `if` for each rule. The model shares only the names of
//! the counters with the code that it checks. It calls no `Policy`: the rules of all three are written here a
//! second time, from the doc comments of `Ids`.

use crate::Stats;
use std::collections::{BTreeMap, BTreeSet};

/// The policy whose rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    Lowest,
    KeptPerCpu,
    CacheLocal,
}

/// An id that a CPU has.
#[derive(Debug, Clone, Copy)]
struct CpuCid {
    id: u32,
    holder: Option<u32>,
    /// No user held the id at the last compaction, and none entered since.
    is_unused: bool,
    /// Its holder must give the id back when it leaves.
    is_recalled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holding {
    /// The id of this CPU.
    Cpu(u32),
    Overflow(u32),
}

#[derive(Debug, Default)]
struct ModelUser {
    /// On how many CPUs this user may run.
    may_use: u32,
    /// The CPU on which the user entered last, and the id that it had there; `None` after an entry that did not get the
    /// CPU's id.
    was: Option<(u32, u32)>,
    holds: Option<Holding>,
    /// Entries beyond the first.
    nested: u32,
}

/// The result of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entered {
    pub(super) id: u32,
    pub(super) overflow: bool,
}

pub(super) struct CidModel {
    rules: Rules,
    cpus: u32,
    overflow_ids: u32,
    allowed: BTreeSet<u32>,
    users: BTreeMap<u32, ModelUser>,
    cids: BTreeMap<u32, CpuCid>,
    /// The id that a CPU has or had last, unless a move took it away or freed it.
    recent: BTreeMap<u32, u32>,
    used: BTreeSet<u32>,
    overflow: BTreeSet<u32>,
    overflow_end: u32,
    counts: Stats,
}

impl CidModel {
    pub(super) fn new(rules: Rules, cpus: u32, overflow_ids: u32) -> Self {
        Self {
            rules,
            cpus,
            overflow_ids,
            allowed: BTreeSet::new(),
            users: BTreeMap::new(),
            cids: BTreeMap::new(),
            recent: BTreeMap::new(),
            used: BTreeSet::new(),
            overflow: BTreeSet::new(),
            overflow_end: 0,
            counts: Stats::default(),
        }
    }

    fn nr_users(&self) -> u32 {
        self.users.len() as u32
    }

    fn nr_allowed(&self) -> u32 {
        self.allowed.len() as u32
    }

    /// How many users can run at once.
    fn can_run(&self) -> u32 {
        self.nr_users().min(self.nr_allowed())
    }

    /// The policy picks only ids below this.
    fn end(&self) -> u32 {
        match self.rules {
            Rules::Lowest | Rules::KeptPerCpu => self.cpus,
            Rules::CacheLocal => self.nr_allowed(),
        }
    }

    pub(super) fn add_user(&mut self, token: u32, allowed: impl Iterator<Item = u32>) {
        self.users.insert(token, ModelUser::default());
        self.allow_user(token, allowed);
    }

    pub(super) fn allow_user(&mut self, token: u32, allowed: impl Iterator<Item = u32>) {
        let allowed: BTreeSet<u32> = allowed.filter(|cpu| *cpu < self.cpus).collect();
        self.user(token).may_use = allowed.len() as u32;
        self.allow(allowed.into_iter());
    }

    pub(super) fn remove_user(&mut self, token: u32) {
        let user = self.users.remove(&token).expect("a user");
        assert_eq!(user.holds, None);
    }

    pub(super) fn allow(&mut self, cpus: impl Iterator<Item = u32>) {
        let end = self.cpus;
        self.allowed.extend(cpus.filter(|cpu| *cpu < end));
    }

    fn cpus_with_ids(&self) -> Vec<u32> {
        self.cids.keys().copied().collect()
    }

    /// Frees a CPU's id unless a user holds it. Returns whether it did.
    fn free(&mut self, cpu: u32) -> bool {
        let idle = self.cids.get(&cpu).is_some_and(|cid| cid.holder.is_none());
        if idle && let Some(cid) = self.cids.remove(&cpu) {
            assert!(self.used.remove(&cid.id));
        }
        idle
    }

    fn free_or_recall(&mut self, cpu: u32) {
        if !self.free(cpu)
            && let Some(cid) = self.cids.get_mut(&cpu)
        {
            cid.is_recalled = true;
        }
    }

    pub(super) fn enter(&mut self, token: u32, cpu: u32) -> Option<Entered> {
        if let Some(got) = self.held(token) {
            self.user(token).nested += 1;
            return Some(got);
        }
        self.allow(std::iter::once(cpu));
        self.migrate(token, cpu);
        if !self.cids.contains_key(&cpu)
            && let Some(id) = self.pick(self.recent.get(&cpu).copied())
        {
            self.used.insert(id);
            self.cids.insert(cpu, CpuCid { id, holder: None, is_unused: false, is_recalled: false });
        }
        self.user(token).was = None;
        match self.cids.get_mut(&cpu) {
            Some(cid) if cid.holder.is_none() => {
                cid.holder = Some(token);
                cid.is_unused = false;
                let id = cid.id;
                self.user(token).holds = Some(Holding::Cpu(cpu));
                self.recent.insert(cpu, id);
                self.user(token).was = Some((cpu, id));
            }
            _ => {
                let gap = lowest_gap(&self.overflow);
                if gap >= self.overflow_ids {
                    return None;
                }
                self.overflow.insert(gap);
                self.overflow_end = self.overflow_end.max(gap + 1);
                self.counts.overflows += 1;
                self.user(token).holds = Some(Holding::Overflow(gap));
            }
        }
        self.held(token)
    }

    /// Chooses an id for a CPU without one, and counts the rule that chose it.
    fn pick(&mut self, recent: Option<u32>) -> Option<u32> {
        let (can_run, counts) = (self.can_run(), &mut self.counts);
        counts.max_nr_cid = counts.max_nr_cid.min(can_run);
        if self.rules == Rules::CacheLocal {
            if let Some(id) = recent
                && id < can_run
                && !self.used.contains(&id)
            {
                counts.recent_hits += 1;
                return Some(id);
            }
            if let Some(id) = (counts.max_nr_cid..can_run).find(|id| !self.used.contains(id)) {
                counts.expansions += 1;
                counts.max_nr_cid = id + 1;
                counts.allocated = counts.allocated.max(id + 1);
                return Some(id);
            }
        }
        let id = lowest_gap(&self.used);
        if id >= self.end() {
            return None;
        }
        self.counts.lowest += 1;
        self.counts.allocated = self.counts.allocated.max(id + 1);
        Some(id)
    }

    /// Moves, frees or keeps the id that a user left on its previous CPU, now that the user runs on `to`.
    pub(super) fn migrate(&mut self, token: u32, to: u32) {
        let user = self.user(token);
        let (Some((from, id)), None) = (user.was, user.holds) else { return };
        let still_there =
            self.cids.get(&from).is_some_and(|cid| cid.id == id && cid.holder.is_none() && !cid.is_recalled);
        if from == to || !still_there {
            return;
        }
        let has_id = self.cids.contains_key(&to);
        let own = self.rules == Rules::KeptPerCpu;
        let can_have = if own { self.user(token).may_use } else { self.nr_allowed() };
        let is_welcome = match self.rules {
            Rules::Lowest => return,
            Rules::KeptPerCpu => !has_id,
            Rules::CacheLocal => !has_id && !self.recent.contains_key(&to),
        };
        if is_welcome {
            self.cids.remove(&from);
            self.cids.insert(to, CpuCid { id, holder: None, is_unused: false, is_recalled: false });
            self.recent.insert(to, id);
            self.counts.moves += 1;
        } else if self.nr_users() < can_have {
            self.free(from);
            self.counts.freed_by_moves += 1;
        } else {
            return;
        }
        self.recent.remove(&from);
    }

    pub(super) fn leave(&mut self, token: u32) {
        let user = self.user(token);
        if user.nested > 0 {
            user.nested -= 1;
            return;
        }
        match user.holds.take().expect("it holds an id") {
            Holding::Overflow(id) => assert!(self.overflow.remove(&id)),
            Holding::Cpu(cpu) => {
                let cid = self.cids.get_mut(&cpu).expect("what it holds is there");
                cid.holder = None;
                if cid.is_recalled || self.rules == Rules::Lowest {
                    self.free(cpu);
                }
            }
        }
    }

    pub(super) fn compact_if(&mut self, is_old: impl Fn(u32, bool) -> bool) {
        let before = self.used.len();
        if matches!(self.rules, Rules::KeptPerCpu | Rules::CacheLocal) {
            for (cpu, unused) in self.idle() {
                if is_old(cpu, unused) {
                    self.free(cpu);
                } else if let Some(cid) = self.cids.get_mut(&cpu) {
                    cid.is_unused = true;
                }
            }
        }
        let bound = match self.rules {
            Rules::Lowest | Rules::CacheLocal => self.can_run(),
            Rules::KeptPerCpu => self.used.len() as u32,
        };
        for cpu in self.cpus_with_ids() {
            if self.cids[&cpu].id >= bound {
                self.free_or_recall(cpu);
            } else {
                self.cids.get_mut(&cpu).expect("it is there").is_recalled = false;
            }
        }
        for cpu in self.cpus_with_ids() {
            if self.used.len() as u32 > bound {
                self.free(cpu);
            }
        }
        self.counts.compactions += 1;
        self.counts.compacted += (before - self.used.len()) as u64;
    }

    /// The CPUs whose id no user holds, and whether it was unused since the last compaction.
    fn idle(&self) -> Vec<(u32, bool)> {
        let idle = self.cids.iter().filter(|(_, cid)| cid.holder.is_none());
        idle.map(|(cpu, cid)| (*cpu, cid.is_unused)).collect()
    }

    fn user(&mut self, token: u32) -> &mut ModelUser {
        self.users.get_mut(&token).expect("a user")
    }

    pub(super) fn held(&self, token: u32) -> Option<Entered> {
        self.users[&token].holds.map(|hold| match hold {
            Holding::Cpu(cpu) => Entered { id: self.cids[&cpu].id, overflow: false },
            Holding::Overflow(id) => Entered { id: self.cpus + id, overflow: true },
        })
    }

    /// The id that a CPU has, and whether a user holds it.
    pub(super) fn at(&self, cpu: u32) -> Option<(u32, bool)> {
        self.cids.get(&cpu).map(|cid| (cid.id, cid.holder.is_some()))
    }

    /// The id that a CPU has.
    pub(super) fn has(&self, cpu: u32) -> Option<u32> {
        self.cids.get(&cpu).map(|cid| cid.id)
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            users: self.nr_users(),
            nr_cpus_allowed: self.nr_allowed(),
            in_use: self.used.len() as u32,
            overflow_in_use: self.overflow.len() as u32,
            ..self.counts
        }
    }

    pub(super) fn overflow_end(&self) -> u32 {
        self.overflow_end
    }
}

/// The lowest number that is not in a set.
fn lowest_gap(set: &BTreeSet<u32>) -> u32 {
    set.iter().zip(0..).find(|(member, n)| *member != n).map_or(set.len() as u32, |(_, n)| n)
}
