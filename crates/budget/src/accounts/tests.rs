//! Tests of accounts on simulated CPUs, on one thread.

mod model;

use super::*;
use crate::stock::{AtomicStocks, LockedStocks, Reduction, RseqStocks, StockAddr, StockSnapshot};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use warmcore_sys::{affinity, rseq::current_cpu};

fn config(name: &str, limit: u64) -> AccountConfig {
    AccountConfig { name: Arc::from(name), limit, soft_limit: u64::MAX, guarantee: 0, listener: None }
}

const A: CpuId = CpuId(0);
const B: CpuId = CpuId(3);

/// Three levels: root 1 000 000, group 500 000, leaf without a limit.
fn tree<S: Stocks>(accounts: &Accounts<S>) -> [&Node; 3] {
    let root = accounts.create(None, config("root", 1_000_000)).unwrap();
    let group = accounts.create(Some(root), config("group", 500_000)).unwrap();
    let leaf = accounts.create(Some(group), config("leaf", u64::MAX)).unwrap();
    [root, group, leaf]
}

fn usages<S: Stocks>(accounts: &Accounts<S>, nodes: &[&Node]) -> Vec<u64> {
    nodes.iter().map(|node| accounts.exact_usage(node)).collect()
}

#[test]
fn a_charge_counts_on_every_level_until_it_is_given_back() {
    let accounts = Accounts::new(AtomicStocks::new(4));
    let nodes = tree(&accounts);
    for round in 0..3 {
        accounts.try_charge(nodes[2], || A, 10).unwrap();
        accounts.try_charge(nodes[2], || B, 20).unwrap();
        assert_eq!(usages(&accounts, &nodes), [30; 3], "{round}");
        accounts.uncharge(nodes[2], || A, 30).unwrap();
        assert_eq!(usages(&accounts, &nodes), [0; 3], "{round}");
    }
}

#[test]
fn stocks_hold_at_most_a_hundredth_of_the_smallest_limit() {
    let accounts = Accounts::new(AtomicStocks::new(4));
    let nodes = tree(&accounts);
    for i in 0..10_000u64 {
        let cpu = CpuId((i % 4) as u32);
        accounts.try_charge(nodes[2], || cpu, i % 40).unwrap();
        let stranded = accounts.explain(nodes[0]).stranded();
        assert!(stranded <= 5000, "{i}: {}", accounts.explain(nodes[2]));
        if i > 100 {
            accounts.uncharge(nodes[2], || cpu, (i - 100) % 40).unwrap();
        }
    }
    assert!(accounts.explain(nodes[2]).stranded() > 0, "{}", accounts.explain(nodes[2]));
}

#[test]
fn a_limit_is_reached_to_the_unit_and_not_passed() {
    let accounts = Accounts::new(AtomicStocks::new(4));
    let [root, group, leaf] = tree(&accounts);
    let mut held = 0;
    while accounts.try_charge(leaf, || if held % 2 == 0 { A } else { B }, 7).is_ok() {
        held += 7;
    }
    assert_eq!(held, 500_000 / 7 * 7);
    let over = accounts.try_charge(leaf, || A, 7).unwrap_err();
    assert_eq!((over.account(), over.usage(), over.limit(), over.asked()), ("group", held, 500_000, 7));
    accounts.try_charge(leaf, || A, 500_000 - held).unwrap();
    assert_eq!(usages(&accounts, &[root, group, leaf]), [500_000; 3]);
    accounts.set_limit(group, 100);
    assert!(accounts.try_charge(leaf, || A, 1).is_err());
    accounts.uncharge(leaf, || B, 500_000).unwrap();
    accounts.try_charge(leaf, || A, 100).unwrap();
    assert!(accounts.try_charge(leaf, || A, 1).is_err());
}

/// 5000 units may be in stocks here.
#[test]
fn after_a_refusal_stocks_open_where_more_is_left_than_they_may_hold_or_after_a_reclaim() {
    let accounts = Accounts::new(AtomicStocks::new(4));
    let [_, _, leaf] = tree(&accounts);
    let opens_stock_with_left = |left: u64, reclaims: bool| {
        accounts.try_charge(leaf, || A, 500_000).unwrap();
        assert!(accounts.try_charge(leaf, || A, 1).is_err());
        if reclaims {
            accounts.reclaim_idle();
        }
        accounts.uncharge(leaf, || A, left).unwrap();
        accounts.try_charge(leaf, || A, 1).unwrap();
        let opened = accounts.explain(leaf).stranded() > 0;
        accounts.uncharge(leaf, || A, 500_001 - left).unwrap();
        assert_eq!(accounts.exact_usage(leaf), 0);
        opened
    };
    assert_eq!([4999, 5000].map(|left| opens_stock_with_left(left, false)), [false, true]);
    assert!(opens_stock_with_left(4000, true));
}

