//! Loom models of a stock's two words. Run by `cargo xtask test --full`.
//!
//! A section is modelled as other CPUs see it: plain loads and one store. A lock per CPU, which only sections of
//! that CPU take, keeps two sections of one CPU from interleaving, and orders the sections of two threads there
//! as a context switch does. `snapshot`, `reduce`, `refill` and `bind` are the real functions.

use super::*;
use crate::stock::capacity;
use crate::sync::AtomicU64;
use ::loom::{sync::Arc, thread};
use std::sync::atomic as real;
use warmcore_types::ignore_poison;

impl RseqStocks {
    /// Tables whose sections are models.
    pub(crate) fn model(cpus: u32) -> Self {
        Self { table: Table::new(cpus), sections: (0..cpus).map(|_| Default::default()).collect() }
    }

    fn section(&self, cpu: CpuId, key: Key, act: impl FnOnce(&AtomicU64, &AtomicU64) -> bool) -> bool {
        let _here = ignore_poison(self.sections[cpu.index()].lock());
        let [head, grant] = self.table.stock(cpu, key);
        act(head, grant)
    }

    pub(super) fn charge_here(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.section(cpu(), key, |head, grant| {
            let (word, granted) = (head.load(Relaxed), grant.load(Relaxed) as u32);
            let used = (word as u32).wrapping_add(n);
            let fits = (word >> 32) as Key == key && granted.wrapping_sub(used) as i32 >= 0;
            if fits {
                head.store(u64::from(key) << 32 | u64::from(used), Relaxed);
            }
            fits
        })
    }

    pub(super) fn uncharge_here(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.section(cpu(), key, |head, grant| {
            let (word, grant) = (head.load(Relaxed), grant.load(Relaxed));
            let used = (word as u32).wrapping_sub(n);
            let free = (grant as u32).wrapping_sub(used);
            let fits = (word >> 32) as Key == key && free >> Tag::of(grant).capacity_log2 == 0;
            if fits {
                head.store(u64::from(key) << 32 | u64::from(used), Relaxed);
            }
            fits
        })
    }

    pub(super) fn grant(&self, cpu: CpuId, key: Key, seen: u64, was: u64, new: u64) -> bool {
        self.section(cpu, key, |head, grant| {
            // ORDERING: AcqRel; as `section::stock_grant` promises.
            head.load(Relaxed) == seen && grant.compare_exchange(was, new, AcqRel, Relaxed).is_ok()
        })
    }

    pub(super) fn rebind(&self, cpu: CpuId, key: Key, seen: u64, was: u64, new: u64) -> bool {
        self.section(cpu, key, |head, grant| {
            let is_as_seen = head.load(Relaxed) == seen && grant.load(Relaxed) == was;
            if is_as_seen {
                head.store(new, Relaxed);
            }
            is_as_seen
        })
    }
}

/// Tries all orders with at most three preemptions.
fn model(act: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(act);
}

const HERE: CpuId = CpuId(0);
const CAPACITY_LOG2: u8 = 2;

/// A stock on CPU 0, and for each key the units that were put into it, spent from it and taken by drains. Loom does
/// not see these numbers, so they order nothing.
struct Stock {
    rseq: RseqStocks,
    put: [real::AtomicI64; 3],
    spent: [real::AtomicI64; 3],
    taken: [real::AtomicI64; 3],
}

fn add(sums: &[real::AtomicI64; 3], key: Key, n: i64) {
    sums[key as usize].fetch_add(n, real::Ordering::Relaxed);
}

impl Stock {
    fn new() -> Arc<Self> {
        let [put, spent, taken] = [const { [const { real::AtomicI64::new(0) }; 3] }; 3];
        let stock = Self { rseq: RseqStocks::model(1), put, spent, taken };
        stock.bind(1);
        Arc::new(stock)
    }

    fn snapshot(&self) -> StockSnapshot {
        self.rseq.snapshot(HERE, 1)
    }

    fn bind(&self, key: Key) -> bool {
        let seen = self.snapshot();
        (seen.is_leaving || seen.free == 0 && !seen.is_open()) && self.rseq.bind(HERE, key, &seen)
    }

    /// Fills the stock, on its CPU, if the slot is bound to `key`.
    fn fill(&self, key: Key) {
        let seen = self.snapshot();
        let units = capacity(CAPACITY_LOG2) as i32 - seen.free;
        if seen.key == key
            && !seen.is_leaving
            && self.rseq.refill(HERE, key, &seen, units as u32, CAPACITY_LOG2)
        {
            add(&self.put, key, units.into());
        }
    }

    /// Charges the stock, on its CPU.
    fn charge(&self, key: Key, n: u32) {
        if self.rseq.charge(|| HERE, key, n) {
            add(&self.spent, key, n.into());
        }
    }

    fn uncharge(&self, key: Key, n: u32) {
        if self.rseq.uncharge(|| HERE, key, n) {
            add(&self.spent, key, -i64::from(n));
        }
    }

    /// Closes the stock, from any CPU: as `Accounts::close`, with a bound on the attempts and without an account.
    fn close(&self, key: Key, tries: u32) {
        for _ in 0..tries {
            let seen = self.snapshot();
            if seen.key != key || seen.is_leaving || !seen.is_open() && seen.free == 0 {
                return;
            }
            let to = Reduction { taken: seen.free, capacity_log2: 0, mark: false };
            if self.rseq.reduce(HERE, key, &seen, to) {
                add(&self.taken, key, seen.free.into());
                return;
            }
        }
    }

