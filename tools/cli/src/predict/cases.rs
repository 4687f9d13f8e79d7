//! `warmcore predict cases`: simulates the cases on Warmcore's runtime and on tokio, with the costs of a probe.
//!
//! A ratio is Warmcore's metric divided by tokio's, as in the rows of `warmcore bench`: the median of the seeds. The file
//! names the probe's file, machine and time, so that a comparison can tell whether it is of the same processor.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use warmcore_results::{system, write_whole};
use warmcore_sim::cases::{CASES, Case, ProbeFile, Probed, Side, UNMEASURED};

/// The version of the file's fields.
pub(super) const SCHEMA: u32 = 1;

/// Arguments of `warmcore predict cases`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What `warmcore predict probe` wrote
    #[arg(long, value_name = "FILE")]
    probe: PathBuf,
    /// The number of simulations of each case, each with different random numbers
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Simulate other cases than the ten: those that were not measured before the model was made
    #[arg(long)]
    unmeasured: bool,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A prediction.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Prediction {
    pub schema: u32,
    pub command: String,
    pub when: String,
    /// The probe's file, when it was measured, and on which machine.
    pub probe: String,
    pub probed: String,
    pub machine: Probed,
    pub cases: Vec<Predicted>,
}

/// A predicted ratio.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Predicted {
    pub case: String,
    pub metric: String,
    /// The metric on each runtime, per second or in ns: the median of the seeds.
    pub warmcore: f64,
    pub tokio: f64,
    /// Warmcore's metric divided by tokio's: the median, the lowest and the highest seed.
    pub ratio: f64,
    pub lowest: f64,
    pub highest: f64,
}

pub(super) fn command(args: &Args) -> anyhow::Result<()> {
    let probe = ProbeFile::read(&args.probe)?;
    let path = args.probe.display().to_string();
    let mut prediction = Prediction {
        schema: SCHEMA,
        command: format!(
            "warmcore predict cases --probe {path} --seeds {}{}",
            args.seeds,
            if args.unmeasured { " --unmeasured" } else { "" }
        ),
        when: system::utc_now(),
        probe: path,
        probed: probe.when.clone(),
        machine: probe.machine.clone(),
        cases: Vec::new(),
    };
    println!(
        "{:<28}{:<20}{:>14}{:>14}{:>9}{:>18}",
        "case", "metric", "warmcore", "tokio", "ratio", "of all seeds"
    );
    for case in if args.unmeasured { &UNMEASURED[..] } else { &CASES } {
        let row = predict(case, &probe, args.seeds)?;
        println!(
            "{:<28}{:<20}{:>14.0}{:>14.0}{:>9.3}{:>9.3}{:>9.3}",
            row.case, row.metric, row.warmcore, row.tokio, row.ratio, row.lowest, row.highest
        );
        prediction.cases.push(row);
    }
    if let Some(path) = &args.json {
        write_whole(path, &serde_json::to_vec_pretty(&prediction)?)?;
        eprintln!("written: {}", path.display());
    }
    Ok(())
}

fn predict(case: &Case, probe: &ProbeFile, seeds: u64) -> anyhow::Result<Predicted> {
    let [mut warmcore, mut tokio, mut ratios] = [(); 3].map(|()| Vec::new());
    for seed in 0..seeds {
        let ours = case.simulate(probe, Side::Warmcore, seed)?;
        let theirs = case.simulate(probe, Side::Tokio, seed)?;
        warmcore.push(ours);
        tokio.push(theirs);
        ratios.push(ours / theirs);
    }
    [&mut warmcore, &mut tokio, &mut ratios].into_iter().for_each(|all| all.sort_by(f64::total_cmp));
    let median = |all: &[f64]| all[all.len() / 2];
    Ok(Predicted {
        case: case.name.to_owned(),
        metric: case.metric.to_owned(),
        warmcore: median(&warmcore),
        tokio: median(&tokio),
        ratio: median(&ratios),
        lowest: ratios[0],
        highest: ratios[ratios.len() - 1],
    })
}
