//! Records where and when each task of a program was polled, and reads such recordings.
//!
//! [`format`] describes the bytes, [`Recording`] reads them.

pub mod format;
mod reader;
mod text;

pub use format::Kind;
pub use reader::{Event, Poll, ReadError, Recording, Spawn, Thread};
pub use text::{CpuPlace, Header, KernelStats, Location, SAMPLE_FACTOR, TextLine, ThreadStats};
