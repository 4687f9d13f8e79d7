//! Makes models of machines from a few numbers in a machine file, without access to the machine.
//!
//! A section gives counts: sockets, L3 per socket (or dies, and L3 per die), cores per L3, threads per core. Cores are
//! numbered in order: those of one L3, then those of the next L3 of the socket, then the next socket. Nodes are equal
//! runs of cores. On n cores, thread t of core c is CPU t × n + c: siblings are n apart. With 2 sockets × 12 L3 × 8
//! cores × 2 threads there are 384 CPUs, and CPU 192 is a sibling of CPU 0.
//!
//! `linux_llc_threads` is the number of a core's threads that share a cache. If it is below the threads per core (smt),
//! CPUs are numbered as on POWER: thread t of core c is CPU c × smt + t, and a core's threads go to its caches
//! alternately, for example 0 2 4 6 to one and 1 3 5 7 to the other.
//!
//! `inherits` names another section, whose value of a key applies if this section has none; if neither has one, that of
//! `[defaults]` applies. `cpu_numbering` is text for readers of the file; it repeats how CPUs are numbered.
//!
//! # Source
//! crates/topo/machines.toml names the source of each number. POWER: linuxppc-dev, December 2020, "powerpc/smp:
//! Add support detecting thread-groups sharing L2 cache" (the groups 0 2 4 6 and 1 3 5 7), and July 2021,
//! "powerpc/cacheinfo" (L3 as L2 on POWER10).

use crate::assemble::{Parts, core, llc};
use crate::{Node, TopoError, Topology};
use serde::Deserialize;
use toml::{Table, Value};
use warmcore_types::{CpuId, CpuSet, NodeId};

#[cfg(test)]
mod tests;

/// The machine file that comes with Warmcore.
pub const MACHINES: &str = include_str!("../machines.toml");

/// Linux supports this many CPUs; a larger number is a mistake in the file.
const CPUS_MAX: u64 = 8192;

/// The names of the machines that a machine file describes, in alphabetical order.
///
/// # Errors
/// Returns an error if the text is not TOML.
pub fn machines(text: &str) -> Result<Vec<String>, TopoError> {
    let sections = parse(text)?.into_iter().filter(|(name, value)| name != "defaults" && value.is_table());
    Ok(sections.map(|(name, _)| name).collect())
}

impl Topology {
    /// The machine `name` of a machine file, for example of [`MACHINES`].
    ///
    /// # Errors
    /// Returns an error if the text is not TOML, the name is unknown, or counts are missing or inconsistent.
    pub fn from_machine(text: &str, name: &str) -> Result<Self, TopoError> {
        let section = section(&parse(text)?, name)?;
        let machine = section.try_into::<MachineSpec>();
        machine.map_err(|e| malformed(name, e.message()))?.parts(name)?.assemble()
    }
}

#[derive(Deserialize)]
struct MachineSpec {
    model: Option<String>,
    sockets: u64,
    numa_nodes: Option<u64>,
    dies_per_socket: Option<u64>,
    l3_per_die: Option<u64>,
    l3_per_socket: Option<u64>,
    cores_per_l3: Option<u64>,
    cores: Option<u64>,
    smt: Option<u64>,
    cpus: Option<u64>,
    linux_llc_threads: Option<u64>,
    line_bytes: Option<u32>,
    l1d_kib: Option<u32>,
    l2_kib: Option<u32>,
    l3_kib: Option<u32>,
    numa_distance: Option<Vec<u32>>,
}

/// The counts of a machine, checked for consistency.
struct Shape {
    sockets: u64,
    nodes: u64,
    cores: u64,
    smt: u64,
    cores_per_llc: u64,
    /// How many last-level caches share the threads of one core.
    caches_per_core: u64,
}

