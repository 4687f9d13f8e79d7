//! Btf: layouts from the kernel's description of its types.
//!
//! BTF is a header, then types, then strings. A type's number is its position, from 1 on; 0 is `void`. Names are
//! offsets into the strings. A type takes 12 bytes, and 12 more for each member. Both byte orders are read.
//!
//! # Source
//!
//! Linux Documentation/bpf/btf.rst, include/uapi/linux/btf.h.

use crate::layout::{Layout, LayoutError};
use crate::member::{self, Member, Shape, Type};
use std::cell::Cell;
use warmcore_sim::similar_names;

const MAGIC: u16 = 0xeb9f;
/// The most types within each other. Types may be recursive through pointers only; deeper nesting means a damaged
/// file.
const DEPTH_MAX: usize = 64;
/// The most types examined for one struct: the kernel's largest has some thousand members, nested ones included.
const READ_MAX: usize = 1 << 20;

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

/// Bytes with checked access.
struct Bytes<'a> {
    bytes: &'a [u8],
    is_big: bool,
    location: &'a str,
}

impl Bytes<'_> {
    fn u32(&self, at: usize) -> Result<u32, LayoutError> {
        let word = at.checked_add(4).and_then(|end| self.bytes.get(at..end));
        let word = word.ok_or_else(|| self.truncated(at))?;
        let word = [word[0], word[1], word[2], word[3]];
        Ok(if self.is_big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) })
    }

    fn truncated(&self, at: usize) -> LayoutError {
        let fact = format!("BTF ends at byte {}, and byte {at} is asked for", self.bytes.len());
        LayoutError::new(self.location, fact, "it is cut off; copy it again, whole")
    }
}

struct Btf<'a> {
    bytes: Bytes<'a>,
    /// The offset of each type by its number. Number 0 is `void`.
    types: Vec<usize>,
    strings: (usize, usize),
    /// Bytes of a pointer.
    pointer: usize,
    /// Types examined so far, to give up on a damaged file.
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

pub(super) fn read(bytes: &[u8], name: &str, location: &str) -> Result<Layout, LayoutError> {
    let btf = Btf::new(bytes, location)?;
    let mut found: Option<(usize, Type)> = None;
    for number in 1..btf.types.len() {
        let head = btf.head(number)?;
        if head.kind == STRUCT && head.size > 0 && btf.string(head.name)? == name {
            let of = btf.of(number, 0)?;
            // A struct may occur twice if a header was compiled in two ways. The larger one has all fields.
            if found.as_ref().is_none_or(|(_, other)| of.size > other.size) {
                found = Some((number, of));
            }
        }
    }
    match found {
        Some((_, of)) => member::layout(name, location, of),
        None => Err(btf.unknown(name)?),
    }
}

impl<'a> Btf<'a> {
    fn new(bytes: &'a [u8], location: &'a str) -> Result<Self, LayoutError> {
        let is_big = bytes.first() == Some(&0xeb);
        let bytes = Bytes { bytes, is_big, location };
        let wrong = |fact: String| LayoutError::new(location, fact, "give a file of BTF version 1");
        let first = bytes.u32(0)?;
        let (magic, version) =
            if is_big { (first >> 16, first >> 8 & 255) } else { (first & 0xffff, first >> 16 & 255) };
        if magic != u32::from(MAGIC) || version != 1 {
            return Err(wrong(format!("begins with {magic:#06x}, version {version}, and BTF 1 with 0xeb9f")));
        }
        let start = bytes.u32(4)? as usize;
        let section = |at: usize| -> Result<(usize, usize), LayoutError> {
            let from = start.saturating_add(bytes.u32(at)? as usize);
            let end = from.saturating_add(bytes.u32(at + 4)? as usize);
            if end > bytes.bytes.len() {
                return Err(bytes.truncated(end - 1));
            }
            Ok((from, end))
        };
        let (types, strings) = (section(8)?, section(16)?);
        let mut btf = Self { bytes, types: vec![0], strings, pointer: 8, read: Cell::new(0) };
        let mut at = types.0;
        while at < types.1 {
            btf.types.push(at);
            let head = btf.head(btf.types.len() - 1)?;
            at = 12 + at + btf.tail(&head)?;
        }
        if at != types.1 {
            return Err(btf.bytes.truncated(at - 1));
        }
        btf.pointer = btf.pointer_bytes()?;
        Ok(btf)
    }

