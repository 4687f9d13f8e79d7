//! Layout: a struct drawn line by line.
//!
//! Model.   One row per unit, with the fields on it; a run of units with the same fields is one row.
//!          A row with a `!` holds two groups.
//! Number.  A ring of 4 KiB in its own field is one row, not 64.

use crate::{FieldLine, LINE, Line, first_conflict};
use std::fmt;

/// The fields of a struct, to be printed line by line.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The struct's name.
    pub name: &'a str,
    /// Bytes of the struct.
    pub size: usize,
    /// Bytes of a row: [`LINE`], or [`PAIR`](crate::PAIR) for a struct that keeps pairs apart.
    pub unit: usize,
    /// Its fields, in any order.
    pub fields: &'a [FieldLine<'a>],
}

/// The layout of `T`, to print.
///
/// ```
/// use warmcore_line::{Line, layout};
///
/// #[derive(Line)]
/// #[repr(C, align(64))]
/// #[line(default = read_mostly)]
/// struct Limits {
///     soft: u64,
///     hard: u64,
/// }
///
/// let drawn = "\
/// Limits: 64 bytes
///   line 0         0..64        soft (read_mostly, 0..8), hard (read_mostly, 8..16)
/// ";
/// # #[cfg(target_arch = "x86_64")]
/// assert_eq!(layout::<Limits>().to_string(), drawn);
/// ```
pub const fn layout<T: Line>() -> Layout<'static> {
    Layout { name: T::NAME, size: size_of::<T>(), unit: T::UNIT, fields: T::FIELDS }
}

impl<'a> Layout<'a> {
    /// The fields with bytes in unit `index`, by offset.
    fn row(&self, index: usize) -> Vec<FieldLine<'a>> {
        let on =
            |f: &&FieldLine| f.units(self.unit).is_some_and(|(first, last)| (first..=last).contains(&index));
        let mut row: Vec<_> = self.fields.iter().filter(on).copied().collect();
        row.sort_by_key(|f| f.offset);
        row
    }
}

impl fmt::Display for Layout<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} bytes", self.name, self.size)?;
        let word = if self.unit == LINE { "line" } else { "pair" };
        let units = self.size.div_ceil(self.unit);
        let mut index = 0;
        while index < units {
            let row = self.row(index);
            let next = (index + 1..units).find(|&i| self.row(i) != row).unwrap_or(units);
            let mark = if first_conflict(&row, self.unit).is_some() { '!' } else { ' ' };
            let which = if next - index == 1 {
                format!("{word} {index}")
            } else {
                format!("{word}s {index}..{next}")
            };
            let bytes = format!("{}..{}", index * self.unit, next * self.unit);
            let fields = row.iter().map(|x| format!("{} ({}, {}..{})", x.name, x.group, x.offset, x.end()));
            let fields = fields.collect::<Vec<_>>().join(", ");
            let fields = if fields.is_empty() { "-" } else { &fields };
            writeln!(f, "{mark} {which:<14} {bytes:<12} {fields}")?;
            index = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
