#![doc = include_str!("../README.md")]

pub mod affinity;
pub mod background;
pub mod clock;
pub mod files;
pub mod fork;
pub mod local;
pub mod map;
pub mod membarrier;
pub mod platform;
pub mod rseq;
pub mod signals;
pub mod timer;
