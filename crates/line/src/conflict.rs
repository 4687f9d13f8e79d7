//! Conflict: two fields of different groups on one line.
//!
//! A struct is divided into units: lines, or pairs of lines. Two fields are in conflict if their groups differ and a
//! unit has bytes of both. The same function decides this at compile time for the derive and at run time for reports.
//!
//! Example: `mm_count` in bytes 64..68 and `pcpu_cid` in bytes 72..80 are both on line 1 of 64 bytes. A read of one of
//! two such fields takes 3.2 ns while another CPU writes the other field without pause, 1.7 ns with one write per 100
//! ns, and 1.1 ns with one write per µs, or if the fields are on two lines (`warmcore run false-sharing`,
//! `reports/2026-11-22-amd-epyc-2cpu`).

use crate::{FieldLine, LINE, PAIR};
use std::fmt;

/// Two fields of different groups that share a unit, in the order of their offsets.
///
/// Its `Display` text says which fields share which line or pair of lines, and what to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict<'a> {
    /// The field with the lower offset.
    pub first: FieldLine<'a>,
    /// The other field.
    pub second: FieldLine<'a>,
    /// The size of a unit in bytes: [`LINE`] or [`PAIR`].
    pub unit: usize,
    /// The index of the first unit that they share, from the start of the struct.
    pub index: usize,
}

/// Returns all conflicts among `fields`, in the order of `fields`. `unit` is in bytes and not 0.
///
/// Quadratic in the number of fields: 10 000 pairs for 140 fields.
pub fn conflicts<'a>(fields: &[FieldLine<'a>], unit: usize) -> Vec<Conflict<'a>> {
    let later = |i: usize| fields[i + 1..].iter().map(move |b| (&fields[i], b));
    (0..fields.len()).flat_map(later).filter_map(|(a, b)| between(a, b, unit)).collect()
}

/// Returns the first of [`conflicts`], for use in constants.
pub const fn first_conflict<'a>(fields: &[FieldLine<'a>], unit: usize) -> Option<Conflict<'a>> {
    let mut i = 0;
    while i < fields.len() {
        let mut j = i + 1;
        while j < fields.len() {
            let found = between(&fields[i], &fields[j], unit);
            if found.is_some() {
                return found;
            }
            j += 1;
        }
        i += 1;
    }
    None
}

const fn between<'a>(a: &FieldLine<'a>, b: &FieldLine<'a>, unit: usize) -> Option<Conflict<'a>> {
    let (Some((a_first, a_last)), Some((b_first, b_last))) = (a.units(unit), b.units(unit)) else {
        return None;
    };
    let index = if a_first > b_first { a_first } else { b_first };
    if a.group.same(b.group) || index > a_last || index > b_last {
        return None;
    }
    let (first, second) = if a.offset <= b.offset { (*a, *b) } else { (*b, *a) };
    Some(Conflict { first, second, unit, index })
}

/// A part of a conflict's message. `Display` writes the parts to a formatter; [`Conflict::fail`], which also runs in
/// constants, where formatting is not possible, writes them to a [`Text`].
#[derive(Clone, Copy)]
enum Part<'a> {
    Str(&'a str),
    Num(usize),
}

impl<'a> Conflict<'a> {
    const fn parts(&self) -> [Part<'a>; 32] {
        use Part::{Num, Str};
        let (a, b) = (self.first, self.second);
        let (a_open, a_close) = quotes(a.group.name);
        let (b_open, b_close) = quotes(b.group.name);
        // On targets where a pair is one line, the message says line.
        let unit = if self.unit == PAIR && PAIR != LINE { "aligned pair of lines " } else { "line " };
        #[rustfmt::skip]
        let parts = [
            Str("field '"), Str(a.name), Str("' ("),
            Str(a.group.access.word()), Str(a_open), Str(a.group.name), Str(a_close),
            Str(", bytes "), Num(a.offset), Str(".."), Num(a.end()),
            Str(") shares "), Str(unit), Num(self.index),
            Str(" (bytes "), Num(self.index * self.unit), Str(".."), Num((self.index + 1) * self.unit),
            Str(") with field '"), Str(b.name), Str("' ("),
            Str(b.group.access.word()), Str(b_open), Str(b.group.name), Str(b_close),
            Str(", bytes "), Num(b.offset), Str(".."), Num(b.end()),
            Str("); move one group into a Padded<_> or into a struct with #[repr(align("),
            Num(self.unit), Str("))]"),
        ];
        parts
    }

    /// Panics with this conflict of the struct `name`, also in a constant.
    #[track_caller]
    pub(crate) const fn fail(&self, name: &str) -> ! {
        let mut text = Text::new();
        text.str(name);
        text.str(": ");
        let parts = self.parts();
        let mut i = 0;
        while i < parts.len() {
            match parts[i] {
                Part::Str(s) => text.str(s),
                Part::Num(n) => text.num(n),
            }
            i += 1;
        }
        panic!("{}", text.as_str())
    }
}

/// Panics, also in a constant: if a struct is aligned to less than a unit, its offsets do not determine its units.
#[track_caller]
pub(crate) const fn fail_align(name: &str, align: usize, unit: usize) -> ! {
    let mut text = Text::new();
    text.str(name);
    text.str(": aligned to ");
    text.num(align);
    text.str(" bytes, so its offsets do not say where ");
    text.str(if unit == PAIR && PAIR != LINE { "pairs of lines" } else { "lines" });
    text.str(" begin; give it #[repr(align(");
    text.num(unit);
    text.str("))], or #[repr(C, align(");
    text.num(unit);
    text.str("))] to keep the fields in the order of the source");
    panic!("{}", text.as_str())
}

const fn quotes(name: &str) -> (&'static str, &'static str) {
    if name.is_empty() { ("", "") } else { (" \"", "\"") }
}

impl fmt::Display for Conflict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts().iter().try_for_each(|part| match part {
            Part::Str(s) => f.write_str(s),
            Part::Num(n) => write!(f, "{n}"),
        })
    }
}

/// A message that a constant can build, of at most 1024 bytes.
pub(crate) struct Text {
    bytes: [u8; 1024],
    len: usize,
}

impl Text {
    pub(crate) const fn new() -> Self {
        Text { bytes: [0; 1024], len: 0 }
    }

    /// Appends `s` if it fits, otherwise nothing of it: `s` cut off in the middle might not be UTF-8.
    pub(crate) const fn str(&mut self, s: &str) {
        let s = s.as_bytes();
        if s.len() > self.bytes.len() - self.len {
            return;
        }
        let (_, free) = self.bytes.split_at_mut(self.len);
        free.split_at_mut(s.len()).0.copy_from_slice(s);
        self.len += s.len();
    }

    pub(crate) const fn num(&mut self, n: usize) {
        if n >= 10 {
            self.num(n / 10);
        }
        const DIGITS: &str = "0123456789";
        self.str(DIGITS.split_at(n % 10).1.split_at(1).0);
    }

    pub(crate) const fn as_str(&self) -> &str {
        match std::str::from_utf8(self.bytes.split_at(self.len).0) {
            Ok(text) => text,
            Err(_) => "a conflict whose text is not UTF-8",
        }
    }
}

#[cfg(test)]
mod tests;
