//! The table: a line per suite with what its tests did through the face, beside the same on tokio.

use super::runs::{Record, Results, TestName};
use super::skip::Skips;
use serde_json::{Value, json};
use std::fmt::Write;

/// The results of a suite on two sides.
pub struct Comparison<'a> {
    pub results: &'a Results,
    /// Tokio's side and the face's, by their names in the results.
    pub sides: [&'static str; 2],
    pub skips: &'a Skips,
}

/// A test that passes on tokio and does not through the face.
struct Failure {
    test: TestName,
    /// Whether it is in `skip.txt`, and was not run; then the text is the reason, or else the output.
    is_skipped: bool,
    text: String,
}

/// Counts of the tests of one line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    tests: u32,
    /// Tests in which a worker of the face polled a task.
    polled: u32,
    /// Tests that passed without such a poll.
    not_polled: u32,
    passed: u32,
    skipped: u32,
    failed: u32,
    flaky: u32,
    passed_on_tokio: u32,
    failed_on_tokio: u32,
    flaky_on_tokio: u32,
    /// The tests of which the share is taken: they pass on tokio, and through the face a worker polled a task in them
    /// or they did not pass.
    counted: u32,
    passed_of_counted: u32,
}

/// A line of the table.
pub struct Row {
    name: String,
    counts: Counts,
    /// The least share of `counted` tests that must pass, in percent.
    limit: f64,
    failures: Vec<Failure>,
}

impl Row {
    /// The line of some tests.
    pub fn of<'a>(
        name: String,
        tests: impl Iterator<Item = &'a TestName>,
        comparison: &Comparison<'_>,
        limit: f64,
    ) -> Self {
        let Comparison { results, sides: [tokio, face], skips } = comparison;
        let mut row = Self { name, counts: Counts::default(), limit, failures: Vec::new() };
        for test in tests {
            let reason = skips.reason(test);
            let [tokio, face] = [tokio, face].map(|side| results.record(side, test));
            row.counts.add(&tokio, &face, reason.is_some());
            if tokio.has_passed() && (reason.is_some() || !face.has_passed()) {
                let text = reason.map_or(face.message, str::to_owned);
                row.failures.push(Failure { test: test.clone(), is_skipped: reason.is_some(), text });
            }
        }
        row
    }

    /// The counted tests that passed, in percent.
    fn share(&self) -> Option<f64> {
        let Counts { counted, passed_of_counted, .. } = self.counts;
        (counted > 0).then(|| f64::from(passed_of_counted) / f64::from(counted) * 100.0)
    }

    /// What is wrong with the line.
    pub fn faults(&self) -> Vec<String> {
        let name = &self.name;
        let mut faults = Vec::new();
        if self.share().is_some_and(|share| share < self.limit) {
            faults.push(format!("{name}: fewer than {} % pass", self.limit));
        }
        if self.counts.passed == 0 {
            faults.push(format!("{name}: no test passed"));
        }
        let unexplained = self.failures.iter().filter(|failure| !failure.is_skipped);
        let unexplained: Vec<&str> = unexplained.map(|failure| &*failure.test).collect();
        if !unexplained.is_empty() {
            faults.push(format!(
                "{name}: not in skip.txt and failed through the face only: {}",
                unexplained.join(", ")
            ));
        }
        if self.counts.flaky > self.counts.flaky_on_tokio {
            let Counts { flaky, flaky_on_tokio, .. } = self.counts;
            faults.push(format!("{name}: {flaky} tests fail at times, {flaky_on_tokio} on tokio"));
        }
        faults
    }
}

impl Counts {
    fn add(&mut self, tokio: &Record, face: &Record, is_skipped: bool) {
        let one = |is: bool| u32::from(is);
        let has_passed = face.has_passed() && !is_skipped;
        self.tests += 1;
        self.polled += one(face.polls > 0 && !is_skipped);
        self.not_polled += one(face.polls == 0 && has_passed);
        self.passed += one(has_passed);
        self.skipped += one(is_skipped);
        self.failed += one(!has_passed && !is_skipped);
        self.flaky += one(face.is_flaky());
        self.passed_on_tokio += one(tokio.has_passed());
        self.failed_on_tokio += one(!tokio.has_passed());
        self.flaky_on_tokio += one(tokio.is_flaky());
        let is_counted = tokio.has_passed() && (face.polls > 0 || !has_passed);
        self.counted += one(is_counted);
        self.passed_of_counted += one(is_counted && has_passed);
    }
}

