use super::quota;
use crate::{Quota, TopoError};
use std::fs;
use std::path::Path;

/// Writes a copy of `/` with these files. Returns the quota in it, and the notes.
fn read(files: &[(&str, &str)]) -> (Result<Option<Quota>, TopoError>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut notes = Vec::new();
    let found = quota(&crate::files::Files::Folder, dir.path(), &mut notes);
    let below = |q: Quota| Quota { file: q.file.strip_prefix(dir.path()).unwrap().to_owned(), ..q };
    (found.map(|q| q.map(below)), notes)
}

fn found(files: &[(&str, &str)]) -> Option<(f64, String)> {
    let (found, notes) = read(files);
    assert_eq!(notes, [] as [String; 0]);
    found.unwrap().map(|q| (q.cpus, q.file.display().to_string()))
}

#[test]
fn the_smallest_quota_on_the_way_up_counts() {
    let files = [
        ("proc/self/cgroup", "0::/user/app/worker\n"),
        ("sys/fs/cgroup/user/app/worker/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/user/app/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/user/cpu.max", "400000 100000\n"),
    ];
    assert_eq!(found(&files), Some((1.5, "sys/fs/cgroup/user/app/cpu.max".into())));
}

#[test]
fn no_limit_is_no_quota() {
    assert_eq!(found(&[]), None);
    assert_eq!(found(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cgroup.procs", "")]), None);
    let max = [("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/cpu.max", "max 100000\n")];
    assert_eq!(found(&max), None);
    let v1 = [("proc/self/cgroup", "1:cpu:/\n"), ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")];
    assert_eq!(found(&v1), None);
}

#[test]
fn version_1_writes_quota_and_period_apart() {
    let files = [
        ("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/a\n0::/\n"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n"),
    ];
    let file = "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_quota_us";
    assert_eq!(found(&files), Some((0.5, file.into())));
}

#[test]
fn in_a_container_the_mounted_part_of_the_path_counts() {
    // The path in `proc/self/cgroup` is the host's, and the mount begins at the container's own cgroup.
    let files = [
        ("proc/self/cgroup", "0::/docker/abc/worker\n"),
        ("proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
        ("sys/fs/cgroup/worker/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/cpu.max", "200000 100000\n"),
    ];
    assert_eq!(found(&files), Some((2.0, "sys/fs/cgroup/cpu.max".into())));
}

#[test]
fn a_hierarchy_mounted_elsewhere_is_found_by_mountinfo() {
    let files = [
        ("proc/self/cgroup", "2:cpu:/a\n"),
        (
            "proc/self/mountinfo",
            "22 1 0:1 / /proc rw - proc proc rw\n33 31 0:30 / /cg/c rw shared:9 - cgroup cgroup rw,cpu\n",
        ),
        ("cg/c/a/cpu.cfs_quota_us", "250000\n"),
        ("cg/c/a/cpu.cfs_period_us", "100000\n"),
    ];
    assert_eq!(found(&files), Some((2.5, "cg/c/a/cpu.cfs_quota_us".into())));
}

#[test]
fn a_cgroup_that_is_not_visible_is_noted() {
    for path in ["0::/gone", "0::/../outside"] {
        let (found, notes) = read(&[("proc/self/cgroup", path), ("sys/fs/cgroup/cpu.max", "100000 100000")]);
        assert_eq!(found.unwrap().unwrap().cpus, 1.0, "{path}");
        assert!(notes[0].contains("not to be seen"), "{notes:?}");
    }
}

#[test]
fn a_file_that_holds_something_else_is_named() {
    for (file, text) in [
        ("sys/fs/cgroup/cpu.max", ""),
        ("sys/fs/cgroup/cpu.max", "x 100000"),
        ("sys/fs/cgroup/cpu.max", "100000 0"),
        ("sys/fs/cgroup/cpu.max", "1 2 3"),
        ("proc/self/cgroup", "nonsense"),
    ] {
        let mut files = vec![("proc/self/cgroup", "0::/"), ("sys/fs/cgroup/cgroup.procs", "")];
        files.retain(|f| f.0 != file);
        files.push((file, text));
        let e = read(&files).0.unwrap_err();
        assert!(e.is_malformed() && e.file().ends_with(Path::new(file)), "{file} = `{text}`: {e}");
    }
}
