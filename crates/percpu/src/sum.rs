//! Sum: one number with a slot per concurrency id.
//!
//! Every slot holds two words, bank 0 and bank 1. `active` is the address of slot 0's word of the bank in use; a
//! section loads it and adds to its own slot of that bank. For an exact read, the reader switches `active` to the
//! other bank and issues one fence. After it the old bank is frozen: sections that were in progress have committed
//! or were aborted, and when they are tried again they load the new address. Threads that cannot run sections add
//! to `direct`, under the lock of `state`.
//!
//! A sum starts without slots, so that it can be a constant: `active` is null. The first add, under the lock,
//! reserves the slots and stores their address.
//!
//! # Protocol
//!
//! The store to `active` separates the adds that a snapshot includes from the others. The reader sums the new bank
//! before the store, when no section adds to it, and the old bank after the fence. So it includes every add that
//! returned before the store. If add x happened before add y and x loaded the new address, then y did too: of two
//! ordered loads of one location the later one never returns the older value. So a snapshot that includes y also
//! includes x. Together with the lock on `direct`, the snapshot is one moment inside the call.
//!
//! With locked instructions a bank cannot be frozen, because a thread may be preempted between its load of `active`
//! and its add. There a snapshot sets `active` to null: new adds block at the lock, and late adds are harmless, as
//! [`Sum::add_at`] explains.
//!
//! # Cost
//!
//! On the `rseq` backend an add, once it has the address of the thread's rseq area, is 2 stores and 4 loads: one store
//! and one load in the area, one of each in the CPU's slot, and two loads of the read-mostly `active`. A snapshot is
//! one fence and two loads per slot. A drain has the loads and no fence.
//!
//! Writers. `active`: the first add and snapshots, under `state`. `words`: the first add, under `state`. `early`: adds
//! during a set-up. Words: sections of the slot's CPU, or locked adds of any thread; they are never reset. `state`:
//! under its lock.

use crate::set_up::set_up;
use crate::sync::{AtomicPtr, Mutex, Ordering::*, seq_cst};
use crate::words::Words;
#[cfg(not(loom))]
use crate::{
    backend::{backend, locks},
    pool::{Pool, SHIFT},
    set_up::is_setting_up,
    words::{probable_slot, registered_area},
};
use std::sync::OnceLock;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use warmcore_line::{Line, Padded};
#[cfg(not(loom))]
use warmcore_sys::{
    membarrier,
    rseq::{PercpuMode, RseqArea, section},
};
use warmcore_types::ignore_poison;

/// How often the slow path tries an aborted section before it adds without one. A debugger that single-steps
/// aborts each try.
#[cfg(not(loom))]
pub(crate) const RETRIES: u32 = 16;

/// The two words of a slot.
const BANKS: usize = 2;

#[derive(Debug, Line)]
#[line(pair)]
#[repr(C, align(128))]
pub(crate) struct Sum {
    /// Slot 0's word of the bank in use. Null: an add must take the lock. It is null before the first add, and on the
    /// `atomic` and `plain` backends during a snapshot.
    #[line(read_mostly)]
    active: AtomicPtr<u8>,
    /// Empty before the first add.
    #[line(read_mostly)]
    words: OnceLock<Words>,
    /// The sum of adds that came before the slots, while a set-up was in progress; see `set_up`. A global allocator
    /// makes such adds. An add that begins when there are slots does not change it.
    #[cfg(not(loom))]
    #[line(read_mostly)]
    early: AtomicU64,
    #[line(contended)]
    state: Padded<Mutex<SumState>>,
}

/// The part of a sum that is not in slots.
#[derive(Debug, Default)]
struct SumState {
    /// The sum of adds without a slot, except those in `early`.
    direct: u64,
    /// The part of all adds that drains have returned.
    drained: u64,
}

