//! Sysfs: a machine from its /sys, this one's or a captured copy.
//!
//! Model.   `online` says which CPUs there are. Each of them lists the CPUs of its core and of its
//!          package, and the caches it uses; nodes list theirs. Lists must agree: a CPU's list is
//!          compared with that of the first CPU that named it, as text, and parsed only if the
//!          texts differ. What a real kernel leaves out is assumed and noted; what it always
//!          writes and is not there is an error.
//! Number.  8192 CPUs: about 70 000 small files and 4096 parsed lists of cores; 0.6 s with warm
//!          caches on two shared virtual CPUs, opt-level 2.
//! Source.  Linux Documentation/ABI/stable/sysfs-devices-system-cpu, drivers/base/topology.c,
//!          drivers/base/cacheinfo.c, drivers/base/node.c.

use crate::assemble::{Parts, core};
use crate::files::{self, SetText};
use crate::{Node, TopoError, Topology};
use caches::Caches;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use warmcore_terms::{CpuId, CpuSet, NodeId};

mod caches;
#[cfg(test)]
mod tests;

const CORE_FILES: [&str; 4] = ["core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings"];
const PACKAGE_FILES: [&str; 4] = ["package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings"];

impl Topology {
    /// Reads a /sys tree: the directory that holds `devices/system/cpu`, or one that holds `sys/`.
    ///
    /// # Errors
    /// What every kernel writes and is not there, what cannot be read or understood, and lists
    /// that exclude each other. The error names the file.
    pub fn from_sysfs(root: &Path) -> Result<Self, TopoError> {
        read(root)?.assemble()
    }
}

/// Reads the tree; `allowed` and `quota` are not in it.
pub(crate) fn read(root: &Path) -> Result<Parts, TopoError> {
    let system = ["devices/system", "sys/devices/system"].map(|dir| root.join(dir));
    let system = system.iter().find(|s| s.join("cpu").is_dir()).ok_or_else(|| {
        TopoError::missing(root.join("devices/system/cpu"), "is no directory here, nor below sys/")
            .or_else("give the directory of a /sys tree: the one that contains devices/")
    })?;
    let mut tree = Tree { cpus: system.join("cpu"), online: CpuSet::new(), notes: Vec::new() };
    let mut parts = Parts { source: root.display().to_string(), ..Parts::default() };
    tree.read_online(&mut parts)?;
    let cores = tree.read_cores()?;
    parts.sockets = tree.read_sockets(cores.len())?;
    parts.nodes = tree.read_nodes(&system.join("node"))?;
    let caches = Caches::read(&tree.cpus, &tree.online)?;
    parts.llcs = caches.llcs(&mut tree.notes)?;
    let of_level = |set: &CpuSet, level| set.first().and_then(|cpu| caches.size_kib(cpu, level));
    parts.cores = cores
        .into_iter()
        .map(|set| {
            let (l1d, l2) = (of_level(&set, 1), of_level(&set, 2));
            core(set, l1d, l2)
        })
        .collect();
    parts.line_bytes = caches.line_bytes.unwrap_or_else(|| {
        tree.notes.push("no cache says how long its line is; assumed 64 bytes".into());
        64
    });
    parts.online = tree.online;
    parts.notes = tree.notes;
    Ok(parts)
}

/// What the steps share.
struct Tree {
    /// `devices/system/cpu`
    cpus: PathBuf,
    online: CpuSet,
    notes: Vec<String>,
}

