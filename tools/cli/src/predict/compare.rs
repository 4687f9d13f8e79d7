//! `warmcore predict compare`: how far a prediction is from what was measured.
//!
//! The error of a case is the absolute logarithm of the predicted ratio divided by the measured one: a factor of two too
//! high is as wrong as a factor of two too low. The sum over all cases is compared with that of a null model, which
//! always answers 1.0. Where the measured interval does not contain 1.0, the predicted ratio has to be on the same side.

use super::cases::{Prediction, SCHEMA};
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use warmcore_results::{HostInfo, Row};

/// Arguments of `warmcore predict compare`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What `warmcore predict cases` wrote
    #[arg(long, value_name = "FILE")]
    prediction: PathBuf,
    /// What `warmcore bench wake` and `warmcore bench http` wrote
    #[arg(value_name = "FILE", required = true)]
    measured: Vec<PathBuf>,
}

/// The part of a file of results that matters here.
#[derive(Debug, Deserialize)]
struct Measured {
    machine: HostInfo,
    rows: Vec<Row>,
}

/// A case of both files.
#[derive(Debug, Clone, PartialEq)]
struct Compared {
    case: String,
    predicted: f64,
    measured: f64,
    interval: [f64; 2],
}

impl Compared {
    fn error(&self) -> f64 {
        (self.predicted / self.measured).ln().abs()
    }

    /// The error of a model that always answers 1.0.
    fn null_error(&self) -> f64 {
        self.measured.ln().abs()
    }

    /// Whether the prediction is on the measured side of 1.0. `None`: the measured interval contains 1.0.
    fn has_right_sign(&self) -> Option<bool> {
        let [low, high] = self.interval;
        match () {
            () if low > 1.0 => Some(self.predicted > 1.0),
            () if high < 1.0 => Some(self.predicted < 1.0),
            () => None,
        }
    }
}

pub(super) fn command(args: &Args) -> anyhow::Result<()> {
    let prediction: Prediction = read(&args.prediction)?;
    ensure!(
        prediction.schema == SCHEMA,
        "{}: schema {}, and this program reads {SCHEMA}; predict again",
        args.prediction.display(),
        prediction.schema
    );
    let mut rows = Vec::new();
    for path in &args.measured {
        let measured: Measured = read(path)?;
        ensure!(
            measured.machine.cpu == prediction.machine.cpu,
            "{} is of {:?}, and the prediction of {:?}; probe that machine and predict anew",
            path.display(),
            measured.machine.cpu,
            prediction.machine.cpu
        );
        rows.extend(measured.rows);
    }
    print!("{}", table(&compare(&prediction, &rows)?));
    Ok(())
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let bytes = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} has another format", path.display()))
}

/// The cases of a prediction with their measured ratios. An error if one was not measured.
fn compare(prediction: &Prediction, rows: &[Row]) -> anyhow::Result<Vec<Compared>> {
    let measured = |case: &str| {
        let is_ratio = |row: &&Row| {
            row.case == case
                && row.metric == "ratio"
                && row.variant == "warmcore"
                && row.over.as_deref() == Some("tokio")
        };
        rows.iter()
            .find(is_ratio)
            .with_context(|| format!("the measured files have no ratio of {case} over tokio"))
    };
    prediction
        .cases
        .iter()
        .map(|predicted| {
            let row = measured(&predicted.case)?;
            Ok(Compared {
                case: predicted.case.clone(),
                predicted: predicted.ratio,
                measured: row.median,
                interval: row.ci95.unwrap_or([row.min, row.max]),
            })
        })
        .collect()
}

/// A line per case, then the sums and the signs.
fn table(all: &[Compared]) -> String {
    let mut text = format!(
        "{:<28}{:>10}{:>10}{:>18}{:>9}{:>9}  sign\n",
        "case", "predicted", "measured", "interval", "error", "null"
    );
    for case in all {
        let sign = match case.has_right_sign() {
            Some(true) => "right",
            Some(false) => "WRONG",
            None => "-",
        };
        let [low, high] = case.interval;
        text += &format!(
            "{:<28}{:>10.3}{:>10.3}{:>9.3}{:>9.3}{:>9.3}{:>9.3}  {sign}\n",
            case.case,
            case.predicted,
            case.measured,
            low,
            high,
            case.error(),
            case.null_error()
        );
    }
    let sum = |of: fn(&Compared) -> f64| all.iter().map(of).sum::<f64>();
    let (error, null) = (sum(Compared::error), sum(Compared::null_error));
    let signs: Vec<bool> = all.iter().filter_map(Compared::has_right_sign).collect();
    let right = signs.iter().filter(|is_right| **is_right).count();
    let verdict = if error < null { "smaller" } else { "NOT smaller" };
    text + &format!(
        "summed absolute error of log ratios: {error:.3}, {verdict} than the null model's {null:.3}\n\
         sign right in {right} of the {} cases whose interval does not contain 1.0\n",
        signs.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(predicted: f64, measured: f64, interval: [f64; 2]) -> Compared {
        Compared { case: "c".into(), predicted, measured, interval }
    }

    #[test]
    fn the_error_is_symmetric_and_the_null_model_answers_one() {
        let twice = case(2.0, 1.0, [0.9, 1.1]);
        let half = case(0.5, 1.0, [0.9, 1.1]);
        assert_eq!((twice.error(), twice.null_error()), (half.error(), 0.0));
        assert_eq!(twice.has_right_sign(), None);
    }

    #[test]
    fn a_sign_counts_where_the_interval_does_not_contain_one() {
        let all = [
            case(1.2, 1.5, [1.4, 1.6]),
            case(0.9, 1.5, [1.4, 1.6]),
            case(0.9, 0.5, [0.4, 0.6]),
            case(2.0, 1.1, [0.9, 1.3]),
        ];
        assert_eq!(all.each_ref().map(Compared::has_right_sign), [Some(true), Some(false), Some(true), None]);
        let text = table(&all);
        assert!(text.contains("sign right in 2 of the 3 cases"), "{text}");
        assert!(text.contains("NOT smaller"), "{text}");
    }
}
