//! Memory that all tenants share is no account's, whichever is current where a tenant is made, entered or given data.
//!
//! Model.   Tenants are made, used and dropped in an account's scope, under the charging allocator. What the registry,
//!          the pools and the thread keep for the next ones is not the account's.
//! Number.  3000 tenants: flags, places and pages grow several times.

use std::alloc::System;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use warmcore_budget::Account;
use warmcore_budget::process::{BudgetAlloc, enter};
use warmcore_percpu::PerCid;
use warmcore_tenant::Tenant;

#[global_allocator]
static ALLOC: BudgetAlloc<System> = BudgetAlloc::new(System);

const TENANTS: usize = 3000;

#[derive(bytemuck::Zeroable)]
struct Data {
    numbers: [AtomicU64; 16],
}

#[test]
fn what_tenants_leave_behind_is_not_billed() {
    let account = Account::root("maker").strict().build();
    let billed = || account.exact_usage();
    {
        let _current = enter(&account);
        let tenants: Vec<Tenant> = (0..TENANTS).map(|_| Tenant::builder().build()).collect();
        let data: Vec<PerCid<Data>> = tenants.iter().map(Tenant::data).collect();
        for (tenant, data) in tenants.iter().zip(&data) {
            let _here = tenant.enter();
            data.current().numbers[0].fetch_add(1, Relaxed);
        }
        assert!(billed() > 0, "a tenant itself is its maker's");
    }
    // The compactor may hold the last ones for as long as it looks at them.
    for _ in 0..600 {
        if billed() == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(billed(), 0);
}
