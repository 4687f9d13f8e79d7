//! Btf: layouts from the kernel's description of its types.
//!
//! BTF is a header, then types, then strings. A type's number is its position, from 1 on; 0 is `void`. Names are
//! offsets into the strings. A struct takes 12 bytes, and 12 more for each member. Both byte orders are read.
//!
//! # Source
//!
//! Linux Documentation/bpf/btf.rst, include/uapi/linux/btf.h.

use crate::layout::{Layout, LayoutError};
use crate::member::{self, Member, NESTED_MAX, READ_MAX, Type};
use std::cell::Cell;

const MAGIC: u32 = 0xeb9f;

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

struct Btf<'a> {
    bytes: &'a [u8],
    is_big: bool,
    location: &'a str,
    /// The offset of each type in `bytes`, by its number. Number 0 is `void`, which has none.
    types: Vec<usize>,
    strings: (usize, usize),
    /// Bytes of a pointer.
    pointer: usize,
    /// The number of types examined so far, to give up on a damaged file.
    read: Cell<usize>,
}

/// A type's first three words.
struct Head {
    at: usize,
    name: u32,
    kind: u32,
    len: usize,
    has_bits: bool,
    /// Its size, or the number of the type that it refers to.
    size: u32,
}

impl Layout {
    /// Reads BTF.
    ///
    /// # Errors
    ///
    /// As [`Layout::read`].
    pub fn from_btf(bytes: &[u8], name: &str, location: &str) -> Result<Self, LayoutError> {
        let btf = Btf::new(bytes, location)?;
        let (mut found, mut names): (Option<Type>, Vec<&str>) = (None, Vec::new());
        for number in 1..btf.types.len() {
            let head = btf.head(number)?;
            if head.kind != STRUCT {
                continue;
            }
            names.push(btf.string(head.name)?);
            if head.size > 0 && names.last() == Some(&name) {
                let of = btf.of(number, 0)?;
                // A struct may occur twice if a header was compiled in two ways. The larger one is taken.
                if found.as_ref().is_none_or(|other| of.size > other.size) {
                    found = Some(of);
                }
            }
        }
        let found = found.ok_or_else(|| member::no_struct(location, name, name, names.into_iter()))?;
        member::layout(name, location, found)
    }
}

impl<'a> Btf<'a> {
    fn new(bytes: &'a [u8], location: &'a str) -> Result<Self, LayoutError> {
        let is_big = bytes.first() == Some(&0xeb);
        let (types, read) = (vec![0], Cell::new(0));
        let mut btf = Self { bytes, is_big, location, types, strings: (0, 0), pointer: 8, read };
        let first = btf.u32(0)?;
        let (magic, version) =
            if is_big { (first >> 16, first >> 8 & 255) } else { (first & 0xffff, first >> 16 & 255) };
        if magic != MAGIC || version != 1 {
            let fact = format!("begins with {magic:#06x}, version {version}, and BTF 1 with 0xeb9f");
            return Err(LayoutError::new(location, fact, "give a file of BTF version 1"));
        }
        let (mut at, end) = btf.section(8)?;
        btf.strings = btf.section(16)?;
        while at < end {
            btf.types.push(at);
            let head = btf.head(btf.types.len() - 1)?;
            at = 12 + at + btf.tail(&head)?;
        }
        if at != end {
            return Err(btf.truncated(at - 1));
        }
        btf.pointer = btf.pointer_bytes()?;
        Ok(btf)
    }

