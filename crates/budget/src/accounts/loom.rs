//! Loom models of accounts with [`AtomicStocks`]: a charge that fits is not refused, no limit is exceeded, no unit is
//! lost, and no charge keeps waiting while it fits. Models with [`RseqStocks`] are in `loom/fast.rs`. Run by
//! `cargo xtask test --full`.
//!
//! Loom's read-modify-writes always read the newest store, so a compare-and-swap that fails on an old value is
//! not in these models; its callers continue as if it had run a moment earlier.

mod fast;

use super::*;
use crate::stock::{AtomicStocks, RseqStocks, capacity};
use ::loom::{sync::Arc, thread};
use std::ptr::NonNull;
use std::sync::atomic as real;

/// Tries all orders with at most two preemptions; with more preemptions there are too many orders.
fn model(act: impl Fn() + Sync + Send + 'static) {
    model_of(2, act);
}

fn model_of(preemptions: usize, act: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(act);
}

/// A hundredth of this limit, 10 units, may be in stocks; the first stock that opens for charges of 1 unit has a
/// capacity of 3.
const LIMIT: u64 = 1000;
/// Up to this usage, stocks have their full capacity.
const BASE: u64 = 980;

const HERE: CpuId = CpuId(0);
const THERE: CpuId = CpuId(1);

/// A tree of accounts, and how many units of each account are held.
struct Tree<const N: usize, S = AtomicStocks> {
    accounts: Accounts<S>,
    nodes: [NonNull<Node>; N],
    /// The units of each account that the model's threads hold. Not loom's atomics, so they order nothing.
    held: [real::AtomicU64; N],
}

// SAFETY: nodes are Sync, and live as long as `accounts`.
unsafe impl<const N: usize, S: Stocks> Send for Tree<N, S> {}
// SAFETY: as above.
unsafe impl<const N: usize, S: Stocks> Sync for Tree<N, S> {}

impl<const N: usize> Tree<N> {
    fn new(plans: [(Option<usize>, u64); N]) -> Arc<Self> {
        Self::with(AtomicStocks::new(2), plans)
    }
}

impl<const N: usize, S: Stocks> Tree<N, S> {
    /// Makes accounts from a list: for each, the index of its parent (`None` for a root) and its limit.
    fn with(stocks: S, plans: [(Option<usize>, u64); N]) -> Arc<Self> {
        let accounts = Accounts::new(stocks);
        let mut nodes = [NonNull::dangling(); N];
        for (i, (parent, limit)) in plans.into_iter().enumerate() {
            // SAFETY: the parent was made in a previous iteration.
            let parent = parent.map(|parent| unsafe { nodes[parent].as_ref() });
            let node = accounts.create(parent, config(limit)).unwrap();
            // To loom an initial value is older than the order of all SeqCst operations, and may be loaded
            // after any of them.
            let _ = [&node.usage, &node.slack].map(|word| word.fetch_add(0, SeqCst));
            let _ = [&node.stocks_disabled, &node.waiting].map(|word| word.fetch_add(0, SeqCst));
            nodes[i] = NonNull::from(node);
        }
        Arc::new(Self { accounts, nodes, held: [const { real::AtomicU64::new(0) }; N] })
    }

    fn node(&self, i: usize) -> &Node {
        // SAFETY: lives as long as `accounts`.
        unsafe { self.nodes[i].as_ref() }
    }

    fn note(&self, i: usize, n: u64) {
        self.held[i].fetch_add(n, real::Ordering::Relaxed);
    }

    fn charge(&self, i: usize, cpu: CpuId, n: u64) -> bool {
        let fits = self.accounts.try_charge(self.node(i), || cpu, n).is_ok();
        if fits {
            self.note(i, n);
        }
        fits
    }

    /// Charges, and asserts that no limit is exceeded.
    fn charge_within(&self, i: usize, cpu: CpuId, n: u64, limit: u64) -> bool {
        let fits = self.charge(i, cpu, n);
        let held: u64 = self.held.iter().map(|held| held.load(real::Ordering::Relaxed)).sum();
        assert!(held <= limit, "{held} of {limit} are held");
        fits
    }

    fn uncharge(&self, i: usize, cpu: CpuId, n: u64) {
        // Subtracted before the uncharge, because after it another thread may have the units.
        self.held[i].fetch_sub(n, real::Ordering::Relaxed);
        self.accounts.uncharge(self.node(i), || cpu, n).unwrap();
    }

