//! The prepared folder: the face, the copy of the real tokio under another name, and Warmcore's crates.
//!
//! The manifests inherit nothing. A nested workspace can't be inherited from: Cargo takes the first workspace root that
//! it knows above a package, which is the program's own. So every `workspace = true` is replaced by the value that it
//! stands for, and the program's workspace needs no `exclude`.
//!
//! Cargo hides the warnings of a registry's packages but not those of packages in a folder. Therefore these allow all
//! warnings, or else a lint of a newer compiler would show up in the program's build, or fail it.

use super::cargo::Package;
use anyhow::{Context, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value, value};

/// The files of Warmcore's crates and of the face: the path in the prepared folder, and the text.
const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// What the crates inherit.
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");

/// The folder and name of the copy of the real tokio.
const REAL: &str = "tokio-real";

/// The folder of the face.
const FACE: &str = "tokio";

/// The crate whose dependency on tokio is the copy. With the face in its place the two would depend on each other.
const DRIVER: &str = "driver";

/// What of a registry package a dependent doesn't need.
const LEFT_OUT: [&str; 9] = [
    "benches",
    "examples",
    "tests",
    "Cargo.lock",
    "Cargo.toml",
    "Cargo.toml.orig",
    ".cargo-checksum.json",
    ".cargo-ok",
    ".cargo_vcs_info.json",
];

/// The files of a prepared folder: from path to content.
pub type Files = BTreeMap<String, Vec<u8>>;

fn workspace() -> DocumentMut {
    WORKSPACE.parse().expect("Cargo reads this manifest to build this command")
}

/// The oldest Rust that builds Warmcore: `1.93`.
pub fn rust_version() -> String {
    let workspace = workspace();
    workspace["workspace"]["package"]["rust-version"].as_str().unwrap_or_default().to_owned()
}

/// The features of one of Warmcore's crates.
pub fn features(name: &str) -> Vec<String> {
    let folder = our_crates().remove(name);
    let is_its = |path: &str| path.strip_suffix("/Cargo.toml") == folder.as_deref();
    let text = SOURCES.iter().find(|(path, _)| is_its(path)).map_or("", |(_, text)| text);
    let manifest = text.parse::<DocumentMut>().unwrap_or_default();
    let features = manifest.get("features").and_then(Item::as_table_like);
    features.into_iter().flat_map(|table| table.iter()).map(|(name, _)| name.to_owned()).collect()
}

/// The names of Warmcore's crates, each with its folder in the prepared folder: `warmcore-runtime`, `runtime`.
pub fn our_crates() -> BTreeMap<String, String> {
    let manifests = SOURCES.iter().filter_map(|(path, text)| Some((path.strip_suffix("/Cargo.toml")?, text)));
    let named = manifests.filter_map(|(folder, text)| {
        let document: DocumentMut = text.parse().ok()?;
        Some((document["package"]["name"].as_str()?.to_owned(), folder.to_owned()))
    });
    named.filter(|(name, _)| name != "tokio").collect()
}

/// The files of the prepared folder for this tokio.
///
/// # Errors
/// A file of the package can't be read, or its manifest is not that of tokio.
pub fn files(tokio: &Package) -> anyhow::Result<Files> {
    let workspace = workspace();
    let mut files = Files::new();
    for (path, text) in SOURCES {
        let text = match path.strip_suffix("/Cargo.toml") {
            None => (*text).to_owned(),
            Some(folder) => {
                let mut manifest: DocumentMut = text.parse().with_context(|| format!("can't read {path}"))?;
                complete(&mut manifest, &workspace, folder)?;
                if folder == FACE {
                    add_version_and_features(&mut manifest, tokio);
                }
                manifest.to_string()
            }
        };
        files.insert((*path).to_owned(), text.into_bytes());
    }
    copy_real(tokio, &mut files)?;
    let folders = files.keys().filter_map(|path| path.strip_suffix("/Cargo.toml"));
    let members: Vec<String> = folders.map(|folder| format!("{folder:?}")).collect();
    let root = format!(
        "# Written by `warmcore adopt` of Warmcore {}. Run it again instead of editing these files.\n\
         [workspace]\nresolver = \"3\"\nmembers = [{}]\n",
        env!("CARGO_PKG_VERSION"),
        members.join(", ")
    );
    files.insert("Cargo.toml".into(), root.into_bytes());
    Ok(files)
}

