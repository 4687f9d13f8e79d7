//! CPUs, cores, last-level caches, NUMA nodes and sockets of a machine, read from sysfs, from hwloc XML or from a
//! machine file.
//!
//! A CPU belongs to one core, one last-level cache (LLC), one node and one socket. Cores lie within LLCs. LLCs,
//! nodes and sockets may overlap, as on real machines (sub-NUMA clustering, virtual machines). If an LLC or a core
//! spans several nodes or sockets, [`Topology::notes`] has a note on that. For example, 2 × EPYC 9654 have 384 CPUs,
//! 192 cores, 24 LLCs of 8 cores, 2 nodes and 2 sockets.
//!
//! A [`Topology`] does not follow the machine: after CPU hotplug it must be read again.
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
//! Reading the running machine needs no feature. The features `hwloc` (hwloc's XML), `machine-files` and `serde`
//! (writing JSON) add dependencies.
//!
//! **Invariant.** A `Topology` that a reader returns passes [`Topology::check`]. If a source would give one that does
//! not, the reader returns an error that names the file or the source; [`Topology::this_machine`] returns a flat
//! machine instead, if the system returns the CPUs on which the process may run. No input makes a reader panic.
//!
//! # Source
//! Linux Documentation/ABI/stable/sysfs-devices-system-cpu and sysfs-devices-node.

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
mod sysfs;
#[cfg(test)]
mod write_sysfs;

pub use error::TopoError;
#[cfg(feature = "machine-files")]
pub use machine::{MACHINES, machines};
pub use model::{Core, Cpu, Distance, Llc, Node, Quota, Socket, Topology};

/// A source that names a CPU of this number or above is broken: Linux supports 8192 CPUs. A set of CPUs is as wide as
/// its largest member and each core has one, so a larger bound would let a hostile file use much memory.
const CPU_MAX: u32 = 1 << 14;
