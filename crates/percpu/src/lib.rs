#![doc = include_str!("../README.md")]

#[cfg(not(loom))]
mod counter;
mod free_list;
mod mode;
#[cfg(not(loom))]
mod per;
#[cfg_attr(loom, allow(dead_code))]
mod pool;
mod set_up;
mod sum;
mod sync;
mod words;

#[cfg(not(loom))]
pub use counter::{Counter, Gauge};
#[cfg(not(loom))]
pub use free_list::{FreeList, Item};
pub use mode::{Mode, ModeError, VARIABLE, mode, register_thread, try_mode};
#[cfg(not(loom))]
pub use per::{Field, HoldsCid, IdSource, Local, Own, PerCid, PerCpu};
#[cfg(not(loom))]
pub use pool::Pool;
pub use set_up::{Within, set_up_within};
