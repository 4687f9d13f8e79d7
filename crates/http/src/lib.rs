#![doc = include_str!("../README.md")]

mod executor;
mod listener;
mod quiet;
mod server;

pub use executor::Executor;
pub use listener::{Listener, PerLlc, bind};
pub use server::{ServeStats, Server, serve};
