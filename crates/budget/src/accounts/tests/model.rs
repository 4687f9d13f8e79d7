//! Compares accounts with a model, a tree of integers, under random trees, limits, guarantees and operations.
//!
//! In the model, the use of an account is the units that its owner holds plus, for each child, the larger of the
//! child's use and its guarantee. A charge succeeds if the use then fits every limit on its path; accounts above
//! one whose guarantee covers the charge are not charged. The model has no stocks: units in stocks must not
//! change any result. After every step the accounts' own sums are checked as well.
//!
//! A million steps for each kind of stock, in sequences of 400. A failure prints the sequence's seed and its
//! last steps; `WARMCORE_BUDGET_SEED=<seed>` runs that sequence alone.

use super::*;
use crate::capacity::share;
use std::cell::{Cell, RefCell};

/// The number of steps for each kind. Debug builds make a twentieth of them, because each step is many times
/// slower there.
const STEPS: usize = if cfg!(debug_assertions) { 50_000 } else { 1_000_000 };
const STORY: usize = 400;
const ACCOUNTS_MAX: usize = 20;
const DEPTH_MAX: usize = 5;
/// Accounts whose keys differ by a multiple of this share a slot.
const SLOTS: u32 = 2048;
/// Forced charges leave every usage below this, so that no sum overflows.
const FORCED_MAX: u128 = 1 << 62;

/// Random numbers from a seed, through a shared reference.
struct Rng(RefCell<fastrand::Rng>);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(RefCell::new(fastrand::Rng::with_seed(seed)))
    }

    fn below(&self, end: u64) -> u64 {
        self.0.borrow_mut().u64(..end.max(1))
    }

    fn one_of<T: Copy>(&self, these: &[T]) -> T {
        these[self.below(these.len() as u64) as usize]
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Create { up: Option<usize>, limit: u64, guarantee: u64 },
    AddHandle(usize),
    Drop(usize),
    Charge(usize, u64),
    Force(usize, u64),
    Uncharge(usize, u64),
    Limit(usize, u64),
    Guarantee(usize, u64),
    Drain(usize),
    Exact(usize),
    Reclaim,
}

/// The model of one account.
struct Known<'a> {
    node: &'a Node,
    up: Option<usize>,
    depth: usize,
    limit: u64,
    guarantee: u64,
    held: u64,
    /// The number of handles and children.
    handles: usize,
    is_gone: bool,
}

impl Known<'_> {
    fn is_orphan(&self) -> bool {
        !self.is_gone && self.handles == 0
    }
}

struct Story<'a, S, C> {
    accounts: &'a Accounts<S>,
    cpu: &'a C,
    rng: &'a Rng,
    known: Vec<Known<'a>>,
    /// Accounts whose only purpose is to occupy keys.
    pads: usize,
    steps: Vec<Step>,
    seed: u64,
}

impl<S, C> Drop for Story<'_, S, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last = &self.steps[self.steps.len().saturating_sub(12)..];
            println!(
                "WARMCORE_BUDGET_SEED={}; step {}; the last ones: {last:?}",
                self.seed,
                self.steps.len()
            );
        }
    }
}

impl<'a, S: Stocks, C: Fn() -> CpuId> Story<'a, S, C> {
    fn children(&self, i: usize) -> impl Iterator<Item = usize> {
        (0..self.known.len()).filter(move |c| self.known[*c].up == Some(i) && !self.known[*c].is_gone)
    }

    /// The use of an account in the model.
    fn used(&self, i: usize) -> u128 {
        let children = self.children(i).map(|c| self.used(c).max(self.known[c].guarantee.into()));
        u128::from(self.known[i].held) + children.sum::<u128>()
    }

    /// Returns every account to which a charge of `n` units to account `i` is added. The error is the first account
    /// from `i` up that the charge does not fit, and how many units that account would be asked for.
    fn fits(&self, i: usize, n: u128) -> Result<Vec<usize>, (usize, u128)> {
        let (mut at, mut rest, mut way) = (Some(i), n, Vec::new());
        while let Some(i) = at.filter(|_| rest > 0) {
            let (used, guarantee) = (self.used(i), u128::from(self.known[i].guarantee));
            if used + rest > self.known[i].limit.into() {
                return Err((i, rest));
            }
            way.push(i);
            rest = (used + rest).max(guarantee) - used.max(guarantee);
            at = self.known[i].up;
        }
        Ok(way)
    }

