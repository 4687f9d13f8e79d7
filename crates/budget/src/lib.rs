#![doc = include_str!("../README.md")]

mod accounts;
pub mod capacity;
mod outcome;
#[cfg(not(loom))]
pub mod process;
pub mod stock;
mod sync;

pub use accounts::{AccountConfig, Accounts, DEPTH_MAX, Drained, Explain, Level, Node, OnCpu, Usage};
pub use outcome::{Event, Listener, OverBudget, OverUncharge, Overrun};
#[cfg(not(loom))]
pub use process::{Account, AccountBuilder, Charge, StockKind};
