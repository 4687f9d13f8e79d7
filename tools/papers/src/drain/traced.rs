//! Traced: stocks (units that a CPU holds ready for an account) that record which of them were examined and reduced.
//!
//! The wrapped stocks do the work. Each `snapshot` and `reduce` adds a step, in order; the simulation (`drain/sim.rs`)
//! drops the steps of the charges, and prices those of the drain.

use std::sync::{Mutex, PoisonError};
use warmcore_budget::stock::{Key, Reduction, StockAddr, StockSnapshot, Stocks};
use warmcore_types::CpuId;

/// What was done to a stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Its content was read (`snapshot`).
    Look(CpuId),
    /// Units were taken from it (`reduce`).
    Take(CpuId),
}

#[derive(Debug)]
pub(super) struct Traced<S> {
    stocks: S,
    steps: Mutex<Vec<Step>>,
}

impl<S> Traced<S> {
    pub fn new(stocks: S) -> Self {
        Self { stocks, steps: Mutex::default() }
    }

    /// Returns the steps since the last call, and removes them.
    pub fn take_steps(&self) -> Vec<Step> {
        std::mem::take(&mut self.steps.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, step: Step) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }
}

impl<S: Stocks> Stocks for Traced<S> {
    const STRICT: bool = S::STRICT;
    const NAME: &'static str = S::NAME;

    fn cpus(&self) -> u32 {
        self.stocks.cpus()
    }

    fn charge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.stocks.charge(cpu, key, n)
    }

    fn uncharge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        self.stocks.uncharge(cpu, key, n)
    }

    fn stock_addr(&self, key: Key) -> StockAddr {
        self.stocks.stock_addr(key)
    }

    fn snapshot(&self, cpu: CpuId, key: Key) -> StockSnapshot {
        self.note(Step::Look(cpu));
        self.stocks.snapshot(cpu, key)
    }

    fn refill(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, units: u32, capacity_log2: u8) -> bool {
        self.stocks.refill(cpu, key, seen, units, capacity_log2)
    }

    fn reduce(&self, cpu: CpuId, key: Key, seen: &StockSnapshot, to: Reduction) -> bool {
        self.note(Step::Take(cpu));
        self.stocks.reduce(cpu, key, seen, to)
    }

    fn bind(&self, cpu: CpuId, key: Key, seen: &StockSnapshot) -> bool {
        self.stocks.bind(cpu, key, seen)
    }

    fn resident_bytes(&self) -> std::io::Result<usize> {
        self.stocks.resident_bytes()
    }
}
