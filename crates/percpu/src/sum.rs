//! Sum: a number added to on every CPU and read as one.
//!
//! Model.   Every slot holds two words, bank 0 and bank 1; `active` is the address of slot 0's
//!          word of the bank in use, and adders load it in the same section that adds. To read
//!          exactly, a reader moves `active` to the other bank and fences once: after that the
//!          old bank is frozen, because sections under way began again and took the new address.
//!          What cannot run sections adds to `direct` under the reader's lock.
//!          A sum begins without slots, so that it can be a constant: `active` is null, and the
//!          first add, under the lock, reserves the slots and stores their address.
//! Number.  An add is 2 stores and 4 loads, all on lines of the own slot but the read-mostly
//!          `active`; a snapshot is one fence and two loads per slot, a drain is the loads alone.
//! Protocol. The cut of a snapshot is the store to `active`. An add that returned before it is
//!          in the old bank, fenced and read. If add x happened before add y and x went to the
//!          new bank, then so did y: both loaded one location, and loads of one location that
//!          are ordered never see an older value. So the cut is consistent, and with the lock
//!          on `direct` the snapshot is one moment inside the call.
//!          On locked instructions there is no freezing a bank, as an adder may sleep between
//!          loading `active` and adding. There `active` becomes null instead, late adders are
//!          let be, and new ones wait at the lock; see `add_at`.
//! Writers. `active`: the first add and snapshots, under `state`. `words`: the first add, under `state`. Words: sections of the slot's holder, or locked
//!          adds by anyone; they are never reset. `state`: under its lock.

use crate::set_up::set_up;
use crate::sync::{AtomicPtr, Mutex, Ordering::*, seq_cst};
use crate::words::Words;
#[cfg(not(loom))]
use crate::{
    backend::{backend, locks},
    pool::{Pool, SHIFT},
    set_up::is_setting_up,
    words::probable_slot,
};
use std::sync::OnceLock;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use warmcore_line::{Line, Padded};
#[cfg(not(loom))]
use warmcore_sys::{
    membarrier,
    rseq::{self, PercpuMode, RseqArea, section},
};
use warmcore_types::ignore_poison;

/// How often an aborted section is tried again before it counts as hopeless (a debugger that
/// single-steps aborts every one).
#[cfg(not(loom))]
pub(crate) const RETRIES: u32 = 16;

/// The two words of a slot.
const BANKS: usize = 2;

#[derive(Debug, Line)]
#[line(pair)]
#[repr(C, align(128))]
pub(crate) struct Sum {
    /// Slot 0's word of the bank in use. Null: the lock decides where an add goes. That is so before
    /// the first add, and on the `atomic` and `plain` backends during a snapshot.
    #[line(read_mostly)]
    active: AtomicPtr<u8>,
    /// Empty before the first add.
    #[line(read_mostly)]
    words: OnceLock<Words>,
    /// Added before there were slots, while some counter was set up, by a global allocator perhaps: see `set_up`. Only
    /// read after that.
    #[cfg(not(loom))]
    #[line(read_mostly)]
    early: AtomicU64,
    #[line(contended)]
    state: Padded<Mutex<SumState>>,
}

/// What is known beside the slots.
#[derive(Debug, Default)]
struct SumState {
    /// Added without a slot.
    direct: u64,
    /// Of all that was ever added, what drains have taken.
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
        // Before any branch, so that the compiler may lift it out of a loop.
        if let Some(area) = RseqArea::current(PercpuMode::Cid) {
            // Null before the first add: one branch, predicted after it. The section loads `active` again,
            // which on `rseq` never becomes null again.
            // SAFETY: `active` is slot 0's word of one bank, and the block has that word for
            // every id that the kernel may give. Nobody writes a bank but sections.
            if !self.active.load(Relaxed).is_null() && unsafe { section::add::<SHIFT>(area, &self.active, n) }
            {
                return;
            }
        } else if locks() {
            return self.add_locked(n);
        }
        self.add_slow(n);
    }

    /// Not inlined: with both ways in it, `add` would save registers before it knows which.
    #[inline(never)]
    fn add_locked(&self, n: u64) {
        self.add_to(probable_slot, n);
    }

    /// The first add; or on `rseq`, without a section: aborted, or no area yet. Or `add` read whether
    /// this process locks before another thread's first add chose the backend.
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
        let area = if rseq::register_thread() { RseqArea::lookup(PercpuMode::Cid) } else { None };
        // SAFETY: as in `add`.
        let tried = |area| (0..RETRIES).any(|_| unsafe { section::add::<SHIFT>(area, &self.active, n) });
        if !area.is_some_and(tried) {
            self.add_directly(n);
        }
    }

    /// Reserves the slots: a word of each bank for every id.
    fn words() -> Words {
        // Before any slot exists: it says whether sections or locked instructions write it.
        backend();
        Words::new(Pool::of(PercpuMode::Cid), BANKS)
    }

    /// As `add_directly`, without slots while a thread sets something up: any lock of this crate may be held for as long as
    /// this add takes. Says whether that is so.
    ///
    /// A reader that finds no slots reads this one word and `direct`, whose lock it has: one moment. A reader that finds
    /// some reads all adds that returned before it began, as this word only grows.
    fn add_early(&self, n: u64) -> bool {
        let is_early = self.words.get().is_none() && is_setting_up();
        if is_early {
            // ORDERING: Release; pairs with the Acquire in `direct`.
            self.early.fetch_add(n, Release);
        }
        is_early
    }

    /// What was added without a slot.
    fn direct(&self, state: &SumState) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `add_early`: what came before an add that is seen is seen.
        state.direct.wrapping_add(self.early.load(Acquire))
    }

    /// All that was ever added, at one moment between all adds.
    fn exact(&self, state: &SumState) -> u64 {
        let Some(words) = self.words.get() else { return self.direct(state) };
        if locks() {
            return self.exact_with_locked_adds(words, state);
        }
        let [first, second] = [words.base(), words.base().wrapping_add(8)];
        let active = self.active.load(Relaxed);
        let (frozen, live, other) = if active == first { (1, 0, second) } else { (0, 1, first) };
        // Frozen since the last fence: read before it is in use again.
        let settled = self.bank(frozen);
        // ORDERING: Release; pairs with the load of `active` inside each section, whose address
        // depends on it: our reads of `settled` come before every add to that bank from now on.
        // Not in a model: loom has no sections. `sys::rseq::tests` holds the fence to its word
        // (`a_fence_leaves_no_section_behind`), `section/aarch64/reactivate.litmus` the order.
        self.active.store(other, Release);
        membarrier::fence_rseq();
        self.direct(state).wrapping_add(settled).wrapping_add(self.bank(live))
    }
}

