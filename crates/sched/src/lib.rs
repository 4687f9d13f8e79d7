#![doc = include_str!("../README.md")]

mod facts;
mod hot;
mod machine;
pub mod policy;
pub mod shares;

pub use facts::{Allowed, Enqueued, Placed, Pull, To, Turn, View, Wake, Wakee, Waker, Whom};
pub use hot::Sleeps;
pub use machine::{Distance, Machine};
pub use policy::{
    GlobalFifo, Home, Kernel, Policy, PolicyKind, PrevCpu, SharedQueue, UnknownPolicy, WorkSteal,
};
pub use shares::{Pace, Shares};
