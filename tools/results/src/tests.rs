use super::*;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, chown, symlink};

#[test]
fn a_row_knows_its_quartiles_and_its_noise() {
    let samples: Vec<f64> = (1..=101).map(f64::from).collect();
    let row = Row::of("case", "variant", "time", "ns", &samples);
    assert_eq!((row.p25, row.median, row.min, row.max, row.n), (26.0, 51.0, 1.0, 101.0, 101));
    assert!(row.noisy, "an even spread from 1 to 101 is no clean number: {row:?}");
    assert!(!Row::of("case", "variant", "time", "ns", &[5.0, 5.1, 4.9, 5.0, 5.0]).noisy);
}

#[test]
fn the_interval_of_the_median_covers_it_as_often_as_it_says() {
    // A fixed seed, so that the test has the same result every time.
    let mut rng = fastrand::Rng::with_seed(7);
    for n in [10, 25, 100] {
        let covered = (0..2000)
            .filter(|_| {
                let samples: Vec<f64> = (0..n).map(|_| rng.f64()).collect();
                let [lo, hi] = Row::of("c", "v", "time", "ns", &samples).ci95.unwrap();
                lo <= 0.5 && 0.5 <= hi
            })
            .count();
        assert!((1880..=2000).contains(&covered), "{n} samples: covered {covered} of 2000");
    }
}

#[test]
fn a_quantile_lies_in_its_interval_and_the_last_one_is_the_largest() {
    let samples: Vec<f64> = (1..=10_000).rev().map(f64::from).collect();
    let row = Row::quantile("c", "v", "p99", "ns", &samples, 0.99);
    let [lo, hi] = row.ci95.unwrap();
    assert!((9899.0..=9901.0).contains(&row.median) && lo < row.median && row.median < hi, "{row:?}");
    assert!(!row.noisy && row.n == 10_000);
    assert_eq!(Row::quantile("c", "v", "p99", "ns", &[1.0, 5.0], 0.999).median, 5.0);
}

#[test]
fn a_ratio_compares_neighbours_and_a_promise_is_met_if_the_interval_reaches_it() {
    // Both variants drift by the same factor, so their ratio does not change.
    let below: Vec<f64> = (0..50).map(|i| 1.0 + f64::from(i) * 0.1).collect();
    let above: Vec<f64> = below.iter().map(|b| b * 12.0).collect();
    let row = Row::ratio("case", "atomic", "rseq", &above, &below);
    assert!((row.median - 12.0).abs() < 1e-9 && !row.noisy, "{row:?}");
    let standing = |kind, value| row.clone().promise(kind, value).target.unwrap().standing;
    assert_eq!(standing(Bound::AtLeast, 11.99), Standing::Met);
    assert_eq!(standing(Bound::AtLeast, 13.0), Standing::Missed);
    assert_eq!(standing(Bound::AtMost, 11.0), Standing::Missed);
}

#[test]
fn a_promise_is_decided_by_the_median_and_only_where_its_interval_agrees() {
    let wide: Vec<f64> = (1..=21).map(f64::from).collect();
    let row = Row::of("c", "v", "ratio", "x", &wide);
    let [low, high] = row.ci95.unwrap();
    assert!(low < 11.0 && row.median == 11.0 && high > 11.0);
    let standing = |kind, value| row.clone().promise(kind, value).target.unwrap().standing;
    for value in [low + 0.5, 11.0, high - 0.5, high] {
        // The better end of the interval reaches the bound, whichever side the median is on.
        assert_eq!(standing(Bound::AtLeast, value), Standing::Undecided, "{value}");
        assert_eq!(standing(Bound::AtMost, value.min(high - 0.5)), Standing::Undecided, "{value}");
    }
    for (kind, met, missed) in [(Bound::AtLeast, low, high + 0.1), (Bound::AtMost, high, low - 0.1)] {
        assert_eq!(standing(kind, met), Standing::Met);
        assert_eq!(standing(kind, missed), Standing::Missed);
    }
    // The interval of a counted row has no width, so its promise can't be undecided. `standing` evaluates a promise of
    // a file of an older version, which has no `standing` field.
    let old = r#"{"kind":"at_least","value":12.0,"met":true}"#;
    let old: Target = serde_json::from_str(old).unwrap();
    assert_eq!(old.standing(&Row::exact("c", "v", "m", "x", 11.0, 1)), Standing::Missed);
}

