//! How ids and CPU sets look in JSON: an id as its number, a CPU set as its list string (`"0-3,8"`).
//!
//! The crate `types` does not depend on serde, so the fields of the model name these functions.

use serde::{Serialize, Serializer, ser::SerializeSeq};
use warmcore_types::{CoreId, CpuId, CpuSet, LlcId, NodeId, SocketId};

/// An id as the number in it.
pub(crate) trait Number {
    fn number(&self) -> u32;
}

macro_rules! number {
    ($($id:ty),*) => { $(impl Number for $id {
        fn number(&self) -> u32 {
            self.0
        }
    })* };
}
number!(CpuId, CoreId, LlcId, NodeId, SocketId);

pub(crate) fn id<S: Serializer>(id: &impl Number, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u32(id.number())
}

pub(crate) fn list<S: Serializer>(set: &CpuSet, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(set)
}

pub(crate) fn maybe_list<S: Serializer>(set: &Option<CpuSet>, s: S) -> Result<S::Ok, S::Error> {
    set.as_ref().map(CpuSet::to_string).serialize(s)
}

/// Distances as pairs `[node, distance]`.
pub(crate) fn distances<S: Serializer>(distances: &[(NodeId, u32)], s: S) -> Result<S::Ok, S::Error> {
    let mut seq = s.serialize_seq(Some(distances.len()))?;
    for (node, distance) in distances {
        seq.serialize_element(&(node.0, distance))?;
    }
    seq.end()
}
