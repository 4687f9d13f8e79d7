//! Usage of an account, and where its units are.

use super::exact::DisableStocks;
use super::node::Node;
use super::{Accounts, Stocks};
use crate::sync::Ordering::*;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use warmcore_types::CpuId;

/// How much is charged to an account and all accounts below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Units in use, units in stocks, and the unused guarantees of accounts below. The limit is compared with this
    /// number.
    pub charged: u64,
    /// Of `charged`, at most this many units are in stocks: at least `charged - error` is in use or guaranteed, apart
    /// from stocks that open during the call and charges that are refused at that moment. A charge, refill or
    /// uncharge that is under way adds 1. With the rseq kind, a section that ran while its stock was being closed
    /// may make `charged` too high or too low until that stock is drained again: see [`Explain::debt`].
    pub error: u64,
}

/// The stocks of an account and all below on one CPU, added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnCpu {
    /// The CPU that owns the stocks.
    pub cpu: CpuId,
    /// Units in these stocks.
    pub free: u64,
    /// Units that these stocks may hold.
    pub capacity: u64,
    /// Units that were spent after a drain had taken them, and are not charged yet.
    pub debt: u64,
}

/// One account, as [`Explain`] shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The account's name.
    pub account: Arc<str>,
    /// Units charged to the account and all below, units in stocks included.
    pub charged: u64,
    /// The most that was ever charged to the account and all below, including units in stocks and charges that an
    /// account above then refused.
    pub peak: u64,
    /// The limit; `u64::MAX` if there is none.
    pub limit: u64,
    /// The soft limit; `u64::MAX` if there is none.
    pub soft_limit: u64,
    /// Units that the parent keeps for this account, used or not.
    pub guarantee: u64,
    /// The part of the guarantee that is not used.
    pub reserve: u64,
    /// The most units that the stocks of this account and all below may hold now. A charge, refill or uncharge that is
    /// under way adds 1.
    pub in_stocks_max: u64,
    /// The number of open stocks of this account and all below.
    pub stocks: u32,
    /// The number of reasons to keep the stocks of this account and all below closed: each call that reads the exact
    /// usage or forces the account over its limit, each charge that waits here, and the end of the account.
    pub stocks_disabled: u32,
    /// Charges that wait here.
    pub waiting: u32,
}

/// Where the units of an account are, and how full the accounts on its path are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explain {
    /// `rseq`, `atomic` or `lock`.
    pub kind: &'static str,
    /// From the account to its root.
    pub path: Vec<Level>,
    /// Stocks of the account and all below, by CPU; only CPUs that have one.
    pub cpus: Vec<OnCpu>,
}

impl Explain {
    /// Units in use by the account and all below: the charged units, less those in stocks, plus the debts. Unused
    /// guarantees of accounts below count as used. The CPUs are read one after the other, so charges meanwhile make
    /// the number inexact.
    pub fn used(&self) -> u64 {
        (self.path[0].charged + self.debt()).saturating_sub(self.stranded())
    }

    /// Units in stocks of the account and all below.
    pub fn stranded(&self) -> u64 {
        self.cpus.iter().map(|on| on.free).sum()
    }

    /// Units that were spent from stocks of the account and all below after a drain had taken them, and are not charged
    /// yet.
    pub fn debt(&self) -> u64 {
        self.cpus.iter().map(|on| on.debt).sum()
    }

    /// Whether the units look like bytes: a limit on the path is a whole number of KiB, and neither 0 nor `u64::MAX`
    /// (no limit).
    fn counts_bytes(&self) -> bool {
        self.path
            .iter()
            .any(|level| level.limit < u64::MAX && level.limit > 0 && level.limit.is_multiple_of(1024))
    }
}

/// A number of units, printed for people.
struct Amount {
    n: u64,
    is_bytes: bool,
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if !self.is_bytes {
            // In groups of three digits.
            let digits = self.n.to_string();
            let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group));
            return f.write_str(&groups.collect::<Vec<_>>().join(" "));
        }
        if self.n < 1024 {
            return write!(f, "{} B", self.n);
        }
        let power = self.n.ilog2() as usize / 10;
        let (unit, name) = (1u64 << (10 * power), NAMES[power - 1]);
        // Rounded down, so that a value just below a limit does not look equal to it.
        match ((self.n % unit) as u128 * 10 / u128::from(unit), self.n / unit) {
            (0, whole) => write!(f, "{whole} {name}"),
            (tenths, whole) => write!(f, "{whole}.{tenths} {name}"),
        }
    }
}

