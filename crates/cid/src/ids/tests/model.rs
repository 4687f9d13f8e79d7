//! Model: the rules of concurrency ids, slowly and one step at a time.
//!
//! Model.   Who has which id is a map, what is free is what is not in a set, and a rule is an `if`.
//!          It shares nothing with what it checks but the names of the counters, and asks no
//!          `Policy`: the four are written down here a second time.
//! Source.  DESIGN, "Concurrency ids", and the doc comments of `Ids`.

use crate::Stats;
use std::collections::{BTreeMap, BTreeSet};

/// Which rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    Lowest,
    KeptPerCpu,
    CacheLocal,
    TaskOwned,
}

/// Who has an id: a CPU, or a user by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Cpu(u32),
    Task(u32),
}

/// An id that a place has.
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
    Share(Place),
    Overflow(u32),
}

#[derive(Debug, Default)]
struct Person {
    /// On how many CPUs it may run itself.
    may_use: u32,
    /// Its number among the users whose ids are their own.
    number: Option<u32>,
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
    shares: BTreeMap<Place, Share>,
    /// The id that a CPU had last.
    recent: BTreeMap<u32, u32>,
    used: BTreeSet<u32>,
    overflow: BTreeSet<u32>,
    overflow_end: u32,
    by_task: bool,
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
            by_task: rules == Rules::TaskOwned,
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
            Rules::TaskOwned => (self.can_run() + self.can_run() / 4).min(self.cpus),
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
        if let Some(number) = person.number {
            self.free(Place::Task(number));
        }
        self.settle();
    }

    pub(super) fn allow(&mut self, cpus: impl Iterator<Item = u32>) {
        let end = self.cpus;
        self.allowed.extend(cpus.filter(|cpu| *cpu < end));
        self.settle();
    }

    /// Whose the ids are may change with the number of users and CPUs.
    fn settle(&mut self) {
        if self.rules != Rules::TaskOwned {
            return;
        }
        let three_quarters = self.nr_allowed() - self.nr_allowed() / 4;
        let few = three_quarters.min(self.cpus / 2).max(1);
        if self.by_task && self.users() > self.end() {
            self.by_task = false;
        } else if !self.by_task && self.users() < few {
            self.by_task = true;
        } else {
            return;
        }
        for place in self.places() {
            if !self.is_owners(place) {
                self.free_or_ask(place);
            }
        }
    }

    fn is_owners(&self, place: Place) -> bool {
        matches!(place, Place::Task(_)) == self.by_task
    }

    fn places(&self) -> Vec<Place> {
        self.shares.keys().copied().collect()
    }

    /// An id that nobody holds is nobody's from now on.
    fn free(&mut self, place: Place) -> bool {
        let idle = self.shares.get(&place).is_some_and(|share| share.holder.is_none());
        if idle && let Some(share) = self.shares.remove(&place) {
            assert!(self.used.remove(&share.id));
        }
        idle
    }

    fn free_or_ask(&mut self, place: Place) {
        if !self.free(place)
            && let Some(share) = self.shares.get_mut(&place)
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
        let place = if self.by_task {
            Place::Task(self.number_of(token))
        } else {
            if self.person(token).number.take().is_none() {
                self.migrate(token, cpu);
            }
            Place::Cpu(cpu)
        };
        if !self.shares.contains_key(&place)
            && let Some(id) = self.pick(self.recent.get(&cpu).copied())
        {
            self.used.insert(id);
            self.shares.insert(place, Share { id, holder: None, unused: false, asked: false });
        }
        self.person(token).was = None;
        match self.shares.get_mut(&place) {
            Some(share) if share.holder.is_none() => {
                share.holder = Some(token);
                share.unused = false;
                let id = share.id;
                self.person(token).holds = Some(Hold::Share(place));
                if let Place::Cpu(cpu) = place {
                    self.recent.insert(cpu, id);
                    self.person(token).was = Some((cpu, id));
                }
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

    /// The lowest number that no other user has.
    fn number_of(&mut self, token: u32) -> u32 {
        let taken = self.people.values().filter_map(|person| person.number).collect();
        *self.person(token).number.get_or_insert(lowest_gap(&taken))
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
        // Owned by tasks, the lowest free id is below the end if any is, and else any will do.
        let end = if self.rules == Rules::TaskOwned { self.cpus } else { self.end() };
        if id >= end {
            return None;
        }
        self.counts.lowest += 1;
        self.counts.allocated = self.counts.allocated.max(id + 1);
        Some(id)
    }

    /// What becomes of the id that a user left on the CPU where it was.
    pub(super) fn migrate(&mut self, token: u32, to: u32) {
        let person = self.person(token);
        let (Some((from, id)), None, None) = (person.was, person.holds, person.number) else { return };
        let still_there = self
            .shares
            .get(&Place::Cpu(from))
            .is_some_and(|share| share.id == id && share.holder.is_none() && !share.asked);
        if from == to || !still_there {
            return;
        }
        let has_id = self.shares.contains_key(&Place::Cpu(to));
        let own = self.rules == Rules::KeptPerCpu;
        let can_have = if own { self.person(token).may_use } else { self.nr_allowed() };
        let is_welcome = match self.rules {
            Rules::Lowest | Rules::TaskOwned => return,
            Rules::KeptPerCpu => !has_id,
            Rules::CacheLocal => !has_id && !self.recent.contains_key(&to),
        };
        if is_welcome {
            self.shares.remove(&Place::Cpu(from));
            self.shares.insert(Place::Cpu(to), Share { id, holder: None, unused: false, asked: false });
            self.recent.insert(to, id);
            self.counts.moves += 1;
        } else if self.users() < can_have {
            self.free(Place::Cpu(from));
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
            Hold::Share(place) => {
                let share = self.shares.get_mut(&place).expect("what it holds is there");
                share.holder = None;
                if share.asked || self.rules == Rules::Lowest {
                    self.free(place);
                }
            }
        }
    }

    pub(super) fn compact_if(&mut self, is_old: impl Fn(u32, bool) -> bool) {
        let before = self.used.len();
        if matches!(self.rules, Rules::KeptPerCpu | Rules::CacheLocal) {
            for (cpu, unused) in self.idle() {
                if is_old(cpu, unused) {
                    self.free(Place::Cpu(cpu));
                } else if let Some(share) = self.shares.get_mut(&Place::Cpu(cpu)) {
                    share.unused = true;
                }
            }
        }
        let bound = match self.rules {
            Rules::Lowest | Rules::CacheLocal => self.can_run(),
            Rules::KeptPerCpu => self.used.len() as u32,
            Rules::TaskOwned => self.end(),
        };
        for place in self.places() {
            if self.shares[&place].id >= bound {
                self.free_or_ask(place);
            } else if self.is_owners(place) {
                self.shares.get_mut(&place).expect("it is there").asked = false;
            }
        }
        for place in self.places() {
            if self.used.len() as u32 > bound {
                self.free(place);
            }
        }
        self.counts.compactions += 1;
        self.counts.compacted += (before - self.used.len()) as u64;
    }

    /// The CPUs that keep an id, and whether it was unused when a compaction saw it last.
    fn idle(&self) -> Vec<(u32, bool)> {
        let idle = self.shares.iter().filter(|(_, share)| share.holder.is_none());
        idle.filter_map(|(place, share)| match place {
            Place::Cpu(cpu) => Some((*cpu, share.unused)),
            Place::Task(_) => None,
        })
        .collect()
    }

    fn person(&mut self, token: u32) -> &mut Person {
        self.people.get_mut(&token).expect("a user")
    }

    pub(super) fn held(&self, token: u32) -> Option<Got> {
        self.people[&token].holds.map(|hold| match hold {
            Hold::Share(place) => Got { id: self.shares[&place].id, overflow: false },
            Hold::Overflow(id) => Got { id: self.cpus + id, overflow: true },
        })
    }

    /// The id that a CPU has, and whether somebody runs on it.
    pub(super) fn at(&self, cpu: u32) -> Option<(u32, bool)> {
        self.shares.get(&Place::Cpu(cpu)).map(|share| (share.id, share.holder.is_some()))
    }

    /// The id that a CPU or a task has.
    pub(super) fn has(&self, place: Place) -> Option<u32> {
        self.shares.get(&place).map(|share| share.id)
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
