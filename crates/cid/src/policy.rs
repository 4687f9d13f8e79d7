//! Policy: which id a CPU gets when it keeps none, and what becomes of an id that was left behind.
//!
//! Model.   Facts in, a choice out. A policy sees the tenant's numbers and which ids are free; it
//!          changes nothing. What all of them share (a kept id is used again, an id belongs to
//!          one pcpu_cid, compaction takes nothing in use) is in `ids`, not here.
//! Number.  Three policies: what Linux did in 6.3, in 6.4, and in 6.13 with the bound that came in 6.14.
//! Source.  Linux `kernel/sched/sched.h` and `core.c`, `mm_cid_get` and `sched_mm_cid_migrate_to` of those versions.
//!          Before 6.13 a process has no set of allowed CPUs: what is below `nr_cpu_ids` may be picked there, and a move
//!          looks at the mask of the task that moves.

mod cache_local;
mod kept_per_cpu;
mod lowest;
mod without;

pub use cache_local::CacheLocal;
pub use kept_per_cpu::KeptPerCpu;
pub use lowest::Lowest;
pub use without::{Rule, Without};

use crate::bits::SharedBits;
use std::fmt;
use warmcore_types::Cid;

/// What a policy knows of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Tasks, or threads, that belong to it.
    pub users: u32,
    /// On how many CPUs any of them was ever allowed.
    pub nr_cpus_allowed: u32,
    /// How many ids were handed out by expanding; falls with [`Facts::bound`].
    pub max_nr_cid: u32,
    /// Ids that pcpu_cids hold now.
    pub in_use: u32,
    /// How many CPU numbers the machine has.
    pub cpus: u32,
}

impl Facts {
    /// So many can run at once: `min(nr_cpus_allowed, users)`.
    pub fn bound(&self) -> u32 {
        self.nr_cpus_allowed.min(self.users)
    }
}

/// Which ids are in use.
#[derive(Debug)]
pub struct Used<'a>(pub(crate) &'a SharedBits);

impl Used<'_> {
    /// Whether an id is nobody's.
    pub fn is_free(&self, cid: Cid) -> bool {
        !self.0.contains(cid.0)
    }

    /// The lowest id that is nobody's, if it is below `end`.
    pub fn lowest_free(&self, end: u32) -> Option<Cid> {
        self.0.lowest_gap(end).map(Cid)
    }
}

/// A choice, and by which rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// The id that this CPU used last.
    Recent(Cid),
    /// One that was not handed out since the bound was last as low.
    New(Cid),
    /// The lowest free one.
    Lowest(Cid),
}

impl Pick {
    /// The id.
    pub fn cid(self) -> Cid {
        let (Pick::Recent(cid) | Pick::New(cid) | Pick::Lowest(cid)) = self;
        cid
    }
}

/// What a task finds on the CPU that it moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// That CPU has an id now, in use or not.
    pub has_id: bool,
    /// That CPU remembers one.
    pub has_recent: bool,
}

/// What becomes of the id that a task left behind on the CPU that it moved from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftBehind {
    /// It stays there.
    Stays,
    /// It comes along.
    Follows,
    /// It is free again.
    Freed,
}

/// The rules in which the policies differ.
///
/// Only those here implement it: they are asked under a tenant's lock, in the middle of an entry, so
/// that none may panic, nor come back to the tenant. [`Without`] takes a rule away from one of them.
///
/// ```compile_fail,E0277
/// #[derive(Debug)]
/// struct Mine;
/// impl warmcore_cid::Policy for Mine {
///     fn name(&self) -> &'static str { "mine" }
///     fn pick(
///         &self,
///         _: &warmcore_cid::policy::Facts,
///         _: Option<warmcore_types::Cid>,
///         _: &warmcore_cid::policy::Used,
///     ) -> Option<warmcore_cid::policy::Pick> { None }
///     fn left_behind(
///         &self,
///         _: &warmcore_cid::policy::Facts,
///         _: u32,
///         _: warmcore_cid::policy::Destination,
///     ) -> warmcore_cid::policy::LeftBehind { warmcore_cid::policy::LeftBehind::Stays }
/// }
/// ```
pub trait Policy: fmt::Debug + Send + Sync + sealed::Sealed {
    /// As one writes it: `cache-local`.
    fn name(&self) -> &'static str;

    /// Whether whoever leaves keeps the id there for the next.
    fn keeps(&self) -> bool {
        true
    }

    /// Whether an id that nobody used between two compactions is taken back.
    fn expires(&self) -> bool {
        true
    }

    /// Whether a CPU's recent id, if it is free and below [`Facts::bound`], is its again without a
    /// question: then whoever comes back after a pause takes no lock.
    fn retakes(&self) -> bool {
        false
    }

    /// Every id that it picks is below this, if there is one to be had. No pcpu_cid without an id finds them all in use:
    /// every CPU that has one counts as allowed. So it matters only while an id is in no pcpu_cid yet.
    fn end(&self, facts: &Facts) -> u32 {
        facts.nr_cpus_allowed
    }

    /// Ids at or above this one are taken back by a compaction, as soon as nobody runs on them.
    fn bound(&self, facts: &Facts) -> u32 {
        facts.bound()
    }

    /// An id for a pcpu_cid without one, which used `recent` last. What it says may be taken by somebody
    /// else meanwhile; then it is asked again. None: there is none, and whoever
    /// enters gets an overflow id.
    fn pick(&self, facts: &Facts, recent: Option<Cid>, used: &Used) -> Option<Pick>;

    /// What becomes of the id that a task left behind when it moved. `own_cpus_allowed`: on how many CPUs that task
    /// itself may run.
    fn left_behind(&self, facts: &Facts, own_cpus_allowed: u32, to: Destination) -> LeftBehind;
}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Lowest {}
    impl Sealed for super::KeptPerCpu {}
    impl Sealed for super::CacheLocal {}
    impl Sealed for super::Without {}
}

/// All policies, in the order in which Linux had them.
pub const ALL: [&dyn Policy; 3] = [&Lowest, &KeptPerCpu, &CacheLocal];
