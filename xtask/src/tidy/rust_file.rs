//! Parses one file of Rust source: counts its lines of code, and lists the modules that it declares, the paths that it
//! names, its public structs and its constants.

use anyhow::Context;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// A file and what `tidy` counts in it.
#[derive(Debug)]
pub struct RustFile {
    /// From the repository's root.
    pub path: PathBuf,
    /// Its module path within its crate: empty for the root.
    pub module: Vec<String>,
    /// Lines with code: neither blank, nor only a comment, nor part of a test.
    pub code_lines: usize,
    /// Child modules: name, whether they are compiled for tests only.
    pub children: Vec<(String, bool)>,
    /// Paths within the crate that the code names, from the crate's root. Re-exports are not resolved.
    pub paths: BTreeSet<Vec<String>>,
    /// Names that a `use` that is not private makes available in this module, with the paths that the `use` names.
    pub reexports: Vec<(String, Vec<String>)>,
    /// The names of structs that are `pub`.
    pub public_structs: Vec<String>,
    /// Named constants: name and line.
    pub consts: Vec<(String, usize)>,
}

/// Pronouns that do not name the thread or task that is meant.
const PRONOUNS: [&str; 7] = ["who", "whoever", "whom", "nobody", "somebody", "anybody", "everybody"];

impl RustFile {
    /// Reads the file at `root`/`path`, the file of module `module`.
    pub fn read(root: &Path, path: &Path, module: Vec<String>) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(root.join(path)).with_context(|| format!("{}", path.display()))?;
        Self::parse(path, module, &text)
    }

    /// Counts in `text`.
    pub fn parse(path: &Path, module: Vec<String>, text: &str) -> anyhow::Result<Self> {
        let file = syn::parse_file(text).with_context(|| format!("{}", path.display()))?;
        let mut visitor = Visitor { module: module.clone(), ..Visitor::default() };
        visitor.visit_file(&file);
        let is_test = |line: usize| visitor.tests.iter().any(|&(first, last)| (first..=last).contains(&line));
        let code_lines = (1..)
            .zip(text.lines())
            .filter(|&(line, text)| !split_comment(text).0.trim().is_empty() && !is_test(line))
            .count();
        let Visitor { children, paths, reexports, public_structs, consts, .. } = visitor;
        let path = path.to_owned();
        Ok(Self { path, module, code_lines, children, paths, reexports, public_structs, consts })
    }
}

/// Lines of `text` with a `//` comment, and those whose comment has a word of `PRONOUNS`.
pub fn count_comments(text: &str) -> (u32, u32) {
    text.lines().filter_map(|line| split_comment(line).1).fold((0, 0), |(comments, pronouns), comment| {
        (comments + 1, pronouns + u32::from(has_pronoun(comment)))
    })
}

/// Whether a whole word of `text` is one of `PRONOUNS`, in any case.
fn has_pronoun(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| PRONOUNS.iter().any(|pronoun| word.eq_ignore_ascii_case(pronoun)))
}

/// A line's code and its `//` comment. A `//` inside a string literal that ends on the same line begins no comment.
fn split_comment(line: &str) -> (&str, Option<&str>) {
    let bytes = line.as_bytes();
    let (mut at, mut is_string) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if is_string => at += 1,
            b'"' if !(at > 0 && bytes[at - 1] == b'\'') => is_string = !is_string,
            b'/' if !is_string && bytes.get(at + 1) == Some(&b'/') => {
                return (&line[..at], Some(&line[at..]));
            }
            _ => {}
        }
        at += 1;
    }
    (line, None)
}

#[derive(Default)]
struct Visitor {
    module: Vec<String>,
    /// First and last lines of items that are compiled for tests only.
    tests: Vec<(usize, usize)>,
    children: Vec<(String, bool)>,
    paths: BTreeSet<Vec<String>>,
    reexports: Vec<(String, Vec<String>)>,
    public_structs: Vec<String>,
    consts: Vec<(String, usize)>,
}

/// Whether the attributes exclude the item from builds of users and tools.
fn is_for_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("test")
            || attr.path().is_ident("cfg")
                && attr.parse_args::<syn::Meta>().is_ok_and(|condition| !is_built(&condition))
    })
}

/// Whether a condition of `cfg` is true in a build with all features that is neither for tests nor for models.
fn is_built(condition: &syn::Meta) -> bool {
    let of = |list: &syn::MetaList| -> Vec<bool> {
        let parse = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
        list.parse_args_with(parse).map(|all| all.iter().map(is_built).collect()).unwrap_or_default()
    };
    match condition {
        syn::Meta::List(list) if list.path.is_ident("not") => !of(list).contains(&true),
        syn::Meta::List(list) if list.path.is_ident("any") => of(list).contains(&true),
        syn::Meta::List(list) => !of(list).contains(&false),
        syn::Meta::Path(path) => {
            !["test", "loom", "warmcore_loom", "shuttle"].iter().any(|name| path.is_ident(name))
        }
        syn::Meta::NameValue(_) => true,
    }
}

