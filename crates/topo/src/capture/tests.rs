use super::{is_kept, parse};
use crate::write_sysfs::{Style, temp_dir, write};
use crate::{MACHINES, TopoError, Topology};
use std::fs;
use std::path::{Path, PathBuf};

/// A path of a capture, and the text of that file; `None` for a directory.
type Line = (String, Option<Vec<u8>>);

/// The content of a capture with these lines.
fn parsed(text: &str) -> Result<Vec<Line>, TopoError> {
    let entries = parse(text, Path::new("a.txt"))?;
    Ok(entries.into_iter().map(|(path, bytes)| (path.display().to_string(), bytes)).collect())
}

/// Writes a text file. Returns its directory, which is removed when it is dropped, and its path.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = temp_dir();
    let path = dir.path().join("capture.txt");
    fs::write(&path, text).unwrap();
    (dir, path)
}

#[test]
fn a_line_is_a_path_and_a_text() {
    let text = "# a comment\n\na/b\tx y\tz\n\tmore\n\t\na/c\t\\\\n\\x00\\xff\na/d/\ne\t\n";
    let expected = [
        ("a/b".to_owned(), Some(b"x y\tz\nmore\n".to_vec())),
        ("a/c".to_owned(), Some(b"\\n\0\xff".to_vec())),
        ("a/d".to_owned(), None),
        ("e".to_owned(), Some(Vec::new())),
    ];
    assert_eq!(parsed(text).unwrap(), expected);
}

#[test]
fn a_wrong_line_is_named_by_its_number() {
    for (text, words) in [
        ("a", "line 1 has no tab"),
        ("# x\n\tmore", "line 2 begins with a tab"),
        ("a/\n\tmore", "line 2 begins with a tab"),
        ("/a\tx", "line 1 has a path that is not below the root"),
        ("a/../b\tx", "line 1 has a path"),
        ("a\tx\na\ty", "line 2 names a path for the second time"),
        ("a\tx\na/b\ty", "a as a file and as a directory"),
        ("a\t\\n", "line 1 has a backslash"),
        ("a\t\\x0", "line 1 has a backslash"),
        ("a\t\\", "line 1 has a backslash"),
        ("a\t\\x\u{e9}z", "line 1 has a backslash"),
    ] {
        let e = parsed(text).unwrap_err();
        assert!(e.is_malformed() && e.to_string().contains(words), "{text:?}: {e}");
        assert_eq!(e.file(), Path::new("a.txt"));
    }
}

#[test]
fn a_capture_reads_as_its_tree_and_names_files_as_it_does() {
    let machine = Topology::from_machine(MACHINES, "epyc7601_2p").unwrap();
    let dir = temp_dir();
    write(&machine, dir.path(), Style::default());
    let (_kept, path) = file(&Topology::capture(dir.path()).unwrap());
    let of_tree = Topology::from_sysfs(dir.path()).unwrap();
    let of_text = Topology::from_captured(&path).unwrap();
    assert_eq!(of_text.source, path.display().to_string());
    assert_eq!(Topology { source: of_tree.source.clone(), ..of_text }, of_tree);
    let text =
        fs::read_to_string(&path).unwrap().replace("cpu/cpu3/topology/core_cpus_list\t", "cpu/other\t");
    fs::write(&path, text).unwrap();
    let e = Topology::from_sysfs(&path).unwrap_err();
    let expected = path.join("devices/system/cpu/cpu3/topology/core_cpus_list");
    assert!(e.is_missing() && e.file() == expected, "{e}");
}

#[test]
fn this_machine_reads_back_from_its_capture() {
    // A container may have no /sys.
    let Ok(machine) = Topology::from_root(Path::new("/")) else { return };
    let (_kept, path) = file(&Topology::capture(Path::new("/")).unwrap());
    let mut read = Topology::from_captured(&path).unwrap();
    read.source = machine.source.clone();
    // The quota may change between the two reads, and it has the path of its file, which differs in a capture.
    read.quota = machine.quota.clone();
    assert_eq!(read, machine);
}

#[test]
fn a_text_or_a_folder_without_a_machine_is_an_error_that_names_it() {
    let (dir, path) = file("devices/system/node/node0/cpulist\t0\n");
    let e = Topology::from_captured(&path).unwrap_err();
    assert!(e.is_missing() && e.file() == path.join("devices/system/cpu"), "{e}");
    fs::write(&path, "no capture").unwrap();
    assert!(Topology::from_captured(&path).unwrap_err().is_malformed());
    assert!(Topology::capture(dir.path()).unwrap_err().is_missing());
}

#[test]
fn a_capture_holds_what_readers_open_and_nothing_besides() {
    for path in ["devices", "devices/system/cpu/cpu3/cache", "devices/system/cpu/cpu3/cache/index0/type"] {
        assert!(is_kept(path), "{path}");
    }
    for path in
        ["class", "devices/system/cpu/cpuidle", "devices/system/node/node0/cpu3", "devices/system/cpu/cpu3/a"]
    {
        assert!(!is_kept(path), "{path}");
    }
}
