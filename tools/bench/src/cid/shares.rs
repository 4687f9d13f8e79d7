//! Determines for each burst which CPU used its area last.
//!
//! An area belongs to the CPU whose burst ran on it last, warm passes included. A burst finds its *own* area, a
//! *foreign* one that another CPU used last, or a *fresh* one that no burst has used. After the first burst on each
//! area, two CPUs that alternate on one area find only foreign areas; with an area for each CPU, each finds only its
//! own.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Which CPU used an area last when a burst began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// This CPU used it last.
    Own,
    /// Another CPU used it last.
    Foreign,
    /// No burst has used it.
    Fresh,
}

/// On which CPU a burst ran, on which area, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    /// The CPU's number.
    pub cpu: u32,
    /// The area's number.
    pub area: u32,
    /// A moment at which the burst had exclusive access to the area.
    pub at_ns: u64,
}

/// Returns for each visit, in the given order, whose its area was.
pub fn whose(visits: &[Visit]) -> Vec<Whose> {
    let mut order: Vec<usize> = (0..visits.len()).collect();
    order.sort_by_key(|i| visits[*i].at_ns);
    let (mut last, mut found) = (HashMap::new(), vec![Whose::Fresh; visits.len()]);
    for i in order {
        let Visit { cpu, area, .. } = visits[i];
        found[i] = match last.insert(area, cpu) {
            None => Whose::Fresh,
            Some(before) if before == cpu => Whose::Own,
            Some(_) => Whose::Foreign,
        };
    }
    found
}

/// Returns the share of `which` in `found`, in percent; 0 if `found` is empty.
pub fn percent(found: impl Iterator<Item = Whose> + Clone, which: Whose) -> f64 {
    let all = found.clone().count().max(1);
    found.filter(|whose| *whose == which).count() as f64 * 100.0 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use Whose::*;

    fn visit(cpu: u32, area: u32, at_ns: u64) -> Visit {
        Visit { cpu, area, at_ns }
    }

    #[test]
    fn an_area_is_the_last_visitors() {
        let visits = [visit(0, 0, 1), visit(1, 0, 2), visit(1, 0, 3), visit(0, 0, 4), visit(0, 1, 5)];
        assert_eq!(whose(&visits), [Fresh, Foreign, Own, Foreign, Fresh]);
    }

    #[test]
    fn the_order_is_that_of_time_not_of_the_list() {
        let visits = [visit(0, 7, 30), visit(1, 7, 20), visit(0, 7, 10)];
        assert_eq!(whose(&visits), [Foreign, Foreign, Fresh]);
    }

    #[test]
    fn shares_add_up() {
        let found = [Own, Own, Foreign, Fresh];
        let share = |which| percent(found.iter().copied(), which);
        assert_eq!((share(Own), share(Foreign), share(Fresh)), (50.0, 25.0, 25.0));
        assert_eq!(percent(std::iter::empty(), Own), 0.0);
    }
}
