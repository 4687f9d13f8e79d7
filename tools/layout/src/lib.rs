//! Layout: where the fields of a struct are, and which of them suffer from false sharing.
//!
//! A struct is a list of fields that do not overlap, each of which can be moved as a whole. Members of a nameless
//! struct are separate fields; the members of a nameless union, or bits of one word, are one field. A part of a field
//! (`mmap_lock.owner`) is an [`Inner`] of the field and moves with it. Offsets are relative to the struct, which is
//! assumed to begin on a cache line. [`culprit`] finds the fields that make reads of other fields miss. Reading a
//! struct from the kernel's BTF, 5.5 MB, takes 85 ms in a debug build.
//!
//! # Source
//!
//! BTF: Linux Documentation/bpf/btf.rst. DWARF: version 5, sections 5.5 and 5.7. This crate reads BTF itself, because
//! the existing crate (btf-rs) is under the LGPL.

#![forbid(unsafe_code)]

mod btf;
pub mod culprit;
mod declared;
mod dwarf;
mod layout;
mod member;
mod moves;
mod read;
#[cfg(test)]
mod tests;

pub use layout::{ByteRange, Field, Inner, Layout, LayoutError};
pub use moves::Hole;
