//! `PcpuCid`: the state of one tenant on one CPU: the CPU's id, and whether a user holds it.
//!
//! It is two words. `state` is empty, cached, stale (cached, and not used since the last compaction) or in use,
//! and then names the user. `cid_word` is the id, whether there is one, and two flags that send the holder's leave to
//! the slow path. Entering is one compare-and-swap, cached or stale → in use; leaving is one store, in use → cached.
//! An empty `PcpuCid` is claimed by a compare-and-swap too, before there is an id for it; if there is none, its holder
//! empties it with a store. Every other change is made under the tenant's lock.
//!
//! # Cost
//! 8 bytes. In a tenant's slots (crate `percpu`) the `PcpuCid`s of 512 tenants on one CPU share a page, and those of 8
//! tenants a cache line. Other CPUs write these lines only in compactions and moves, so they need no padding: 3 KiB
//! for a tenant that used all of 384 CPUs.
//!
//! # Writers
//! `state`: the holder, with a store, from in use; an entering thread, by compare-and-swap, from cached, stale or
//! empty; the holder of the tenant's lock, by compare-and-swap. `cid_word`: the holder of the lock.

use crate::sync::{AtomicU32, Ordering::*};
use warmcore_types::{Cid, CpuId};

/// The state of one tenant on one CPU. All zeros is the state of a CPU that has no id and remembers none, as before the
/// tenant runs there.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C)]
pub struct PcpuCid {
    state: AtomicU32,
    cid_word: AtomicU32,
}

/// The decoded state word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The CPU has no id. `cid_word` may still name its last id.
    Empty,
    /// The CPU has an id that no user holds.
    Cached,
    /// As `Cached`, and no user entered since the last compaction.
    Stale,
    /// A user holds the `PcpuCid`, and its id if it already has one.
    InUse(Token),
}

const EMPTY: u32 = 0;
const CACHED: u32 = 1;
const STALE: u32 = 2;
const IN_USE: u32 = 3;

/// The value of `state` that names the user that holds the `PcpuCid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(u32);

impl Token {
    /// Panics if the number does not fit in a state word.
    pub(crate) fn new(number: u32) -> Self {
        Self(
            number
                .checked_add(IN_USE)
                .unwrap_or_else(|| panic!("token {number}, and they end at {}", u32::MAX - IN_USE)),
        )
    }
}

/// The value of `cid_word`: 0 if the CPU never had an id, or forgot it after a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CidWord(u32);

impl CidWord {
    /// The holder must give the id back when it leaves.
    const RECALLED: u32 = 1;
    /// The holder entered more than once and must leave as often, or `Ids::make_leave_slow` was called.
    const NESTED: u32 = 2;
    const HAS_ID: u32 = 4;
    const ID_SHIFT: u32 = 8;

    pub(crate) fn of(cid: Cid) -> Self {
        Self(cid.0 << Self::ID_SHIFT | Self::HAS_ID)
    }

    /// The id that the CPU has, or the last one if the state is empty. `None` if it never had one or forgot it.
    #[inline(always)]
    pub(crate) fn cid(self) -> Option<Cid> {
        (self.0 & Self::HAS_ID != 0).then_some(Cid(self.0 >> Self::ID_SHIFT))
    }

    /// The id, where the state is not empty.
    #[inline(always)]
    pub(crate) fn assigned_cid(self) -> Cid {
        Cid(self.0 >> Self::ID_SHIFT)
    }

    pub(crate) fn is_recalled(self) -> bool {
        self.0 & Self::RECALLED != 0
    }

    pub(crate) fn with_recall(self) -> Self {
        Self(self.0 | Self::RECALLED)
    }

    /// The id without flags: what an empty `PcpuCid` remembers.
    pub(crate) fn recent(self) -> Self {
        Self(self.0 & !(Self::RECALLED | Self::NESTED))
    }

    pub(crate) fn without_recall(self) -> Self {
        Self(self.0 & !Self::RECALLED)
    }

    pub(crate) fn nested(self, nested: bool) -> Self {
        if nested { Self(self.0 | Self::NESTED) } else { Self(self.0 & !Self::NESTED) }
    }
}

/// Ids have 24 bits in a `cid_word`.
pub(crate) const CID_END: u32 = 1 << (u32::BITS - CidWord::ID_SHIFT);

