//! What scripted moves of tasks with 256 KiB each cost, from their recording, beside the machine's probe: by how much a
//! walk over 256 KiB takes longer after a move. The probe runs before and after the program.

#[path = "../tests/common/scripted.rs"]
mod scripted;

use std::process::Command;
use warmcore_record::Recording;
use warmcore_trace::analyze;

const POLLS: usize = 20_000;

fn main() {
    let Some(cpus) = scripted::cpus() else { return println!("a move needs two CPUs") };
    let script = scripted::script(POLLS);
    if std::env::var_os("WARMCORE_RECORD").is_some() {
        return scripted::run(cpus, &script);
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("recording");
    // In a thread of its own, since it pins the thread, and a process inherits that.
    let probe =
        || std::thread::spawn(move || scripted::probe(cpus)).join().expect("the probe does not panic");
    let before = probe();
    let program = std::env::current_exe().expect("the program has a path");
    let status = Command::new(program).env("WARMCORE_RECORD", &file).status().expect("the program starts");
    assert!(status.success(), "the program ends with {status}");
    let after = probe();
    let analysis = analyze(|| Recording::open(&file), &[]).expect("the recording can be read");
    println!("{}", analysis.sentence);
    println!(
        "the script has {} moves, the recording {}",
        scripted::moves(&script),
        analysis.from_previous.moved()
    );
    for cost in analysis.places.iter().flat_map(|place| &place.costs) {
        println!("{:?}: {:?}", cost.origin, cost.measured);
    }
    println!("the probe: {before} ns before, {after} ns after");
}
