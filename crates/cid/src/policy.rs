//! Policies: which id a CPU gets when it has none, and what becomes of an id that its user left behind.
//!
//! A policy gets facts and returns a choice. It sees the tenant's numbers and which ids are free, and changes
//! nothing. The rules that all policies share are in the module `ids`: a cached id is used again, an id belongs
//! to one CPU, compaction takes no id in use.
//!
//! There are three policies: those of Linux 6.3, of 6.4, and of 6.13 with the bound of 6.14.
//!
//! # Source
//! Linux `kernel/sched/sched.h` and `core.c`, `mm_cid_get` and `sched_mm_cid_migrate_to` of those versions. Before 6.13
//! a process has no set of allowed CPUs: any id below `nr_cpu_ids` may be picked there, and a move compares with the
//! mask of the task that moves.

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

/// The numbers of a tenant that a policy gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The number of tasks, or threads, that belong to the tenant.
    pub users: u32,
    /// The number of CPUs on which any of them was ever allowed or entered, or that `Ids::allow` added.
    pub nr_cpus_allowed: u32,
    /// One more than the highest id that was allocated as [`Pick::New`]; 0 if none was. Lowered to [`Facts::bound`]
    /// after the bound fell.
    pub max_nr_cid: u32,
    /// The number of ids that CPUs have now.
    pub in_use: u32,
    /// How many CPU numbers the machine has.
    pub cpus: u32,
}

impl Facts {
    /// How many users can run at once: `min(nr_cpus_allowed, users)`.
    pub fn bound(&self) -> u32 {
        self.nr_cpus_allowed.min(self.users)
    }
}

/// Which ids CPUs have, whether a user holds them or not.
#[derive(Debug)]
pub struct Used<'a>(pub(crate) &'a SharedBits);

impl Used<'_> {
    /// Whether no CPU has this id.
    pub fn is_free(&self, cid: Cid) -> bool {
        !self.0.contains(cid.0)
    }

    /// The lowest free id, if it is below `end`.
    pub fn lowest_free(&self, end: u32) -> Option<Cid> {
        self.0.lowest_gap(end).map(Cid)
    }
}

/// The id that a policy chose, and the rule that chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// The id that this CPU used last.
    Recent(Cid),
    /// A free id at or above [`Facts::max_nr_cid`]. The count then becomes one more than this id.
    New(Cid),
    /// The lowest free id.
    Lowest(Cid),
}

impl Pick {
    /// The id.
    pub fn cid(self) -> Cid {
        let (Pick::Recent(cid) | Pick::New(cid) | Pick::Lowest(cid)) = self;
        cid
    }
}

/// The state of the CPU to which a user moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The CPU has an id now, in use or not.
    pub has_id: bool,
    /// The CPU remembers an id: the one that it has, or the one that it had last.
    pub has_recent: bool,
}

/// What becomes of the id that a user left behind on the CPU that it moved from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftBehind {
    /// The id stays on the CPU.
    Stays,
    /// The id goes to the user's new CPU, or becomes free if that CPU gets another id at the same moment.
    Follows,
    /// The id becomes free, and the CPU that had it forgets it.
    Freed,
}

/// The rules in which the policies differ.
///
/// The trait is sealed: its methods run under a tenant's lock, in the middle of an entry or a compaction, and must
/// neither panic nor call the tenant. [`Without`] is a policy that lacks one rule of another policy.
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
    /// The name in reports: `cache-local`.
    fn name(&self) -> &'static str;

    /// Whether an id stays on its CPU when the user leaves, unless it was recalled (a compaction wants it back).
    fn keeps(&self) -> bool {
        true
    }

    /// Whether an id that was not used between two compactions is taken back.
    fn expires(&self) -> bool {
        true
    }

    /// Whether a user that comes back to the CPU where it was last takes the id that it had there without a call of
    /// [`pick`](Policy::pick) and without a lock, if that id is free and below [`Facts::bound`], and the CPU has had no
    /// other since.
    fn retakes(&self) -> bool {
        false
    }

    /// Every id that [`pick`](Policy::pick) returns is below this. When a CPU without an id needs one, not all
    /// ids below this are in use: each CPU that has an id counts as allowed, and so does this CPU, so fewer CPUs
    /// have an id than there are ids.
    fn end(&self, facts: &Facts) -> u32 {
        facts.nr_cpus_allowed
    }

    /// A compaction takes back ids at or above this one, as soon as no user holds them.
    fn bound(&self, facts: &Facts) -> u32 {
        facts.bound()
    }

    /// Chooses an id for a CPU that has none and remembers `recent`, if it remembers one. If another thread takes the
    /// chosen id first, the method is called again. `None` means that no id below [`end`](Policy::end) is free; then
    /// the user that enters gets an overflow id, if one is free.
    fn pick(&self, facts: &Facts, recent: Option<Cid>, used: &Used) -> Option<Pick>;

    /// Decides what becomes of the id that a user left behind when it moved. `own_cpus_allowed`: on how many CPUs that
    /// user itself may run.
    fn left_behind(&self, facts: &Facts, own_cpus_allowed: u32, to: Destination) -> LeftBehind;
}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Lowest {}
    impl Sealed for super::KeptPerCpu {}
    impl Sealed for super::CacheLocal {}
    impl Sealed for super::Without {}
}

/// The three policies of Linux, in the order of its versions.
pub const ALL: [&dyn Policy; 3] = [&Lowest, &KeptPerCpu, &CacheLocal];
