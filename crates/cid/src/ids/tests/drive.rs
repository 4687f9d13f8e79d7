//! Performs the same operations on the ids and on the model, and compares the two after each.
//!
//! An [`Op`] is plain data that is valid in every state, so that random sequences can be made in advance and
//! shortened. [`Pair::step`] performs it on the ids and on the model and checks the counts, and the CPU on which a
//! user entered, left or moved; [`Pair::check_all`] checks all CPUs and users. With more than 3 CPUs `check_all` is
//! not called after every step; a difference is mostly found later, because it stays until the next entry on that CPU.

use super::model::{CidModel, Entered, Rules};
use super::*;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    /// Adds a user that may use `len` CPUs from `first` on; some may be beyond the last CPU.
    Add {
        first: u32,
        len: u32,
    },
    /// Removes a user, after it gave back all ids that it holds.
    Remove {
        index: u32,
    },
    /// If `cpu` is `None`, the user enters on the CPU where it was last.
    Enter {
        index: u32,
        cpu: Option<u32>,
    },
    /// Leaves with the guard of this number, modulo how many the user has.
    Leave {
        index: u32,
        guard: u32,
    },
    /// Moves a user, only to a CPU in the tenant's set.
    Migrate {
        index: u32,
        cpu: u32,
    },
    Allow {
        cpu: u32,
    },
    /// Replaces a user's affinity mask.
    Mask {
        index: u32,
        first: u32,
        len: u32,
    },
    Compact,
    /// Compacts with a rule for old ids that `salt` chooses.
    CompactIf {
        salt: u32,
    },
}

/// A user, and the guards that this test holds for it.
struct Member<'a> {
    user: User,
    token: u32,
    cpu: u32,
    guards: Vec<HeldCid<'a>>,
}

pub(super) struct Pair<'a> {
    rules: Rules,
    cpus: u32,
    ids: &'a Plain,
    model: CidModel,
    members: Vec<Member<'a>>,
    /// Ids that are held, each with the token of its user.
    held: BTreeMap<u32, u32>,
    next_token: u32,
    steps: u32,
}

/// The ids under test.
pub(super) fn ids(rules: Rules, cpus: u32, overflow: u32) -> Plain {
    let policy: &'static dyn Policy = match rules {
        Rules::Lowest => &Lowest,
        Rules::KeptPerCpu => &KeptPerCpu,
        Rules::CacheLocal => &CacheLocal,
    };
    Ids::new(pcpu_cids(cpus), overflow, policy)
}

impl<'a> Pair<'a> {
    /// `ids`: made with the same rules and as many overflow ids, and not used yet.
    pub(super) fn new(ids: &'a Plain, rules: Rules, overflow: u32) -> Self {
        let cpus = ids.pcpu_cids.cpus();
        Self {
            rules,
            cpus,
            ids,
            model: CidModel::new(rules, cpus, overflow),
            members: Vec::new(),
            held: BTreeMap::new(),
            next_token: 0,
            steps: 0,
        }
    }

    pub(super) fn users(&self) -> u32 {
        self.members.len() as u32
    }

    pub(super) fn has_guards(&self, index: u32) -> u32 {
        self.members[index as usize].guards.len() as u32
    }

    fn bound(&self) -> u32 {
        let stats = self.ids.stats();
        stats.users.min(stats.nr_cpus_allowed)
    }

    /// Performs an operation on the ids and on the model, and compares them. An operation that is impossible in this
    /// state changes nothing.
    pub(super) fn step(&mut self, op: Op) {
        self.steps += 1;
        let index = |index: u32| (!self.members.is_empty()).then(|| index as usize % self.members.len());
        match op {
            Op::Add { first, len } => self.add(first, len),
            Op::Remove { index: n } => _ = index(n).map(|index| self.remove(index)),
            Op::Enter { index: n, cpu } => _ = index(n).map(|index| self.enter(index, cpu)),
            Op::Leave { index: n, guard } => _ = index(n).map(|index| self.leave(index, guard)),
            Op::Migrate { index: n, cpu } => _ = index(n).map(|index| self.migrate(index, cpu)),
            Op::Allow { cpu } => self.allow(cpu),
            Op::Mask { index: n, first, len } => _ = index(n).map(|index| self.mask(index, first, len)),
            Op::Compact => self.compact(None),
            Op::CompactIf { salt } => self.compact(Some(salt)),
        }
        let stats = self.ids.stats();
        assert_eq!(stats, self.model.stats());
        assert_eq!(self.ids.in_use(), stats.in_use);
        let overflow = self.cpus..self.cpus + self.model.overflow_end();
        assert_eq!(self.ids.allocated(), [0..stats.allocated, overflow]);
        let is_small = self.cpus <= 3;
        if is_small || self.steps.is_multiple_of(self.cpus.min(64)) {
            self.check_all();
        }
    }