#[cfg(loom)]
impl Sum {
    /// Two slots are enough for a model.
    fn words() -> Words {
        Words::for_model(2, BANKS)
    }

    /// A model has no allocator.
    fn add_early(&self, _: u64) -> bool {
        false
    }

    fn direct(&self, state: &SumState) -> u64 {
        state.direct
    }
}

impl Sum {
    /// The add of the `atomic` and `plain` backends: SeqCst, so that a late one is harmless.
    ///
    /// A reader stores null to `active`, then reads the words. Say x was late: it loaded `active`
    /// before the null and added after its word was read, so this reader misses it. Whatever y
    /// happens after x must be missed too. In the single order of SeqCst operations: null stored,
    /// x's word read, x's add, and then y's load of `active`, which therefore sees null or what
    /// came after the reader was done; y waits for the lock and adds after the call. With less
    /// than SeqCst y might still load the old address.
    /// Loom: `sum/loom.rs::a_snapshot_is_one_moment`.
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

    /// The add of the `atomic` and `plain` backends; `slot` says which of so many.
    #[inline(always)]
    fn add_to(&self, slot: impl FnOnce(usize) -> usize, n: u64) {
        match self.words.get() {
            Some(words) => self.add_at(words, slot(words.slots()), n),
            None => self.add_directly(n),
        }
    }

    /// Under the lock. The first such add gives the sum its slots.
    #[cold]
    fn add_directly(&self, n: u64) {
        if self.add_early(n) {
            return;
        }
        let mut state = ignore_poison(self.state.lock());
        self.bind(&state);
        state.direct = state.direct.wrapping_add(n);
    }

    /// Gives the sum its slots if it has none. The caller shows that it holds the lock: a reader that
    /// found none has read all adds, which were in `direct`.
    /// Loom: `sum/loom.rs::first_adds_are_counted_once`.
    fn bind(&self, _: &SumState) {
        if self.words.get().is_none() {
            let base = set_up(|| self.words.get_or_init(Self::words)).base();
            // ORDERING: Release; pairs with the loads in `add_at` and `add_slow`.
            self.active.store(base, Release);
        }
    }

    /// As `exact`, where adds are locked instructions.
    fn exact_with_locked_adds(&self, words: &Words, state: &SumState) -> u64 {
        let active = self.active.load(Relaxed);
        // ORDERING: SeqCst; pairs with the load in `add_at`.
        self.active.store(std::ptr::null_mut(), SeqCst);
        seq_cst();
        // ORDERING: SeqCst; pairs with the add in `add_at`.
        let words = words.column(0).map(|word| word.load(SeqCst));
        let total = words.fold(self.direct(state), u64::wrapping_add);
        // ORDERING: Release; pairs with the load in `add_at`: it only lets adders in again.
        self.active.store(active, Release);
        total
    }

    /// All that was ever added, each word read at a moment of its own.
    fn rough(&self, state: &SumState) -> u64 {
        (0..BANKS).map(|bank| self.bank(bank)).fold(self.direct(state), u64::wrapping_add)
    }

    fn bank(&self, bank: usize) -> u64 {
        let Some(words) = self.words.get() else { return 0 };
        words.column(bank).map(|word| word.load(Relaxed)).fold(0, u64::wrapping_add)
    }

    /// What was added since the last drain: no fence, nobody disturbed, nothing exact.
    pub(crate) fn sum(&self) -> u64 {
        let state = ignore_poison(self.state.lock());
        self.rough(&state).wrapping_sub(state.drained)
    }

    /// Takes what was added since the last drain.
    ///
    /// Nothing is zeroed and nobody is fenced off: a word only moves on, and what was read of it
    /// is remembered, all words' in one number. An add is in the first drain that sees it, and in
    /// no other; whatever order the words are read in.
    /// Loom: `sum/loom.rs::successive_drains_lose_and_repeat_nothing`.
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
