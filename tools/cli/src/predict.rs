//! `warmcore predict`: the ratios of measured cases as a simulation predicts them, and how far they are off.
//!
//! Three steps, each with a file: `probe` measures what single calls of Warmcore's runtime and of tokio's cost on this
//! machine; `cases` simulates ten cases with these costs; `compare` holds the simulated ratios against those that
//! `warmcore bench` measured. A prediction names its probe file. It is compared only with measurements on the same
//! processor model, so that neither the probe nor the simulator can be adjusted to the measurement unnoticed: the
//! prediction is committed before it is compared.

mod cases;
mod compare;
mod probe;

pub(crate) use probe::measured;
use std::path::PathBuf;

/// Arguments of `warmcore predict`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    step: Step,
}

/// A step of a prediction.
#[derive(Debug, clap::Subcommand)]
enum Step {
    /// Measures what single calls of the schedulers cost on this machine, 15 s
    Probe {
        /// The file to write
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// Simulates the cases on both runtimes, with the costs of a probe
    Cases(cases::Args),
    /// Compares a prediction with what `warmcore bench` measured
    Compare(compare::Args),
}

/// `warmcore predict`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    match &args.step {
        Step::Probe { json } => probe::command(json),
        Step::Cases(args) => cases::command(args),
        Step::Compare(args) => compare::command(args),
    }
}
