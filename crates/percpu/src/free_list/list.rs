//! `FreeList`. The parent module describes the protocol.

use super::stacks::Stacks;
use super::{CAP_OR_LOCK, ITEMS, LEN};
use crate::backend::{backend, locks};
use crate::pool::{Pool, SHIFT};
use crate::sum::RETRIES;
use crate::sync::{AtomicPtr, Mutex, Ordering::*};
use crate::words::{Words, probable_slot, registered_area};
use std::sync::{Arc, OnceLock};
use std::{cell::UnsafeCell, fmt, marker::PhantomData, mem::ManuallyDrop};
use warmcore_line::{Line, Padded};
use warmcore_sys::{
    membarrier,
    rseq::{PercpuMode, RseqArea, section},
};
use warmcore_types::ignore_poison;

/// The default number of items per slot. With its two other words a stack takes half a KiB.
const CAPACITY: usize = 62;

/// The largest capacity: a stack of this size takes 2 KiB, the largest size that shares memory pages with other data
/// (`pool.rs`).
const CAPACITY_MAX: usize = 254;

/// A type that a free list can store: 8 bytes, never all zeros, and `Send`.
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
// SAFETY: a thin pointer, not null; Send because `T` is.
unsafe impl<T: Send> Item for Box<T> {}
#[cfg(target_pointer_width = "64")]
// SAFETY: a thin pointer, not null; Send because `T` is Send and Sync.
unsafe impl<T: Send + Sync> Item for Arc<T> {}
// SAFETY: 8 bytes, not zero.
unsafe impl Item for std::num::NonZeroU64 {}

/// A list of objects for reuse, with a stack per slot and a depot that all CPUs share. Below, "this CPU's stack" is the
/// stack of the calling thread's slot.
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
/// The first push reserves the slots, and chooses the process's [`backend`](crate::backend()) if it was not chosen
/// before.
///
/// A child of `fork` must not use the lists of its parent: another thread of the parent may have held a lock of the
/// list during the fork, and in the child that lock is never released.
///
/// The list is invariant in its type, lifetimes included:
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
    /// The address of slot 0's stack; null before the first push. During a drain on the `rseq` backend, the address of
    /// a stack of all zeros. Writers: the first push, and drains under the depot's lock.
    #[line(read_mostly)]
    active: AtomicPtr<u8>,
    /// Empty before the first push.
    #[line(read_mostly)]
    stacks: OnceLock<Stacks>,
    #[line(read_mostly)]
    capacity: usize,
    /// The items that are on no CPU's stack, last in first out.
    #[line(contended)]
    depot: Padded<Mutex<Vec<u64>>>,
    /// Makes the list invariant in `T`: an item must be popped as the type as which it was pushed.
    #[line(read_mostly)]
    items: PhantomData<UnsafeCell<T>>,
}

// SAFETY: it owns items, which are Send; its pointer leads to memory that lives as long as the list (`stacks`) or the
// process (the pool's zeros).
unsafe impl<T: Item> Send for FreeList<T> {}
// SAFETY: one pop moves an item to one thread; no method returns a reference to an item in the list.
unsafe impl<T: Item> Sync for FreeList<T> {}

impl<T: Item> FreeList<T> {
    /// Creates an empty list with room for 62 items per slot. The first push reserves the slots.
    pub const fn new() -> Self {
        Self::with_capacity(CAPACITY)
    }

