//! Topo: what the machine is, from sysfs, from hwloc XML, or from a machine file.
//!
//! Model.   A CPU belongs to one core, one LLC, one node and one socket. Cores lie within LLCs;
//!          LLCs, nodes and sockets may cut across each other, as real machines' do (sub-NUMA
//!          clustering, virtual machines), and then a note says so.
//! Number.  2 × EPYC 9654: 384 CPUs, 192 cores, 24 LLCs of 8 cores, 2 nodes, 2 sockets.
//! Writers. none: a [`Topology`] is read once and never changes. CPU hotplug means reading again.
//! Source.  Linux Documentation/ABI/stable/sysfs-devices-system-cpu and sysfs-devices-node.
//!
//! ```
//! use warmcore_topo::{Distance, MACHINES, Topology};
//! use warmcore_types::CpuId;
//!
//! let genoa = Topology::from_machine(MACHINES, "epyc9654_2p")?;
//! assert_eq!((genoa.cpus.len(), genoa.llcs.len()), (384, 24));
//! assert_eq!(genoa.distance(CpuId(0), CpuId(192)), Some(Distance::Smt));
//! assert_eq!(genoa.distance(CpuId(0), CpuId(8)), Some(Distance::Node));
//! # Ok::<(), warmcore_topo::TopoError>(())
//! ```
//!
//! A crate that only asks what this machine is needs no feature: reading hwloc's XML (`hwloc`), machine files
//! (`machine-files`) and writing JSON (`serde`) bring their parsers along.
//!
//! **Invariant.** A `Topology` that a reader returned passes [`Topology::check`]; what does not is
//! an error which names the file. No input makes a reader panic.

mod assemble;
mod capture;
mod cgroup;
mod error;
mod files;
#[cfg(feature = "hwloc")]
mod hwloc;
#[cfg(feature = "machine-files")]
mod machine;
mod model;
mod process;
#[cfg(feature = "serde")]
mod serial;
mod sysfs;
#[cfg(test)]
mod write_sysfs;

pub use error::TopoError;
#[cfg(feature = "machine-files")]
pub use machine::{MACHINES, machines};
pub use model::{Core, Cpu, Distance, Llc, Node, Quota, Socket, Topology};

/// A source that names a CPU of this number or above is broken: Linux stops at 8192. A set of CPUs is as wide
/// as its largest, and there is one for each core, so a larger bound is a hostile file's memory.
const CPU_MAX: u32 = 1 << 14;
