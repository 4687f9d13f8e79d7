//! Machines from the XML that `lstopo --of xml` writes, versions 2 and 3.
//!
//! Objects nest: a PU (a CPU) is within its core, caches and package, so each group is the PUs below an object. NUMA
//! nodes do not nest: a node is a memory child of the object whose CPUs use its memory, and the node's cpuset lists
//! these CPUs. If several nodes serve the same CPUs (HBM beside DRAM), the CPUs belong to the node that serves the
//! fewest, then to the one with the smallest number; the other nodes have the CPUs that are left to them, if any.
//!
//! Versions 2 and 3 differ in devices and in the place of the infos about the whole machine; this module reads
//! neither. Version 1 nests NUMA nodes and calls caches `Cache`: it is refused.
//!
//! A file may be hostile. Input that `lstopo` never writes, and whose parsing would take more time or memory than
//! its length suggests, is refused: entities, namespaces, many attributes, deep nesting. The file of a 128-CPU
//! machine has about 400 objects in 200 KiB.
//!
//! # Source
//! hwloc documentation, "Importing and exporting topologies from/to XML files"; output of lstopo 2.9.0; hwloc's NEWS
//! for the changes in 3.0.

use crate::assemble::{Parts, assign_remaining, core, llc};
use crate::files::{self, Files};
use crate::{CPU_MAX, Node, TopoError, Topology};
use roxmltree::{Document, Node as Element, ParsingOptions};
use std::collections::BTreeMap;
use std::path::Path;
use warmcore_types::{CpuId, CpuSet, NodeId};

#[cfg(test)]
mod tests;

impl Topology {
    /// Reads hwloc XML of version 2 or 3.
    ///
    /// CPUs that hwloc knew of and left out, because they were offline or not allowed to the process that wrote the
    /// file, are `offline` here.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not such XML, or has a version other than 2 and 3, or if objects
    /// contradict each other.
    pub fn from_hwloc(path: &Path) -> Result<Self, TopoError> {
        Reader { path }.parts(&Files::Folder.need(path, "hwloc XML")?)?.assemble()
    }
}

/// The most ancestors of a PU, which limits the search through them. hwloc's own trees are 20 deep at most.
const DEPTH_MAX: usize = 64;

/// The most attributes of an element: the parser compares each with all others. `lstopo` writes about 20.
const ATTRIBUTES_MAX: usize = 256;

/// The most elements and texts, of 100 bytes each while the file is read. A machine of 8192 CPUs has 150 000.
const XML_NODES_MAX: u32 = 1 << 21;

struct Reader<'p> {
    path: &'p Path,
}

/// A PU, and the elements among its ancestors that matter.
struct Pu<'a> {
    id: CpuId,
    core: Option<Element<'a, 'a>>,
    package: Option<Element<'a, 'a>>,
    /// The nodes that the PU is in, including nodes that are not listed.
    nodeset: Option<&'a str>,
    /// Level and element of the data caches, lowest level first.
    caches: Vec<(u8, Element<'a, 'a>)>,
}

