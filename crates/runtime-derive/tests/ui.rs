//! What must not compile, with the compiler's errors, and what must.
//!
//! The `.stderr` files hold what rustc 1.95 prints around our messages. After a change of a message,
//! `TRYBUILD=overwrite cargo test -p warmcore-runtime-derive --test ui` writes them anew; read the diff.

/// Other compilers print other text around our messages, and trybuild compares all of it.
const WORDS_OF: &str = "rustc 1.95.";

#[test]
fn mistakes_are_told_at_the_word_that_is_wrong() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("-V").output().expect("rustc tells its version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let cases = trybuild::TestCases::new();
    if version.starts_with(WORDS_OF) || std::env::var_os("TRYBUILD").is_some() {
        cases.compile_fail("tests/ui/*.rs");
    } else {
        eprintln!("not compared: the messages are {WORDS_OF}x's, this is {version}");
    }
    cases.pass("tests/ui/pass/*.rs");
}
