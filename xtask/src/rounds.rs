//! Rounds in which sides take turns, and the values that they give.
//!
//! A *slice* is one measurement of one side. A round has a slice of each side, and a ratio compares two slices of the
//! same round: a disturbance that lasts longer than a round then affects both. The order of the sides is drawn by chance,
//! so that no disturbance can keep in step with it, and balanced: in each block of as many rounds as there are orders,
//! each order occurs once. With two sides, each is the first in one of two rounds.

use crate::table::add_slices;
use fastrand::Rng;
use std::ops::Range;
use warmcore_results::Row;

/// The orders of the sides, round by round.
pub struct Orders {
    /// All orders.
    all: Vec<Vec<usize>>,
    /// The indices in `all` of the orders that the current block still has.
    left: Vec<usize>,
    rng: Rng,
}

impl Orders {
    /// Orders of this many sides.
    pub fn new(sides: usize) -> Self {
        Self { all: permutations(sides), left: Vec::new(), rng: Rng::new() }
    }

    /// The order of the next round.
    fn next(&mut self) -> &[usize] {
        if self.left.is_empty() {
            self.left = (0..self.all.len()).collect();
            self.rng.shuffle(&mut self.left);
        }
        let drawn = self.left.pop().unwrap_or_default();
        &self.all[drawn]
    }
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else { return vec![Vec::new()] };
    let with_last = |shorter: Vec<usize>| {
        (0..n).map(move |at| {
            let mut longer = shorter.clone();
            longer.insert(at, last);
            longer
        })
    };
    permutations(last).into_iter().flat_map(with_last).collect()
}

/// Calls `slice` for each of these rounds and each side, with the numbers of both. Ends with the first error.
pub fn alternate(
    rounds: Range<usize>,
    orders: &mut Orders,
    mut slice: impl FnMut(usize, usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for round in rounds {
        for side in orders.next() {
            slice(round, *side)?;
        }
    }
    Ok(())
}

/// The values of one metric of a case, on each side, round by round.
pub struct Samples {
    pub case: String,
    pub metric: String,
    pub unit: String,
    /// The name of each side and its values by round.
    pub sides: Vec<(String, Vec<f64>)>,
}

impl Samples {
    /// Samples of these sides, without values.
    pub fn new<'a>(case: &str, metric: &str, unit: &str, sides: impl IntoIterator<Item = &'a str>) -> Self {
        let sides = sides.into_iter().map(|side| (side.to_owned(), Vec::new())).collect();
        Self { case: case.to_owned(), metric: metric.to_owned(), unit: unit.to_owned(), sides }
    }

    /// The row of a side's values.
    pub fn row(&self, side: usize) -> Row {
        let (variant, values) = &self.sides[side];
        Row::of(&self.case, variant, &self.metric, &self.unit, values)
    }

    /// The ratios of two sides, round by round.
    pub fn ratios(&self, side: usize, over: usize) -> Vec<f64> {
        let [above, below] = [side, over].map(|side| &self.sides[side].1);
        above.iter().zip(below).map(|(above, below)| above / below).collect()
    }

    /// The row of the ratio of two sides.
    pub fn ratio(&self, side: usize, over: usize) -> Row {
        let [(variant, above), (over, below)] = [side, over].map(|side| &self.sides[side]);
        let row = Row::ratio(&self.case, variant, over, above, below);
        Row { metric: format!("ratio, {}", self.metric), ..row }
    }

    /// The row of the third quartile of the same ratio.
    pub fn third_quartile(&self, side: usize, over: usize) -> Row {
        let metric = format!("p75 of the ratio, {}", self.metric);
        Row::quantile(&self.case, &self.sides[side].0, &metric, "x", &self.ratios(side, over), 0.75)
    }

    /// Appends a line for each side, with its values.
    pub fn add_slices(&self, text: &mut String) {
        for (side, values) in &self.sides {
            add_slices(text, [&self.case, &self.metric, &self.unit, side], values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_side_precedes_each_other_one_equally_often_and_the_order_changes() {
        for sides in 1..=4 {
            let mut orders = Orders::new(sides);
            let block = orders.all.len();
            let mut before = vec![vec![0; sides]; sides];
            let mut blocks = BTreeSet::new();
            for _ in 0..100 {
                let mut seen = Vec::new();
                for _ in 0..block {
                    let order = orders.next().to_vec();
                    for (i, side) in order.iter().enumerate() {
                        order[i + 1..].iter().for_each(|later| before[*side][*later] += 1);
                    }
                    seen.push(order);
                }
                assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), block, "each order occurs once");
                blocks.insert(seen);
            }
            for (a, row) in before.iter().enumerate() {
                assert!(row.iter().enumerate().all(|(b, n)| *n == if a == b { 0 } else { block * 50 }));
            }
            assert!(sides == 1 || blocks.len() > 1, "the order of {sides} sides is always the same");
        }
    }

    #[test]
    fn every_side_runs_in_every_round_until_an_error() {
        let mut ran = vec![[0; 3]; 5];
        let count = |round: usize, side: usize| {
            ran[round][side] += 1;
            Ok(())
        };
        alternate(2..5, &mut Orders::new(3), count).unwrap();
        assert_eq!(ran, [[0; 3], [0; 3], [1; 3], [1; 3], [1; 3]]);
        let mut calls = 0;
        let failed = alternate(0..9, &mut Orders::new(2), |_, _| {
            calls += 1;
            anyhow::ensure!(calls < 4, "the fourth slice");
            Ok(())
        });
        assert_eq!((failed.unwrap_err().to_string(), calls), ("the fourth slice".to_owned(), 4));
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut samples = Samples::new("x", "cpu", "ns", ["a", "b"]);
        samples.sides[0].1 = vec![2.0, 4.0, 12.0];
        samples.sides[1].1 = vec![1.0, 2.0, 4.0];
        assert_eq!(samples.ratios(0, 1), [2.0, 2.0, 3.0]);
        let ratio = samples.ratio(0, 1);
        assert_eq!((&*ratio.metric, &*ratio.variant, ratio.over.as_deref()), ("ratio, cpu", "a", Some("b")));
        assert_eq!((ratio.median, samples.third_quartile(0, 1).median), (2.0, 3.0));
        assert_eq!(samples.row(1).median, 2.0);
        let mut text = String::new();
        samples.add_slices(&mut text);
        assert_eq!(text, "x\tcpu\tns\ta\t2.0 4.0 12.0\nx\tcpu\tns\tb\t1.0 2.0 4.0\n");
    }
}