impl Visitor {
    /// A path that the code names, from the crate's root. `None` for a path that does not begin with `crate`, `self`,
    /// `super` or a child module.
    fn absolute(&self, segments: &[String]) -> Option<Vec<String>> {
        let first = segments.first()?;
        let mut path = match first.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => self.module.clone(),
            child if self.children.iter().any(|(name, _)| name == child) => self.module.clone(),
            _ => return None,
        };
        for segment in segments.iter().skip_while(|segment| *segment == "crate" || *segment == "self") {
            if segment == "super" { drop(path.pop()) } else { path.push(segment.clone()) }
        }
        Some(path)
    }

    fn add_tree(&mut self, prefix: &[String], tree: &syn::UseTree, is_private: bool) {
        let mut path = prefix.to_vec();
        let (name, visible) = match tree {
            syn::UseTree::Path(branch) => {
                path.push(branch.ident.to_string());
                return self.add_tree(&path, &branch.tree, is_private);
            }
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_tree(prefix, tree, is_private));
            }
            syn::UseTree::Name(leaf) => (Some(&leaf.ident), Some(&leaf.ident)),
            syn::UseTree::Rename(leaf) => (Some(&leaf.ident), Some(&leaf.rename)),
            syn::UseTree::Glob(_) => (None, None),
        };
        path.extend(name.map(ToString::to_string));
        let Some(path) = self.absolute(&path) else { return };
        if is_private {
            self.paths.insert(path);
        } else {
            self.reexports.extend(visible.map(|visible| (visible.to_string(), path)));
        }
    }
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_file(&mut self, file: &'ast syn::File) {
        // All `mod` items are read first, because a `use` may come before the `mod` that it names.
        for item in &file.items {
            if let syn::Item::Mod(module) = item
                && module.content.is_none()
            {
                self.children.push((module.ident.to_string(), is_for_tests(&module.attrs)));
            }
        }
        visit::visit_file(self, file);
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::spanned::Spanned;
        let attrs = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            syn::Item::Const(item) => &item.attrs,
            syn::Item::Static(item) => &item.attrs,
            syn::Item::Enum(item) => &item.attrs,
            syn::Item::Trait(item) => &item.attrs,
            syn::Item::Type(item) => &item.attrs,
            syn::Item::Macro(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if is_for_tests(attrs) {
            let first = attrs.first().map_or(item.span(), |attr| attr.span()).start().line;
            return self.tests.push((first, item.span().end().line));
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        use syn::spanned::Spanned;
        if is_for_tests(&item.attrs) {
            self.tests.push((item.attrs[0].span().start().line, item.span().end().line));
        } else {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_tree(&[], &item.tree, matches!(item.vis, syn::Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.paths.extend(self.absolute(&segments));
        }
        visit::visit_path(self, path);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if matches!(item.vis, syn::Visibility::Public(_)) {
            self.public_structs.push(item.ident.to_string());
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        if item.ident != "_" {
            self.consts.push((item.ident.to_string(), item.ident.span().start().line));
        }
        visit::visit_item_const(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_comments_and_tests_are_told_apart() {
        let text = "//! Nobody knows.\n\nuse crate::a::{B, c::D};\nuse child::E;\nmod child;\n\n\
                    /// A struct.\npub struct S; // whose\n\nconst N: u32 = 2; // \"who\" counts\n\
                    pub use child::F as G;\nfn f() {\n    let _ = \"// none\";\n    super::g::h();\n}\n\n\
                    #[cfg(all(test, not(loom)))]\nmod tests {\n    // In a test.\n    fn t() {}\n}\n";
        let module = vec!["x".to_owned(), "y".to_owned()];
        let file = RustFile::parse(Path::new("y.rs"), module, text).unwrap();
        assert_eq!(file.code_lines, 10);
        assert_eq!(count_comments(text), (5, 2));
        assert_eq!(file.children, [("child".to_owned(), false)]);
        assert_eq!(file.public_structs, ["S"]);
        assert_eq!(file.consts, [("N".to_owned(), 10)]);
        let real = vec!["x".to_owned(), "y".to_owned(), "child".to_owned(), "F".to_owned()];
        assert_eq!(file.reexports, [("G".to_owned(), real)]);
        let paths: Vec<String> = file.paths.iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["a::B", "a::c::D", "x::g::h", "x::y::child::E"]);
    }
}