    /// Charges `BASE` units without stocks, and one more unit, so that a stock of capacity 3 with 1 free unit opens on
    /// that CPU. Then charges or gives back units until the stock has `free` free units.
    fn open(&self, i: usize, cpu: CpuId, free: u64) {
        assert!(self.charge(i, cpu, BASE));
        self.open_only(i, cpu, free);
    }

    fn open_only(&self, i: usize, cpu: CpuId, free: u64) {
        assert!(self.charge(i, cpu, 1));
        let stock = self.snapshot(i, cpu);
        assert_eq!((stock.key, stock.free, stock.capacity()), (self.node(i).key, 1, 3));
        match free {
            0 => assert!(self.charge(i, cpu, 1)),
            _ => {
                self.accounts.force_charge_past_stocks(self.node(i), free - 1);
                self.note(i, free - 1);
                self.uncharge(i, cpu, free - 1);
            }
        }
        assert_eq!(u64::from(self.snapshot(i, cpu).free as u32), free);
    }

    fn snapshot(&self, i: usize, cpu: CpuId) -> crate::stock::StockSnapshot {
        self.accounts.stocks.snapshot(cpu, self.node(i).key)
    }

    /// Called when no operation is under way. Asserts that the sums are consistent, and that after a drain usage
    /// equals the units held.
    fn end(&self) {
        let (mut free, mut capacities) = ([0i64; N], [0; N]);
        for cpu in [HERE, THERE] {
            let stock = self.snapshot(0, cpu);
            if let Some(i) = (0..N).find(|i| self.node(*i).key == stock.key) {
                free[i] += i64::from(stock.free);
                for a in self.node(i).path() {
                    capacities[self.number(a)] += capacity(stock.capacity_log2);
                }
            }
        }
        let held = |i: usize| self.held[i].load(real::Ordering::Relaxed);
        for i in 0..N {
            let node = self.node(i);
            let direct = node.direct.load(Acquire);
            let below: u64 = (0..N)
                .map(|i| self.node(i))
                .filter(|child| child.parent().is_some_and(|parent| std::ptr::eq(parent, node)))
                .map(|child| child.usage.load(Acquire) + child.reserve.load(Acquire))
                .sum();
            assert_eq!(node.usage.load(Acquire), direct + below, "{i}: the tree");
            assert_eq!(direct as i64, held(i) as i64 + free[i], "{i}: what is in use and what is in stocks");
            assert_eq!(node.slack_units(), capacities[i], "{i}: capacities of open stocks");
            let is_orphan = node.state.load(Relaxed) & node::ORPHAN != 0;
            assert_eq!(node.stocks_disabled.load(Acquire), u32::from(is_orphan), "{i}");
            let (guarantee, reserve) = (node.guarantee.load(Acquire), node.reserve.load(Acquire));
            let lacks = guarantee.saturating_sub(node.usage.load(Acquire));
            assert_eq!(reserve, lacks, "{i}: what the parent keeps of {guarantee}");
        }
        for i in (0..N).filter(|i| self.node(*i).parent().is_none()) {
            self.accounts.drain_all(self.node(i));
        }
        for i in 0..N {
            assert_eq!((self.node(i).direct.load(Acquire), self.node(i).slack_units()), (held(i), 0), "{i}");
        }
    }

    fn number(&self, node: &Node) -> usize {
        (0..N).find(|i| std::ptr::eq(self.node(*i), node)).expect("one of ours")
    }
}

fn config(limit: u64) -> AccountConfig {
    AccountConfig { name: "account".into(), limit, soft_limit: u64::MAX, guarantee: 0, listener: None }
}

/// Account 0 is the root, account 1 a leaf; one of them has the limit. Charges are in flight at a leaf, never at
/// a root.
fn two_of(limited: usize) -> Arc<Tree<2>> {
    let limit = |i| if i == limited { LIMIT } else { u64::MAX };
    Tree::new([(None, limit(0)), (Some(0), limit(1))])
}

fn two() -> Arc<Tree<2>> {
    two_of(0)
}

