//! The free list itself; its page is the parent's.

use super::stacks::Stacks;
use super::{CAP_OR_LOCK, ITEMS, LEN};
use crate::backend::{backend, locks};
use crate::pool::{Pool, SHIFT};
use crate::sum::RETRIES;
use crate::sync::{AtomicPtr, Mutex, Ordering::*};
use crate::words::{Words, probable_slot};
use std::sync::{Arc, OnceLock};
use std::{cell::UnsafeCell, fmt, marker::PhantomData, mem::ManuallyDrop};
use warmcore_line::{Line, Padded};
use warmcore_sys::{
    membarrier,
    rseq::{self, PercpuMode, RseqArea, section},
};
use warmcore_types::ignore_poison;

/// Items per slot, unless one says otherwise: with its two words half a KiB.
const CAPACITY: usize = 62;

/// The largest capacity: a slot's stack fits half a page, so that it shares one.
const CAPACITY_MAX: usize = 254;

/// What a free list keeps: eight bytes, never all zero, that may cross threads.
///
/// # Safety
/// `Self` is 8 bytes aligned to 8 without padding, no valid value is all zeros, and it is `Send`.
#[diagnostic::on_unimplemented(
    message = "a free list keeps a `Box`, an `Arc` or a `NonZeroU64`, not `{Self}`",
    label = "not 8 bytes that are never all zero",
    note = "put it into a box: `FreeList<Box<{Self}>>`"
)]
pub unsafe trait Item: Send + Sized {}

#[cfg(target_pointer_width = "64")]
// SAFETY: a thin pointer, not null; Send because the content is.
unsafe impl<T: Send> Item for Box<T> {}
#[cfg(target_pointer_width = "64")]
// SAFETY: a thin pointer, not null; Send because the content is Send and Sync.
unsafe impl<T: Send + Sync> Item for Arc<T> {}
// SAFETY: 8 bytes, not zero.
unsafe impl Item for std::num::NonZeroU64 {}

/// Objects for re-use, kept on the CPU that freed them last.
///
/// ```
/// use warmcore_percpu::FreeList;
///
/// static BUFFERS: FreeList<Box<[u8; 4096]>> = FreeList::new();
///
/// let buffer = BUFFERS.pop().unwrap_or_else(|| Box::new([0; 4096]));
/// BUFFERS.push(buffer);
/// ```
///
/// The first push gives it its slots, and chooses the process's [`backend`](crate::backend()) if nothing has
/// yet.
///
/// A child of fork must not use the lists of its parent: another thread of the parent may have
/// held one at that moment, and in the child nobody lets it go.
///
/// What it keeps is one type, lifetimes included:
///
/// ```compile_fail
/// use warmcore_percpu::FreeList;
///
/// fn shorter<'a>(list: &'a FreeList<Box<&'static str>>) -> &'a FreeList<Box<&'a str>> {
///     list
/// }
/// ```
#[derive(Line)]
#[line(pair)]
#[repr(C, align(128))]
pub struct FreeList<T: Item> {
    /// Slot 0's stack; the zeros during a drain; null before the first push. Writers: the first push,
    /// and drains under the depot's lock.
    #[line(read_mostly)]
    active: AtomicPtr<u8>,
    /// Empty before the first push.
    #[line(read_mostly)]
    stacks: OnceLock<Stacks>,
    #[line(read_mostly)]
    capacity: usize,
    /// Items that lie on no CPU, last in first out.
    #[line(contended)]
    depot: Padded<Mutex<Vec<u64>>>,
    /// Invariant in `T`: what is pushed as one type must not be popped as another.
    #[line(read_mostly)]
    items: PhantomData<UnsafeCell<T>>,
}

// SAFETY: it owns items, which are Send; its pointer leads to memory that lives as long as itself
// (`stacks`) or the process (the pool's zeros).
unsafe impl<T: Item> Send for FreeList<T> {}
// SAFETY: an item is handed to one thread by one pop; nobody sees it inside.
unsafe impl<T: Item> Sync for FreeList<T> {}

impl<T: Item> FreeList<T> {
    /// An empty list, of 62 items a slot. Costs nothing: the first push reserves its slots.
    pub const fn new() -> Self {
        Self::with_capacity(CAPACITY)
    }

    /// An empty list of `capacity` items a slot; the depot has no bound. Panics unless it is
    /// from 2 to 254.
    pub const fn with_capacity(capacity: usize) -> Self {
        const {
            assert!(size_of::<T>() == 8 && align_of::<T>() == 8, "an Item is 8 bytes, aligned to 8");
            warmcore_line::assert_lines::<Self>();
        };
        // The text of a panic in a constant can't say the number.
        assert!(
            2 <= capacity && capacity <= CAPACITY_MAX,
            "the capacity of a free list is out of range; it takes 2 to 254 items a slot"
        );
        Self {
            active: AtomicPtr::new(std::ptr::null_mut()),
            stacks: OnceLock::new(),
            capacity,
            depot: Padded::new(Mutex::new(Vec::new())),
            items: PhantomData,
        }
    }

