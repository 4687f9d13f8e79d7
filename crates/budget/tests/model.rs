//! Compares the public interface of accounts with a model of a few integers, on the stocks of this machine.
//!
//! A server, two tenants with limits, a query in each; the model is an integer per account for the units that are held
//! of it. A charge fits if it fits every account on its path. The larger model, with guarantees and drops, is
//! `src/accounts/tests/model.rs`. Half a million steps for each kind.
#![cfg(not(loom))]

use fastrand::Rng;
use warmcore_budget::{Account, Charge, OverBudget, StockKind};

/// Steps for each kind. Debug builds take a tenth.
const STEPS: u64 = if cfg!(debug_assertions) { 50_000 } else { 500_000 };

const UP: [Option<usize>; 5] = [None, Some(0), Some(0), Some(1), Some(2)];

struct Known {
    limits: [u64; 5],
    held: [u64; 5],
}

impl Known {
    fn used(&self, i: usize) -> u64 {
        self.held[i] + (0..5).filter(|c| UP[*c] == Some(i)).map(|c| self.used(c)).sum::<u64>()
    }

    fn path(i: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(i), |i| UP[*i])
    }

    /// Whether a charge of `n` units fits every account on the path.
    fn fits(&self, i: usize, n: u64) -> bool {
        self.may_let_in(StockKind::Atomic, i, n)
    }

    /// Whether a charge of `n` units may be granted: it fits, or exceeds a limit by at most the units that may be
    /// unseen.
    fn may_let_in(&self, kind: StockKind, i: usize, n: u64) -> bool {
        let most = |a: usize| u128::from(self.limits[a]) + u128::from(self.unseen(kind, a));
        n == 0 || Self::path(i).all(|a| u128::from(self.used(a)) + u128::from(n) <= most(a))
    }

    /// Whether a charge of `n` units may be refused by the account of this name: the first account on the path that
    /// is too full, or that is so if the units that may be unseen are counted.
    fn may_refuse(&self, kind: StockKind, i: usize, n: u64, name: &str) -> bool {
        let mut path = Self::path(i).map(|a| {
            let (sum, unseen) = (u128::from(self.used(a)) + u128::from(n), u128::from(self.unseen(kind, a)));
            let limit = u128::from(self.limits[a]);
            (format!("#{a}") == name, sum > limit.saturating_sub(unseen), sum > limit + unseen)
        });
        let end = path.find(|(is_named, _, is_full)| *is_named || *is_full);
        n > 0 && end.is_some_and(|(is_named, may_be_full, _)| is_named && may_be_full)
    }

    /// Units that a section of the rseq kind spent in a stock, or gave back to it, while the background thread closed
    /// it: the next drain there notices them. They are at most the units that may be in stocks, a hundredth of the
    /// limit.
    fn unseen(&self, kind: StockKind, i: usize) -> u64 {
        if kind.is_strict() { 0 } else { self.limits[i] / 100 }
    }
}

