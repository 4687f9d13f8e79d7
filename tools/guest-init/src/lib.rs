//! What the laboratory's guest does: a [`GuestPlan`] goes in with the initial RAM disk, and [`Line`]s come out on the console.
//!
//! The program of this crate is the guest's first process. It reads the plan, starts the scheduler, runs each [`Run`]'s workload
//! under the probe, prints a line for each, and switches the machine off. It is its own workload too: `init work JSON` runs a
//! [`Work`] and prints [`Done`].
//!
//! All of it is one static program, so that a guest needs no other file, and the same bytes boot on each kernel.

pub mod plan;
pub mod work;

pub use plan::{GuestPlan, Line, Run};
pub use work::{Done, SectionCounts, Work};
