#![doc = include_str!("../README.md")]

mod bits;
mod ids;
mod pcpu_cid;
pub mod policy;
mod sync;

pub use ids::{HeldCid, Ids, Stats, User};
pub use pcpu_cid::{PcpuCid, PcpuCids, pcpu_cids};
pub use policy::{CacheLocal, KeptPerCpu, Lowest, Policy};
