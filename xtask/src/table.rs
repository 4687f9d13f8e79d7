//! What the tables of `cargo xtask shapes` and `cargo xtask programs` share: they are Markdown, and beside each stands a
//! text with all slices.

use std::fmt::Write;
use warmcore_results::{Bound, HostInfo, Row, Standing, Target};

/// The machine as words.
pub fn machine(host: &HostInfo) -> String {
    format!("{}, {} CPUs, Linux {}", host.cpu, host.cpus, host.kernel)
}

/// Cells of a ratio: its quartiles, its 95 % interval, and the word for it.
pub fn ratio(row: &Row, third_quartile: f64, better: Bound) -> String {
    let [p25, median] = [row.p25, row.median];
    format!("{p25:.2} | {median:.2} | {third_quartile:.2} | {} | {}", interval(row), word(row, better))
}

/// The 95 % interval of a ratio.
pub fn interval(row: &Row) -> String {
    row.ci95.map_or_else(String::new, |[low, high]| format!("{low:.2} to {high:.2}"))
}

/// The word for a ratio, by its interval. `better` is the side of 1 that the first variant should be on.
fn word(row: &Row, better: Bound) -> &'static str {
    // The true median is outside of all of fewer slices more often than in one of 20 runs.
    if row.n < 6 {
        return "undecided";
    }
    let target = Target { kind: better, value: 1.0, standing: Standing::Undecided };
    match target.standing(row) {
        Standing::Met => "faster",
        Standing::Missed => "slower",
        Standing::Undecided => "undecided",
    }
}

/// Appends a line with the values of all rounds in their order.
pub fn add_slices(text: &mut String, names: [&str; 4], values: &[f64]) {
    let values: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
    let _ = writeln!(text, "{}\t{}", names.join("\t"), values.join(" "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_says_whether_all_of_the_interval_is_on_one_side_of_one() {
        let of = |ours: &[f64]| Row::ratio("x", "a", "b", ours, &[10.0; 9]);
        let [less, more] = [of(&[9.0; 9]), of(&[11.0; 9])];
        assert_eq!([&less, &more].map(|row| word(row, Bound::AtMost)), ["faster", "slower"]);
        assert_eq!([&less, &more].map(|row| word(row, Bound::AtLeast)), ["slower", "faster"]);
        let wide = of(&[11.0, 11.0, 11.0, 11.0, 11.0, 9.0, 9.0, 9.0, 9.0]);
        assert_eq!(ratio(&wide, 1.1, Bound::AtMost), "0.90 | 1.10 | 1.10 | 0.90 to 1.10 | undecided");
        assert_eq!(word(&Row { n: 5, ..less }, Bound::AtMost), "undecided");
    }
}
