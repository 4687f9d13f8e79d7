//! Dwarf: layouts from an ELF file's debug information.
//!
//! The entries of a DWARF unit form a tree. A struct's members are its children; their types are other entries, in the
//! same unit or another. A struct that is named without its namespace is searched in all namespaces; if several
//! different structs have the name, the caller has to give the namespace. An executable of 40 MB, most of it debug
//! information, takes two seconds in a debug build of this crate.
//!
//! # Source
//!
//! DWARF 5, sections 5.3 (arrays in 5.5), 5.7, 7.5.

use crate::layout::{Layout, LayoutError};
use crate::member::{self, Member, NESTED_MAX, READ_MAX, Type};
use gimli::{AttributeValue, EndianSlice, EntriesTreeNode, Operation, RunTimeEndian, UnitOffset};
use object::{Object, ObjectKind, ObjectSection};
use std::cell::Cell;

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;
type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
type Unit<'a> = gimli::Unit<Slice<'a>>;
type Entry<'a> = gimli::DebuggingInformationEntry<Slice<'a>>;

impl Layout {
    /// Reads an ELF file: its DWARF, or its BTF if it has no DWARF.
    ///
    /// # Errors
    ///
    /// As [`Layout::read`].
    pub fn from_elf(bytes: &[u8], name: &str, location: &str) -> Result<Self, LayoutError> {
        let damaged = |e: object::Error| LayoutError::new(location, e.to_string(), "give a whole ELF file");
        let file = object::File::parse(bytes).map_err(damaged)?;
        if file.section_by_name(".debug_info").is_none() {
            if let Some(btf) = file.section_by_name(".BTF") {
                let data = btf.data().map_err(damaged)?;
                return Self::from_btf(data, name, &format!("{location}, section .BTF"));
            }
            return Err(LayoutError::new(
                location,
                "has neither .debug_info nor .BTF",
                "build it with debug information (`debug = true` in Cargo's profile, -g for a C compiler)",
            ));
        }
        if file.kind() == ObjectKind::Relocatable && file.section_by_name(".rela.debug_info").is_some() {
            let fact = "is not linked yet: what its debug information names is not filled in";
            let next = "link it (ld -r keeps it so), and read what comes out";
            return Err(LayoutError::new(location, fact, next));
        }
        let is_big = !file.is_little_endian();
        let endian = if is_big { RunTimeEndian::Big } else { RunTimeEndian::Little };
        let section = |id: gimli::SectionId| -> Result<Slice<'_>, LayoutError> {
            let Some(section) = file.section_by_name(id.name()) else {
                return Ok(EndianSlice::new(&[], endian));
            };
            if section.compressed_file_range().is_ok_and(|r| r.format != object::CompressionFormat::None) {
                let fact = format!("its {} is compressed", id.name());
                let next = "unpack it: objcopy --decompress-debug-sections";
                return Err(LayoutError::new(location, fact, next));
            }
            Ok(EndianSlice::new(section.data().map_err(damaged)?, endian))
        };
        let dwarf = Dwarf::load(section)?;
        Search { dwarf: &dwarf, name, location, is_big, read: Cell::new(0) }.run().map_err(|e| match e {
            Why::Layout(error) => error,
            Why::Gimli(error) => {
                LayoutError::new(location, format!("its DWARF is damaged: {error}"), "build the file again")
            }
        })
    }
}

enum Why {
    Layout(LayoutError),
    Gimli(gimli::Error),
}

impl From<LayoutError> for Why {
    fn from(error: LayoutError) -> Self {
        Self::Layout(error)
    }
}

impl From<gimli::Error> for Why {
    fn from(error: gimli::Error) -> Self {
        Self::Gimli(error)
    }
}

struct Search<'a> {
    dwarf: &'a Dwarf<'a>,
    name: &'a str,
    location: &'a str,
    is_big: bool,
    read: Cell<usize>,
}

