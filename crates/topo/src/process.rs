//! The part of the machine that this process may use.
//!
//! All files are read below one root, `/` or a captured copy of it: `sys` has the machine; `proc` has the CPUs
//! that this process is allowed, and the processor's name; `proc` and `sys/fs/cgroup` have the process's quota. A
//! running process also gets the allowed CPUs from the scheduler, and needs no other source.
//!
//! # Source
//! proc_pid_status(5), `Cpus_allowed_list`; proc_cpuinfo(5).

use crate::assemble::Parts;
use crate::files::{self, Files};
use crate::{TopoError, Topology, cgroup, sysfs};
use std::path::Path;
use warmcore_sys::affinity;
use warmcore_types::CpuSet;

#[cfg(test)]
mod tests;

impl Topology {
    /// The machine that this process runs on, with the CPUs that it is allowed and its quota.
    ///
    /// To run, a process only needs to know on which CPUs it may run, and the scheduler returns that. If `/sys` cannot
    /// be read, contradicts itself, or lacks CPUs on which the process may run, or if `/proc/self/status` contradicts
    /// it, the result is a *flat* machine: the allowed CPUs are cores of one LLC, one node and one socket, and a note
    /// says what could not be read. Without `/proc/self/status`, the scheduler's CPUs are the allowed ones.
    /// [`Topology::from_root`] does not know these CPUs, and returns an error if files cannot be read or contradict
    /// each other.
    ///
    /// # Errors
    /// Returns an error if the scheduler does not return the CPUs on which this process may run.
    pub fn this_machine() -> Result<Self, TopoError> {
        let allowed =
            affinity::allowed_to_main().and_then(|of_main| Ok(of_main.union(&affinity::allowed()?)));
        let allowed = allowed.map_err(|e| TopoError::unreadable("/proc/self/status", &e))?;
        Self::of_process(Path::new("/"), &allowed)
    }

    /// As [`Topology::this_machine`], with a captured copy of `/` in its place: `sys/`, and those of
    /// `proc/self/{status,cgroup,mountinfo}`, `proc/cpuinfo` and `sys/fs/cgroup` that exist. A text file that
    /// [`Topology::capture`] wrote may hold these files, too.
    ///
    /// # Errors
    /// As [`Topology::from_sysfs`], and if a file of `proc` or of cgroups does not have the expected format.
    pub fn from_root(root: &Path) -> Result<Self, TopoError> {
        let files = &Files::below(root)?;
        let mut parts = read(files, root, None)?;
        parts.quota = cgroup::quota(files, root, &mut parts.notes)?;
        parts.model = model(files, &root.join("proc/cpuinfo"))?;
        parts.assemble()
    }

    /// As [`Topology::from_root`] if `root` holds `sys/` and `proc/`, else as [`Topology::from_sysfs`]: what
    /// [`Topology::capture`] wrote, of `/` or of a /sys tree, or a folder with the same files.
    ///
    /// # Errors
    /// As those two functions, and if a text file is not a capture.
    pub fn from_captured(root: &Path) -> Result<Self, TopoError> {
        let files = Files::below(root)?;
        let has_process = ["sys", "proc"].iter().all(|dir| files.is_dir(&root.join(dir)));
        if has_process { Self::from_root(root) } else { Self::from_sysfs(root) }
    }

    /// The machine below `root`, or a flat one if that cannot be read. `allowed`: the scheduler's mask of this process.
    fn of_process(root: &Path, allowed: &CpuSet) -> Result<Self, TopoError> {
        let files = &Files::below(root)?;
        let whole = read(files, root, Some(allowed)).and_then(Parts::assemble);
        let mut topology = whole.or_else(|error| {
            let mut flat = Parts::flat(allowed.clone());
            flat.source = root.display().to_string();
            flat.notes.push(format!(
                "what the machine is cannot be read, so its CPUs are taken for cores of one cache: {error}"
            ));
            flat.assemble()
        })?;
        let mut notes = std::mem::take(&mut topology.notes);
        topology.quota = cgroup::quota(files, root, &mut notes).unwrap_or_else(|error| {
            notes.push(format!("taken as without a CPU quota: {error}"));
            None
        });
        // An error here costs only the name that is displayed.
        topology.model = model(files, &root.join("proc/cpuinfo")).unwrap_or_default();
        topology.notes = notes;
        Ok(topology)
    }
}

/// Reads the machine below `root`, and which of its CPUs this process may use. `mask`: the CPUs that the scheduler
/// allows to this process, if it is the process whose files these are.
fn read(files: &Files, root: &Path, mask: Option<&CpuSet>) -> Result<Parts, TopoError> {
    let mut parts = sysfs::read(files, &root.join("sys"))?;
    parts.source = root.display().to_string();
    let file = root.join("proc/self/status");
    if let Some(text) = files.read(&file)? {
        let Some(list) = text.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")) else {
            return Err(TopoError::malformed(file, "has no line `Cpus_allowed_list:`"));
        };
        // The kernel's mask also holds possible CPUs that are not online.
        let allowed = files::list(&file, list)?.intersection(&parts.online);
        if allowed.is_empty() {
            let fact = format!("allows CPUs {}, and online are {}", list.trim(), parts.online);
            return Err(TopoError::contradiction(file, fact));
        }
        parts.allowed = Some(allowed);
    } else {
        parts.allowed = mask.cloned();
        parts.notes.push(match mask {
            Some(mask) => {
                format!("proc/self/status is not there; by the scheduler's mask CPUs {mask} are allowed")
            }
            None => "proc/self/status is not there; all online CPUs are taken as allowed".into(),
        });
    }
    // The scheduler's mask holds CPUs that are online, and no others.
    let hidden = mask.map(|mask| mask.difference(&parts.online)).filter(|hidden| !hidden.is_empty());
    if let Some(hidden) = hidden {
        let fact = format!("shows CPUs {}, and this process may run on CPUs {hidden}", parts.online);
        return Err(TopoError::contradiction(root.join("sys/devices/system/cpu/online"), fact));
    }
    Ok(parts)
}

/// The processor's name: the line is `model name` on x86 and `cpu` on POWER; 64-bit Arm has none.
fn model(files: &Files, file: &Path) -> Result<Option<String>, TopoError> {
    let Some(text) = files.read(file)? else { return Ok(None) };
    let named = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        matches!(key.trim(), "model name" | "cpu").then(|| value.trim().to_owned())
    });
    Ok(named.filter(|name| !name.is_empty()))
}
