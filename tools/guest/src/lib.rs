#![doc = include_str!("../README.md")]

mod archive;
mod cache;
mod compare;
mod counts;
mod figures;
mod guest;
mod kernel;
mod needs;
mod prepare;
mod programs;
mod rivals;
mod scenario;
mod scheduler;

pub use cache::Cache;
pub use compare::{Comparison, Job, Outcome, ScenarioRow, Spread};
pub use counts::{Migrations, Places, ProbeCounts, Queued, Time};
pub use figures::{Figures, GroupFigures};
pub use guest::{Ended, Guest, Machine};
pub use kernel::Kernel;
pub use prepare::{needed, prepare, test_scheduler};
pub use rivals::{RIVALS, Rival};
pub use scenario::{Scenario, scenarios};
pub use scheduler::Scheduler;