/// Runs `act` on another thread.
fn go<const N: usize, S: Stocks + 'static, T: 'static>(
    tree: &Arc<Tree<N, S>>,
    act: impl FnOnce(&Tree<N, S>) -> T + 'static,
) -> thread::JoinHandle<T> {
    let tree = tree.clone();
    thread::spawn(move || act(&tree))
}

/// Counts runs in which an event happened, so that a model in which it never happens fails.
struct Seen(real::AtomicU32);

impl Seen {
    const fn new() -> Self {
        Self(real::AtomicU32::new(0))
    }

    fn note(&self, happened: bool) {
        self.0.fetch_add(u32::from(happened), real::Ordering::Relaxed);
    }

    fn happened(&self) -> bool {
        self.0.load(real::Ordering::Relaxed) > 0
    }
}

/// With what was charged before, the function `other` on CPU 1 never holds more than `most` units, so a charge of the
/// rest of the limit always fits. `free`: the units in CPU 1's stock at first; `None` if that stock is closed.
fn fits_always(free: Option<u64>, most: u64, other: impl Fn(&Tree<2>) + Copy + Send + Sync + 'static) {
    for limited in [0, 1] {
        model(move || {
            let tree = two_of(limited);
            match free {
                Some(free) => tree.open(1, THERE, free),
                None => assert!(tree.charge(1, THERE, BASE)),
            }
            let other = go(&tree, other);
            assert!(tree.charge_within(1, HERE, LIMIT - most, LIMIT), "refused, and it would have fitted");
            other.join().unwrap();
            tree.end();
        });
    }
}

/// The other thread takes from its stock and returns to it.
#[test]
fn a_refusal_is_never_false() {
    fits_always(Some(1), BASE + 1, |tree| {
        tree.uncharge(1, THERE, 1);
        tree.charge_within(1, THERE, 1, LIMIT);
    });
}

/// The other thread fills its stock, for which it charges more than it uses for a moment.
#[test]
fn a_refusal_is_never_false_beside_a_refill() {
    fits_always(Some(0), BASE + 3, |tree| {
        assert!(tree.charge_within(1, THERE, 1, LIMIT));
    });
}

/// The other thread's stock opens.
#[test]
fn a_refusal_is_never_false_beside_an_opening() {
    fits_always(None, BASE + 1, |tree| assert!(tree.charge_within(1, THERE, 1, LIMIT)));
}

/// A stock opens for the units that the other thread gives back.
#[test]
fn a_refusal_is_never_false_beside_an_uncharge_that_opens_a_stock() {
    fits_always(None, BASE, |tree| {
        tree.uncharge(1, THERE, 1);
        tree.charge_within(1, THERE, 1, LIMIT);
    });
}

/// The other thread's stock is full, and its units above half of the capacity go up the tree.
#[test]
fn a_refusal_is_never_false_beside_an_overfull_stock() {
    fits_always(Some(3), BASE + 1, |tree| tree.uncharge(1, THERE, 1));
}

/// An exact usage has neither additions that are undone nor units in stocks.
#[test]
fn exact_usage_has_no_undone_charges() {
    static EXACT: Seen = Seen::new();
    ::loom::model(|| {
        let node = Arc::new(Node::new(AtomicStocks::new(1).stock_addr(1)));
        node.add_usage(5).unwrap();
        let passer = thread::spawn({
            let node = node.clone();
            move || {
                for _ in 0..2 {
                    node.add_slack(1, u64::MAX);
                    node.add_usage(4).unwrap();
                    node.sub_usage(4);
                    node.sub_slack(1);
                }
            }
        });
        if let Some((usage, ())) = node.exact(|| ()) {
            assert_eq!(usage, 5);
            EXACT.note(true);
        }
        passer.join().unwrap();
    });
    assert!(EXACT.happened());
}

/// Two charges together ask for more than is free, and some units are in a stock: exactly one of the charges
/// fits.
#[test]
fn of_two_charges_for_the_rest_one_is_granted() {
    for limited in [0, 1] {
        static A: [Seen; 2] = [const { Seen::new() }; 2];
        static B: [Seen; 2] = [const { Seen::new() }; 2];
        model(move || {
            let tree = two_of(limited);
            tree.open(1, THERE, 1);
            let other = go(&tree, |tree| tree.charge_within(1, THERE, 12, LIMIT));
            let (ours, theirs) = (tree.charge_within(1, HERE, 12, LIMIT), other.join().unwrap());
            assert!(ours != theirs, "{ours} {theirs}");
            A[limited].note(ours);
            B[limited].note(theirs);
            tree.end();
        });
        assert!(A[limited].happened() && B[limited].happened());
    }
}

