//! `Without`: a policy that lacks one of its rules.
//!
//! Comparing it with the complete policy shows what the rule contributes. Everything else is done by the code of
//! the policy. For `Recent` and `Expand` that code is called with facts for which the rule has no effect; for the
//! other rules its answer is replaced. There are six rules. `CacheLocal` has all of them; removing one that a policy
//! does not have changes nothing.

use super::*;

/// A rule that a policy may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// An id stays on its CPU when the user leaves.
    Keep,
    /// An id that was not used between two compactions is taken back.
    Expire,
    /// A CPU gets the id back that it used last.
    Recent,
    /// While [`Facts::max_nr_cid`] is below the bound, a CPU that does not get its recent id gets a new one.
    Expand,
    /// An id follows its user to another CPU.
    Follow,
    /// Ids that are not below [`Policy::bound`] are taken back.
    Bound,
}

/// A policy without one of its rules, to measure what that rule contributes.
///
/// ```
/// use warmcore_cid::policy::{Rule, Without};
/// use warmcore_cid::{CacheLocal, Ids, pcpu_cids};
/// use warmcore_types::{CpuId, CpuSet};
///
/// const FORGETS: Without = Without::new(&CacheLocal, Rule::Recent);
/// let back_after_a_pause = |ids: Ids<_>| {
///     let all: CpuSet = [CpuId(0), CpuId(1)].into_iter().collect();
///     let (mut a, mut b) = (ids.add_user(0, &all), ids.add_user(1, &all));
///     for (cpu, user) in [(CpuId(0), &mut a), (CpuId(1), &mut b)] {
///         ids.enter_unguarded(cpu, user);
///         ids.leave_unguarded(user);
///     }
///     (ids.compact(), ids.compact()); // the pause
///     ids.enter_unguarded(CpuId(1), &mut b).map(|cid| cid.0)
/// };
/// assert_eq!(back_after_a_pause(Ids::new(pcpu_cids(2), 0, &CacheLocal)), Some(1));
/// assert_eq!(back_after_a_pause(Ids::new(pcpu_cids(2), 0, &FORGETS)), Some(0));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Without {
    policy: &'static dyn Policy,
    rule: Rule,
}

impl Without {
    /// Makes the policy without the rule.
    pub const fn new(policy: &'static dyn Policy, rule: Rule) -> Self {
        Self { policy, rule }
    }

    fn lacks(&self, rule: Rule) -> bool {
        self.rule == rule
    }
}

impl Policy for Without {
    fn name(&self) -> &'static str {
        match self.rule {
            Rule::Keep => "without-keep",
            Rule::Expire => "without-expire",
            Rule::Recent => "without-recent",
            Rule::Expand => "without-expand",
            Rule::Follow => "without-follow",
            Rule::Bound => "without-bound",
        }
    }

    fn keeps(&self) -> bool {
        !self.lacks(Rule::Keep) && self.policy.keeps()
    }

    fn expires(&self) -> bool {
        !self.lacks(Rule::Expire) && self.policy.expires()
    }

    fn retakes(&self) -> bool {
        // Only an id that stayed on its CPU can be retaken.
        !self.lacks(Rule::Recent) && self.keeps() && self.policy.retakes()
    }

    fn end(&self, facts: &Facts) -> u32 {
        self.policy.end(facts)
    }

    fn bound(&self, facts: &Facts) -> u32 {
        if self.lacks(Rule::Bound) { facts.cpus } else { self.policy.bound(facts) }
    }

    fn pick(&self, facts: &Facts, recent: Option<Cid>, used: &Used) -> Option<Pick> {
        let max_nr_cid = if self.lacks(Rule::Expand) { facts.bound() } else { facts.max_nr_cid };
        let recent = recent.filter(|_| !self.lacks(Rule::Recent));
        self.policy.pick(&Facts { max_nr_cid, ..*facts }, recent, used)
    }

    fn left_behind(&self, facts: &Facts, own_cpus_allowed: u32, to: Destination) -> LeftBehind {
        match self.policy.left_behind(facts, own_cpus_allowed, to) {
            LeftBehind::Follows if self.lacks(Rule::Follow) => LeftBehind::Freed,
            left => left,
        }
    }
}
