//! PcpuCid: what one CPU has of one tenant: an id, and whether somebody runs on it.
//!
//! Model.   Two words. `state` is empty, kept, old (kept, and not used since the last
//!          compaction) or held, and by whom. `cid_word` is the id, and two flags that send the
//!          holder's leave to the slow path. Entering is one compare-and-swap, kept → held;
//!          leaving one store, held → kept. Empty pcpu_cids are claimed likewise, before there is an id for
//!          them; everything else is done under the tenant's lock.
//! Number.  8 bytes. The pcpu_cids of 512 tenants on one CPU share a page and, 8 by 8, lines that
//!          compaction aside only this CPU writes, so they need no padding: 3 KiB for a tenant that used all 384 CPUs.
//! Writers. `state`: the holder, with a store, from held; whoever enters, by CAS, from kept, old or
//!          empty; the lock's holder, by CAS. `cid_word`: the lock's holder.

use crate::sync::{AtomicU32, Ordering::*};
use warmcore_types::{Cid, CpuId};

/// One CPU's share of one tenant's state. All zeros is the pcpu_cid of a CPU that the tenant never
/// ran on.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C)]
pub struct PcpuCid {
    state: AtomicU32,
    cid_word: AtomicU32,
}

/// What a pcpu_cid's state word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody's; `cid_word` may still name the id that was there last.
    Empty,
    /// It has an id that nobody runs on.
    Cached,
    /// The same, and the last compaction has seen it so already.
    Stale,
    /// Somebody runs on it.
    InUse(Token),
}

const EMPTY: u32 = 0;
const CACHED: u32 = 1;
const STALE: u32 = 2;
const IN_USE: u32 = 3;

/// Who holds a pcpu_cid: the state word that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(u32);

impl Token {
    /// Panics beyond what a state word can say.
    pub(crate) fn new(number: u32) -> Self {
        Self(
            number
                .checked_add(IN_USE)
                .unwrap_or_else(|| panic!("token {number}, and they end at {}", u32::MAX - IN_USE)),
        )
    }
}

/// `cid_word`, as one number: 0 if the pcpu_cid never had an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CidWord(u32);

impl CidWord {
    /// The holder must give the id back when it leaves.
    const ASKED: u32 = 1;
    /// The holder entered more than once, and leaves as often.
    const NESTED: u32 = 2;
    const HAS_ID: u32 = 4;
    const ID_SHIFT: u32 = 8;

    pub(crate) fn of(cid: Cid) -> Self {
        Self(cid.0 << Self::ID_SHIFT | Self::HAS_ID)
    }

    /// The id, if there was ever one.
    #[inline(always)]
    pub(crate) fn cid(self) -> Option<Cid> {
        (self.0 & Self::HAS_ID != 0).then_some(Cid(self.0 >> Self::ID_SHIFT))
    }

    /// The id of a pcpu_cid that has one.
    #[inline(always)]
    pub(crate) fn assigned_cid(self) -> Cid {
        Cid(self.0 >> Self::ID_SHIFT)
    }

    pub(crate) fn is_asked(self) -> bool {
        self.0 & Self::ASKED != 0
    }

    pub(crate) fn asked(self) -> Self {
        Self(self.0 | Self::ASKED)
    }

    /// The id alone: what a pcpu_cid without one remembers.
    pub(crate) fn recent(self) -> Self {
        Self(self.0 & !(Self::ASKED | Self::NESTED))
    }

    /// No longer asked for.
    pub(crate) fn kept(self) -> Self {
        Self(self.0 & !Self::ASKED)
    }

    pub(crate) fn nested(self, nested: bool) -> Self {
        if nested { Self(self.0 | Self::NESTED) } else { Self(self.0 & !Self::NESTED) }
    }
}

/// Ids have 24 bits in a pcpu_cid.
pub(crate) const CID_END: u32 = 1 << (u32::BITS - CidWord::ID_SHIFT);