/// A's charge is added to account 1 and does not fit at the root if B's charge was granted before. C's charge to
/// account 1 fits everywhere unless A's is granted.
#[test]
fn a_refusal_is_never_false_beside_a_charge_that_fails_above() {
    static A: Seen = Seen::new();
    static C: Seen = Seen::new();
    model_of(2, || {
        let tree = Tree::new([(None, 10), (Some(0), 4)]);
        let a = go(&tree, |tree| tree.charge(1, HERE, 4));
        let b = go(&tree, |tree| tree.charge(0, THERE, 7));
        let c = tree.charge(1, THERE, 1);
        let (a, b) = (a.join().unwrap(), b.join().unwrap());
        assert!((a || c) && (a || b), "{a} {b} {c}");
        A.note(a);
        C.note(c);
        tree.end();
    });
    assert!(A.happened() && C.happened());
}

/// As the model above, but C's charge is covered by a guarantee, from which A's charge may have taken units.
#[test]
fn a_guaranteed_charge_is_never_refused() {
    static A: Seen = Seen::new();
    static C: Seen = Seen::new();
    model_of(2, || {
        let tree = Tree::new([(None, 12), (Some(0), u64::MAX)]);
        tree.accounts.set_guarantee(tree.node(1), 5).unwrap();
        assert!(tree.charge(0, HERE, 5));
        let a = go(&tree, |tree| tree.charge(1, HERE, 7));
        let b = go(&tree, |tree| tree.charge(0, THERE, 2));
        let c = tree.charge(1, THERE, 5);
        let (a, _) = (a.join().unwrap(), b.join().unwrap());
        assert!(a || c, "{a} {c}");
        A.note(a);
        C.note(c);
        tree.end();
    });
    assert!(A.happened() && C.happened());
}

/// Two threads give back units at the same time: afterwards the whole guarantee is kept again.
#[test]
fn uncharges_refill_a_guarantee() {
    model(|| {
        let tree = two();
        tree.accounts.set_guarantee(tree.node(1), 10).unwrap();
        assert!(tree.charge(1, HERE, 12));
        let other = go(&tree, |tree| tree.uncharge(1, THERE, 6));
        tree.uncharge(1, HERE, 6);
        other.join().unwrap();
        tree.end();
    });
}

/// One thread gives back units and one charges: the reserve is neither too small nor too large.
#[test]
fn a_guarantee_is_kept_beside_a_charge() {
    model(|| {
        let tree = Tree::new([(None, 20), (Some(0), u64::MAX)]);
        tree.accounts.set_guarantee(tree.node(1), 10).unwrap();
        assert!(tree.charge(1, HERE, 9));
        let other = go(&tree, |tree| tree.uncharge(1, THERE, 3));
        assert!(tree.charge(1, HERE, 4));
        other.join().unwrap();
        tree.end();
    });
}

#[test]
fn a_guarantee_changes_beside_charges() {
    model(|| {
        let tree = Tree::new([(None, 20), (Some(0), u64::MAX)]);
        tree.accounts.set_guarantee(tree.node(1), 10).unwrap();
        let other = go(&tree, |tree| {
            assert!(tree.charge(1, THERE, 4));
            tree.uncharge(1, THERE, 3);
        });
        tree.accounts.set_guarantee(tree.node(1), 3).unwrap();
        other.join().unwrap();
        tree.end();
    });
}

/// The exact usage is that of one moment of the call, without what the other thread charges for its stock.
#[test]
fn exact_usage_has_no_units_of_stocks() {
    model(|| {
        let tree = two();
        tree.open(1, THERE, 0);
        let before = tree.held[1].load(real::Ordering::Relaxed);
        let other = go(&tree, |tree| assert!(tree.charge(1, THERE, 1)));
        let exact = tree.accounts.exact_usage(tree.node(0));
        assert!((before..=before + 1).contains(&exact), "{exact}, and {before} were used before");
        other.join().unwrap();
        tree.end();
    });
}