#[test]
fn a_run_beside_busy_processes_is_marked() {
    let is_disturbed = |others_share| Load { others_share, ..Load::default() }.is_disturbed();
    assert!(!is_disturbed(0.1) && is_disturbed(0.11));
}

#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    write_whole(&path, b"one").unwrap();
    write_whole(&path, b"two").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"two");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left");
    let error = write_whole(&folder.path().join("none/out.json"), b"x").unwrap_err().to_string();
    assert!(error.contains("none/out.json") && error.contains("may write"), "{error}");
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode()
}

#[test]
fn a_file_keeps_its_mode_and_a_new_one_has_what_the_umask_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    for wanted in [0o600, 0o640, 0o664] {
        std::fs::write(file("kept"), "old").unwrap();
        std::fs::set_permissions(file("kept"), Permissions::from_mode(wanted)).unwrap();
        write_whole(&file("kept"), b"new").unwrap();
        assert_eq!(mode(&file("kept")) & 0o777, wanted);
        assert_eq!(std::fs::read(file("kept")).unwrap(), b"new");
    }
    // The umask belongs to the whole process, so the test doesn't set it. It compares two new files instead.
    write_whole(&file("new"), b"x").unwrap();
    std::fs::write(file("plain"), "x").unwrap();
    assert_eq!(mode(&file("new")), mode(&file("plain")));
}

#[test]
fn what_is_no_plain_file_is_written_through_and_stays_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);

    // Symbolic links to a file, to a file that doesn't exist yet, and to a device.
    std::fs::write(file("target"), "what was there is longer").unwrap();
    for (link, target) in
        [("link", file("target")), ("dangling", file("later")), ("null", "/dev/null".into())]
    {
        symlink(&target, file(link)).unwrap();
        write_whole(&file(link), b"new").unwrap();
        assert!(std::fs::symlink_metadata(file(link)).unwrap().is_symlink(), "{link} was replaced");
    }
    assert_eq!(std::fs::read(file("target")).unwrap(), b"new");
    assert_eq!(std::fs::read(file("later")).unwrap(), b"new");

    // A file with two names (hard links) keeps both.
    std::fs::write(file("one"), "old").unwrap();
    std::fs::hard_link(file("one"), file("two")).unwrap();
    write_whole(&file("one"), b"new").unwrap();
    assert_eq!(std::fs::read(file("two")).unwrap(), b"new");

    // A FIFO. The test opens it for reading and writing first, so that no open waits for the other end.
    let name = CString::new(file("fifo").as_os_str().as_bytes()).unwrap();
    // SAFETY: the name ends with a NUL and lives as long as the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let mut both = OpenOptions::new().read(true).write(true).open(file("fifo")).unwrap();
    write_whole(&file("fifo"), b"new").unwrap();
    assert!(std::fs::symlink_metadata(file("fifo")).unwrap().file_type().is_fifo());
    let mut got = [0; 3];
    both.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"new");
    assert!(!is_rewritable(&file("fifo")) && !is_rewritable(&file("null")));
    assert!(is_rewritable(&file("link")) && is_rewritable(&file("not there")));

    // A device file that the test makes. Only root may make one, and not in every container.
    let name = CString::new(file("device").as_os_str().as_bytes()).unwrap();
    // SAFETY: as above.
    let made = unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) };
    if made == 0 && OpenOptions::new().write(true).open(file("device")).is_ok() {
        write_whole(&file("device"), b"new").unwrap();
        assert!(std::fs::symlink_metadata(file("device")).unwrap().file_type().is_char_device());
    }
}

/// An access control list that lets user 1 read and write, in the kernel's format: a version, then tag, permissions and
/// id of each entry.
fn list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 6, 1), (4, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)];
    let bytes = entries.iter().flat_map(|(tag, may, id)| {
        [&tag.to_le_bytes()[..], &may.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    });
    2u32.to_le_bytes().into_iter().chain(bytes).collect()
}

/// Sets an access control list; returns false if the file system has none.
#[cfg(target_os = "linux")]
fn set_list(path: &Path, name: &std::ffi::CStr) -> bool {
    let (path, list) = (CString::new(path.as_os_str().as_bytes()).unwrap(), list());
    // SAFETY: both names end with a NUL, and `list` has `list.len()` bytes.
    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), list.as_ptr().cast(), list.len(), 0) == 0 }
}

