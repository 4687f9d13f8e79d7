//! Moves: other layouts of the same struct.
//!
//! Moved fields leave holes. All other fields stay at their offset in their cache line, so that nothing else changes;
//! an exception is an array of unknown length, which stays the last field. If the moved fields fit into one line,
//! moving them to the front shifts all others by one line, or by the struct's alignment if that is larger.

use crate::layout::{Field, Layout};
use serde::Serialize;

/// Bytes that belong to no field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Hole {
    /// The first byte.
    pub offset: usize,
    /// The number of bytes.
    pub size: usize,
}

impl Layout {
    /// The bytes that belong to no field, including those at the end unless an array of unknown length continues
    /// there.
    pub fn holes(&self) -> Vec<Hole> {
        let mut holes = Vec::new();
        let mut at = 0;
        for field in &self.fields {
            if field.offset > at {
                holes.push(Hole { offset: at, size: field.offset - at });
            }
            at = at.max(field.end());
        }
        if self.size > at && self.flexible().is_none() {
            holes.push(Hole { offset: at, size: self.size - at });
        }
        holes
    }

    /// The same struct with these fields (indexes in [`Layout::fields`]) at these offsets. `None` if the bytes there
    /// belong to another field or to the elements of an array of unknown length, or if an offset is not aligned. The
    /// struct grows if necessary.
    pub fn with(&self, moved: &[(usize, usize)]) -> Option<Self> {
        let mut layout = self.clone();
        let open = self.flexible().map(|last| self.fields[last].offset);
        for &(field, offset) in moved {
            layout.fields[field].offset = offset;
        }
        if moved.iter().any(|&(field, _)| open.is_some_and(|open| layout.fields[field].end() > open)) {
            return None; // The elements of the array of unknown length may have these bytes.
        }
        let fits = moved.iter().all(|&(field, offset)| {
            let f = &layout.fields[field];
            let others = layout.fields.iter().enumerate().filter(|(other, _)| *other != field);
            offset.is_multiple_of(f.align)
                && others.into_iter().all(|(_, o)| o.end() <= offset || f.end() <= o.offset)
        });
        fits.then(|| layout.tidy())
    }

    /// The same struct with this many bytes of padding after a field, rounded up to a multiple of the largest alignment
    /// of the fields behind it.
    pub fn padded_after(&self, field: usize, bytes: usize) -> Self {
        let mut layout = self.clone();
        let end = layout.fields[field].end();
        let largest = layout.fields.iter().filter(|f| f.offset >= end).map(|f| f.align).max().unwrap_or(1);
        let bytes = bytes.next_multiple_of(largest);
        for f in layout.fields.iter_mut().filter(|f| f.offset >= end) {
            f.offset += bytes;
        }
        layout.size += bytes;
        layout.tidy()
    }

    /// The same struct with these fields on lines of their own before all others, which move by whole lines and so
    /// stay at their offset in their line.
    pub fn in_front(&self, fields: &[usize], line: usize) -> Self {
        let mut layout = self.clone();
        let offsets = pack(&self.fields, fields, 0);
        let taken = fields.iter().zip(&offsets).map(|(f, at)| at + self.fields[*f].size).max().unwrap_or(0);
        let shift = taken.next_multiple_of(line.max(layout.align));
        for f in &mut layout.fields {
            f.offset += shift;
        }
        for (field, offset) in fields.iter().zip(offsets) {
            layout.fields[*field].offset = offset;
        }
        layout.size += shift;
        layout.align = layout.align.max(line);
        layout.tidy()
    }

    /// The same struct with these fields on lines of their own after all others, except an array of unknown length,
    /// which stays behind them.
    pub fn at_the_end(&self, fields: &[usize], line: usize) -> Self {
        let mut layout = self.clone();
        let rest = self.fields.iter().enumerate().filter(|(i, _)| !fields.contains(i)).map(|(_, f)| f.end());
        let start = rest.max().unwrap_or(0).next_multiple_of(line);
        for (field, offset) in fields.iter().zip(pack(&self.fields, fields, start)) {
            layout.fields[*field].offset = offset;
        }
        // The alignment keeps other objects of the allocator off that line.
        layout.align = layout.align.max(line);
        if let Some(last) = self.flexible() {
            // The elements of the array must not be on that line either.
            let end = fields.iter().map(|field| layout.fields[*field].end()).max().unwrap_or(start);
            layout.fields[last].offset = end.next_multiple_of(line.max(self.fields[last].align));
        }
        layout.tidy()
    }

    /// How many bytes larger this is than `before`; negative if it is smaller.
    pub fn added_to(&self, before: &Layout) -> isize {
        self.size as isize - before.size as isize
    }

    fn tidy(mut self) -> Self {
        self.fields.sort_by_key(|f| (f.offset, f.end()));
        let end = self.fields.iter().map(Field::end).max().unwrap_or(0);
        self.size = self.size.max(end).next_multiple_of(self.align);
        self
    }
}

/// The offsets of fields that are packed from `start` on, in descending order of their alignments.
fn pack(all: &[Field], fields: &[usize], start: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..fields.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(all[fields[*i]].align));
    let mut offsets = vec![0; fields.len()];
    let mut at = start;
    for i in order {
        let field = &all[fields[i]];
        offsets[i] = at.next_multiple_of(field.align);
        at = offsets[i] + field.size;
    }
    offsets
}
