//! `PerCpu` and `PerCid`: one instance of a user's struct per slot.
//!
//! Slots start as zeros and get memory when they are first written. So all zeros must be a valid `T`, and `T` must not
//! need `Drop`. Access is shared (`&T`): [`PerCid::current`] is only a hint, since the thread may migrate immediately
//! after it. Therefore fields that change are atomics, or [`LocalU64`] numbers, to which [`PerCid::add`] adds.
//!
//! The ids of [`PerCid`] come from the kernel or from an [`IdSource`] that allocates its own, such as a tenant.
//!
//! # Cost
//!
//! A struct of 64 counters in 3 slots takes 3 × 512 bytes. 64 arrays of padded atomics would take 3 × 8 KiB.
//!
//! Writers. `LocalU64` fields: sections of the slot's CPU, or locked adds; with an [`IdSource`], plain adds of the
//! id's holder. Other fields: the user.

use crate::pool::{Block, Pool, SHARED_BYTES_MAX, SLOT_BYTES};
use crate::sync::{AtomicU64, Ordering::Relaxed};
use crate::words::{probable_slot, registered_area};
use crate::{backend, backend::locks, backend::one_slot, sum::RETRIES};
use bytemuck::Zeroable;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use warmcore_line::PAIR;
use warmcore_sys::rseq::{PercpuMode, RseqArea, section};
use warmcore_types::{Cid, CpuId};

/// A number in a slot, to which [`PerCid::add`] adds: without a locked instruction on the `rseq` backend, and on every
/// backend with an [`IdSource`].
#[repr(transparent)]
#[derive(Zeroable)]
pub struct LocalU64(AtomicU64);

impl LocalU64 {
    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Adds with a plain load and store. The caller must be the only writer.
    #[inline(always)]
    fn add_alone(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
}

/// An allocator of ids other than the kernel, such as a tenant.
///
/// # Safety
/// An id is in [`allocated`](IdSource::allocated) before a holder gets it, and these ranges only grow. Slots outside of
/// them are not cleared for the next owner of the memory.
pub unsafe trait IdSource: Send + Sync {
    /// Calls `act` with an id that no other thread holds during the call: the id of the guard that this thread
    /// holds, or else a temporary one. The accesses of the id's previous holder happened before this call of
    /// `act`.
    fn with_id(&self, act: &mut dyn FnMut(Cid));

    /// Returns all ids that were ever allocated, as two ranges. They only grow.
    fn allocated(&self) -> [Range<u32>; 2];
}

/// The holder of an id, such as a tenant's guard.
///
/// # Safety
/// The id was allocated by `source`, and no other thread holds it while the holder lives.
pub unsafe trait CidHolder {
    /// Returns the id. No other thread holds it while the holder lives.
    fn cid(&self) -> Cid;

    /// Returns the allocator of the id.
    fn source(&self) -> &dyn IdSource;
}

/// The slot of an id that the caller holds, so no other thread adds to it. Returned by [`PerCid::owned_slot`].
pub struct OwnedSlot<'a, T> {
    slot: &'a T,
    /// The holder of an id stays on its thread, so an `OwnedSlot` must stay there too.
    not_send: PhantomData<*const ()>,
}

impl<T> OwnedSlot<'_, T> {
    /// Adds `n` to one number of the slot, with a load and a store; wraps around at 2⁶⁴.
    ///
    /// **Touches** the line of that number, for writing.
    #[inline(always)]
    pub fn add(&self, field: Field<T>, n: u64) {
        field.of(self.slot).add_alone(n);
    }
}

impl<T> std::ops::Deref for OwnedSlot<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.slot
    }
}

impl fmt::Debug for LocalU64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

/// Names a [`LocalU64`] field of a `T`. Made by [`field!`](crate::field).
pub struct Field<T> {
    offset: usize,
    of: PhantomData<fn(T)>,
}

impl<T> Field<T> {
    /// The `LocalU64` at byte `offset` of every `T`. Use [`field!`](crate::field).
    ///
    /// # Safety
    /// There is a `LocalU64` at that offset in every valid `T`.
    #[doc(hidden)]
    pub const unsafe fn new(offset: usize, _: fn(&T) -> &LocalU64) -> Self {
        assert!(offset + size_of::<LocalU64>() <= size_of::<T>());
        Self { offset, of: PhantomData }
    }

