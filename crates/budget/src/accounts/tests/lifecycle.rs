//! Many accounts that are created and dropped leave no units and no memory behind.

use super::*;

/// The number of accounts at the same time, and the number of rounds.
const ACCOUNTS: usize = 10_000;
const ROUNDS: usize = if cfg!(debug_assertions) { 3 } else { 20 };

#[test]
fn accounts_made_again_and_again_use_the_same_nodes() {
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
    // The stocks take at most one page per CPU for each 256 accounts.
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
