//! Structs that must not build, with their error messages, and structs that must.
//!
//! The `.stderr` files are for lines of 64 bytes and the messages of rustc 1.95. They contain no source line of std:
//! the functions between `assert_lines` and the panic are `track_caller`, so an error points at the user's struct only,
//! with or without rust-src. After a change of a message, `TRYBUILD=overwrite cargo test -p warmcore-line --test ui`
//! rewrites them; check the diff.

/// The beginning of `rustc -V` of the compiler of the `.stderr` files. Other versions may word their part of the
/// messages differently, and trybuild compares the whole text.
#[cfg(target_arch = "x86_64")]
const WORDS_OF: &str = "rustc 1.95.";

#[test]
#[cfg(target_arch = "x86_64")]
fn a_line_with_two_groups_does_not_build_and_the_error_names_it() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("-V").output().expect("rustc tells its version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let cases = trybuild::TestCases::new();
    if version.starts_with(WORDS_OF) || std::env::var_os("TRYBUILD").is_some() {
        cases.compile_fail("tests/ui/*.rs");
    } else {
        // The `compile_fail` examples in the docs still check that such structs do not build.
        eprintln!("not compared: the messages are {WORDS_OF}x's, this is {version}");
    }
    // With a case that must pass, trybuild builds instead of checking; `generic_constructor` needs that.
    cases.pass("tests/ui/pass/*.rs");
}