    fn allow(&mut self, cpu: u32) {
        self.ids.allow(&[CpuId(cpu)].into_iter().collect());
        self.model.allow(std::iter::once(cpu));
    }

    fn mask(&mut self, index: usize, first: u32, len: u32) {
        let member = &mut self.members[index];
        self.ids.allow_user(&mut member.user, &(first..first + len).map(CpuId).collect());
        self.model.allow_user(member.token, first..first + len);
    }

    fn add(&mut self, first: u32, len: u32) {
        let token = self.next_token;
        self.next_token += 1;
        let allowed = (first..first + len).map(CpuId).collect();
        let user = self.ids.add_user(token, &allowed);
        self.model.add_user(token, first..first + len);
        self.members.push(Member { user, token, cpu: first % self.cpus, guards: Vec::new() });
    }

    fn remove(&mut self, index: usize) {
        while !self.members[index].guards.is_empty() {
            self.leave(index, 0);
        }
        let member = self.members.swap_remove(index);
        self.ids.remove_user(member.user);
        self.model.remove_user(member.token);
    }

    fn enter(&mut self, index: usize, cpu: Option<u32>) {
        let cpu = cpu.unwrap_or(self.members[index].cpu);
        let member = &mut self.members[index];
        let (before, there) = (self.ids.stats(), self.ids.at(CpuId(cpu)));
        let held = self.ids.enter(CpuId(cpu), &mut member.user);
        let got = held.as_ref().map(|held| Entered { id: held.cid().0, overflow: held.is_overflow() });
        assert_eq!(got, self.model.enter(member.token, cpu), "what an entry on cpu {cpu} got");
        member.cpu = cpu;
        let Some(held) = held else {
            assert_eq!(self.ids.held_cid(&member.user), None);
            return self.check_cpu(cpu);
        };
        let cid = held.cid().0;
        assert_eq!(self.ids.held_cid(&member.user), Some(held.cid()));
        if let Some(first) = member.guards.first() {
            assert_eq!(held.cid(), first.cid(), "a nested entry got another id");
        } else {
            let other = self.held.insert(cid, member.token);
            assert_eq!(other, None, "two users hold id {cid}");
        }
        assert_eq!(held.is_overflow(), cid >= self.cpus);
        let is_nested = !member.guards.is_empty();
        if held.is_overflow() && !is_nested {
            assert!(
                there.is_some_and(|(_, held)| held),
                "an overflow id, and no user held the id of cpu {cpu}"
            );
        }
        let after = self.ids.stats();
        let picks = |stats: &Stats| stats.recent_hits + stats.expansions + stats.lowest;
        if picks(&after) > picks(&before) {
            let end = after.nr_cpus_allowed;
            assert!(cid < end, "picked {cid}, and the end is {end}");
        }
        member.guards.push(held);
        self.check_cpu(cpu);
    }

    fn leave(&mut self, index: usize, guard: u32) {
        let member = &mut self.members[index];
        if member.guards.is_empty() {
            return;
        }
        let guard = guard as usize % member.guards.len();
        let held = member.guards.swap_remove(guard);
        let cid = held.cid();
        assert_eq!(self.ids.held_cid(&member.user), Some(cid), "the id changed while the user held it");
        self.ids.leave(held, &mut member.user);
        self.model.leave(member.token);
        if member.guards.is_empty() {
            self.held.remove(&cid.0);
        }
        assert_eq!(self.ids.held_cid(&member.user), (!member.guards.is_empty()).then_some(cid));
        assert_eq!(self.ids.holds(&member.user), !member.guards.is_empty());
        let cpu = member.cpu;
        self.check_cpu(cpu);
    }

