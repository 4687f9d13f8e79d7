//! Free list: objects at hand on every CPU, in batches from a shared depot.
//!
//! Model.   Every slot holds a stack of items; popping and pushing touch nothing else. A stack
//!          that runs empty takes half its capacity from the depot, one that runs full puts half
//!          there: a CPU that only frees feeds one that only allocates, with one lock per batch.
//! Number.  62 items a slot (half a KiB) and batches of 31: the lock is taken for 1 operation in
//!          31 where one CPU only pushes or only pops, for none where they balance; and by every
//!          pop that finds nothing anywhere.
//! Protocol. `active` is the address of slot 0's stack. A drain holds the depot's lock, sends
//!          every verb to a stack of all zeros (empty to pop, full to push: `cap` is 0), fences
//!          once, empties the real stacks, and sends the verbs back. Whoever meets the zeros
//!          waits at the lock. A fresh slot is all zeros as well: its first push, under the
//!          lock, gives it its capacity.
//!          On locked instructions a stack has a lock of its own: see `stacks.rs`.
//! Writers. A slot's words: its holder, in sections or under the slot's lock; a drain, once they
//!          are moved away from and fenced, or under the slot's lock.
//! Source.  tcmalloc's per-CPU caches and transfer cache; the layout is our own.

#[cfg_attr(loom, allow(dead_code))]
mod stacks;

#[cfg(not(loom))]
pub use list::{FreeList, Item};

/// A stack's words: how many items, the lock of the `atomic` backend or the capacity on `rseq`
/// (0: never used), then the items. `sys::rseq::section` has the same layout.
const LEN: usize = 0;
const CAP_OR_LOCK: usize = 1;
const ITEMS: usize = 2;

#[cfg(not(loom))]
mod list;