impl PcpuCid {
    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        match self.state.load(Relaxed) {
            EMPTY => State::Empty,
            CACHED => State::Cached,
            STALE => State::Stale,
            held => State::InUse(Token(held)),
        }
    }

    #[inline(always)]
    pub(crate) fn cid_word(&self) -> CidWord {
        CidWord(self.cid_word.load(Relaxed))
    }

    /// Under the lock.
    pub(crate) fn set_cid_word(&self, cid_word: CidWord) {
        self.cid_word.store(cid_word.0, Relaxed);
    }

    /// Kept → held. False: it was not kept, or only just became old.
    #[inline(always)]
    pub(crate) fn enter(&self, token: Token) -> bool {
        // ORDERING: Acquire; pairs with the Release in `leave`: what the last holder
        // wrote to the id's slot is there. Loom: `ids/loom.rs::two_threads_on_one_cpu`.
        self.state.compare_exchange(CACHED, token.0, Acquire, Relaxed).is_ok()
    }

    /// Old → held.
    pub(crate) fn enter_stale(&self, token: Token) -> bool {
        // ORDERING: Acquire; as in `enter`.
        self.state.compare_exchange(STALE, token.0, Acquire, Relaxed).is_ok()
    }

    /// Held → kept, by the holder. Nobody else writes the word of a held pcpu_cid.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        // ORDERING: Release; pairs with the Acquire in `enter`, `enter_stale` and `take`: who has
        // the id next sees what we wrote to its slot, or what the lock that we hold told us.
        self.state.store(CACHED, Release);
    }

    /// Empty → held, before there is an id. False: somebody else was first.
    pub(crate) fn claim(&self, token: Token) -> bool {
        // ORDERING: Relaxed; what an id's last holder wrote comes with the id, not with the pcpu_cid.
        self.state.compare_exchange(EMPTY, token.0, Relaxed, Relaxed).is_ok()
    }

    /// Held → empty, by the holder.
    pub(crate) fn vacate(&self) {
        self.state.store(EMPTY, Relaxed);
    }

    /// Kept or old → empty, under the lock. False: somebody entered meanwhile.
    pub(crate) fn take(&self) -> bool {
        // An old pcpu_cid becomes kept again by a visit; a kept one becomes old only under the lock.
        // So in this order, no pcpu_cid that is empty of people is missed.
        self.take_from(STALE) || self.take_from(CACHED)
    }

    /// Old → empty, under the lock. False: somebody entered since it was old.
    pub(crate) fn take_stale(&self) -> bool {
        self.take_from(STALE)
    }

    fn take_from(&self, state: u32) -> bool {
        // ORDERING: Acquire; pairs with the Release in `leave`: the lock that we hold hands on to
        // the id's next holder what its last one wrote. Loom: `ids/loom.rs::enter_against_compaction`.
        self.state.compare_exchange(state, EMPTY, Acquire, Relaxed).is_ok()
    }

    /// Kept → old, under the lock. Nothing if somebody entered meanwhile.
    pub(crate) fn mark_stale(&self) {
        // ORDERING: Relaxed; a read-modify-write, so `enter_stale` still pairs with the `leave`
        // before it.
        let _ = self.state.compare_exchange(CACHED, STALE, Relaxed, Relaxed);
    }
}

/// Where a tenant's pcpu_cids are: one per CPU number.
pub trait PcpuCids {
    /// How many CPU numbers there are: at most 8192 on Linux.
    fn cpus(&self) -> u32;

    /// The pcpu_cid of this CPU. Panics if its number is not below `cpus()`.
    fn pcpu_cid(&self, cpu: CpuId) -> &PcpuCid;
}

/// PcpuCids side by side, for hosts with one thread and for tests: CPUs share lines.
impl PcpuCids for Box<[PcpuCid]> {
    fn cpus(&self) -> u32 {
        self.len() as u32
    }

    #[inline]
    fn pcpu_cid(&self, cpu: CpuId) -> &PcpuCid {
        &self[cpu.index()]
    }
}

/// PcpuCids for `cpus` CPU numbers, in one piece.
pub fn pcpu_cids(cpus: u32) -> Box<[PcpuCid]> {
    (0..cpus).map(|_| PcpuCid::default()).collect()
}