#[cfg(target_os = "linux")]
fn list_of(path: &Path) -> Option<Vec<u8>> {
    let (path, mut list) = (CString::new(path.as_os_str().as_bytes()).unwrap(), vec![0; 1024]);
    let name = c"system.posix_acl_access";
    // SAFETY: both names end with a NUL; the kernel writes at most as many bytes as the buffer has.
    let got = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    list.truncate(usize::try_from(got).ok()?);
    Some(list)
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_keeps_its_access_control_list_and_gets_none_from_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("listed"), "old").unwrap();
    if !set_list(&file("listed"), c"system.posix_acl_access") {
        return;
    }
    let (before, of_group) = (list_of(&file("listed")).unwrap(), mode(&file("listed")));
    write_whole(&file("listed"), b"new").unwrap();
    assert_eq!(list_of(&file("listed")), Some(before));
    assert_eq!(mode(&file("listed")), of_group);
    // A file without a list stays without one, even if its folder gives a default list to each new file.
    std::fs::write(file("plain"), "old").unwrap();
    std::fs::set_permissions(file("plain"), Permissions::from_mode(0o640)).unwrap();
    assert!(set_list(folder.path(), c"system.posix_acl_default"));
    write_whole(&file("plain"), b"new").unwrap();
    assert_eq!((list_of(&file("plain")), mode(&file("plain")) & 0o777), (None, 0o640));
    for name in ["listed", "plain"] {
        assert_eq!(std::fs::read(file(name)).unwrap(), b"new", "{name}");
    }
}

#[test]
fn a_list_that_the_new_file_does_not_take_has_the_old_one_written_through() {
    let is_written_through = |errno| is_refusal(&as_refusal(io::Error::from_raw_os_error(errno)));
    assert!([libc::EINVAL, libc::EPERM, libc::EIO].into_iter().all(is_written_through));
    assert!(![libc::ENOSPC, libc::EDQUOT].into_iter().any(is_written_through), "what is there would be lost");
}

/// The environment variable that tells a child process, in a new user namespace, which file to write.
const WRITES: &str = "WARMCORE_TEST_WRITES";

/// Not a test: the body of the child process with [`WRITES`] in its environment. Without that variable it does nothing.
#[test]
fn process_in_a_user_namespace() {
    let Some(path) = std::env::var_os(WRITES) else { return };
    write_whole(Path::new(&path), b"new").unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_list_with_a_user_that_its_user_namespace_lacks_does_not_keep_the_file_from_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("listed");
    std::fs::write(&path, "old").unwrap();
    // The namespace maps only this user.
    let unshare = || {
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--user", "--map-root-user"]);
        unshare
    };
    let is_possible = unshare().arg("true").output().is_ok_and(|output| output.status.success());
    if !is_possible || !set_list(&path, c"system.posix_acl_access") {
        return println!("skipped: no user namespace or no access control list to be had");
    }
    let before = list_of(&path).unwrap();
    let mut writer = unshare();
    writer.arg(std::env::current_exe().unwrap());
    writer.args(["--exact", "tests::process_in_a_user_namespace", "--nocapture"]);
    let output = writer.env(WRITES, &path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((std::fs::read(&path).unwrap(), list_of(&path)), (b"new".to_vec(), Some(before)));
}

#[test]
fn a_link_of_another_user_in_a_folder_of_all_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (shared, target_file) = (file("shared"), file("target"));
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    std::fs::write(&target_file, "old").unwrap();
    let link = shared.join("out.json");
    symlink(&target_file, &link).unwrap();
    // A link of the same user is followed.
    write_whole(&link, b"mine").unwrap();
    assert_eq!(std::fs::read(&target_file).unwrap(), b"mine");
    // The rule is the kernel's (`protected_symlinks`). Only root may give a link to another user, so only root can test
    // that such a link is refused.
    let of = |path: &Path| std::fs::symlink_metadata(path).unwrap();
    let (theirs, user) = (of(&link), of(&link).uid());
    assert!(may_follow(&theirs, &of(&shared), user) && may_follow(&theirs, &of(&shared), user + 1));
    if std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).is_ok() {
        // Also write through a link of the calling user that leads to the link of the other user.
        symlink(&link, file("mine")).unwrap();
        for path in [&link, &file("mine")] {
            let error = format!("{:#}", write_whole(path, b"stolen").unwrap_err());
            let told = ["user 65534", "not followed", &shared.display().to_string()];
            // The error names the owner of the link, the reason and the folder.
            assert!(told.iter().all(|word| error.contains(word)), "{error}");
            assert_eq!(std::fs::read(&target_file).unwrap(), b"mine");
        }
        // In a folder that not all users may write to, the link of the other user is followed.
        std::fs::set_permissions(&shared, Permissions::from_mode(0o755)).unwrap();
        write_whole(&link, b"followed").unwrap();
        assert_eq!(std::fs::read(&target_file).unwrap(), b"followed");
    }
}

