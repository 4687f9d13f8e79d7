//! Member: a struct as debug information tells it, before it is a list of fields.
//!
//! Model.   BTF and DWARF tell the same: members with a type, which may have members. Both readers make this
//!          tree, and here it becomes fields.
//! Number.  Places inside of fields are listed six levels deep, at most 4096 in a struct.

use super::{Field, Inner, Layout, LayoutError};

const DEPTH_MAX: usize = 6;
const INNER_MAX: usize = 4096;

/// What a type is made of.
#[derive(Debug, Clone)]
pub(super) enum Shape {
    /// Nothing that has a name of its own: a number, a pointer, an array.
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
    /// Empty: a nameless struct or union.
    pub name: String,
    /// Bytes from the start of what it is in.
    pub offset: usize,
    /// For a bit field: the bytes that its bits are in.
    pub bytes: Option<usize>,
    pub of: Type,
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
    let mut fields = Vec::new();
    flatten(members, 0, &mut fields);
    if let Some(field) = fields.iter().find(|f| f.end() > of.size) {
        let fact = format!("field {} ends at byte {}, and {name} at {}", field.name, field.end(), of.size);
        return Err(LayoutError::new(source, fact, "it is damaged; make it again"));
    }
    let fields = merge(fields);
    let align = fields.iter().map(|f| f.align).max().unwrap_or(1).max(of.align);
    Ok(Layout { name: name.to_owned(), source: source.to_owned(), size: of.size, align, fields })
}

fn flatten(members: &[Member], base: usize, fields: &mut Vec<Field>) {
    for member in members {
        let offset = base + member.offset;
        match &member.of.shape {
            Shape::Struct(inner) if member.name.is_empty() => flatten(inner, offset, fields),
            Shape::Union(inner) if member.name.is_empty() => {
                let names: Vec<&str> = inner.iter().map(first_name).filter(|n| !n.is_empty()).collect();
                let mut field = field(&join(&names), offset, member);
                list(inner, "", 0, DEPTH_MAX, &mut field.inner);
                fields.push(field);
            }
            // Padding has no name.
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
    // What stands where its type would not let it is packed.
    let stands = 1 << offset.trailing_zeros().min(12);
    let align = member.of.align.clamp(1, stands.max(1));
    Field { name: name.to_owned(), offset, size: member.size(), align, inner: Vec::new() }
}

/// What a nameless member of a union is called: by its first.
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

/// The named places in members, with their offset from the start of the field.
fn list(members: &[Member], prefix: &str, base: usize, depth: usize, places: &mut Vec<Inner>) {
    for member in members {
        if depth == 0 || places.len() >= INNER_MAX {
            return;
        }
        let offset = base + member.offset;
        let mut longer = prefix.to_owned();
        if !member.name.is_empty() {
            let path = format!("{prefix}{}", member.name);
            longer = format!("{path}.");
            places.push(Inner { path, offset, size: member.size() });
        }
        if let Shape::Struct(inner) | Shape::Union(inner) = &member.of.shape {
            list(inner, &longer, offset, depth - 1, places);
        }
    }
}

/// Fields that lie in each other's bytes become one: bits of the same word.
fn merge(mut fields: Vec<Field>) -> Vec<Field> {
    fields.sort_by_key(|f| (f.offset, f.end()));
    let mut merged: Vec<Field> = Vec::new();
    for field in fields {
        match merged.last_mut() {
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
