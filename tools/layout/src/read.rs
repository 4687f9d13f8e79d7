//! Read: reads a layout from a file; the first bytes of the file tell its format.

use crate::layout::{Layout, LayoutError};
use crate::{btf, declared, dwarf};
use std::path::Path;

impl Layout {
    /// Reads the struct `name` from a file: an ELF file with DWARF or BTF, BTF (`/sys/kernel/btf/vmlinux`), or a
    /// declaration in TOML or JSON.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, has none of these formats or is cut off; a struct that the file does not have.
    pub fn read(path: &Path, name: &str) -> Result<Self, LayoutError> {
        let location = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|e| {
            LayoutError::new(&location, format!("cannot be read: {e}"), "name a file that is there")
        })?;
        match bytes.as_slice() {
            [0x7f, b'E', b'L', b'F', ..] => Self::from_elf(&bytes, name, &location),
            [0x9f, 0xeb, ..] | [0xeb, 0x9f, ..] => Self::from_btf(&bytes, name, &location),
            _ => {
                let text = std::str::from_utf8(&bytes).map_err(|e| {
                    LayoutError::new(
                        &location,
                        format!("is neither ELF nor BTF, and no text from byte {} on", e.valid_up_to()),
                        "give an ELF file with debug information, /sys/kernel/btf/vmlinux, or a declaration",
                    )
                })?;
                let layout = Self::declared(text, &location)?;
                if layout.name == name {
                    return Ok(layout);
                }
                let fact = format!("declares {}, not {name}", layout.name);
                Err(LayoutError::new(&location, fact, "ask for that, or mend its `name`"))
            }
        }
    }

    /// Reads an ELF file: its DWARF, or its BTF if it has no DWARF.
    ///
    /// # Errors
    ///
    /// As [`Layout::read`].
    pub fn from_elf(bytes: &[u8], name: &str, location: &str) -> Result<Self, LayoutError> {
        dwarf::read(bytes, name, location)
    }

    /// Reads BTF.
    ///
    /// # Errors
    ///
    /// As [`Layout::read`].
    pub fn from_btf(bytes: &[u8], name: &str, location: &str) -> Result<Self, LayoutError> {
        btf::read(bytes, name, location)
    }

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
    /// Text that is neither TOML nor JSON; fields that overlap or lie beyond the end of the struct; two fields of the
    /// same name; an invalid size or alignment.
    pub fn declared(text: &str, location: &str) -> Result<Self, LayoutError> {
        declared::read(text, location)
    }
}
