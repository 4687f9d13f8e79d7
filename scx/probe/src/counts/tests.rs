//! The sums over CPUs and the keys of the JSON.

use super::*;

fn report(counts: &[probe_counts], groups: &[Group]) -> Report {
    let time = probe_integrals { observed_ns: 9, idle_ns: 70, waiting_ns: 5, idle_while_waiting_ns: 3 };
    let (machine, outcome) = (Machine { cpus: 8, llcs: 2 }, Outcome { status: 3, elapsed_ns: 10 });
    Report::sum(counts, &[4, 90, 0], &time, machine, groups, outcome)
}

#[test]
fn counts_are_sums_over_cpus_and_the_longest_wait_is_a_maximum() {
    let (mut a, mut b) = (probe_counts::default(), probe_counts::default());
    (a.wakes.same, b.wakes.same, b.wakes.other) = (2, 3, 1);
    (a.histogram[0], b.histogram[0], b.histogram[BUCKETS - 1]) = (1, 4, 1);
    (a.forked.llc, b.preempted.same, a.queued_any, b.over_slice) = (6, 7, 8, 9);
    let report = report(&[a, b], &[]);
    assert_eq!(report.wakes, Distances { same: 5, llc: 0, other: 1 });
    assert_eq!((report.wakes.sum(), report.new.llc, report.preempted.same), (6, 6, 7));
    assert_eq!((report.histogram[0], report.histogram[BUCKETS - 1]), (5, 1));
    assert_eq!(report.queued, Queued { any: 8, over_slice: 9, longest_ns: 90, ..Default::default() });
    assert_eq!(report.time, Time { observed_ns: 9, idle_ns: 70, waiting_ns: 5, idle_while_waiting_ns: 3 });
}

#[test]
fn a_group_has_the_counters_of_its_position() {
    let mut counts = probe_counts::default();
    (counts.groups[0].wakes.same, counts.groups[1].wakes.llc, counts.groups[1].histogram[7]) = (1, 2, 2);
    let groups = ["ui=ui-", "hogs=hog"].map(|g| g.parse().unwrap());
    let report = report(&[counts], &groups);
    assert_eq!(report.groups.len(), 2);
    assert_eq!(report.groups["ui"].wakes.same, 1);
    assert_eq!((report.groups["hogs"].wakes.llc, report.groups["hogs"].histogram[7]), (2, 2));
}

#[test]
fn the_json_is_one_line_with_the_documented_keys() {
    let text = serde_json::to_string(&report(&[], &["ui=ui-".parse().unwrap()])).unwrap();
    assert!(!text.contains('\n'));
    assert!(text.starts_with(
        r#"{"schema":1,"status":3,"elapsed_ns":10,"cpus":8,"llcs":2,"wakes":{"same":0,"llc":0,"other":0},"new":{"same""#
    ));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "schema",
        "status",
        "elapsed_ns",
        "cpus",
        "llcs",
        "wakes",
        "new",
        "preempted",
        "queued",
        "wakeups",
        "migrations",
        "switches",
        "to_idle",
        "preemptions",
        "forks",
        "execs",
        "histogram",
        "waits",
        "time",
        "lost",
        "groups",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(value["histogram"].as_array().unwrap().len(), BUCKETS);
    assert_eq!(value["time"]["idle_while_waiting_ns"], 3);
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report(&[], &["ui=ui-".parse().unwrap()]));
}