    /// Called when no operation is under way. Asserts that every unit that was put there was spent, was taken, or is
    /// there.
    fn end(&self) -> StockSnapshot {
        let seen = self.snapshot();
        let grant = Tag::of(seen.words[1]);
        assert!(seen.is_leaving || grant.key == seen.key, "two words of two accounts: {seen:?}");
        assert!(
            !seen.is_leaving || seen.free == 0 && !seen.is_open(),
            "it leaves, and is not even: {seen:?}"
        );
        for key in 1..3 {
            let [put, spent, taken] =
                [&self.put, &self.spent, &self.taken].map(|sums| sums[key].load(real::Ordering::Relaxed));
            let free = if seen.key as usize == key { seen.free.into() } else { 0 };
            assert_eq!(put, spent + taken + free, "{key}: {seen:?}");
        }
        seen
    }
}

fn go(stock: &Arc<Stock>, act: impl FnOnce(&Stock) + 'static) -> thread::JoinHandle<()> {
    let stock = stock.clone();
    thread::spawn(move || act(&stock))
}

/// The stock's CPU fills it, spends from it, and fills it again, while another thread closes it.
#[test]
fn a_debt_is_at_most_the_capacity() {
    static DEEPEST: real::AtomicI32 = real::AtomicI32::new(0);
    model(|| {
        let stock = Stock::new();
        stock.fill(1);
        let drainer = go(&stock, |stock| stock.close(1, 2));
        stock.charge(1, 2);
        stock.fill(1);
        stock.charge(1, 1);
        stock.charge(1, 2);
        drainer.join().unwrap();
        let free = stock.end().free;
        assert!(free >= -(capacity(CAPACITY_LOG2) as i32), "{free}");
        DEEPEST.fetch_min(free, real::Ordering::Relaxed);
        // The next drain sees the debt, and after it no units are spent there any more.
        stock.close(1, 1);
        assert_eq!(stock.end().free, 0);
        assert!(!stock.rseq.charge(|| HERE, 1, 1) && !stock.rseq.uncharge(|| HERE, 1, 1));
    });
    assert_eq!(
        DEEPEST.load(real::Ordering::Relaxed),
        -(capacity(CAPACITY_LOG2) as i32),
        "no section came late"
    );
}

/// As above, but units are returned: those that are returned late are in a closed stock, and are at most the capacity
/// that it had.
#[test]
fn late_uncharges_are_at_most_the_capacity() {
    static MOST: real::AtomicI32 = real::AtomicI32::new(0);
    model(|| {
        let stock = Stock::new();
        stock.fill(1);
        stock.charge(1, 3);
        let drainer = go(&stock, |stock| stock.close(1, 1));
        stock.uncharge(1, 1);
        stock.uncharge(1, 2);
        drainer.join().unwrap();
        let seen = stock.end();
        assert!(seen.free <= capacity(CAPACITY_LOG2) as i32, "{seen:?}");
        if !seen.is_open() {
            MOST.fetch_max(seen.free, real::Ordering::Relaxed);
        }
        stock.close(1, 1);
        assert_eq!(stock.end().free, 0);
    });
    assert_eq!(MOST.load(real::Ordering::Relaxed), capacity(CAPACITY_LOG2) as i32);
}

/// Two drains: neither takes what the other has taken.
#[test]
fn two_drains_take_a_unit_once() {
    model(|| {
        let stock = Stock::new();
        stock.fill(1);
        let drainer = go(&stock, |stock| stock.close(1, 2));
        let owner = go(&stock, |stock| {
            stock.charge(1, 2);
            stock.fill(1);
        });
        stock.close(1, 2);
        drainer.join().unwrap();
        owner.join().unwrap();
        let free = stock.end().free;
        assert!(free >= -(capacity(CAPACITY_LOG2) as i32), "{free}");
    });
}

/// Account 2 takes the slot over and spends there, while another thread drains account 1.
#[test]
fn a_drain_of_the_previous_account_takes_nothing_of_the_new() {
    model(|| {
        let stock = Stock::new();
        stock.fill(1);
        let drainer = go(&stock, |stock| stock.close(1, 2));
        stock.charge(1, 1);
        stock.close(1, 1);
        stock.bind(2);
        stock.fill(2);
        stock.charge(2, 1);
        drainer.join().unwrap();
        stock.end();
    });
}

/// The slot goes to account 2 and back to account 1, and is as before, while another thread drains account 2.
#[test]
fn a_stock_that_returns_to_the_same_bits_is_taken_from_its_own_account() {
    model(|| {
        let stock = Stock::new();
        stock.fill(1);
        let drainer = go(&stock, |stock| stock.close(2, 1));
        stock.close(1, 1);
        stock.bind(2);
        stock.bind(1);
        stock.fill(1);
        drainer.join().unwrap();
        stock.end();
    });
}

/// Two threads of one CPU bind the slot at once, each from the state that the other left.
#[test]
fn two_threads_bind_the_same_slot() {
    model(|| {
        let stock = Stock::new();
        let other = go(&stock, |stock| {
            stock.bind(2);
            stock.fill(2);
            stock.charge(2, 1);
        });
        stock.bind(1);
        stock.fill(1);
        stock.charge(1, 1);
        other.join().unwrap();
        stock.end();
    });
}
