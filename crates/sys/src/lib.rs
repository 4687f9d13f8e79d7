//! Sys: the only crate with syscalls and `asm!`.
//!
//! Model.   Thin, typed calls; no policy. What to do when the kernel says no is decided above.
//! Number.  A restartable add is two stores, the descriptor's and the commit: two cycles on a
//!          Zen 4, where a locked add takes seven.
//! Writers. [`rseq`] writes one field of the kernel's area, `rseq_cs`, and no other ever.
//! Source.  Linux `kernel/rseq.c`, `kernel/sched/membarrier.c`; glibc ≥ 2.35 `__rseq_offset`.

pub mod affinity;
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