#[test]
fn uncharging_more_than_was_charged_is_an_error() {
    let accounts = Accounts::new(LockedStocks::new(4));
    let [root, _, leaf] = tree(&accounts);
    accounts.try_charge(leaf, || A, 10).unwrap();
    let over = accounts.uncharge(leaf, || A, 11).unwrap_err();
    assert_eq!((over.asked(), over.charged()), (11, 10));
    let over = accounts.uncharge(leaf, || B, 11).unwrap_err();
    assert_eq!((over.asked(), over.charged()), (11, 10));
    accounts.uncharge(leaf, || A, 10).unwrap();
    assert!(accounts.uncharge(leaf, || A, 1).is_err());
    assert!(accounts.uncharge(root, || A, 1).is_err());
    assert_eq!(accounts.exact_usage(root), 0);
}

#[test]
fn a_guarantee_is_kept_while_other_accounts_use_the_rest() {
    let accounts = Accounts::new(AtomicStocks::new(4));
    let root = accounts.create(None, config("root", 100)).unwrap();
    let shy =
        accounts.create(Some(root), AccountConfig { guarantee: 40, ..config("shy", u64::MAX) }).unwrap();
    let hog = accounts.create(Some(root), config("hog", u64::MAX)).unwrap();
    assert_eq!(accounts.usage(root).charged, 40);
    assert!(accounts.try_charge(hog, || A, 61).is_err());
    accounts.try_charge(hog, || A, 60).unwrap();
    accounts.try_charge(shy, || A, 40).unwrap();
    assert!(accounts.try_charge(shy, || A, 1).is_err());
    accounts.uncharge(shy, || A, 15).unwrap();
    assert!(accounts.try_charge(hog, || A, 1).is_err());
    assert!(accounts.set_guarantee(shy, 41).is_err());
    accounts.set_guarantee(shy, 30).unwrap();
    accounts.try_charge(hog, || A, 10).unwrap();
    accounts.uncharge(shy, || A, 25).unwrap();
    accounts.uncharge(hog, || A, 70).unwrap();
    assert_eq!((accounts.exact_usage(root), accounts.exact_usage(shy)), (30, 0));
    accounts.drop_handle(shy);
    assert_eq!(accounts.exact_usage(root), 0);
}

#[test]
fn units_of_a_dropped_account_belong_to_its_parent() {
    let accounts = Accounts::new(AtomicStocks::new(4));
    let [root, group, leaf] = tree(&accounts);
    accounts.try_charge(leaf, || A, 25).unwrap();
    accounts.drop_handle(leaf);
    assert_eq!((accounts.exact_usage(root), accounts.accounts()), (25, 3));
    // Half of the units are uncharged in the account that charged them, half in the parent.
    accounts.uncharge(leaf, || B, 12).unwrap();
    accounts.uncharge(group, || B, 13).unwrap();
    assert_eq!(accounts.exact_usage(root), 0);
    accounts.reclaim_idle();
    assert_eq!(accounts.accounts(), 2);
    let again = accounts.create(Some(group), config("again", 10)).unwrap();
    assert_eq!(again.key(), 3, "its node is used again");
    assert!(accounts.try_charge(again, || A, 11).is_err());
    accounts.try_charge(again, || A, 10).unwrap();
}

#[test]
fn an_unused_stock_is_closed_by_the_second_reclaim() {
    let accounts = Accounts::new(AtomicStocks::new(4));
    let [root, _, leaf] = tree(&accounts);
    accounts.try_charge(leaf, || A, 10).unwrap();
    assert!(accounts.explain(root).stranded() > 0);
    accounts.reclaim_idle();
    assert!(accounts.explain(root).stranded() > 0, "it may be in use");
    accounts.try_charge(leaf, || A, 10).unwrap();
    accounts.reclaim_idle();
    assert!(accounts.explain(root).stranded() > 0, "it was used in between");
    accounts.reclaim_idle();
    assert_eq!((accounts.explain(root).stranded(), accounts.usage(root).charged), (0, 20));
}

