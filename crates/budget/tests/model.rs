//! The whole of an account's interface against a few integers, on this machine's own stocks.
//!
//! Model.   A server, two tenants with limits, a query in each: what is held of each is an integer. A charge
//!          fits if it fits on its way up. The deep model, with guarantees and drops, is `accounts/tests`.
//! Number.  Half a million steps for each kind.
#![cfg(not(loom))]

mod dice;

use dice::Dice;
use warmcore_budget::{Account, Charge, Kind, OverBudget};

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

    /// The first on the way up that is too full.
    fn full(&self, i: usize, n: u64) -> Option<usize> {
        let is_full = |a: &usize| n > 0 && u128::from(self.used(*a)) + u128::from(n) > self.limits[*a].into();
        Self::path(i).find(is_full)
    }
}

fn every_answer_is_as_expected(kind: Kind) {
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
    let (mut dice, mut kept) = (Dice(42), Vec::<(usize, Charge)>::new());
    for step in 0..STEPS {
        let i = dice.below(5) as usize;
        let left = Known::path(i).map(|a| known.limits[a].saturating_sub(known.used(a))).min().unwrap();
        let n = match dice.below(8) {
            0 => 0,
            1..6 => 1 + dice.below(100),
            6 => left.saturating_add(dice.below(3)).saturating_sub(1),
            _ => [left / 2, left, u64::MAX, 1 << 30][dice.below(4) as usize],
        };
        let expected = known.full(i, n).map(|full| format!("#{full}"));
        let context = || format!("step {step}: {n} in #{i}\n{}", accounts[i].explain());
        match dice.below(24) {
            0..8 => {
                let is = patiently(&accounts[i], expected.is_none(), || accounts[i].try_charge(n));
                assert_eq!(
                    is.as_ref().err().map(|over| over.account().to_owned()),
                    expected,
                    "{}",
                    context()
                );
                known.held[i] += is.map_or(0, |()| n);
            }
            8..10 => {
                let is = patiently(&accounts[i], expected.is_none(), || accounts[i].try_hold(n));
                assert_eq!(is.is_err(), expected.is_some(), "{}", context());
                kept.extend(is.ok().map(|charge| (i, charge)));
                known.held[i] += if expected.is_none() { n } else { 0 };
            }
            10..16 => {
                let kept: u64 =
                    kept.iter().filter(|(at, _)| *at == i).map(|(_, charge)| charge.units()).sum();
                let back = dice.below(known.held[i] - kept + 1);
                accounts[i].uncharge(back).unwrap();
                known.held[i] -= back;
            }
            16 => {
                if let Some(more) = known.held[i].checked_add(1 + n / 2) {
                    let over = accounts[i].uncharge(more).unwrap_err();
                    assert_eq!((over.asked(), over.charged()), (more, known.held[i]), "{}", context());
                }
            }
            17 => {
                // All or nothing, one account twice.
                let other = dice.below(5) as usize;
                let charges = [(i, 40), (other, n), (i, 40)];
                let before = known.held;
                let fits = charges.iter().all(|(at, n)| {
                    let fits = known.full(*at, *n).is_none();
                    known.held[*at] += if fits { *n } else { 0 };
                    fits
                });
                if !fits {
                    known.held = before;
                }
                let charges = charges.map(|(at, n)| (&accounts[at], n));
                let is = patiently(&accounts[i], fits, || Account::try_charge_all(&charges));
                assert_eq!(is.is_ok(), fits, "{}", context());
            }
            18 => {
                let n = if known.used(0) < 1 << 62 { n.min(1 << 20) } else { 0 };
                let is_over = known.full(i, n).is_some();
                let owed = owed_by(&accounts);
                let is = accounts[i].force_charge(n);
                known.held[i] += n;
                assert_eq!(is.is_err(), is_over, "{}", context());
                let most =
                    Known::path(i).map(|a| known.used(a).saturating_sub(known.limits[a])).max().unwrap();
                let by = is.map_or_else(|over| over.by(), |()| 0);
                let owed = owed.max(owed_by(&accounts));
                assert!(!is_over || by + owed >= most, "{by} + {owed} < {most}; {}", context());
            }
            19 => {
                if !kept.is_empty() {
                    let (at, mut charge) = kept.swap_remove(dice.below(kept.len() as u64) as usize);
                    let part = dice.below(charge.units() + 1);
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
                known.limits[i] = [known.used(i) / 2, 400_000, 2_000_000, u64::MAX][dice.below(4) as usize];
                accounts[i].set_limit(known.limits[i]);
            }
            21 => {
                let all = [accounts[i].drain_all().units, accounts[i].explain().stranded()];
                assert!(all[0] <= known.limits[0].max(1 << 40) / 100 && all[1] == 0, "{}", context());
            }
            22 => assert_eq!(accounts[i].exact_usage(), known.used(i), "{}", context()),
            _ => {
                if dice.below(50) == 0 {
                    Account::tidy_all();
                }
                for a in Known::path(i) {
                    let (usage, used) = (accounts[a].usage(), known.used(a));
                    assert!(
                        usage.charged + owed_by(&accounts) >= used
                            && usage.charged.saturating_sub(usage.error) <= used,
                        "{usage:?} {used}"
                    );
                    let stranded = accounts[a].explain().stranded();
                    assert!(
                        known.limits[a] == u64::MAX || stranded <= known.limits[a] / 100,
                        "{}",
                        context()
                    );
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
fn words_answer_as_integers_do() {
    every_answer_is_as_expected(Kind::Word);
}

#[test]
fn sections_answer_as_integers_do() {
    every_answer_is_as_expected(Kind::Rseq);
}

/// What was spent in a stock that the tidying thread had emptied: nobody has charged it yet, nor tells it.
fn owed_by(accounts: &[Account]) -> u64 {
    accounts.iter().flat_map(|account| account.explain().cpus).map(|stock| stock.debt).sum()
}

/// The fast kind may refuse falsely while the tidying thread is in the middle of something, so it is asked
/// again where it ought to fit. Once is enough of the strict one.
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
