//! Model: the rules of concurrency ids, slowly and one step at a time.
//!
//! Model.   Who has which id is a map, what is free is what is not in a set, and a rule is an `if`.
//!          It shares nothing with what it checks but the names of the counters, and asks no
//!          `Policy`: the three are written down here a second time.
//! Source.  DESIGN, "Concurrency ids", and the doc comments of `Ids`.

use crate::Stats;
use std::collections::{BTreeMap, BTreeSet};

/// Which rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    Lowest,
    KeptPerCpu,
    CacheLocal,
}

/// An id that a CPU has.
#[derive(Debug, Clone, Copy)]
struct Share {
    id: u32,
    holder: Option<u32>,
    /// A compaction has seen it unused, and nobody entered since.
    unused: bool,
    /// Whoever holds it gives it back on leaving.
    asked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// That of a CPU.
    Share(u32),
    Overflow(u32),
}

#[derive(Debug, Default)]
struct Person {
    /// On how many CPUs it may run itself.
    may_use: u32,
    /// The CPU that it entered on last, and the id that it had there.
    was: Option<(u32, u32)>,
    holds: Option<Hold>,
    /// Entries beyond the first.
    nested: u32,
}

/// What an entry gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Got {
    pub(super) id: u32,
    pub(super) overflow: bool,
}

pub(super) struct Model {
    rules: Rules,
    cpus: u32,
    overflow_ids: u32,
    allowed: BTreeSet<u32>,
    people: BTreeMap<u32, Person>,
    shares: BTreeMap<u32, Share>,
    /// The id that a CPU had last.
    recent: BTreeMap<u32, u32>,
    used: BTreeSet<u32>,
    overflow: BTreeSet<u32>,
    overflow_end: u32,
    counts: Stats,
}

impl Model {
    pub(super) fn new(rules: Rules, cpus: u32, overflow_ids: u32) -> Self {
        Self {
            rules,
            cpus,
            overflow_ids,
            allowed: BTreeSet::new(),
            people: BTreeMap::new(),
            shares: BTreeMap::new(),
            recent: BTreeMap::new(),
            used: BTreeSet::new(),
            overflow: BTreeSet::new(),
            overflow_end: 0,
            counts: Stats::default(),
        }
    }

    fn users(&self) -> u32 {
        self.people.len() as u32
    }

    fn nr_allowed(&self) -> u32 {
        self.allowed.len() as u32
    }

    /// So many can run at once.
    fn can_run(&self) -> u32 {
        self.users().min(self.nr_allowed())
    }

    /// Every id that is picked is below this.
    fn end(&self) -> u32 {
        match self.rules {
            Rules::Lowest | Rules::KeptPerCpu => self.cpus,
            Rules::CacheLocal => self.nr_allowed(),
        }
    }

    pub(super) fn add_user(&mut self, token: u32, allowed: impl Iterator<Item = u32>) {
        self.people.insert(token, Person::default());
        self.allow_user(token, allowed);
    }

    pub(super) fn allow_user(&mut self, token: u32, allowed: impl Iterator<Item = u32>) {
        let allowed: BTreeSet<u32> = allowed.filter(|cpu| *cpu < self.cpus).collect();
        self.person(token).may_use = allowed.len() as u32;
        self.allow(allowed.into_iter());
    }

    pub(super) fn remove_user(&mut self, token: u32) {
        let person = self.people.remove(&token).expect("a user");
        assert_eq!(person.holds, None);
    }

    pub(super) fn allow(&mut self, cpus: impl Iterator<Item = u32>) {
        let end = self.cpus;
        self.allowed.extend(cpus.filter(|cpu| *cpu < end));
    }

    fn cpus_with_ids(&self) -> Vec<u32> {
        self.shares.keys().copied().collect()
    }

    /// An id that nobody holds is nobody's from now on.
    fn free(&mut self, cpu: u32) -> bool {
        let idle = self.shares.get(&cpu).is_some_and(|share| share.holder.is_none());
        if idle && let Some(share) = self.shares.remove(&cpu) {
            assert!(self.used.remove(&share.id));
        }
        idle
    }

    fn free_or_ask(&mut self, cpu: u32) {
        if !self.free(cpu)
            && let Some(share) = self.shares.get_mut(&cpu)
        {
            share.asked = true;
        }
    }

