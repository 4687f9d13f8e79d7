//! Layout: where the fields of a struct are, wherever that is written down.
//!
//! Model.   A struct is a list of fields that do not overlap, each of which can be moved as a whole: members of
//!          a nameless struct are fields of their own, members of a nameless union or bits of one word are one
//!          field. What is inside of a field (`mmap_lock.owner`) is an [`Inner`] of it, which moves along. Offsets
//!          say where lines begin if the struct itself begins on one.
//! Number.  The kernel's BTF, 5.5 MB: a struct of it in 85 ms by a debug build.
//! Source.  BTF: Linux Documentation/bpf/btf.rst. DWARF: version 5, sections 5.5 and 5.7. BTF is read here and
//!          not by a crate: the one there is (btf-rs) comes under the LGPL, which our licence does not.

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