/// A line of text for each account from the explained one to its root, then one for each CPU with a stock. Numbers are
/// in B, KiB, MiB … if a limit on the path is a whole number of KiB, otherwise in groups of three digits.
impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_bytes = self.counts_bytes();
        let units = |n| Amount { n, is_bytes };
        for (i, level) in self.path.iter().enumerate() {
            // For the first account every stock was read; for the stocks of the accounts above only an upper bound is
            // known.
            let used = if i == 0 { self.used() } else { level.charged.saturating_sub(level.in_stocks_max) };
            let is_exact = i == 0 || level.in_stocks_max == 0;
            write!(f, "{}: {}{} used", level.account, if is_exact { "" } else { "at least " }, units(used))?;
            match level.limit {
                u64::MAX => f.write_str(", no limit")?,
                limit => write!(f, " of {}", units(limit))?,
            }
            let in_stocks = if i == 0 { self.stranded() } else { level.charged - used };
            if in_stocks > 0 {
                let up_to = if i == 0 { "" } else { "up to " };
                let s = if level.stocks == 1 { "" } else { "s" };
                write!(f, ", {up_to}{} more in {} stock{s}", units(in_stocks), level.stocks)?;
            }
            write!(f, "; peak {} with stocks", units(level.peak))?;
            if level.soft_limit < u64::MAX {
                write!(f, "; soft limit {}", units(level.soft_limit))?;
            }
            if level.guarantee > 0 {
                write!(f, "; {} guaranteed, {} of it unused", units(level.guarantee), units(level.reserve))?;
            }
            match level.waiting {
                0 => {}
                1 => f.write_str("; 1 charge waits here")?,
                waiting => write!(f, "; {waiting} charges wait here")?,
            }
            writeln!(f)?;
        }
        for OnCpu { cpu, free, capacity, debt } in &self.cpus {
            write!(f, "  {cpu}: {} of {} in stock ({})", units(*free), units(*capacity), self.kind)?;
            if *debt > 0 {
                write!(f, ", {} spent and not charged yet", units(*debt))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl<S: Stocks> Accounts<S> {
    /// Returns what is charged to an account, and how exact that number is.
    pub fn usage(&self, node: &Node) -> Usage {
        // The slack (see `node.rs`) is read first: the units of a stock that opens between the two reads are in
        // `charged` and not in `error`, so they count as used.
        let error = node.slack_units();
        Usage { charged: node.usage.load(Acquire), error }
    }

    /// Units in use by an account and all below, at one moment of this call; unused guarantees of accounts below count
    /// as used. Empties the stocks. With the rseq kind the number may be wrong by what sections under way spend or
    /// return at that moment.
    pub fn exact_usage(&self, node: &Node) -> u64 {
        let _disabled = DisableStocks::new(node);
        self.drain_all(node);
        self.exact(node, 1000, || ()).0
    }

    /// The most that was ever charged to the account, including units in stocks and charges that an account above then
    /// refused.
    pub fn peak(&self, node: &Node) -> u64 {
        node.peak.load(Relaxed)
    }

    /// Returns where the account's units are.
    pub fn explain(&self, node: &Node) -> Explain {
        let path = node.path().map(|a| Level {
            account: a.name(),
            charged: a.usage.load(Acquire),
            peak: a.peak.load(Relaxed),
            limit: a.limit.load(Relaxed),
            soft_limit: a.soft.load(Relaxed),
            guarantee: a.guarantee.load(Relaxed),
            reserve: a.reserve.load(Relaxed),
            in_stocks_max: a.slack_units(),
            stocks: a.stocks.load(Relaxed),
            stocks_disabled: a.stocks_disabled.load(Relaxed),
            waiting: a.waiting.load(Relaxed),
        });
        let (kind, path) = (S::NAME, path.collect());
        let mut cpus = BTreeMap::new();
        self.add_stocks(node, &mut cpus);
        Explain { kind, path, cpus: cpus.into_values().collect() }
    }

    fn add_stocks(&self, node: &Node, cpus: &mut BTreeMap<CpuId, OnCpu>) {
        for cpu in self.cpus_of(node) {
            let seen = self.stocks.snapshot(cpu, node.key);
            if seen.key == node.key && (seen.is_open() || seen.free != 0) {
                let sum = cpus.entry(cpu).or_insert(OnCpu { cpu, free: 0, capacity: 0, debt: 0 });
                sum.free += seen.free.max(0) as u64;
                sum.capacity += seen.capacity();
                sum.debt += u64::from(seen.free.min(0).unsigned_abs());
            }
        }
        let rest = node.cold();
        for child in rest.children.iter().filter_map(|key| self.nodes.get(*key)) {
            self.add_stocks(child, cpus);
        }
    }
}
