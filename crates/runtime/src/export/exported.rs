//! Exported: the numbers of a runtime's tenants at the last report, so that no counter falls when a tenant ends.

use crate::tenant_stats::TenantMetrics;
use std::collections::BTreeMap;

/// The sums over all tenants of the same name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OfName {
    pub(super) polls: u64,
    pub(super) run_ns: u64,
    pub(super) num_alive_tasks: usize,
}

/// The reported numbers of one runtime's tenants.
#[derive(Debug, Default)]
pub(crate) struct Exported {
    /// The tenants that were alive at the last report, sorted by serial number.
    pub(super) last: Vec<TenantMetrics>,
    /// Polls and run time, by name, of tenants that have ended, as of each tenant's last report.
    pub(super) gone: BTreeMap<String, (u64, u64)>,
}

impl Exported {
    /// What to report now: each name that a tenant has, and each name that a tenant had at the last report.
    pub(super) fn by_name(&mut self, now: &[TenantMetrics]) -> BTreeMap<String, OfName> {
        let mut names = BTreeMap::<String, OfName>::new();
        for before in std::mem::replace(&mut self.last, now.to_vec()) {
            if now.binary_search_by_key(&before.serial, |tenant| tenant.serial).is_err() {
                let (polls, run_ns) = self.gone.entry(before.name.clone()).or_default();
                *polls += before.polls;
                *run_ns += before.run_ns;
                names.entry(before.name).or_default();
            }
        }
        for tenant in now {
            let sum = names.entry(tenant.name.clone()).or_default();
            sum.polls += tenant.polls;
            sum.run_ns += tenant.run_ns;
            sum.num_alive_tasks += tenant.num_alive_tasks;
        }
        for (name, sum) in &mut names {
            let (polls, run_ns) = self.gone.get(name).copied().unwrap_or_default();
            sum.polls += polls;
            sum.run_ns += run_ns;
        }
        names
    }
}