impl Shape {
    fn cpu(&self, core: u64, thread: u64) -> CpuId {
        // No overflow: `shape` refuses more than 8192 CPUs.
        CpuId(match self.caches_per_core {
            1 => thread * self.cores + core,
            _ => core * self.smt + thread,
        } as u32)
    }

    /// The CPUs of a run of cores: the `i`th of `runs` equal ones.
    fn run(&self, i: u64, runs: u64) -> CpuSet {
        let each = self.cores / runs;
        let cores = i * each..(i + 1) * each;
        cores.flat_map(|c| (0..self.smt).map(move |t| self.cpu(c, t))).collect()
    }
}

impl MachineSpec {
    fn parts(self, name: &str) -> Result<Parts, TopoError> {
        let shape = self.shape(name)?;
        // The file has the size for a whole core. If several caches share the threads of a core, each has an equal part
        // of that size.
        let part = |kib: Option<u32>| kib.map(|k| k / shape.caches_per_core as u32);
        let cores =
            (0..shape.cores).map(|c| core(shape.run(c, shape.cores), self.l1d_kib, part(self.l2_kib)));
        let llcs = (0..shape.cores / shape.cores_per_llc).flat_map(|l| {
            let all = shape.run(l, shape.cores / shape.cores_per_llc);
            let dealt =
                |k| (all.iter().filter(move |c| u64::from(c.0) % shape.caches_per_core == k)).collect();
            (0..shape.caches_per_core).map(dealt).collect::<Vec<CpuSet>>()
        });
        let online = shape.run(0, 1);
        Ok(Parts {
            source: format!("machine file [{name}]"),
            cores: cores.collect(),
            llcs: llcs.map(|set| llc(set, 3, part(self.l3_kib))).collect(),
            nodes: self.nodes(name, &shape)?,
            sockets: (0..shape.sockets).map(|s| shape.run(s, shape.sockets)).collect(),
            possible: online.clone(),
            online,
            line_bytes: self.line_bytes.unwrap_or(64),
            model: self.model,
            ..Parts::default()
        })
    }

    fn shape(&self, name: &str) -> Result<Shape, TopoError> {
        let missing = |key: &str, why: &str| {
            TopoError::missing(path(name), format!("has no `{key}`{why}")).or_else("add it to the section")
        };
        let llcs_per_socket = match (self.l3_per_socket, self.l3_per_die, self.dies_per_socket) {
            (Some(n), ..) => Some(n),
            (None, Some(l3), Some(dies)) => Some(product(name, &[l3, dies])?),
            _ => None,
        };
        let llcs = llcs_per_socket.map(|n| product(name, &[self.sockets, n])).transpose()?;
        let counted = match (llcs, self.cores_per_l3) {
            (Some(llcs), Some(each)) => Some(product(name, &[llcs, each])?),
            _ => None,
        };
        let cores = self.cores.or(counted).ok_or_else(|| {
            missing(
                "cores",
                ", nor `cores_per_l3` with `l3_per_socket`, or `l3_per_die` and `dies_per_socket`",
            )
        })?;
        let smt = self.smt.unwrap_or(1);
        let cpus = product(name, &[cores, smt])?;
        let nodes = self.numa_nodes.unwrap_or(self.sockets);
        let threads = self.linux_llc_threads.unwrap_or(smt);
        let cores_per_llc = match self.linux_llc_threads {
            Some(_) => 1,
            None => self.cores_per_l3.ok_or_else(|| missing("cores_per_l3", ", nor `linux_llc_threads`"))?,
        };
        let fits = [
            (self.cpus.is_none_or(|c| c == cpus), format!("{cores} cores × {smt} threads are not `cpus`")),
            (counted.is_none_or(|c| c == cores), "`cores` is not what the L3s add up to".into()),
            (divides(self.sockets, cores), format!("{} sockets do not share {cores} cores", self.sockets)),
            (divides(nodes, cores), format!("{nodes} nodes do not share {cores} cores evenly")),
            (divides(cores_per_llc, cores), format!("{cores_per_llc} cores per L3 do not divide {cores}")),
            (divides(threads, smt), format!("`linux_llc_threads` does not divide {smt} threads per core")),
        ];
        match fits.into_iter().find(|(fits, _)| !fits) {
            Some((_, fact)) => Err(TopoError::contradiction(path(name), fact).or_else("mend the counts")),
            None => Ok(Shape {
                sockets: self.sockets,
                nodes,
                cores,
                smt,
                cores_per_llc,
                caches_per_core: smt / threads,
            }),
        }
    }