    fn migrate(&mut self, index: usize, cpu: u32) {
        if !self.ids.is_allowed(CpuId(cpu)) {
            return;
        }
        let member = &self.members[index];
        self.ids.migrate(&member.user, CpuId(cpu));
        self.model.migrate(member.token, cpu);
        self.check_cpu(cpu);
        self.check_cpu(member.cpu);
    }

    fn compact(&mut self, salt: Option<u32>) {
        let left = match salt {
            None => {
                self.model.compact_if(|_, unused| unused);
                self.ids.compact()
            }
            Some(salt) => {
                let is_old =
                    |cpu: u32, unused| cpu.wrapping_mul(salt | 1) & 64 == 0 || unused && salt & 2 == 0;
                self.model.compact_if(is_old);
                self.ids.compact_if(|cpu, unused| is_old(cpu.0, unused))
            }
        };
        assert_eq!(left, self.model.stats().in_use);
        if matches!(self.rules, Rules::CacheLocal | Rules::Lowest) {
            assert!(left <= self.bound(), "{left} in use after a compaction, the bound is {}", self.bound());
        }
        if self.cpus < 1000 {
            self.check_all();
        }
    }

    fn check_cpu(&self, cpu: u32) {
        let at = self.ids.at(CpuId(cpu)).map(|(cid, held)| (cid.0, held));
        assert_eq!(at, self.model.at(cpu), "what cpu {cpu} has");
    }

    /// Compares all CPUs and users, and checks that no two CPUs have the same id.
    pub(super) fn check_all(&self) {
        (0..self.cpus).for_each(|cpu| self.check_cpu(cpu));
        let mut held = 0;
        for member in &self.members {
            let got = self.ids.held_cid(&member.user);
            assert_eq!(got, member.guards.first().map(HeldCid::cid), "what user {} holds", member.token);
            assert_eq!(got.map(|cid| cid.0), self.model.held(member.token).map(|got| got.id));
            held += usize::from(got.is_some());
        }
        assert_eq!(held, self.held.len());
        let (mut found, mut held) = (BTreeSet::new(), 0);
        for cpu in 0..self.cpus {
            let pcpu_cid = self.ids.pcpu_cids.pcpu_cid(CpuId(cpu));
            let cid = match pcpu_cid.state() {
                State::Empty => continue,
                State::InUse(token) => {
                    held += 1;
                    let cid = pcpu_cid.cid_word().assigned_cid().0;
                    let holder = self.held.get(&cid).map(|token| Token::new(*token));
                    assert_eq!(holder, Some(token), "the holder of id {cid} of cpu {cpu}");
                    cid
                }
                State::Cached | State::Stale => pcpu_cid.cid_word().assigned_cid().0,
            };
            assert!(found.insert(cid), "two CPUs have id {cid}, one of them cpu {cpu}");
            assert_eq!(self.model.has(cpu), Some(cid), "what cpu {cpu} has");
        }
        let stats = self.ids.stats();
        assert_eq!(found.len() as u32, stats.in_use, "ids of CPUs, and ids in use");
        assert_eq!(held + stats.overflow_in_use as usize, self.held.len(), "ids in use, and holders");
    }

    /// Every holder leaves and enters again on its CPU.
    pub(super) fn reenter_all(&mut self) {
        for index in 0..self.members.len() {
            if !self.members[index].guards.is_empty() {
                while !self.members[index].guards.is_empty() {
                    self.leave(index, 0);
                }
                self.enter(index, None);
            }
        }
    }

    /// Lets all holders re-enter, and compacts. Under `CacheLocal`, no more ids are in use then than users can run at
    /// once; and after a second round no user holds an id that is not below that number, except overflow ids.
    pub(super) fn settles(&mut self) {
        self.reenter_all();
        // A user that moved while it held an id has freed its old CPU for a user with an overflow id.
        self.reenter_all();
        self.step(Op::Compact);
        if self.rules == Rules::CacheLocal {
            assert!(self.ids.stats().in_use <= self.bound());
            self.reenter_all();
            self.step(Op::Compact);
            let bound = self.bound();
            let above: Vec<_> = self.held.keys().filter(|id| (bound..self.cpus).contains(*id)).collect();
            assert!(above.is_empty(), "held at or above {bound}: {above:?}");
        }
        self.check_all();
    }
}