    #[inline(always)]
    fn of(self, slot: &T) -> &LocalU64 {
        // SAFETY: the field is a `LocalU64` inside every T, by `new`'s contract.
        unsafe { &*std::ptr::from_ref(slot).byte_add(self.offset).cast::<LocalU64>() }
    }
}

impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Field<T> {}

/// Returns the [`Field`] of a struct by its name: `field!(Stats, hits)`. The field's type must be [`LocalU64`]; a field
/// of another type, also one that derefs to it, does not compile:
///
/// ```compile_fail,E0308
/// use warmcore_percpu::{LocalU64, PerCid, field};
///
/// #[derive(bytemuck::Zeroable)]
/// struct Stats {
///     hits: u64,
/// }
/// PerCid::<Stats>::new().add(field!(Stats, hits), 1);
/// ```
#[macro_export]
macro_rules! field {
    ($type:ty, $field:ident) => {
        const {
            // SAFETY: a raw borrow is not coerced, so the field has the type that `new` requires;
            // the plain borrow rejects packed structs and unions.
            unsafe {
                $crate::Field::<$type>::new(::core::mem::offset_of!($type, $field), |of| {
                    let _: *const $crate::LocalU64 = &raw const of.$field;
                    &of.$field
                })
            }
        }
    };
}

