//! Test bodies for the readers of files and of answers of other processes. A body takes arbitrary bytes.
//!
//! A body reads bytes as one kind of input and processes them as the command does. It may reject the input; it must not
//! panic, and its time and memory must stay in proportion to the input. Fuzzers call the bodies with mutated inputs
//! (`fuzz/`, nightly); a test calls them with a bounded number of mutations of the corpora (`tests/hostile.rs`,
//! stable).
//!
//! `fuzz/README.md` says how to run a fuzzer.

use crate::top::Snapshot;
use std::io::Write;
use std::path::Path;
use warmcore_layout::Layout;
use warmcore_layout::culprit::{self, Base, Profile};
use warmcore_record::Recording;
use warmcore_record::format::{BLOCK_HEADER_BYTES, CHECKSUM_START, HEADER_BYTES, checksum};
use warmcore_report::{self as report, Inputs, Probe};
use warmcore_results::Results;
use warmcore_sched::PolicyKind;
use warmcore_sim::costs::Costs;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::policy::SimPolicyKind;
use warmcore_sim::program::rt_app;
use warmcore_sim::replay::Host;
use warmcore_sim::simulation::Settings;
use warmcore_topo::{MACHINES, Topology, machines};
use warmcore_trace::Question;
use warmcore_types::CpuSet;

/// Reads bytes as one kind of input; returns whether the bytes are valid input.
pub type Body = fn(&[u8]) -> bool;

/// All bodies, by the name of their corpus and fuzz target.
pub const BODIES: &[(&str, Body)] = &[
    ("hwloc", hwloc),
    ("sysfs", sysfs),
    ("machine_file", machine_file),
    ("cpu_list", cpu_list),
    ("elf", elf),
    ("btf", btf),
    ("layout", layout),
    ("profile", profile),
    ("rt_app", rt_app),
    ("report", report),
    ("top", top),
    ("record", record),
];

/// The bytes as text if they are UTF-8. The command reads text from files and sockets in the same way.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// A folder for temporary files, in memory if possible.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder for temporary files")
}

fn sound(read: Result<Topology, warmcore_topo::TopoError>) -> bool {
    read.is_ok_and(|topology| {
        topology.check().expect("a machine that was read agrees with itself");
        true
    })
}

/// hwloc's XML.
pub fn hwloc(bytes: &[u8]) -> bool {
    let folder = folder();
    let path = folder.path().join("lstopo.xml");
    std::fs::File::create(&path).and_then(|mut file| file.write_all(bytes)).expect("a temporary file");
    sound(Topology::from_hwloc(&path))
}

/// A capture of a /sys tree.
pub fn sysfs(bytes: &[u8]) -> bool {
    let folder = folder();
    let path = folder.path().join("capture.txt");
    std::fs::write(&path, bytes).expect("a temporary file");
    sound(Topology::from_captured(&path))
}

/// A machine file: its first four machines and their costs.
pub fn machine_file(bytes: &[u8]) -> bool {
    let Some(text) = text(bytes) else { return false };
    let mut is_one = false;
    for name in machines(text).unwrap_or_default().iter().take(4) {
        is_one |= sound(Topology::from_machine(text, name)) && Costs::from_machine(text, name).is_ok();
    }
    is_one
}

/// A list of CPUs.
pub fn cpu_list(bytes: &[u8]) -> bool {
    let Some(Ok(set)) = text(bytes).map(CpuSet::parse_list) else { return false };
    assert_eq!(CpuSet::parse_list(&set.to_string()), Ok(set), "what is written reads back");
    true
}

/// An ELF file with debug information.
pub fn elf(bytes: &[u8]) -> bool {
    Layout::from_elf(bytes, "s", "a file").is_ok()
}

/// BTF.
pub fn btf(bytes: &[u8]) -> bool {
    Layout::from_btf(bytes, "s", "a file").is_ok()
}

/// A layout that is declared in TOML or JSON, and its holes.
pub fn layout(bytes: &[u8]) -> bool {
    let Some(Ok(layout)) = text(bytes).map(|text| Layout::declared(text, "a file")) else { return false };
    let _ = layout.holes();
    true
}

/// A profile, or the output of perf, applied to a layout of three fields.
pub fn profile(bytes: &[u8]) -> bool {
    const S: &str = "name = 's'\nsize = 64\nalign = 64\nfields = [{ name = 'a', offset = 0, size = 8 }, \
                     { name = 'b', offset = 8, size = 8 }, { name = 'c', offset = 16, size = 48 }]";
    let Some(text) = text(bytes) else { return false };
    let layout = Layout::declared(S, "s").expect("it is right");
    let read = match culprit::is_perf(text) {
        false => Profile::parse(text, "a file"),
        true => {
            culprit::from_perf(text, &layout, &Base::parse("0x1000"), "a file").map(|(profile, _)| profile)
        }
    };
    let machine = SimMachine::named("ryzen7950x").expect("it is there");
    let Ok(profile) = read else { return false };
    culprit::find(&layout, &profile, &machine).is_ok_and(|found| !found.to_string().is_empty())
}

