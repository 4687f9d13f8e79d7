//! Circles: sets of files of one crate that import each other, directly or through other files.

use super::Crate;
use std::collections::{BTreeMap, BTreeSet};

/// The paths of the files of the largest circle of all crates. Empty if there is no circle.
pub fn largest(crates: &[Crate]) -> Vec<String> {
    let circles = crates.iter().flat_map(|krate| {
        let imports = imports(krate);
        let reached: Vec<BTreeSet<usize>> = imports.iter().map(|from| reached(&imports, from)).collect();
        // Two files are in one circle if each reaches the other.
        let circle = move |file: usize| -> Vec<String> {
            let others = reached[file].iter().filter(|&&other| reached[other].contains(&file));
            others.map(|&other| krate.files[other].path.display().to_string()).collect()
        };
        (0..imports.len()).map(circle)
    });
    circles.max_by_key(Vec::len).unwrap_or_default()
}

/// All files that are reached from these through imports, including these.
fn reached(imports: &[Vec<usize>], from: &[usize]) -> BTreeSet<usize> {
    let (mut reached, mut open) = (BTreeSet::new(), from.to_vec());
    while let Some(file) = open.pop() {
        if reached.insert(file) {
            open.extend(&imports[file]);
        }
    }
    reached
}

/// For each file of a crate the files that it imports from.
fn imports(krate: &Crate) -> Vec<Vec<usize>> {
    let files: BTreeMap<&[String], usize> =
        krate.files.iter().enumerate().map(|(i, file)| (&file.module[..], i)).collect();
    let resolve = |path: &[String]| {
        let mut path = path.to_vec();
        // Follow re-exports to the file that has the item, at most 8 of them, because re-exports may form a circle.
        for _ in 0..8 {
            let file = (0..=path.len()).rev().find_map(|len| Some((*files.get(&path[..len])?, len)));
            let (file, len) = file?;
            let reexports = &krate.files[file].reexports;
            let found = path.get(len).and_then(|name| reexports.iter().find(|(visible, _)| visible == name));
            let Some((_, real)) = found else { return Some(file) };
            path = real.iter().chain(&path[len + 1..]).cloned().collect();
        }
        None
    };
    let of = |(i, file): (usize, &super::RustFile)| {
        let mut imported: Vec<usize> = file.paths.iter().filter_map(|path| resolve(path)).collect();
        imported.sort_unstable();
        imported.dedup();
        imported.retain(|&other| other != i);
        imported
    };
    krate.files.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Crate, RustFile};
    use super::*;
    use std::path::{Path, PathBuf};

    #[test]
    fn files_that_import_each_other_through_a_reexport_are_a_circle() {
        let file = |name: &str, text: &str| {
            let module = if name == "lib" { Vec::new() } else { vec![name.to_owned()] };
            RustFile::parse(Path::new(name), module, text).unwrap()
        };
        let files = vec![
            file("lib", "mod a; mod b; mod c; pub use b::B;"),
            file("a", "use crate::B; pub struct A(B);"),
            file("b", "use crate::c::C; pub struct B(C);"),
            file("c", "pub struct C; fn f() { crate::a::g() }"),
        ];
        let mut circle = largest(&[Crate { folder: PathBuf::from("x"), files }]);
        circle.sort();
        assert_eq!(circle, ["a", "b", "c"]);
    }
}