    /// Creates an empty list with room for `capacity` items per slot; the depot is unbounded. Panics unless `capacity`
    /// is from 2 to 254.
    ///
    /// Large buffers: each CPU keeps four at most, the others go to the depot, and `drain_all` returns all of them, to
    /// be freed when memory is short:
    ///
    /// ```
    /// use warmcore_percpu::FreeList;
    ///
    /// static BUFFERS: FreeList<Box<[u8; 16384]>> = FreeList::with_capacity(4);
    ///
    /// let mut used: Vec<_> = (0..10).map(|_| Box::new([0; 16384])).collect();
    /// BUFFERS.push_batch(&mut used);
    /// assert!(used.is_empty());
    /// assert_eq!(BUFFERS.drain_all().len(), 10);
    /// assert!(BUFFERS.pop().is_none());
    /// ```
    pub const fn with_capacity(capacity: usize) -> Self {
        const {
            assert!(size_of::<T>() == 8 && align_of::<T>() == 8, "an Item is 8 bytes, aligned to 8");
            warmcore_line::assert_lines::<Self>();
        };
        // A panic in a constant cannot format a number.
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

    /// Returns the stacks. The first push reserves them.
    #[inline]
    fn stacks(&self) -> &Stacks {
        self.stacks.get_or_init(|| {
            // Before any slot exists, because the backend decides whether sections or locked instructions write it.
            backend();
            let words = Words::new(Pool::of(PercpuMode::Cid), ITEMS + self.capacity);
            // ORDERING: Release; a section's accesses depend on the address. The slots are zeros until a push
            // writes them, which happens after this store.
            self.active.store(words.base(), Release);
            Stacks { words, capacity: self.capacity }
        })
    }

    /// Pops an item: the top of this CPU's stack if it has any, otherwise the top of the depot. Returns `None` if both
    /// are empty; stacks of other CPUs may still have items. A thread that cannot run a section (it has no area, or
    /// several in a row were aborted), or finds the stack locked, looks only at the depot.
    ///
    /// **Touches** two cache lines of this CPU's stack. If the stack is empty it also locks the depot and moves up to
    /// half a capacity of items from there.
    #[inline(always)]
    pub fn pop(&self) -> Option<T> {
        // The area is read before any branch, so that the compiler may hoist the read out of a loop. `active` is
        // null if there was no push yet.
        if let Some(area) = RseqArea::current(PercpuMode::Cid)
            && !self.active.load(Relaxed).is_null()
        {
            // SAFETY: `active` is slot 0's stack or the zeros, both with a stack for every id that the kernel may use.
            // Only sections write them, and `drain_all` after a fence. It does not become null again.
            let item = unsafe { section::pop::<SHIFT>(area, &self.active) };
            if item != 0 {
                // SAFETY: a push moved this item into the list, and only this pop took it.
                return Some(unsafe { from_word(item) });
            }
        }
        // SAFETY: as above.
        self.pop_slow().map(|item| unsafe { from_word(item) })
    }

    /// Pushes an item on this CPU's stack. If the stack is full, moves half of it to the depot first. A thread that
    /// cannot run a section, or finds the stack locked, pushes to the depot.
    ///
    /// **Touches** two cache lines of this CPU's stack; in these cases, and on `rseq` at the first push on a slot, also
    /// the depot. Allocates only in these cases and in the list's first push. The first push panics if
    /// [`backend`](crate::backend()) does, or if no address space is left for the slots.
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

    /// Appends up to `max` items to `out`, from this CPU's stack and then from the depot, and returns how many.
    ///
    /// **Touches** this CPU's stack, and the depot if the stack has fewer than `max` items.
    pub fn pop_batch(&self, out: &mut Vec<T>, max: usize) -> usize {
        let mut taken = self.pop_here(out, max);
        while taken < max {
            // Takes one item from the depot and moves a batch from there to this CPU's stack.
            // SAFETY: a push moved this item into the list, and only this pop took it.
            let Some(item) = self.pop_slow().map(|item| unsafe { from_word(item) }) else { break };
            out.push(item);
            taken += 1 + self.pop_here(out, max - taken - 1);
        }
        taken
    }

    /// Pops up to `max` items of this CPU's stack, and returns how many: 0 also if no section or lock succeeded.
    fn pop_here(&self, out: &mut Vec<T>, max: usize) -> usize {
        let Some(stacks) = self.stacks.get() else { return 0 };
        let max = max.min(self.capacity);
        out.reserve(max);
        let Some(area) = RseqArea::current(PercpuMode::Cid) else {
            let slot = probable_slot(stacks.words.slots());
            // SAFETY: a push moved each item into the list, and only this `take` took it.
            let mut push = |item| out.push(unsafe { from_word(item) });
            return if locks() { stacks.take(slot, max, &mut push) } else { 0 };
        };
        let spare = out.spare_capacity_mut().as_mut_ptr().cast::<u64>();
        // SAFETY: as in `pop`; `spare` is valid for `max` writes, and `taken` items of it are initialised then.
        unsafe {
            let taken = section::pop_batch::<SHIFT>(area, &self.active, spare, max);
            out.set_len(out.len() + taken);
            taken
        }
    }

    /// Pushes all of `items`, which is empty afterwards: as many as fit on this CPU's stack, the rest to the depot.
    pub fn push_batch(&self, items: &mut Vec<T>) {
        self.push_here(items);
        if !items.is_empty() {
            self.push_to_depot(items);
        }
    }

    /// Moves as many of `items` as fit to this CPU's stack; none if no section or lock succeeded.
    fn push_here(&self, items: &mut Vec<T>) {
        // SAFETY: the vector's items, each 8 bytes without padding.
        let words = unsafe { std::slice::from_raw_parts(items.as_ptr().cast::<u64>(), items.len()) };
        let stacks = self.stacks();
        let put = match RseqArea::current(PercpuMode::Cid) {
            // SAFETY: as in `pop`; the slice is valid for its length.
            Some(area) => unsafe {
                section::push_batch::<SHIFT>(area, &self.active, words.as_ptr(), words.len())
            },
            None if locks() => stacks.keep(probable_slot(stacks.words.slots()), words),
            None => 0,
        };
        // The list owns the pushed items now: remove them from the vector without dropping them.
        items.drain(..put).for_each(std::mem::forget);
    }

    /// Pushes the rest of a batch under the depot's lock: on this CPU's stack what fits if its slot was unused, and
    /// otherwise to the depot.
    #[cold]
    fn push_to_depot(&self, items: &mut Vec<T>) {
        let mut depot = ignore_poison(self.depot.lock());
        // An unused slot has capacity 0 and took no items. Set its capacity and try again.
        if let Some(area) = registered_area(PercpuMode::Cid).filter(|_| !locks()) {
            self.keep_here(area, &[]);
            self.push_here(items);
        }
        depot.extend(items.drain(..).map(into_word));
    }

    /// Pushes items on this CPU's stack and returns how many it pushed: those that fit, or none if the section was
    /// aborted. Sets the capacity of an unused slot first. The caller holds the depot's lock, so `active` is not the
    /// zeros.
    fn keep_here(&self, area: RseqArea, items: &[u64]) -> usize {
        let cap = AtomicPtr::new(self.stacks().words.base().wrapping_add(CAP_OR_LOCK * 8));
        // SAFETY: `cap` is the second word of slot 0's stack, and every slot has one. If the section is aborted, the
        // slot stays unused and the next push sets the capacity.
        unsafe { section::cmpeqv_storev::<SHIFT>(area, &cap, 0, self.capacity as u64) };
        // SAFETY: as in `pop`; the slice is valid for its length.
        unsafe { section::push_batch::<SHIFT>(area, &self.active, items.as_ptr(), items.len()) }
    }

    /// Removes all items from all stacks and the depot, and returns them. An item that is pushed during the call may
    /// stay in the list.
    ///
    /// **Touches** every slot's stack. On the `rseq` backend it costs one membarrier: an interrupt of each CPU that
    /// runs a thread of this process, 1 to 10 µs in all. Pops and pushes that need the depot during the call block
    /// until it returns; on `rseq` these are all that begin while the stacks are emptied.
    pub fn drain_all(&self) -> Vec<T> {
        // Without slots there was no push, so the depot is empty too.
        let Some(stacks) = self.stacks.get() else { return Vec::new() };
        let mut depot = ignore_poison(self.depot.lock());
        // Reserve the zeros before removing items: reserving may panic, and removed items would be lost.
        let nothing = (!locks()).then(|| Pool::of(PercpuMode::Cid).nothing());
        let mut items = std::mem::take(&mut *depot);
        match nothing {
            None => stacks.drain_into(&mut items),
            Some(nothing) => {
                // ORDERING: Release for symmetry with the store below. The fence is what matters: after it, no section
                // that loaded the old address can commit.
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
                // ORDERING: Release; pairs with the load of `active` inside each section, on which the section's
                // address depends: a section that loads the stack's address again sees it empty.
                self.active.store(words.base(), Release);
            }
        }
        // SAFETY: a push moved each item into the list, and only this drain took it.
        items.into_iter().map(|item| unsafe { from_word(item) }).collect()
    }

    /// The slow path of `pop`: an empty stack, an aborted section, a thread without an area, or another backend.
    #[inline(never)]
    fn pop_slow(&self) -> Option<u64> {
        // Without stacks there was no push, or the first one is in progress.
        let stacks = self.stacks.get()?;
        if locks() {
            let slot = probable_slot(stacks.words.slots());
            let popped = stacks.try_lock(slot).and_then(|stack| stack.pop());
            return popped.or_else(|| {
                let mut depot = ignore_poison(self.depot.lock());
                self.refill(&mut depot, |items| stacks.keep(slot, items))
            });
        }
        let area = registered_area(PercpuMode::Cid);
        // No drain runs while this lock is held, so `active` is the address of the real stacks.
        let mut depot = ignore_poison(self.depot.lock());
        // SAFETY: as in `pop`. Tried twice: an abort looks like an empty stack, and two aborts in a row are rare.
        let again =
            |area| (0..2).map(|_| unsafe { section::pop::<SHIFT>(area, &self.active) }).find(|i| *i != 0);
        area.and_then(again)
            .or_else(|| self.refill(&mut depot, |items| area.map_or(0, |area| self.keep_here(area, items))))
    }

    /// Removes up to half a capacity of items from the depot: one to return, and the others, which `keep` stores.
    /// `keep` returns how many it stored; the rest stays in the depot. Returns `None` if the depot is empty.
    fn refill(&self, depot: &mut Vec<u64>, keep: impl FnOnce(&[u64]) -> usize) -> Option<u64> {
        let item = depot.pop()?;
        let from = depot.len() - depot.len().min(self.capacity / 2 - 1);
        if from < depot.len() {
            let kept = keep(&depot[from..]);
            depot.drain(from..from + kept);
        }
        Some(item)
    }

    /// The slow path of `push`: a full stack, an unused slot, an aborted section, a thread without an area, or another
    /// backend.
    #[inline(never)]
    fn push_slow(&self, item: u64) {
        // This chooses the backend, on which `locks` depends.
        let stacks = self.stacks();
        if locks() {
            let slot = probable_slot(stacks.words.slots());
            return stacks.push_or(slot, item, || ignore_poison(self.depot.lock()));
        }
        let (area, mut depot) = (registered_area(PercpuMode::Cid), ignore_poison(self.depot.lock()));
        let Some(area) = area else { return depot.push(item) };
        for _ in 0..RETRIES {
            if self.keep_here(area, &[item]) == 1 {
                return;
            }
            // The stack is probably full: move half of it to the depot, where other CPUs can take it.
            let mut batch = [0u64; CAPACITY_MAX / 2];
            // SAFETY: as in `pop`; the buffer has half of the largest capacity.
            let n = unsafe {
                section::pop_batch::<SHIFT>(area, &self.active, batch.as_mut_ptr(), self.capacity / 2)
            };
            depot.extend_from_slice(&batch[..n]);
        }
        depot.push(item);
    }

    /// Returns the number of items, reading the slots one after the other. Items that move during the call may be
    /// counted twice or not at all.
    pub fn len(&self) -> usize {
        let on_cpus = |stacks: &Stacks| stacks.words.column(LEN).map(|len| len.load(Relaxed)).sum::<u64>();
        ignore_poison(self.depot.lock()).len() + self.stacks.get().map_or(0, on_cpus) as usize
    }

    /// Whether [`FreeList::len`] is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Item> Default for FreeList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Item> Drop for FreeList<T> {
    /// Drops all items. No other thread uses the list, so unlike `drain_all` this needs no fence and no memory.
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

/// Owned items as words. All of them are dropped, also if one drop panics.
struct Items<I: Iterator<Item = u64>, T: Item>(I, PhantomData<T>);

impl<I: Iterator<Item = u64>, T: Item> Items<I, T> {
    fn drop_each(&mut self) {
        for word in self.0.by_ref() {
            // SAFETY: a push moved this item into the list, and the iterator returns it once.
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
    // Exposed, because `from_word` makes a pointer of the number: an Item may be or contain a pointer.
    pointer.expose_provenance() as u64
}

/// # Safety
/// The word came from `into_word::<T>`, and only one item is made of each such word.
unsafe fn from_word<T: Item>(word: u64) -> T {
    let pointer: *mut () = std::ptr::with_exposed_provenance_mut(word as usize);
    // SAFETY: the same 8 bytes, with the provenance that `into_word` exposed.
    unsafe { std::mem::transmute_copy(&pointer) }
}
