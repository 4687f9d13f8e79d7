//! The one sentence, in words.

use crate::analysis::{Basis, Sentence, Total, permille};
use std::fmt;

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.polls == 0 {
            write!(f, "No poll in this recording has a poll of its task before it on a known CPU")?;
        } else {
            let other_core = Share(self.other_core, self.polls);
            write!(f, "{other_core} of the polls that followed another poll of their task")?;
            let all = self.polls + self.unknown;
            if self.unknown > all / 100 {
                write!(f, " (known of {})", Share(self.polls, all))?;
            }
            write!(f, " ran on another core than that one")?;
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
        write!(f, "{}.", if self.is_whole { "" } else { ", of the part of the recording that could be read" })
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { micro_cpus, low, high, moved, priced, .. } = *self;
        match self.basis {
            Basis::NoMoves => write!(f, "no recorded poll moved"),
            Basis::CannotTell => write!(f, "what that costs cannot be told: too few polls can be compared"),
            Basis::Program if high < 0 => return f.write_str(Self::SHORTER),
            Basis::Program => {
                // The larger side: an interval of medians need not be even.
                let around = (high - micro_cpus).max(micro_cpus - low);
                let digits = digits(around);
                let (cost, around) = (Cpus(micro_cpus, digits), Cpus(around, digits));
                write!(f, "that costs {cost} CPUs ± {around} with 95 % confidence")?;
                if low <= 0 && 0 <= high { write!(f, ", which may be nothing") } else { Ok(()) }
            }
            Basis::Probe => {
                let (low, high) = (Cpus(low, digits(low)), Cpus(high, digits(high)));
                write!(f, "that costs between {low} and {high} CPUs by the machine's probe")
            }
        }?;
        if priced < moved && matches!(self.basis, Basis::Program | Basis::Probe) {
            write!(f, " (for {} of the moves)", Share(priced, moved))?;
        }
        Ok(())
    }
}

impl Total {
    /// What an interval below 0 says.
    const SHORTER: &str = "moved polls were shorter than others, which no cost explains: they do other work, so what moves cost \
                           cannot be told";
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

/// How many decimals of CPUs show two digits of so many millionths; at least two.
fn digits(micro_cpus: i64) -> usize {
    match micro_cpus.unsigned_abs() {
        100_000.. => 2,
        10_000.. => 3,
        1_000.. => 4,
        100.. => 5,
        _ => 6,
    }
}

/// Millionths of a CPU as CPUs, with so many decimals.
struct Cpus(i64, usize);

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*}", self.1, self.0 as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(basis: Basis, [micro_cpus, low, high]: [i64; 3], priced: u64) -> String {
        let cost = Total { basis, micro_cpus, low, high, moved: 200, priced };
        whole(cost).to_string()
    }

    fn whole(cost: Total) -> Sentence {
        Sentence {
            polls: 1000,
            unknown: 10,
            other_core: 200,
            other_llc: Some(35),
            cost,
            covered_permille: 1000,
            recorded_permille: 1000,
            is_whole: true,
        }
    }

    #[test]
    fn a_cost_and_its_interval_have_the_same_decimals() {
        assert_eq!(
            sentence(Basis::Program, [170_123, 162_000, 179_523], 200),
            "20 % of the polls that followed another poll of their task ran on another core than that one, 3.5 % on another \
             L3; that costs 0.1701 CPUs ± 0.0094 with 95 % confidence; 100 % of the time is covered."
        );
        let part = sentence(Basis::Program, [12_345_678, 12_000_000, 12_500_000], 150);
        assert!(
            part.contains("that costs 12.35 CPUs ± 0.35 with 95 % confidence (for 75 % of the moves);"),
            "{part}"
        );
    }

    #[test]
    fn a_cost_that_may_be_nothing_and_one_by_the_probe_say_so() {
        let nothing = sentence(Basis::Program, [-120, -900, 700], 200);
        assert!(
            nothing.contains("-0.00012 CPUs ± 0.00082 with 95 % confidence, which may be nothing;"),
            "{nothing}"
        );
        let probe = sentence(Basis::Probe, [0, 20, 500_000], 200);
        assert!(probe.contains("between 0.000020 and 0.50 CPUs by the machine's probe;"), "{probe}");
        let cannot = sentence(Basis::CannotTell, [0; 3], 0);
        assert!(
            cannot.contains("what that costs cannot be told: too few polls can be compared;"),
            "{cannot}"
        );
    }

    #[test]
    fn moved_polls_that_are_shorter_have_no_cost() {
        let shorter = sentence(Basis::Program, [-500, -900, -1], 150);
        assert!(shorter.contains("L3; moved polls were shorter than others"), "{shorter}");
        assert!(shorter.contains("cannot be told; 100 %"), "{shorter}");
        assert!(!shorter.contains("CPUs"), "{shorter}");
    }

    #[test]
    fn what_is_not_known_or_not_recorded_is_said() {
        let cost = Total { basis: Basis::NoMoves, micro_cpus: 0, low: 0, high: 0, moved: 0, priced: 0 };
        let (polls, unknown, other_core, other_llc) = (10_000, 102, 1, None);
        let (covered_permille, recorded_permille, is_whole) = (987, 125, false);
        let known = Sentence { polls, unknown, other_core, other_llc, ..whole(cost) };
        let sentence = Sentence { covered_permille, recorded_permille, is_whole, ..known };
        assert_eq!(
            sentence.to_string(),
            "less than 0.1 % of the polls that followed another poll of their task (known of 98 %) ran on another core than \
             that one (which of them on another L3 is not known); no recorded poll moved; 98 % of the time is covered, and \
             12 % of the polls, of the part of the recording that could be read."
        );
    }
}