/// Tasks in rt-app's JSON.
pub fn rt_app(bytes: &[u8]) -> bool {
    text(bytes).is_some_and(|text| rt_app::read(text).is_ok())
}

/// Results or a probe, drawn as a report.
pub fn report(bytes: &[u8]) -> bool {
    let runs: Vec<Results> = serde_json::from_slice(bytes).into_iter().collect();
    let probe: Option<Probe> = serde_json::from_slice(bytes).ok();
    if runs.is_empty() && probe.is_none() {
        return false;
    }
    let topology = Topology::from_machine(MACHINES, "ryzen7950x").expect("it is there");
    let inputs =
        Inputs { topology: &topology, probe: probe.as_ref(), runs: &runs, doctor: &[], imagined: None };
    let _ = (report::page(&inputs), report::summary(&inputs), report::pictures(&inputs));
    let _ = report::raw_csv(&runs);
    true
}

/// The answer of a process to `warmcore top`.
pub fn top(bytes: &[u8]) -> bool {
    text(bytes).is_some_and(|text| Snapshot::parse(text).is_ok())
}

/// A recording: as it is, and with the checksums that it should have, so that what is behind them is reached. Then it is analyzed,
/// rebuilt and replayed, on another scheduler too.
pub fn record(bytes: &[u8]) -> bool {
    let read = |bytes: &[u8]| {
        let Ok(mut recording) = Recording::new(bytes) else { return false };
        loop {
            match recording.next_event() {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    // What was read before the damage is still returned.
                    while let Ok(Some(_)) = recording.next_event() {}
                    return false;
                }
            }
        }
    };
    let mended = with_checksums(bytes);
    if read(&mended) {
        what_if(&mended);
    }
    read(bytes)
}

/// Asks what a recording's program would do on another scheduler.
fn what_if(bytes: &[u8]) {
    let open = || Recording::new(bytes);
    let analysis = warmcore_trace::analyze(open, &[]).expect("its header was read");
    let spans = warmcore_trace::stratified(analysis.program.length_ns, analysis.coverage.polls, false);
    let rebuilt = warmcore_trace::rebuild(open().expect("it was read"), &analysis, &spans);
    let rebuilt = rebuilt.expect("its header was read");
    let machine = SimMachine::named("ryzen7950x").expect("it is there");
    let host = |policy| {
        let mut topology = machine.topology.clone();
        topology.cpus.truncate(2);
        let settings = Settings::runtime();
        Host {
            topology,
            costs: machine.costs.clone(),
            settings,
            policy,
            others_per_mille: 0,
            others_run: false,
        }
    };
    let question = Question {
        recorded: host(SimPolicyKind::WorkSteal),
        asked: host(SimPolicyKind::Product(PolicyKind::Home)),
        load_per_mille: 1000,
    };
    let answer = warmcore_trace::what_if(&rebuilt, &analysis, &question, &|| false, &|| {});
    let answer = answer.expect("a window is a program").expect("nothing interrupts it");
    assert!(serde_json::to_string(&answer).is_ok_and(|text| !text.is_empty()));
}

/// The bytes of a recording with the right checksums of its header and of its blocks, as far as there are whole ones.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize)
    };
    let Some(length) = word(&bytes, 12) else { return bytes };
    let mut at = HEADER_BYTES.saturating_add(length);
    if let Some(sum) = bytes.get(HEADER_BYTES..at).map(|text| checksum(CHECKSUM_START, text)) {
        bytes[16..24].copy_from_slice(&sum.to_le_bytes());
    }
    while let Some(length) = word(&bytes, at + 8) {
        let payload = at + BLOCK_HEADER_BYTES;
        let end = payload.saturating_add(length);
        if end > bytes.len() {
            break;
        }
        let sum = checksum(checksum(CHECKSUM_START, &bytes[at..at + 24]), &bytes[payload..end]);
        bytes[at + 24..payload].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
    bytes
}

/// The inputs of a corpus: the files of a tar archive, in the archive's order, up to the first file that is truncated
/// or has no valid size.
pub fn corpus(archive: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    const BLOCK: usize = 512;
    let bytes = std::fs::read(archive)?;
    let (mut at, mut files) = (0, Vec::new());
    while let Some(head) = bytes.get(at..at + BLOCK) {
        // A tar header has the size at byte 124, in octal digits, and the kind at byte 156: `0` is a file.
        let digits = text(&head[124..135]).unwrap_or_default();
        let Ok(size) = usize::from_str_radix(digits.trim_matches([' ', '\0']), 8) else { break };
        let Some(file) = bytes.get(at + BLOCK..at + BLOCK + size) else { break };
        if head[156] == b'0' {
            files.push(file.to_vec());
        }
        at += BLOCK + size.next_multiple_of(BLOCK);
    }
    Ok(files)
}
