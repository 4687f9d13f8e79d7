//! Lab: what the command `warmcore` measures, as a library, so that `peers/` can add variants.
//!
//! Model.   Facts (`topo`, `doctor`, `host`) and measurements (`run` by `measure`) become
//!          [`results`]; `report` makes pages of them; `survey` does all of it.
//! Number.  A survey takes two and a half minutes on two cores.

pub mod doctor;
pub mod host;
pub mod hostile;
pub mod measure;
pub mod printable;
pub mod report;
pub mod results;
pub mod run;
pub mod signals;
pub mod sim;
pub mod survey;
pub mod top;
pub mod topo;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on stderr for `steps` of `what`; invisible where stderr is no terminal.
pub fn progress(steps: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>24} {bar:30} {percent:>3} % {eta:>4} left  {msg}");
    let bar = ProgressBar::new(steps).with_prefix(what.to_owned());
    bar.with_style(style.expect("the template is right"))
}
