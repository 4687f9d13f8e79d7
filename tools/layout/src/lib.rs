//! Layout: where the fields of a struct are, and which of them suffer from false sharing.
//!
//! A struct is a list of fields that do not overlap, each of which can be moved as a whole. Members of a nameless
//! struct are separate fields; the members of a nameless union, or bit fields that share a byte, are one field. A part
//! of a field (`mmap_lock.owner`) is an [`Inner`] of the field and moves with it. Offsets are relative to the struct,
//! which is assumed to begin on a cache line. [`culprit`] finds the fields that make touches of other fields miss.
//! Reading a struct from the kernel's BTF, 5.5 MB, takes 85 ms in a debug build.
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
#[cfg(test)]
mod tests;

use std::path::Path;

pub use layout::{ByteRange, Field, Inner, Layout, LayoutError};
pub use moves::Hole;

impl Layout {
    /// Reads the struct `name` from a file: an ELF file with DWARF or BTF, BTF (`/sys/kernel/btf/vmlinux`), or a
    /// declaration in TOML or JSON.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, has none of these formats or is damaged; a struct that the file does not have, or,
    /// in DWARF, several different ones of its name; debug information that is compressed, not linked, or lacks a type
    /// of the struct.
    pub fn read(path: &Path, name: &str) -> Result<Self, LayoutError> {
        let location = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|e| {
            LayoutError::new(&location, format!("cannot be read: {e}"), "name a file that is there")
        })?;
        match bytes.as_slice() {
            [0x7f, b'E', b'L', b'F', ..] => Self::from_elf(&bytes, name, &location),
            [0x9f, 0xeb, ..] | [0xeb, 0x9f, ..] => Self::from_btf(&bytes, name, &location),
            _ => {
                let text = std::str::from_utf8(&bytes).map_err(|e| {
                    LayoutError::new(
                        &location,
                        format!("is neither ELF nor BTF, and no text from byte {} on", e.valid_up_to()),
                        "give an ELF file with debug information, /sys/kernel/btf/vmlinux, or a declaration",
                    )
                })?;
                let layout = Self::declared(text, &location)?;
                if layout.name == name {
                    return Ok(layout);
                }
                let fact = format!("declares {}, not {name}", layout.name);
                Err(LayoutError::new(&location, fact, "ask for that, or mend its `name`"))
            }
        }
    }
}