#[cfg(not(loom))]
impl Sum {
    pub(crate) const fn new() -> Self {
        Self {
            active: AtomicPtr::new(std::ptr::null_mut()),
            words: OnceLock::new(),
            early: AtomicU64::new(0),
            state: Padded::new(Mutex::new(SumState { direct: 0, drained: 0 })),
        }
    }

    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        // The area is read before any branch, so that the compiler may hoist the read out of a loop.
        if let Some(area) = RseqArea::current(PercpuMode::Cid) {
            // Null before the first add: one branch, predicted after it. The section loads `active` again,
            // which on `rseq` never becomes null again.
            // SAFETY: `active` is slot 0's word of one bank, and the block has that word for
            // every id that the kernel may use. Only sections write a bank.
            if !self.active.load(Relaxed).is_null() && unsafe { section::add::<SHIFT>(area, &self.active, n) }
            {
                return;
            }
        } else if locks() {
            return self.add_locked(n);
        }
        self.add_slow(n);
    }

    /// Not inlined: otherwise `add` would save registers for both paths.
    #[inline(never)]
    fn add_locked(&self, n: u64) {
        self.add_to(probable_slot, n);
    }

    /// The slow path of `add`: the first add, an aborted section, or a thread without an area. It also runs if
    /// `add` called `locks` just before another thread's first add chose the backend.
    #[cold]
    fn add_slow(&self, n: u64) {
        // ORDERING: Acquire; pairs with the Release in `bind`: the backend was chosen before it, so
        // `locks` knows it now.
        if self.active.load(Acquire).is_null() {
            return self.add_directly(n);
        }
        if locks() {
            return self.add_locked(n);
        }
        // SAFETY: as in `add`.
        let tried = |area| (0..RETRIES).any(|_| unsafe { section::add::<SHIFT>(area, &self.active, n) });
        if !registered_area(PercpuMode::Cid).is_some_and(tried) {
            self.add_directly(n);
        }
    }

    /// Reserves the slots: a word of each bank for every id.
    fn words() -> Words {
        // The backend is chosen before any slot exists, because it decides whether sections or locked
        // instructions write the slots.
        backend();
        Words::new(Pool::of(PercpuMode::Cid), BANKS)
    }

    /// Adds to `early` if the sum has no slots and a set-up is in progress, and returns whether it did. During a set-up
    /// this add must not take a lock of this crate, since the set-up may hold it and wait for this add.
    ///
    /// A reader that finds no slots reads this word and `direct`, whose lock it holds: one moment. A reader that finds
    /// slots includes all adds that returned before it began, because this word only grows.
    fn add_early(&self, n: u64) -> bool {
        let is_early = self.words.get().is_none() && is_setting_up();
        if is_early {
            // ORDERING: Release; pairs with the Acquire in `direct`.
            self.early.fetch_add(n, Release);
        }
        is_early
    }

    /// Returns the sum of all adds without a slot.
    fn direct(&self, state: &SumState) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `add_early`: adds that happened before an included add are
        // included.
        state.direct.wrapping_add(self.early.load(Acquire))
    }

    /// Returns the sum of all adds ever made, also those that were drained, at one moment.
    fn exact(&self, state: &SumState) -> u64 {
        let Some(words) = self.words.get() else { return self.direct(state) };
        if locks() {
            return self.exact_with_locked_adds(words, state);
        }
        let [first, second] = [words.base(), words.base().wrapping_add(8)];
        let active = self.active.load(Relaxed);
        let (frozen, live, other) = if active == first { (1, 0, second) } else { (0, 1, first) };
        // This bank is frozen since the last fence, or was never in use. Read it before it is in use again.
        let settled = self.bank(frozen);
        // ORDERING: Release; pairs with the load of `active` inside each section, on which the section's address
        // depends: the reads of `settled` come before every later add to that bank.
        // Model: none, since loom has no sections.
        // `sys::rseq::tests::after_a_fence_no_section_commits_to_the_old_slots` tests the fence, and
        // `section/aarch64/reactivate.litmus` the ordering.
        self.active.store(other, Release);
        membarrier::fence_rseq();
        self.direct(state).wrapping_add(settled).wrapping_add(self.bank(live))
    }
}

#[cfg(loom)]
impl Sum {
    /// A model uses two slots.
    fn words() -> Words {
        Words::for_model(2, BANKS)
    }

    /// A model has no allocator, so no add comes during a set-up.
    fn add_early(&self, _: u64) -> bool {
        false
    }

    fn direct(&self, state: &SumState) -> u64 {
        state.direct
    }
}

