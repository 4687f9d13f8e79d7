//! PerCpu and PerCid: your own struct, one per slot.
//!
//! Model.   Slots start as zeros and exist when touched, so `T` must make sense as zeros and
//!          nobody's `Drop` runs. Shared access is what one gets: [`PerCid::current`] is a hint,
//!          since the thread may be moved the moment after; so fields are atomics, or [`LocalU64`]
//!          numbers that are added to in a restartable section.
//!          Ids come from the kernel, or from a host that hands out its own ([`IdSource`]: a
//!          tenant); one uses the same `PerCid` with either.
//! Number.  A struct of 64 counters in 3 slots is 3 × 512 bytes; as 64 arrays of padded atomics
//!          it would be 3 × 8 KiB.
//! Writers. `LocalU64` fields: sections of the slot's holder, or locked adds; with a host's ids, plain
//!          adds of the id's holder. Others: the user.

use crate::pool::{Block, Pool, SHARED_BYTES_MAX, SLOT_BYTES};
use crate::sync::{AtomicU64, Ordering::Relaxed};
use crate::{backend, backend::locks, backend::one_slot, sum::RETRIES, words::probable_slot};
use bytemuck::Zeroable;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use warmcore_line::PAIR;
use warmcore_sys::rseq::{PercpuMode, RseqArea, section};
use warmcore_types::{Cid, CpuId};

/// A number in a slot, which [`PerCid::add`] adds to without a locked instruction.
#[repr(transparent)]
#[derive(Zeroable)]
pub struct LocalU64(AtomicU64);

impl LocalU64 {
    /// The value at some moment.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// An add by who alone writes it.
    #[inline(always)]
    fn add_alone(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
}

/// Who hands out ids of its own: a tenant.
///
/// # Safety
/// Every id that it gives is in [`allocated`](IdSource::allocated) from before on, and those ranges
/// only grow: slots beyond are not cleared for the next owner of the memory.
pub unsafe trait IdSource: Send + Sync {
    /// Runs `act` with an id that no other thread has meanwhile: that of the guard which this thread
    /// holds, or one for this moment. What the id's last holder did happened before.
    fn with_id(&self, act: &mut dyn FnMut(Cid));

    /// All ids that were ever handed out, as two ranges. They only grow.
    fn allocated(&self) -> [Range<u32>; 2];
}

/// Whoever holds an id: a tenant's guard.
///
/// # Safety
/// The id was handed out by `source`.
pub unsafe trait CidHolder {
    /// The id, which no other thread has as long as the holder lives.
    fn cid(&self) -> Cid;

    /// Who handed it out.
    fn source(&self) -> &dyn IdSource;
}

/// The slot of an id that one holds: nobody else adds to it. Made by [`PerCid::owned_slot`].
pub struct OwnedSlot<'a, T> {
    slot: &'a T,
    /// A holder must not leave its thread, nor may this.
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

/// Which [`LocalU64`] of a `T`; made by [`field!`](crate::field).
pub struct Field<T> {
    offset: usize,
    of: PhantomData<fn(T)>,
}

impl<T> Field<T> {
    /// The `LocalU64` that stands `offset` bytes into every `T`. Use [`field!`](crate::field).
    ///
    /// # Safety
    /// There is one, in whatever state the `T` is.
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

/// The [`Field`] of a struct by its name: `field!(Stats, hits)`. Does not compile unless it is a
/// [`LocalU64`] itself, not only something that derefs to one:
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
            // SAFETY: the raw borrow, which nothing coerces, has the type that the offset needs;
            // the plain one refuses packed structs and unions.
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
            /// None: the kernel's ids.
            source: Option<Arc<dyn IdSource>>,
            of: PhantomData<T>,
        }

        // SAFETY: the slots hold `T`s that are shared between threads, so T is Sync; they are
        // never moved out or dropped, so it need not be Send.
        unsafe impl<T: Zeroable + Sync> Send for $name<T> {}
        // SAFETY: as above.
        unsafe impl<T: Zeroable + Sync> Sync for $name<T> {}

