//! Memory that all tenants share is charged to no account, whichever is current when a tenant is made, entered or given
//! data.
//!
//! Tenants are made, used and dropped in the scope of an account, under the charging allocator. What the registry,
//! the pools and the thread keep must not be charged to it. 3000 tenants make flags, indices and pages grow several
//! times.

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
fn memory_that_dropped_tenants_leave_behind_is_not_charged() {
    let account = Account::root("maker").strict().build();
    let charged = || account.exact_usage();
    {
        let _current = enter(&account);
        let tenants: Vec<Tenant> = (0..TENANTS).map(|_| Tenant::builder().build()).collect();
        let data: Vec<PerCid<Data>> = tenants.iter().map(Tenant::data).collect();
        for (tenant, data) in tenants.iter().zip(&data) {
            let _here = tenant.enter();
            data.current().numbers[0].fetch_add(1, Relaxed);
        }
        assert!(charged() > 0, "a tenant itself is charged to the account that is current when it is made");
    }
    // The compactor may hold the last tenants while it compacts them.
    for _ in 0..600 {
        if charged() == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(charged(), 0);
}
