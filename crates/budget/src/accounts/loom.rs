//! What loom proves of accounts with [`Word`] stocks: what fits is not refused, a limit is not exceeded,
//! no unit is lost, and nobody sleeps beside room. Run by `cargo xtask test`.
//!
//! Loom's read-modify-writes always meet the newest store, so a compare-and-swap that fails on an
//! old value is not in these models; every caller of one goes on as if it came a moment earlier.

use super::*;
use crate::stock::{Word, room};
use ::loom::{sync::Arc, thread};
use std::ptr::NonNull;
use std::sync::atomic as real;

/// All orders with at most three preemptions: there are too many others.
fn model(act: impl Fn() + Sync + Send + 'static) {
    model_of(3, act);
}

pub(crate) fn model_of(preemptions: usize, act: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(act);
}

/// A hundredth, 10 units, may lie in stocks: a stock has room for 3.
const LIMIT: u64 = 1000;
/// With so much used, rooms are not smaller yet.
const BASE: u64 = 980;

const HERE: CpuId = CpuId(0);
const THERE: CpuId = CpuId(1);

/// A tree, and what is held of each account.
struct Tree<const N: usize> {
    accounts: Accounts<Word>,
    nodes: [NonNull<Node>; N],
    /// Loom does not see these, so they order nothing.
    held: [real::AtomicU64; N],
}

// SAFETY: nodes are Sync, and live as long as `accounts`.
unsafe impl<const N: usize> Send for Tree<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Tree<N> {}

