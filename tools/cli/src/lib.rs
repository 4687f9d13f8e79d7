//! The command `warmcore` as a library, so that tests and fuzzers call its parts.
//!
//! Model.   Facts (`topo`, `doctor`) and measurements (`bench`) become results; `survey` does all of it and has the
//!          page made of them.
//! Number.  A survey takes two and a half minutes on two cores.

pub mod bench;
pub mod doctor;
pub mod hostile;
pub mod sim;
pub mod survey;
pub mod top;
pub mod topo;
