//! Caches: which extents each core and each last-level cache has.
//!
//! For each core there is a list of extents, the most recently touched first, as many as fit into its L2 (or L1, if
//! that is larger), and at most 64. With fewer than 64 this is exactly an LRU cache, because a pass always covers a
//! whole extent. An entry has the extent's version; a write increments the version, which invalidates the entries of
//! other cores without a search for them. A core that wrote last and still has the extent writes without that, if no
//! other core has read it since.
//!
//! For each extent there is a list of the last-level caches that have it, each with the number of bytes that had come
//! into the cache when the extent was last requested from it. The cache has evicted the extent if the bytes that have
//! come in since then, and the extent's own bytes, are more than the cache's size.
//!
//! A touch examines the core's list of up to 64 entries, mostly only the first one. If the core does not have the
//! extent, or has to invalidate other copies, a touch also examines up to 8 last-level caches.

use super::{Access, CpuLocation, NOWHERE, PAGE_BYTES, Pages};
use std::collections::VecDeque;
use warmcore_topo::Distance;

/// The most extents in a core's list.
const KEPT_MAX: usize = 64;

/// The most last-level caches that an extent lists.
const HOLDERS: usize = 8;

/// Where a pass finds its extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// In the caches of the core that makes the pass; no other core has it.
    Own,
    /// In the caches of the core that makes the pass, and in others; the farthest of the others is at this distance.
    Shared(Distance),
    /// In the last-level cache of the core that makes the pass.
    Llc,
    /// In another core or last-level cache at this distance. For a write: the farthest copy that has to be
    /// invalidated.
    Core(Distance),
    /// In memory.
    Nowhere,
}

/// A last-level cache that has, or had, the extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    llc: u32,
    /// The core that last requested the extent from this cache.
    core: u32,
    /// Whether cores of this last-level cache other than `core` may have the extent too.
    several: bool,
    /// The bytes that had come into this cache when the extent was last requested from it.
    came: u64,
}

/// For [`Holder::came`]: the extent was evicted.
const LONG_AGO: u64 = u64::MAX;

const NO_HOLDER: Holder = Holder { llc: NOWHERE, core: NOWHERE, several: false, came: 0 };

/// A working set. The fields that a pass needs if the core has a copy come first.
#[derive(Debug, Clone)]
#[repr(C)]
pub(super) struct Extent {
    pub(super) bytes: u64,
    /// Incremented by each write that invalidates copies.
    version: u32,
    /// The core of the last writer, until another core reads.
    dirty: u32,
    /// The index of the node of its pages; `NOWHERE` before the first touch if no node was given.
    pub(super) home: u32,
    pub(super) pages: Pages,
    were_read: bool,
    were_written: bool,
    /// Whether `home` was given at the start.
    is_placed: bool,
    /// The most recently requested first.
    holders: [Holder; HOLDERS],
}

impl Extent {
    pub(super) fn new(bytes: u64, pages: Pages, home: u32) -> Self {
        Self {
            bytes,
            version: 0,
            dirty: NOWHERE,
            home,
            pages,
            were_read: false,
            were_written: false,
            is_placed: home != NOWHERE,
            holders: [NO_HOLDER; HOLDERS],
        }
    }

    /// The number of pages that fault in a pass by a CPU of `node`. Faults allocate the pages on that node unless
    /// another one was given at the start, even if the pages were read before.
    pub(super) fn faults(&mut self, how: Access, node: u32) -> u64 {
        let (was_read, was_written) = (self.were_read, self.were_written);
        match how {
            Access::Read => self.were_read = true,
            Access::Write => self.were_written = true,
        }
        let first = match (self.pages, how) {
            (Pages::Touched, _) | (Pages::CopyOnWrite, Access::Read) => false,
            (Pages::Anonymous, Access::Read) => !was_read && !was_written,
            (_, Access::Write) => !was_written,
        };
        if self.home == NOWHERE || first && !self.is_placed {
            self.home = node;
        }
        if first { self.bytes.div_ceil(PAGE_BYTES) } else { 0 }
    }
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    extent: u32,
    version: u32,
    bytes: u64,
}

/// What a core's own caches have.
#[derive(Debug, Clone, Default)]
struct Own {
    /// The most recently touched first.
    kept: VecDeque<Kept>,
    /// The sum of their bytes.
    bytes: u64,
}

