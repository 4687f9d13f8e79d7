//! Sections: finished verbs on the slot of whoever runs, never a closure.
//!
//! Model.   `slot = *active + (index << SHIFT)`. Both are loaded inside the section, so that an
//!          aborted one starts from the truth, and so that changing `*active` and then fencing
//!          (`membarrier::fence_rseq`) moves every later verb to other slots, with none left
//!          behind. Every verb ends in one store, its commit; nothing before it can be seen by
//!          another verb. What cannot commit (aborted, empty, full) comes back at once: the
//!          caller decides whether to try again, so a debugger can step through.
//! Number.  `add` is 2 stores, 3 loads: 0.55 ns on a 3.7 GHz Zen 4, whose floor for two stores
//!          is 2 cycles, 0.54 ns.
//! Writers. The thread that runs on the slot, inside a section; remotely only what was moved
//!          away from (above) and fenced.
//! Source.  librseq `pseudocode.h`, Linux `tools/testing/selftests/rseq`; the layout of the
//!          stack is our own.
//!
//! ```text
//! descriptor (section __rseq_cs): version 0, flags 0, start, commit - start, abort address
//!     area.rseq_cs = &descriptor                  // arm
//! 33: slot = *active + (*index << SHIFT)          // the section begins
//!     …
//!     one store                                   // commit
//! 44:                                             // the section ends
//! signature; 55: aborts += 1; goto slow           // where the kernel puts a disturbed thread
//! ```
//!
//! The feature `delay` lengthens every section by a spin before its commit, for tests: a
//! section of ten instructions is so rarely disturbed that a broken one would pass.

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
mod aarch64;
mod stock;
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod unsupported;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod x86_64;

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
pub use aarch64::*;
pub use stock::{stock_charge, stock_grant, stock_rebind, stock_uncharge};
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub use unsupported::*;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use x86_64::*;

/// Spins before each commit. Written by tests, read inside the sections.
#[cfg(feature = "delay")]
pub static DELAY_SPINS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;