        impl<T: Zeroable + Sync> $name<T> {
            /// A zeroed `T` in every slot, without memory until it is touched. Panics where
            /// [`backend`](crate::backend()) does, or without address space.
            pub fn new() -> Self {
                Self::on(Pool::of($mode))
            }

            fn on(pool: &Pool) -> Self {
                let (slots, least) = (pool.slots(), warmcore_sys::affinity::nr_cpu_ids());
                assert!(slots >= least, "{slots} slots, and this kernel may give ids up to {}", least - 1);
                const { assert!(!std::mem::needs_drop::<T>(), "slots are never dropped") };
                backend();
                Self { block: pool.block(size_of::<T>(), align_of::<T>()), source: None, of: PhantomData }
            }

            /// A host's ids, if the ids are a host's. Known when compiled, where they never are.
            #[inline(always)]
            fn source(&self) -> Option<&Arc<dyn IdSource>> {
                match $mode {
                    PercpuMode::Cpu => None,
                    PercpuMode::Cid => self.source.as_ref(),
                }
            }

            /// The slots that may have been written.
            fn written(&self) -> [Range<usize>; 2] {
                match self.source() {
                    None => [0..self.slots() + 1, 0..0],
                    Some(source) => source
                        .allocated()
                        .map(|ids| ids.start as usize..(ids.end as usize).min(self.slots())),
                }
            }

            /// As [`new`](Self::new), as on a machine of `slots` CPUs, to see what that costs.
            /// Panics if this machine has more.
            pub fn with_slots(slots: usize) -> Self {
                Self::on(&Pool::with_slots(slots))
            }

            /// As [`new`](Self::new), in a pool that is shared with whom one likes, with one slot for
            /// each of its ids. Panics if the kernel may give more.
            pub fn in_pool(pool: &Pool) -> Self {
                Self::on(pool)
            }

            /// How many slots there are: one for every id that the kernel, or the host, may give.
            pub fn slots(&self) -> usize {
                self.block.slots()
            }

            /// From one slot to the next, in bytes.
            #[inline(always)]
            pub fn stride(&self) -> usize {
                // What shares pages with others has their stride: known when compiled.
                if size_of::<T>() <= SHARED_BYTES_MAX { SLOT_BYTES } else { self.block.stride() }
            }

            /// How many bytes of memory the slots have now: pages of the touched ones, shared with
            /// other data of the same slots if they are small. An error where the system can't say.
            pub fn resident_bytes(&self) -> std::io::Result<usize> {
                self.block.resident_bytes()
            }

            /// The slot of an id, if there is such a slot; with a host's ids, if that id was ever
            /// handed out. Reading one that was never written costs no memory.
            #[inline]
            pub fn get(&self, id: $id) -> Option<&T> {
                let exists = match self.source() {
                    None => id.index() < self.slots(),
                    Some(_) => self.written().iter().any(|ids| ids.contains(&id.index())),
                };
                exists.then(|| self.copy(id.index()))
            }

            /// A host's id, if there is a slot for it.
            #[inline(always)]
            fn checked(&self, id: usize) -> usize {
                assert!(id < self.slots(), "a host's id {id}, and a pool of {} slots", self.slots());
                id
            }

            /// A slot's `T`, the spare slot's as well.
            fn copy(&self, slot: usize) -> &T {
                debug_assert!(slot <= self.slots());
                // SAFETY: inside the block, aligned; zeroed or written through `&T` since.
                unsafe { &*self.block.base().add(slot * self.stride()).cast::<T>() }
            }

            #[inline(always)]
            fn local(&self, slot: usize, field: Field<T>) -> &LocalU64 {
                field.of(self.copy(slot))
            }

            /// The slot that this thread probably runs on. A hint: it may run elsewhere by the
            /// time it looks, and somebody else on the slot.
            #[inline]
            pub fn current(&self) -> &T {
                if let Some(source) = self.source() {
                    let mut id = 0;
                    source.with_id(&mut |cid| id = cid.index());
                    return self.copy(self.checked(id));
                }
                // Where sections run, their slot; else the one that locked adds would take.
                let id = if locks() { None } else { RseqArea::lookup($mode).map(|area| area.index() as usize) };
                self.copy(id.filter(|id| *id < self.slots()).unwrap_or_else(|| probable_slot(self.slots())))
            }

