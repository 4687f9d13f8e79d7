use super::*;

fn outcome(failure: Option<&str>, polls: u64, runtimes: u64) -> Outcome {
    Outcome { failure: failure.map(str::to_owned), polls, runtimes }
}

#[test]
fn tests_are_listed_without_benches_and_totals() {
    let list = "a::b: test\nbench_c: benchmark\n\n1 test, 1 benchmark\n";
    assert_eq!(names_in(list), BTreeSet::from(["a::b".to_owned()]));
}

#[test]
fn counters_of_all_processes_are_added() {
    assert_eq!(counters("3 1\n4 0\n"), (7, 1));
    assert_eq!(counters(""), (0, 0));
}

#[test]
fn a_test_that_failed_once_has_failed_and_keeps_its_first_message() {
    let mut record = Record::default();
    assert!(!record.has_passed());
    record.add(outcome(None, 5, 1));
    assert!(record.has_passed() && !record.is_flaky());
    record.add(outcome(Some("first"), 2, 0));
    record.add(outcome(Some("second"), 0, 0));
    assert!(record.is_flaky() && !record.has_passed());
    assert_eq!((record.polls, record.runtimes, record.message.as_str()), (5, 1, "first"));
}

#[test]
fn results_are_read_again_only_to_resume() {
    let path = std::env::temp_dir().join(format!("warmcore-suites-results-{}", std::process::id()));
    let mut results = Results::open(path.clone(), true).unwrap();
    results.record_mut("face", "rt::a").add(outcome(None, 5, 1));
    results.save().unwrap();
    let again = Results::open(path.clone(), true).unwrap();
    assert_eq!((again.record("face", "rt::a").passed, again.record("tokio", "rt::a").passed), (1, 0));
    assert!(Results::open(path.clone(), false).unwrap().sides.is_empty());
    std::fs::write(&path, "{").unwrap();
    assert!(Results::open(path.clone(), true).is_err());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn only_the_end_of_a_long_output_is_kept() {
    let text: String = (0..100).map(|line| format!("{line}\n")).collect();
    assert_eq!(end_of(&text).lines().next(), Some("70"));
    assert_eq!(end_of("a\nb"), "a\nb");
}
