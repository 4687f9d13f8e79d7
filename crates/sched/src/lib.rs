#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod counters;
mod domains;
mod estimate;
mod facts;
mod first_polls;
mod host;
mod hot;
mod inject_queue;
pub mod policy;
mod refill;
mod run_queue;
pub mod shares;
mod sync;
mod task_state;
mod virtual_time;
mod worker;
mod workers;

pub use counters::{Counters, WorkerStats};

pub use domains::{SHARD_CPUS_MAX, SchedDomains, ShardMask};
pub use facts::{
    Allowed, FarSearch, QueueOrder, StealDecision, StealOrder, TargetQueue, View, Wake, WakeDecision,
    WakeSource, Wakee,
};
pub use host::{Host, Inbox, LockedRing, Queued, RING_TASKS, Ring, STEAL_MAX, Task};
pub use hot::SleepHistory;
pub use inject_queue::{InjectQueue, SHARE_MAX};
pub use policy::{Home, MIN_STEAL_DELAY, Policy, PolicyKind, SharedQueue, UnknownPolicy};
pub use refill::SHORT_POLL_NS;
pub use run_queue::Share;
pub use shares::{Pace, Shares};
pub use task_state::TaskState;
pub use warmcore_topo::Distance;
pub use worker::{Core, Next, RECENT, SAMPLE_MASK};
pub use workers::{Remote, WorkerStatus, Workers};
