//! Dwarf: layouts from an ELF file's debug information.
//!
//! Model.   Entries form trees, one for each unit. A struct's members are its children; their types are other
//!          entries, of the same unit or of another. A struct without its namespace is found in any; where
//!          several differ, the namespace decides.
//! Number.  An executable of 40 MB, most of it debug information: two seconds by a debug build of this crate.
//! Source.  DWARF 5, sections 5.3 (arrays in 5.5), 5.7, 7.5.

use super::member::{self, Member, Shape, Type};
use super::{Layout, LayoutError, near};
use gimli::{AttributeValue, EndianSlice, EntriesTreeNode, Operation, RunTimeEndian, UnitOffset};
use object::{Object, ObjectSection};
use std::cell::Cell;

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;
type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
type Unit<'a> = gimli::Unit<Slice<'a>>;
type Entry<'a> = gimli::DebuggingInformationEntry<Slice<'a>>;

/// Types that contain each other, and names that stand within each other: more is damage.
const DEPTH_MAX: usize = 64;
/// Types that are looked at for one struct.
const READ_MAX: usize = 1 << 20;

pub(super) fn read(bytes: &[u8], name: &str, place: &str) -> Result<Layout, LayoutError> {
    let damaged = |e: object::Error| LayoutError::new(place, format!("{e}"), "give a whole ELF file");
    let file = object::File::parse(bytes).map_err(damaged)?;
    if file.section_by_name(".debug_info").is_none() {
        if let Some(btf) = file.section_by_name(".BTF") {
            return super::btf::read(btf.data().map_err(damaged)?, name, &format!("{place}, section .BTF"));
        }
        let fact = "has neither .debug_info nor .BTF";
        return Err(LayoutError::new(place, fact, "build it with debug information (-g, `debug = true`)"));
    }
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let section = |id: gimli::SectionId| -> Result<Slice<'_>, LayoutError> {
        let Some(section) = file.section_by_name(id.name()) else {
            return Ok(EndianSlice::new(&[], endian));
        };
        if section.compressed_file_range().is_ok_and(|r| r.format != object::CompressionFormat::None) {
            let fact = format!("its {} is compressed", id.name());
            let next = "unpack it: objcopy --decompress-debug-sections";
            return Err(LayoutError::new(place, fact, next));
        }
        Ok(EndianSlice::new(section.data().map_err(damaged)?, endian))
    };
    let dwarf = Dwarf::load(section)?;
    let search = Search { dwarf: &dwarf, name, place, read: Cell::new(0) };
    search.run().map_err(|e| match e {
        Why::Layout(error) => error,
        Why::Gimli(error) => {
            LayoutError::new(place, format!("its DWARF is damaged: {error}"), "build the file again")
        }
    })
}

enum Why {
    Layout(LayoutError),
    Gimli(gimli::Error),
}

impl From<gimli::Error> for Why {
    fn from(error: gimli::Error) -> Self {
        Self::Gimli(error)
    }
}

struct Search<'a> {
    dwarf: &'a Dwarf<'a>,
    name: &'a str,
    place: &'a str,
    read: Cell<usize>,
}

/// A struct that has the name, with the namespaces that it is in.
struct Found {
    full: String,
    layout: Layout,
}

