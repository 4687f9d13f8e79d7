//! The tests that are not run through the face, with their reasons: `skip.txt`.

use super::Tests;
use anyhow::ensure;
use std::collections::BTreeMap;

/// Lines of a suite, a test and a reason, separated by blanks. Lines that begin with `#` are comments.
const SKIP: &str = include_str!("skip.txt");

/// The skipped tests of a suite.
pub struct Skips(BTreeMap<String, String>);

impl Skips {
    /// The skipped tests of a suite with their reasons. If `all` of its tests are given, returns an error for each skipped
    /// test that is not among them.
    pub fn of(suite: &str, all: Option<&Tests<'_>>) -> anyhow::Result<Self> {
        let skips = Self::read(SKIP, suite)?;
        let unknown: Vec<&str> = match all {
            Some(all) => skips.0.keys().filter(|name| !all.contains_key(*name)).map(String::as_str).collect(),
            None => Vec::new(),
        };
        ensure!(
            unknown.is_empty(),
            "skip.txt names tests that {suite} does not have: {}",
            unknown.join(", ")
        );
        Ok(skips)
    }

    fn read(text: &str, suite: &str) -> anyhow::Result<Self> {
        let mut skips = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.splitn(3, ' ').map(str::trim).collect();
            let &[of, test, reason] = &words[..] else {
                anyhow::bail!("a skipped test without a reason: {line}")
            };
            if of == suite {
                let is_new = skips.insert(test.to_owned(), reason.to_owned()).is_none();
                ensure!(is_new, "skip.txt names {test} of {suite} twice");
            }
        }
        Ok(Self(skips))
    }

    pub fn has(&self, test: &str) -> bool {
        self.0.contains_key(test)
    }

    pub fn reason(&self, test: &str) -> Option<&str> {
        self.0.get(test).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_suite_a_test_and_a_reason() {
        let text = "# why\n\ntokio rt::a it reads the name of a thread of tokio\nbb8 test::b x\n";
        let skips = Skips::read(text, "tokio").unwrap();
        assert_eq!(skips.reason("rt::a"), Some("it reads the name of a thread of tokio"));
        assert!(!skips.has("test::b"));
        assert!(Skips::read("tokio rt::a\n", "tokio").is_err());
        assert!(Skips::read("tokio rt::a x\ntokio rt::a y\n", "tokio").is_err());
    }

    #[test]
    fn a_skip_of_a_test_that_is_not_there_is_an_error() {
        assert!(Skips::of("tokio", None).is_ok());
        let named = SKIP.lines().any(|line| line.starts_with("tokio "));
        assert_eq!(Skips::of("tokio", Some(&Tests::new())).is_err(), named);
    }
}
