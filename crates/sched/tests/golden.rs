//! The golden wakes: what this crate's policies say to the facts in `fixtures/wakes`.
//!
//! The files hold answers of other policies too, which a simulation compares with: `tools/sim` asks those.

mod common;
#[path = "common/golden.rs"]
mod golden;

use warmcore_sched::PolicyKind;

/// Policies that the files ask and this crate doesn't have.
const OTHERS: [&str; 3] = ["prev-cpu", "global-fifo", "work-steal"];

#[test]
fn every_policy_says_what_the_files_say() {
    golden::check(&PolicyKind::all(), |name| OTHERS.contains(&name));
}