/// The keys of the two accounts differ by the number of slots.
#[test]
fn a_second_attempt_takes_the_slot_of_an_idle_stock() {
    let accounts = Accounts::new(AtomicStocks::new(4));
    let root = accounts.create(None, config("root", u64::MAX)).unwrap();
    let all: Vec<&Node> = (0..=crate::stock::SLOTS)
        .map(|_| accounts.create(Some(root), config("leaf", u64::MAX)).unwrap())
        .collect();
    let (first, last) = (all[0], all[all.len() - 1]);
    assert_eq!(last.key() - first.key(), crate::stock::SLOTS);
    let open = |node| accounts.explain(node).path[0].stocks;
    accounts.try_charge(first, || A, 5).unwrap();
    accounts.try_charge(last, || A, 5).unwrap();
    assert_eq!((open(first), open(last)), (1, 0), "it was used lately");
    accounts.try_charge(last, || A, 5).unwrap();
    assert_eq!((open(first), open(last)), (0, 1));
    assert_eq!((accounts.exact_usage(first), accounts.exact_usage(last)), (5, 10));
}

/// Many accounts that are created and dropped leave no units behind, and later accounts reuse their nodes.
#[test]
fn accounts_made_again_and_again_use_the_same_nodes() {
    /// The number of accounts at the same time, and the number of rounds.
    const ACCOUNTS: usize = 10_000;
    const ROUNDS: usize = if cfg!(debug_assertions) { 3 } else { 20 };
    let accounts = Accounts::new(AtomicStocks::new(4));
    let root = accounts.create(None, config("root", u64::MAX)).unwrap();
    for round in 0..ROUNDS {
        let mut nodes = Vec::new();
        for i in 0..ACCOUNTS {
            let parent = if i % 10 == 0 { root } else { nodes[i / 10 * 10] };
            let node = accounts.create(Some(parent), config("account", 1_000_000)).unwrap();
            accounts.try_charge(node, || CpuId((i % 4) as u32), 1 + i as u64 % 50).unwrap();
            nodes.push(node);
        }
        assert_eq!(accounts.accounts(), ACCOUNTS + 1);
        // Some accounts are dropped before their units come back, others after.
        for (i, node) in nodes.iter().enumerate() {
            let n = 1 + i as u64 % 50;
            if i % 2 == round % 2 {
                accounts.drop_handle(node);
                accounts.uncharge(node, || B, n).unwrap();
            } else {
                accounts.uncharge(node, || A, n).unwrap();
                accounts.drop_handle(node);
            }
        }
        accounts.reclaim_idle();
        assert_eq!((accounts.accounts(), accounts.exact_usage(root)), (1, 0), "round {round}");
        assert_eq!(accounts.nodes.len(), ACCOUNTS + 1, "round {round}");
        assert!(root.cold().children.is_empty());
        assert_eq!((root.slack_units(), root.stocks.load(Relaxed), root.handles.load(Relaxed)), (0, 0, 1));
    }
    accounts.drop_handle(root);
    assert_eq!(accounts.accounts(), 0);
    // The stocks take at most the tables of four CPUs, 32 KiB each.
    assert!(accounts.stocks().resident_bytes().unwrap() <= 4 << 15);
}

#[test]
fn an_account_is_freed_with_its_last_handle_child_or_unit() {
    let accounts = Accounts::new(AtomicStocks::new(4));
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let root = accounts.create(None, config("root", 1000)).unwrap();
        let child = accounts.create(Some(root), config("child", 1000)).unwrap();
        accounts.try_charge(root, || A, 100).unwrap();
        accounts.try_charge(child, || B, 10).unwrap();
        for what in order {
            assert!(accounts.node(root.key()).is_some() && accounts.accounts() > 0);
            match what {
                0 => accounts.drop_handle(root),
                1 => accounts.uncharge(root, || B, 100).unwrap(),
                _ => {
                    accounts.drop_handle(child);
                    accounts.reclaim_idle();
                    accounts.uncharge(child, || A, 10).unwrap();
                }
            }
            accounts.reclaim_idle();
        }
        assert_eq!(accounts.accounts(), 0, "{order:?}");
    }
    assert_eq!(accounts.nodes.len(), 2);
}

/// The rseq kind, with sections that commit between a drain's snapshot and its swap of `grant`. Sections of this thread
/// stand for those of the stock's CPU.
struct Delayed {
    rseq: RseqStocks,
    /// Units that come back to the stock just before the next swap of `grant`; negative if they are spent.
    returned: AtomicI32,
    /// Whether the first snapshot after the swap does not show them yet.
    is_unseen: bool,
    unseen: AtomicI32,
}

impl Stocks for Delayed {
    const STRICT: bool = RseqStocks::STRICT;
    const NAME: &'static str = RseqStocks::NAME;

