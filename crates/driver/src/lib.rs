#![doc = include_str!("../README.md")]

mod attendance;
mod driver;
#[cfg(feature = "tokio")]
mod op_budget;
mod park;
#[cfg(feature = "tokio")]
mod tokio_driver;
#[cfg(feature = "tokio")]
mod unlisted;
#[cfg(not(feature = "tokio"))]
mod without_tokio;

pub use attendance::Attendance;
pub use driver::{Driver, Entered, Used};
#[cfg(feature = "tokio")]
pub use op_budget::{OpBudget, unconstrained};
#[cfg(feature = "tokio")]
pub use tokio_driver::{
    TokioDriver, TokioDriverConfig, TokioReactor, is_inside_tokio, leave_block_on, sleep,
};
#[cfg(not(feature = "tokio"))]
pub use without_tokio::{OpBudget, is_inside_tokio, leave_block_on, unconstrained};
