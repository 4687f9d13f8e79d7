//! Numbers and names of a recording, as text.

use crate::markup::amount;
use warmcore_trace::{Basis, Coverage, Origin, Quantiles, Total, permille};

/// A count, in groups of three digits: `1 234 567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A share, rounded down as in the sentence: `12 %`, `3.4 %`, `< 0.1 %`; an en dash of nothing.
pub fn share(part: u64, whole: u64) -> String {
    let permille = permille(part, whole);
    match permille {
        _ if whole == 0 => "–".to_owned(),
        0 if part > 0 => "< 0.1 %".to_owned(),
        // What is not all is never written as all, and the last hundredth has its decimal.
        1..100 | 990..1000 => format!("{}.{} %", permille / 10, permille % 10),
        _ => format!("{} %", permille / 10),
    }
}

/// A share, or that there is nothing to take a share of.
pub fn share_of(part: u64, whole: u64) -> String {
    match whole {
        0 => "not known".to_owned(),
        _ => share(part, whole),
    }
}

/// A number of polls with its share of all recorded ones: `1 234 (56 % of the recorded polls)`.
pub fn of_polls(part: u64, coverage: &Coverage) -> String {
    format!("{} ({} of the recorded polls)", count(part), share(part, coverage.polls))
}

/// What the recording covers, as a sentence.
pub fn covered(coverage: &Coverage) -> String {
    let time = share(coverage.covered_ns, coverage.threads_ns);
    let polls = share(coverage.polls, coverage.all_polls());
    format!("No record was dropped in {time} of the threads' time, and {polls} of the polls were recorded.")
}

/// A time: `1.20 µs`.
pub fn time(ns: u64) -> String {
    amount(ns as f64, "ns")
}

/// A time that may be negative, with its sign.
pub fn signed_time(ns: i64) -> String {
    format!("{}{}", if ns < 0 { "−" } else { "" }, time(ns.unsigned_abs()))
}

/// The 99th percentile; an en dash for fewer than 100 times, whose hundredth is none of them.
pub fn p99(times: &Quantiles) -> String {
    if times.count < 100 { "–".to_owned() } else { time(times.p99_ns) }
}

/// A moment or a length of the recording: `12.345 s`.
pub fn seconds(ns: u64) -> String {
    match ns as f64 / 1e9 {
        long if long >= 100.0 => format!("{long:.1} s"),
        short if short >= 1.0 => format!("{short:.3} s"),
        moment => format!("{moment:.6} s"),
    }
}

/// CPUs, from millionths, with as many digits as the largest of the three needs.
fn cpus(micros: [i64; 3]) -> [String; 3] {
    let most = micros.iter().map(|micro| micro.unsigned_abs()).max().unwrap_or(0);
    let digits = match most {
        0 => 0,
        100_000.. => 2,
        1000.. => 4,
        _ => 6,
    };
    micros.map(|micro| {
        let sign = if micro < 0 { "−" } else { "" };
        format!("{sign}{:.digits$}", micro.unsigned_abs() as f64 / 1e6)
    })
}

/// What moves cost together, for a cell: `0.12 CPUs (0.08 … 0.17)`.
pub fn total(total: &Total) -> String {
    let [cost, low, high] = cpus([total.micro_cpus, total.low, total.high]);
    match total.basis {
        Basis::NoMoves => "no moves".to_owned(),
        Basis::CannotTell if total.moved == 0 => "not known".to_owned(),
        Basis::CannotTell => "cannot be told".to_owned(),
        Basis::Program => {
            let told = if total.high < 0 { ": moved polls were shorter, so it cannot be told" } else { "" };
            format!("{cost} CPUs ({low} … {high}){told}")
        }
        Basis::Probe => format!("{low} … {high} CPUs, by the probe"),
    }
}

/// Where a task came from, in words.
pub fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::SameCpu => "the same CPU",
        Origin::SameCore => "another CPU of the core",
        Origin::SameLlc => "another core of the L3",
        Origin::SameNode => "another L3 of the node",
        Origin::SameSocket => "another node of the socket",
        Origin::SameMachine => "another socket",
        Origin::OtherCpu => "another CPU, how far is not known",
        Origin::First => "nowhere: its first poll",
        Origin::Unknown => "not known",
    }
}

/// The name of a program: the last part of its path.
pub fn program_name(command: &str) -> String {
    const CHARS_MAX: usize = 60;
    let path = command.split_whitespace().next().unwrap_or("a program");
    shortened(path.rsplit('/').next().unwrap_or(path), CHARS_MAX)
}

/// A location without the path of Cargo's folder of packages, if it is in one.
pub fn in_package(location: &str) -> &str {
    let package = location.split_once("/registry/src/").and_then(|(_, rest)| rest.split_once('/'));
    package.map_or(location, |(_, rest)| rest)
}

/// The last characters of a long text, after an ellipsis.
pub fn shortened(text: &str, chars_max: usize) -> String {
    let chars = text.chars().count();
    if chars <= chars_max {
        return text.to_owned();
    }
    let rest: String = text.chars().skip(chars - chars_max + 1).collect();
    format!("…{rest}")
}
