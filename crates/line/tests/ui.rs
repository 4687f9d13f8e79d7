//! What must not build, and what the compiler says then; and what must.
//!
//! The `.stderr` files hold the numbers of a 64-byte line and the words of rustc 1.95 around our own.
//! They hold no line of std: `assert_lines` is `track_caller` all the way down, so an error points at the
//! user's struct and at nothing else, with or without rust-src. After a change of words,
//! `TRYBUILD=overwrite cargo test -p warmcore-line --test ui` writes them anew; read the diff.

/// Another compiler puts other words around ours, and trybuild compares every letter.
#[cfg(target_arch = "x86_64")]
const WORDS_OF: &str = "rustc 1.95.";

#[test]
#[cfg(target_arch = "x86_64")]
fn mixed_lines_do_not_build_and_the_error_says_which() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("-V").output().expect("rustc tells its version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let cases = trybuild::TestCases::new();
    if version.starts_with(WORDS_OF) || std::env::var_os("TRYBUILD").is_some() {
        cases.compile_fail("tests/ui/*.rs");
    } else {
        // That such structs don't build is held by the `compile_fail` examples in the docs as well.
        eprintln!("not compared: the messages are {WORDS_OF}x's, this is {version}");
    }
    // With a case that must pass, trybuild builds instead of checking; `generic_constructor` needs that.
    cases.pass("tests/ui/pass/*.rs");
}