            /// Every slot with its id; with a host's ids, those that were ever handed out.
            pub fn iter(&self) -> impl Iterator<Item = ($id, &T)> {
                let ids = self.written().into_iter().flatten();
                ids.filter_map(|id| Some(($id(id as u32), self.get($id(id as u32))?)))
            }

            /// Adds `n` to one number of this thread's slot; wraps around at 2⁶⁴.
            ///
            /// With a host's ids it takes one for the moment, if this thread holds none, and panics
            /// where that would: [`PerCid::owned_slot`] is for who has one. And then it is not for signal
            /// handlers, which may come between a load and a store.
            ///
            /// **Touches** the line of that number, for writing.
            #[inline(always)]
            pub fn add(&self, field: Field<T>, n: u64) {
                if let Some(source) = self.source() {
                    // The id is this thread's alone meanwhile: load and store, nothing locked.
                    return source.with_id(&mut |cid| {
                        self.local(self.checked(cid.index()), field).add_alone(n);
                    });
                }
                if let Some(area) = RseqArea::current($mode) {
                    let base = self.block.base().wrapping_add(field.offset);
                    // SAFETY: a `LocalU64` inside every slot's T; only sections and, where no
                    // section runs, locked adds write it, never both: see `add_slow`.
                    if unsafe { section::add_strided(area, base, self.stride(), n) } {
                        return;
                    }
                }
                self.add_slow(field, n);
            }

            #[inline(never)]
            fn add_slow(&self, field: Field<T>, n: u64) {
                if !locks() && warmcore_sys::rseq::register_thread() {
                    if let Some(area) = RseqArea::lookup($mode) {
                        let base = self.block.base().wrapping_add(field.offset);
                        // SAFETY: as in `add`.
                        if (0..RETRIES).any(|_| unsafe { section::add_strided(area, base, self.stride(), n) }) {
                            return;
                        }
                    }
                }
                // No section runs for this thread. A locked add to a slot that sections write
                // would lose theirs or its own: on `rseq` it goes to the spare slot.
                let slot = if !locks() {
                    self.slots()
                } else if one_slot() {
                    0
                } else {
                    probable_slot(self.slots())
                };
                self.local(slot, field).0.fetch_add(n, Relaxed);
            }

            /// The number's sum over all slots, each read at a moment of its own.
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
    /// One `T` per concurrency id: the kernel's, at most as many as there are threads, or a host's
    /// own, at most as many as run at once.
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
    /// A zeroed `T` for every id that `source` hands out, in a pool with a slot for each of them.
    /// The slots of other owners in that pool are never on the same line.
    pub fn of(pool: &Pool, source: Arc<dyn IdSource>) -> Self {
        const { assert!(!std::mem::needs_drop::<T>(), "slots are never dropped") };
        // Two owners run the same ids on different CPUs.
        let block = pool.block(size_of::<T>().next_multiple_of(PAIR), PAIR.max(align_of::<T>()));
        Self { block, source: Some(source), of: PhantomData }
    }

    /// The slot of the id that one holds. Panics if it was handed out by somebody else than these
    /// slots belong to.
    #[inline]
    pub fn owned_slot<'a>(&'a self, holder: &'a impl CidHolder) -> OwnedSlot<'a, T> {
        let theirs = std::ptr::from_ref(holder.source()).cast::<()>();
        let ours = self.source.as_ref().map(|source| Arc::as_ptr(source).cast::<()>());
        assert!(ours == Some(theirs), "the data of one tenant, and a guard of another");
        OwnedSlot { slot: self.copy(self.checked(holder.cid().index())), not_send: PhantomData }
    }
}

per!(
    /// One `T` per CPU, by the kernel's numbers. Where ids need not mean a CPU, [`PerCid`]
    /// touches fewer slots.
    PerCpu,
    CpuId,
    PercpuMode::Cpu
);
