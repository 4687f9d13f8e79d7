#![doc = include_str!("../README.md")]

#[cfg(not(loom))]
mod file;
pub mod format;
#[cfg(not(loom))]
mod future;
mod reader;
#[cfg(not(loom))]
mod recorder;
#[cfg_attr(loom, allow(dead_code))]
mod ring;
mod sync;
#[cfg(not(loom))]
mod task;
mod text;
#[cfg(not(loom))]
mod thread;
#[cfg(not(loom))]
mod writer;

pub use format::RecordKind;
#[cfg(not(loom))]
pub use future::{Recorded, WorkerIndex, record, yields};
pub use reader::{Event, Poll, ReadError, Recording, Spawn, Thread};
#[cfg(not(loom))]
pub use recorder::{DEFAULT_MAX, MAX_VARIABLE, VARIABLE, flush, is_on, start};
#[cfg(not(loom))]
pub use task::{TaskRecord, set_worker};
pub use text::{CpuPlace, Header, KernelStats, Location, SAMPLE_FACTOR, TextLine, ThreadStats};
