//! Tests of `warmcore report FILE`: the outputs of a small recording, and what files that are none are told.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use warmcore_record::format::*;
use warmcore_record::{CpuPlace, Header, Location, TextLine};
use warmcore_types::CpuId;

/// A recording of one task that hops between two CPUs of one cache: 300 polls.
fn recording() -> Vec<u8> {
    let place = |cpu| CpuPlace { cpu: CpuId(cpu), core: cpu, llc: Some(0), node: Some(0), socket: Some(0) };
    let header = Header {
        pid: 42,
        command: "/usr/bin/a-server --port 80".to_owned(),
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
    let mut block = |kind, payload: &[u8]| {
        bytes.extend(BlockHeader::new(kind, 0, 1000, payload).to_bytes());
        bytes.extend(payload);
    };
    let lines = [
        TextLine::Thread(0, 43, "worker-0".to_owned()),
        TextLine::Location(7, Location { file: "src/<main>.rs".to_owned(), line: 4, column: 2 }),
    ];
    block(BlockKind::Text, lines.map(|line| format!("{line}\n")).concat().as_bytes());
    let mut records: Vec<Record> = vec![[1, 0, 7, 0, tag(RecordKind::Spawn, 0, NO_CPU, 0)]];
    for poll in 0..300 {
        let cpu = poll % 2;
        records.push([1, 100 + poll * 1_000_000, 5_000, 700, tag(RecordKind::Poll, cpu, 1 - cpu, 0)]);
    }
    for records in records.chunks(50) {
        let payload: Vec<u8> = records.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        block(BlockKind::Records, &payload);
    }
    block(BlockKind::End, b"the program ended");
    bytes
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server.warmrec");
    std::fs::write(&file, recording()).unwrap();
    (folder, file)
}

fn report(file: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmcore"));
    command.arg("report").arg(file).args(arguments).current_dir(file.parent().unwrap());
    command.output().unwrap()
}

fn well(file: &Path, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = report(file, arguments);
    assert!(status.success(), "{arguments:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn badly(file: &Path, arguments: &[&str]) -> String {
    let Output { status, stderr, .. } = report(file, arguments);
    assert!(!status.success(), "{arguments:?} succeeded");
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

/// The names in the folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn a_recording_becomes_a_page_a_text_and_data() {
    let (folder, file) = folder();
    let text = well(&file, &["--json", "out.json", "--perfetto", "out.pftrace", "--dial9", "out.d9"]);
    let sentence = text.lines().next().unwrap();
    // The first of 300 polls has none before it.
    assert!(
        sentence.starts_with("100 % of the polls that followed another poll of their task ran on another core than that one, 0 %"),
        "{text}"
    );
    assert!(text.contains("src/<main>.rs:4:2"), "{text}");
    assert_eq!(text.matches("(300 polls)").count(), 2, "{text}");
    assert_eq!(names(folder.path()), ["out.d9", "out.json", "out.pftrace", "server.html", "server.warmrec"]);

    let page = std::fs::read_to_string(folder.path().join("server.html")).unwrap();
    assert!(page.contains(sentence) && page.contains("src/&#60;main&#62;.rs:4:2"), "{page}");
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("out.json")).unwrap()).unwrap();
    assert_eq!((&json["schema"], &json["what"]), (&3.into(), &"recording".into()));
    assert_eq!(json["recording"]["from_previous"]["same_llc"], 299);

    // A further process of the same environment has a page of its own.
    let further = folder.path().join("server.warmrec.77");
    std::fs::copy(&file, &further).unwrap();
    well(&further, &[]);
    assert!(names(folder.path()).contains(&"server.warmrec.77.html".to_owned()));

    // A recording is not changed, and the same page comes out again.
    well(&file, &["--output", "again.html"]);
    assert_eq!(std::fs::read_to_string(folder.path().join("again.html")).unwrap(), page);
    assert_eq!(std::fs::read(&file).unwrap(), recording());
}