impl Reader<'_> {
    fn parts(&self, text: &str) -> Result<Parts, TopoError> {
        self.refuse_hostile(text)?;
        // `lstopo` names a DTD and declares nothing in the file; declarations were refused above.
        let options =
            ParsingOptions { allow_dtd: true, nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
        let document = Document::parse_with_options(text, options)
            .map_err(|e| self.malformed(format!("is no XML: {e}")))?;
        let root = document.root_element();
        self.check_version(&root)?;
        let pus = objects(root).filter(|o| o.attribute("type") == Some("PU")).map(|pu| self.pu(pu));
        let mut pus = pus.collect::<Result<Vec<_>, _>>()?;
        pus.sort_by_key(|pu| pu.id);
        if let Some(twice) = pus.windows(2).find(|w| w[0].id == w[1].id) {
            return Err(self.contradiction(format!("has two PUs of os_index {}", twice[0].id.0)));
        }
        let online: CpuSet = pus.iter().map(|pu| pu.id).collect();
        if online.is_empty() {
            return Err(self.malformed("has no object of type PU; expected one for each CPU".into()));
        }

        let mut notes = Vec::new();
        let machine = objects(root).next();
        let possible = machine.and_then(|m| m.attribute("complete_cpuset"));
        let possible = possible.map_or(Ok(online.clone()), |set| files::mask(self.path, set))?;
        let model = objects(root).find_map(|o| info(o, "CPUModel")).map(str::to_owned);
        let line = pus.iter().find_map(|pu| pu.caches.first()?.1.attribute("cache_linesize")?.parse().ok());
        let line_bytes = line.filter(|b: &u32| b.is_power_of_two()).unwrap_or_else(|| {
            notes.push("no cache says how long its line is; assumed 64 bytes".into());
            64
        });

        let sockets = self.groups(&pus, |pu| pu.package)?;
        if sockets.contains_key(&None) {
            notes.push("CPUs outside of any Package are taken for one socket".into());
        }
        let llcs = self.groups(&pus, |pu| pu.caches.last().filter(|(level, _)| *level > 1).map(|c| c.1))?;
        let mut parts = Parts {
            source: self.path.display().to_string(),
            model,
            possible,
            sockets: sockets.into_values().map(|g| g.cpus).collect(),
            nodes: self.nodes(root, &pus, &online, &mut notes)?,
            line_bytes,
            ..Parts::default()
        };
        let listed = llcs.into_iter().filter(|(element, _)| element.is_some());
        parts.llcs = listed.map(|(_, g)| llc(g.cpus, g.level, g.size_kib)).collect();
        let size_of = |pu: &Pu, level| pu.caches.iter().find(|c| c.0 == level).and_then(|c| size_kib(c.1));
        for (element, group) in self.groups(&pus, |pu| pu.core)? {
            if element.is_some() {
                let pu = &pus[group.first];
                parts.cores.push(core(group.cpus, size_of(pu, 1), size_of(pu, 2)));
                continue;
            }
            notes.push("CPUs outside of any Core are taken for a core each".into());
            let alone = pus.iter().filter(|pu| pu.core.is_none());
            parts
                .cores
                .extend(alone.map(|pu| core(CpuSet::from_iter([pu.id]), size_of(pu, 1), size_of(pu, 2))));
        }
        parts.online = online;
        parts.notes = notes;
        Ok(parts)
    }

    /// Refuses input that makes a parser slow or large: entities that expand to a long text, many attributes, which are
    /// compared with each other, and namespaces, which every element inherits.
    fn refuse_hostile(&self, text: &str) -> Result<(), TopoError> {
        for (words, what) in [("<!ENTITY", "declares entities"), ("xmlns", "declares namespaces")] {
            if text.contains(words) {
                return Err(self.malformed(format!("{what}, which lstopo never does")));
            }
        }
        // No value contains a `<`, so the text after one has the attributes of at most one element.
        if text.split('<').any(|tag| tag.bytes().filter(|&b| b == b'=').count() > ATTRIBUTES_MAX) {
            return Err(self.malformed(format!("has an element of more than {ATTRIBUTES_MAX} attributes")));
        }
        Ok(())
    }

    fn check_version(&self, root: &Element) -> Result<(), TopoError> {
        if !root.has_tag_name("topology") {
            let fact =
                format!("begins with <{}>; expected <topology version=\"2.0\">", root.tag_name().name());
            return Err(self.malformed(fact));
        }
        let fact = match root.attribute("version").map(|v| v.split('.').next().unwrap_or(v)) {
            Some("2" | "3") => return Ok(()),
            None | Some("1") => "is hwloc XML of version 1, which nests NUMA nodes differently".into(),
            Some(other) => format!("is hwloc XML of version {other}; versions 2 and 3 are known"),
        };
        Err(self.malformed(fact).or_else("write it again with `lstopo --of xml` of hwloc 2 or 3"))
    }

    fn pu<'a>(&self, pu: Element<'a, 'a>) -> Result<Pu<'a>, TopoError> {
        let id = self.number(pu)?;
        if let Some(own) = self.cpuset(pu)?.filter(|set| *set != CpuSet::from_iter([CpuId(id)])) {
            return Err(self.contradiction(format!("has a PU of os_index {id} whose cpuset is {own}")));
        }
        let nodeset = pu.attribute("complete_nodeset");
        let mut found = Pu { id: CpuId(id), core: None, package: None, nodeset, caches: Vec::new() };
        for (depth, above) in pu.ancestors().enumerate().skip(1) {
            if depth > DEPTH_MAX {
                return Err(self.malformed(format!("nests objects more than {DEPTH_MAX} deep")));
            }
            match above.attribute("type") {
                Some("PU") => {
                    return Err(self.contradiction(format!("has PU {id} within another PU")));
                }
                Some("Core") => found.core = found.core.or(Some(above)),
                Some("Package") => found.package = found.package.or(Some(above)),
                // `L3Cache`, but not `L1iCache`, which holds instructions.
                Some(kind) => {
                    let level = kind.strip_prefix('L').and_then(|k| k.strip_suffix("Cache")?.parse().ok());
                    found.caches.extend(level.map(|level| (level, above)));
                }
                None => {}
            }
        }
        found.caches.sort_by_key(|c| c.0);
        Ok(found)
    }

    /// Groups the PUs by one of their ancestors; those without such an ancestor are in group `None`.
    fn groups<'a>(
        &self,
        pus: &[Pu<'a>],
        of: impl Fn(&Pu<'a>) -> Option<Element<'a, 'a>>,
    ) -> Result<BTreeMap<Option<Element<'a, 'a>>, Group>, TopoError> {
        let mut groups = BTreeMap::<_, Group>::new();
        for (i, pu) in pus.iter().enumerate() {
            let element = of(pu);
            let group = groups.entry(element).or_insert_with(|| Group {
                cpus: CpuSet::new(),
                first: i,
                level: pu.caches.iter().find(|c| Some(c.1) == element).map_or(0, |c| c.0),
                size_kib: element.and_then(size_kib),
            });
            group.cpus.insert(pu.id);
        }
        for (element, group) in groups.iter().filter_map(|(e, g)| Some(((*e)?, g))) {
            if let Some(own) = self.cpuset(element)?.filter(|own| *own != group.cpus) {
                let kind = element.attribute("type").unwrap_or("object");
                return Err(self.contradiction(format!(
                    "has a {kind} whose cpuset is {own} and whose PUs are {}",
                    group.cpus
                )));
            }
        }
        Ok(groups)
    }

    fn nodes(
        &self,
        root: Element,
        pus: &[Pu],
        online: &CpuSet,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Node>, TopoError> {
        let mut nodes = Vec::new();
        for object in objects(root).filter(|o| o.attribute("type") == Some("NUMANode")) {
            let cpus = self.cpuset(object)?.unwrap_or_default().intersection(online);
            nodes.push(Node { id: NodeId(self.number(object)?), cpus, distances: Vec::new() });
        }
        nodes.sort_by_key(|n| n.id);
        if let Some(twice) = nodes.windows(2).find(|w| w[0].id == w[1].id) {
            return Err(self.contradiction(format!("has two NUMANodes of os_index {}", twice[0].id.0)));
        }
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by_key(|&i| nodes[i].cpus.len());
        let mut left = online.clone();
        for i in order {
            let own = nodes[i].cpus.intersection(&left);
            if own != nodes[i].cpus {
                notes.push(format!("{} serves CPUs that belong to a nearer node", nodes[i].id));
            }
            left = left.difference(&own);
            nodes[i].cpus = own;
        }
        if nodes.is_empty() {
            notes.push("has no NUMANode; taken as one node 0".into());
            nodes.push(Node { id: NodeId(0), cpus: std::mem::take(&mut left), distances: Vec::new() });
        }
        // In a cpuset that has a node's CPUs but not its memory, `lstopo` omits the node and names it in the
        // `complete_nodeset` of the CPUs.
        let mut named = BTreeMap::new();
        for pu in pus.iter().filter(|pu| left.contains(pu.id)) {
            let nodes = pu.nodeset.map(|set| files::mask(self.path, set)).transpose()?;
            named.extend(nodes.and_then(|set| set.first()).map(|n| (pu.id, NodeId(n.0))));
        }
        assign_remaining(&left, &named, &mut nodes, notes);
        self.read_distances(root, &mut nodes)?;
        Ok(nodes)
    }

    /// Sets the nodes' distances from the first matrix of latencies that covers all of them.
    fn read_distances(&self, root: Element, nodes: &mut [Node]) -> Result<(), TopoError> {
        let matrices = root.children().filter(|e| e.has_tag_name("distances2"));
        for matrix in matrices.filter(|m| m.attribute("type") == Some("NUMANode")) {
            if matrix.attribute("name") != Some("NUMALatency") || matrix.attribute("indexing") != Some("os") {
                continue;
            }
            let (indexes, values) = (self.numbers(matrix, "indexes")?, self.numbers(matrix, "u64values")?);
            if Some(values.len()) != indexes.len().checked_mul(indexes.len()) {
                let fact = format!("has distances of {} nodes in {} values", indexes.len(), values.len());
                return Err(self.contradiction(fact));
            }
            let row = |id: NodeId| indexes.iter().position(|&i| i == id.0);
            let Some(rows) = nodes.iter().map(|n| row(n.id)).collect::<Option<Vec<_>>>() else { continue };
            let ids: Vec<NodeId> = nodes.iter().map(|n| n.id).collect();
            for (node, from) in nodes.iter_mut().zip(&rows) {
                let to = ids.iter().zip(&rows).map(|(id, to)| (*id, values[from * indexes.len() + to]));
                node.distances = to.collect();
            }
            return Ok(());
        }
        Ok(())
    }

    /// The numbers in all children of one name, in order.
    fn numbers(&self, element: Element, child: &str) -> Result<Vec<u32>, TopoError> {
        let texts = element.children().filter(|e| e.has_tag_name(child)).filter_map(|e| e.text());
        let number = |t: &str| {
            t.parse().map_err(|_| self.malformed(format!("has `{t}` in <{child}>; expected numbers")))
        };
        texts.flat_map(str::split_whitespace).map(number).collect()
    }

    fn number(&self, object: Element) -> Result<u32, TopoError> {
        let kind = object.attribute("type").unwrap_or("object");
        let Some(text) = object.attribute("os_index") else {
            return Err(self.malformed(format!("has a {kind} without os_index")));
        };
        let number = text.parse().ok().filter(|&n| n < CPU_MAX);
        number.ok_or_else(|| self.malformed(format!("has a {kind} of os_index `{text}`, which is no number")))
    }

    fn cpuset(&self, object: Element) -> Result<Option<CpuSet>, TopoError> {
        object.attribute("cpuset").map(|set| files::mask(self.path, set)).transpose()
    }

    fn malformed(&self, fact: String) -> TopoError {
        TopoError::malformed(self.path, fact)
    }

    fn contradiction(&self, fact: String) -> TopoError {
        TopoError::contradiction(self.path, fact)
    }
}

/// The PUs below one object, or those without such an object.
struct Group {
    cpus: CpuSet,
    /// The index of the first of these PUs.
    first: usize,
    level: u8,
    size_kib: Option<u32>,
}

fn objects<'a>(root: Element<'a, 'a>) -> impl Iterator<Item = Element<'a, 'a>> {
    root.descendants().filter(|e| e.has_tag_name("object"))
}

fn info<'a>(object: Element<'a, 'a>, name: &str) -> Option<&'a str> {
    let infos = object.children().filter(|e| e.has_tag_name("info"));
    infos.filter(|i| i.attribute("name") == Some(name)).find_map(|i| i.attribute("value"))
}

fn size_kib(cache: Element) -> Option<u32> {
    let bytes: u64 = cache.attribute("cache_size")?.parse().ok()?;
    u32::try_from(bytes / 1024).ok().filter(|&kib| kib > 0)
}