    pub(super) fn enter(&mut self, token: u32, cpu: u32) -> Option<Got> {
        if let Some(got) = self.held(token) {
            self.person(token).nested += 1;
            return Some(got);
        }
        self.allow(std::iter::once(cpu));
        self.migrate(token, cpu);
        if !self.shares.contains_key(&cpu)
            && let Some(id) = self.pick(self.recent.get(&cpu).copied())
        {
            self.used.insert(id);
            self.shares.insert(cpu, Share { id, holder: None, unused: false, asked: false });
        }
        self.person(token).was = None;
        match self.shares.get_mut(&cpu) {
            Some(share) if share.holder.is_none() => {
                share.holder = Some(token);
                share.unused = false;
                let id = share.id;
                self.person(token).holds = Some(Hold::Share(cpu));
                self.recent.insert(cpu, id);
                self.person(token).was = Some((cpu, id));
            }
            _ => {
                let gap = lowest_gap(&self.overflow);
                if gap >= self.overflow_ids {
                    return None;
                }
                self.overflow.insert(gap);
                self.overflow_end = self.overflow_end.max(gap + 1);
                self.counts.overflows += 1;
                self.person(token).holds = Some(Hold::Overflow(gap));
            }
        }
        self.held(token)
    }

    /// An id for who finds none, and why this one.
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

    /// What becomes of the id that a user left on the CPU where it was.
    pub(super) fn migrate(&mut self, token: u32, to: u32) {
        let person = self.person(token);
        let (Some((from, id)), None) = (person.was, person.holds) else { return };
        let still_there = self
            .shares
            .get(&from)
            .is_some_and(|share| share.id == id && share.holder.is_none() && !share.asked);
        if from == to || !still_there {
            return;
        }
        let has_id = self.shares.contains_key(&to);
        let own = self.rules == Rules::KeptPerCpu;
        let can_have = if own { self.person(token).may_use } else { self.nr_allowed() };
        let is_welcome = match self.rules {
            Rules::Lowest => return,
            Rules::KeptPerCpu => !has_id,
            Rules::CacheLocal => !has_id && !self.recent.contains_key(&to),
        };
        if is_welcome {
            self.shares.remove(&from);
            self.shares.insert(to, Share { id, holder: None, unused: false, asked: false });
            self.recent.insert(to, id);
            self.counts.moves += 1;
        } else if self.users() < can_have {
            self.free(from);
            self.counts.freed_by_moves += 1;
        } else {
            return;
        }
        self.recent.remove(&from);
    }

    pub(super) fn leave(&mut self, token: u32) {
        let person = self.person(token);
        if person.nested > 0 {
            person.nested -= 1;
            return;
        }
        match person.holds.take().expect("it holds an id") {
            Hold::Overflow(id) => assert!(self.overflow.remove(&id)),
            Hold::Share(cpu) => {
                let share = self.shares.get_mut(&cpu).expect("what it holds is there");
                share.holder = None;
                if share.asked || self.rules == Rules::Lowest {
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
                } else if let Some(share) = self.shares.get_mut(&cpu) {
                    share.unused = true;
                }
            }
        }
        let bound = match self.rules {
            Rules::Lowest | Rules::CacheLocal => self.can_run(),
            Rules::KeptPerCpu => self.used.len() as u32,
        };
        for cpu in self.cpus_with_ids() {
            if self.shares[&cpu].id >= bound {
                self.free_or_ask(cpu);
            } else {
                self.shares.get_mut(&cpu).expect("it is there").asked = false;
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

    /// The CPUs that keep an id, and whether it was unused when a compaction saw it last.
    fn idle(&self) -> Vec<(u32, bool)> {
        let idle = self.shares.iter().filter(|(_, share)| share.holder.is_none());
        idle.map(|(cpu, share)| (*cpu, share.unused)).collect()
    }

    fn person(&mut self, token: u32) -> &mut Person {
        self.people.get_mut(&token).expect("a user")
    }

    pub(super) fn held(&self, token: u32) -> Option<Got> {
        self.people[&token].holds.map(|hold| match hold {
            Hold::Share(cpu) => Got { id: self.shares[&cpu].id, overflow: false },
            Hold::Overflow(id) => Got { id: self.cpus + id, overflow: true },
        })
    }

    /// The id that a CPU has, and whether somebody runs on it.
    pub(super) fn at(&self, cpu: u32) -> Option<(u32, bool)> {
        self.shares.get(&cpu).map(|share| (share.id, share.holder.is_some()))
    }

    /// The id that a CPU has.
    pub(super) fn has(&self, cpu: u32) -> Option<u32> {
        self.shares.get(&cpu).map(|share| share.id)
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            users: self.users(),
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
