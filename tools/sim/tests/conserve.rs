//! Shows that the model of `crates/sched/tests/conserve.rs` can fail: under a policy that never steals, a CPU sleeps
//! while a task waits.

#[path = "../../../crates/sched/tests/common/mod.rs"]
mod common;

use common::drawn;
use common::model::{Model, Outcome, Task, Then, WAKEUP_COST};
use warmcore_sched::{Home, Policy};
use warmcore_sim::policy::SimPolicyKind;
use warmcore_types::{CpuId, Nanos};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The longest poll.
const POLL_MAX: u64 = 16 * US;

/// The bound of that test for Home on this machine: the migration cost × (distance factor 4 + 1), or 200 µs if that
/// is more, plus a poll and four kicks.
fn bound() -> u64 {
    (Home.migration_cost(Nanos(POLL_MAX)).0 * 5).max(200 * US) + POLL_MAX + 4 * WAKEUP_COST
}

/// Two tasks per CPU that yield, all on the first CPU at first.
fn run(policy: impl Policy) -> Outcome {
    let topology = drawn(2, 12, 2, 1);
    let task = || Task::new((15 * US, POLL_MAX), Then::Yield).at_home(0);
    let tasks = (0..2 * topology.cpus.len()).map(|_| task()).collect();
    Model::new(&topology, policy, &[], tasks).run(Some(CpuId(0)), 10 * MS, 20 * MS)
}

#[test]
fn under_prev_cpu_a_cpu_sleeps_beside_a_task_that_waits() {
    let (home, prev_cpu) = (run(Home), run(SimPolicyKind::PrevCpu));
    assert!(home.idle_beside_work <= bound(), "{home:?}");
    assert!(prev_cpu.idle_beside_work > 2 * bound(), "{prev_cpu:?}");
    assert!(prev_cpu.moves == 0 && home.polls > 20 * prev_cpu.polls, "{home:?}; {prev_cpu:?}");
}
