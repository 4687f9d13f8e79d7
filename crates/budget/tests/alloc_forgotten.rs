//! Guards of `enter` that are forgotten: what the thread allocates is charged to the guard's account until that
//! account ends, and then to no account.

#[allow(dead_code)]
#[path = "alloc/kit.rs"]
mod kit;

use kit::{bytes, on_each_kind, used};
use std::alloc::System;
use warmcore_budget::process::{BudgetAlloc, enter};
use warmcore_budget::{Account, StockKind};
use warmcore_percpu::Counter;

#[global_allocator]
static ALLOC: BudgetAlloc<System> = BudgetAlloc::new(System);

#[test]
fn a_forgotten_scope_ends_with_its_account() {
    on_each_kind(|kind| {
        let account = Account::root("forgetful").kind(kind).build();
        std::mem::forget(enter(&account));
        let held = bytes(5000);
        assert!(used(&account) >= 5000, "{kind}: it is current while the account lives");
        drop(held);
        assert_eq!(used(&account), 0);
        drop(account);
        Account::reclaim_idle_all();
        // One of them has the node of the ended account.
        let later: Vec<Account> = (0..50).map(|_| Account::root("later").kind(kind).build()).collect();
        let held = bytes(1 << 20);
        for account in &later {
            assert_eq!(used(account), 0, "{kind}: charged to an account that this thread never entered");
        }
        drop(held);
        // A guard that is dropped still works, and leaves no account active.
        {
            let _current = enter(&later[0]);
            let held = bytes(5000);
            assert!(used(&later[0]) >= 5000);
            drop(held);
        }
        let held = bytes(5000);
        later.iter().for_each(|account| assert_eq!(used(account), 0));
        drop(held);
    });
}

#[test]
fn slots_of_a_counter_are_not_charged_to_the_first_adder() {
    // One chunk of slots serves 256 counters: the account that is active when the next chunk is made would be charged
    // for it.
    static COUNTERS: [[Counter; 600]; 2] = [const { [const { Counter::new() }; 600] }; 2];
    on_each_kind(|kind| {
        let counters = &COUNTERS[usize::from(kind == StockKind::Atomic)];
        let account = Account::root("adds").kind(kind).build();
        {
            let _current = enter(&account);
            counters.iter().for_each(|counter| counter.add(1));
        }
        Account::reclaim_idle_all();
        assert_eq!(used(&account), 0, "{kind}: it pays for what all counters share");
    });
}