impl Tree {
    fn read_online(&mut self, parts: &mut Parts) -> Result<(), TopoError> {
        let file = self.cpus.join("online");
        self.online = files::list(&file, &files::need(&file, "the online CPUs, like 0-7")?)?;
        if self.online.is_empty() {
            return Err(TopoError::malformed(file, "is empty; expected the online CPUs, like 0-7"));
        }
        let online = &self.online;
        parts.possible = self.optional("possible")?.unwrap_or_else(|| {
            self.notes.push("`possible` is not there; taken as the online CPUs".into());
            self.online.clone()
        });
        if !online.is_subset(&parts.possible) {
            let beyond = online.difference(&parts.possible);
            let fact = format!("lists {}, without CPUs {beyond} that `online` lists", parts.possible);
            return Err(TopoError::contradiction(self.cpus.join("possible"), fact));
        }
        if let Some(offline) = self.optional("offline")? {
            // The file may also name numbers beyond `possible`, which the firmware had and the
            // kernel was told to leave out (drivers/base/cpu.c, print_cpus_offline).
            let wrong = offline.intersection(online);
            if !wrong.is_empty() {
                let fact = format!("lists CPUs {wrong}, and so does `online`");
                return Err(TopoError::contradiction(self.cpus.join("offline"), fact));
            }
            let lost = parts.possible.difference(&online.union(&offline));
            if !lost.is_empty() {
                let fact = format!("lists CPUs {lost}, which are neither in `online` nor in `offline`");
                return Err(TopoError::contradiction(self.cpus.join("possible"), fact));
            }
        }
        parts.isolated = self.optional("isolated")?.unwrap_or_default();
        parts.nohz_full = self.optional("nohz_full")?.unwrap_or_default();
        Ok(())
    }

    /// A list that older kernels do not have. Some print an unset mask as `(null)`.
    fn optional(&self, name: &str) -> Result<Option<CpuSet>, TopoError> {
        let file = self.cpus.join(name);
        match files::read(&file)? {
            Some(text) if text == "(null)" => Ok(None),
            Some(text) => files::list(&file, &text).map(Some),
            None => Ok(None),
        }
    }

    fn read_cores(&mut self) -> Result<Vec<CpuSet>, TopoError> {
        if let Some(cores) = self.groups(&CORE_FILES)? {
            return Ok(cores);
        }
        self.notes.push("no CPU lists the CPUs of its core; each is taken for a core".into());
        Ok(self.online.iter().map(|cpu| CpuSet::from_iter([cpu])).collect())
    }

    fn read_sockets(&mut self, cores: usize) -> Result<Vec<CpuSet>, TopoError> {
        if let Some(sockets) = self.groups(&PACKAGE_FILES)? {
            // Arm without a package in its firmware tables: id -1, and each core its own package.
            let unknown = sockets.len() > 1
                && sockets.len() >= cores
                && sockets.iter().try_fold(true, |all, s| {
                    Ok(all && s.first().map_or(Ok(None), |cpu| self.package_id(cpu))? == Some(-1))
                })?;
            if !unknown {
                return Ok(sockets);
            }
            self.notes.push("the firmware names no package (id -1); taken as one socket".into());
            return Ok(vec![self.online.clone()]);
        }
        let mut by_id = BTreeMap::<_, CpuSet>::new();
        for cpu in self.online.iter() {
            by_id.entry(self.package_id(cpu)?).or_default().insert(cpu);
        }
        self.notes.push("no CPU lists the CPUs of its package; grouped by physical_package_id".into());
        Ok(by_id.into_values().collect())
    }

    fn package_id(&self, cpu: CpuId) -> Result<Option<i64>, TopoError> {
        let file = files::cpu_dir(&self.cpus, cpu).join("topology/physical_package_id");
        let number = |text: String| {
            text.parse().map_err(|_| {
                TopoError::malformed(&file, format!("`{text}` is no package number; expected one like 0"))
            })
        };
        files::read(&file)?.map(number).transpose()
    }

