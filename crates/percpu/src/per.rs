//! PerCpu and PerCid: your own struct, one per slot.
//!
//! Model.   Slots start as zeros and exist when touched, so `T` must make sense as zeros and
//!          nobody's `Drop` runs. Shared access is what one gets: [`PerCid::here`] is a hint,
//!          since the thread may be moved the moment after; so fields are atomics, or [`Local`]
//!          numbers that are added to in a restartable section.
//! Number.  A struct of 64 counters in 3 slots is 3 × 512 bytes; as 64 arrays of padded atomics
//!          it would be 3 × 8 KiB.
//! Writers. `Local` fields: sections of the slot's holder, or locked adds. Others: the user.

use crate::sync::{AtomicU64, Ordering::Relaxed};
use crate::{mode, mode::locks, mode::one_slot, pool::Block, pool::Pool, sum::RETRIES, words::probable_slot};
use bytemuck::Zeroable;
use std::fmt;
use std::marker::PhantomData;
use warmcore_sys::rseq::{Here, Ids, section};
use warmcore_terms::{Cid, CpuId};

/// A number in a slot, which [`PerCid::add`] adds to without a locked instruction.
#[repr(transparent)]
#[derive(Zeroable)]
pub struct Local(AtomicU64);

impl Local {
    /// The value at some moment.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

/// Which [`Local`] of a `T`; made by [`field!`](crate::field).
pub struct Field<T> {
    offset: usize,
    of: PhantomData<fn(T)>,
}

impl<T> Field<T> {
    /// The `Local` that stands `offset` bytes into every `T`. Use [`field!`](crate::field).
    ///
    /// # Safety
    /// There is one, in whatever state the `T` is.
    #[doc(hidden)]
    pub const unsafe fn new(offset: usize, _: fn(&T) -> &Local) -> Self {
        assert!(offset + size_of::<Local>() <= size_of::<T>());
        Self { offset, of: PhantomData }
    }
}

impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Field<T> {}

/// The [`Field`] of a struct by its name: `field!(Stats, hits)`. Does not compile unless it is a
/// [`Local`] itself, not only something that derefs to one:
///
/// ```compile_fail,E0308
/// use warmcore_percpu::{Local, PerCid, field};
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
                    let _: *const $crate::Local = &raw const of.$field;
                    &of.$field
                })
            }
        }
    };
}

