#![doc = include_str!("../README.md")]

mod accounts;
mod contain;
#[cfg(not(loom))]
pub mod host;
mod outcome;
pub mod room;
pub mod stock;
mod sync;

pub use accounts::{Accounts, DEPTH_MAX, Drained, Explain, Level, Node, OnCpu, Plan, Usage};
#[cfg(not(loom))]
pub use host::{Account, Builder, Charge, Kind};
pub use outcome::{Event, Listener, OverBudget, OverUncharge, Overrun};
