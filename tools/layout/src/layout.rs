//! Layout: the fields of a struct by offset, and the bytes that a name refers to.

use serde::Serialize;
use warmcore_sim::similar_names;

pub use warmcore_sim::Error as LayoutError;

/// The largest struct that is read: a larger size means a damaged file.
pub(crate) const SIZE_MAX: usize = 1 << 30;

/// The fields of a struct and their offsets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// The struct's name.
    pub name: String,
    /// Where it was read from.
    pub source: String,
    /// Its size in bytes.
    pub size: usize,
    /// Its alignment as far as known: at least the largest one of its fields.
    pub align: usize,
    /// Its fields, by offset. No two overlap.
    pub fields: Vec<Field>,
}

/// A part of a struct that can only be moved as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Its name. Members that share bytes are one field, `a|b`; of more than three names the first three are kept,
    /// `a|b|c|...`.
    pub name: String,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
    /// Its alignment: its offset is a multiple of this.
    pub align: usize,
    /// The named parts inside of it, down to six levels.
    pub inner: Vec<Inner>,
}

/// A named range of bytes inside of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inner {
    /// Its path from the field's name on: `mmap_lock.owner`. A member of a field `a|b` has its own name, `a`.
    pub path: String,
    /// Bytes from the start of its field.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
}

/// The bytes that a name refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The index in [`Layout::fields`] of the field that has these bytes.
    pub field: usize,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// The number of bytes.
    pub size: usize,
}

impl ByteRange {
    /// The numbers of the units (cache lines, or pairs of them, of `unit` bytes) that have these bytes. A range of 0
    /// bytes, such as an array of unknown length, counts as one byte.
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
    /// The bytes that a name refers to: a field, or an [`Inner`] of one.
    ///
    /// # Errors
    ///
    /// An unknown name. The error has similar names; if there are none, the names of all fields if these are at most
    /// 60.
    pub fn byte_range(&self, name: &str) -> Result<ByteRange, LayoutError> {
        if let Some((_, range)) = self.names().find(|(known, _)| *known == name) {
            return Ok(range);
        }
        let next = match similar_names(name, self.names().map(|(known, _)| known)) {
            Some(near) => format!("did you mean {near}?"),
            None if self.fields.len() <= 60 => {
                let names: Vec<&str> = self.fields.iter().map(|f| f.name.as_str()).collect();
                format!("its fields are {}", names.join(", "))
            }
            None => format!("it has {} fields; print its layout", self.fields.len()),
        };
        Err(LayoutError::new(
            format!("struct {} ({})", self.name, self.source),
            format!("has no field {name}"),
            &next,
        ))
    }

    /// The names of the fields, then of the named parts of fields, with the bytes that they refer to.
    fn names(&self) -> impl Iterator<Item = (&str, ByteRange)> {
        let range = |field, offset, size| ByteRange { field, offset, size };
        let fields = || self.fields.iter().enumerate();
        let whole = fields().map(move |(i, f)| (f.name.as_str(), range(i, f.offset, f.size)));
        let inner = fields().flat_map(move |(i, f)| {
            f.inner.iter().map(move |part| (part.path.as_str(), range(i, f.offset + part.offset, part.size)))
        });
        whole.chain(inner)
    }

    /// The index of the last field if it has 0 bytes and is not at offset 0: it counts as an array of unknown length,
    /// whose elements follow the struct's other fields.
    pub fn flexible(&self) -> Option<usize> {
        let (last, field) = self.fields.iter().enumerate().rfind(|(_, f)| f.size == 0)?;
        let is_last = self.fields.iter().all(|f| f.end() <= field.offset);
        (is_last && field.offset > 0).then_some(last)
    }
}
