#![doc = include_str!("../README.md")]

mod backend;
#[cfg(not(loom))]
mod counter;
mod free_list;
#[cfg(not(loom))]
mod per;
#[cfg_attr(loom, allow(dead_code))]
mod pool;
mod set_up;
mod sum;
mod sync;
mod words;

pub use backend::{Backend, BackendError, VARIABLE, backend, register_thread, try_backend};
#[cfg(not(loom))]
pub use counter::{Counter, Gauge};
#[cfg(not(loom))]
pub use free_list::{FreeList, Item};
#[cfg(not(loom))]
pub use per::{CidHolder, Field, IdSource, LocalU64, OwnedSlot, PerCid, PerCpu};
#[cfg(not(loom))]
pub use pool::Pool;
pub use set_up::{Within, set_up_within};
