//! Member: a struct as debug information describes it, before it becomes a list of fields.
//!
//! BTF and DWARF both describe members, each with a type that may have members too. Both readers build this tree, and
//! this module turns it into fields. Named parts of fields are listed down to six levels, at most 4096 of each field.

use crate::layout::{Field, Inner, Layout, LayoutError, SIZE_MAX};
use warmcore_sim::similar_names;

/// The most types within each other. Types may be recursive through pointers only, so deeper nesting means a damaged
/// file. The search in DWARF goes through four times as many levels of entries.
pub(super) const NESTED_MAX: usize = 64;
/// The most types examined for one struct; in BTF, for all structs of the searched name together. The kernel's largest
/// struct has some thousand members, nested ones included.
pub(super) const READ_MAX: usize = 1 << 20;

const DEPTH_MAX: usize = 6;
const INNER_MAX: usize = 4096;

/// The parts of a type.
#[derive(Debug, Clone)]
pub(super) enum Shape {
    /// Without named parts: a number, a pointer, an array.
    Plain,
    Struct(Vec<Member>),
    Union(Vec<Member>),
}

/// A type, as far as a layout needs it.
#[derive(Debug, Clone)]
pub(super) struct Type {
    pub size: usize,
    pub align: usize,
    pub shape: Shape,
}

/// A member of a struct or union.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// Empty for a nameless struct or union, and for a bit field that is padding.
    pub name: String,
    /// Bytes from the start of the struct or union.
    pub offset: usize,
    /// For a bit field: the number of bytes that contain its bits.
    pub bytes: Option<usize>,
    pub of: Type,
}

impl Type {
    /// A type without named parts.
    pub fn plain(size: usize, align: usize) -> Self {
        Self { size, align: align.max(1), shape: Shape::Plain }
    }

    /// A struct or a union.
    pub fn compound(size: usize, members: Vec<Member>, is_union: bool) -> Self {
        let align = natural(&members, size);
        Self { size, align, shape: if is_union { Shape::Union(members) } else { Shape::Struct(members) } }
    }
}

/// The error about a struct `name` that a file does not have. `known`: the names of the structs that it has; `short`:
/// the name that is compared with them, to suggest similar ones.
pub(super) fn no_struct<'a>(
    location: &str,
    name: &str,
    short: &str,
    known: impl ExactSizeIterator<Item = &'a str>,
) -> LayoutError {
    let count = known.len();
    let next = match similar_names(short, known) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("it has {count} structs, none with a name like that"),
    };
    LayoutError::new(location, format!("has no struct {name}"), next)
}

/// The largest alignment that is read: a larger one means a damaged file.
pub(super) const ALIGN_MAX: usize = 1 << 16;

/// The alignment of a struct with these members and this size: the largest one of a member, as far as the member's
/// offset (unless the member is a bit field) and the struct's size allow. A compiler makes the size a multiple of the
/// struct's alignment, and the offset of a member that is no bit field a multiple of the member's alignment; a struct
/// for which this does not hold is packed.
fn natural(members: &[Member], size: usize) -> usize {
    let stands =
        |m: &Member| if m.bytes.is_some() { m.of.align } else { m.of.align.min(alignment_of(m.offset)) };
    members.iter().map(stands).max().unwrap_or(1).min(alignment_of(size)).max(1)
}

/// The largest alignment that an offset or a size allows, at most [`ALIGN_MAX`].
fn alignment_of(offset: usize) -> usize {
    1 << offset.trailing_zeros().min(ALIGN_MAX.trailing_zeros())
}

impl Member {
    fn size(&self) -> usize {
        self.bytes.unwrap_or(self.of.size)
    }
}

/// The layout of a struct, from its members.
pub(super) fn layout(name: &str, source: &str, of: Type) -> Result<Layout, LayoutError> {
    let members = match &of.shape {
        Shape::Struct(members) => members.as_slice(),
        _ => &[],
    };
    if of.size > SIZE_MAX {
        let fact = format!("{name} has {} bytes", of.size);
        return Err(LayoutError::new(source, fact, "it is damaged; make it again"));
    }
    let mut fields = Vec::new();
    flatten(members, 0, &mut fields);
    if let Some(field) = fields.iter().find(|f| f.end() > of.size) {
        let fact = format!("field {} ends at byte {}, and {name} at {}", field.name, field.end(), of.size);
        return Err(LayoutError::new(source, fact, "it is damaged; make it again"));
    }
    let mut fields = merge(fields);
    // If a field has a larger alignment than the struct's size allows, the struct is packed, and may begin at any
    // offset.
    fields.iter_mut().for_each(|f| f.align = f.align.min(alignment_of(of.size)));
    let align = fields.iter().map(|f| f.align).max().unwrap_or(1).max(of.align.min(alignment_of(of.size)));
    Ok(Layout { name: name.to_owned(), source: source.to_owned(), size: of.size, align, fields })
}

