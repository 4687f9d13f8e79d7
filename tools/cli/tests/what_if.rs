//! Tests of `warmcore what-if`: a recording that it judges, and files and arguments that are refused.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output};
use warmcore_record::format::*;
use warmcore_record::{CpuPlace, Header, Location, TextLine};
use warmcore_types::CpuId;

const PROBE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../reports/2026-11-22-amd-epyc-2cpu/predicted/probe-2.json");

/// A recording of one task on one of two workers, which something outside wakes once a millisecond: 2000 polls of 5 µs, each 60 ns
/// after its wake, all on one CPU or by turns.
fn recording(is_moved: bool) -> Vec<u8> {
    let place = |cpu| CpuPlace { cpu: CpuId(cpu), core: cpu, llc: Some(0), node: Some(0), socket: Some(0) };
    let header = Header {
        pid: 42,
        command: "a-server --port 80".to_owned(),
        start: 1000,
        started_unix_ns: 1_700_000_000_000_000_000,
        ns_per_stamp_q32: 1 << 32,
        cpus: vec![place(0), place(1)],
    };
    let text = header.to_string();
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(checksum(CHECKSUM_START, text.as_bytes()).to_le_bytes());
    bytes.extend(text.as_bytes());
    let mut block = |kind, thread, payload: &[u8]| {
        bytes.extend(BlockHeader::new(kind, thread, 1000, payload).to_bytes());
        bytes.extend(payload);
    };
    let lines = [
        TextLine::Thread(0, 43, "worker-0".to_owned()),
        TextLine::Thread(1, 44, "worker-1".to_owned()),
        TextLine::Location(7, Location { file: "src/main.rs".to_owned(), line: 4, column: 2 }),
    ];
    block(BlockKind::Text, 0, lines.map(|line| format!("{line}\n")).concat().as_bytes());
    let bytes_of = |records: &[Record]| -> Vec<u8> {
        records.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
    };
    let worker = |worker| [0, 0, worker, 0, tag(RecordKind::Worker, NO_CPU, NO_CPU, 0)];
    let mut threads: [Vec<Record>; 2] = [0, 1].map(|index| vec![worker(index)]);
    threads[0].push([1, 0, 7, 0, tag(RecordKind::Spawn, 0, NO_CPU, 0)]);
    // Another task shows that there is a second worker.
    threads[1].push([2, 10, 50, NOT_KNOWN, tag(RecordKind::Poll, 1, NO_CPU, IS_LAST)]);
    for poll in 0..2000 {
        let cpu = if is_moved { poll % 2 } else { 0 };
        let at = 100_000 + poll * 1_000_000;
        threads[cpu as usize].push([1, at, 5_000, 60, tag(RecordKind::Poll, cpu, cpu, 0)]);
    }
    for (thread, records) in (0..).zip(&threads) {
        block(BlockKind::Records, thread, &bytes_of(records));
    }
    block(BlockKind::End, 0, b"the program ended");
    bytes
}

fn what_if(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmcore"))
        .arg("what-if")
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// What a run of the command prints, and whether it succeeds.
fn said(output: &Output) -> (bool, String) {
    let text =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    (output.status.success(), text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn a_program_without_anything_to_gain_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.warmrec"), recording(false)).unwrap();
    let output = what_if(folder.path(), &["a.warmrec", "--probe", PROBE, "--json", "a.json"]);
    let (is_success, text) = said(&output);
    assert!(is_success, "{text}");
    for part in [
        "a-server --port 80 on tokio's scheduler with 2 workers, 2 001 polls in",
        "Under Warmcore's scheduler on the recording's machine with 2 workers",
        "Switching will not pay: the CPU time changes by less than 3 %.",
        "of them by tasks",
    ] {
        assert!(text.replace('\u{202f}', " ").contains(part), "{part}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("a.json")).unwrap()).unwrap();
    assert_eq!((json["recorded"].as_str(), json["asked"].as_str()), (Some("tokio"), Some("home")));
    assert_eq!(json["answer"]["refusals"].as_array().map(Vec::len), Some(0));
    assert!((json["answer"]["cpu"]["ratio"].as_f64().unwrap() - 1.0).abs() < 0.03, "{json}");
}

#[test]
fn a_recording_that_the_replay_does_not_give_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.warmrec"), recording(true)).unwrap();
    let (is_success, text) = said(&what_if(folder.path(), &["a.warmrec", "--probe", PROBE]));
    assert!(!is_success && text.contains("this recording can't be judged"), "{text}");
    assert!(
        text.contains("polls on the core of the task's poll before") && !text.contains("Switching"),
        "{text}"
    );
}

#[test]
fn files_and_arguments_that_are_refused_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let whole = recording(false);
    let mut later = whole.clone();
    later[8] = 9;
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    for (name, bytes) in
        [("whole", &whole[..]), ("later", &later), ("damaged", &damaged), ("cut", &whole[..50])]
    {
        std::fs::write(at(name), bytes).unwrap();
    }
    std::fs::write(at("foreign"), "# tracer: nop").unwrap();
    let probe = ["--probe", PROBE];
    for (args, part) in [
        (&["missing"][..], "can't read missing; `warmcore record -- COMMAND` writes a recording"),
        (&["."], "is not a file"),
        (&["foreign"], "not a recording"),
        (&["later"], "read it with the version of warmcore that recorded it"),
        (&["cut"], "within its header"),
        (&["damaged"], "is damaged at byte"),
        (&["whole", "--machine", "nowhere"], "no such machine"),
        (&["whole", "--machine", "ryzen7950x", "--workers", "99"], "--workers says 99"),
        (&["whole", "--load", "0"], "not a factor"),
        (&["whole", "--policy", "best"], "home, shared-queue, tokio"),
        (&["whole", "--probe", "foreign"], "is no probe file"),
    ] {
        let args = [args, &probe[..if args.contains(&"--probe") { 0 } else { 2 }]].concat();
        let (is_success, text) = said(&what_if(folder.path(), &args));
        assert!(!is_success && text.contains(part), "{args:?}: {text}");
    }
}
