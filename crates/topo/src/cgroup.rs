//! The CPU quota of this process.
//!
//! A process is in a cgroup, and the limits of that cgroup and of all its ancestors apply, so the quota is the smallest
//! of them. Version 2 writes `cpu.max` ("quota period", or "max period"): `150000 100000` is 1.5 CPUs. Version 1 writes
//! `cpu.cfs_quota_us` (-1: none) and `cpu.cfs_period_us`. On a hybrid host the `cpu` controller is in one of the
//! two versions; both are read.
//!
//! # Source
//! Linux Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst; cgroups(7) for /proc/self/cgroup;
//! proc_pid_mountinfo(5).

use crate::files::Files;
use crate::{Quota, TopoError};
use std::path::{Component, Path, PathBuf};

#[cfg(test)]
mod tests;

/// The version of a cgroup hierarchy.
#[derive(Clone, Copy)]
pub(crate) enum Version {
    V1,
    V2,
}

/// A mounted hierarchy: the directory `at` is the cgroup `top`.
struct Mount {
    at: PathBuf,
    top: PathBuf,
}

/// The smallest quota of this process's cgroup and its ancestors, read from the files below `root` (`/` or a
/// copy).
pub(crate) fn quota(files: &Files, root: &Path, notes: &mut Vec<String>) -> Result<Option<Quota>, TopoError> {
    let ancestors = ancestors(files, root, notes)?.into_iter();
    let limits = ancestors.filter_map(|(dir, version)| limit(files, &dir, version).transpose());
    let limits = limits.collect::<Result<Vec<_>, _>>()?;
    Ok(limits.into_iter().min_by(|a, b| a.cpus.total_cmp(&b.cpus)))
}

/// The directories of this process's cgroups and of their ancestors.
pub(crate) fn ancestors(
    files: &Files,
    root: &Path,
    notes: &mut Vec<String>,
) -> Result<Vec<(PathBuf, Version)>, TopoError> {
    let file = root.join("proc/self/cgroup");
    let Some(text) = files.read(&file)? else { return Ok(Vec::new()) };
    let mut ancestors = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            let fact = format!("has a line `{line}`; expected one like 0::/user.slice");
            return Err(TopoError::malformed(file, fact));
        };
        let version = match controllers {
            "" => Version::V2,
            _ if controllers.split(',').any(|c| c == "cpu") => Version::V1,
            _ => continue,
        };
        let Some(mount) = mount(files, root, version, controllers)? else { continue };
        ancestors.extend(mount.way_up(files, path, notes).into_iter().map(|dir| (dir, version)));
    }
    Ok(ancestors)
}

impl Mount {
    /// The directories of a cgroup and its ancestors, as far up as they are mounted.
    fn way_up(&self, files: &Files, path: &str, notes: &mut Vec<String>) -> Vec<PathBuf> {
        // In a container without a cgroup namespace the path is the host's, and the mount begins further down. A path
        // with `..` is outside of the namespace.
        let path = Path::new(path);
        let below = path.strip_prefix(&self.top).or(path.strip_prefix("/")).unwrap_or(path);
        let plain = below.components().all(|c| matches!(c, Component::Normal(_)));
        let mut dir = self.at.join(if plain { below } else { Path::new("") });
        if !plain || !files.is_dir(&dir) {
            notes.push(format!(
                "cgroup {} is not to be seen below {}; only what is there counts for the quota",
                path.display(),
                self.at.display()
            ));
            dir = self.at.clone();
        }
        dir.ancestors().take_while(|d| d.starts_with(&self.at)).map(Path::to_owned).collect()
    }
}

/// The directory where the hierarchy is mounted: from mountinfo, or if there is no such file one of the usual
/// directories.
fn mount(
    files: &Files,
    root: &Path,
    version: Version,
    controllers: &str,
) -> Result<Option<Mount>, TopoError> {
    let here = |path: &str| root.join(path.trim_start_matches('/'));
    if let Some(text) = files.read(&root.join("proc/self/mountinfo"))? {
        return Ok(text.lines().find_map(|line| {
            // 36 35 98:0 /root /mount/point options ... - type source super,options
            let (mount, filesystem) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(3);
            let (top, at) = (mount.next()?, mount.next()?);
            let mut filesystem = filesystem.split(' ');
            let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
            let is_it = match version {
                Version::V2 => kind == "cgroup2",
                Version::V1 => kind == "cgroup" && options.split(',').any(|o| o == "cpu"),
            };
            is_it.then(|| Mount { at: here(at), top: top.into() })
        }));
    }
    let usual = match version {
        Version::V2 => vec!["sys/fs/cgroup/unified".to_owned(), "sys/fs/cgroup".to_owned()],
        Version::V1 => vec![format!("sys/fs/cgroup/{controllers}"), "sys/fs/cgroup/cpu".to_owned()],
    };
    let at = usual.iter().map(|p| here(p)).find(|p| files.is_dir(p));
    Ok(at.map(|at| Mount { at, top: "/".into() }))
}

/// The limit of one cgroup, if it has one.
fn limit(files: &Files, dir: &Path, version: Version) -> Result<Option<Quota>, TopoError> {
    let (file, quota, period) = match version {
        Version::V2 => {
            let file = dir.join("cpu.max");
            let Some(text) = files.read(&file)? else { return Ok(None) };
            match text.split_whitespace().collect::<Vec<_>>()[..] {
                ["max"] | ["max", _] => return Ok(None),
                [quota] => (file, quota.to_owned(), "100000".to_owned()),
                [quota, period] => (file, quota.to_owned(), period.to_owned()),
                _ => {
                    let fact = format!("says `{text}`; expected a quota and a period, like 150000 100000");
                    return Err(TopoError::malformed(file, fact));
                }
            }
        }
        Version::V1 => {
            let file = dir.join("cpu.cfs_quota_us");
            let Some(quota) = files.read(&file)?.filter(|q| q != "-1") else { return Ok(None) };
            (file, quota, files.need(&dir.join("cpu.cfs_period_us"), "microseconds, like 100000")?)
        }
    };
    match (quota.parse::<u64>(), period.parse::<u64>()) {
        (Ok(quota), Ok(period)) if quota > 0 && period > 0 => {
            Ok(Some(Quota { cpus: quota as f64 / period as f64, file }))
        }
        _ => {
            let fact = format!("gives {quota} µs in {period} µs; expected two numbers above 0");
            Err(TopoError::malformed(file, fact))
        }
    }
}
