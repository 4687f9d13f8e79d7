//! Writes a model as the /sys tree that a kernel would have on such a machine.
//!
//! This is the inverse of the reader in `sysfs.rs`, for tests that write a machine, read the tree, and compare the
//! result with the machine. Each CPU gets its lists in files of the newer or the older names, and its cache directories
//! in an order on which the reader must not rely.

use crate::Topology;
use std::fs;
use std::path::Path;
use warmcore_types::CpuSet;

/// Variations between kernels.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Style {
    /// The lists are named `thread_siblings_list` and `core_siblings_list`, as before Linux 5.3.
    pub old_names: bool,
    /// index0 is the last level, and the highest index is the L1 data cache.
    pub reversed: bool,
    /// The tree has `shared_cpu_map` and no `shared_cpu_list`.
    pub masks: bool,
}

/// An empty directory, in memory if the system has /dev/shm: a tree has tens of thousands of files, and a disk takes up
/// to a millisecond for each.
pub(crate) fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Writes `devices/system` below `root`.
pub(crate) fn write(t: &Topology, root: &Path, style: Style) {
    let system = root.join("devices/system");
    let put = |path: String, text: String| {
        let path = system.join(path);
        let text = text + "\n";
        if fs::write(&path, &text).is_err() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &text).unwrap();
        }
    };
    let list = CpuSet::to_string;
    put("cpu/online".into(), list(&t.online()));
    put("cpu/possible".into(), list(&t.possible));
    put("cpu/offline".into(), list(&t.offline));
    put("cpu/isolated".into(), list(&t.isolated));
    put("cpu/nohz_full".into(), if t.nohz_full.is_empty() { "(null)".into() } else { list(&t.nohz_full) });
    for cpu in t.offline.iter() {
        put(format!("cpu/cpu{}/online", cpu.0), "0".into());
    }
    for node in &t.nodes {
        put(format!("node/node{}/cpulist", node.id.0), list(&node.cpus));
        let distances = node.distances.iter().map(|(_, d)| d.to_string()).collect::<Vec<_>>();
        if !distances.is_empty() {
            put(format!("node/node{}/distance", node.id.0), distances.join(" "));
        }
    }
    let (core_list, package_list) = match style.old_names {
        true => ("thread_siblings_list", "core_siblings_list"),
        false => ("core_cpus_list", "package_cpus_list"),
    };
    let core_lists: Vec<String> = t.cores.iter().map(|c| list(&c.cpus)).collect();
    let socket_lists: Vec<String> = t.sockets.iter().map(|s| list(&s.cpus)).collect();
    let shared = |set: &CpuSet| match style.masks {
        true => ("shared_cpu_map", mask(set)),
        false => ("shared_cpu_list", list(set)),
    };
    let core_shared: Vec<_> = t.cores.iter().map(|c| shared(&c.cpus)).collect();
    let llc_shared: Vec<_> = t.llcs.iter().map(|l| shared(&l.cpus)).collect();
    for cpu in &t.cpus {
        let dir = format!("cpu/cpu{}", cpu.id.0);
        let core = &t.cores[cpu.core.index()];
        let llc = &t.llcs[cpu.llc.index()];
        put(format!("{dir}/topology/{core_list}"), core_lists[cpu.core.index()].clone());
        put(format!("{dir}/topology/{package_list}"), socket_lists[cpu.socket.index()].clone());
        put(format!("{dir}/topology/physical_package_id"), cpu.socket.0.to_string());
        let own = &core_shared[cpu.core.index()];
        let mut caches = vec![(1, "Data", core.l1d_kib, own), (1, "Instruction", Some(32), own)];
        if llc.level != 2 {
            caches.push((2, "Unified", core.l2_kib, own));
        }
        if llc.level > 0 {
            caches.push((llc.level, "Unified", llc.size_kib, &llc_shared[cpu.llc.index()]));
        }
        if style.reversed {
            caches.reverse();
        }
        for (index, (level, kind, size, (file, text))) in caches.into_iter().enumerate() {
            let dir = format!("{dir}/cache/index{index}");
            put(format!("{dir}/level"), level.to_string());
            put(format!("{dir}/type"), kind.into());
            put(format!("{dir}/{file}"), text.clone());
            put(format!("{dir}/coherency_line_size"), t.line_bytes.to_string());
            if let Some(kib) = size {
                let whole = kib % 1024 == 0 && style.reversed;
                put(
                    format!("{dir}/size"),
                    if whole { format!("{}M", kib / 1024) } else { format!("{kib}K") },
                );
            }
        }
    }
}

/// The kernel's mask format.
fn mask(set: &CpuSet) -> String {
    let words = set.words().iter().rev().map(|w| format!("{:08x},{:08x}", w >> 32, w & 0xffff_ffff));
    words.collect::<Vec<_>>().join(",")
}

/// The same machine without the fields that depend on its source.
pub(crate) fn facts(t: Topology) -> Topology {
    Topology { source: String::new(), model: None, notes: Vec::new(), ..t }
}
