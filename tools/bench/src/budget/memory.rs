//! The memory of ten thousand accounts on a machine of 256 CPUs.
//!
//! The CPUs are simulated: their number, and the CPU of each charge, are arguments. Each of the ten thousand accounts
//! is used on four CPUs: four random CPUs, or the same four for all accounts. The result is the size of the nodes (the
//! structs of the accounts) plus the resident pages of the tables that hold the stocks, one table per CPU. Another row
//! shows the growth of the whole process, which includes the accounts' names and lists of children. The measurement
//! runs in a separate process.
//!
//! A `Node` takes 384 bytes. A table of 32 KiB for each of 256 CPUs is 8 MiB: 839 bytes for each of 10 000 accounts. A
//! word for each account and CPU would take 2048 bytes per account.
//!
//! Source: `/proc/self/pagemap`; `/proc/self/smaps_rollup`.

use super::setup::*;
use crate::case::CaseCtx;
use crate::part::{self, Part, resident_process_bytes};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use warmcore_budget::stock::{AtomicStocks, Stocks};
use warmcore_budget::{Accounts, Node};
use warmcore_results::{Bound, Row};
use warmcore_types::CpuId;

const BYTES_MAX: f64 = 2048.0;
const ACCOUNTS: usize = 10_000;
const CPUS: u32 = 256;
const CPUS_EACH: usize = 4;

/// The number of accounts, and on which CPUs they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Many {
    accounts: usize,
    /// Whether all accounts use the same CPUs.
    common: bool,
}

/// The memory that the accounts take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    nodes: usize,
    tables: usize,
    process: u64,
    /// How many pairs of an account and a CPU have a stock (units that the CPU holds ready) at the end. A charge that
    /// found no free slot for its stock went up the tree of accounts.
    stocks: u64,
}

impl Part for Many {
    const NAME: &'static str = "Accounts";
    type Answer = Taken;

    /// Makes the accounts, charges one unit in each on four CPUs, and measures.
    fn answer(self) -> anyhow::Result<Taken> {
        let before = resident_process_bytes()?;
        let accounts = Accounts::new(AtomicStocks::new(CPUS));
        let root = create(&accounts, None, "root", LIMIT);
        let group = create(&accounts, Some(root), "group", LIMIT);
        let mut rng = Rng::with_seed(5);
        let all: Vec<&Node> =
            (0..self.accounts).map(|_| create(&accounts, Some(group), "leaf", u64::MAX)).collect();
        for node in &all {
            let first = if self.common { 0 } else { rng.usize(..CPUS as usize) };
            // An odd step, so that the four CPUs differ.
            let step = if self.common { 1 } else { 1 + 2 * rng.usize(..CPUS as usize / 2 - 1) };
            for i in 0..CPUS_EACH {
                let cpu = CpuId(((first + i * step) % CPUS as usize) as u32);
                must(accounts.try_charge(node, || cpu, 1));
            }
        }
        let stocks = all.iter().map(|node| accounts.explain(node).cpus.len() as u64).sum();
        let tables = accounts.stocks().resident_bytes()?;
        let nodes = accounts.accounts() * size_of::<Node>();
        Ok(Taken { nodes, tables, process: resident_process_bytes()?.saturating_sub(before), stocks })
    }
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let row = |name: &str, metric: &str, unit: &str, value: f64, n: usize| {
        Row::exact(ctx.name, name, metric, unit, value, n as u64)
    };
    let kinds = [
        ("warmcore atomic, on any 4 of 256 CPUs", false),
        ("warmcore atomic, all on the same 4 of 256", true),
    ];
    for (i, (name, common)) in kinds.into_iter().enumerate() {
        let taken = part::ask(&Many { accounts: ACCOUNTS, common })?;
        let each = |metric: &str, bytes: u64| {
            row(name, metric, "bytes", (bytes as f64 / ACCOUNTS as f64).round(), ACCOUNTS)
        };
        rows.push(each("memory each", (taken.nodes + taken.tables) as u64).promise(Bound::AtMost, BYTES_MAX));
        rows.push(each("of that, the node", taken.nodes as u64));
        rows.push(each("of that, stocks", taken.tables as u64));
        rows.push(each("the process grew by, each", taken.process));
        let share = taken.stocks as f64 * 100.0 / (ACCOUNTS * CPUS_EACH) as f64;
        rows.push(row(name, "stocks open in the end", "%", share, ACCOUNTS * CPUS_EACH));
        ctx.part_of(i + 1, kinds.len());
    }
    let computed =
        |name: &str, bytes: u32| row(name, "memory each", "bytes", f64::from(CPUS * bytes), ACCOUNTS);
    rows.push(computed("an atomic for each of 256 CPUs (computed)", 8));
    rows.push(computed("a padded atomic for each of 256 CPUs (computed)", 128));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_accounts_use_not_what_the_machine_could() {
        for common in [false, true] {
            let taken = Many { accounts: 300, common }.answer().unwrap();
            assert!(taken.nodes >= 300 * size_of::<Node>() && taken.tables > 0, "{taken:?}");
            assert!(taken.tables <= (CPUS as usize) << 15, "{taken:?}");
            assert_eq!(taken.stocks, 300 * CPUS_EACH as u64, "each account found its places");
            // Four tables with two resident pages each, of at most 16 KiB.
            assert!(!common || taken.tables <= 4 * 2 * 4096 * 4, "{taken:?}");
        }
    }
}
