//! Memory that the runtime's tasks share is charged to no account, whichever account is active when a task is spawned.
//!
//! Tasks of tenants are spawned and awaited in the scope of an account, under the charging allocator. The memory that
//! the runtime keeps for later tasks (lists of tasks and tenants, queues) must not be charged to that account. 3000
//! tenants have a task each at the same time, so that every list grows several times.

mod limit;

use limit::{HANGS_AFTER, with_workers};
use std::alloc::System;
use std::time::Instant;
use warmcore_budget::Account;
use warmcore_budget::process::{BudgetAlloc, enter};
use warmcore_runtime::{JoinHandle, Runtime, yield_now};
use warmcore_tenant::Tenant;

#[global_allocator]
static ALLOC: BudgetAlloc<System> = BudgetAlloc::new(System);

const TENANTS: usize = 3000;

fn run(runtime: &Runtime, tenants: usize) {
    let tenants: Vec<Tenant> = (0..tenants).map(|_| Tenant::builder().build()).collect();
    let tasks: Vec<JoinHandle<()>> =
        tenants.iter().map(|tenant| runtime.spawn_in(tenant, yield_now())).collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn what_tasks_leave_behind_is_not_billed() {
    with_workers(2, |runtime| {
        // The first run makes the allocations that happen once per thread, which are not tested.
        run(runtime, 1);
        let account = Account::root("spawner").strict().build();
        {
            let _current = enter(&account);
            run(runtime, TENANTS);
        }
        // A worker may still be about to free a task that was awaited.
        let began = Instant::now();
        while account.exact_usage() > 0 && began.elapsed() < HANGS_AFTER / 2 {
            std::thread::yield_now();
        }
        assert_eq!(account.exact_usage(), 0);
    });
}
