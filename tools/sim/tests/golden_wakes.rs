//! The golden wakes: the answers of every policy that a simulation knows by name to the facts in `fixtures/wakes`.

#[path = "../../../crates/sched/tests/common/mod.rs"]
mod common;
#[path = "../../../crates/sched/tests/common/golden.rs"]
mod golden;

use warmcore_sim::policy::SimPolicyKind;

#[test]
fn every_policy_says_what_the_files_say() {
    golden::check(&SimPolicyKind::all(), |_| false);
}