#[test]
fn a_link_to_what_a_process_has_open_has_no_path() {
    assert_eq!(follow(Path::new("/proc/self/fd/0")).unwrap(), Leads::Open);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none yet");
    assert_eq!(follow(&path).unwrap(), Leads::To(path));
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    symlink(&two, &one).unwrap();
    symlink(&one, &two).unwrap();
    assert!(follow(&one).is_err());
}

#[test]
fn a_file_of_another_user_keeps_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    std::fs::write(&path, "old").unwrap();
    // Only root may give a file to another user.
    if chown(&path, Some(65534), Some(65534)).is_ok() {
        write_whole(&path, b"new").unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (65534, 65534));
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left");
    }
}

const DOCS: &str = include_str!("../../../docs/json.md");

/// The fields that `docs/json.md` lists under a heading.
fn documented(heading: &str) -> BTreeSet<String> {
    let section = DOCS.split("\n## ").find(|s| s.lines().next() == Some(heading));
    let rows = section.unwrap_or_else(|| panic!("docs/json.md has no section {heading}")).lines();
    rows.filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
}

fn example() -> serde_json::Value {
    let text = DOCS.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    serde_json::from_str(text.expect("docs/json.md has no example")).unwrap()
}

#[test]
fn the_schema_in_the_docs_is_the_schema() {
    let full = Results {
        schema: SCHEMA,
        what: "percpu".into(),
        command: "warmcore bench percpu".into(),
        when: "2001-02-03T04:05:06Z".into(),
        machine: HostInfo {
            cpu: "a cpu".into(),
            kernel: "a kernel".into(),
            libc: "a libc".into(),
            arch: "x86_64".into(),
            cpus: 2,
            allowed: "0-1".into(),
            hypervisor: Some("KVM".into()),
        },
        percpu_backend: "rseq (glibc)".into(),
        load: Load::default(),
        rows: vec![Row::ratio("c", "v", "o", &[2.0], &[1.0]).promise(Bound::AtLeast, 1.0)],
        timelines: vec![Timeline {
            policy: "cache-local".into(),
            end_ms: 9,
            lanes: vec![Lane {
                cpu: 0,
                bursts: vec![Span { cid: 0, from_ms: 1, to_ms: 2 }],
                kept: Vec::new(),
            }],
        }],
    };
    let value = serde_json::to_value(full).unwrap();
    for (heading, at) in [
        ("Results", ""),
        ("HostInfo", "/machine"),
        ("Load", "/load"),
        ("Row", "/rows/0"),
        ("Target", "/rows/0/target"),
        ("Timeline", "/timelines/0"),
        ("Lane", "/timelines/0/lanes/0"),
        ("Span", "/timelines/0/lanes/0/bursts/0"),
    ] {
        let written: BTreeSet<String> =
            value.pointer(at).unwrap().as_object().unwrap().keys().cloned().collect();
        assert_eq!(documented(heading), written, "left: docs/json.md, right: the code, of {heading}");
    }
    assert!(DOCS.contains(&format!("schema {SCHEMA}")), "docs/json.md describes another schema");
}

#[test]
fn the_example_in_the_docs_is_complete_and_can_be_read() {
    let example = example();
    let read: Results = serde_json::from_value(example.clone()).unwrap();
    assert_eq!(read.schema, SCHEMA);
    assert_eq!(serde_json::to_value(&read).unwrap(), example, "reading and writing it loses something");
    let shown: BTreeSet<String> = example["rows"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|r| r.as_object().unwrap().keys().cloned())
        .collect();
    assert_eq!(shown, documented("Row"), "the example leaves out a field of Row");
    for kind in [Bound::AtLeast, Bound::AtMost] {
        let name = serde_json::to_string(&kind).unwrap();
        assert!(DOCS.contains(&name), "docs/json.md doesn't name {name}");
    }
}

#[test]
fn the_key_of_schema_2_for_the_backend_is_read() {
    let mut example = example();
    let backend = example.as_object_mut().unwrap().remove("percpu_backend").unwrap();
    example["mode"] = backend.clone();
    let read: Results = serde_json::from_value(example).unwrap();
    assert_eq!(read.percpu_backend, backend);
}
