//! A `Cargo.lock`: which packages it names, from where, and which of them want `tokio`.

use anyhow::Context;
use std::collections::BTreeSet;
use toml_edit::{DocumentMut, Item};

/// A package of the lock file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Locked {
    pub name: String,
    pub version: String,
    /// None for a path.
    pub source: Option<String>,
}

/// The packages of a lock file.
#[derive(Default)]
pub struct Lock {
    pub packages: BTreeSet<Locked>,
    /// The names of patches that fit no dependency.
    pub unused_patches: BTreeSet<String>,
    /// (package, entry of its dependencies): (`hyper`, `tokio` or, among several versions, `tokio 1.54.1`).
    dependencies: Vec<(String, String)>,
}

impl Lock {
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let document: DocumentMut = text.parse().context("can't read Cargo.lock")?;
        let mut lock = Self::default();
        let tables =
            |item: Option<&Item>| item.and_then(Item::as_array_of_tables).cloned().unwrap_or_default();
        let unused = document.get("patch").and_then(|patch| patch.get("unused"));
        let names =
            tables(unused).into_iter().filter_map(|table| Some(table.get("name")?.as_str()?.to_owned()));
        lock.unused_patches = names.collect();
        for table in tables(document.get("package")) {
            let field = |name| table.get(name).and_then(Item::as_str).map(str::to_owned);
            let (Some(name), Some(version)) = (field("name"), field("version")) else { continue };
            let dependencies = table.get("dependencies").and_then(Item::as_array);
            for entry in dependencies.iter().flat_map(|list| list.iter()).filter_map(|value| value.as_str()) {
                lock.dependencies.push((name.clone(), entry.to_owned()));
            }
            lock.packages.insert(Locked { name, version, source: field("source") });
        }
        Ok(lock)
    }

    /// The packages named `tokio`.
    pub fn tokios(&self) -> Vec<&Locked> {
        self.packages.iter().filter(|package| package.name == "tokio").collect()
    }

    /// The names of the packages that depend on this one, at most `max`.
    pub fn dependents(&self, of: &Locked, max: usize) -> String {
        let (any, exact) = (of.name.clone(), format!("{} {}", of.name, of.version));
        let is_one = |entry: &str| entry == any || entry == exact || entry.starts_with(&format!("{exact} ("));
        let wanting =
            self.dependencies.iter().filter(|(_, entry)| is_one(entry)).map(|(name, _)| name.as_str());
        let names: BTreeSet<&str> = wanting.collect();
        let more = if names.len() > max { format!(" and {} more", names.len() - max) } else { String::new() };
        format!("{}{more}", names.into_iter().take(max).collect::<Vec<_>>().join(", "))
    }
}