    fn cpus(&self) -> u32 {
        self.rseq.cpus()
    }

    fn charge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.rseq.charge(cpu, key, n)
    }

    fn uncharge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.rseq.uncharge(cpu, key, n)
    }

    fn stock_addr(&self, key: Key) -> StockAddr {
        self.rseq.stock_addr(key)
    }

    fn snapshot(&self, cpu: CpuId, key: Key) -> StockSnapshot {
        let mut seen = self.rseq.snapshot(cpu, key);
        seen.free -= self.unseen.swap(0, Relaxed);
        seen
    }

    fn refill(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, units: u32, capacity_log2: u8) -> bool {
        self.rseq.refill(cpu, key, seen, units, capacity_log2)
    }

    fn reduce(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, to: Reduction) -> bool {
        let returned = self.returned.swap(0, Relaxed);
        let n = returned.unsigned_abs();
        // Repeated, because a section may be aborted.
        let section =
            || if returned > 0 { self.uncharge(|| cpu, key, n) } else { self.charge(|| cpu, key, n) };
        assert!(n == 0 || (0..100).any(|_| section()), "{returned} in {seen:?}");
        self.unseen.store(if self.is_unseen { returned } else { 0 }, Relaxed);
        self.rseq.reduce(cpu, key, seen, to)
    }

    fn bind(&self, cpu: CpuId, key: Key, seen: &StockSnapshot) -> bool {
        self.rseq.bind(cpu, key, seen)
    }

    fn resident_bytes(&self) -> std::io::Result<usize> {
        self.rseq.resident_bytes()
    }
}

/// Pins the thread to a CPU, and calls `act` with a tree whose leaf holds 1000 units and has an open stock on that CPU.
/// `returned` units come back there during the next drain. Does nothing where no restartable sections run.
fn with_delayed(returned: i32, is_unseen: bool, act: impl Fn(&Accounts<Delayed>, [&Node; 3], CpuId)) {
    if !matches!(warmcore_percpu::try_backend(), Ok(warmcore_percpu::Backend::Rseq(_))) {
        return;
    }
    let before = affinity::allowed().unwrap();
    affinity::pin(before.iter().next().unwrap()).unwrap();
    // SAFETY: the backend was chosen.
    let rseq = unsafe { RseqStocks::new(affinity::nr_cpu_ids() as u32) };
    let accounts = Accounts::new(Delayed { rseq, returned: 0.into(), is_unseen, unseen: 0.into() });
    let nodes = tree(&accounts);
    let cpu = current_cpu();
    accounts.try_charge_past_stocks(nodes[2], 990).unwrap();
    accounts.try_charge(nodes[2], || cpu, 10).unwrap();
    let stock = accounts.stocks().snapshot(cpu, nodes[2].key());
    let space = stock.capacity() as i64 - i64::from(stock.free);
    assert!(i64::from(stock.free) >= 20 && space >= 20, "{stock:?}");
    accounts.stocks().returned.store(returned, Relaxed);
    act(&accounts, nodes, cpu);
    affinity::set_allowed(&before).unwrap();
}

#[test]
fn a_drain_takes_what_was_returned_and_pays_what_was_spent_after_its_snapshot() {
    for returned in [20, -20] {
        with_delayed(returned, false, |accounts, nodes, cpu| {
            let used = 1000u64.strict_sub_signed(returned.into());
            let stock = accounts.stocks().snapshot(cpu, nodes[2].key());
            let drained = accounts.drain_all(nodes[0]);
            let units = stock.free as u64 + u64::from(returned.max(0).unsigned_abs());
            assert_eq!(drained, Drained { units, stocks: 1 });
            assert_eq!(accounts.stocks().snapshot(cpu, nodes[2].key()).free, 0);
            assert!(nodes.iter().all(|node| node.usage.load(Relaxed) == used && node.slack_units() == 0));
            assert_eq!(nodes[2].direct.load(Relaxed), used);
        });
    }
}

#[test]
fn a_lower_limit_takes_units_that_came_back_to_a_closed_stock() {
    with_delayed(20, true, |accounts, [root, group, leaf], cpu| {
        accounts.drain_all(root);
        let explain = accounts.explain(root);
        assert_eq!((explain.stranded(), explain.path[0].stocks), (20, 0), "{explain}");
        accounts.set_limit(group, 500);
        assert_eq!(accounts.explain(root).stranded(), 0);
        let over = accounts.try_charge(leaf, || cpu, 1).unwrap_err();
        assert_eq!((over.account(), over.usage(), over.limit()), ("group", 980, 500));
    });
}
