//! Tests `warmcore record` on small commands. Where one has to record, it is this test program, which writes a recording of
//! a few polls by hand: what the recorder writes is tested beside it (`crates/record`, `adapters/tokio`).
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use warmcore_record::format::*;
use warmcore_record::{Header, TextLine, ThreadStats};

/// The environment variable that tells the recorded process what to do.
const ROLE: &str = "WARMCORE_TEST_ROLE";

/// Not a test: the body of the recorded process. In the test process it does nothing.
#[test]
fn recorded_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let file = PathBuf::from(std::env::var_os("WARMCORE_RECORD").unwrap());
    std::fs::write(&file, recording(3)).unwrap();
    if role == "two" {
        let second = format!("{}.{}", file.display(), std::process::id());
        std::fs::write(second, recording(5)).unwrap();
    }
    println!("\nWARMCORE={:?}", std::env::var("WARMCORE").ok());
    if role == "waits" {
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
    if role == "fails" {
        std::process::exit(7);
    }
}

/// A recording of one task with this many polls, as many dropped records, and no end.
fn recording(polls: u32) -> Vec<u8> {
    let header = Header { pid: 42, ns_per_stamp_q32: 1 << 32, start: 1000, ..Header::default() }.to_string();
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(checksum(CHECKSUM_START, header.as_bytes()).to_le_bytes());
    bytes.extend(header.as_bytes());
    let stats =
        ThreadStats { at: 1000, polls: polls.into(), dropped: polls.into(), ..ThreadStats::default() };
    let text = format!("{}\n{}\n", TextLine::Thread(0, 1, "worker".into()), TextLine::Stats(0, stats));
    let records: Vec<u8> = (0..polls)
        .map(|n| -> Record { [7, n * 10, 5, NOT_KNOWN, tag(RecordKind::Poll, 0, NO_CPU, 0)] })
        .flat_map(|record| record.into_iter().flat_map(u32::to_le_bytes))
        .collect();
    for (kind, payload) in [(BlockKind::Text, text.into_bytes()), (BlockKind::Records, records)] {
        bytes.extend(BlockHeader::new(kind, 0, 1000, &payload).to_bytes());
        bytes.extend(payload);
    }
    bytes
}

/// `warmcore record ARGS`, in this folder.
fn record(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmcore"));
    command.arg("record").args(args).current_dir(folder.path());
    command.env("WARMCORE", "of the caller").env_remove("WARMCORE_RECORD");
    command
}

/// `warmcore record ARGS -- this program`, which does what `role` says.
fn record_role(folder: &TempDir, args: &[&str], role: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let own = ["--", program.to_str().unwrap(), "--exact", "recorded_process", "--nocapture"];
    let mut command = record(folder, &[args, &own].concat());
    command.env(ROLE, role);
    command
}

/// The exit status, standard output and standard error.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn the_summary_says_what_the_file_has_and_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let output = record_role(&folder, &["-o", "it.warmrec", "--json", "it.json"], "").output().unwrap();
    let (status, out, err) = said(&output);
    assert_eq!(status, Some(0), "{err}");
    assert!(out.contains("WARMCORE=Some(\"0\")"), "tokio's scheduler unless said: {out}");
    assert!(err.contains("it.warmrec: 0.0 MB, process 42, 3 polls of 1 tasks"), "{err}");
    assert!(err.contains("coverage: 50 % of the polls (3 dropped, 0 of tasks"), "{err}");
    assert!(err.contains("killed or still runs"), "{err}");
    assert!(err.ends_with("next: warmcore report it.warmrec\n"), "{err}");
    let json = std::fs::read(folder.path().join("it.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["what"], &json["record"]["status"]), (&"record".into(), &0.into()));
    let recording = &json["record"]["recordings"][0];
    assert_eq!((&recording["polls"], &recording["dropped"]), (&3.into(), &3.into()), "{json}");
}

#[test]
fn warmcores_scheduler_is_the_face_without_warmcore_0() {
    let folder = tempfile::tempdir().unwrap();
    let output = record_role(&folder, &["--scheduler", "warmcore"], "").output().unwrap();
    let (status, out, err) = said(&output);
    assert_eq!(status, Some(0), "{err}");
    assert!(out.contains("WARMCORE=None"), "{out}");
    assert!(err.contains("on Warmcore's scheduler"), "{err}");
    // The default name: the command's and the time.
    let [name] = &names(folder.path())[..] else { panic!("one file: {:?}", names(folder.path())) };
    assert!(name.starts_with("record-") && name.ends_with(".warmrec"), "{name}");
}

#[test]
fn the_exit_status_is_that_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let (status, _, err) = said(&record_role(&folder, &[], "fails").output().unwrap());
    assert_eq!(status, Some(7), "{err}");
    assert!(err.contains("3 polls"), "{err}");
    let (status, _, err) = said(&record(&folder, &["sh", "-c", "exit 3"]).output().unwrap());
    assert_eq!(status, Some(3), "{err}");
    assert!(err.contains("nothing was recorded"), "{err}");
}

#[test]
fn a_program_without_the_recorder_is_told_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let (status, _, err) = said(&record(&folder, &["true"]).output().unwrap());
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("true has no recorder") && err.contains("`warmcore adopt`"), "{err}");
    let (status, _, err) = said(&record(&folder, &["./missing"]).output().unwrap());
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("can't run ./missing"), "{err}");
    assert!(names(folder.path()).is_empty(), "{:?}", names(folder.path()));
}

#[test]
fn a_file_that_exists_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("it.warmrec");
    std::fs::write(&file, "kept").unwrap();
    let (status, out, err) = said(&record_role(&folder, &["-o", "it.warmrec"], "").output().unwrap());
    assert_eq!((status, &*out), (Some(1), ""), "the command did not run: {err}");
    assert!(err.contains("it.warmrec exists"), "{err}");
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
}

#[test]
fn each_process_that_recorded_has_a_summary() {
    let folder = tempfile::tempdir().unwrap();
    let (status, _, err) = said(&record_role(&folder, &["-o", "it.warmrec"], "two").output().unwrap());
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains(" 3 polls") && err.contains(" 5 polls"), "{err}");
}

#[test]
fn a_signal_to_the_command_ends_the_program_and_leaves_the_summary() {
    for (signal, status) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = record_role(&folder, &["-o", "it.warmrec"], "waits");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // `wait_with_output` would close it, which ends the program too.
        let _open = child.stdin.take();
        assert!(lines.any(|line| line.unwrap().starts_with("WARMCORE=")), "the program has begun");
        // SAFETY: a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        let (ended, _, err) = said(&child.wait_with_output().unwrap());
        assert_eq!(ended, Some(status), "{err}");
        assert!(err.contains("3 polls of 1 tasks"), "{err}");
        let said_so = format!("the command was ended by signal {}", status - 128);
        assert_eq!(err.contains(&said_so), status > 128, "{err}");
    }
}
