//! Tests of the cases: each ends with a number on both runtimes, and the same one for the same seed.

use super::*;
use std::collections::BTreeMap;

/// Numbers that are easy to tell apart; no machine has them.
fn probe() -> ProbeFile {
    let numbers = |scale: f64| {
        let named = [
            ("yield.1", 100.0 + 400.0 * scale),
            ("yield.64", 100.0),
            ("hop", 80.0),
            ("hop.channel", 200.0),
            ("channel", 60.0),
            ("spawn", 90.0),
            ("child", 120.0),
            ("join", 20.0),
            ("outside.push", 50.0),
            ("outside.spawn", 150.0),
            ("unpark", 2_000.0),
            ("unpark.latency", 9_000.0),
            ("unpark.two", 2_000.0),
            ("unpark.two.latency", 9_000.0),
            ("cycle", 6_000.0),
            ("http.server", 15_000.0),
            ("http.client", 8_000.0),
        ];
        named.map(|(name, ns)| (name.to_owned(), ns)).into_iter().collect::<BTreeMap<_, _>>()
    };
    ProbeFile {
        schema: SCHEMA,
        command: String::new(),
        when: String::new(),
        machine: Probed { cpu: "a CPU".into(), kernel: "6".into(), cpus: 2 },
        l2_kib: 1024,
        warmcore: numbers(0.0),
        tokio: numbers(1.0),
        steps: [("chase.warm".to_owned(), 16_000.0), ("chase.moved".to_owned(), 64_000.0)].into(),
    }
}

#[test]
fn every_case_has_a_number_on_both_runtimes_and_the_same_one_again() {
    for mut case in CASES {
        case.measure = Nanos(case.measure.0 / 10);
        for side in [Side::Warmcore, Side::Tokio] {
            let number = case.simulate(&probe(), side, 1).unwrap();
            assert!(number.is_finite() && number > 0.0, "{} on {side:?}: {number}", case.name);
            assert_eq!(number, case.simulate(&probe(), side, 1).unwrap(), "{} on {side:?}", case.name);
        }
    }
}
