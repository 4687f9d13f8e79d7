//! A real program with scripted moves: the analysis of its recording has as many as the script.

#![cfg(target_os = "linux")]

#[path = "common/scripted.rs"]
mod scripted;

use std::process::Command;
use warmcore_record::Recording;
use warmcore_trace::{Ending, Origin, analyze};

const SCRIPT: &str = "WARMCORE_TRACE_TEST_SCRIPT";
const POLLS: usize = 2_000;

#[test]
#[ignore = "the other test starts it"]
fn program() {
    let Some(cpus) = scripted::cpus().filter(|_| std::env::var_os(SCRIPT).is_some()) else { return };
    scripted::run(cpus, &scripted::script(POLLS));
}

#[test]
fn the_moves_of_a_program_are_those_of_its_script() {
    let Some(cpus) = scripted::cpus() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "program", "--ignored"])
        .env(SCRIPT, "1")
        .env("WARMCORE_RECORD", &file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let analysis = analyze(|| Recording::open(&file), &[]).unwrap();
    let moved = scripted::moves(&scripted::script(POLLS));
    let coverage = &analysis.coverage;
    assert_eq!((coverage.polls, coverage.dropped, coverage.skipped), (POLLS as u64, 0, 0));
    let counts = &analysis.from_previous;
    assert_eq!((counts.moved(), counts[Origin::First], counts[Origin::Unknown]), (moved, 2, 0));
    assert_eq!(counts[Origin::SameCpu], POLLS as u64 - 2 - moved);
    let mut polled: Vec<(u32, u64)> = analysis.cpus.iter().map(|row| (row.cpu, row.polls)).collect();
    polled.sort_unstable();
    let on = |cpu| scripted::script(POLLS).iter().filter(|step| step.1 == cpu).count() as u64;
    assert_eq!(polled, [(cpus[0].0, on(0)), (cpus[1].0, on(1))]);
    // The first thread wakes all tasks, on the first CPU.
    assert_eq!(coverage.with_waker, POLLS as u64);
    assert_eq!(analysis.from_waker[Origin::SameCpu], on(0));
    let [place] = &analysis.places[..] else { panic!("one place: {:?}", analysis.places.len()) };
    assert!(place.location.as_ref().unwrap().contains("scripted.rs"), "{:?}", place.location);
    assert_eq!((place.tasks, place.polls), (2, POLLS as u64));
    assert_eq!(place.costs.iter().map(|cost| cost.moved).sum::<u64>(), moved);
    assert!(matches!(analysis.program.ending, Ending::Ended(_) | Ending::Open));
}
