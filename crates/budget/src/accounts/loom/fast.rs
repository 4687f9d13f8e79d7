//! The same with [`RseqStocks`] stocks, whose sections are models: see `stock/rseq/loom.rs`.

use super::*;

fn two() -> Arc<Tree<2, RseqStocks>> {
    Tree::with(RseqStocks::model(2), [(None, LIMIT), (Some(0), u64::MAX)])
}

/// One goes on with its stock while the other does `act`; nothing is lost, and no debt is left.
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
fn tidying_loses_nothing() {
    conserves(3, |tree| tree.accounts.reclaim_idle());
}

/// It is exceeded by what a section under way spends at most; the next slow charge there pays.
#[test]
fn a_limit_is_exceeded_by_a_room_at_most_and_the_debt_is_paid() {
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

/// The slot is account 1's, and account 2 comes for it, while somebody drains them both.
#[test]
fn a_slot_changes_hands_and_nothing_is_lost() {
    static TAKEN: Seen = Seen::new();
    model(|| {
        let tree =
            Tree::with(RseqStocks::model(2), [(None, LIMIT), (Some(0), u64::MAX), (Some(0), u64::MAX)]);
        tree.open(1, THERE, 1);
        let other = go(&tree, |tree| {
            // The first marks it, the second may take it.
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

/// The account's last handle goes after a charge of which a drain has not seen all.
#[test]
fn an_account_that_owes_does_not_go() {
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