impl<'a> Search<'a> {
    fn run(&self) -> Result<Layout, Why> {
        let mut found: Vec<Found> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        let mut units = self.dwarf.units();
        while let Some(header) = units.next()? {
            let unit = self.dwarf.unit(header)?;
            let mut matches = Vec::new();
            let mut tree = unit.entries_tree(None)?;
            self.walk(&unit, tree.root()?, ("", 0), &mut matches, &mut names)?;
            for (full, offset) in matches {
                self.read.set(0);
                let of = self.of(&unit, offset, 0)?;
                let layout = member::layout(&full, self.place, of).map_err(Why::Layout)?;
                if !found.iter().any(|f| f.full == full && f.layout == layout) {
                    found.push(Found { full, layout });
                }
            }
        }
        match found.len() {
            0 => {
                let mine = last(self.name);
                let next = match near(mine, names.iter().map(|name| last(name))) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("it has {} structs, none with a name like that", names.len()),
                };
                let fact = format!("has no struct {}", self.name);
                Err(Why::Layout(LayoutError::new(self.place, fact, &next)))
            }
            1 => Ok(found.remove(0).layout),
            _ => {
                let all: Vec<String> =
                    found.iter().map(|f| format!("{} ({} bytes)", f.full, f.layout.size)).collect();
                let fact = format!("has {} structs {}: {}", found.len(), self.name, all.join(", "));
                Err(Why::Layout(LayoutError::new(self.place, fact, "say which, with its namespace")))
            }
        }
    }

    /// Finds the structs of that name, and lists all names.
    fn walk(
        &self,
        unit: &Unit<'a>,
        node: EntriesTreeNode<'_, '_, Slice<'a>>,
        (space, depth): (&str, usize),
        matches: &mut Vec<(String, UnitOffset)>,
        names: &mut Vec<String>,
    ) -> Result<(), Why> {
        let entry = node.entry();
        let is_struct = is_struct(entry.tag());
        let mut inner = space.to_owned();
        if (is_struct || entry.tag() == gimli::DW_TAG_namespace)
            && let Some(name) = self.string(unit, entry)?
        {
            inner = if space.is_empty() { name } else { format!("{space}::{name}") };
            if is_struct && entry.attr_value(gimli::DW_AT_declaration).is_none() {
                let is_it = inner == self.name
                    || inner.strip_suffix(self.name).is_some_and(|before| before.ends_with("::"));
                if is_it {
                    matches.push((inner.clone(), entry.offset()));
                }
                names.push(inner.clone());
            }
        }
        let mut children = node.children();
        while let Some(child) = children.next()? {
            // Where blocks stand in blocks so deep there is no struct that anybody means.
            if depth < 4 * DEPTH_MAX {
                self.walk(unit, child, (&inner, depth + 1), matches, names)?;
            }
        }
        Ok(())
    }

    fn string(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Result<Option<String>, Why> {
        let Some(value) = entry.attr_value(gimli::DW_AT_name) else { return Ok(None) };
        Ok(Some(self.dwarf.attr_string(unit, value)?.to_string_lossy().into_owned()))
    }

    /// The type of an entry, which may be in another unit.
    fn type_of(&self, unit: &Unit<'a>, entry: &Entry<'a>, depth: usize) -> Result<Type, Why> {
        match entry.attr_value(gimli::DW_AT_type) {
            Some(AttributeValue::UnitRef(offset)) => self.of(unit, offset, depth + 1),
            Some(AttributeValue::DebugInfoRef(offset)) => {
                let mut units = self.dwarf.units();
                while let Some(header) = units.next()? {
                    if let Some(within) = offset.to_unit_offset(&header) {
                        return self.of(&self.dwarf.unit(header)?, within, depth + 1);
                    }
                }
                Err(gimli::Error::OffsetOutOfBounds(offset.0 as u64).into())
            }
            _ => Ok(Type { size: 0, align: 1, shape: Shape::Plain }),
        }
    }

    fn of(&self, unit: &Unit<'a>, offset: UnitOffset, depth: usize) -> Result<Type, Why> {
        self.read.set(self.read.get() + 1);
        if depth > DEPTH_MAX || self.read.get() > READ_MAX {
            let fact =
                format!("the type at {:#x} of its unit contains itself, or a million others", offset.0);
            return Err(Why::Layout(LayoutError::new(self.place, fact, "build the file again")));
        }
        let entry = unit.entry(offset)?;
        let size = number(&entry, gimli::DW_AT_byte_size);
        let plain = |size: usize, align: usize| Type { size, align: align.max(1), shape: Shape::Plain };
        let address = usize::from(unit.encoding().address_size);
        Ok(match entry.tag() {
            gimli::DW_TAG_base_type | gimli::DW_TAG_enumeration_type => {
                let size = size.unwrap_or(0);
                plain(size, 1 << size.max(1).trailing_zeros().min(4))
            }
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => plain(size.unwrap_or(address), address),
            gimli::DW_TAG_typedef
            | gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type => self.type_of(unit, &entry, depth)?,
            gimli::DW_TAG_array_type => {
                let of = self.type_of(unit, &entry, depth)?;
                let size = match size {
                    Some(size) => size,
                    None => of.size.saturating_mul(self.len(unit, offset)?),
                };
                plain(size, of.align)
            }
            tag if is_struct(tag) || tag == gimli::DW_TAG_union_type => {
                let members = self.members(unit, offset, depth)?;
                let natural = members.iter().map(|m| m.of.align).max().unwrap_or(1);
                let align = number(&entry, gimli::DW_AT_alignment).unwrap_or(1).max(natural);
                let is_union = tag == gimli::DW_TAG_union_type;
                let shape = if is_union { Shape::Union(members) } else { Shape::Struct(members) };
                Type { size: size.unwrap_or(0), align, shape }
            }
            _ => plain(size.unwrap_or(0), 1),
        })
    }

    /// How many elements an array has, all its dimensions together.
    fn len(&self, unit: &Unit<'a>, offset: UnitOffset) -> Result<usize, Why> {
        let mut tree = unit.entries_tree(Some(offset))?;
        let mut children = tree.root()?.children();
        let mut len = 1usize;
        while let Some(child) = children.next()? {
            let entry = child.entry();
            if entry.tag() == gimli::DW_TAG_subrange_type {
                let bound = || number(entry, gimli::DW_AT_upper_bound).map(|last| last.wrapping_add(1));
                len = len.saturating_mul(number(entry, gimli::DW_AT_count).or_else(bound).unwrap_or(0));
            }
        }
        Ok(len)
    }

    fn members(&self, unit: &Unit<'a>, offset: UnitOffset, depth: usize) -> Result<Vec<Member>, Why> {
        let mut tree = unit.entries_tree(Some(offset))?;
        let mut children = tree.root()?.children();
        let mut members = Vec::new();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            if entry.tag() != gimli::DW_TAG_member && entry.tag() != gimli::DW_TAG_inheritance {
                continue;
            }
            let of = self.type_of(unit, entry, depth)?;
            let name = self.string(unit, entry)?.unwrap_or_default();
            let bits = number(entry, gimli::DW_AT_bit_size);
            let (offset, bytes) = match (number(entry, gimli::DW_AT_data_bit_offset), bits) {
                (Some(first), Some(bits)) => (first / 8, Some((first + bits).div_ceil(8) - first / 8)),
                _ => (location(unit, entry)?, bits.map(|_| of.size)),
            };
            // A static member has no place in the struct.
            if entry.attr_value(gimli::DW_AT_declaration).is_none() {
                members.push(Member { name, offset, bytes, of });
            }
        }
        Ok(members)
    }
}

fn is_struct(tag: gimli::DwTag) -> bool {
    tag == gimli::DW_TAG_structure_type || tag == gimli::DW_TAG_class_type
}

/// A name without its namespaces; those in its parameters do not count.
fn last(name: &str) -> &str {
    let parameters = name.find('<').unwrap_or(name.len());
    name[..parameters].rfind("::").map_or(name, |at| &name[at + 2..])
}

fn number(entry: &Entry<'_>, name: gimli::DwAt) -> Option<usize> {
    usize::try_from(entry.attr(name)?.udata_value()?).ok()
}

/// Where a member is, which old compilers tell as a sum.
fn location(unit: &Unit<'_>, entry: &Entry<'_>) -> Result<usize, Why> {
    if let Some(offset) = number(entry, gimli::DW_AT_data_member_location) {
        return Ok(offset);
    }
    let Some(AttributeValue::Exprloc(expression)) = entry.attr_value(gimli::DW_AT_data_member_location)
    else {
        return Ok(0);
    };
    match expression.operations(unit.encoding()).next()? {
        Some(Operation::PlusConstant { value }) => Ok(value as usize),
        Some(Operation::UnsignedConstant { value }) => Ok(value as usize),
        _ => Ok(0),
    }
}
