//! `cargo xtask tidy`: counts what keeps the code readable, and fails if a count is above its limit.
//!
//! Lines of code are those of the product (`crates/`) and of the tools (`tools/`) with neither tests, blank lines nor
//! lines that are only a comment. Pronouns are counted in the `//` comments of each tracked Rust file but those of
//! [`REPLACED`]. `words.txt` lists names that were replaced by the usual term of the field and must not be used again.
//! A circle is a set of files of one crate that import each other.

mod circles;
mod rust_file;

use anyhow::{Context, bail};
use rust_file::RustFile;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names that were replaced, one per line.
const WORDS: &str = include_str!("../words.txt");

/// Files that the next rewrite of the scheduler core replaces: their comments, and those of their child modules, are
/// left out.
const REPLACED: [&str; 1] = ["crates/runtime/src/watchdog.rs"];

/// A count and its limit.
struct Row {
    what: &'static str,
    count: f64,
    limit: f64,
    /// The parts of the count, a line each.
    parts: Vec<String>,
}

/// Prints a line for each count, and fails if a count is above its limit. Below the line of such a count its first 40
/// parts are listed; with `shows_all`, all parts of each count.
pub fn run(root: &Path, shows_all: bool) -> anyhow::Result<()> {
    let rows = rows(root)?;
    let mut above = Vec::new();
    for row in &rows {
        let is_above = row.count > row.limit;
        println!(
            "{}  {:<58} {:>8}  at most {:>8}",
            if is_above { "FAIL" } else { "ok  " },
            row.what,
            row.count,
            row.limit
        );
        let shown = match (shows_all, is_above) {
            (true, _) => row.parts.len(),
            (false, true) => row.parts.len().min(40),
            (false, false) => 0,
        };
        row.parts[..shown].iter().for_each(|part| println!("        {part}"));
        above.extend(is_above.then_some(row.what));
    }
    if above.is_empty() { Ok(()) } else { bail!("above its limit: {}", above.join("; ")) }
}

fn rows(root: &Path) -> anyhow::Result<Vec<Row>> {
    let tracked = tracked(root)?;
    let crates = crates(root)?;
    let lines = |folder: &str| {
        let in_folder = crates.iter().filter(|krate| krate.folder.starts_with(folder));
        let mut lines: Vec<(usize, String)> = in_folder
            .map(|krate| {
                (krate.files.iter().map(|file| file.code_lines).sum(), krate.folder.display().to_string())
            })
            .collect();
        lines.sort_by_key(|(lines, _)| std::cmp::Reverse(*lines));
        let sum: usize = lines.iter().map(|(lines, _)| lines).sum();
        (sum as f64, lines.into_iter().map(|(lines, name)| format!("{lines:>6} {name}")).collect())
    };
    let (product, product_parts) = lines("crates");
    let (tools, tools_parts) = lines("tools");
    let (pronouns, pronoun_parts) = pronouns(root, &tracked)?;
    let words = words(root, &tracked);
    let (structs, struct_parts) = struct_names(&crates);
    let circles = circles::largest(&crates);
    let untold = untold_constants(root, &crates);
    let row = |what, count, limit, parts| Row { what, count, limit, parts };
    // The goals are 15 000 lines of the product, 20 000 of the tools, and 600 files. Until they are reached, the limits
    // are near the present counts.
    Ok(vec![
        row("lines of code, product", product, 22_735.0, product_parts),
        row("lines of code, tools", tools, 37_852.0, tools_parts),
        row("lines with a pronoun, per 100 lines with a comment", pronouns, 0.5, pronoun_parts),
        row("lines with a name that was replaced", words.len() as f64, 0.0, words),
        row("public structs with one name, across crates", structs, 2.0, struct_parts),
        row("files of a crate that import each other", circles.len() as f64, 8.0, circles),
        row("constants of scheduling that docs/tuning.md does not list", untold.len() as f64, 0.0, untold),
        row("tracked files", tracked.len() as f64, 1_218.0, Vec::new()),
    ])
}

/// The files that git tracks and that exist.
fn tracked(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output =
        Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("can't run git")?;
    let names = String::from_utf8(output.stdout).context("a tracked file's name is not UTF-8")?;
    let paths = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    let files: Vec<PathBuf> = paths.filter(|path| root.join(path).exists()).collect();
    if files.is_empty() {
        bail!("`git ls-files` lists nothing in {}", root.display())
    }
    Ok(files)
}

/// A crate: the files that its roots declare, directly or through other files, without those for tests only.
pub struct Crate {
    /// From the repository's root: `crates/cid`.
    pub folder: PathBuf,
    /// Its files. The first is a root; a crate with a library and a program has two roots.
    pub files: Vec<RustFile>,
}

/// The crates of `crates/`, then those of `tools/`, in the order of their folders' names.
fn crates(root: &Path) -> anyhow::Result<Vec<Crate>> {
    let mut crates = Vec::new();
    for group in ["crates", "tools"] {
        let mut folders: Vec<PathBuf> = std::fs::read_dir(root.join(group))?
            .filter_map(|entry| Some(Path::new(group).join(entry.ok()?.file_name())))
            .filter(|folder| root.join(folder).join("Cargo.toml").is_file())
            .collect();
        folders.sort();
        for folder in folders {
            let mut files = Vec::new();
            for name in ["src/lib.rs", "src/main.rs"] {
                let path = folder.join(name);
                if root.join(&path).is_file() {
                    read_module(root, &path, Vec::new(), &mut files)?;
                }
            }
            crates.push(Crate { folder, files });
        }
    }
    Ok(crates)
}

