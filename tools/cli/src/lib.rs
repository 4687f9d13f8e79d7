//! The command `warmcore` as a library, so that tests and fuzzers can call its parts.
//!
//! `topo` and `doctor` collect facts, `bench` measures, `sim` simulates, `top` shows a running process; `survey`
//! (`warmcore report`) uses `topo`, `doctor` and `sim`, measures, and draws a page with `warmcore-report`. `guest` compares
//! schedulers of the kernel. `adopt` puts Warmcore's scheduler into a tokio program, `record` records what its tasks do, and
//! `recording` (`warmcore report FILE`) shows it.

pub mod adopt;
pub mod bench;
pub mod doctor;
pub mod guest;
pub mod hostile;
pub mod predict;
pub mod record;
mod recording;
pub mod sim;
pub mod survey;
pub mod top;
pub mod topo;
pub mod what_if;