/// Replaces what a manifest inherits by the values, and removes what only its own tests and benches use.
fn complete(manifest: &mut DocumentMut, workspace: &DocumentMut, folder: &str) -> anyhow::Result<()> {
    let inherited = &workspace["workspace"];
    for (key, item) in manifest["package"].as_table_like_mut().context("no [package]")?.iter_mut() {
        if is_inherited(item) {
            *item = inherited["package"][key.get()].clone();
        }
    }
    manifest.remove("workspace");
    only_library(manifest);
    for table in dependencies(manifest) {
        for (key, item) in table.iter_mut() {
            if is_inherited(item) {
                let base = inherited["dependencies"].get(key.get());
                let base =
                    base.with_context(|| format!("{folder} inherits {}, which is missing", key.get()))?;
                *item = value(merged(base, item));
            }
            let Some(table) = item.as_inline_table_mut() else { continue };
            if let Some(path) = table.get("path").and_then(Value::as_str) {
                let path = format!("../{}", path.trim_start_matches("../").trim_start_matches("crates/"));
                table.insert("path", path.into());
            }
            if matches!((folder, key.get()), (DRIVER, "tokio") | (FACE, "real")) {
                table.remove("version");
                table.insert("package", REAL.into());
                table.insert("path", format!("../{REAL}").into());
            }
            table.fmt();
        }
    }
    Ok(())
}

/// Removes tests, benches, examples and what they depend on, and allows all warnings.
fn only_library(manifest: &mut DocumentMut) {
    for key in ["dev-dependencies", "test", "bench", "example", "lints"] {
        manifest.remove(key);
    }
    let targets = manifest.get_mut("target").and_then(Item::as_table_like_mut);
    for (_, target) in targets.into_iter().flat_map(|targets| targets.iter_mut()) {
        if let Some(target) = target.as_table_like_mut() {
            target.remove("dev-dependencies");
        }
    }
    let mut rust = Table::new();
    // `warnings` stands for the lints that warn. Cargo passes RUSTFLAGS after it, and `-D warnings` there would undo
    // it; a lint that is allowed by its name stays allowed.
    rust["warnings"] = value("allow");
    rust["unexpected_cfgs"] = value("allow");
    let mut lints = Table::new();
    lints.set_implicit(true);
    lints.insert("rust", Item::Table(rust));
    manifest.insert("lints", Item::Table(lints));
}

/// The tables of dependencies, those of a target too.
fn dependencies(manifest: &mut DocumentMut) -> Vec<&mut dyn TableLike> {
    let (mut tables, mut found): (Vec<&mut Item>, Vec<&mut dyn TableLike>) = (Vec::new(), Vec::new());
    for (key, item) in manifest.iter_mut() {
        match key.get() {
            "dependencies" | "build-dependencies" => tables.push(item),
            "target" => {
                let targets = item.as_table_like_mut().into_iter().flat_map(|targets| targets.iter_mut());
                let inner = targets.filter_map(|(_, target)| target.as_table_like_mut());
                tables.extend(inner.flat_map(|target| target.iter_mut()).map(|(_, item)| item));
            }
            _ => {}
        }
    }
    found.extend(tables.into_iter().filter_map(Item::as_table_like_mut));
    found
}

fn is_inherited(item: &Item) -> bool {
    item.get("workspace").and_then(Item::as_bool).unwrap_or(false)
}

