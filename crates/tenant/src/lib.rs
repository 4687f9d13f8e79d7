#![doc = include_str!("../README.md")]

mod guard;
mod pcpu_cids;
mod registry;
mod tenant;
mod thread;

pub use guard::Guard;
pub use tenant::{Builder, Tenant};
pub use warmcore_cid::{CacheLocal, KeptPerCpu, Lowest, Policy, Stats};