impl<const N: usize> Tree<N> {
    /// Accounts by the number of their parent, `None`: a root, and their limit.
    fn new(plans: [(Option<usize>, u64); N]) -> Arc<Self> {
        let accounts = Accounts::new(Word::new(2));
        let mut nodes = [NonNull::dangling(); N];
        for (i, (parent, limit)) in plans.into_iter().enumerate() {
            // SAFETY: made in a round before.
            let parent = parent.map(|parent| unsafe { nodes[parent].as_ref() });
            nodes[i] = NonNull::from(accounts.create(parent, plan(limit)).unwrap());
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

    /// Charges, and says that nobody's limit is exceeded.
    fn charge_within(&self, i: usize, cpu: CpuId, n: u64, limit: u64) -> bool {
        let fits = self.charge(i, cpu, n);
        let held: u64 = self.held.iter().map(|held| held.load(real::Ordering::Relaxed)).sum();
        assert!(held <= limit, "{held} of {limit} are held");
        fits
    }

    fn uncharge(&self, i: usize, cpu: CpuId, n: u64) {
        // Before: from now on somebody else may have them.
        self.held[i].fetch_sub(n, real::Ordering::Relaxed);
        self.accounts.uncharge(self.node(i), || cpu, n).unwrap();
    }

    /// Charges `BASE` past the stocks, and one unit so that a stock opens on that CPU: 1 is free in it, of
    /// 3. `free`: how many shall be.
    fn open(&self, i: usize, cpu: CpuId, free: u64) {
        assert!(self.charge(i, cpu, BASE));
        self.open_only(i, cpu, free);
    }

    fn open_only(&self, i: usize, cpu: CpuId, free: u64) {
        assert!(self.charge(i, cpu, 1));
        let stock = self.look(i, cpu);
        assert_eq!((stock.key, stock.free, stock.room()), (self.node(i).key, 1, 3));
        match free {
            0 => assert!(self.charge(i, cpu, 1)),
            _ => {
                self.accounts.force_charge_past_stocks(self.node(i), free - 1);
                self.note(i, free - 1);
                self.uncharge(i, cpu, free - 1);
            }
        }
        assert_eq!(u64::from(self.look(i, cpu).free as u32), free);
    }

    fn look(&self, i: usize, cpu: CpuId) -> crate::stock::Look {
        self.accounts.stocks.look(cpu, self.node(i).key)
    }

    /// Nobody is under way: every unit is where it should be, and once the stocks are empty, usage is
    /// what is held.
    fn end(&self) {
        let (mut free, mut rooms) = ([0; N], [0; N]);
        for cpu in [HERE, THERE] {
            let stock = self.look(0, cpu);
            if let Some(i) = (0..N).find(|i| self.node(*i).key == stock.key) {
                free[i] += stock.free as u64;
                for a in self.node(i).path() {
                    rooms[self.number(a)] += room(stock.room_log2);
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
            assert_eq!(direct, held(i) + free[i], "{i}: what is in use and what is in stocks");
            assert_eq!(node.float_units(), rooms[i], "{i}: rooms of open stocks");
            let is_orphan = node.state.load(Relaxed) & node::ORPHAN != 0;
            assert_eq!(node.refusing.load(Acquire), u32::from(is_orphan), "{i}");
        }
        for i in (0..N).filter(|i| self.node(*i).parent().is_none()) {
            self.accounts.drain_all(self.node(i));
        }
        for i in 0..N {
            assert_eq!((self.node(i).direct.load(Acquire), self.node(i).float_units()), (held(i), 0), "{i}");
        }
    }

    fn number(&self, node: &Node) -> usize {
        (0..N).find(|i| std::ptr::eq(self.node(*i), node)).expect("one of ours")
    }
}

fn plan(limit: u64) -> Plan {
    Plan { name: "account".into(), limit, soft_limit: u64::MAX, guarantee: 0, listener: None }
}

/// Root 0 with the limit, leaf 1 without.
fn two() -> Arc<Tree<2>> {
    Tree::new([(None, LIMIT), (Some(0), u64::MAX)])
}

/// Runs on another thread.
fn go<const N: usize, T: 'static>(
    tree: &Arc<Tree<N>>,
    act: impl FnOnce(&Tree<N>) -> T + 'static,
) -> thread::JoinHandle<T> {
    let tree = tree.clone();
    thread::spawn(move || act(&tree))
}

/// Counts runs in which something happened, so that a model can't be empty.
macro_rules! seen {
    ($($name:ident),+) => { $(static $name: real::AtomicU32 = real::AtomicU32::new(0);)+ };
}

fn note(seen: &real::AtomicU32, happened: bool) {
    seen.fetch_add(u32::from(happened), real::Ordering::Relaxed);
}

fn happened(seen: &real::AtomicU32) -> bool {
    seen.load(real::Ordering::Relaxed) > 0
}

/// `other` on CPU 1 never holds more than `most`; what is left fits, always. `free`: units in CPU 1's stock
/// at first.
fn fits_always(free: u64, most: u64, other: impl Fn(&Tree<2>) + Copy + Send + Sync + 'static) {
    model(move || {
        let tree = two();
        tree.open(1, THERE, free);
        let other = go(&tree, other);
        assert!(tree.charge_within(1, HERE, LIMIT - most, LIMIT), "refused, and it would have fitted");
        other.join().unwrap();
        tree.end();
    });
}

/// The other spends from its stock and gives back to it.
#[test]
fn a_refusal_is_never_false() {
    fits_always(1, BASE + 1, |tree| {
        tree.uncharge(1, THERE, 1);
        tree.charge_within(1, THERE, 1, LIMIT);
    });
}

/// The other fills its stock up, and charges more than it uses for a moment.
#[test]
fn a_refusal_is_never_false_beside_a_refill() {
    fits_always(0, BASE + 3, |tree| {
        assert!(tree.charge_within(1, THERE, 1, LIMIT));
    });
}

/// The other's stock opens.
#[test]
fn a_refusal_is_never_false_beside_an_opening() {
    model(|| {
        let tree = two();
        assert!(tree.charge(1, THERE, BASE));
        let other = go(&tree, |tree| assert!(tree.charge_within(1, THERE, 1, LIMIT)));
        assert!(tree.charge_within(1, HERE, LIMIT - BASE - 1, LIMIT));
        other.join().unwrap();
        tree.end();
    });
}

/// The other's stock is full and is taken down to half.
#[test]
fn a_refusal_is_never_false_beside_an_overfull_stock() {
    fits_always(3, BASE + 1, |tree| tree.uncharge(1, THERE, 1));
}