macro_rules! per {
    ($(#[$doc:meta])* $name:ident, $id:ident, $ids:expr) => {
        $(#[$doc])*
        pub struct $name<T: Zeroable + Sync + 'static> {
            block: Block,
            of: PhantomData<T>,
        }

        // SAFETY: the slots hold `T`s that are shared between threads, so T is Sync; they are
        // never moved out or dropped, so it need not be Send.
        unsafe impl<T: Zeroable + Sync> Send for $name<T> {}
        // SAFETY: as above.
        unsafe impl<T: Zeroable + Sync> Sync for $name<T> {}

        impl<T: Zeroable + Sync> $name<T> {
            /// A zeroed `T` in every slot, without memory until it is touched. Panics where
            /// [`mode`](crate::mode()) does, or without address space.
            pub fn new() -> Self {
                Self::on(Pool::of($ids))
            }

            fn on(pool: &Pool) -> Self {
                const { assert!(!std::mem::needs_drop::<T>(), "slots are never dropped") };
                mode();
                Self { block: pool.block(size_of::<T>(), align_of::<T>()), of: PhantomData }
            }

            /// As [`new`](Self::new), as on a machine of `slots` CPUs, to see what that costs.
            /// Panics if this machine has more.
            pub fn with_slots(slots: usize) -> Self {
                let least = warmcore_sys::affinity::cpu_numbers_end();
                assert!(slots >= least, "{slots} slots, and this kernel may give ids up to {}", least - 1);
                Self::on(&Pool::with_slots(slots))
            }

            /// How many slots there are: one for every id that the kernel may give.
            pub fn slots(&self) -> usize {
                self.block.slots()
            }

            /// From one slot to the next, in bytes.
            pub fn stride(&self) -> usize {
                self.block.stride()
            }

            /// How many bytes of memory the slots have now: pages of the touched ones, shared with
            /// other data of the same slots if they are small. An error where the system can't say.
            pub fn resident_bytes(&self) -> std::io::Result<usize> {
                self.block.resident_bytes()
            }

            /// The slot of an id, if there is such a slot. Reading one that was never written
            /// costs no memory.
            #[inline]
            pub fn get(&self, id: $id) -> Option<&T> {
                (id.index() < self.slots()).then(|| self.copy(id.index()))
            }

            /// A slot's `T`, the spare slot's as well.
            fn copy(&self, slot: usize) -> &T {
                debug_assert!(slot <= self.slots());
                // SAFETY: inside the block, aligned; zeroed or written through `&T` since.
                unsafe { &*self.block.base().add(slot * self.stride()).cast::<T>() }
            }

            fn local(&self, slot: usize, field: Field<T>) -> &Local {
                // SAFETY: the field is a `Local` inside every T, by `Field::new`'s contract.
                unsafe { &*std::ptr::from_ref(self.copy(slot)).byte_add(field.offset).cast::<Local>() }
            }

            /// The slot that this thread probably runs on. A hint: it may run elsewhere by the
            /// time it looks.
            #[inline]
            pub fn here(&self) -> &T {
                // Where sections run, their slot; else the one that locked adds would take.
                let id = if locks() { None } else { Here::find($ids).map(|here| here.id() as usize) };
                self.copy(id.filter(|id| *id < self.slots()).unwrap_or_else(|| probable_slot(self.slots())))
            }

            /// Every slot with its id.
            pub fn iter(&self) -> impl Iterator<Item = ($id, &T)> {
                (0..self.slots() as u32).filter_map(|id| Some(($id(id), self.get($id(id))?)))
            }

            /// Adds `n` to one number of this thread's slot; wraps around at 2⁶⁴.
            ///
            /// **Touches** the line of that number, for writing.
            #[inline(always)]
            pub fn add(&self, field: Field<T>, n: u64) {
                if let Some(here) = Here::new($ids) {
                    let base = self.block.base().wrapping_add(field.offset);
                    // SAFETY: a `Local` inside every slot's T; only sections and, where no
                    // section runs, locked adds write it, never both: see `add_slowly`.
                    if unsafe { section::add_strided(here, base, self.stride(), n) } {
                        return;
                    }
                }
                self.add_slowly(field, n);
            }

            #[inline(never)]
            fn add_slowly(&self, field: Field<T>, n: u64) {
                if !locks() && warmcore_sys::rseq::register_thread() {
                    if let Some(here) = Here::find($ids) {
                        let base = self.block.base().wrapping_add(field.offset);
                        // SAFETY: as in `add`.
                        if (0..RETRIES).any(|_| unsafe { section::add_strided(here, base, self.stride(), n) }) {
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
                (0..=self.slots()).map(|slot| self.local(slot, field).get()).fold(0, u64::wrapping_add)
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
    };
}

per!(
    /// One `T` per concurrency id of the kernel: at most as many as there are threads.
    ///
    /// ```
    /// use bytemuck::Zeroable;
    /// use warmcore_percpu::{Local, PerCid, field};
    ///
    /// #[derive(Zeroable)]
    /// struct Stats {
    ///     hits: Local,
    ///     misses: Local,
    /// }
    ///
    /// let stats: PerCid<Stats> = PerCid::new();
    /// stats.add(field!(Stats, hits), 3);
    /// stats.add(field!(Stats, misses), 1);
    /// assert_eq!(stats.sum(field!(Stats, hits)), 3);
    /// ```
    PerCid,
    Cid,
    Ids::Cid
);
per!(
    /// One `T` per CPU, by the kernel's numbers. Where ids need not mean a CPU, [`PerCid`]
    /// touches fewer slots.
    PerCpu,
    CpuId,
    Ids::Cpu
);
