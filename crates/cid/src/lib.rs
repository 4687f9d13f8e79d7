#![doc = include_str!("../README.md")]

mod bits;
mod ids;
pub mod policy;
mod seat;
mod sync;

pub use ids::{Held, Ids, Stats, User};
pub use policy::{CacheLocal, KeptPerCpu, Lowest, Policy, TaskOwned};
pub use seat::{Seat, Seats, seats};
