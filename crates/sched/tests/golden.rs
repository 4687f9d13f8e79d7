//! The golden wakes: checks that this crate's policies give the answers in the files of `fixtures/wakes`.
//!
//! The files also have answers of policies that only the simulator has; a test of the simulator checks those.

mod common;
#[path = "common/golden.rs"]
mod golden;

use warmcore_sched::PolicyKind;

/// Policies that the files have answers of and this crate doesn't have.
const OTHERS: [&str; 3] = ["prev-cpu", "global-fifo", "work-steal"];

#[test]
fn every_policy_says_what_the_files_say() {
    golden::check(&PolicyKind::all(), |name| OTHERS.contains(&name), |_, _| true);
}
