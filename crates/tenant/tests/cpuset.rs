//! A container whose CPUs change while its threads run. The test has a process of its own and needs a cgroup that it
//! may write; without one it is skipped.
#![cfg(target_os = "linux")]

use bytemuck::Zeroable;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::*};
use warmcore_percpu::{LocalU64, PerCid, field};
use warmcore_sys::affinity;
use warmcore_tenant::Tenant;
use warmcore_types::CpuSet;

#[derive(Zeroable)]
struct Numbers {
    n: LocalU64,
}

/// A cgroup that this process belongs to until the value is dropped.
struct Cpuset {
    dir: PathBuf,
    /// The cgroup that the process returns to.
    parent: PathBuf,
}

impl Cpuset {
    /// Version 1 has a tree for cpusets alone, version 2 one for all controllers.
    fn enter() -> std::io::Result<Self> {
        let name = format!("warmcore-test-{}", std::process::id());
        let (v1, v2) = (Path::new("/sys/fs/cgroup/cpuset"), Path::new("/sys/fs/cgroup"));
        let parent = if v1.is_dir() {
            v1
        } else {
            fs::write(v2.join("cgroup.subtree_control"), "+cpuset")?;
            v2
        };
        let dir = parent.join(name);
        fs::create_dir(&dir)?;
        let cpuset = Self { dir, parent: parent.to_owned() };
        if v1.is_dir() {
            fs::write(cpuset.dir.join("cpuset.mems"), fs::read(v1.join("cpuset.mems"))?)?;
        }
        cpuset.set(&affinity::allowed()?)?;
        fs::write(cpuset.dir.join("cgroup.procs"), std::process::id().to_string())?;
        Ok(cpuset)
    }

    fn set(&self, cpus: &CpuSet) -> std::io::Result<()> {
        fs::write(self.dir.join("cpuset.cpus"), cpus.to_string())
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        let _ = fs::write(self.parent.join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(&self.dir);
    }
}

#[test]
fn a_cpuset_may_shrink_grow_and_move_while_threads_run() {
    let all = affinity::allowed().unwrap();
    let cpuset = match Cpuset::enter() {
        Ok(cpuset) if all.len() > 1 => cpuset,
        Ok(_) => return println!("skipped: there is one CPU"),
        Err(error) => return println!("skipped: no cgroup to write: {error}"),
    };
    let tenant = Tenant::builder().build();
    let data: PerCid<Numbers> = tenant.data();
    let done = AtomicBool::new(false);
    let added = std::thread::scope(|scope| {
        let work = |_| {
            scope.spawn(|| {
                let mut added = 0;
                while !done.load(Acquire) {
                    data.owned_slot(&tenant.enter()).add(field!(Numbers, n), 1);
                    added += 1;
                }
                added
            })
        };
        let threads: Vec<_> = (0..4).map(work).collect();
        for round in 0..20 {
            let one = all.iter().nth(round % all.len()).into_iter().collect();
            cpuset.set(if round % 3 == 2 { &all } else { &one }).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        done.store(true, Release);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
    });
    assert_eq!(data.sum(field!(Numbers, n)), added);
    let stats = tenant.stats();
    assert!(stats.nr_cpus_allowed as usize <= all.len() && stats.allocated <= 4, "{stats:?}");
    println!("{added} entries: {stats:?}");
}
