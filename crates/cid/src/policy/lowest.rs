//! Lowest: the lowest free id, chosen anew at each entry (Linux 6.3).
//!
//! Model.   Whoever leaves gives the id back. Most compact, and no id means a core: two CPUs that
//!          take turns share id 0, and its data travels between them.

use super::*;

/// The lowest free id at every entry, as Linux 6.3 does it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lowest;

impl Policy for Lowest {
    fn name(&self) -> &'static str {
        "lowest"
    }

    fn keeps(&self) -> bool {
        false
    }

    fn end(&self, facts: &Facts) -> u32 {
        facts.cpus
    }

    fn pick(&self, facts: &Facts, _: Option<Cid>, used: &Used) -> Option<Pick> {
        used.lowest_free(self.end(facts)).map(Pick::Lowest)
    }

    fn left_behind(&self, _: &Facts, _: u32, _: Destination) -> LeftBehind {
        LeftBehind::Stays // nothing is
    }
}