/// A dependency of the workspace with what a crate adds to it. Features add up; any other key of the crate replaces the
/// workspace's.
fn merged(base: &Item, own: &Item) -> InlineTable {
    let mut all = InlineTable::new();
    match base.as_str() {
        Some(version) => _ = all.insert("version", version.into()),
        None => {
            let base = base.as_table_like().into_iter().flat_map(|table| table.iter());
            all.extend(base.filter_map(|(key, item)| Some((key.to_owned(), item.as_value()?.clone()))));
        }
    }
    for (key, item) in own.as_table_like().into_iter().flat_map(|table| table.iter()) {
        let Some(own) = item.as_value().filter(|_| key != "workspace") else { continue };
        match (all.get_mut(key).and_then(Value::as_array_mut), own.as_array()) {
            (Some(features), Some(more)) => {
                features.extend(more.iter().cloned());
                features.fmt();
            }
            _ => _ = all.insert(key, own.clone()),
        }
    }
    all
}

/// Gives the face the version of the program's tokio, and its features. Each turns on the one of the same name of the
/// real tokio, the features of the face that the real one's list names, and what the face's own manifest lists for it.
///
/// Every feature is needed, the implicit ones of optional dependencies too: with one missing, Cargo would silently take
/// another version of tokio from the registry.
fn add_version_and_features(face: &mut DocumentMut, tokio: &Package) {
    if let Some(package) = face["package"].as_table_mut() {
        package.decor_mut().set_prefix("# Written by `warmcore adopt`.\n");
    }
    face["package"]["version"] = value(&tokio.version);
    let features = face.entry("features").or_insert_with(|| Item::Table(Table::new()));
    for (name, parts) in &tokio.features {
        let own = features.get(name).and_then(Item::as_array).into_iter().flatten();
        let mut list: BTreeSet<String> = own.filter_map(|part| Some(part.as_str()?.to_owned())).collect();
        list.extend(parts.iter().filter(|part| tokio.features.contains_key(*part)).cloned());
        list.insert(format!("real/{name}"));
        features[name] = value(Array::from_iter(list));
    }
}

/// Adds the copy of the registry's package: its files without tests and benches, and its manifest with another name.
/// The library keeps the name `tokio`, which the paths of modules in logs begin with.
fn copy_real(tokio: &Package, files: &mut Files) -> anyhow::Result<()> {
    let path = &tokio.manifest_path;
    let folder = path.parent().context("a manifest without a folder")?;
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let mut manifest: DocumentMut = text.parse().with_context(|| format!("can't read {}", path.display()))?;
    if manifest["package"]["name"].as_str() != Some("tokio") {
        bail!("{} is not the manifest of tokio", path.display());
    }
    manifest["package"]["name"] = value(REAL);
    let lib = manifest.entry("lib").or_insert_with(|| Item::Table(Table::new()));
    lib["name"] = value("tokio");
    // The documentation of the face has the same path.
    lib["doc"] = value(false);
    only_library(&mut manifest);
    files.insert(format!("{REAL}/Cargo.toml"), manifest.to_string().into_bytes());
    read_all(folder, REAL, &LEFT_OUT, files)
}

/// Adds the files below `folder`, with `name` as the folder's path. `left_out` holds for the folder itself.
fn read_all(folder: &Path, name: &str, left_out: &[&str], files: &mut Files) -> anyhow::Result<()> {
    let fail = || format!("can't read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(fail)? {
        let entry = entry.with_context(fail)?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let inner = if name.is_empty() { file.clone() } else { format!("{name}/{file}") };
        if left_out.contains(&file.as_str()) {
            continue;
        }
        if entry.path().is_dir() {
            read_all(&entry.path(), &inner, &[], files)?;
        } else {
            files.insert(inner, fs::read(entry.path()).with_context(fail)?);
        }
    }
    Ok(())
}

/// Whether `folder` has these files and no others. Then it stays as it is, and with it what was built from it.
pub fn is_same(folder: &Path, files: &Files) -> bool {
    let mut present = Files::new();
    read_all(folder, "", &[], &mut present).is_ok() && present == *files
}

/// Writes the files into `folder`, which is new.
pub fn write(folder: &Path, files: &Files) -> anyhow::Result<()> {
    for (name, bytes) in files {
        let path = folder.join(name);
        let fail = || format!("can't write {}", path.display());
        fs::create_dir_all(path.parent().unwrap_or(folder)).with_context(fail)?;
        fs::write(&path, bytes).with_context(fail)?;
    }
    Ok(())
}