    fn nodes(&self, name: &str, shape: &Shape) -> Result<Vec<Node>, TopoError> {
        // The file gives three distances: within a node, within a socket, and between sockets.
        let distance = match self.numa_distance.as_deref() {
            None => None,
            Some(&[same, socket, other]) => Some([same, socket, other]),
            Some(_) => {
                return Err(malformed(name, "`numa_distance` is not [same node, same socket, other socket]"));
            }
        };
        let socket = |node: u64| node * shape.sockets / shape.nodes;
        let to = |from: u64, to: u64| {
            let [same, near, far] = distance?;
            let far_or_near = if socket(from) == socket(to) { near } else { far };
            Some((NodeId(to as u32), if from == to { same } else { far_or_near }))
        };
        let node = |n: u64| Node {
            id: NodeId(n as u32),
            cpus: shape.run(n, shape.nodes),
            distances: (0..shape.nodes).filter_map(|m| to(n, m)).collect(),
        };
        Ok((0..shape.nodes).map(node).collect())
    }
}

fn divides(part: u64, whole: u64) -> bool {
    part > 0 && whole > 0 && whole.is_multiple_of(part)
}

/// The product of counts. An error if one of them is 0 or the product is above what Linux supports.
fn product(name: &str, counts: &[u64]) -> Result<u64, TopoError> {
    let all =
        counts.iter().try_fold(1u64, |all, &n| all.checked_mul(n).filter(|n| (1..=CPUS_MAX).contains(n)));
    all.ok_or_else(|| malformed(name, "its counts make no machine of 1 to 8192 CPUs"))
}

fn path(name: &str) -> String {
    format!("machine file [{name}]")
}

fn malformed(name: &str, fact: &str) -> TopoError {
    TopoError::malformed(path(name), fact).or_else("mend the section")
}

fn parse(text: &str) -> Result<Table, TopoError> {
    text.parse().map_err(|e: toml::de::Error| {
        TopoError::malformed("machine file", e.to_string().trim().replace('\n', " "))
            .or_else("mend it; crates/topo/machines.toml is an example")
    })
}

/// A machine's section, with the values that it inherits and the defaults.
fn section(file: &Table, name: &str) -> Result<Table, TopoError> {
    let mut whole = Table::new();
    let mut names = vec![name];
    while let Some(&name) = names.last() {
        let Some(Value::Table(section)) = file.get(name).filter(|_| name != "defaults") else {
            let known = file.keys().filter(|k| *k != "defaults").map(String::as_str).collect::<Vec<_>>();
            let fact = format!("has no machine `{name}`, only {}", known.join(", "));
            return Err(TopoError::missing("machine file", fact).or_else("name one of those"));
        };
        fill(&mut whole, section);
        match section.get("inherits") {
            None => break,
            Some(Value::String(base)) if !names.contains(&base.as_str()) => names.push(base),
            Some(base) => {
                let fact = format!("inherits from {base}, which is no other section's name");
                return Err(TopoError::malformed(path(name), fact).or_else("mend `inherits`"));
            }
        }
    }
    if let Some(Value::Table(defaults)) = file.get("defaults") {
        fill(&mut whole, defaults);
    }
    Ok(whole)
}

fn fill(whole: &mut Table, below: &Table) {
    for (key, value) in below {
        whole.entry(key).or_insert_with(|| value.clone());
    }
}
