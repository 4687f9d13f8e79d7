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
            ("http.server", 15_000.0),
            ("http.client", 8_000.0),
            ("cycle", 4_000.0),
        ];
        let by_idle = [("unpark", 500.0), ("latency", 2_000.0)];
        let idle = by_idle.into_iter().flat_map(|(name, ns)| {
            [2, 10, 50, 300, 2000].map(|us| (format!("{name}.{us}"), ns + 100.0 * f64::from(us)))
        });
        let named = named.map(|(name, ns)| (name.to_owned(), ns));
        named.into_iter().chain(idle).collect::<BTreeMap<_, _>>()
    };
    let steps = [
        ("chase.warm", 16_000.0),
        ("chase.moved", 64_000.0),
        ("eventfd", 300.0),
        ("send.warm", 20.0),
        ("send.moved", 60.0),
        ("receive.warm", 20.0),
        ("receive.moved", 60.0),
    ];
    ProbeFile {
        schema: SCHEMA,
        command: String::new(),
        when: String::new(),
        machine: Probed { cpu: "a CPU".into(), kernel: "6".into(), cpus: 2 },
        l2_kib: 1024,
        warmcore: numbers(0.0),
        tokio: numbers(1.0),
        steps: steps.map(|(name, ns)| (name.to_owned(), ns)).into(),
    }
}

#[test]
fn every_case_has_a_number_on_both_runtimes_and_the_same_one_again() {
    for mut case in CASES.into_iter().chain(UNMEASURED) {
        case.measure = Nanos(case.measure.0 / 10);
        for side in [Side::Warmcore, Side::Tokio] {
            let number = case.simulate(&probe(), side, 1).unwrap();
            assert!(number.is_finite() && number > 0.0, "{} on {side:?}: {number}", case.name);
            assert_eq!(number, case.simulate(&probe(), side, 1).unwrap(), "{} on {side:?}", case.name);
        }
    }
}
