//! Replay: a random case as a line of text, and the command that runs exactly that case.
//!
//! A case is a set of named numbers. A property draws cases, shrinks one that fails, and gives the command in its
//! message: `WARMCORE_CASE='sockets=1 … seed=7' cargo test -p warmcore-sim --test simulation NAME -- --exact`.
//! proptest adds a full stop, which is not part of the command. If `WARMCORE_CASE` is set, a property runs only that
//! case.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The environment variable with the case to run.
pub const VARIABLE: &str = "WARMCORE_CASE";

/// The text before the command.
pub const REPLAY: &str = "Replay it: ";

/// A case as named numbers.
pub trait Case: std::fmt::Debug {
    fn numbers(&self) -> Vec<(&'static str, u64)>;
    /// The case with these numbers; `None` if one is missing or too large.
    fn of(number: &dyn Fn(&str) -> Option<u64>) -> Option<Self>
    where
        Self: Sized;
}

/// Runs `check` on this many random cases, or only on the one in `WARMCORE_CASE`.
pub fn property<C: Case>(
    binary: &str,
    test: &str,
    cases: u32,
    drawn: impl Strategy<Value = C>,
    check: impl Fn(&C),
) {
    if let Ok(text) = std::env::var(VARIABLE) {
        let case =
            read(&text).unwrap_or_else(|| panic!("{VARIABLE}: {text:?} is no case of {test}: copy it whole"));
        println!("only {case:?}");
        return check(&case);
    }
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let done = TestRunner::new(config).run(&drawn, |case| {
        let panic = catch_unwind(AssertUnwindSafe(|| check(&case)));
        panic.map_err(|panic| {
            TestCaseError::fail(format!("{}\n{REPLAY}{}", words(&*panic), command(binary, test, &case)))
        })
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}

fn read<C: Case>(text: &str) -> Option<C> {
    let number = |name: &str| {
        let found = text.split_whitespace().filter_map(|word| word.split_once('='));
        found.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse().ok())
    };
    C::of(&number)
}

fn command<C: Case>(binary: &str, test: &str, case: &C) -> String {
    let numbers: Vec<String> =
        case.numbers().iter().map(|(name, number)| format!("{name}={number}")).collect();
    format!("{VARIABLE}='{}' cargo test -p warmcore-sim --test {binary} {test} -- --exact", numbers.join(" "))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}