macro_rules! per {
    ($(#[$doc:meta])* $name:ident, $id:ident, $mode:expr) => {
        $(#[$doc])*
        pub struct $name<T: Zeroable + Sync + 'static> {
            block: Block,
            /// The allocator of the ids; `None` for the kernel's ids.
            source: Option<Arc<dyn IdSource>>,
            of: PhantomData<T>,
        }

        // SAFETY: the slots hold `T`s that are shared between threads, so T is Sync; they are
        // never moved out or dropped, so it need not be Send.
        unsafe impl<T: Zeroable + Sync> Send for $name<T> {}
        // SAFETY: as above.
        unsafe impl<T: Zeroable + Sync> Sync for $name<T> {}

        impl<T: Zeroable + Sync> $name<T> {
            /// Creates a zeroed `T` per slot; a slot gets memory when it is first written. Panics if
            /// [`backend`](crate::backend()) does, or if no address space is left.
            pub fn new() -> Self {
                Self::in_pool(Pool::of($mode))
            }

            /// As [`new`](Self::new), in a pool that other data may share, with the pool's number of slots. Panics if
            /// the kernel may use more ids than the pool has slots.
            pub fn in_pool(pool: &Pool) -> Self {
                let (slots, least) = (pool.slots(), warmcore_sys::affinity::nr_cpu_ids());
                assert!(slots >= least, "{slots} slots, and this kernel may give ids up to {}", least - 1);
                const { assert!(!std::mem::needs_drop::<T>(), "slots are never dropped") };
                backend();
                Self { block: pool.block(size_of::<T>(), align_of::<T>()), source: None, of: PhantomData }
            }

            /// Returns the allocator of the ids, or `None` for the kernel's ids. A constant for `PerCpu`.
            #[inline(always)]
            fn source(&self) -> Option<&Arc<dyn IdSource>> {
                match $mode {
                    PercpuMode::Cpu => None,
                    PercpuMode::Cid => self.source.as_ref(),
                }
            }

            /// Returns the slots that may have been written: with the kernel's ids also the spare slot.
            fn written(&self) -> [Range<usize>; 2] {
                match self.source() {
                    None => [0..self.slots() + 1, 0..0],
                    Some(source) => source
                        .allocated()
                        .map(|ids| ids.start as usize..(ids.end as usize).min(self.slots())),
                }
            }

            /// As [`new`](Self::new), with the slots of a machine of `slots` CPUs, to measure their cost. Panics if
            /// the running machine may have more CPUs.
            pub fn with_slots(slots: usize) -> Self {
                Self::in_pool(&Pool::with_slots(slots))
            }

            /// Returns the number of slots, without the spare one: at least one for every id that the kernel may use,
            /// or the number of the pool given to [`PerCid::of`].
            pub fn slots(&self) -> usize {
                self.block.slots()
            }

            /// Returns the distance from one slot to the next, in bytes.
            #[inline(always)]
            pub fn stride(&self) -> usize {
                // Small data shares a chunk with other data; the stride of such a chunk is a constant.
                if size_of::<T>() <= SHARED_BYTES_MAX { SLOT_BYTES } else { self.block.stride() }
            }

            /// Returns the memory of all slots in bytes: the pages of the touched slots. Small data shares these pages
            /// with other data of the same slots. Fails if the system cannot report it.
            pub fn resident_bytes(&self) -> std::io::Result<usize> {
                self.block.resident_bytes()
            }

            /// Returns the slot of an id, or `None` if there is no such slot or its [`IdSource`] never allocated that
            /// id. Reading a slot that was never written takes no memory.
            #[inline]
            pub fn get(&self, id: $id) -> Option<&T> {
                let exists = match self.source() {
                    None => id.index() < self.slots(),
                    Some(_) => self.written().iter().any(|ids| ids.contains(&id.index())),
                };
                exists.then(|| self.copy(id.index()))
            }

            /// Checks an id of an [`IdSource`] and returns it. Panics if there is no slot for it.
            #[inline(always)]
            fn checked(&self, id: usize) -> usize {
                assert!(id < self.slots(), "id {id} of a source of ids, in a pool of {} slots", self.slots());
                id
            }

            /// Returns a slot's `T`, also the spare slot's.
            fn copy(&self, slot: usize) -> &T {
                debug_assert!(slot <= self.slots());
                // SAFETY: inside the block, aligned; zeroed or written through `&T` since.
                unsafe { &*self.block.base().add(slot * self.stride()).cast::<T>() }
            }

            #[inline(always)]
            fn local(&self, slot: usize, field: Field<T>) -> &LocalU64 {
                field.of(self.copy(slot))
            }

            /// Returns the slot of the CPU, or of the id, with which this thread probably runs. This is a hint: the
            /// thread may migrate before it uses the slot, and another thread may use the slot at the same time.
            #[inline]
            pub fn current(&self) -> &T {
                if let Some(source) = self.source() {
                    let mut id = 0;
                    source.with_id(&mut |cid| id = cid.index());
                    return self.copy(self.checked(id));
                }
                // If sections run and the thread has an area, the slot that a section would use; otherwise the slot of
                // the CPU, which the locked adds of the `atomic` backend use.
                let id = if locks() { None } else { RseqArea::lookup($mode).map(|area| area.index() as usize) };
                self.copy(id.filter(|id| *id < self.slots()).unwrap_or_else(|| probable_slot(self.slots())))
            }

            /// Iterates over all slots with their ids; with an [`IdSource`], over the slots of all ids that it ever
            /// allocated.
            pub fn iter(&self) -> impl Iterator<Item = ($id, &T)> {
                let ids = self.written().into_iter().flatten();
                ids.filter_map(|id| Some(($id(id as u32), self.get($id(id as u32))?)))
            }

            /// Adds `n` to one number of this thread's slot; wraps around at 2⁶⁴.
            ///
            /// With an [`IdSource`], a thread that holds no id takes one for the duration of the call and panics in the
            /// same cases as taking one does. A thread that holds an id can use [`PerCid::owned_slot`]. An add with an
            /// [`IdSource`] is not allowed in a signal handler, which may interrupt another add between its load and
            /// its store.
            ///
            /// **Touches** the line of that number, for writing.
            #[inline(always)]
            pub fn add(&self, field: Field<T>, n: u64) {
                if let Some(source) = self.source() {
                    // No other thread holds the id during the call: a plain load and store suffice.
                    return source.with_id(&mut |cid| {
                        self.local(self.checked(cid.index()), field).add_alone(n);
                    });
                }
                if let Some(area) = RseqArea::current($mode) {
                    let base = self.block.base().wrapping_add(field.offset);
                    // SAFETY: a `LocalU64` inside every slot's T. Only sections write it, or only locked adds on the
                    // backends without sections: see `add_slow`.
                    if unsafe { section::add_strided(area, base, self.stride(), n) } {
                        return;
                    }
                }
                self.add_slow(field, n);
            }

            #[inline(never)]
            fn add_slow(&self, field: Field<T>, n: u64) {
                let tried = |area| {
                    let base = self.block.base().wrapping_add(field.offset);
                    // SAFETY: as in `add`.
                    (0..RETRIES).any(|_| unsafe { section::add_strided(area, base, self.stride(), n) })
                };
                if !locks() && registered_area($mode).is_some_and(tried) {
                    return;
                }
                // This thread cannot run a section. A locked add to a slot that sections write could lose an
                // update: on `rseq` it goes to the spare slot.
                let slot = if !locks() {
                    self.slots()
                } else if one_slot() {
                    0
                } else {
                    probable_slot(self.slots())
                };
                self.local(slot, field).0.fetch_add(n, Relaxed);
            }

            /// Returns the sum of the field over all slots, which are read one after the other.
            pub fn sum(&self, field: Field<T>) -> u64 {
                let slots = self.written().into_iter().flatten();
                slots.map(|slot| self.local(slot, field).get()).fold(0, u64::wrapping_add)
            }
        }

        impl<T: Zeroable + Sync> Default for $name<T> {
            fn default() -> Self {
                Self::new()
            }
        }

        impl<T: Zeroable + Sync> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("slots", &self.slots()).field("stride", &self.stride()).finish()
            }
        }

        impl<T: Zeroable + Sync> Drop for $name<T> {
            fn drop(&mut self) {
                let written = self.written();
                self.block.only_written(written);
            }
        }
    };
}