/// The parameters of one run's random operations.
struct Mix {
    /// CPUs in use: `spread` of them, from `first` on.
    first: u32,
    spread: u32,
    users_max: u32,
    leave_percent: u32,
    nest_percent: u32,
    stay_percent: u32,
    compact_percent: u32,
}

impl Mix {
    fn new(rng: &mut Rng, cpus: u32) -> Self {
        let spread = match rng.u32(..3) {
            0 => 1 + rng.u32(..cpus),
            1 => 1 + rng.u32(..cpus.min(5)),
            _ => cpus,
        };
        Self {
            first: rng.u32(..cpus - spread + 1),
            spread,
            users_max: match rng.u32(..4) {
                0 => 1 + rng.u32(..3),
                1 => spread,
                2 => spread + 1 + rng.u32(..4),
                _ => spread + spread / 2 + 2,
            }
            .min(500),
            leave_percent: 20 + rng.u32(..80),
            nest_percent: rng.u32(..30),
            stay_percent: rng.u32(..100),
            compact_percent: 1 + rng.u32(..4),
        }
    }

    fn cpu(&self, rng: &mut Rng) -> u32 {
        self.first + rng.u32(..self.spread)
    }

    fn op(&self, rng: &mut Rng, pair: &Pair<'_>, wanted: u32) -> Op {
        let users = pair.users();
        let cpu = self.cpu(rng);
        let churn = if users.abs_diff(wanted) > 8 { 50 } else { 10 };
        if users == 0 || users < wanted && (rng.u32(..100) < churn) {
            let len = match rng.u32(..8) {
                0 => self.first + self.spread - cpu,
                1 => pair.cpus.min(400) + 70,
                n => n - 1,
            };
            return Op::Add { first: cpu, len };
        }
        let index = rng.u32(..users);
        if users > wanted && (rng.u32(..100) < churn) || (rng.u32(..100) < 1) {
            return Op::Remove { index };
        }
        if rng.u32(..100) < self.compact_percent {
            return if rng.u32(..100) < 80 {
                Op::Compact
            } else {
                Op::CompactIf { salt: rng.u32(..u32::MAX) }
            };
        }
        match (rng.u32(..100), pair.has_guards(index)) {
            (0, _) if (rng.u32(..100) < 50) => Op::Mask { index, first: cpu, len: rng.u32(..6) },
            (0, _) => Op::Allow { cpu: rng.u32(..pair.cpus + 3) },
            (1..=4, _) => Op::Migrate { index, cpu },
            (_, 1..) if (rng.u32(..100) < self.leave_percent) => Op::Leave { index, guard: rng.u32(..8) },
            // An entry of any user, while this one holds an id, simulates that the holder lost its CPU.
            (_, 1..) if rng.u32(..100) >= self.nest_percent => {
                Op::Enter { index: rng.u32(..users), cpu: Some(cpu) }
            }
            _ => Op::Enter { index, cpu: (rng.u32(..100) >= self.stay_percent).then_some(cpu) },
        }
    }
}

/// Prints how to replay a run that fails.
struct Replay<'a>(&'a str);

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to replay: {}", self.0);
        }
    }
}

/// Runs one random history of one tenant, on the ids and on the model.
pub(super) fn run(rules: Rules, cpus: u32, seed: u64, steps: u32) {
    let how = format!("run({rules:?}, {cpus}, {seed}, {steps})");
    let _replay = Replay(&how);
    let mut rng = Rng::with_seed(seed);
    let overflow = if rng.u32(..100) < 50 { 600 } else { rng.u32(..4) };
    let ids = ids(rules, cpus, overflow);
    let mut pair = Pair::new(&ids, rules, overflow);
    let mut mix = Mix::new(&mut rng, cpus);
    let mut wanted = 1;
    for step in 0..steps {
        if step % 128 == 0 {
            wanted = 1 + rng.u32(..mix.users_max);
        }
        if step % 1024 == 1023 {
            mix = Mix::new(&mut rng, cpus);
        }
        let op = mix.op(&mut rng, &pair, wanted);
        pair.step(op);
        if rng.u32(..1000) == 0 {
            pair.settles();
        }
    }
    pair.settles();
}
