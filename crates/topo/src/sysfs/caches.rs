//! Reads from `cpuN/cache/index*` which CPUs share which caches.
//!
//! The first CPU of a cache (its leader) is read in full: level, type, size, shared list. Every other CPU of that list
//! must list the same CPUs. If its text at the same index equals the leader's, only that file is read, and the leader's
//! level applies. Instruction caches are skipped. The LLC of a CPU is its cache of the highest level, from 2 up, whose
//! list is not empty; if there is none, or only a private L2, `assemble` assumes one.
//!
//! 8192 CPUs × 3 caches: 24 576 shared lists are read, and the other files of each cache once.
//!
//! # Source
//! drivers/base/cacheinfo.c. If the firmware does not list the CPUs that share a cache, the kernel prints an
//! empty `shared_cpu_list` on Arm, and a mask of zeros on IA-64.

use crate::Llc;
use crate::TopoError;
use crate::assemble::llc;
use crate::files::{self, Files, SetText};
use std::collections::BTreeMap;
use std::path::Path;
use warmcore_types::{CpuId, CpuSet};

/// Every cache that holds data, and which CPUs use it.
#[derive(Default)]
pub(super) struct Caches {
    all: Vec<Cache>,
    /// The caches that each CPU uses, as indices into `all`.
    of: BTreeMap<CpuId, Vec<usize>>,
    pub line_bytes: Option<u32>,
}

struct Cache {
    level: u8,
    size_kib: Option<u32>,
    cpus: CpuSet,
    /// Whether the list was empty: then it is unknown which CPUs share the cache.
    unknown: bool,
    index: u32,
    shared: SetText,
}

impl Caches {
    pub fn read(files: &Files, cpus: &Path, online: &CpuSet) -> Result<Self, TopoError> {
        let mut caches = Self::default();
        for cpu in online.iter() {
            caches.read_cpu(files, &files::cpu_dir(cpus, cpu).join("cache"), cpu, online)?;
        }
        Ok(caches)
    }

    /// The size of the cache of one level that a CPU uses.
    pub fn size_kib(&self, cpu: CpuId, level: u8) -> Option<u32> {
        self.of_level(cpu, level)?.size_kib
    }

    fn of_level(&self, cpu: CpuId, level: u8) -> Option<&Cache> {
        self.of.get(&cpu)?.iter().map(|&k| &self.all[k]).find(|c| c.level == level)
    }

    fn read_cpu(&mut self, files: &Files, dir: &Path, cpu: CpuId, online: &CpuSet) -> Result<(), TopoError> {
        // The caches whose leaders list this CPU, and that this CPU's own files have not confirmed yet.
        let mut open = self.of.get(&cpu).cloned().unwrap_or_default();
        for index in files.numbered(dir, "index")? {
            let index_dir = dir.join(format!("index{index}"));
            let mut shared = None;
            if let Some(p) = open.iter().position(|&k| self.all[k].index == index) {
                let own = shared_list(files, &index_dir)?;
                if own.text == self.all[open[p]].shared.text {
                    open.swap_remove(p);
                    continue;
                }
                shared = Some(own);
            }
            let kind = files.need(&index_dir.join("type"), "Data, Instruction or Unified")?;
            match kind.as_str() {
                "Instruction" => continue,
                "Data" | "Unified" => {}
                _ => {
                    let fact = format!("says `{kind}`; expected Data, Instruction or Unified");
                    return Err(TopoError::malformed(index_dir.join("type"), fact));
                }
            }
            let level = level(files, &index_dir)?;
            let shared = shared.map_or_else(|| shared_list(files, &index_dir), Ok)?;
            let mut set = shared.parse(online)?;
            let unknown = shared.is_empty_set();
            if unknown {
                set.insert(cpu);
            } else if !set.contains(cpu) {
                let fact = format!("lists {} without {cpu}, whose cache it is", shared.text);
                return Err(TopoError::contradiction(shared.file, fact));
            }
            // This CPU lists the cache at another index than the leader does.
            if let Some(p) = open.iter().position(|&k| self.all[k].level == level) {
                let leader = &self.all[open[p]];
                if unknown || leader.cpus != set {
                    return Err(disagree(shared, level, leader));
                }
                open.swap_remove(p);
                continue;
            }
            // A new cache. All CPUs before this one have been read, and none of them listed it.
            if let Some(other) = set.iter().find_map(|c| self.of_level(c, level)) {
                return Err(disagree(shared, level, other));
            }
            if let Some(before) = set.first().filter(|&c| c < cpu) {
                let fact = format!(
                    "lists {}, but {before} has no cache of level {level} that lists {cpu}",
                    shared.text
                );
                return Err(TopoError::contradiction(shared.file, fact));
            }
            if self.line_bytes.is_none() {
                self.line_bytes = line_bytes(files, &index_dir.join("coherency_line_size"))?;
            }
            for c in set.iter() {
                self.of.entry(c).or_default().push(self.all.len());
            }
            let size_kib = size_kib(files, &index_dir.join("size"))?;
            self.all.push(Cache { level, size_kib, cpus: set, unknown, index, shared });
        }
        match open.first().map(|&k| &self.all[k]) {
            None => Ok(()),
            Some(cache) => {
                let fact = format!(
                    "has no cache of level {}, but {} lists {cpu}",
                    cache.level,
                    cache.shared.file.display()
                );
                Err(TopoError::contradiction(dir, fact))
            }
        }
    }

