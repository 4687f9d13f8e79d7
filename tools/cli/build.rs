//! Lists the sources of the crates in `crates/` and of the face in `adapters/tokio`, as a table of `include_str!`.
//!
//! `warmcore adopt` writes these files beside a program, since no registry has them. Tests, benches and examples are
//! left out: a package that another one depends on is built without them.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Folders and files that only tests, benches and builds use.
const LEFT_OUT: [&str; 6] = ["benches", "examples", "target", "tests", "tests.rs", "Cargo.lock"];

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let mut table = String::from("&[\n");
    for (group, folder) in [("crates", ""), ("adapters/tokio", "tokio")] {
        let path = root.join(group);
        println!("cargo::rerun-if-changed={}", path.display());
        list(&path, folder, &mut table)?;
    }
    table.push(']');
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("sources.rs"), table)?;
    Ok(())
}

/// Appends a line for each file below `folder`; `name` is the folder's path in the prepared folder.
fn list(folder: &Path, name: &str, table: &mut String) -> Result<(), Box<dyn Error>> {
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let file = entry.file_name().into_string().map_err(|name| format!("not UTF-8: {name:?}"))?;
        if LEFT_OUT.contains(&file.as_str()) || file.starts_with('.') {
            continue;
        }
        let inner = if name.is_empty() { file } else { format!("{name}/{file}") };
        if entry.path().is_dir() {
            list(&entry.path(), &inner, table)?;
        } else {
            writeln!(table, "    ({inner:?}, include_str!({:?})),", entry.path())?;
        }
    }
    Ok(())
}