    /// The stacks, which the first push reserves.
    #[inline]
    fn stacks(&self) -> &Stacks {
        self.stacks.get_or_init(|| {
            // Before any slot exists: it says whether sections or locked instructions write it.
            backend();
            let words = Words::new(Pool::of(PercpuMode::Cid), ITEMS + self.capacity);
            // ORDERING: Release; pairs with nothing but addresses: the slots are zeros, and what a push
            // may put there it puts after this.
            self.active.store(words.base(), Release);
            Stacks { words, capacity: self.capacity }
        })
    }

    /// An item, the one that this CPU freed last if it has one. `None` when neither this CPU nor
    /// the depot has any: other CPUs keep theirs, so it does not say that there is none at all.
    ///
    /// **Touches** the two lines of this CPU's stack; once in half a capacity the depot.
    #[inline(always)]
    pub fn pop(&self) -> Option<T> {
        // `RseqArea` before any branch, so that the compiler may lift it out of a loop. Null: nothing was ever pushed.
        if let Some(area) = RseqArea::current(PercpuMode::Cid)
            && !self.active.load(Relaxed).is_null()
        {
            // SAFETY: `active` is slot 0's stack or the zeros, which have a stack for every id
            // that the kernel may give; only sections write them, and `drain_all` after a fence. Once
            // it is not null it never is again.
            let item = unsafe { section::pop::<SHIFT>(area, &self.active) };
            if item != 0 {
                // SAFETY: a push gave this item up, and this pop alone took it.
                return Some(unsafe { from_word(item) });
            }
        }
        // SAFETY: as above.
        self.pop_slow().map(|item| unsafe { from_word(item) })
    }

    /// Gives an item back, to this CPU.
    ///
    /// **Touches** what [`FreeList::pop`] touches. Allocates only when the depot grows. The first push
    /// panics where [`backend`](crate::backend()) does, and where no address space is left for its slots.
    #[inline(always)]
    pub fn push(&self, item: T) {
        let item = into_word(item);
        if let Some(area) = RseqArea::current(PercpuMode::Cid)
            && !self.active.load(Relaxed).is_null()
        {
            // SAFETY: as in `pop`.
            if unsafe { section::push::<SHIFT>(area, &self.active, item) } {
                return;
            }
        }
        self.push_slow(item);
    }

    /// Appends up to `max` items to `out`, this CPU's first; says how many.
    ///
    /// **Touches** this CPU's stack, and the depot if that had less.
    pub fn pop_batch(&self, out: &mut Vec<T>, max: usize) -> usize {
        let mut taken = self.pop_here(out, max);
        while taken < max {
            // Brings a batch to this CPU, if the depot has one.
            // SAFETY: a push gave this item up, and this pop alone took it.
            let Some(item) = self.pop_slow().map(|item| unsafe { from_word(item) }) else { break };
            out.push(item);
            taken += 1 + self.pop_here(out, max - taken - 1);
        }
        taken
    }

    /// Up to `max` items of this CPU's stack.
    fn pop_here(&self, out: &mut Vec<T>, max: usize) -> usize {
        let Some(stacks) = self.stacks.get() else { return 0 };
        let max = max.min(self.capacity);
        out.reserve(max);
        let Some(area) = RseqArea::current(PercpuMode::Cid) else {
            let slot = probable_slot(stacks.words.slots());
            // SAFETY: a push gave each item up, and this take alone took it.
            let mut push = |item| out.push(unsafe { from_word(item) });
            return if locks() { stacks.take(slot, max, &mut push) } else { 0 };
        };
        let spare = out.spare_capacity_mut().as_mut_ptr().cast::<u64>();
        // SAFETY: as in `pop`; `spare` is good for `max` writes, and then holds as many items.
        unsafe {
            let taken = section::pop_batch::<SHIFT>(area, &self.active, spare, max);
            out.set_len(out.len() + taken);
            taken
        }
    }

    /// Gives all of `items` back: to this CPU what fits, the rest to the depot.
    pub fn push_batch(&self, items: &mut Vec<T>) {
        self.push_here(items);
        if !items.is_empty() {
            self.push_to_depot(items);
        }
    }

