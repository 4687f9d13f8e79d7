//! The one sentence, in words.

use crate::analysis::{Basis, Sentence, Total, permille};
use std::fmt;

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.polls == 0 {
            write!(f, "No poll in this recording has a poll of its task before it on a known CPU")?;
        } else {
            write!(
                f,
                "{} of polls ran on another core than the last time",
                Share(self.other_core, self.polls)
            )?;
            match self.other_llc {
                Some(polls) => write!(f, ", {} on another L3", Share(polls, self.polls))?,
                None => write!(f, " (which of them on another L3 is not known)")?,
            }
            write!(f, "; {}", self.cost)?;
        }
        write!(f, "; {} of the time is covered", Share(self.covered_permille, 1000))?;
        if self.recorded_permille < 1000 {
            write!(f, ", and {} of the polls", Share(self.recorded_permille, 1000))?;
        }
        write!(f, ".")
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.basis {
            Basis::NoMoves => write!(f, "no task moved, which costs nothing"),
            Basis::CannotTell => write!(f, "what that costs cannot be told: too few polls can be compared"),
            Basis::Program => {
                let around = (self.high - self.low) / 2;
                write!(f, "that costs {} CPUs ± {}", Cpus(self.micro_cpus), Cpus(around))
            }
            Basis::Probe => write!(
                f,
                "that costs between {} and {} CPUs by the machine's probe",
                Cpus(self.low),
                Cpus(self.high)
            ),
        }?;
        if self.priced < self.moved && matches!(self.basis, Basis::Program | Basis::Probe) {
            write!(f, " (for {} of the moves)", Share(self.priced, self.moved))?;
        }
        Ok(())
    }
}

/// A share with one decimal below 10 %.
struct Share(u64, u64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permille = permille(self.0, self.1);
        match permille {
            0 if self.0 > 0 => write!(f, "less than 0.1 %"),
            0 | 100.. => write!(f, "{} %", permille / 10),
            _ => write!(f, "{}.{} %", permille / 10, permille % 10),
        }
    }
}

/// Millionths of a CPU as CPUs, with two decimals, or with three or six where the figure is small.
struct Cpus(i64);

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0.unsigned_abs() {
            100_000.. => 2,
            1000.. => 4,
            _ => 6,
        };
        write!(f, "{:.digits$}", self.0 as f64 / 1e6)
    }
}
