//! Where a woken task runs, whom to kick for it, and what an idle CPU pulls.
//!
//! Model.   Facts in, decisions out. [`Machine`] is what does not change, [`View`] what is so at this moment,
//!          [`Wake`] one wake. A [`Policy`] answers; the host acts. Nothing here reads a clock, allocates after
//!          a `Machine` is built, or wakes anybody.
//! Number.  A wake at home is two comparisons.
//! Source.  Linux: `select_idle_sibling`, SIS_UTIL; the proposals SIS_CACHE (2023) and shared_runq (2023).

mod facts;
mod hot;
mod machine;
pub mod policy;

pub use facts::{Allowed, Placed, Pull, To, Turn, View, Wake, Wakee, Waker};
pub use hot::Sleeps;
pub use machine::{Distance, Machine};
pub use policy::{GlobalFifo, Home, Policy, PolicyKind, PrevCpu, SharedQueue, UnknownPolicy, WorkSteal};
