#![doc = include_str!("../README.md")]

mod domains;
mod facts;
mod hot;
pub mod policy;
pub mod shares;

pub use domains::{SHARD_CPUS_MAX, SchedDomains};
pub use facts::{
    Allowed, QueueOrder, StealDecision, StealOrder, TargetQueue, View, Wake, WakeDecision, WakeSource, Wakee,
};
pub use hot::{SYSCTL_MIGRATION_COST, SleepHistory};
pub use policy::{Home, Policy, PolicyKind, SharedQueue, UnknownPolicy};
pub use shares::{Pace, Shares};
pub use warmcore_topo::Distance;
