//! TaskOwned: an id belongs to its task while there are few, to the CPU when there are many
//! (Linux 6.19).
//!
//! Model.   Up to a quarter more users than can run at once, each has an id for good and takes it
//!          along; above, ids belong to CPUs. No recent id, no expiry: that an id means a core is
//!          the business of whoever pins its tasks.
//! Number.  Back to tasks when users fall below three quarters of the CPUs allowed, or half of all
//!          CPUs, so that one thread that comes and goes does not turn everything over.
//! Source.  `mm_update_max_cids`, `mm_cid_calc_pcpu_thrs` of Linux 6.19.

use super::*;

/// Ids that follow their tasks, or stay with CPUs when there are more tasks than those, as Linux
/// 6.19 does it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskOwned;

impl Policy for TaskOwned {
    fn name(&self) -> &'static str {
        "task-owned"
    }

    fn expires(&self) -> bool {
        false
    }

    fn has_task_cids(&self) -> bool {
        true
    }

    fn owner(&self, facts: &Facts, now: Option<Owner>) -> Owner {
        let few = (facts.nr_cpus_allowed - facts.nr_cpus_allowed / 4).min(facts.cpus / 2).max(1);
        match now {
            None | Some(Owner::Task) if facts.users > self.end(facts) => Owner::Cpu,
            None => Owner::Task,
            Some(Owner::Cpu) if facts.users < few => Owner::Task,
            Some(owner) => owner,
        }
    }

    fn end(&self, facts: &Facts) -> u32 {
        (facts.bound() + facts.bound() / 4).min(facts.cpus)
    }

    fn bound(&self, facts: &Facts) -> u32 {
        self.end(facts)
    }

    fn pick(&self, facts: &Facts, _: Option<Cid>, used: &Used) -> Option<Pick> {
        // CPUs keep theirs for good: when users became fewer, the free ones may all be above.
        used.lowest_free(self.end(facts)).or_else(|| used.lowest_free(facts.cpus)).map(Pick::Lowest)
    }

    fn left_behind(&self, _: &Facts, _: u32, _: Destination) -> LeftBehind {
        LeftBehind::Stays
    }
}