impl Own {
    fn position(&self, extent: u32) -> Option<usize> {
        self.kept.iter().position(|kept| kept.extent == extent)
    }

    fn take_out(&mut self, extent: u32) -> Option<Kept> {
        let kept = self.kept.remove(self.position(extent)?)?;
        self.bytes -= kept.bytes;
        Some(kept)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Caches {
    own_bytes: u64,
    llc_bytes: u64,
    /// By core.
    own: Vec<Own>,
    /// By last-level cache: the bytes that have come into it.
    came: Vec<u64>,
    /// By core.
    locations: Vec<CpuLocation>,
}

impl Caches {
    /// `locations`: by core. `own_bytes`, `llc_bytes`: the size of a core's own caches, and of a last-level cache.
    pub(super) fn new(locations: Vec<CpuLocation>, llcs: usize, own_bytes: u64, llc_bytes: u64) -> Self {
        let own = vec![Own::default(); locations.len()];
        Self { own_bytes, llc_bytes, own, came: vec![0; llcs], locations }
    }

    /// Whether a pass finds the whole extent in the core's own caches and invalidates no other copy. If so, the extent
    /// becomes the first in the core's list, where it mostly is already.
    #[inline]
    pub(super) fn hit(&mut self, extents: &[Extent], extent: u32, me: CpuLocation, how: Access) -> bool {
        let (own, at) = (&mut self.own[me.core as usize], &extents[extent as usize]);
        if how == Access::Write && at.dirty != me.core {
            return false;
        }
        let Some(index) = own.position(extent).filter(|index| own.kept[*index].version == at.version) else {
            return false;
        };
        if index > 0 {
            let kept = own.kept.remove(index);
            kept.into_iter().for_each(|kept| own.kept.push_front(kept));
        }
        true
    }

    /// Where a core finds an extent. If the core has it: `Own`, or `Shared` with the distance of the farthest other
    /// copy. If not: the nearest copy for a read, the farthest one for a write.
    pub(super) fn find(&self, extents: &[Extent], extent: u32, me: CpuLocation, how: Access) -> Found {
        let at = &extents[extent as usize];
        let location_of = |core: u32| self.locations[core as usize];
        let others = at.holders.iter().filter(|h| h.llc != NOWHERE && (h.core != me.core || h.several));
        if self.core_has(me.core, extent, at.version) {
            if at.dirty == me.core {
                return Found::Own;
            }
            // A write invalidates all other copies; the farthest one decides how long that takes.
            let others = others.filter(|h| self.llc_has(h, at) || self.core_has(h.core, extent, at.version));
            let far = others.map(|h| me.distance(location_of(h.core)).max(Distance::Llc)).max();
            return far.map_or(Found::Own, Found::Shared);
        }
        let copies = at.holders.iter().filter(|h| h.llc != NOWHERE).filter_map(|holder| {
            let in_llc = self.llc_has(holder, at);
            let in_core = holder.core != me.core && self.core_has(holder.core, extent, at.version);
            Some(match () {
                // If another core of this cache wrote the extent and still has it, it comes from that core; otherwise
                // from the cache.
                _ if holder.llc == me.llc && in_core && at.dirty == holder.core => Found::Core(Distance::Llc),
                _ if holder.llc == me.llc && in_llc => Found::Llc,
                _ if holder.llc == me.llc && in_core => Found::Core(Distance::Llc),
                _ if holder.llc == me.llc || !(in_llc || in_core) => return None,
                _ => Found::Core(me.distance(location_of(holder.core))),
            })
        });
        let found = match how {
            Access::Read => copies.min_by_key(|found| rank(*found)),
            Access::Write => copies.max_by_key(|found| rank(*found)),
        };
        found.unwrap_or(Found::Nowhere)
    }

    /// Records a pass.
    pub(super) fn touched(&mut self, extents: &mut [Extent], extent: u32, me: CpuLocation, how: Access) {
        let at = &mut extents[extent as usize];
        let mine = self.own[me.core as usize].take_out(extent);
        let mine = mine.is_some_and(|kept| kept.version == at.version);
        let alone = at.dirty == me.core && mine;
        if how == Access::Write && !alone {
            let own = at.holders.iter().find(|h| h.llc == me.llc).copied();
            at.holders = [NO_HOLDER; HOLDERS];
            at.holders[0] = match own {
                Some(own) => Holder { core: me.core, several: false, ..own },
                // The extent's list has forgotten this last-level cache, though the core still has the extent. The
                // cache may have evicted the extent, so it counts as evicted.
                None if mine => Holder { llc: me.llc, core: me.core, several: false, came: LONG_AGO },
                None => NO_HOLDER,
            };
            at.version = at.version.wrapping_add(1);
            at.dirty = me.core;
        } else if how == Access::Read && at.dirty != me.core {
            at.dirty = NOWHERE;
        }
        if !mine {
            self.ask_llc(at, me);
        }
        let (version, bytes) = (at.version, at.bytes);
        self.keep(extents, me.core, Kept { extent, version, bytes });
    }

    /// Records a request to the core's last-level cache, which then has the extent.
    fn ask_llc(&mut self, at: &mut Extent, me: CpuLocation) {
        let slot = at.holders.iter().position(|h| h.llc == me.llc);
        let had = slot.is_some_and(|slot| self.llc_has(&at.holders[slot], at));
        let several = slot.is_some_and(|slot| at.holders[slot].several || at.holders[slot].core != me.core);
        let came = &mut self.came[me.llc as usize];
        if !had {
            *came = came.saturating_add(at.bytes).min(LONG_AGO - 1);
        }
        let slot = slot.unwrap_or(HOLDERS - 1);
        at.holders[..=slot].rotate_right(1);
        at.holders[0] = Holder { llc: me.llc, core: me.core, several, came: *came };
    }

    /// Flushes a core's own caches into the last-level cache.
    pub(super) fn flush_core(&mut self, extents: &mut [Extent], me: CpuLocation) {
        let mut own = std::mem::take(&mut self.own[me.core as usize]);
        // The oldest first, as they would have been evicted.
        for kept in own.kept.drain(..).rev() {
            let at = &mut extents[kept.extent as usize];
            if kept.version == at.version {
                self.ask_llc(at, me);
            }
        }
        // The list is empty; its allocation is used again.
        own.bytes = 0;
        self.own[me.core as usize] = own;
    }

    pub(super) fn bytes(&self) -> usize {
        let kept = self.own.iter().map(|own| own.kept.capacity() * size_of::<Kept>()).sum::<usize>();
        let locations = self.locations.capacity() * size_of::<CpuLocation>();
        kept + self.own.capacity() * size_of::<Own>() + self.came.capacity() * 8 + locations
    }

    fn core_has(&self, core: u32, extent: u32, version: u32) -> bool {
        let own = &self.own[core as usize];
        own.position(extent).is_some_and(|index| own.kept[index].version == version)
    }

    fn llc_has(&self, holder: &Holder, at: &Extent) -> bool {
        let since = self.came[holder.llc as usize].saturating_sub(holder.came);
        holder.came != LONG_AGO && since.saturating_add(at.bytes) <= self.llc_bytes
    }

    /// Puts an extent first in the core's list; what no longer fits is evicted. An extent that is larger than the
    /// core's caches evicts all others and is not put into the list.
    fn keep(&mut self, extents: &[Extent], core: u32, new: Kept) {
        let own = &mut self.own[core as usize];
        let fits = |bytes: u64| bytes.saturating_add(new.bytes) <= self.own_bytes;
        if !fits(own.bytes) || own.kept.len() == KEPT_MAX {
            // Remove invalidated entries first.
            own.kept.retain(|kept| extents[kept.extent as usize].version == kept.version);
            own.kept.truncate(KEPT_MAX - 1);
            own.bytes = own.kept.iter().map(|kept| kept.bytes).sum();
            while !fits(own.bytes) {
                let Some(last) = own.kept.pop_back() else { return };
                own.bytes -= last.bytes;
            }
        }
        own.kept.push_front(new);
        own.bytes += new.bytes;
    }
}

fn rank(found: Found) -> u32 {
    match found {
        Found::Own | Found::Shared(_) => 0,
        Found::Llc => 1,
        Found::Core(distance) => 1 + distance as u32,
        Found::Nowhere => u32::MAX,
    }
}
