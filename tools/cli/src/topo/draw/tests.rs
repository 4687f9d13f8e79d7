use super::*;
use std::path::Path;
use warmcore_topo::{MACHINES, machines};

fn fixtures() -> Vec<(String, Topology)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let files = |name: &str| {
        let entries = std::fs::read_dir(folder.join(name)).unwrap();
        entries.map(|e| e.unwrap().path()).collect::<Vec<_>>()
    };
    let broken = |p: &Path| p.file_name().unwrap().to_string_lossy().starts_with("broken");
    let trees =
        files("sysfs").into_iter().filter(|p| p.extension().is_some_and(|e| e == "txt") && !broken(p));
    let trees = trees.map(|p| (p.display().to_string(), Topology::from_sysfs(&p).unwrap()));
    let xml = files("hwloc").into_iter().filter(|p| !broken(p));
    let xml = xml.map(|p| (p.display().to_string(), Topology::from_hwloc(&p).unwrap()));
    let named = machines(MACHINES).unwrap().into_iter();
    let named = named.map(|name| (name.clone(), Topology::from_machine(MACHINES, &name).unwrap()));
    trees.chain(xml).chain(named).collect()
}

/// The numbers in the boxes.
fn numbers(drawing: &str) -> Vec<u32> {
    let body =
        drawing.lines().filter(|l| l.starts_with('│') && !l.contains("cores:") && !l.contains("core:"));
    let words = body.flat_map(|l| l.split(['│', ' ', '─']).map(str::to_owned).collect::<Vec<_>>());
    let mut numbers: Vec<u32> =
        words.filter_map(|w| w.trim_end_matches(['i', 'n', 'x']).parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn every_cpu_of_every_fixture_is_drawn_once_within_the_width() {
    for (name, t) in fixtures() {
        let mut expected: Vec<u32> = t.cpus.iter().map(|c| c.id.0).collect();
        expected.extend(t.offline.iter().map(|c| c.0));
        expected.sort_unstable();
        for width in [80, 120, 200] {
            let drawing = draw(&t, "a test", width, true);
            // Titles of boxes have numbers too, but are in the frame's line, with its corners.
            let cells: String = drawing.lines().map(|l| without_titles(l) + "\n").collect();
            assert_eq!(numbers(&cells), expected, "{name} at {width}\n{drawing}");
            let widest = drawing.lines().map(|l| l.chars().count()).max().unwrap();
            assert!(widest <= width, "{name} at {width} is {widest} wide\n{drawing}");
        }
        draw(&t, "a test", 40, false);
    }
}

/// A line without the text between the corners of frames.
fn without_titles(line: &str) -> String {
    let mut inside = false;
    let keep = |c: char| {
        inside = (inside || c == '┌') && c != '┐';
        if inside { ' ' } else { c }
    };
    line.chars().map(keep).collect()
}

#[test]
fn a_small_machine_is_drawn_as_boxes_in_boxes() {
    let t = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
    let drawing = draw(&t, "a test", 200, false);
    let core = "│ ┌───────┐ ┌───────┐";
    assert!(
        drawing.contains("┌ llc0 · L3 32 MiB ─") && drawing.contains(core) && drawing.contains("│  0 16 │"),
        "{drawing}"
    );
    assert!(drawing.starts_with("AMD Ryzen 9 7950X 16-Core Processor (a test)\n"), "{drawing}");
    assert!(drawing.contains("2 last-level caches of 8 cores, 16 cores, 32 CPUs"), "{drawing}");
}

#[test]
fn of_384_cpus_each_is_there_in_80_columns_and_60_lines() {
    let t = Topology::from_machine(MACHINES, "epyc9654_2p").unwrap();
    let drawing = draw(&t, "a test", 80, false);
    assert!(drawing.lines().count() <= 60, "{drawing}");
    assert!(
        drawing.contains("│   0   1   2   3   4   5   6   7 │") && drawing.contains("│ 192 193 194 "),
        "{drawing}"
    );
    assert!(drawing.contains("each llc: L3 32 MiB"), "{drawing}");
}

#[test]
fn caches_that_are_alike_are_drawn_once_when_there_are_very_many() {
    let text = "[m]\nsockets = 8\nl3_per_socket = 16\ncores_per_l3 = 8\nsmt = 2\nl3_kib = 32768";
    let mut t = Topology::from_machine(text, "m").unwrap();
    t.isolated = [CpuId(40)].into_iter().collect();
    let drawing = draw(&t, "a test", 80, false);
    assert!(drawing.lines().count() <= 120, "{drawing}");
    // The cache with the isolated CPU differs and is drawn.
    assert!(drawing.contains("× 4 more alike: llc1 to llc4, CPUs 8-39,1032-1063"), "{drawing}");
    assert!(drawing.contains("  40i"), "{drawing}");
    assert!(drawing.contains("× 9 more alike: llc7 to llc15"), "{drawing}");
    assert!(draw(&t, "a test", 80, true).contains("2047"), "--all leaves nothing out");
}

#[test]
fn marks_limits_and_notes_are_drawn() {
    let t = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
    let set = |list| CpuSet::parse_list(list).unwrap();
    let quota = warmcore_topo::Quota { cpus: 1.5, file: "/sys/fs/cgroup/cpu.max".into() };
    let t = Topology {
        isolated: set("4-5"),
        nohz_full: set("5"),
        allowed: Some(set("0-30")),
        quota: Some(quota),
        notes: vec!["something is odd".into()],
        ..t
    };
    let drawing = draw(&t, "a test", 80, false);
    for expected in [
        "│  4i  20",
        "5in 21",
        "31x",
        "i  isolated at boot (isolcpus=): 2 CPUs (4-5)",
        "n  without a tick (nohz_full=): 1 CPU (5)",
        "x  not allowed for this process: 1 CPU (31)",
        "quota: the time of 1.5 CPUs (/sys/fs/cgroup/cpu.max)",
        "note: something is odd",
    ] {
        assert!(drawing.contains(expected), "{expected} is missing\n{drawing}");
    }
}
