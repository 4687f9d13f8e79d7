//! Circles: sets of files of one crate that import each other, directly or through other files.

use super::Crate;
use std::collections::BTreeMap;

/// The files of the largest circle of all crates. Empty if no two files import each other.
pub fn largest(crates: &[Crate]) -> Vec<String> {
    let circles = crates.iter().flat_map(|krate| {
        let imports = imports(krate);
        let circles = components(&imports);
        circles.into_iter().map(|circle| {
            let name = |&file: &usize| krate.files[file].path.display().to_string();
            circle.iter().map(name).collect::<Vec<_>>()
        })
    });
    circles.filter(|circle| circle.len() > 1).max_by_key(Vec::len).unwrap_or_default()
}

/// For each file of a crate the files that it imports from.
fn imports(krate: &Crate) -> Vec<Vec<usize>> {
    let files: BTreeMap<&[String], usize> =
        krate.files.iter().enumerate().map(|(i, file)| (&file.module[..], i)).collect();
    let resolve = |path: &[String]| {
        let mut path = path.to_vec();
        // Follows re-exports to the file that has the item, at most 8, in case re-exports form a circle.
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

/// Strongly connected components, by Tarjan's algorithm.
fn components(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    struct State<'a> {
        edges: &'a [Vec<usize>],
        index: Vec<Option<usize>>,
        low: Vec<usize>,
        stack: Vec<usize>,
        is_on_stack: Vec<bool>,
        next: usize,
        found: Vec<Vec<usize>>,
    }
    fn visit(state: &mut State<'_>, node: usize) {
        (state.index[node], state.low[node]) = (Some(state.next), state.next);
        state.next += 1;
        state.stack.push(node);
        state.is_on_stack[node] = true;
        for &other in &state.edges[node] {
            match state.index[other] {
                None => {
                    visit(state, other);
                    state.low[node] = state.low[node].min(state.low[other]);
                }
                Some(index) if state.is_on_stack[other] => state.low[node] = state.low[node].min(index),
                Some(_) => {}
            }
        }
        if state.index[node] == Some(state.low[node]) {
            let at = state.stack.iter().rposition(|&other| other == node).unwrap_or(0);
            let component = state.stack.split_off(at);
            component.iter().for_each(|&other| state.is_on_stack[other] = false);
            state.found.push(component);
        }
    }
    let len = edges.len();
    let mut state = State {
        edges,
        index: vec![None; len],
        low: vec![0; len],
        stack: Vec::new(),
        is_on_stack: vec![false; len],
        next: 0,
        found: Vec::new(),
    };
    for node in 0..len {
        if state.index[node].is_none() {
            visit(&mut state, node);
        }
    }
    state.found
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