    /// Moves as many of `items` as fit to this CPU's stack.
    fn push_here(&self, items: &mut Vec<T>) {
        // SAFETY: the vector's items, each 8 bytes without padding.
        let words = unsafe { std::slice::from_raw_parts(items.as_ptr().cast::<u64>(), items.len()) };
        let stacks = self.stacks();
        let put = match RseqArea::current(PercpuMode::Cid) {
            // SAFETY: as in `pop`; the slice is good for its length.
            Some(area) => unsafe {
                section::push_batch::<SHIFT>(area, &self.active, words.as_ptr(), words.len())
            },
            None if locks() => stacks.keep(probable_slot(stacks.words.slots()), words),
            None => 0,
        };
        // What was put belongs to the list now: it leaves the vector undropped.
        items.drain(..put).for_each(std::mem::forget);
    }

    /// The rest of a batch, under one lock.
    #[cold]
    fn push_to_depot(&self, items: &mut Vec<T>) {
        let mut depot = ignore_poison(self.depot.lock());
        // A fresh slot took nothing, since it had no capacity yet.
        if let Some(area) = registered().filter(|_| !locks()) {
            self.keep_here(area, &[]);
            self.push_here(items);
        }
        depot.extend(items.drain(..).map(into_word));
    }

    /// Puts items on this CPU's stack, which gets its capacity if it is fresh; under the depot's
    /// lock, so that the capacity is never given to the zeros. Says how many it took.
    fn keep_here(&self, area: RseqArea, items: &[u64]) -> usize {
        let cap = AtomicPtr::new(self.stacks().words.base().wrapping_add(CAP_OR_LOCK * 8));
        // SAFETY: `cap` is the second word of slot 0's stack, and every slot has one. If the
        // section is aborted the slot stays fresh, and the next push comes here again.
        unsafe { section::cmpeqv_storev::<SHIFT>(area, &cap, 0, self.capacity as u64) };
        // SAFETY: as in `pop`; the slice is good for its length.
        unsafe { section::push_batch::<SHIFT>(area, &self.active, items.as_ptr(), items.len()) }
    }

    /// Takes every item from every CPU and the depot. Over successive drains every item appears
    /// once; one that is pushed meanwhile may stay for the next.
    ///
    /// **Touches** every slot's stack. One membarrier on `rseq`: an interrupt for each CPU that runs
    /// a thread of this process, 1 to 10 µs in all. Pops and pushes that begin meanwhile wait
    /// until it is done.
    pub fn drain_all(&self) -> Vec<T> {
        // Without slots nothing was ever pushed, to the depot neither.
        let Some(stacks) = self.stacks.get() else { return Vec::new() };
        let mut depot = ignore_poison(self.depot.lock());
        // The zeros are there before anything is taken: to reserve them may panic.
        let nothing = (!locks()).then(|| Pool::of(PercpuMode::Cid).nothing());
        let mut items = std::mem::take(&mut *depot);
        match nothing {
            None => stacks.drain_into(&mut items),
            Some(nothing) => {
                // ORDERING: Release for symmetry with the store below; the fence is what counts:
                // after it, no section that loaded the old address can commit.
                self.active.store(nothing, Release);
                membarrier::fence_rseq();
                let words = &stacks.words;
                for slot in 0..words.slots() {
                    let len = words.word(slot, LEN).load(Relaxed) as usize;
                    if len > 0 {
                        items.extend((0..len).map(|k| words.word(slot, ITEMS + k).load(Relaxed)));
                        words.word(slot, LEN).store(0, Relaxed);
                    }
                }
                // ORDERING: Release; pairs with the load of `active` inside each section, whose
                // address depends on it: who finds the stack again finds it empty.
                self.active.store(words.base(), Release);
            }
        }
        // SAFETY: each was given up by a push and taken here alone.
        items.into_iter().map(|item| unsafe { from_word(item) }).collect()
    }

    /// Empty, aborted, no area yet, or another backend.
    #[inline(never)]
    fn pop_slow(&self) -> Option<u64> {
        // Nothing was ever pushed, or the first push is under way.
        let stacks = self.stacks.get()?;
        if locks() {
            let slot = probable_slot(stacks.words.slots());
            let popped = stacks.try_lock(slot).and_then(|stack| stack.pop());
            return popped.or_else(|| {
                self.refill(&mut *ignore_poison(self.depot.lock()), |items| stacks.keep(slot, items))
            });
        }
        let area = registered();
        // With this lock held no drain runs, so `active` is the real stacks.
        let mut depot = ignore_poison(self.depot.lock());
        // SAFETY: as in `pop`. Tried twice: an abort looks like an empty stack, two are rare.
        let again =
            |area| (0..2).map(|_| unsafe { section::pop::<SHIFT>(area, &self.active) }).find(|i| *i != 0);
        area.and_then(again)
            .or_else(|| self.refill(&mut depot, |items| area.map_or(0, |area| self.keep_here(area, items))))
    }