    /// The size of a pointer, which BTF does not have. As in libbpf it is the size of `long`, which is the same in
    /// Linux.
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
            return Err(LayoutError::new(self.bytes.location, fact, next));
        };
        let info = self.bytes.u32(at + 4)?;
        Ok(Head {
            at,
            name: self.bytes.u32(at)?,
            kind: info >> 24 & 31,
            len: (info & 0xffff) as usize,
            has_bits: info >> 31 != 0,
            size: self.bytes.u32(at + 8)?,
        })
    }

    /// The bytes that follow a type's first three words.
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
                return Err(LayoutError::new(self.bytes.location, fact, next));
            }
        })
    }

    fn string(&self, offset: u32) -> Result<&'a str, LayoutError> {
        let all = &self.bytes.bytes[self.strings.0..self.strings.1];
        let from = all.get(offset as usize..);
        let end = from.and_then(|from| from.iter().position(|b| *b == 0));
        let (Some(from), Some(end)) = (from, end) else {
            return Err(self.bytes.truncated(self.strings.0 + offset as usize));
        };
        std::str::from_utf8(&from[..end]).map_err(|_| {
            let fact = format!("the name at byte {} is no text", self.strings.0 + offset as usize);
            LayoutError::new(self.bytes.location, fact, "it is damaged; copy it again")
        })
    }

    fn of(&self, number: usize, depth: usize) -> Result<Type, LayoutError> {
        let plain = |size: usize, align: usize| Type { size, align: align.max(1), shape: Shape::Plain };
        if number == 0 {
            return Ok(plain(0, 1));
        }
        let head = self.head(number)?;
        self.read.set(self.read.get() + 1);
        if depth > DEPTH_MAX || self.read.get() > READ_MAX {
            let fact = format!("type {number} contains itself, or more than a million others");
            return Err(LayoutError::new(self.bytes.location, fact, "it is damaged; copy it again"));
        }
        let size = head.size as usize;
        Ok(match head.kind {
            INT | FLOAT | ENUM | ENUM64 => plain(size, (1 << size.trailing_zeros().min(4)).min(size.max(1))),
            PTR => plain(self.pointer, self.pointer),
            TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => self.of(size, depth + 1)?,
            ARRAY => {
                let of = self.of(self.bytes.u32(head.at + 12)? as usize, depth + 1)?;
                let len = self.bytes.u32(head.at + 20)? as usize;
                plain(of.size.saturating_mul(len), of.align)
            }
            STRUCT | UNION => {
                let members =
                    (0..head.len).map(|i| self.member(&head, i, depth)).collect::<Result<Vec<_>, _>>()?;
                let align = member::natural(&members, size);
                let shape = if head.kind == STRUCT { Shape::Struct(members) } else { Shape::Union(members) };
                Type { size, align, shape }
            }
            _ => plain(0, 1),
        })
    }

    fn member(&self, head: &Head, index: usize, depth: usize) -> Result<Member, LayoutError> {
        let at = head.at + 12 + 12 * index;
        let name = self.string(self.bytes.u32(at)?)?.to_owned();
        let of = self.of(self.bytes.u32(at + 4)? as usize, depth + 1)?;
        let word = self.bytes.u32(at + 8)?;
        let (bit, bits) = if head.has_bits { (word & 0xff_ffff, word >> 24) } else { (word, 0) };
        let offset = (bit / 8) as usize;
        let bytes = (bits > 0).then(|| (bit + bits).div_ceil(8) as usize - offset);
        Ok(Member { name, offset, bytes, of })
    }

    fn unknown(&self, name: &str) -> Result<LayoutError, LayoutError> {
        let mut names = Vec::new();
        for number in 1..self.types.len() {
            let head = self.head(number)?;
            if head.kind == STRUCT {
                names.push(self.string(head.name)?);
            }
        }
        let next = match similar_names(name, names.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("it has {} structs, none with a name like that", names.len()),
        };
        Ok(LayoutError::new(self.bytes.location, format!("has no struct {name}"), &next))
    }
}
