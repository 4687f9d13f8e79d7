//! The files that SECURITY.md names for its claims exist.

use std::path::Path;

const PAGE: &str = include_str!("../../../SECURITY.md");

#[test]
fn each_file_that_the_page_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let quoted = PAGE.split('`').skip(1).step_by(2);
    let is_file = |name: &&str| ["crates/", "tools/", "fuzz/"].iter().any(|folder| name.starts_with(folder));
    let files: Vec<&str> = quoted.filter(is_file).collect();
    assert!(files.len() > 15, "{files:?}");
    let missing: Vec<_> = files.into_iter().filter(|name| !root.join(name).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