    fn path(&self, i: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(i), |i| self.known[*i].up)
    }

    /// Units in an account's stocks, their capacities, and how many are open.
    fn stocks(&self, i: usize) -> (u64, u64, u32) {
        let key = self.known[i].node.key();
        let looks =
            (0..self.accounts.stocks().cpus()).map(|cpu| self.accounts.stocks().snapshot(CpuId(cpu), key));
        looks.filter(|seen| seen.key == key && !seen.is_leaving).fold(
            (0, 0, 0),
            |(free, capacities, open), seen| {
                assert!(seen.free >= 0 && seen.free as u64 <= seen.capacity(), "{i}: {seen:?}");
                (free + seen.free as u64, capacities + seen.capacity(), open + u32::from(seen.is_open()))
            },
        )
    }

    /// As `stocks`, for all accounts below as well.
    fn stocks_below(&self, i: usize) -> (u64, u64, u32) {
        let mine = self.stocks(i);
        self.children(i).map(|c| self.stocks_below(c)).fold(mine, |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2))
    }

    fn present(&self) -> Vec<usize> {
        (0..self.known.len()).filter(|i| !self.known[*i].is_gone).collect()
    }

    fn usage(&self, i: usize) -> u64 {
        self.known[i].node.usage.load(Relaxed)
    }

    /// Checks the sums of the accounts.
    fn check(&self) {
        for i in self.present() {
            let (known, node) = (&self.known[i], self.known[i].node);
            let (free, capacities, _) = self.stocks(i);
            let (direct, usage) = (node.direct.load(Relaxed), self.usage(i));
            assert_eq!(direct, known.held + free, "account {i}: direct is not what is held and in stocks");
            let below: u64 =
                self.children(i).map(|c| self.usage(c) + self.known[c].node.reserve.load(Relaxed)).sum();
            assert_eq!(usage, direct + below, "account {i}: usage is not the sum");
            if known.up.is_some() {
                let reserve = node.reserve.load(Relaxed);
                assert_eq!(
                    reserve,
                    known.guarantee.saturating_sub(usage),
                    "account {i}: reserve of {}",
                    known.guarantee
                );
            }
            let (_, below, open) = self.stocks_below(i);
            assert_eq!(
                (node.slack_units(), node.stocks.load(Relaxed)),
                (below, open),
                "account {i}: capacities"
            );
            assert!(below <= share(known.limit), "account {i}: {below} in stocks of {}", known.limit);
            assert!(known.limit == u64::MAX || below <= known.limit / 100, "account {i}: {below} in stocks");
            assert!(capacities <= direct, "account {i}: a stock could take more than is charged");
            assert!(!known.is_orphan() || capacities == 0, "account {i}: an orphan has a stock");
            assert_eq!(node.stocks_disabled.load(Relaxed), u32::from(known.is_orphan()), "account {i}");
            assert!(node.peak.load(Relaxed) >= usage, "account {i}");
            let reported = self.accounts.usage(node);
            let used = self.used(i);
            assert!(
                used <= reported.charged.into()
                    && used + u128::from(reported.error) >= reported.charged.into(),
                "{i}: {reported:?}, {used}"
            );
        }
    }

    fn name(i: usize) -> String {
        format!("#{i}")
    }

    fn config(i: usize, limit: u64, guarantee: u64) -> AccountConfig {
        AccountConfig { guarantee, ..config(&Self::name(i), limit) }
    }

    /// The model's part of dropping a last handle, and of what that frees.
    fn reap(&mut self) {
        while let Some(i) =
            (0..self.known.len()).find(|i| self.known[*i].is_orphan() && self.known[*i].held == 0)
        {
            self.known[i].is_gone = true;
            if let Some(up) = self.known[i].up {
                self.let_go(up);
            }
        }
    }

    fn let_go(&mut self, i: usize) {
        self.known[i].handles -= 1;
        if self.known[i].handles == 0 {
            self.known[i].guarantee = 0;
        }
    }

    /// Copies to the model how many of the units came from which orphan.
    fn learn_from_orphans(&mut self, i: usize, needed: u64) {
        let mut taken = 0;
        for c in self.children(i).collect::<Vec<_>>() {
            if self.known[c].is_orphan() {
                let left = self.known[c].node.direct.load(Relaxed);
                taken += self.known[c].held - left;
                self.known[c].held = left;
            }
        }
        assert_eq!(taken, needed, "account {i}: taken from its orphans");
    }

    fn refused(&self, over: &OverBudget, (full, asked): (usize, u128)) {
        let used = self.used(full);
        let reported = (over.account(), u128::from(over.asked()), u128::from(over.usage()), over.limit());
        assert_eq!(reported, (Self::name(full).as_str(), asked, used, self.known[full].limit));
        assert_eq!(over.exceeds_limit(), asked > self.known[full].limit.into());
        assert!(!over.is_queued());
    }

    fn do_step(&mut self, step: Step) {
        self.steps.push(step);
        let before: Vec<u64> = self.known.iter().map(|known| known.node.usage.load(Relaxed)).collect();
        match step {
            Step::Create { up, limit, guarantee } => {
                let i = self.known.len();
                let parent = up.map(|up| self.known[up].node);
                let expected = up.map_or(Ok(Vec::new()), |up| self.fits(up, guarantee.into()));
                let made = self.accounts.create(parent, Self::config(i, limit, guarantee));
                match (made, expected) {
                    (Ok(node), Ok(_)) => {
                        let depth = up.map_or(1, |up| self.known[up].depth + 1);
                        let guarantee = up.map_or(0, |_| guarantee);
                        if let Some(up) = up {
                            self.known[up].handles += 1;
                        }
                        self.known.push(Known {
                            node,
                            up,
                            depth,
                            limit,
                            guarantee,
                            held: 0,
                            handles: 1,
                            is_gone: false,
                        });
                    }
                    (Err(over), Err(full)) => {
                        self.refused(&over, full);
                        // An account whose creation failed ends as any other account.
                        self.reap();
                    }
                    (made, expected) => panic!("{:?}, expected {expected:?}", made.map(Node::key)),
                }
            }
            Step::AddHandle(i) => {
                self.accounts.add_handle(self.known[i].node);
                self.known[i].handles += 1;
            }
            Step::Drop(i) => {
                self.accounts.drop_handle(self.known[i].node);
                self.let_go(i);
                if self.known[i].handles == 0 {
                    self.reap();
                }
            }
            Step::Charge(i, n) => {
                let expected = self.fits(i, n.into());
                match (self.accounts.try_charge(self.known[i].node, self.cpu, n), expected) {
                    (Ok(()), Ok(_)) => {
                        self.known[i].held += n;
                        for i in self.path(i) {
                            let now = self.usage(i);
                            assert!(now <= self.known[i].limit || now <= before[i], "account {i}: {now}");
                        }
                    }
                    (Err(over), Err(full)) => self.refused(&over, full),
                    (is, expected) => panic!("account {i}, {n} units: {is:?}, expected {expected:?}"),
                }
            }
            Step::Force(i, n) => {
                let expected = self.fits(i, n.into());
                let in_stocks: Vec<u64> = self.known.iter().map(|known| known.node.slack_units()).collect();
                let is = self.accounts.force_charge(self.known[i].node, (self.cpu)(), n);
                let before: Vec<u128> = (0..self.known.len()).map(|i| self.used(i)).collect();
                self.known[i].held += n;
                match (is, expected) {
                    (Ok(()), Ok(_)) => {}
                    (Err(overrun), Err(_)) => {
                        let over = |i: usize| self.used(i).saturating_sub(self.known[i].limit.into());
                        let touched = self.path(i).filter(|i| self.used(*i) > before[*i]);
                        let most = touched.map(over).max().unwrap_or(0);
                        let at = self.path(i).find(|i| Self::name(*i) == overrun.account()).unwrap();
                        let by = u128::from(overrun.by());
                        let in_stocks = u128::from(in_stocks[at]);
                        assert!(
                            by >= most && by <= over(at) + in_stocks,
                            "{overrun}; {most} {} {in_stocks}",
                            over(at)
                        );
                    }
                    (is, expected) => panic!("account {i}, {n} units forced: {is:?}, expected {expected:?}"),
                }
            }
            Step::Uncharge(i, n) => {
                let adopted = self.children(i).filter(|c| self.known[*c].is_orphan());
                let held = self.known[i].held;
                let all = u128::from(held) + adopted.map(|c| u128::from(self.known[c].held)).sum::<u128>();
                match self.accounts.uncharge(self.known[i].node, self.cpu, n) {
                    Ok(()) => {
                        assert!(all >= n.into(), "account {i}: {n} units came back of {all}");
                        self.known[i].held = held.saturating_sub(n);
                        self.learn_from_orphans(i, n.saturating_sub(held));
                    }
                    Err(over) => {
                        assert!(all < n.into(), "account {i}, {n} units of {all}: {over}");
                        let reported = u128::from(over.charged());
                        assert!(
                            over.asked() == n && (held.into()..=all).contains(&reported),
                            "{over}; {held} to {all}"
                        );
                        self.learn_from_orphans(i, 0);
                    }
                }
            }
            Step::Limit(i, limit) => {
                self.accounts.set_limit(self.known[i].node, limit);
                self.known[i].limit = limit;
                assert_eq!(self.accounts.limit(self.known[i].node), limit);
            }
            Step::Guarantee(i, guarantee) => {
                let (used, old) = (self.used(i), u128::from(self.known[i].guarantee));
                let lacks = used.max(guarantee.into()).saturating_sub(used.max(old));
                let expected = self.known[i].up.map_or(Ok(Vec::new()), |up| self.fits(up, lacks));
                match (self.accounts.set_guarantee(self.known[i].node, guarantee), expected) {
                    (Ok(()), Ok(_)) => self.known[i].guarantee = self.known[i].up.map_or(0, |_| guarantee),
                    (Err(_), Err(_)) => {}
                    (is, expected) => {
                        panic!("account {i}, guarantee {guarantee}: {is:?}, expected {expected:?}")
                    }
                }
            }
            Step::Drain(i) => {
                let (units, _, stocks) = self.stocks_below(i);
                assert_eq!(self.accounts.drain_all(self.known[i].node), Drained { units, stocks });
                assert_eq!(self.stocks_below(i), (0, 0, 0));
            }
            Step::Exact(i) => {
                assert_eq!(u128::from(self.accounts.exact_usage(self.known[i].node)), self.used(i))
            }
            Step::Reclaim => {
                self.accounts.reclaim_idle();
                self.reap();
                assert_eq!(self.accounts.accounts(), self.present().len() + self.pads);
            }
        }
        self.check();
    }

    /// A random number of units for account `i`: 0, a small number, any number, or one close to a limit or a
    /// guarantee.
    fn amount(&self, i: usize) -> u64 {
        let rng = self.rng;
        let left = |i: usize| {
            u128::from(self.known[i].limit).saturating_sub(self.used(i)).min(u64::MAX.into()) as u64
        };
        match rng.below(16) {
            0 => 0,
            1..8 => 1 + rng.below(10),
            8..10 => rng.below(1000),
            10 => rng.below(1 << rng.below(40)),
            11..14 => {
                let least = self.path(i).map(left).min().unwrap_or(0);
                let guarantee = self.known[i].guarantee;
                let around =
                    rng.one_of(&[least, least / 2, left(i), guarantee, least.saturating_add(guarantee)]);
                around.saturating_add(rng.below(3)).saturating_sub(1)
            }
            14 => rng.one_of(&[1 << 29, (1 << 29) + 1, 1 << 30, (1 << 32) - 1, 1 << 32, 1 << 40]),
            _ => rng.one_of(&[u64::MAX, u64::MAX - 1, 1 << 63, u64::MAX - self.usage(i)]),
        }
    }

    fn limit(&self) -> u64 {
        let rng = self.rng;
        match rng.below(16) {
            0 => 0,
            1 => rng.below(200),
            2..8 => 1000 + rng.below(1_000_000),
            8..12 => rng.below(1 << 40),
            _ => u64::MAX,
        }
    }

    fn guarantee(&self) -> u64 {
        let rng = self.rng;
        match rng.below(8) {
            0 => rng.one_of(&[u64::MAX, 1 << 40]),
            1..3 => rng.below(100_000),
            3 => rng.below(100),
            _ => 0,
        }
    }

    fn step(&self) -> Step {
        let rng = self.rng;
        let present = self.present();
        let with_handle: Vec<usize> = present.iter().copied().filter(|i| self.has_handle(*i)).collect();
        if with_handle.is_empty() {
            return Step::Create { up: None, limit: self.limit(), guarantee: 0 };
        }
        let (i, any) = (rng.one_of(&with_handle), rng.one_of(&present));
        match rng.below(100) {
            0..4 if present.len() < ACCOUNTS_MAX => {
                let up = Some(i).filter(|i| self.known[*i].depth < DEPTH_MAX && rng.below(8) > 0);
                Step::Create { up, limit: self.limit(), guarantee: self.guarantee() }
            }
            4 => Step::AddHandle(i),
            5..8 => Step::Drop(i),
            8..13 => Step::Limit(i, if rng.below(4) == 0 { self.usage(i) / 2 } else { self.limit() }),
            13..16 => Step::Guarantee(i, self.guarantee()),
            16 => Step::Drain(i),
            17 => Step::Exact(i),
            18..20 => Step::Reclaim,
            20..22 => {
                let n = self.amount(i).min(1 << 60);
                if self.path(i).all(|i| u128::from(self.usage(i)) + u128::from(n) < FORCED_MAX) {
                    Step::Force(i, n)
                } else {
                    Step::Exact(i)
                }
            }
            22..62 => Step::Charge(i, self.amount(i)),
            62..66 => Step::Uncharge(any, self.amount(any)),
            66..72 => Step::Uncharge(any, self.known[any].held),
            72..74 => Step::Uncharge(any, self.known[any].held.saturating_add(1 + rng.below(50))),
            _ => {
                let held = self.known[any].held;
                Step::Uncharge(
                    any,
                    if held < 40 { held } else { rng.one_of(&[1, 7, held / 2, held / 3, held - 1]) },
                )
            }
        }
    }

    /// Whether the account has handles besides its children.
    fn has_handle(&self, i: usize) -> bool {
        self.known[i].handles > self.children(i).count()
    }

    fn tell(&mut self) {
        let pads_at = if self.rng.below(8) == 0 { 6 } else { usize::MAX };
        let mut pads = Vec::new();
        while self.steps.len() < STORY {
            if self.known.len() == pads_at && pads.is_empty() {
                // Every account that gets a new key after this shares a slot with one of the first accounts or with a
                // pad.
                while pads.last().is_none_or(|node: &&Node| node.key() < SLOTS) {
                    pads.push(self.accounts.create(None, config("pad", 0)).unwrap());
                }
                self.pads = pads.len();
            }
            self.do_step(self.step());
        }
        // All units are given back in the account that holds them, on any CPU.
        for i in self.present() {
            while self.known[i].held > 0 {
                let part = 1 + self.known[i].held / 2;
                self.do_step(Step::Uncharge(i, part.min(self.known[i].held)));
            }
        }
        for i in self.present() {
            let kept: u128 = self.children(i).map(|c| self.used(c).max(self.known[c].guarantee.into())).sum();
            assert_eq!(u128::from(self.accounts.exact_usage(self.known[i].node)), kept);
        }
        for i in self.present() {
            while self.has_handle(i) && !self.known[i].is_gone {
                self.do_step(Step::Drop(i));
            }
        }
        self.do_step(Step::Reclaim);
        assert!(self.present().is_empty() && self.accounts.accounts() == self.pads);
    }
}

