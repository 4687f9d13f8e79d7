//! What must not build, and what the compiler says then; and what must.
//!
//! The `.stderr` files hold the numbers of a 64-byte line and the words of rustc 1.95 around our own.
//! They hold no line of std: `assert_lines` is `track_caller` all the way down, so an error points at the
//! user's struct and at nothing else, with or without rust-src. After a change of words,
//! `TRYBUILD=overwrite cargo test -p warmcore-line --test ui` writes them anew; read the diff.

#[test]
#[cfg(target_arch = "x86_64")]
fn mixed_lines_do_not_build_and_the_error_says_which() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    // With a case that must pass, trybuild builds instead of checking; `generic_constructor` needs that.
    cases.pass("tests/ui/pass/*.rs");
}
