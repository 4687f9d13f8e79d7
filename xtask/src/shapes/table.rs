//! The table: a line per case, and all slices as text.

use super::{Measured, SIDES};
use std::fmt::Write;
use warmcore_results::{Bound, Results, Row, Standing, Target};

/// The word for a ratio of times, by its interval.
fn word(row: &Row) -> &'static str {
    let target = Target { kind: Bound::AtMost, value: 1.0, standing: Standing::Undecided };
    match target.standing(row) {
        Standing::Met => "not slower",
        Standing::Missed => "slower",
        Standing::Undecided => "undecided",
    }
}

/// The table as Markdown: the values on tokio, and what times tokio's the other sides take.
pub fn text(measured: &[Measured], results: &Results) -> String {
    let mut text = format!(
        "{}, {} CPUs, Linux {}; others used {:.0} % of the CPUs\n\n\
         | case | | on tokio | warmcore ÷ tokio: p25 | median | p75 | 95 % | | WARMCORE=0 ÷ tokio | 95 % | n |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        results.machine.cpu,
        results.machine.cpus,
        results.machine.kernel,
        100.0 * results.load.others_share
    );
    for it in measured {
        let Measured { case, metric, unit, .. } = it;
        let tokio = Row::of(case, SIDES[2], metric, unit, &it.values[2]);
        let [ours, off] = [it.ratio(0), it.ratio(1)];
        let interval =
            |row: &Row| row.ci95.map_or_else(String::new, |[low, high]| format!("{low:.2} to {high:.2}"));
        let _ = writeln!(
            text,
            "| {case} | {metric} | {:.0} {unit} | {:.2} | {:.2} | {:.2} | {} | {} | {:.2} | {} | {} |",
            tokio.median,
            ours.p25,
            ours.median,
            it.third_quartile(0),
            interval(&ours),
            word(&ours),
            off.median,
            interval(&off),
            ours.n
        );
    }
    text
}

/// A line for each case, metric and side, with the values of all rounds in their order.
pub fn raw(measured: &[Measured]) -> String {
    let mut text = String::new();
    for it in measured {
        for (side, values) in SIDES.iter().zip(&it.values) {
            let values: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
            let _ = writeln!(text, "{}\t{}\t{}\t{side}\t{}", it.case, it.metric, it.unit, values.join(" "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whether_the_interval_is_above_one() {
        let of = |ours: f64| {
            let values = [vec![ours; 9], vec![10.0; 9], vec![10.0; 9]];
            Measured { case: "x".to_owned(), metric: "time", unit: "ns", values }
        };
        assert_eq!([of(9.0), of(11.0)].map(|it| word(&it.ratio(0))), ["not slower", "slower"]);
        let mut wide = of(9.0);
        wide.values[0][..5].fill(11.0);
        assert_eq!(word(&wide.ratio(0)), "undecided");
        assert!(raw(&[of(9.0)]).starts_with("x\ttime\tns\twarmcore\t9.0 9.0"));
    }
}
