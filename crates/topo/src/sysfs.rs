//! Machines from a /sys tree: the running machine's, or a captured copy.
//!
//! A CPU is online if `online` lists it; or, since a container may replace that file, if `possible` lists it, `offline`
//! does not, and it has a directory. Each CPU lists the CPUs of its core and of its package, and the caches that it
//! uses; nodes list their CPUs. Lists must agree: a CPU's list is compared as text with that of the first CPU that
//! named it, and parsed only if the texts differ. If some kernels or firmware are known to omit a fact, or to list a
//! CPU in two nodes, the reader assumes a value and adds a note. If a file is missing that every kernel writes, that is
//! an error.
//!
//! # Cost
//! 8192 CPUs: about 70 000 small files and 4096 parsed lists of cores; 0.6 s with warm caches on two shared virtual
//! CPUs, opt-level 2.
//!
//! # Source
//! Linux Documentation/ABI/stable/sysfs-devices-system-cpu, drivers/base/topology.c, drivers/base/cacheinfo.c,
//! drivers/base/node.c.

use crate::assemble::{Parts, assign_remaining, core};
use crate::files::{self, Files, SetText};
use crate::{CPU_MAX, Node, TopoError, Topology};
use caches::Caches;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use warmcore_types::{CpuId, CpuSet, NodeId};

mod caches;
#[cfg(test)]
mod tests;

const CORE_FILES: [&str; 4] = ["core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings"];
const PACKAGE_FILES: [&str; 4] = ["package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings"];

impl Topology {
    /// Reads a /sys tree: the directory that holds `devices/system/cpu`, or one that holds `sys/`; or a text file
    /// with such a tree in it, as [`Topology::capture`] writes it.
    ///
    /// # Errors
    /// Returns an error if a file is missing that every kernel writes, if a file cannot be read or parsed, or if
    /// lists contradict each other. The error names the file.
    pub fn from_sysfs(root: &Path) -> Result<Self, TopoError> {
        read(&Files::below(root)?, root)?.assemble()
    }
}

/// Reads the tree. `allowed` and `quota` are not set, because they come from other files.
pub(crate) fn read(files: &Files, root: &Path) -> Result<Parts, TopoError> {
    let system = ["devices/system", "sys/devices/system"].map(|dir| root.join(dir));
    let system = system.iter().find(|s| files.is_dir(&s.join("cpu"))).ok_or_else(|| {
        TopoError::missing(root.join("devices/system/cpu"), "is no directory here, nor below sys/")
            .or_else("give the directory of a /sys tree: the one that contains devices/")
    })?;
    let mut tree = Tree { files, cpus: system.join("cpu"), online: CpuSet::new(), notes: Vec::new() };
    let mut parts = Parts { source: root.display().to_string(), ..Parts::default() };
    tree.read_online(&mut parts)?;
    let cores = tree.read_cores()?;
    parts.sockets = tree.read_sockets(cores.len())?;
    parts.nodes = tree.read_nodes(&system.join("node"))?;
    let caches = Caches::read(files, &tree.cpus, &tree.online)?;
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

/// The state that the steps of reading share.
struct Tree<'a> {
    files: &'a Files,
    /// `devices/system/cpu`
    cpus: PathBuf,
    online: CpuSet,
    notes: Vec<String>,
}

