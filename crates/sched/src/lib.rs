#![doc = include_str!("../README.md")]

mod facts;
mod hot;
mod machine;
pub mod policy;
pub mod shares;

pub use facts::{Allowed, Placed, Pull, To, Turn, View, Wake, Wakee, Waker, Whom};
pub use hot::{MIGRATION_COST, Sleeps};
pub use machine::{Distance, Machine, SHARD_CPUS_MAX};
pub use policy::{Home, Policy, PolicyKind, SharedQueue, UnknownPolicy};
pub use shares::{Pace, Shares};
