//! `bench cid`: what it is worth that a CPU gets the id back that it used last.
//!
//! Model.   Each way to find an area is run by the same program: by the CPU's number, by the ids of
//!          a tenant under each policy, by the kernel's own ids. What a burst costs is timed; on
//!          whose data it ran is counted, and that is exact where times are noise.
//! Number.  A burst is one pass over 16 kB: 0.3 µs in a loop. After a pause, published: 1.3 µs if its data
//!          is where it was, 19 µs if not.
//! Source.  The published tables and the program behind them: linux-kernel, "Improve cache
//!          locality of RSEQ concurrency IDs for intermittent workloads", 2024; librseq's
//!          basic per-CPU benchmark.

mod area;
mod elsewhere;
mod enter;
mod handover;
mod held;
pub mod intermittent;
pub mod memory;
pub mod shares;
pub mod timeline;

use super::Case;
use crate::measure::Effort;
pub use warmcore_results::names::cid::OURS;

/// The cases, in the order of the report.
pub const CASES: &[Case] = &[
    Case { name: timeline::CASE, needs_two: false, run: timeline::run },
    Case { name: "cid.held", needs_two: false, run: held::run },
    Case { name: intermittent::CASE, needs_two: true, run: intermittent::run },
    Case { name: "cid.handover", needs_two: true, run: handover::run },
    Case { name: "cid.enter", needs_two: false, run: enter::alone },
    Case { name: "cid.enter.2threads", needs_two: true, run: enter::two_threads },
    Case { name: "cid.elsewhere", needs_two: false, run: elsewhere::run },
    Case { name: "cid.memory", needs_two: false, run: memory::run },
];

/// Indexed by the CPU's number: as many areas as CPUs, and always the own one.
pub const BY_CPU: &str = "by cpu";
/// Indexed by the kernel's id, of which the process has one set.
pub const MM_CID: &str = "mm_cid";

/// How far the progress bar moves for a case.
pub(super) fn steps(case: &Case, effort: Effort) -> u64 {
    if case.name == intermittent::CASE { intermittent::steps(effort) } else { effort.rounds as u64 }
}

/// Whether this is the short run.
fn is_quick(effort: Effort) -> bool {
    effort.rounds == Effort::QUICK.rounds
}
