//! Loom models of accounts with [`RseqStocks`], whose sections are replaced by models: see `stock/rseq/loom.rs`.

use super::*;

fn two() -> Arc<Tree<2, RseqStocks>> {
    Tree::with(RseqStocks::model(2), [(None, LIMIT), (Some(0), u64::MAX)])
}

/// One thread uses its stock while the other does `act`; nothing is lost, and no debt is left.
fn conserves(free: u64, act: impl Fn(&Tree<2, RseqStocks>) + Copy + Send + Sync + 'static) {
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
    conserves(3, |tree| tree.accounts.reclaim_idle());
}

/// A limit is exceeded by at most the units that a section under way spends; the next charge that refills the stock
/// charges them.
#[test]
fn a_limit_is_exceeded_by_at_most_a_capacity_and_the_debt_is_paid() {
    static DEBTS: Seen = Seen::new();
    model(|| {
        let tree = two();
        tree.open(1, THERE, 2);
        let other = go(&tree, |tree| {
            tree.charge_within(1, THERE, 1, LIMIT + capacity(2));
            tree.charge_within(1, THERE, 1, LIMIT + capacity(2));
        });
        tree.charge_within(1, HERE, LIMIT - BASE - 1, LIMIT + capacity(2));
        other.join().unwrap();
        DEBTS.note(tree.snapshot(1, THERE).free < 0);
        tree.uncharge(1, HERE, BASE);
        assert!(tree.charge(1, THERE, 1));
        assert!(tree.snapshot(1, THERE).free >= 0);
        tree.end();
    });
    assert!(DEBTS.happened());
}

/// The slot has account 1's stock; account 2 takes the slot over while another thread drains both accounts.
#[test]
fn binding_a_slot_to_another_account_loses_nothing() {
    static TAKEN: Seen = Seen::new();
    model(|| {
        let tree =
            Tree::with(RseqStocks::model(2), [(None, LIMIT), (Some(0), u64::MAX), (Some(0), u64::MAX)]);
        tree.open(1, THERE, 1);
        let other = go(&tree, |tree| {
            // The first attempt marks the stock, the second may take over the slot.
            assert!(tree.charge(2, THERE, 1) && tree.charge(2, THERE, 1));
            tree.uncharge(2, THERE, 1);
        });
        tree.accounts.drain_all(tree.node(0));
        other.join().unwrap();
        TAKEN.note(tree.snapshot(2, THERE).key == tree.node(2).key);
        tree.end();
    });
    assert!(TAKEN.happened());
}

/// The account's last handle is dropped after a charge that a drain has seen only in part.
#[test]
fn an_account_in_debt_is_not_freed() {
    model(|| {
        let tree = two();
        tree.open(1, THERE, 1);
        let other = go(&tree, |tree| {
            assert!(tree.charge(1, THERE, 1));
            tree.accounts.drop_handle(tree.node(1));
        });
        tree.accounts.drain_all(tree.node(0));
        other.join().unwrap();
        let held = tree.held[1].load(real::Ordering::Relaxed);
        tree.accounts.reclaim_idle();
        assert_eq!((tree.accounts.accounts(), tree.node(0).usage.load(Acquire)), (2, held));
        tree.uncharge(1, HERE, held);
        tree.accounts.reclaim_idle();
        assert_eq!((tree.accounts.accounts(), tree.node(0).usage.load(Acquire)), (1, 0));
    });
}