impl<'a> Search<'a> {
    fn run(&self) -> Result<Layout, Why> {
        // Structs of different namespaces are different here: the name of a layout has the namespaces of its struct.
        let mut found: Vec<Layout> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        for header in self.headers()? {
            let unit = self.dwarf.unit(header)?;
            let mut matches = Vec::new();
            let mut tree = unit.entries_tree(None)?;
            self.walk(&unit, tree.root()?, ("", 0), &mut matches, &mut names)?;
            for (full, offset) in matches {
                self.read.set(0);
                let layout = member::layout(&full, self.location, self.of(&unit, offset, 0)?)?;
                if !found.contains(&layout) {
                    found.push(layout);
                }
            }
        }
        match found.len() {
            0 => {
                let known = names.iter().map(|name| last(name));
                Err(member::no_struct(self.location, self.name, last(self.name), known).into())
            }
            1 => Ok(found.remove(0)),
            count => {
                let all: Vec<String> =
                    found.iter().map(|found| format!("{} ({} bytes)", found.name, found.size)).collect();
                let fact = format!("has {count} structs {}: {}", self.name, all.join(", "));
                Err(LayoutError::new(self.location, fact, "say which, with its namespace").into())
            }
        }
    }

    /// The headers of all units, including those of `.debug_types` (DWARF 4).
    fn headers(&self) -> gimli::Result<Vec<gimli::UnitHeader<Slice<'a>>>> {
        self.dwarf.units().chain(self.dwarf.type_units()).collect()
    }

    /// Adds to `matches` the structs of the searched name at and below a node, and to `names` the names of all structs.
    /// A `typedef` of a nameless struct counts as a struct.
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
        let is_typedef = entry.tag() == gimli::DW_TAG_typedef;
        if (is_struct || is_typedef || entry.tag() == gimli::DW_TAG_namespace)
            && let Some(name) = self.string(unit, entry)?
        {
            inner = if space.is_empty() { name } else { format!("{space}::{name}") };
            let is_it = inner == self.name
                || inner.strip_suffix(self.name).is_some_and(|before| before.ends_with("::"));
            let is_whole = match () {
                _ if is_struct => entry.attr_value(gimli::DW_AT_declaration).is_none(),
                _ => is_typedef && self.is_of_nameless(unit, entry, is_it)?,
            };
            if is_whole {
                if is_it {
                    matches.push((inner.clone(), entry.offset()));
                }
                names.push(inner.clone());
            }
        }
        let mut children = node.children();
        while let Some(child) = children.next()? {
            // Entries that are nested deeper are not searched.
            if depth < 4 * NESTED_MAX {
                self.walk(unit, child, (&inner, depth + 1), matches, names)?;
            }
        }
        Ok(())
    }

    /// Whether an entry is C's `typedef struct { .. } name`. `everywhere`: also if the struct is in a type unit.
    fn is_of_nameless(&self, unit: &Unit<'a>, entry: &Entry<'a>, everywhere: bool) -> Result<bool, Why> {
        let is_one = |of: &Entry<'a>| is_struct(of.tag()) && of.attr_value(gimli::DW_AT_name).is_none();
        match entry.attr_value(gimli::DW_AT_type) {
            Some(AttributeValue::UnitRef(offset)) => Ok(is_one(&unit.entry(offset)?)),
            Some(AttributeValue::DebugTypesRef(signature)) if everywhere => {
                let Some((unit, offset)) = self.signed(signature)? else { return Ok(false) };
                Ok(is_one(&unit.entry(offset)?))
            }
            _ => Ok(false),
        }
    }

    /// The unit that has the type with this signature, and the type's offset there.
    fn signed(&self, signature: gimli::DebugTypeSignature) -> Result<Option<(Unit<'a>, UnitOffset)>, Why> {
        for header in self.headers()? {
            if let gimli::UnitType::Type { type_signature, type_offset } = header.type_()
                && type_signature == signature
            {
                return Ok(Some((self.dwarf.unit(header)?, type_offset)));
            }
        }
        Ok(None)
    }

    fn string(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Result<Option<String>, Why> {
        let Some(value) = entry.attr_value(gimli::DW_AT_name) else { return Ok(None) };
        Ok(Some(self.dwarf.attr_string(unit, value)?.to_string_lossy().into_owned()))
    }

    /// The type of an entry, which may be in another unit.
    fn type_of(&self, unit: &Unit<'a>, entry: &Entry<'a>, depth: usize) -> Result<Type, Why> {
        self.at(unit, entry.attr_value(gimli::DW_AT_type), depth)
    }

    /// The type that an attribute refers to.
    fn at(
        &self,
        unit: &Unit<'a>,
        value: Option<AttributeValue<Slice<'a>>>,
        depth: usize,
    ) -> Result<Type, Why> {
        match value {
            Some(AttributeValue::UnitRef(offset)) => self.of(unit, offset, depth + 1),
            Some(AttributeValue::DebugTypesRef(signature)) => {
                let found = self.signed(signature)?;
                let (unit, offset) =
                    found.ok_or_else(|| self.elsewhere("in a type unit that is not in it"))?;
                self.of(&unit, offset, depth + 1)
            }
            Some(AttributeValue::DebugInfoRef(offset)) => {
                for header in self.dwarf.units() {
                    let header = header?;
                    if let Some(within) = offset.to_unit_offset(&header) {
                        return self.of(&self.dwarf.unit(header)?, within, depth + 1);
                    }
                }
                Err(gimli::Error::OffsetOutOfBounds(offset.0 as u64).into())
            }
            // No type: `void`.
            None => Ok(Type::plain(0, 1)),
            Some(_) => Err(self.elsewhere("in another file")),
        }
    }

    /// An error about a type, or the place of a member, that the file does not have. A type of unknown size must not
    /// count as an empty one, since its bytes would be taken for a hole.
    fn elsewhere(&self, location: &str) -> Why {
        let fact = format!("a type that struct {} is made of stands {location}", self.name);
        let next = "build it with all types in one place (-fstandalone-debug, no dwz, no split DWARF)";
        LayoutError::new(self.location, fact, next).into()
    }

    fn of(&self, unit: &Unit<'a>, offset: UnitOffset, depth: usize) -> Result<Type, Why> {
        self.read.set(self.read.get() + 1);
        if depth > NESTED_MAX || self.read.get() > READ_MAX {
            let fact =
                format!("the type at {:#x} of its unit contains itself, or a million others", offset.0);
            return Err(LayoutError::new(self.location, fact, "build the file again").into());
        }
        let entry = unit.entry(offset)?;
        if let Some(signature) = entry.attr_value(gimli::DW_AT_signature) {
            return self.at(unit, Some(signature), depth);
        }
        let is_declared = entry.attr_value(gimli::DW_AT_declaration).is_some();
        if is_declared && number(&entry, gimli::DW_AT_byte_size).is_none() {
            return Err(self.elsewhere("elsewhere: it is only declared here"));
        }
        let of = self.described(unit, &entry, offset, depth)?;
        Ok(Type { align: of.align.max(alignment(&entry)), ..of })
    }

    fn described(
        &self,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
        offset: UnitOffset,
        depth: usize,
    ) -> Result<Type, Why> {
        let size = number(entry, gimli::DW_AT_byte_size);
        let address = usize::from(unit.encoding().address_size);
        Ok(match entry.tag() {
            gimli::DW_TAG_base_type | gimli::DW_TAG_enumeration_type => {
                let size = size.unwrap_or(0);
                Type::plain(size, 1 << size.max(1).trailing_zeros().min(4))
            }
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type
            | gimli::DW_TAG_unspecified_type => Type::plain(size.unwrap_or(address), address),
            // A pointer to a data member is one word; one to a member function also has the adjustment of `this`.
            gimli::DW_TAG_ptr_to_member_type => {
                let is_function = match entry.attr_value(gimli::DW_AT_type) {
                    Some(AttributeValue::UnitRef(to)) => {
                        unit.entry(to)?.tag() == gimli::DW_TAG_subroutine_type
                    }
                    _ => false,
                };
                Type::plain(size.unwrap_or(if is_function { 2 * address } else { address }), address)
            }
            gimli::DW_TAG_typedef
            | gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type => self.type_of(unit, entry, depth)?,
            gimli::DW_TAG_array_type => {
                let of = self.type_of(unit, entry, depth)?;
                let size = match size {
                    Some(size) => size,
                    None => of.size.saturating_mul(self.len(unit, offset)?),
                };
                let align = match entry.attr_value(gimli::DW_AT_GNU_vector) {
                    Some(_) => size.clamp(1, member::ALIGN_MAX).next_power_of_two(),
                    None => of.align,
                };
                Type::plain(size, align)
            }
            tag if is_struct(tag) || tag == gimli::DW_TAG_union_type => {
                let members = self.members(unit, offset, depth)?;
                Type::compound(size.unwrap_or(0), members, tag == gimli::DW_TAG_union_type)
            }
            _ => Type::plain(size.unwrap_or(0), 1),
        })
    }

    /// The number of elements of an array, over all its dimensions; 0 if a length is unknown.
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
            // A static member is not in the struct.
            if entry.attr_value(gimli::DW_AT_declaration).is_some() {
                continue;
            }
            let mut of = self.type_of(unit, entry, depth)?;
            of.align = of.align.max(alignment(entry));
            let name = self.string(unit, entry)?.unwrap_or_default();
            let (offset, bytes) = match number(entry, gimli::DW_AT_bit_size) {
                Some(bits) => {
                    let first = self.first_bit(unit, entry, &of, bits)?;
                    (first / 8, Some(first.saturating_add(bits).div_ceil(8) - first / 8))
                }
                None => (self.location(unit, entry)?, None),
            };
            members.push(Member { name, offset, bytes, of });
        }
        Ok(members)
    }

    /// The first bit of a bit field, counted from the start of the struct. Before version 4, DWARF counts it from the
    /// most significant bit of the field's word.
    fn first_bit(&self, unit: &Unit<'a>, entry: &Entry<'a>, of: &Type, bits: usize) -> Result<usize, Why> {
        if let Some(first) = number(entry, gimli::DW_AT_data_bit_offset) {
            return Ok(first);
        }
        let word = self.location(unit, entry)?.saturating_mul(8);
        let Some(from_top) = entry.attr(gimli::DW_AT_bit_offset).and_then(|attr| attr.sdata_value()) else {
            return Ok(word);
        };
        let from_top = isize::try_from(from_top).unwrap_or(isize::MAX);
        if self.is_big {
            return Ok(word.saturating_add_signed(from_top));
        }
        let size = number(entry, gimli::DW_AT_byte_size).unwrap_or(of.size).saturating_mul(8);
        let end = word.saturating_add(size).saturating_add_signed(from_top.saturating_neg());
        Ok(end.saturating_sub(bits))
    }

    /// The offset of a member: a number, or, from old compilers, an expression that adds a number; 0 if the entry has
    /// none, as in a union.
    fn location(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Result<usize, Why> {
        if let Some(offset) = number(entry, gimli::DW_AT_data_member_location) {
            return Ok(offset);
        }
        let Some(AttributeValue::Exprloc(expression)) = entry.attr_value(gimli::DW_AT_data_member_location)
        else {
            return Ok(0);
        };
        match expression.operations(unit.encoding()).next()? {
            Some(Operation::PlusConstant { value } | Operation::UnsignedConstant { value }) => {
                Ok(value as usize)
            }
            _ => Err(self.elsewhere("where only the running program knows: a virtual base")),
        }
    }
}

fn is_struct(tag: gimli::DwTag) -> bool {
    tag == gimli::DW_TAG_structure_type || tag == gimli::DW_TAG_class_type
}

/// A name without its namespaces. Namespaces within its type parameters stay.
fn last(name: &str) -> &str {
    let parameters = name.find('<').unwrap_or(name.len());
    name[..parameters].rfind("::").map_or(name, |at| &name[at + 2..])
}

fn number(entry: &Entry<'_>, name: gimli::DwAt) -> Option<usize> {
    usize::try_from(entry.attr(name)?.udata_value()?).ok()
}

/// The alignment that an entry states itself; 1 if it states none, or an invalid one.
fn alignment(entry: &Entry<'_>) -> usize {
    let said = number(entry, gimli::DW_AT_alignment).unwrap_or(1);
    if said.is_power_of_two() && said <= member::ALIGN_MAX { said } else { 1 }
}