    /// Takes up to a batch off the depot: one item to return, the others for `keep`, which says
    /// how many it kept.
    fn refill(&self, depot: &mut Vec<u64>, keep: impl FnOnce(&[u64]) -> usize) -> Option<u64> {
        let item = depot.pop()?;
        let from = depot.len() - depot.len().min(self.capacity / 2 - 1);
        if from < depot.len() {
            let kept = keep(&depot[from..]);
            depot.drain(from..from + kept);
        }
        Some(item)
    }

    /// Full, fresh, aborted, no area yet, or another backend.
    #[inline(never)]
    fn push_slow(&self, item: u64) {
        // After this the backend is chosen, and `locks` knows it.
        let stacks = self.stacks();
        if locks() {
            let slot = probable_slot(stacks.words.slots());
            return stacks.push_or(slot, item, || ignore_poison(self.depot.lock()));
        }
        let (area, mut depot) = (registered(), ignore_poison(self.depot.lock()));
        let Some(area) = area else { return depot.push(item) };
        for _ in 0..RETRIES {
            if self.keep_here(area, &[item]) == 1 {
                return;
            }
            // Full, most likely: half of it makes room, and feeds the CPUs that run empty.
            let mut batch = [0u64; CAPACITY_MAX / 2];
            // SAFETY: as in `pop`; the buffer is good for half of the largest capacity.
            let n = unsafe {
                section::pop_batch::<SHIFT>(area, &self.active, batch.as_mut_ptr(), self.capacity / 2)
            };
            depot.extend_from_slice(&batch[..n]);
        }
        depot.push(item);
    }

    /// How many items there are, each slot read at a moment of its own.
    pub fn len(&self) -> usize {
        let on_cpus = |stacks: &Stacks| stacks.words.column(LEN).map(|len| len.load(Relaxed)).sum::<u64>();
        ignore_poison(self.depot.lock()).len() + self.stacks.get().map_or(0, on_cpus) as usize
    }

    /// Whether there is none, as far as [`FreeList::len`] can tell.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// This thread's area, given to it now if it may have one.
fn registered() -> Option<RseqArea> {
    if rseq::register_thread() { RseqArea::lookup(PercpuMode::Cid) } else { None }
}

impl<T: Item> Default for FreeList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Item> Drop for FreeList<T> {
    /// No thread pushes or pops any more, so nothing is fenced, moved away from or allocated.
    fn drop(&mut self) {
        let Some(stacks) = self.stacks.get() else { return };
        let words = &stacks.words;
        let depot = std::mem::take(&mut *ignore_poison(self.depot.lock()));
        let len = |slot| words.word(slot, LEN).load(Relaxed) as usize;
        let of = |slot| (0..len(slot)).map(move |k| words.word(slot, ITEMS + k).load(Relaxed));
        let mut all = Items(depot.into_iter().chain((0..words.slots()).flat_map(of)), PhantomData::<T>);
        all.drop_each();
    }
}

/// Words of items that only this holds: all are dropped, also where the drop of one panics.
struct Items<I: Iterator<Item = u64>, T: Item>(I, PhantomData<T>);

impl<I: Iterator<Item = u64>, T: Item> Items<I, T> {
    fn drop_each(&mut self) {
        for word in self.0.by_ref() {
            // SAFETY: given up by a push, and met here once.
            drop(unsafe { from_word::<T>(word) });
        }
    }
}

impl<I: Iterator<Item = u64>, T: Item> Drop for Items<I, T> {
    fn drop(&mut self) {
        self.drop_each();
    }
}

impl<T: Item> fmt::Debug for FreeList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreeList").field("len", &self.len()).field("per_slot", &self.capacity).finish()
    }
}

fn into_word<T: Item>(item: T) -> u64 {
    // SAFETY: an Item is 8 bytes without padding; the original is not dropped.
    let pointer: *mut () = unsafe { std::mem::transmute_copy(&ManuallyDrop::new(item)) };
    // Exposed, because it comes back from a number: an Item may be a pointer or hold one.
    pointer.expose_provenance() as u64
}

/// # Safety
/// The word came from `into_word::<T>`, and from each such word only one item is made.
unsafe fn from_word<T: Item>(word: u64) -> T {
    let pointer: *mut () = std::ptr::with_exposed_provenance_mut(word as usize);
    // SAFETY: the same 8 bytes, with the provenance that `into_word` exposed.
    unsafe { std::mem::transmute_copy(&pointer) }
}
