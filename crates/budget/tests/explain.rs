//! `Explain` as text, in units for people.

use std::time::{Duration, Instant};
use warmcore_budget::{Account, Explain, Level, OnCpu, StockKind};
use warmcore_types::CpuId;

fn level(account: &str, charged: u64, limit: u64) -> Level {
    Level {
        account: account.into(),
        charged,
        peak: charged,
        limit,
        soft_limit: u64::MAX,
        guarantee: 0,
        reserve: 0,
        in_stocks_max: 0,
        stocks: 0,
        stocks_disabled: 0,
        waiting: 0,
    }
}

fn on(cpu: u32, free: u64, debt: u64) -> OnCpu {
    OnCpu { cpu: CpuId(cpu), free, capacity: 8192, debt }
}

#[test]
fn explain_prints_bytes_where_limits_are_whole_kib() {
    let orders = Level {
        stocks: 2,
        in_stocks_max: 9000,
        guarantee: 8 << 20,
        reserve: (8 << 20) - 1,
        soft_limit: 48 << 20,
        waiting: 1,
        ..level("orders", 13_000, 64 << 20)
    };
    let server = Level { stocks: 3, in_stocks_max: 9000, waiting: 2, ..level("server", 3 << 29, 4 << 30) };
    let explain =
        Explain { kind: "rseq", path: vec![orders, server], cpus: vec![on(0, 8192, 0), on(17, 1000, 288)] };
    assert_eq!(explain.used(), 13_000 + 288 - 9192);
    let text = "\
orders: 4 KiB used of 64 MiB, 8.9 KiB more in 2 stocks; peak 12.6 KiB with stocks; soft limit 48 MiB; \
8 MiB guaranteed, 7.9 MiB of it unused; 1 charge waits here
server: at least 1.4 GiB used of 4 GiB, up to 8.7 KiB more in 3 stocks; peak 1.5 GiB with stocks; 2 charges wait here
  cpu0: 8 KiB of 8 KiB in stock (rseq)
  cpu17: 1000 B of 8 KiB in stock (rseq), 288 B spent and not charged yet
";
    assert_eq!(explain.to_string(), text);
}

#[test]
fn explain_prints_groups_of_digits_where_limits_are_no_bytes() {
    let requests = Level { stocks: 1, in_stocks_max: 1, ..level("requests", 12_345, 100_000) };
    let all = level("all", 1_012_345, u64::MAX);
    let explain = Explain { kind: "atomic", path: vec![requests, all], cpus: vec![on(3, 345, 0)] };
    let text = "\
requests: 12 000 used of 100 000, 345 more in 1 stock; peak 12 345 with stocks
all: 1 012 345 used, no limit; peak 1 012 345 with stocks
  cpu3: 345 of 8 192 in stock (atomic)
";
    assert_eq!(explain.to_string(), text);
}

/// Units in use by an account. The background thread may close a stock between the two moments at which charges
/// and stocks are read; the next attempt is right.
fn becomes(account: &Account, used: u64) -> Explain {
    let began = Instant::now();
    loop {
        let explain = account.explain();
        if explain.used() == used {
            return explain;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "not {used}: {explain}");
    }
}

#[test]
fn explain_matches_what_is_held_on_every_kind() {
    for kind in [StockKind::Rseq, StockKind::Atomic] {
        let server = Account::root("server").limit(1 << 30).kind(kind).build();
        let orders = server.child("orders").limit(64 << 20).build();
        let held: Vec<_> = (0..100).map(|_| orders.try_hold(4096).expect("it fits")).collect();
        let text = becomes(&orders, 400 << 10).to_string();
        assert!(text.starts_with("orders: 400 KiB used of 64 MiB"), "{text}");
        drop(held);
        let text = becomes(&orders, 0).to_string();
        assert!(text.starts_with("orders: 0 B used of 64 MiB"), "{text}");
    }
}