#[test]
fn the_docs_list_the_fields_of_a_recordings_json() {
    let (folder, file) = folder();
    well(&file, &["--json", "out.json"]);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("out.json")).unwrap()).unwrap();
    let docs = include_str!("../../../docs/json.md");
    let section = docs.split("\n## recording\n").nth(1).expect("docs/json.md has a section recording");
    let section = section.split("\n## ").next().unwrap();
    let fields = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let recording = &json["recording"];
    let mut all = fields(recording);
    for part in ["program", "coverage", "sentence", "matrix", "delays", "timeline", "cost"] {
        all.extend(fields(&recording[part]));
    }
    for list in ["cpus", "places", "threads"] {
        all.extend(fields(&recording[list][0]));
    }
    for field in all {
        assert!(section.contains(&format!("`{field}`")), "docs/json.md does not name {field}");
    }
}

#[test]
fn a_trace_has_the_chosen_time() {
    let (folder, file) = folder();
    let text = well(&file, &["--perfetto", "out.pftrace", "--from", "0.1", "--to", "0.2"]);
    assert!(text.contains("(100 polls; 200 outside of the chosen time are left out)"), "{text}");
    for (arguments, told) in [
        (&["--from", "1"][..], "add --perfetto OUT"),
        (&["--perfetto", "x", "--from", "2", "--to", "1"], "--to is not after --from"),
        (&["--perfetto", "x", "--to=-1"], "not a number of seconds"),
        (&["--perfetto", "x", "--from", "nan"], "not a number of seconds"),
        (&["--perfetto", "server.warmrec"], "is the recording itself"),
        (&["--output", "server.warmrec"], "is the recording itself"),
        (&["--output", "x", "--perfetto", "./x"], "is chosen for two outputs"),
        (&["--json", "server.html"], "is chosen for two outputs"),
        (&["--out", "elsewhere"], "cannot be used with"),
        (&["--probe", "none.json"], "none.json"),
        (&["--probe", "server.warmrec"], "topo --probe --json"),
    ] {
        let error = badly(&file, arguments);
        assert!(error.contains(told), "{arguments:?}: {error}");
    }
    assert_eq!(names(folder.path()), ["out.pftrace", "server.html", "server.warmrec"]);
}

#[test]
fn a_file_that_is_cut_is_shown_and_one_that_is_damaged_is_shown_up_to_the_damage() {
    let (folder, file) = folder();
    let whole = recording();
    std::fs::write(&file, &whole[..whole.len() - 300]).unwrap();
    let text = well(&file, &[]);
    assert!(text.contains("the process was killed, or still runs"), "{text}");
    assert!(text.contains(", of the part of the recording that could be read.\n"), "{text}");

    let mut damaged = whole.clone();
    let at = damaged.len() - 300;
    damaged[at] ^= 1;
    std::fs::write(&file, &damaged).unwrap();
    let error = badly(&file, &["--output", "damaged.html"]);
    assert!(
        error.contains("is damaged at byte") && error.contains("what is before that is shown"),
        "{error}"
    );
    let page = std::fs::read_to_string(folder.path().join("damaged.html")).unwrap();
    assert!(page.contains("Only a part could be read"), "{page}");
}

#[test]
fn what_is_no_recording_is_told_so_and_nothing_is_written() {
    let (folder, file) = folder();
    let mut future = recording();
    future[8] += 1;
    for (content, told) in [
        (&b"#!/bin/sh\n"[..], "not a recording"),
        (b"", "the file is empty"),
        (&recording()[..20], "within its header"),
        (&future, "the version of warmcore that recorded it"),
    ] {
        std::fs::write(&file, content).unwrap();
        let error = badly(&file, &["--perfetto", "out"]);
        assert!(error.contains(told) && error.contains("server.warmrec"), "{error}");
    }
    assert!(badly(&folder.path().join("none"), &[]).contains("warmcore record -- COMMAND"));
    assert!(badly(folder.path(), &[]).contains("is not a file"));
    assert_eq!(names(folder.path()), ["server.warmrec"]);
}