impl PcpuCid {
    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        match self.state.load(Relaxed) {
            EMPTY => State::Empty,
            CACHED => State::Cached,
            STALE => State::Stale,
            holder => State::InUse(Token(holder)),
        }
    }

    #[inline(always)]
    pub(crate) fn cid_word(&self) -> CidWord {
        CidWord(self.cid_word.load(Relaxed))
    }

    /// Stores the word. Called under the lock.
    pub(crate) fn set_cid_word(&self, cid_word: CidWord) {
        self.cid_word.store(cid_word.0, Relaxed);
    }

    /// Cached → in use. Returns false in any other state, also stale.
    #[inline(always)]
    pub(crate) fn enter(&self, token: Token) -> bool {
        // ORDERING: Acquire; pairs with the Release in `leave`: what the last holder wrote to the id's slot is visible.
        // Loom: `ids/loom.rs::two_threads_on_one_cpu`.
        self.state.compare_exchange(CACHED, token.0, Acquire, Relaxed).is_ok()
    }

    /// Stale → in use.
    pub(crate) fn enter_stale(&self, token: Token) -> bool {
        // ORDERING: Acquire; as in `enter`.
        self.state.compare_exchange(STALE, token.0, Acquire, Relaxed).is_ok()
    }

    /// In use → cached, by the holder. No other thread writes the state word while it is in use.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        // ORDERING: Release; pairs with the Acquire in `enter`, `enter_stale` and `take_from`: the next holder of the
        // id sees what this one wrote to its slot, and what was written under the lock if this thread holds it.
        self.state.store(CACHED, Release);
    }

    /// Empty → in use, before there is an id. Returns false in any other state.
    pub(crate) fn claim(&self, token: Token) -> bool {
        // ORDERING: Relaxed; what an id's last holder wrote becomes visible with the id, not with the state word.
        self.state.compare_exchange(EMPTY, token.0, Relaxed, Relaxed).is_ok()
    }

    /// In use → empty, by the holder.
    pub(crate) fn vacate(&self) {
        self.state.store(EMPTY, Relaxed);
    }

    /// Cached or stale → empty, under the lock. Returns false in any other state, so also if a user entered in between.
    pub(crate) fn take(&self) -> bool {
        // An entry and a leave turn stale into cached; cached becomes stale only under the lock, which the caller
        // holds. So with this order of the two attempts, no id is missed that is unused during the whole call.
        self.take_from(STALE) || self.take_from(CACHED)
    }

    /// Stale → empty, under the lock. Returns false in any other state, so also if a user entered since the last
    /// compaction.
    pub(crate) fn take_stale(&self) -> bool {
        self.take_from(STALE)
    }

    fn take_from(&self, state: u32) -> bool {
        // ORDERING: Acquire; pairs with the Release in `leave`: the lock, which the caller holds, passes on what the
        // last holder of the id wrote to the next one. Loom: `ids/loom.rs::enter_against_compaction`.
        self.state.compare_exchange(state, EMPTY, Acquire, Relaxed).is_ok()
    }

    /// Cached → stale, under the lock. Does nothing in any other state.
    pub(crate) fn mark_stale(&self) {
        // ORDERING: Relaxed; a read-modify-write, so `enter_stale` still pairs with the `leave` before it.
        let _ = self.state.compare_exchange(CACHED, STALE, Relaxed, Relaxed);
    }
}

/// Where a tenant's [`PcpuCid`]s are: one per CPU number.
pub trait PcpuCids {
    /// How many CPU numbers there are: at most 8192 on Linux.
    fn cpus(&self) -> u32;

    /// Returns the `PcpuCid` of this CPU. Panics if the CPU's number is not below `cpus()`.
    fn pcpu_cid(&self, cpu: CpuId) -> &PcpuCid;
}

/// `PcpuCid`s side by side in memory, so that those of several CPUs share a line. For simulators and tests, where the
/// cost of such sharing does not matter.
impl PcpuCids for Box<[PcpuCid]> {
    fn cpus(&self) -> u32 {
        self.len() as u32
    }

    #[inline]
    fn pcpu_cid(&self, cpu: CpuId) -> &PcpuCid {
        &self[cpu.index()]
    }
}

/// Makes the `PcpuCid`s of `cpus` CPU numbers, in one allocation.
pub fn pcpu_cids(cpus: u32) -> Box<[PcpuCid]> {
    (0..cpus).map(|_| PcpuCid::default()).collect()
}
