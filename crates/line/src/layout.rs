//! Layout: a struct as text, with the fields on each cache line.
//!
//! Each row is a unit (a cache line or a pair of them) with the fields on it, or several consecutive units with the
//! same fields: the lines that only one field of 4 KiB has are one row and not 64. A row with `!` has fields of several
//! groups.

use crate::{FieldLine, LINE, Line, first_conflict};
use std::fmt;

/// The fields of a struct. Its `Display` prints them by cache line or pair of lines.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The struct's name.
    pub name: &'a str,
    /// The size of the struct in bytes.
    pub size: usize,
    /// The size of a unit in bytes: [`LINE`], or [`PAIR`](crate::PAIR) for a struct with `#[line(pair)]`.
    pub unit: usize,
    /// Its fields, in any order.
    pub fields: &'a [FieldLine<'a>],
}

/// Returns the layout of `T`, for printing.
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
    /// Returns the fields with bytes in unit `index`, sorted by offset.
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
mod tests {
    use super::*;
    use crate::{Access, Group};

    const READ: Group<'static> = Group { access: Access::ReadMostly, name: "" };
    const PRODUCER: Group<'static> = Group { access: Access::Owner, name: "producer" };

    #[test]
    fn a_drawing_marks_mixed_lines_and_folds_long_fields() {
        let fields = [
            FieldLine { name: "ring", group: READ, offset: 192, size: 4096 },
            FieldLine { name: "limit", group: READ, offset: 8, size: 8 },
            FieldLine { name: "tail", group: PRODUCER, offset: 0, size: 8 },
            FieldLine { name: "marker", group: READ, offset: 64, size: 0 },
        ];
        let drawn = Layout { name: "Ring", size: 4352, unit: LINE, fields: &fields }.to_string();
        #[cfg(target_arch = "x86_64")]
        assert_eq!(
            drawn,
            "\
Ring: 4352 bytes
! line 0         0..64        tail (owner \"producer\", 0..8), limit (read_mostly, 8..16)
  lines 1..3     64..192      -
  lines 3..67    192..4288    ring (read_mostly, 192..4288)
  line 67        4288..4352   -
"
        );
        assert!(drawn.starts_with("Ring: 4352 bytes\n! "));
    }

    #[test]
    fn rows_cover_all_bytes_in_order() {
        let fields = [FieldLine { name: "a", group: READ, offset: 100, size: 200 }];
        for (size, rows) in [(0, 0), (1, 1), (300, 2), (384, 3), (1000, 3)] {
            let drawn = Layout { name: "S", size, unit: 64, fields: &fields }.to_string();
            let mut end = 0;
            for row in drawn.lines().skip(1) {
                let (from, to) =
                    row.split_whitespace().nth(2).and_then(|range| range.split_once("..")).unwrap();
                assert_eq!(from, end.to_string(), "{drawn}");
                end = to.parse().unwrap();
            }
            assert_eq!((end, drawn.lines().count() - 1), (size.next_multiple_of(64), rows), "{drawn}");
        }
    }
}