impl Sum {
    /// The add of the `atomic` and `plain` backends. It is SeqCst, so that a late add is harmless.
    ///
    /// A reader stores null to `active` and then reads the words. Assume that add x is late: it loaded `active` before
    /// the null and added after the reader had read its word, so the reader misses x. Then the reader must also miss
    /// every add y that happens after x. The single order of SeqCst operations has the store of null, the read of x's
    /// word, x's add, and y's load of `active`, in this order. So y's load returns null or a value that was stored
    /// after the reader had finished; y blocks at the lock and adds after the reader's call. With a weaker ordering y
    /// might still load the old address.
    /// Model: `sum/loom.rs::a_snapshot_is_one_moment`.
    #[inline(always)]
    fn add_at(&self, words: &Words, slot: usize, n: u64) {
        // ORDERING: SeqCst; pairs with the store of null in `exact_with_locked_adds`.
        let base = self.active.load(SeqCst);
        if base.is_null() {
            return self.add_directly(n);
        }
        // SAFETY: not null, `active` is the first word of slot 0; the slot exists.
        // ORDERING: SeqCst; pairs with the loads in `exact_with_locked_adds`.
        unsafe { words.word_from(base, slot) }.fetch_add(n, SeqCst);
        seq_cst();
    }

    /// The add of the `atomic` and `plain` backends; `slot` chooses a slot, given their number.
    #[inline(always)]
    fn add_to(&self, slot: impl FnOnce(usize) -> usize, n: u64) {
        match self.words.get() {
            Some(words) => self.add_at(words, slot(words.slots()), n),
            None => self.add_directly(n),
        }
    }

    /// Adds to `direct` under the lock, or to `early` during a set-up. The first add to `direct` reserves the slots.
    #[cold]
    fn add_directly(&self, n: u64) {
        if self.add_early(n) {
            return;
        }
        let mut state = ignore_poison(self.state.lock());
        self.bind(&state);
        state.direct = state.direct.wrapping_add(n);
    }

    /// Reserves the slots if there are none. The argument proves that the caller holds the lock: a reader that holds it
    /// and finds no slots finds all adds in `direct` and `early`.
    /// Model: `sum/loom.rs::first_adds_are_counted_once`.
    fn bind(&self, _: &SumState) {
        if self.words.get().is_none() {
            let base = set_up(|| self.words.get_or_init(Self::words)).base();
            // ORDERING: Release; pairs with the loads in `add_at` and `add_slow`.
            self.active.store(base, Release);
        }
    }

    /// As `exact`, for the backends whose adds are locked instructions.
    fn exact_with_locked_adds(&self, words: &Words, state: &SumState) -> u64 {
        let active = self.active.load(Relaxed);
        // ORDERING: SeqCst; pairs with the load in `add_at`.
        self.active.store(std::ptr::null_mut(), SeqCst);
        seq_cst();
        // ORDERING: SeqCst; pairs with the add in `add_at`.
        let words = words.column(0).map(|word| word.load(SeqCst));
        let total = words.fold(self.direct(state), u64::wrapping_add);
        // ORDERING: Release; pairs with the load in `add_at`: adds may use the words again.
        self.active.store(active, Release);
        total
    }

    /// Returns the sum of all adds ever made, reading the words one after the other.
    fn rough(&self, state: &SumState) -> u64 {
        (0..BANKS).map(|bank| self.bank(bank)).fold(self.direct(state), u64::wrapping_add)
    }

    fn bank(&self, bank: usize) -> u64 {
        let Some(words) = self.words.get() else { return 0 };
        words.column(bank).map(|word| word.load(Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Returns the sum of the adds since the last drain, without a fence. Not exact: see
    /// [`Counter::sum`](crate::Counter::sum).
    pub(crate) fn sum(&self) -> u64 {
        let state = ignore_poison(self.state.lock());
        self.rough(&state).wrapping_sub(state.drained)
    }

    /// Returns the sum of the adds since the last drain and remembers it.
    ///
    /// Words are not zeroed, and no fence is needed: each word only grows, and `drained` is the total of all drains.
    /// In whatever order the words are read, each add is in exactly one drain: the first that reads its word after it.
    /// Model: `sum/loom.rs::successive_drains_lose_and_repeat_nothing`.
    pub(crate) fn drain(&self) -> u64 {
        let mut state = ignore_poison(self.state.lock());
        let total = self.rough(&state);
        total.wrapping_sub(std::mem::replace(&mut state.drained, total))
    }

    #[cfg(not(loom))]
    pub(crate) fn snapshot(&self) -> u64 {
        let state = ignore_poison(self.state.lock());
        self.exact(&state).wrapping_sub(state.drained)
    }
}

#[cfg(all(test, loom))]
mod loom;
