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
mod member;
mod moves;
#[cfg(test)]
mod tests;

pub use moves::Hole;
pub use warmcore_sim::Error as LayoutError;

use serde::Serialize;
use std::path::Path;
use warmcore_sim::similar_names;

/// No struct is larger: a file that says otherwise is damaged.
const SIZE_MAX: usize = 1 << 30;

/// Where the fields of a struct are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// The struct's name.
    pub name: String,
    /// Where it was read.
    pub source: String,
    /// Bytes.
    pub size: usize,
    /// Its alignment, as far as it is known: at least that of its fields.
    pub align: usize,
    /// Its fields, by offset. No two overlap.
    pub fields: Vec<Field>,
}

/// What can be moved as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Its name. Members that lie in each other's bytes are one field, `a|b`.
    pub name: String,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// What its offset must be a multiple of.
    pub align: usize,
    /// What is inside.
    pub inner: Vec<Inner>,
}

/// A named range of bytes inside of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inner {
    /// Its name from the struct on: `mmap_lock.owner`.
    pub path: String,
    /// Bytes from the start of its field.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// Bytes that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The field that they are in: its number in [`Layout::fields`].
    pub field: usize,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

impl ByteRange {
    /// The lines, or pairs of them, that it is on. An array of no length is taken to be touched at its beginning.
    pub fn units(&self, unit: usize) -> std::ops::Range<usize> {
        self.offset / unit..self.offset.saturating_add(self.size.max(1)).div_ceil(unit)
    }
}

impl Field {
    /// The first byte after it.
    pub fn end(&self) -> usize {
        self.offset.saturating_add(self.size)
    }
}

impl Layout {
    /// Reads the struct `name` from a file: an ELF file with DWARF or BTF, BTF (`/sys/kernel/btf/vmlinux`), or
    /// a declaration in TOML or JSON.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is none of those or ends too early; a struct that is not in it.
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

    /// From an ELF file: its DWARF, or its BTF if it has no DWARF.
    ///
    /// # Errors
    ///
    /// As [`Layout::read`].
    pub fn from_elf(bytes: &[u8], name: &str, location: &str) -> Result<Self, LayoutError> {
        dwarf::read(bytes, name, location)
    }

    /// From BTF.
    ///
    /// # Errors
    ///
    /// As [`Layout::read`].
    pub fn from_btf(bytes: &[u8], name: &str, location: &str) -> Result<Self, LayoutError> {
        btf::read(bytes, name, location)
    }

    /// From a declaration in TOML, or in JSON if it begins with `{`:
    ///
    /// ```
    /// use warmcore_layout::Layout;
    ///
    /// let ring = Layout::declared(
    ///     r#"
    ///     name = "ring"
    ///     size = 64
    ///     fields = [
    ///       { name = "head", offset = 0, size = 8 },
    ///       { name = "tail", offset = 8, size = 8 },
    ///     ]"#,
    ///     "ring.toml",
    /// )?;
    /// assert_eq!(ring.byte_range("tail")?.offset, 8);
    /// let error = ring.byte_range("tails").unwrap_err().to_string();
    /// assert!(error.contains("did you mean tail?"), "{error}");
    /// # Ok::<(), warmcore_layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Text that is neither, fields that overlap or lie beyond the end, two of one name.
    pub fn declared(text: &str, location: &str) -> Result<Self, LayoutError> {
        declared::read(text, location)
    }

    /// The bytes that a name stands for: a field, or an [`Inner`] of one.
    ///
    /// # Errors
    ///
    /// No such name: the nearest ones, and all of them if they are few.
    pub fn byte_range(&self, name: &str) -> Result<ByteRange, LayoutError> {
        for (field, f) in self.fields.iter().enumerate() {
            if f.name == name {
                return Ok(ByteRange { field, offset: f.offset, size: f.size });
            }
        }
        for (field, f) in self.fields.iter().enumerate() {
            if let Some(inner) = f.inner.iter().find(|inner| inner.path == name) {
                return Ok(ByteRange { field, offset: f.offset + inner.offset, size: inner.size });
            }
        }
        let names = || self.fields.iter().map(|f| f.name.as_str());
        let inner = || self.fields.iter().flat_map(|f| f.inner.iter().map(|inner| inner.path.as_str()));
        let next = match similar_names(name, names().chain(inner())) {
            Some(near) => format!("did you mean {near}?"),
            None if self.fields.len() <= 60 => {
                format!("its fields are {}", names().collect::<Vec<_>>().join(", "))
            }
            None => format!("it has {} fields; print its layout", self.fields.len()),
        };
        Err(LayoutError::new(
            format!("struct {} ({})", self.name, self.source),
            format!("has no field {name}"),
            &next,
        ))
    }

    /// The array of no length at its end, if there is one: what stands behind it is its elements.
    pub fn flexible(&self) -> Option<usize> {
        let (last, field) = self.fields.iter().enumerate().rfind(|(_, f)| f.size == 0)?;
        let is_last = self.fields.iter().all(|f| f.end() <= field.offset);
        (is_last && field.offset > 0).then_some(last)
    }

    /// The bytes that no field has, the tail included, unless an array of no length goes on there.
    pub fn holes(&self) -> Vec<Hole> {
        moves::holes(self)
    }
}
