//! A server's tenants: a tenant has about as many slots of data as cores run it at the same time. Thousands of tenants
//! may be created and dropped.
//!
//! `cargo run --release -p warmcore --example tenants`

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use warmcore::prelude::*;

#[derive(Zeroable)]
struct Traffic {
    requests: LocalU64,
    bytes: LocalU64,
}

/// A customer and its traffic.
struct Customer {
    tenant: Tenant,
    traffic: PerCid<Traffic>,
}

impl Customer {
    fn new(name: &str) -> Self {
        let tenant = Tenant::builder().name(name).build();
        Self { traffic: tenant.data(), tenant }
    }

    /// Serves one request. The thread holds an id of the tenant meanwhile, and no other thread uses that id's slot.
    fn serve(&self, bytes: u64) {
        let here = self.tenant.enter();
        let own = self.traffic.owned_slot(&here);
        own.add(field!(Traffic, requests), 1);
        own.add(field!(Traffic, bytes), bytes);
    }
}

fn main() {
    let names = ["orders", "search", "billing"];
    let customers: HashMap<&str, Customer> = names.iter().map(|name| (*name, Customer::new(name))).collect();
    let customers = Arc::new(RwLock::new(customers));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let customers = customers.clone();
            scope.spawn(move || {
                for n in 0..1_000_000 {
                    let name = names[(thread + n) % names.len()];
                    customers.read().unwrap()[name].serve(100);
                }
            });
        }
    });
    for (name, customer) in customers.read().unwrap().iter() {
        let (requests, bytes) = (field!(Traffic, requests), field!(Traffic, bytes));
        let stats = customer.tenant.stats();
        println!(
            "{name}: {} requests, {} bytes; slots used: {} on {} CPUs; found the CPU's id held: {}",
            customer.traffic.sum(requests),
            customer.traffic.sum(bytes),
            stats.allocated,
            stats.nr_cpus_allowed,
            stats.overflows,
        );
    }
}
