//! FieldLine: the name, the group, the offset and the size of a field.
//!
//! A field is in one group. Two fields are in the same group if their groups' access and name are equal: `owner =
//! "producer"` and `owner = "consumer"` are two groups. Example: Linux's `mm_count` is contended, with offset 0 and 4
//! bytes.

use std::fmt;

/// How CPUs access a field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Read by many CPUs, and written so rarely that a cache miss per write does not matter.
    ReadMostly,
    /// Written often, by one CPU for a long time.
    Owner,
    /// Written by many CPUs at the same time.
    Contended,
}

impl Access {
    /// Returns its word in `#[line(..)]`.
    pub const fn word(self) -> &'static str {
        match self {
            Access::ReadMostly => "read_mostly",
            Access::Owner => "owner",
            Access::Contended => "contended",
        }
    }
}

/// A group of fields that may share a line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Group<'a> {
    /// How CPUs access its fields.
    pub access: Access,
    /// The name, which tells groups with the same access apart; empty if the attribute has none.
    pub name: &'a str,
}

impl Group<'_> {
    /// Whether the two groups are equal, for use in constants.
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

/// Writes `contended`, or with a name `owner "producer"`.
impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            "" => f.write_str(self.access.word()),
            name => write!(f, "{} \"{name}\"", self.access.word()),
        }
    }
}

/// One field of a struct whose start is aligned to a line.
///
/// The derive gets its values from `offset_of!`; reports may get them from DWARF or BTF.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FieldLine<'a> {
    /// The field's name; `0`, `1`, … in a tuple struct.
    pub name: &'a str,
    /// Its group.
    pub group: Group<'a>,
    /// The offset in the struct, in bytes.
    pub offset: usize,
    /// The size in bytes. A field of size 0 is on no line and conflicts with no other field.
    pub size: usize,
}

impl FieldLine<'_> {
    /// Returns the offset of the first byte after the field.
    pub const fn end(&self) -> usize {
        self.offset + self.size
    }

    /// Returns the first and the last unit of `unit` bytes that have bytes of the field, or `None` if its size is 0.
    pub const fn units(&self, unit: usize) -> Option<(usize, usize)> {
        if self.size == 0 { None } else { Some((self.offset / unit, (self.end() - 1) / unit)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_agrees_with_equality() {
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
    fn a_field_that_ends_at_a_boundary_is_not_on_the_next_line() {
        let group = Group { access: Access::Owner, name: "" };
        let units = |offset, size| FieldLine { name: "f", group, offset, size }.units(64);
        assert_eq!(units(0, 64), Some((0, 0)));
        assert_eq!(units(63, 2), Some((0, 1)));
        assert_eq!(units(64, 0), None);
    }
}
