//! Free list: a stack of objects per slot, and a depot that all CPUs share.
//!
//! Most pops and pushes touch the slot's stack only. A pop from an empty stack moves up to half a capacity of items
//! from the depot; a push on a full stack moves half its items there. So a CPU that only frees supplies a CPU that only
//! allocates, at one lock per batch.
//!
//! # Protocol
//!
//! On the `rseq` backend `active` is the address of slot 0's stack. A drain holds the depot's lock and points `active`
//! to a stack of all zeros, which is empty for a pop and full for a push, since `cap` is 0. It issues one fence,
//! empties the real stacks and restores `active`. An operation that finds the zeros takes the slow path and blocks at
//! the depot's lock. An unused slot is all zeros too: its first push sets its capacity, under the lock.
//!
//! With locked instructions each stack has a lock of its own: see `stacks.rs`.
//!
//! # Cost
//!
//! With 62 items per slot (half a KiB) and batches of 31, the depot's lock is taken for 1 of 31 operations if a CPU
//! only pushes or only pops, and for fewer the more its pushes and pops balance. A pop that finds the stack and the
//! depot empty takes it too.
//!
//! # Source
//!
//! tcmalloc's per-CPU caches and transfer cache; the layout differs.
//!
//! Writers. A slot's words: its CPU, in sections or under the slot's lock; a drain, after the fence or under the slot's
//! lock.

#[cfg_attr(loom, allow(dead_code))]
mod stacks;

#[cfg(not(loom))]
pub use list::{FreeList, Item};

/// The words of a stack: the number of items; the capacity on the `rseq` backend (0: never used) or the lock on the
/// others; the items. `sys::rseq::section` has the same layout.
const LEN: usize = 0;
const CAP_OR_LOCK: usize = 1;
const ITEMS: usize = 2;

#[cfg(not(loom))]
mod list;
