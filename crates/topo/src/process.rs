//! Process: what of the machine this process may use.
//!
//! Model.   Three roots in one: `sys` is the machine, `proc` says which CPUs this process is
//!          allowed and what the processor is called, `proc` and `sys/fs/cgroup` say its quota.
//!          All below one directory, `/` or a captured copy of it.
//! Source.  proc_pid_status(5), `Cpus_allowed_list`; proc_cpuinfo(5).

use crate::assemble::Parts;
use crate::{TopoError, Topology, cgroup, files, sysfs};
use std::path::Path;

#[cfg(test)]
mod tests;

impl Topology {
    /// The machine that this process runs on, with the CPUs that it is allowed and its quota.
    ///
    /// # Errors
    /// As [`Topology::from_sysfs`].
    pub fn this_machine() -> Result<Self, TopoError> {
        Self::from_root(Path::new("/"))
    }

    /// As [`Topology::this_machine`], with a captured copy of `/` in its place: `sys/`, and what
    /// there is of `proc/self/{status,cgroup,mountinfo}`, `proc/cpuinfo` and `sys/fs/cgroup`.
    ///
    /// # Errors
    /// As [`Topology::from_sysfs`], and for files of `proc` or cgroups that hold something else.
    pub fn from_root(root: &Path) -> Result<Self, TopoError> {
        let mut parts = sysfs::read(&root.join("sys"))?;
        parts.source = root.display().to_string();
        read_allowed(root, &mut parts)?;
        parts.quota = cgroup::quota(root, &mut parts.notes)?;
        parts.model = model(&root.join("proc/cpuinfo"))?;
        parts.assemble()
    }
}

fn read_allowed(root: &Path, parts: &mut Parts) -> Result<(), TopoError> {
    let file = root.join("proc/self/status");
    let Some(text) = files::read(&file)? else {
        parts.notes.push("proc/self/status is not there; all online CPUs are taken as allowed".into());
        return Ok(());
    };
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
    Ok(())
}

/// The processor's name: x86 calls it `model name`, POWER `cpu`, Arm says none.
fn model(file: &Path) -> Result<Option<String>, TopoError> {
    let Some(text) = files::read(file)? else { return Ok(None) };
    let named = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        matches!(key.trim(), "model name" | "cpu").then(|| value.trim().to_owned())
    });
    Ok(named.filter(|name| !name.is_empty()))
}