/// After `set_limit` has returned, no charge is granted while usage is above the new limit, not even from a stock.
#[test]
fn a_limit_below_usage_refuses_at_once() {
    model(|| {
        let tree = two();
        assert!(tree.charge(1, THERE, BASE));
        let other = go(&tree, |tree| tree.charge(1, THERE, 1));
        tree.accounts.set_limit(tree.node(0), 100);
        assert!(!tree.charge(1, THERE, 1), "charged beyond the new limit");
        other.join().unwrap();
        assert!(!tree.charge(1, THERE, 1));
        tree.end();
    });
}

#[test]
fn a_limit_goes_down_and_up_beside_charges() {
    model(|| {
        let tree = two();
        tree.open(1, THERE, 1);
        let other = go(&tree, |tree| {
            if tree.charge(1, THERE, 3) {
                tree.uncharge(1, THERE, 3);
            }
        });
        tree.accounts.set_limit(tree.node(0), BASE);
        tree.accounts.set_limit(tree.node(0), LIMIT);
        other.join().unwrap();
        assert!(tree.charge(1, HERE, LIMIT - BASE - 1));
        tree.end();
    });
}

/// One thread uses its stock while the other does `act`; nothing is lost.
fn conserves(free: u64, act: impl Fn(&Tree<2>) + Copy + Send + Sync + 'static) {
    model(move || {
        let tree = two();
        tree.open(1, THERE, free);
        let other = go(&tree, |tree| {
            assert!(tree.charge(1, THERE, 1));
            tree.uncharge(1, THERE, 2);
        });
        act(&tree);
        other.join().unwrap();
        tree.end();
    });
}

#[test]
fn a_drain_loses_nothing() {
    conserves(1, |tree| _ = tree.accounts.drain_all(tree.node(0)));
}

#[test]
fn a_drain_loses_nothing_beside_a_refill() {
    conserves(0, |tree| _ = tree.accounts.drain_all(tree.node(1)));
}

#[test]
fn reclaiming_loses_nothing() {
    conserves(1, |tree| tree.accounts.reclaim_idle());
}

#[test]
fn two_threads_with_one_stock_lose_nothing() {
    conserves(0, |tree| {
        assert!(tree.charge(1, THERE, 1));
        tree.uncharge(1, THERE, 1);
    });
}

/// The slot has account 1's stock; account 2 takes the slot over while account 1 is used.
#[test]
fn binding_a_slot_to_another_account_loses_nothing() {
    static TAKEN: Seen = Seen::new();
    model(|| {
        let tree = Tree::new([(None, LIMIT), (Some(0), u64::MAX), (Some(0), u64::MAX)]);
        tree.open(1, THERE, 1);
        let other = go(&tree, |tree| {
            assert!(tree.charge(1, THERE, 1));
            tree.uncharge(1, THERE, 1);
        });
        // The first attempt marks the stock, the second may take over the slot.
        assert!(tree.charge(2, THERE, 1) && tree.charge(2, THERE, 1));
        other.join().unwrap();
        TAKEN.note(tree.snapshot(2, THERE).key == tree.node(2).key);
        tree.end();
    });
    assert!(TAKEN.happened());
}

/// The account's last handle is dropped while its units are given back without a handle. After the last unit the
/// account is freed.
#[test]
fn an_account_is_freed_beside_its_last_uncharge() {
    model(|| {
        let tree = two();
        assert!(tree.charge(1, HERE, BASE));
        let other = go(&tree, |tree| {
            tree.uncharge(1, THERE, 1);
            tree.uncharge(1, THERE, BASE - 1);
        });
        tree.accounts.drop_handle(tree.node(1));
        other.join().unwrap();
        tree.accounts.reclaim_idle();
        assert_eq!(tree.accounts.accounts(), 1);
        assert_eq!(tree.node(0).usage.load(Acquire), 0);
        tree.end();
    });
}

/// The parent uncharges units of its orphan, while another thread gives back the rest.
#[test]
fn a_parent_uncharges_what_its_orphan_holds() {
    model(|| {
        let tree = two();
        assert!(tree.charge(1, HERE, 5));
        tree.accounts.drop_handle(tree.node(1));
        let other = go(&tree, |tree| tree.uncharge(1, THERE, 2));
        tree.accounts.uncharge(tree.node(0), || HERE, 3).unwrap();
        tree.held[1].fetch_sub(3, real::Ordering::Relaxed);
        other.join().unwrap();
        tree.accounts.reclaim_idle();
        assert_eq!(tree.accounts.accounts(), 1);
        assert_eq!(tree.node(0).usage.load(Acquire), 0);
        tree.end();
    });
}