fn every_answer_is_as_expected(kind: StockKind) {
    let mut known = Known { limits: [3_000_000, 2_000_000, 1_500_000, u64::MAX, 400_000], held: [0; 5] };
    let mut accounts: Vec<Account> = Vec::new();
    for (i, up) in UP.iter().enumerate() {
        let builder = match up {
            None => Account::root("#0").kind(kind),
            Some(up) => accounts[*up].child(format!("#{i}")),
        };
        accounts.push(builder.limit(known.limits[i]).build());
    }
    assert!(accounts.iter().all(|account| account.kind() == kind && account.explain().kind == kind.name()));
    assert_eq!(accounts[3].parent().unwrap(), accounts[1]);
    let (mut rng, mut kept) = (Rng::with_seed(42), Vec::<(usize, Charge)>::new());
    for step in 0..STEPS {
        let i = rng.u64(..5) as usize;
        let left = Known::path(i).map(|a| known.limits[a].saturating_sub(known.used(a))).min().unwrap();
        let n = match rng.u64(..8) {
            0 => 0,
            1..6 => 1 + rng.u64(..100),
            6 => left.saturating_add(rng.u64(..3)).saturating_sub(1),
            _ => [left / 2, left, u64::MAX, 1 << 30][rng.u64(..4) as usize],
        };
        let fits = known.fits(i, n);
        let context = || format!("step {step}: {n} in #{i}\n{}", accounts[i].explain());
        match rng.u64(..24) {
            0..8 => {
                let is = patiently(&accounts[i], fits, || accounts[i].try_charge(n));
                let is_right = match &is {
                    Ok(()) => known.may_let_in(kind, i, n),
                    Err(over) => !fits && known.may_refuse(kind, i, n, over.account()),
                };
                assert!(is_right, "{is:?}; {}", context());
                known.held[i] += is.map_or(0, |()| n);
            }
            8..10 => {
                let is = patiently(&accounts[i], fits, || accounts[i].try_hold(n));
                let is_right = is.as_ref().map_or(!fits, |_| known.may_let_in(kind, i, n));
                assert!(is_right, "{is:?}; {}", context());
                known.held[i] += is.as_ref().map_or(0, |_| n);
                kept.extend(is.ok().map(|charge| (i, charge)));
            }
            10..16 => {
                let kept: u64 =
                    kept.iter().filter(|(at, _)| *at == i).map(|(_, charge)| charge.units()).sum();
                let back = rng.u64(..known.held[i] - kept + 1);
                accounts[i].uncharge(back).unwrap();
                known.held[i] -= back;
            }
            16 => {
                if let Some(more) = known.held[i].checked_add(1 + n / 2) {
                    // Units that a section gave back late would cover the surplus.
                    settle(&accounts[i]);
                    let over = accounts[i].uncharge(more).unwrap_err();
                    assert_eq!((over.asked(), over.charged()), (more, known.held[i]), "{}", context());
                }
            }
            17 => {
                // Charges several accounts or none; one account is in the list twice.
                let other = rng.u64(..5) as usize;
                let charges = [(i, 40), (other, n), (i, 40)];
                let before = known.held;
                let mut all = |one: &dyn Fn(&Known, usize, u64) -> bool| {
                    known.held = before;
                    charges.iter().all(|(at, n)| {
                        let fits = one(&known, *at, *n);
                        known.held[*at] += if fits { *n } else { 0 };
                        fits
                    })
                };
                let fits = all(&|known, at, n| known.fits(at, n));
                let charged = charges.map(|(at, n)| (&accounts[at], n));
                let is = patiently(&accounts[i], fits, || Account::try_charge_all(&charged));
                let is_right =
                    is.as_ref().map_or(!fits, |()| all(&|known, at, n| known.may_let_in(kind, at, n)));
                if is.is_err() {
                    known.held = before;
                }
                assert!(is_right, "{is:?}; {}", context());
            }
            18 => {
                let n = if known.used(0) < 1 << 62 { n.min(1 << 20) } else { 0 };
                let is_over = !known.fits(i, n);
                let may_report = Known::path(i).any(|a| known.may_refuse(kind, i, n, &format!("#{a}")));
                let may_be_silent = known.may_let_in(kind, i, n);
                let is = accounts[i].force_charge(n);
                known.held[i] += n;
                assert!(if is.is_ok() { may_be_silent } else { may_report }, "{is:?}; {}", context());
                let by = is.map_or_else(|over| over.by(), |()| 0);
                let is_reported =
                    |a| by + known.unseen(kind, a) >= known.used(a).saturating_sub(known.limits[a]);
                assert!(!is_over || Known::path(i).all(is_reported), "{by}; {}", context());
                // A closed stock would serve charges with units that a section gave back late. They are in usage, so
                // the accounts' limits do not stop these charges.
                let is_full = |a: &usize| known.used(*a) > known.limits[*a];
                Known::path(i).filter(is_full).for_each(|a| settle(&accounts[a]));
            }
            19 => {
                if !kept.is_empty() {
                    let (at, mut charge) = kept.swap_remove(rng.u64(..kept.len() as u64) as usize);
                    let part = rng.u64(..charge.units() + 1);
                    let half = charge.split(part).unwrap();
                    known.held[at] -= part;
                    drop(half);
                    kept.push((at, charge));
                    if kept.len() > 30 {
                        kept.drain(..20).for_each(|(at, charge)| known.held[at] -= charge.units());
                    }
                }
            }
            20 => {
                let limit = [known.used(i) / 2, 400_000, 2_000_000, u64::MAX][rng.u64(..4) as usize];
                accounts[i].set_limit(limit);
                let explain = accounts[i].explain();
                assert!(limit >= known.limits[i] || explain.stranded() == 0, "{explain}; {}", context());
                known.limits[i] = limit;
            }
            21 => {
                let all = [accounts[i].drain_all().units, accounts[i].explain().stranded()];
                assert!(all[0] <= known.limits[0].max(1 << 40) / 100 && all[1] == 0, "{}", context());
            }
            22 => assert_eq!(accounts[i].exact_usage(), known.used(i), "{}", context()),
            _ => {
                if rng.u64(..50) == 0 {
                    Account::reclaim_idle_all();
                }
                for a in Known::path(i) {
                    let (usage, used) = (accounts[a].usage(), known.used(a));
                    let least = usage.charged.saturating_sub(usage.error);
                    let off = least.saturating_sub(used).max(used.saturating_sub(usage.charged));
                    assert!(off <= known.unseen(kind, a), "{usage:?} {used}; {}", context());
                    // Units that a section gave back late are in closed stocks, whose capacity is 0.
                    let explain = accounts[a].explain();
                    let in_stocks: u64 = explain.cpus.iter().map(|on| on.free.min(on.capacity)).sum();
                    let is_right = known.limits[a] == u64::MAX || in_stocks <= known.limits[a] / 100;
                    assert!(is_right, "{explain}; {}", context());
                }
            }
        }
    }
    drop(kept.into_iter().map(|(at, charge)| known.held[at] -= charge.units()).collect::<Vec<_>>());
    for (i, account) in accounts.iter().enumerate() {
        account.uncharge(known.held[i]).unwrap();
    }
    assert!(accounts.iter().all(|account| account.exact_usage() == 0 && account.explain().cpus.is_empty()));
}

#[test]
fn atomic_stocks_answer_as_integers_do() {
    every_answer_is_as_expected(StockKind::Atomic);
}

#[test]
fn rseq_stocks_answer_as_integers_do() {
    every_answer_is_as_expected(StockKind::Rseq);
}

/// Drains the account if sections may have left units or a debt in its closed stocks.
fn settle(account: &Account) {
    if !account.kind().is_strict() {
        account.drain_all();
    }
}

/// The rseq kind may refuse falsely while the background thread is in the middle of a step, so a charge that
/// fits is repeated. The strict kind gets one attempt.
fn patiently<T>(
    account: &Account,
    fits: bool,
    mut act: impl FnMut() -> Result<T, OverBudget>,
) -> Result<T, OverBudget> {
    let mut result = act();
    for _ in 0..1000 {
        if result.is_ok() || !fits || account.kind().is_strict() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
        result = act();
    }
    result
}
