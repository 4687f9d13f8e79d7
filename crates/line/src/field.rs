//! FieldLine: one field as its line sees it: who touches it, where it starts, how far it goes.
//!
//! Model.   A field is in one group. Two fields are of one group when both the access and the name
//!          agree; `owner = "producer"` and `owner = "consumer"` are two.
//! Number.  `mm_count` of the kernel: contended, offset 0, 4 bytes.

use std::fmt;

/// How the CPUs touch a field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Read by many, written so rarely that a miss per write doesn't matter.
    ReadMostly,
    /// Written often, by one CPU at a time that keeps it for long.
    Owner,
    /// Written by many CPUs at once.
    Contended,
}

impl Access {
    /// The word as it stands in `#[line(..)]`.
    pub const fn word(self) -> &'static str {
        match self {
            Access::ReadMostly => "read_mostly",
            Access::Owner => "owner",
            Access::Contended => "contended",
        }
    }
}

/// Fields that may share a line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Group<'a> {
    /// How its fields are touched.
    pub access: Access,
    /// Which of the groups with that access it is; empty when the attribute gave no name.
    pub name: &'a str,
}

impl Group<'_> {
    /// `==`, for constants.
    pub const fn same(self, other: Group<'_>) -> bool {
        let (a, b) = (self.name.as_bytes(), other.name.as_bytes());
        if self.access as u8 != other.access as u8 || a.len() != b.len() {
            return false;
        }
        let mut i = 0;
        while i < a.len() {
            if a[i] != b[i] {
                return false;
            }
            i += 1;
        }
        true
    }
}

/// `contended`, or `owner "producer"`.
impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            "" => f.write_str(self.access.word()),
            name => write!(f, "{} \"{name}\"", self.access.word()),
        }
    }
}

/// One field of a struct that starts on a line.
///
/// The derive fills it from `offset_of!`; a report may fill it from DWARF or BTF.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FieldLine<'a> {
    /// The field's name; `0`, `1`, … in a tuple struct.
    pub name: &'a str,
    /// Who touches it.
    pub group: Group<'a>,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// Bytes. A field of none is on no line and in nobody's way.
    pub size: usize,
}

impl FieldLine<'_> {
    /// The first byte after the field.
    pub const fn end(&self) -> usize {
        self.offset + self.size
    }

    /// The first and the last unit of `unit` bytes that the field touches; `None` for a field of no bytes.
    pub const fn units(&self, unit: usize) -> Option<(usize, usize)> {
        if self.size == 0 { None } else { Some((self.offset / unit, (self.end() - 1) / unit)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_in_a_constant_is_equality() {
        let groups = ["", "producer", "consumer"]
            .into_iter()
            .flat_map(|name| {
                [Access::ReadMostly, Access::Owner, Access::Contended].map(|access| (access, name))
            })
            .map(|(access, name)| Group { access, name })
            .collect::<Vec<_>>();
        for a in &groups {
            for b in &groups {
                assert_eq!(a.same(*b), a == b, "{a} and {b}");
            }
        }
    }

    #[test]
    fn a_field_that_ends_on_a_boundary_does_not_touch_the_next_line() {
        let group = Group { access: Access::Owner, name: "" };
        let units = |offset, size| FieldLine { name: "f", group, offset, size }.units(64);
        assert_eq!(units(0, 64), Some((0, 0)));
        assert_eq!(units(63, 2), Some((0, 1)));
        assert_eq!(units(64, 0), None);
    }
}