/// Reads a module's file and those of its child modules, except modules that are compiled for tests only.
fn read_module(
    root: &Path,
    path: &Path,
    module: Vec<String>,
    files: &mut Vec<RustFile>,
) -> anyhow::Result<()> {
    let file = RustFile::read(root, path, module.clone())?;
    let folder = path.parent().context("a file without a folder")?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = if matches!(stem, "lib" | "main" | "mod") { folder.to_owned() } else { folder.join(stem) };
    let children: Vec<String> =
        file.children.iter().filter(|(_, is_test)| !is_test).map(|(name, _)| name.clone()).collect();
    files.push(file);
    for child in children {
        let name = child.trim_start_matches("r#");
        let paths = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
        // A module with a `path` attribute has its file in another place. The file is counted at that place or not at
        // all.
        if let Some(path) = paths.iter().find(|path| root.join(path).is_file()) {
            let mut module = module.clone();
            module.push(name.to_owned());
            read_module(root, path, module, files)?;
        }
    }
    Ok(())
}

/// The number of lines with a pronoun per 100 lines with a comment, and the files that have such lines, the most first.
fn pronouns(root: &Path, tracked: &[PathBuf]) -> anyhow::Result<(f64, Vec<String>)> {
    let (mut comments, mut hits, mut parts) = (0, 0, Vec::new());
    for path in tracked.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        if REPLACED.iter().any(|replaced| is_or_belongs_to(path, Path::new(replaced))) {
            continue;
        }
        let text = std::fs::read_to_string(root.join(path))?;
        let (comment_lines, pronoun_lines) = rust_file::count_comments(&text);
        comments += comment_lines;
        hits += pronoun_lines;
        if pronoun_lines > 0 {
            parts.push((pronoun_lines, path.display().to_string()));
        }
    }
    parts.sort_by_key(|(lines, _)| std::cmp::Reverse(*lines));
    let rate = (1000.0 * f64::from(hits) / f64::from(comments.max(1))).round() / 10.0;
    Ok((rate, parts.into_iter().map(|(lines, path)| format!("{lines:>6} {path}")).collect()))
}

/// Whether `path` is the file `module`, or a file in the folder of the module's children.
fn is_or_belongs_to(path: &Path, module: &Path) -> bool {
    path == module || path.starts_with(module.with_extension(""))
}

/// The lines with a name that was replaced, as `path:line: name`.
fn words(root: &Path, tracked: &[PathBuf]) -> Vec<String> {
    let words: BTreeSet<&str> = WORDS.lines().filter(|line| !line.is_empty()).collect();
    let is_read = |path: &Path| {
        let text = path.display().to_string();
        let is_in_root = !text.contains('/') && text.ends_with(".md") && text != "CHANGELOG.md";
        let folders = ["crates/", "tools/", "adapters/", "peers/", "fuzz/", "xtask/", "docs/", "scx/"];
        (is_in_root || folders.iter().any(|folder| text.starts_with(folder)))
            && text != "xtask/words.txt"
            && !text.starts_with("fuzz/corpus/")
    };
    let mut lines = Vec::new();
    for path in tracked.iter().filter(|path| is_read(path)) {
        // Files that are not text, such as corpora and pictures, are skipped.
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            // A line with `alias` lets an input file use the name of an older version.
            if line.contains("alias") {
                continue;
            }
            let line_without = line.replace("text-anchor", "");
            let mut parts = line_without.split(|c: char| !c.is_alphanumeric() && c != '_');
            if let Some(word) = parts.find(|part| words.contains(part)) {
                lines.push(format!("{}:{number}: {word}", path.display()));
            }
        }
    }
    lines
}

/// The largest number of crates that have a public struct of the same name, and the names that more than two crates
/// have.
fn struct_names(crates: &[Crate]) -> (f64, Vec<String>) {
    let mut places: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for krate in crates {
        for name in krate.files.iter().flat_map(|file| &file.public_structs) {
            places.entry(name).or_default().insert(krate.folder.display().to_string());
        }
    }
    let mut shared: Vec<(usize, String)> = places
        .iter()
        .filter(|(_, places)| places.len() > 2)
        .map(|(name, places)| (places.len(), format!("{:>6} {name}: {places:?}", places.len())))
        .collect();
    shared.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let most = places.values().map(BTreeSet::len).max().unwrap_or(0);
    (most as f64, shared.into_iter().map(|(_, text)| text).collect())
}

/// Constants of the crates `DECIDE` that `docs/tuning.md` does not name.
fn untold_constants(root: &Path, crates: &[Crate]) -> Vec<String> {
    const DECIDE: [&str; 7] = [
        "crates/sched",
        "crates/driver",
        "crates/runtime",
        "crates/http",
        "crates/cid",
        "crates/tenant",
        "crates/budget",
    ];
    let listed = std::fs::read_to_string(root.join("docs/tuning.md")).unwrap_or_default();
    let listed: BTreeSet<&str> = listed.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let decide = crates.iter().filter(|krate| DECIDE.iter().any(|folder| krate.folder == Path::new(folder)));
    let consts = decide.flat_map(|krate| &krate.files).flat_map(|file| {
        file.consts.iter().map(|(name, line)| (name, format!("{}:{line}: {name}", file.path.display())))
    });
    consts.filter(|(name, _)| !listed.contains(name.as_str())).map(|(_, text)| text).collect()
}