/// The table as text, with the reasons of the skipped tests.
pub fn text(rows: &[Row]) -> String {
    let mut text = format!(
        "\n{:<34} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}   on tokio: {:>6} {:>6}   {:>8} {:>9}\n",
        "suite",
        "tests",
        "polled",
        "others",
        "passed",
        "skipped",
        "failed",
        "flaky",
        "passed",
        "failed",
        "share",
        "at least"
    );
    for row in rows {
        let Counts { tests, polled, not_polled, passed, skipped, failed, flaky, .. } = row.counts;
        let share = row.share().map_or_else(|| "-".to_owned(), |share| format!("{share:.1} %"));
        let _ = writeln!(
            text,
            "{:<34} {tests:>6} {polled:>7} {not_polled:>7} {passed:>7} {skipped:>7} {failed:>7} {flaky:>6}   \
             {:>16} {:>6}   {share:>8} {:>7} %",
            row.name, row.counts.passed_on_tokio, row.counts.failed_on_tokio, row.limit
        );
    }
    text += "polled: a worker of the face polled a task in the test; others: passed and never reached a worker;\n\
             share: passed, of the tests that pass on tokio and are polled or do not pass\n";
    for row in rows {
        for failure in &row.failures {
            let what = if failure.is_skipped { "skipped, " } else { "FAILED, " };
            let first = if failure.is_skipped { &failure.text } else { reason(&failure.text) };
            let _ = writeln!(text, "{}: {}: {what}{first}", row.name, failure.test);
        }
    }
    text
}

/// The line of a test's output that says most: the one after the place of a panic, or else the first.
fn reason(output: &str) -> &str {
    let mut lines = output.lines();
    let panic = lines.by_ref().find(|line| line.contains("panicked at"));
    panic.and_then(|_| lines.next()).or(output.lines().next()).unwrap_or_default()
}

/// The table as JSON.
pub fn json(rows: &[Row], tokio: &str) -> Value {
    let row = |row: &Row| {
        let failures = |is_skipped: bool| -> Vec<Value> {
            let chosen = row.failures.iter().filter(|failure| failure.is_skipped == is_skipped);
            let key = if is_skipped { "reason" } else { "output" };
            chosen.map(|failure| json!({ "test": failure.test, key: failure.text })).collect()
        };
        let counts = &row.counts;
        json!({
            "suite": row.name,
            "tests": counts.tests,
            "polled": counts.polled,
            "not_polled": counts.not_polled,
            "passed": counts.passed,
            "skipped": counts.skipped,
            "failed": counts.failed,
            "flaky": counts.flaky,
            "tokio": {
                "passed": counts.passed_on_tokio,
                "failed": counts.failed_on_tokio,
                "flaky": counts.flaky_on_tokio,
            },
            "share_percent": row.share(),
            "share_percent_min": row.limit,
            "skips": failures(true),
            "failures": failures(false),
        })
    };
    json!({ "schema": 1, "tokio": tokio, "rows": rows.iter().map(row).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(passed: u32, failed: u32, polls: u64) -> Record {
        Record { passed, failed, polls, ..Record::default() }
    }

    fn row(counts: Counts, limit: f64) -> Row {
        Row { name: "x".to_owned(), counts, limit, failures: Vec::new() }
    }

    #[test]
    fn a_share_counts_polled_tests_and_those_that_do_not_pass() {
        let mut counts = Counts::default();
        let tokio = record(1, 0, 0);
        counts.add(&tokio, &record(1, 0, 9), false);
        // Neither polled, nor failed: not counted.
        counts.add(&tokio, &record(1, 0, 0), false);
        // A test that hangs leaves no count of polls.
        counts.add(&tokio, &record(0, 1, 0), false);
        counts.add(&tokio, &Record::default(), true);
        // It fails on tokio too.
        counts.add(&record(0, 1, 0), &record(0, 1, 3), false);
        assert_eq!((counts.counted, counts.passed_of_counted), (3, 1));
        let (passed, skipped, failed) = (counts.passed, counts.skipped, counts.failed);
        assert_eq!((counts.tests, passed, skipped, failed, counts.polled), (5, 2, 1, 2, 2));
        assert_eq!(counts.not_polled, 1);
    }

    #[test]
    fn a_share_below_its_limit_is_a_fault() {
        let counts =
            |passed_of_counted| Counts { passed: 1, counted: 100, passed_of_counted, ..Counts::default() };
        assert!(row(counts(97), 97.0).faults().is_empty());
        assert_eq!(row(counts(96), 97.0).faults(), ["x: fewer than 97 % pass"]);
        assert_eq!(row(Counts::default(), 97.0).faults(), ["x: no test passed"]);
    }

    #[test]
    fn a_test_that_fails_at_times_is_a_fault_unless_as_many_do_on_tokio() {
        let mut counts = Counts { passed: 1, ..Counts::default() };
        counts.add(&record(5, 0, 0), &record(4, 1, 3), false);
        assert_eq!(row(counts, 0.0).faults(), ["x: 1 tests fail at times, 0 on tokio"]);
    }

    #[test]
    fn the_reason_is_the_line_after_the_place_of_a_panic() {
        assert_eq!(reason("exit status: 101\nthread 'a' panicked at x.rs:3:\nboom\nnote"), "boom");
        assert_eq!(reason("signal: 6\nx"), "signal: 6");
    }
}