    /// The caches of the highest level that each CPU lists, from level 2 up.
    pub fn llcs(&self, notes: &mut Vec<String>) -> Result<Vec<Llc>, TopoError> {
        if let Some(level) = self.all.iter().filter(|c| c.unknown).map(|c| c.level).max() {
            notes.push(format!("caches up to level {level} do not say which CPUs share them"));
        }
        let highest = |cpu: CpuId| {
            let own = self.of.get(&cpu)?.iter().copied().filter(|&k| !self.all[k].unknown);
            own.filter(|&k| self.all[k].level > 1).max_by_key(|&k| self.all[k].level)
        };
        let mut llcs = Vec::new();
        for (k, cache) in self.all.iter().enumerate() {
            if cache.cpus.first().and_then(highest) != Some(k) {
                continue;
            }
            if let Some(other) = cache.cpus.iter().find(|&c| highest(c) != Some(k)) {
                let fact = format!(
                    "lists {}, whose last level it is, but {other} has a level above {}",
                    cache.cpus, cache.level
                );
                return Err(TopoError::contradiction(&cache.shared.file, fact));
            }
            llcs.push(llc(cache.cpus.clone(), cache.level, cache.size_kib));
        }
        Ok(llcs)
    }
}

fn disagree(own: SetText, level: u8, other: &Cache) -> TopoError {
    let fact = format!(
        "lists `{}` for level {level}, but {} lists `{}`",
        own.text,
        other.shared.file.display(),
        other.shared.text
    );
    TopoError::contradiction(own.file, fact)
}

fn shared_list(files: &Files, index_dir: &Path) -> Result<SetText, TopoError> {
    files.set(index_dir, &["shared_cpu_list", "shared_cpu_map"])?.ok_or_else(|| {
        TopoError::missing(
            index_dir.join("shared_cpu_list"),
            "is not there; expected a list of CPUs like 0-7",
        )
    })
}

fn level(files: &Files, index_dir: &Path) -> Result<u8, TopoError> {
    let file = index_dir.join("level");
    let text = files.need(&file, "a cache level, 1 to 9")?;
    let level = text.parse().ok().filter(|l| (1..=9).contains(l));
    level.ok_or_else(|| TopoError::malformed(file, format!("says `{text}`; expected a cache level, 1 to 9")))
}

/// `32K`, `1M`; a virtual machine's `0K` is unknown.
fn size_kib(files: &Files, file: &Path) -> Result<Option<u32>, TopoError> {
    let Some(text) = files.read(file)? else { return Ok(None) };
    let (number, kib) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1),
        Some(b'M') => (&text[..text.len() - 1], 1024),
        _ => (text.as_str(), 0),
    };
    match number.parse::<u32>().ok().filter(|_| kib > 0).and_then(|n| n.checked_mul(kib)) {
        Some(size) => Ok(Some(size).filter(|&s| s > 0)),
        None => Err(TopoError::malformed(file, format!("says `{text}`; expected a size like 32K or 1M"))),
    }
}

fn line_bytes(files: &Files, file: &Path) -> Result<Option<u32>, TopoError> {
    let Some(text) = files.read(file)? else { return Ok(None) };
    let bytes = text.parse().ok().filter(|b: &u32| b.is_power_of_two() && (8..=4096).contains(b));
    match bytes {
        Some(bytes) => Ok(Some(bytes)),
        None if text == "0" => Ok(None),
        None => Err(TopoError::malformed(file, format!("says `{text}`; expected bytes of a line, like 64"))),
    }
}
