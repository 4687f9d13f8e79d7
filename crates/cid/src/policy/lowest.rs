//! `Lowest`: the lowest free id, chosen anew at each entry of a user that holds no id, as on Linux 6.3.
//!
//! A user's last leave frees the id. This is the most compact policy, and ids have no relation to cores: two CPUs that
//! run users in turn share id 0, and its data moves between their caches.

use super::*;

/// The lowest free id at every entry of a user that holds none, as in Linux 6.3.
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
        LeftBehind::Stays // leaving freed the id
    }
}
