//! Tests of replays.

use super::*;
use crate::cases::{ProbeFile, Side};
use crate::simulation::{Drivers, Outside};
use std::path::Path;
use warmcore_sched::PolicyKind;

const PROBE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../reports/2026-11-22-amd-epyc-2cpu/predicted/probe-2.json");

const MS: u64 = 1_000_000;

fn host() -> Host {
    let probe = ProbeFile::read(Path::new(PROBE)).unwrap();
    let (topology, costs) = probe.machine((1, 1)).unwrap();
    let outside = Outside { drivers: Drivers::Attendant, ..probe.outside(Side::Warmcore) };
    let settings = Settings { calls: probe.calls(Side::Warmcore), outside, ..Settings::runtime() };
    let policy = SimPolicyKind::Product(PolicyKind::Home);
    Host { topology, costs, settings, policy, others_per_mille: 0, others_run: false }
}

/// A task that runs for 2 ms and then sleeps for 1 ms was recorded with polls of 1 ms.
#[test]
fn where_a_replay_is_behind_a_task_still_sleeps_as_long() {
    let mut steps = Vec::new();
    for poll in 0..200 {
        let at = Nanos((poll + 1) * 2 * MS);
        steps.extend([Step::Poll, Step::Run(Nanos(2 * MS)), Step::WaitUntil { at, after: Nanos(MS) }]);
    }
    let window = Window {
        length: Nanos(300 * MS),
        tasks: vec![Task { kind: 0, steps }],
        arrivals: vec![(Nanos(0), 0)],
    };
    assert_eq!(window.from_outside().count(), 201);
    let kind = TaskKind { refill: Nanos(0), own_per_mille: 1000 };
    let counts = replay(&window, &[kind], &host(), 1000, 1).unwrap();
    // In 225 ms.
    assert!((72..=75).contains(&counts.polls), "{} polls", counts.polls);
    // Without the sleep the CPU would always be busy.
    assert!((145 * MS..=155 * MS).contains(&counts.cpu_ns), "{} ns", counts.cpu_ns);
}
