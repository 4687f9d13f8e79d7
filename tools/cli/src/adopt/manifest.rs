//! The lines that adopting adds to the `[patch.crates-io]` of a program's Cargo.toml.
//!
//! Everything else in the file keeps its bytes: comments, order and blank lines.

use anyhow::{Context, bail};
use toml_edit::{DocumentMut, InlineTable, Item, Table};

/// The folder of the prepared packages, from the root of the workspace. Where it is missing, Cargo's error names this
/// path, and so the command that prepares it.
pub const FOLDER: &str = ".warmcore/run-warmcore-adopt";

/// A program's Cargo.toml.
pub struct Manifest {
    document: DocumentMut,
    /// With CRLF at the ends of its lines.
    has_crlf: bool,
}

/// Where `[patch.crates-io]` takes a package from.
#[derive(Debug, PartialEq, Eq)]
pub enum Patch {
    Missing,
    /// From the prepared folder.
    Ours,
    /// What the line says.
    Foreign(String),
}

impl Manifest {
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let document = text.parse().context("can't read Cargo.toml")?;
        Ok(Self { document, has_crlf: text.contains("\r\n") })
    }

    pub fn text(&self) -> String {
        let text = self.document.to_string();
        if self.has_crlf { text.replace("\r\n", "\n").replace('\n', "\r\n") } else { text }
    }

    /// What patches `package`.
    pub fn patch(&self, package: &str) -> Patch {
        let patches = self.document.get("patch").and_then(|patch| patch.get("crates-io"));
        let Some(patches) = patches.and_then(Item::as_table_like) else { return Patch::Missing };
        for (key, item) in patches.iter() {
            let renamed = item.get("package").and_then(Item::as_str);
            if renamed.unwrap_or(key) == package {
                return if is_ours(item) {
                    Patch::Ours
                } else {
                    Patch::Foreign(item.to_string().trim().to_owned())
                };
            }
        }
        Patch::Missing
    }

    /// Adds the line for `package`, whose folder in [`FOLDER`] is `folder`. Returns the line.
    pub fn add(&mut self, package: &str, folder: &str) -> anyhow::Result<String> {
        let implicit = || {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        };
        let patch = self.document.entry("patch").or_insert_with(implicit);
        let patch = patch.as_table_like_mut().context("[patch] in Cargo.toml is not a table")?;
        let patches = patch.entry("crates-io").or_insert_with(|| Item::Table(Table::new()));
        // The user's patches may be tables of their own, without a line `[patch.crates-io]`. Adding that line would leave
        // it behind when the patches are removed.
        let has_line = !patches.as_table().is_some_and(Table::is_implicit);
        let patches =
            patches.as_table_like_mut().context("[patch.crates-io] in Cargo.toml is not a table")?;
        let mut path = InlineTable::new();
        path.insert("path", format!("{FOLDER}/{folder}").into());
        let line = format!("{package} = {path}");
        patches.insert(
            package,
            if has_line { Item::Value(path.into()) } else { Item::Table(path.into_table()) },
        );
        Ok(line)
    }

    /// Removes the lines that lead to the prepared folder, and the tables that are empty then. Returns their number.
    pub fn remove(&mut self) -> anyhow::Result<usize> {
        let Some(patch) = self.document.get_mut("patch") else { return Ok(0) };
        let Some(patch) = patch.as_table_like_mut() else { bail!("[patch] in Cargo.toml is not a table") };
        let Some(patches) = patch.get_mut("crates-io").and_then(Item::as_table_like_mut) else {
            return Ok(0);
        };
        let ours: Vec<String> =
            patches.iter().filter(|(_, item)| is_ours(item)).map(|(key, _)| key.to_owned()).collect();
        for key in &ours {
            patches.remove(key);
        }
        if ours.is_empty() || !patches.is_empty() {
            return Ok(ours.len());
        }
        // What is left of `patch` then is the user's own line `[patch]`, or nothing.
        let removed = patch.remove("crates-io");
        // A comment above the table may have been written since.
        let above =
            removed.as_ref().and_then(Item::as_table).and_then(|table| table.decor().prefix()?.as_str());
        if let Some(comment) = above.filter(|text| text.contains('#')) {
            let end = self.document.trailing().as_str().unwrap_or_default();
            self.document.set_trailing(format!("{comment}{end}"));
        }
        Ok(ours.len())
    }
}

fn is_ours(item: &Item) -> bool {
    let path = item.get("path").and_then(Item::as_str).unwrap_or_default();
    path.trim_start_matches("./").starts_with(FOLDER)
}