per!(
    /// One `T` per concurrency id. The ids are the kernel's (since Linux 6.3 as a rule below the number of the
    /// process's threads, before that the CPU numbers), or those of an [`IdSource`].
    ///
    /// ```
    /// use bytemuck::Zeroable;
    /// use warmcore_percpu::{LocalU64, PerCid, field};
    ///
    /// #[derive(Zeroable)]
    /// struct Stats {
    ///     hits: LocalU64,
    ///     misses: LocalU64,
    /// }
    ///
    /// let stats: PerCid<Stats> = PerCid::new();
    /// stats.add(field!(Stats, hits), 3);
    /// stats.add(field!(Stats, misses), 1);
    /// assert_eq!(stats.sum(field!(Stats, hits)), 3);
    /// ```
    PerCid,
    Cid,
    PercpuMode::Cid
);

impl<T: Zeroable + Sync> PerCid<T> {
    /// Creates a zeroed `T` per slot of `pool`, indexed by the ids of `source`. The pool must have a slot for each of
    /// these ids. Data of other owners in the pool is never on the same cache line.
    pub fn of(pool: &Pool, source: Arc<dyn IdSource>) -> Self {
        const { assert!(!std::mem::needs_drop::<T>(), "slots are never dropped") };
        // Different owners use the same id on different CPUs at the same time, so they must not share a line.
        let block = pool.block(size_of::<T>().next_multiple_of(PAIR), PAIR.max(align_of::<T>()));
        Self { block, source: Some(source), of: PhantomData }
    }

    /// Returns the slot of the id that `holder` holds. Panics if that id is of another source than these slots, or if
    /// the pool has no slot for it.
    #[inline]
    pub fn owned_slot<'a>(&'a self, holder: &'a impl CidHolder) -> OwnedSlot<'a, T> {
        let theirs = std::ptr::from_ref(holder.source()).cast::<()>();
        let ours = self.source.as_ref().map(|source| Arc::as_ptr(source).cast::<()>());
        assert!(ours == Some(theirs), "the data of one tenant, and a guard of another");
        OwnedSlot { slot: self.copy(self.checked(holder.cid().index())), not_send: PhantomData }
    }
}

per!(
    /// One `T` per CPU, indexed by the kernel's CPU number. [`PerCid`] touches fewer slots, for data that need not
    /// belong to a certain CPU.
    ///
    /// ```
    /// use bytemuck::Zeroable;
    /// use warmcore_percpu::{LocalU64, PerCpu, field};
    ///
    /// #[derive(Zeroable)]
    /// struct Load {
    ///     requests: LocalU64,
    /// }
    ///
    /// let load: PerCpu<Load> = PerCpu::new();
    /// load.add(field!(Load, requests), 1);
    /// let per_cpu: Vec<u64> = load.iter().map(|(_cpu, load)| load.requests.get()).collect();
    /// assert_eq!(per_cpu.iter().sum::<u64>(), 1);
    /// ```
    PerCpu,
    CpuId,
    PercpuMode::Cpu
);