fn flatten(members: &[Member], base: usize, fields: &mut Vec<Field>) {
    for member in members {
        let offset = base.saturating_add(member.offset);
        match &member.of.shape {
            // An empty struct of size 0 is a marker.
            Shape::Struct(inner) if inner.is_empty() && member.size() == 0 => {}
            Shape::Struct(inner) if member.name.is_empty() => flatten(inner, offset, fields),
            Shape::Union(inner) if member.name.is_empty() => {
                let names: Vec<&str> = inner.iter().map(first_name).filter(|n| !n.is_empty()).collect();
                let mut field = field(&join(&names), offset, member);
                list(inner, "", 0, DEPTH_MAX, &mut field.inner);
                fields.push(field);
            }
            // A member without a name is padding.
            _ if member.name.is_empty() => {}
            _ => {
                let mut field = field(&member.name, offset, member);
                if let Shape::Struct(inner) | Shape::Union(inner) = &member.of.shape {
                    list(inner, &format!("{}.", member.name), 0, DEPTH_MAX, &mut field.inner);
                }
                fields.push(field);
            }
        }
    }
}

fn field(name: &str, offset: usize, member: &Member) -> Field {
    // A member at an offset that its type does not allow is packed.
    let align = member.of.align.clamp(1, alignment_of(offset));
    Field { name: name.to_owned(), offset, size: member.size(), align, inner: Vec::new() }
}

/// The name of a union's member; for a nameless one, that of its own first member.
fn first_name(member: &Member) -> &str {
    match &member.of.shape {
        Shape::Struct(inner) | Shape::Union(inner) if member.name.is_empty() => {
            inner.first().map_or("", first_name)
        }
        _ => &member.name,
    }
}

fn join(names: &[&str]) -> String {
    match names {
        [a, b, c, _, ..] => format!("{a}|{b}|{c}|..."),
        few => few.join("|"),
    }
}

/// Adds the named ones of these members, and their named parts, to `ranges`: at most `depth` levels, and until `ranges`
/// has `INNER_MAX` entries. `base`: the members' offset from the start of the field.
fn list(members: &[Member], prefix: &str, base: usize, depth: usize, ranges: &mut Vec<Inner>) {
    for member in members {
        if depth == 0 || ranges.len() >= INNER_MAX {
            return;
        }
        let offset = base.saturating_add(member.offset);
        let mut longer = prefix.to_owned();
        if !member.name.is_empty() {
            let path = format!("{prefix}{}", member.name);
            longer = format!("{path}.");
            ranges.push(Inner { path, offset, size: member.size() });
        }
        if let Shape::Struct(inner) | Shape::Union(inner) = &member.of.shape {
            list(inner, &longer, offset, depth - 1, ranges);
        }
    }
}

/// Merges fields that share bytes, as bit fields of the same byte do.
fn merge(mut fields: Vec<Field>) -> Vec<Field> {
    fields.sort_by_key(|f| (f.offset, f.end()));
    let mut merged: Vec<Field> = Vec::new();
    for field in fields {
        // A field without bytes shares no bytes with others.
        match merged.iter_mut().rfind(|last| last.size > 0) {
            Some(last) if field.size > 0 && field.offset < last.end() => {
                if last.inner.is_empty() {
                    last.inner.push(Inner { path: last.name.clone(), offset: 0, size: last.size });
                }
                let shift = field.offset - last.offset;
                last.inner.push(Inner { path: field.name.clone(), offset: shift, size: field.size });
                let inner = field.inner.iter().map(|i| Inner { offset: i.offset + shift, ..i.clone() });
                last.inner.extend(inner);
                last.size = last.size.max(field.end() - last.offset);
                last.align = last.align.max(field.align);
                let names: Vec<&str> = last.name.split('|').chain([field.name.as_str()]).collect();
                last.name = join(&names);
            }
            _ => merged.push(field),
        }
    }
    merged
}
