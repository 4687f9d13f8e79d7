//! Account: the budget accounts of a simulation.
//!
//! They are accounts of `warmcore-budget` with its stock kind `lock`, as in the published kernel. The CPU is a
//! simulated one. A simulation runs on one thread, so a lock is never contended. A charge or uncharge costs
//! `Settings::charge`, whether or not a stock (units that a CPU holds ready) serves it; an uncharge of units whose
//! charge was refused costs nothing.

use crate::program::AccountId;
use warmcore_budget::stock::{Key, LockedStocks};
use warmcore_budget::{AccountConfig, Accounts, Node};
use warmcore_types::CpuId;

pub(crate) struct Budgets {
    cpus: u32,
    accounts: Option<Accounts<LockedStocks>>,
    keys: Vec<(Key, u64)>,
}

impl Budgets {
    pub(crate) fn new(cpus: u32) -> Self {
        Self { cpus, accounts: None, keys: Vec::new() }
    }

    pub(crate) fn create(&mut self, name: &str, parent: Option<AccountId>, limit: u64) -> AccountId {
        let cpus = self.cpus;
        let accounts = self.accounts.get_or_insert_with(|| Accounts::new(LockedStocks::new(cpus)));
        let parent = parent.and_then(|parent| accounts.node(self.keys[parent.0 as usize].0));
        let config =
            AccountConfig { name: name.into(), limit, soft_limit: u64::MAX, guarantee: 0, listener: None };
        let node = accounts.create(parent, config).unwrap_or_else(|over| panic!("{over}"));
        self.keys.push((node.key(), 0));
        AccountId(self.keys.len() as u32 - 1)
    }

    fn node(&self, account: AccountId) -> (&Accounts<LockedStocks>, &Node) {
        let (key, _) = self.keys[account.0 as usize];
        let accounts = self.accounts.as_ref().expect("an id comes from `create`");
        (accounts, accounts.node(key).expect("accounts of a sim stay"))
    }

    /// Returns `false` if the charge was refused.
    pub(crate) fn charge(&mut self, account: AccountId, cpu: CpuId, units: u64) -> bool {
        let (accounts, node) = self.node(account);
        let fits = accounts.try_charge(node, || cpu, units).is_ok();
        self.keys[account.0 as usize].1 += u64::from(!fits);
        fits
    }

    /// Returns `false` if more was uncharged than had been charged.
    pub(crate) fn uncharge(&mut self, account: AccountId, cpu: CpuId, units: u64) -> bool {
        let (accounts, node) = self.node(account);
        accounts.uncharge(node, || cpu, units).is_ok()
    }

    pub(crate) fn usage(&self, account: AccountId) -> (u64, u64) {
        let (accounts, node) = self.node(account);
        (accounts.usage(node).charged, self.keys[account.0 as usize].1)
    }

    pub(crate) fn drain(&mut self, account: AccountId) -> u64 {
        let (accounts, node) = self.node(account);
        accounts.drain_all(node).units
    }
}