impl Tree<'_> {
    fn read_online(&mut self, parts: &mut Parts) -> Result<(), TopoError> {
        let file = self.cpus.join("online");
        self.online = match self.files.read(&file)? {
            Some(text) => files::list(&file, &text)?,
            None => self.online_by_directory(&file)?,
        };
        if self.online.is_empty() {
            return Err(TopoError::malformed(file, "is empty; expected the online CPUs, like 0-7"));
        }
        let possible = self.optional("possible")?;
        let offline = self.optional("offline")?;
        if let (Some(possible), Some(offline)) = (&possible, &offline) {
            self.add_hidden(possible, offline);
        }
        let online = &self.online;
        parts.possible = possible.unwrap_or_else(|| {
            self.notes.push("`possible` is not there; taken as the online CPUs".into());
            self.online.clone()
        });
        if !online.is_subset(&parts.possible) {
            let beyond = online.difference(&parts.possible);
            let fact = format!("lists {}, without CPUs {beyond} that `online` lists", parts.possible);
            return Err(TopoError::contradiction(self.cpus.join("possible"), fact));
        }
        // `offline` may also name CPUs beyond `possible`, which the firmware had and the kernel was told to leave out
        // (drivers/base/cpu.c, print_cpus_offline).
        let wrong = offline.unwrap_or_default().intersection(online);
        if !wrong.is_empty() {
            let fact = format!("lists CPUs {wrong}, and so does `online`");
            return Err(TopoError::contradiction(self.cpus.join("offline"), fact));
        }
        parts.isolated = self.optional("isolated")?.unwrap_or_default();
        parts.nohz_full = self.optional("nohz_full")?.unwrap_or_default();
        Ok(())
    }

    /// The online CPUs by their directories. Kernels before 2.6.27 have no `online` but a file in each CPU's directory,
    /// which CPU 0 may lack because it stays online.
    fn online_by_directory(&mut self, file: &Path) -> Result<CpuSet, TopoError> {
        let mut online = CpuSet::new();
        let numbers = self.files.numbered(&self.cpus, "cpu")?;
        for n in numbers.into_iter().filter(|&n| n < CPU_MAX) {
            let says = self.files.read(&files::cpu_dir(&self.cpus, CpuId(n)).join("online"))?;
            if says.is_none_or(|text| text != "0") {
                online.insert(CpuId(n));
            }
        }
        if online.is_empty() {
            let fact = "is not there, and no directory like cpu0 either; expected the online CPUs, like 0-7";
            return Err(TopoError::missing(file, fact));
        }
        self.notes
            .push(format!("`online` is not there; CPUs {online} have directories and are taken for it"));
        Ok(online)
    }

    /// Adds the CPUs that are possible, not offline and have a directory to the online ones.
    ///
    /// lxcfs (LXC, LXD, Incus, Proxmox) replaces the file `online` by the container's number of CPUs, counted from 0,
    /// although the container may be allowed other CPUs. The other files in that directory are the kernel's.
    fn add_hidden(&mut self, possible: &CpuSet, offline: &CpuSet) {
        let is_there = |cpu: &CpuId| self.files.is_dir(&files::cpu_dir(&self.cpus, *cpu));
        let hidden = possible.difference(&offline.union(&self.online));
        let shown: CpuSet = hidden.iter().filter(is_there).collect();
        if !shown.is_empty() {
            self.notes.push(format!(
                "`online` lists {} alone, and CPUs {shown} are possible and not offline: a container's view; taken \
                 as online",
                self.online
            ));
        }
        self.online.extend(shown.iter());
    }

    /// Reads a list that older kernels do not have. Some kernels print an empty one as `(null)`, which counts as a
    /// missing file.
    fn optional(&self, name: &str) -> Result<Option<CpuSet>, TopoError> {
        let file = self.cpus.join(name);
        let text = self.files.read(&file)?.filter(|text| text != "(null)");
        text.map(|text| files::list(&file, &text)).transpose()
    }

    fn read_cores(&mut self) -> Result<Vec<CpuSet>, TopoError> {
        if let Some(groups) = self.groups(&CORE_FILES)? {
            let mut cores = Vec::new();
            for group in &groups {
                cores.extend(self.split_by_core_id(group)?);
            }
            if cores.len() > groups.len() {
                self.notes.push(format!(
                    "{} groups of siblings have a core id for each CPU (compute units of AMD Bulldozer and its \
                     kin); each id counts as a core",
                    cores.len() - groups.len()
                ));
            }
            return Ok(cores);
        }
        self.notes.push("no CPU lists the CPUs of its core; each is taken for a core".into());
        Ok(self.online.iter().map(|cpu| CpuSet::from_iter([cpu])).collect())
    }

    /// Splits a group of siblings by core id, if each of its CPUs has one.
    ///
    /// Linux lists the two cores of an AMD compute unit as siblings, each with a core id of its own. SMT threads of one
    /// core have the same core id.
    fn split_by_core_id(&self, group: &CpuSet) -> Result<Vec<CpuSet>, TopoError> {
        let mut by_id = BTreeMap::<_, CpuSet>::new();
        for cpu in group.iter().filter(|_| group.len() > 1) {
            let file = files::cpu_dir(&self.cpus, cpu).join("topology/core_id");
            let Some(id) = self.files.read(&file)? else { break };
            by_id.entry(id).or_default().insert(cpu);
        }
        let whole = by_id.values().map(CpuSet::len).sum::<usize>() == group.len();
        Ok(if whole { by_id.into_values().collect() } else { vec![group.clone()] })
    }

    fn read_sockets(&mut self, cores: usize) -> Result<Vec<CpuSet>, TopoError> {
        if let Some(sockets) = self.groups(&PACKAGE_FILES)? {
            // An Arm machine without packages in its firmware tables has id -1, and each core is its own package.
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
        self.files.read(&file)?.map(number).transpose()
    }

    /// The groups that the CPUs list, each in the first of its files `names` that exists; `None` if no CPU has such a
    /// file. An error if only some CPUs have one, or if the lists disagree.
    fn groups(&self, names: &[&str]) -> Result<Option<Vec<CpuSet>>, TopoError> {
        let mut groups: Vec<(CpuSet, SetText)> = Vec::new();
        let mut group_of = BTreeMap::<CpuId, usize>::new();
        let mut without = None;
        for cpu in self.online.iter() {
            let dir = files::cpu_dir(&self.cpus, cpu);
            let Some(own) = self.files.set(&dir.join("topology"), names)? else {
                if !self.files.is_dir(&dir) {
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
        let numbers = self.files.numbered(dir, "node")?;
        if numbers.is_empty() {
            self.notes.push("no NUMA nodes are listed; taken as one node 0".into());
            return Ok(vec![Node { id: NodeId(0), cpus: self.online.clone(), distances: Vec::new() }]);
        }
        let mut left = self.online.clone();
        let mut nodes = Vec::new();
        for &n in &numbers {
            let node_dir = dir.join(format!("node{n}"));
            let own = self.files.set(&node_dir, &["cpulist", "cpumap"])?.ok_or_else(|| {
                TopoError::missing(node_dir.join("cpulist"), "is not there; expected a list of CPUs like 0-7")
            })?;
            let listed = own.parse(&self.online)?;
            let cpus = listed.intersection(&left);
            left = left.difference(&cpus);
            if cpus != listed {
                let twice = listed.difference(&cpus);
                self.notes.push(format!(
                    "node {n} lists CPUs {twice}, which a node before it lists too; they count for the first"
                ));
                // A node of which all CPUs are listed before is a copy made by the firmware, not a node of memory
                // without CPUs.
                if cpus.is_empty() {
                    continue;
                }
            }
            nodes.push(Node { id: NodeId(n), cpus, distances: distances(self.files, &node_dir, &numbers)? });
        }
        let mut named = BTreeMap::new();
        for cpu in left.iter() {
            let numbers = self.files.numbered(&files::cpu_dir(&self.cpus, cpu), "node")?;
            named.extend(numbers.first().map(|&n| (cpu, NodeId(n))));
        }
        assign_remaining(&left, &named, &mut nodes, &mut self.notes);
        let ids: Vec<NodeId> = nodes.iter().map(|n| n.id).collect();
        for node in &mut nodes {
            node.distances.retain(|(to, _)| ids.contains(to));
        }
        if nodes.iter().any(|n| n.distances.len() != ids.len()) {
            self.notes.push("not every node gives its distance to every node; none are used".into());
            nodes.iter_mut().for_each(|n| n.distances.clear());
        }
        Ok(nodes)
    }
}

/// A node's distances to `numbers`, in that order. Empty if the file has none, or not one for each of `numbers`:
/// the kernel prints a distance for each node that is online, and the directory of such a node may be missing.
fn distances(files: &Files, node_dir: &Path, numbers: &[u32]) -> Result<Vec<(NodeId, u32)>, TopoError> {
    let file = node_dir.join("distance");
    let Some(text) = files.read(&file)? else { return Ok(Vec::new()) };
    let values = text.split_whitespace().map(|t| {
        t.parse::<u32>().map_err(|_| {
            TopoError::malformed(&file, format!("`{t}` is no distance; expected numbers like 10 32"))
        })
    });
    let values = values.collect::<Result<Vec<_>, _>>()?;
    let ids = numbers.iter().map(|&n| NodeId(n));
    Ok(if values.len() == numbers.len() { ids.zip(values).collect() } else { Vec::new() })
}
