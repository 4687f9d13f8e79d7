//! Declared: a layout from a declaration that the user wrote.
//!
//! A declaration is TOML or JSON: `name`, `size`, `align` if known, and `fields` with `name`, `offset`, `size` and
//! optionally `align`. The default of a field's `align` is the largest that its size, its offset and the struct's size
//! allow, at most 8.

use crate::layout::{Field, Layout, LayoutError, SIZE_MAX};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    size: usize,
    align: Option<usize>,
    fields: Vec<Declared>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    name: String,
    offset: usize,
    size: usize,
    align: Option<usize>,
}

/// Parses TOML, or JSON if the text begins with `{`.
pub(super) fn parse<T: DeserializeOwned>(text: &str, location: &str, next: &str) -> Result<T, LayoutError> {
    let read = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|e| e.to_string())
    } else {
        toml::from_str(text).map_err(|e| e.to_string().trim().replace('\n', " "))
    };
    read.map_err(|why| LayoutError::new(location, why, next))
}

impl Layout {
    /// Reads a declaration in TOML, or in JSON if the text begins with `{`:
    ///
    /// ```
    /// use warmcore_layout::Layout;
    ///
    /// let ring = Layout::declared(
    ///     r#"
    ///     name = "ring"
    ///     size = 64
    ///     fields = [
    ///       { name = "head", offset = 0, size = 8 },
    ///       { name = "tail", offset = 8, size = 8 },
    ///     ]"#,
    ///     "ring.toml",
    /// )?;
    /// assert_eq!(ring.byte_range("tail")?.offset, 8);
    /// let error = ring.byte_range("tails").unwrap_err().to_string();
    /// assert!(error.contains("did you mean tail?"), "{error}");
    /// # Ok::<(), warmcore_layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Text that is neither TOML nor JSON, lacks a key or has an unknown one; fields that overlap, have no bytes or lie
    /// beyond the end of the struct; two fields of the same name; an invalid size or alignment.
    pub fn declared(text: &str, location: &str) -> Result<Self, LayoutError> {
        let next = "a declaration has `name`, `size` and `fields` with `name`, `offset` and `size`";
        let file: File = parse(text, location, next)?;
        let wrong = |fact: String, next: &str| Err(LayoutError::new(location, fact, next));
        if file.size > SIZE_MAX {
            return wrong(format!("a size of {} bytes", file.size), "mend `size`: 1 GiB is the most");
        }
        let mut fields: Vec<Field> = Vec::with_capacity(file.fields.len());
        for declared in file.fields {
            let Declared { name, offset, size, align } = declared;
            if size == 0 || offset.checked_add(size).is_none_or(|end| end > file.size) {
                let fact = format!("field {name} of {size} bytes at {offset} is not within 0..{}", file.size);
                return wrong(fact, "give it at least one byte, or mend `size`");
            }
            let zeros = (offset | file.size).trailing_zeros().min(12);
            let natural = (1usize << size.trailing_zeros()).min(1 << zeros).min(8);
            let align = align.unwrap_or(natural);
            if !align.is_power_of_two() || align > SIZE_MAX || !offset.is_multiple_of(align) {
                let fact = format!("field {name} at {offset} is not aligned to {align}");
                return wrong(fact, "an alignment is a power of two that divides the offset");
            }
            if fields.iter().any(|f| f.name == name) {
                return wrong(format!("two fields are called {name}"), "rename one");
            }
            fields.push(Field { name, offset, size, align, inner: Vec::new() });
        }
        fields.sort_by_key(|f| f.offset);
        if let Some(pair) = fields.windows(2).find(|pair| pair[0].end() > pair[1].offset) {
            let (a, b) = (&pair[0], &pair[1]);
            let (a_end, b_end) = (a.end(), b.end());
            let fact = format!(
                "field {} (bytes {}..{a_end}) and field {} (bytes {}..{b_end}) overlap",
                a.name, a.offset, b.name, b.offset
            );
            return wrong(fact, "mend an offset, or declare them as one field");
        }
        let align = file.align.unwrap_or(1).max(fields.iter().map(|f| f.align).max().unwrap_or(1));
        if !align.is_power_of_two() || align > SIZE_MAX {
            return wrong(format!("an alignment of {align} is no power of two"), "mend `align`");
        }
        if !file.size.is_multiple_of(align) {
            let fact = format!("a size of {} is no multiple of the alignment {align}", file.size);
            return wrong(fact, "mend `size`, which has the padding at the end in it, or an `align`");
        }
        Ok(Self { name: file.name, source: location.to_owned(), size: file.size, align, fields })
    }
}