/// An account ends and a new one gets its node while a drain is under way.
#[test]
fn a_node_is_reused_beside_a_drain() {
    model(|| {
        let tree = two();
        tree.open(1, THERE, 1);
        let other = go(&tree, |tree| _ = tree.accounts.drain_all(tree.node(0)));
        tree.uncharge(1, HERE, BASE);
        tree.uncharge(1, HERE, 1);
        tree.accounts.drop_handle(tree.node(1));
        let again = tree.accounts.create(Some(tree.node(0)), config(u64::MAX)).unwrap();
        if again.key != tree.node(1).key {
            // The drain was under way, so the old node was not free yet.
            tree.accounts.drop_handle(again);
        }
        other.join().unwrap();
        tree.accounts.reclaim_idle();
        assert_eq!(tree.node(0).usage.load(Acquire), 0);
        assert_eq!(tree.node(0).slack_units(), 0);
    });
}

/// A waiting task that was woken: it tries to charge until no more units come back. Returns whether its charge
/// was granted.
fn poll(tree: &Tree<2>, full: usize, n: u64) -> bool {
    loop {
        if tree
            .accounts
            .charge_slow(tree.node(1), HERE, n, Some(&|a| std::ptr::eq(a, tree.node(full))))
            .is_ok()
        {
            tree.note(1, n);
            return true;
        }
        if !tree.accounts.take_pending_wake() {
            return false;
        }
    }
}

/// A charge waits at the full account for `n` units, all that will be free. The charge sees the units that come
/// back, or another thread finds a pending wake and wakes the task. `free`: the units in CPU 1's stock at first;
/// `None` if the stock is closed. `acts`: the functions of the other threads, each of which then checks for a
/// pending wake.
fn waits<const M: usize>(preemptions: usize, free: Option<u64>, n: u64, acts: [fn(&Tree<2>); M]) {
    for full in [0, 1] {
        model_of(preemptions, move || {
            let tree = two_of(full);
            match free {
                Some(free) => tree.open(1, THERE, free),
                None => assert!(tree.charge(1, THERE, BASE + 1)),
            }
            let waiter = go(&tree, move |tree| {
                tree.accounts.begin_waiting(tree.node(full), tree.node(1));
                poll(tree, full, n)
            });
            let others = acts.map(|act| {
                go(&tree, move |tree| {
                    act(tree);
                    tree.accounts.take_pending_wake() && poll(tree, full, n)
                })
            });
            let polls = others.map(|other| other.join().unwrap());
            let has = waiter.join().unwrap() || polls.contains(&true);
            assert!(has, "it sleeps, and there is capacity");
            tree.accounts.end_waiting(tree.node(full), tree.node(1));
            tree.end();
        });
    }
}

/// The other thread gives back more units than a stock may hold.
#[test]
fn a_waiter_is_woken_by_an_uncharge_without_a_stock() {
    waits(1, None, LIMIT - BASE + 99, [|tree| tree.uncharge(1, THERE, 100)]);
}

/// The other thread gives back a unit for which a stock would open.
#[test]
fn a_waiter_is_woken_by_an_uncharge() {
    waits(2, None, LIMIT - BASE, [|tree| tree.uncharge(1, THERE, 1)]);
}

/// The other thread returns the unit to a stock.
#[test]
fn a_waiter_is_woken_by_an_uncharge_into_a_stock() {
    waits(2, Some(1), LIMIT - BASE, [|tree| tree.uncharge(1, THERE, 1)]);
}

/// The stock is full, so its units above half of the capacity go up the tree too.
#[test]
fn a_waiter_is_woken_by_what_a_full_stock_returns() {
    waits(2, Some(3), LIMIT - BASE, [|tree| tree.uncharge(1, THERE, 1)]);
}

/// A third thread checks for a pending wake.
#[test]
fn a_waiter_is_woken_by_a_third_thread() {
    waits(2, None, LIMIT - BASE, [|tree| tree.uncharge(1, THERE, 1), |_| ()]);
}