    fn u32(&self, at: usize) -> Result<u32, LayoutError> {
        let word = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        let word = *word.ok_or_else(|| self.truncated(at))?;
        Ok(if self.is_big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) })
    }

    /// The first byte of a section and the first byte after it. The header has its offset and its size at `at`.
    fn section(&self, at: usize) -> Result<(usize, usize), LayoutError> {
        let from = (self.u32(4)? as usize).saturating_add(self.u32(at)? as usize);
        let end = from.saturating_add(self.u32(at + 4)? as usize);
        if end > self.bytes.len() { Err(self.truncated(end - 1)) } else { Ok((from, end)) }
    }

    fn truncated(&self, at: usize) -> LayoutError {
        let fact = format!("BTF ends at byte {}, and byte {at} is asked for", self.bytes.len());
        LayoutError::new(self.location, fact, "it is cut off; copy it again, whole")
    }

    /// The size of a pointer, which BTF does not have. As in libbpf it is the size of `long`, which is the same in
    /// Linux; 8 if there is no `long`.
    fn pointer_bytes(&self) -> Result<usize, LayoutError> {
        for number in 1..self.types.len() {
            let head = self.head(number)?;
            let is_word = head.kind == INT && matches!(head.size, 4 | 8);
            if is_word
                && matches!(
                    self.string(head.name)?,
                    "long int" | "long unsigned int" | "long" | "unsigned long"
                )
            {
                return Ok(head.size as usize);
            }
        }
        Ok(8)
    }

    fn head(&self, number: usize) -> Result<Head, LayoutError> {
        let Some(&at) = self.types.get(number).filter(|_| number > 0) else {
            let fact =
                format!("type {number} is named, and there are {} types", self.types.len().saturating_sub(1));
            let next = "a module's BTF goes on where the kernel's ends: read the kernel's";
            return Err(LayoutError::new(self.location, fact, next));
        };
        let info = self.u32(at + 4)?;
        Ok(Head {
            at,
            name: self.u32(at)?,
            kind: info >> 24 & 31,
            len: (info & 0xffff) as usize,
            has_bits: info >> 31 != 0,
            size: self.u32(at + 8)?,
        })
    }

    /// The number of bytes that follow a type's first three words.
    fn tail(&self, head: &Head) -> Result<usize, LayoutError> {
        Ok(match head.kind {
            PTR | FWD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC | FLOAT | TYPE_TAG => 0,
            INT | VAR | DECL_TAG => 4,
            ARRAY => 12,
            STRUCT | UNION | DATASEC | ENUM64 => 12 * head.len,
            ENUM | FUNC_PROTO => 8 * head.len,
            kind => {
                let fact = format!("the type at byte {} is of kind {kind}", head.at);
                let next = "kinds 1 to 19 are known; it is damaged, or newer than this program";
                return Err(LayoutError::new(self.location, fact, next));
            }
        })
    }

    fn string(&self, offset: u32) -> Result<&'a str, LayoutError> {
        let all = &self.bytes[self.strings.0..self.strings.1];
        let from = all.get(offset as usize..);
        let end = from.and_then(|from| from.iter().position(|b| *b == 0));
        let (Some(from), Some(end)) = (from, end) else {
            return Err(self.truncated(self.strings.0 + offset as usize));
        };
        std::str::from_utf8(&from[..end]).map_err(|_| {
            let fact = format!("the name at byte {} is no text", self.strings.0 + offset as usize);
            LayoutError::new(self.location, fact, "it is damaged; copy it again")
        })
    }

    fn of(&self, number: usize, depth: usize) -> Result<Type, LayoutError> {
        if number == 0 {
            return Ok(Type::plain(0, 1));
        }
        let head = self.head(number)?;
        self.read.set(self.read.get() + 1);
        if depth > NESTED_MAX || self.read.get() > READ_MAX {
            let fact = format!("type {number} contains itself, or more than a million others");
            return Err(LayoutError::new(self.location, fact, "it is damaged; copy it again"));
        }
        let size = head.size as usize;
        Ok(match head.kind {
            INT | FLOAT | ENUM | ENUM64 => {
                Type::plain(size, (1 << size.trailing_zeros().min(4)).min(size.max(1)))
            }
            PTR => Type::plain(self.pointer, self.pointer),
            TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => self.of(size, depth + 1)?,
            ARRAY => {
                let of = self.of(self.u32(head.at + 12)? as usize, depth + 1)?;
                let len = self.u32(head.at + 20)? as usize;
                Type::plain(of.size.saturating_mul(len), of.align)
            }
            STRUCT | UNION => {
                let members = (0..head.len).map(|i| self.member(&head, i, depth));
                Type::compound(size, members.collect::<Result<_, _>>()?, head.kind == UNION)
            }
            _ => Type::plain(0, 1),
        })
    }

    fn member(&self, head: &Head, index: usize, depth: usize) -> Result<Member, LayoutError> {
        let at = head.at + 12 + 12 * index;
        let name = self.string(self.u32(at)?)?.to_owned();
        let of = self.of(self.u32(at + 4)? as usize, depth + 1)?;
        let word = self.u32(at + 8)?;
        let (bit, bits) = if head.has_bits { (word & 0xff_ffff, word >> 24) } else { (word, 0) };
        let offset = (bit / 8) as usize;
        let bytes = (bits > 0).then(|| (bit + bits).div_ceil(8) as usize - offset);
        Ok(Member { name, offset, bytes, of })
    }
}