    /// The groups that the CPUs list in the first of `names` that they have; `None` if none has any.
    fn groups(&self, names: &[&str]) -> Result<Option<Vec<CpuSet>>, TopoError> {
        let mut groups: Vec<(CpuSet, SetText)> = Vec::new();
        let mut group_of = BTreeMap::<CpuId, usize>::new();
        let mut without = None;
        for cpu in self.online.iter() {
            let dir = files::cpu_dir(&self.cpus, cpu);
            let Some(own) = SetText::find(&dir.join("topology"), names)? else {
                if !dir.is_dir() {
                    return Err(TopoError::missing(dir, "is not there, though `online` lists the CPU"));
                }
                without.get_or_insert(dir);
                continue;
            };
            let known = group_of.get(&cpu).map(|&g| &groups[g]);
            if known.is_some_and(|(_, first)| first.text == own.text) {
                continue;
            }
            if own.text.is_empty() {
                return Err(TopoError::malformed(own.file, format!("is empty; {cpu} at least is in it")));
            }
            let set = own.parse(&self.online)?;
            if !set.contains(cpu) {
                let fact = format!("lists {} without {cpu}, whose list it is", own.text);
                return Err(TopoError::contradiction(own.file, fact));
            }
            let other = known.or_else(|| set.iter().find_map(|c| group_of.get(&c)).map(|&g| &groups[g]));
            match other {
                Some((other, _)) if *other == set => {}
                Some((other, first)) => {
                    let fact = format!("lists {set}, but {} lists {other}", first.file.display());
                    return Err(TopoError::contradiction(own.file, fact));
                }
                None => {
                    group_of.extend(set.iter().map(|c| (c, groups.len())));
                    groups.push((set, own));
                }
            }
        }
        match (without, groups.is_empty()) {
            (Some(dir), false) => {
                let fact = "is not there, though other CPUs have it; expected a list like 0-1";
                Err(TopoError::missing(dir.join("topology").join(names[0]), fact))
            }
            (_, true) => Ok(None),
            (None, false) => Ok(Some(groups.into_iter().map(|(set, _)| set).collect())),
        }
    }

    fn read_nodes(&mut self, dir: &Path) -> Result<Vec<Node>, TopoError> {
        let Some(numbers) = files::numbered(dir, "node")? else {
            self.notes.push("no NUMA nodes are listed; taken as one node 0".into());
            return Ok(vec![Node { id: NodeId(0), cpus: self.online.clone(), distances: Vec::new() }]);
        };
        let mut left = self.online.clone();
        let mut nodes = Vec::new();
        for &n in &numbers {
            let home = dir.join(format!("node{n}"));
            let own = SetText::find(&home, &["cpulist", "cpumap"])?.ok_or_else(|| {
                TopoError::missing(home.join("cpulist"), "is not there; expected a list of CPUs like 0-7")
            })?;
            let cpus = own.parse(&self.online)?;
            if !cpus.is_subset(&left) {
                let twice = cpus.difference(&left);
                let fact = format!("lists CPUs {twice}, which another node lists too");
                return Err(TopoError::contradiction(own.file, fact));
            }
            left = left.difference(&cpus);
            nodes.push(Node { id: NodeId(n), cpus, distances: distances(&home, &numbers)? });
        }
        if !left.is_empty() {
            let fact = format!("CPUs {left} are online and in the cpulist of no node");
            return Err(TopoError::contradiction(dir, fact));
        }
        if nodes.iter().any(|n| n.distances.is_empty()) {
            self.notes.push("not every node gives its distances; none are used".into());
            nodes.iter_mut().for_each(|n| n.distances.clear());
        }
        Ok(nodes)
    }
}

/// A node's distances to `numbers`, in that order; empty if it gives none.
fn distances(home: &Path, numbers: &[u32]) -> Result<Vec<(NodeId, u32)>, TopoError> {
    let file = home.join("distance");
    let Some(text) = files::read(&file)? else { return Ok(Vec::new()) };
    let values = text.split_whitespace().map(|t| {
        t.parse::<u32>().map_err(|_| {
            TopoError::malformed(&file, format!("`{t}` is no distance; expected numbers like 10 32"))
        })
    });
    let values = values.collect::<Result<Vec<_>, _>>()?;
    if values.len() != numbers.len() {
        let fact = format!("has {} distances, but there are {} nodes", values.len(), numbers.len());
        return Err(TopoError::contradiction(file, fact));
    }
    Ok(numbers.iter().map(|&n| NodeId(n)).zip(values).collect())
}