fn tell_stories<S: Stocks, C: Fn() -> CpuId>(stocks: impl Fn(u64) -> S, cpu: impl Fn(u64, u32) -> C) {
    let seed =
        std::env::var("WARMCORE_BUDGET_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let stories = if seed.is_some() { 1 } else { (STEPS / STORY) as u64 };
    let first = seed.unwrap_or(1);
    for seed in first..first + stories {
        let (accounts, rng) = (Accounts::new(stocks(seed)), Rng::new(seed));
        let cpu = cpu(seed, accounts.stocks().cpus());
        let (known, steps) = (Vec::new(), Vec::new());
        Story { accounts: &accounts, cpu: &cpu, rng: &rng, known, pads: 0, steps, seed }.tell();
    }
}

/// The number of CPUs: sometimes one, sometimes more than there are bits in a word.
fn cpus(seed: u64) -> u32 {
    [4, 1, 3, 2, 4, 3, 66, 4][(seed % 8) as usize]
}

/// Returns a function that returns a CPU: a new random one at every fourth call on average, as if the thread migrated.
fn moved(seed: u64, cpus: u32) -> impl Fn() -> CpuId {
    let rng = Rng::new(seed ^ 0xabcd);
    let stays = Cell::new(CpuId(0));
    move || {
        if rng.below(4) == 0 {
            // Sometimes a CPU number without a table.
            stays.set(CpuId(rng.below(u64::from(cpus) + u64::from(rng.below(50) == 0)) as u32));
        }
        stays.get()
    }
}

#[test]
fn atomic_stocks_change_no_answer() {
    tell_stories(|seed| AtomicStocks::new(cpus(seed)), moved);
}

#[test]
fn locked_stocks_change_no_answer() {
    tell_stories(|seed| LockedStocks::new(cpus(seed)), moved);
}

#[test]
fn rseq_stocks_change_no_answer() {
    // This enables sections if the system supports them.
    let _ = warmcore_percpu::try_backend();
    // SAFETY: the backend was chosen.
    tell_stories(|_| unsafe { RseqStocks::new(affinity::nr_cpu_ids() as u32) }, |_, _| current_cpu);
}
