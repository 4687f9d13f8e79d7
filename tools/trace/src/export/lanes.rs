//! Lanes: which of a row's tracks shows a poll, so that the slices of a track nest.
//!
//! A track of Perfetto is a stack of slices: each one begins and ends within the one around it. On a CPU the polls of two
//! threads overlap where the kernel takes the CPU from a thread within a poll. Such a poll goes into another lane.

/// The lanes of one row.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<Vec<(u64, u64)>>);

impl Lanes {
    /// A row whose first lane is there already, for instants.
    pub fn with_one() -> Self {
        Self(vec![Vec::new()])
    }

    /// Returns the lane of a slice, and whether the lane is new. Slices come in the order of their ends.
    pub fn place(&mut self, start: u64, end: u64) -> (usize, bool) {
        for (index, lane) in self.0.iter_mut().enumerate() {
            let fits = lane.iter().rev().find(|outer| outer.0 <= start).is_none_or(|outer| outer.1 <= start);
            if fits {
                // Those that begin later are within this one.
                while lane.last().is_some_and(|inner| inner.0 > start) {
                    lane.pop();
                }
                lane.push((start, end));
                return (index, false);
            }
        }
        self.0.push(vec![(start, end)]);
        (self.0.len() - 1, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_follow_or_contain_each_other_share_a_lane() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.place(0, 10), (0, true));
        assert_eq!(lanes.place(10, 20), (0, false));
        assert_eq!(lanes.place(22, 25), (0, false));
        assert_eq!(lanes.place(21, 30), (0, false), "it contains the one before");
        assert_eq!(lanes.place(30, 30), (0, false));
    }

    #[test]
    fn slices_that_overlap_do_not_share_a_lane() {
        let mut lanes = Lanes::default();
        lanes.place(0, 10);
        assert_eq!(lanes.place(5, 15), (1, true));
        assert_eq!(lanes.place(9, 16), (2, true), "it overlaps both");
        assert_eq!(lanes.place(1, 17), (1, false), "it contains the one there");
        assert_eq!(
            lanes.place(9, 17),
            (3, true),
            "which of two that begin together is the outer one is not in a trace"
        );
        assert_eq!(lanes.place(18, 19), (0, false));
    }
}
