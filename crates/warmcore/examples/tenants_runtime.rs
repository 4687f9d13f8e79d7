//! Two tenants on one runtime: one has three times the other's weight, and both stay within their budgets.
//!
//! `cargo run --release -p warmcore --example tenants_runtime`
//!
//! A task that is spawned into a tenant runs with the tenant's id and account, and the tenants share the workers by
//! weight: while tasks of both are queued, the tasks of gold get three times the run time of the tasks of bronze.
//! Before a request allocates, it waits until its tenant's budget has enough left; then the allocator charges the
//! request's memory to the tenant.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use warmcore::budget::process::BudgetAlloc;
use warmcore::prelude::*;

#[global_allocator]
static ALLOC: BudgetAlloc<mimalloc::MiMalloc> = BudgetAlloc::new(mimalloc::MiMalloc);

/// Name, weight, limit in KiB.
const TENANTS: [(&str, u32, u64); 2] = [("gold", 300, 1024), ("bronze", 100, 256)];

/// How many tasks each tenant has: more than most machines have CPUs, so that some are queued.
const TASKS: usize = 16;

/// A request's memory.
const BYTES: usize = 32 << 10;

/// How often a request goes over its memory: about 400 µs of work, and 4 ms without optimization.
///
/// The weights divide run time, and waiting for the budget is a part of a tenant's run time. A request of bronze has one
/// more poll than a request of gold, and wakes the budget's background thread, which may preempt the worker: about 20 µs.
/// With 32 optimized passes, which take 95 µs, 3.5 requests of gold were served to one of bronze, while the run time was
/// divided 3 to 1.
const PASSES: u32 = if cfg!(debug_assertions) { 32 } else { 128 };

/// Counts of a tenant. Tasks that run at the same time use different slots, which share no cache line.
#[derive(Zeroable)]
struct Traffic {
    requests: LocalU64,
    bytes: LocalU64,
}

/// The state of a tenant at the end.
#[derive(Debug)]
pub struct Report {
    /// Its name.
    pub name: &'static str,
    /// Requests that the tenant served in the run, which ends soon after one of the tenants has served enough.
    pub requests: u64,
    /// Bytes that these requests allocated.
    pub bytes: u64,
    /// The largest number of ids that the tenant used at the same time.
    pub ids: u64,
    /// The most memory that the tenant had at once, in bytes.
    pub peak: u64,
    /// Its limit, in bytes.
    pub limit: u64,
    /// The tenant's usage in bytes when all its tasks have ended: 0, unless memory was not freed.
    pub left: u64,
}

struct Customer {
    tenant: Tenant,
    account: Account,
    traffic: PerCid<Traffic>,
}

impl Customer {
    fn new(root: &Account, name: &str, weight: u32, limit_kib: u64) -> Self {
        let account = root.child(name).limit(limit_kib << 10).build();
        let tenant = Tenant::builder().name(name).weight(weight).account(&account).build();
        Self { traffic: tenant.data(), tenant, account }
    }

    /// Serves one request: reserves the memory, allocates it, and counts.
    async fn serve(&self, n: u64) {
        let mut room = self.account.charge(BYTES as u64).await.expect("a request is smaller than the limit");
        // Gives the reservation back, which the allocator then charges to the same account.
        room.shrink(BYTES as u64);
        let words: Vec<u64> = (0..BYTES as u64 / 8).map(|i| i.wrapping_mul(n)).collect();
        // Other tasks run while this task has its memory: as many as the budget allows.
        warmcore::yield_now().await;
        let pass = |sum: u64, _| words.iter().fold(sum, |sum, word| sum.rotate_left(1) ^ word);
        std::hint::black_box((0..PASSES).fold(0, pass));
        self.traffic.add(field!(Traffic, requests), 1);
        self.traffic.add(field!(Traffic, bytes), BYTES as u64);
    }
}

/// One of a tenant's tasks: serves requests until a tenant has served `enough` of them.
async fn serve(customer: Arc<Customer>, is_over: Arc<AtomicBool>, enough: u64) {
    let mut n = 0;
    while !is_over.load(Relaxed) {
        n += 1;
        customer.serve(n).await;
        if n % 16 == 0 && customer.traffic.sum(field!(Traffic, requests)) >= enough {
            is_over.store(true, Relaxed);
        }
        warmcore::yield_now().await;
    }
}

/// Runs both tenants at once, until the first of them has served `enough` requests.
pub fn run(enough: u64) -> impl Future<Output = Vec<Report>> {
    let root = Account::root("server").limit(64 << 20).build();
    let is_over = Arc::new(AtomicBool::new(false));
    let customers =
        TENANTS.map(|(name, weight, limit_kib)| Arc::new(Customer::new(&root, name, weight, limit_kib)));
    async move {
        let tasks: Vec<_> = (0..TASKS * customers.len())
            .map(|i| {
                let customer = &customers[i % customers.len()];
                warmcore::spawn_in(&customer.tenant, serve(customer.clone(), is_over.clone(), enough))
            })
            .collect();
        for task in tasks {
            task.await.expect("it does not panic");
        }
        TENANTS.iter().zip(&customers).map(|((name, ..), customer)| report(name, customer)).collect()
    }
}

fn report(name: &'static str, customer: &Customer) -> Report {
    let Customer { tenant, account, traffic } = customer;
    Report {
        name,
        requests: traffic.sum(field!(Traffic, requests)),
        bytes: traffic.sum(field!(Traffic, bytes)),
        ids: u64::from(tenant.stats().allocated),
        peak: account.peak(),
        limit: account.limit(),
        left: account.exact_usage(),
    }
}

#[allow(dead_code)]
#[warmcore::main(name = "tenants")]
async fn main() {
    for Report { name, requests, bytes, ids, peak, limit, left } in run(2_000).await {
        println!(
            "{name:>6}: {requests} requests, {} MiB in all, at most {} of {} KiB at once, {ids} ids, {left} bytes left",
            bytes >> 20,
            peak >> 10,
            limit >> 10,
        );
    }
}
