//! Places: the tasks by where they were spawned, and by name.

use crate::analysis::{MoveCost, SpawnPlace, Total};
use crate::origin::ByOrigin;
use crate::quantiles::Times;
use std::collections::HashMap;

/// The most places that tasks with further names get; after that, a location's further names share one place.
const PLACES_MAX: usize = 512;

/// The name of the place that stands for all further names of a location.
const FURTHER_NAMES: &str = "…";

/// The place of tasks whose spawn is not in the recording.
pub const UNKNOWN_PLACE: u32 = 0;

/// The places, by index.
pub struct Places {
    rows: Vec<PlaceRow>,
    indices: HashMap<(Option<String>, Option<String>), u32>,
    /// A location's index in the recording and a name's → the place. One location may have several indices.
    known: HashMap<(Option<u32>, Option<u32>), u32>,
    /// The place → its location in the recording.
    locations: Vec<Option<u32>>,
}

/// What is counted for a place.
pub struct PlaceRow {
    pub location: Option<String>,
    pub name: Option<String>,
    pub tasks: u64,
    pub polls: u64,
    pub from_previous: ByOrigin,
    pub from_waker: ByOrigin,
    pub polled_ns: u64,
    pub delay: Times,
    pub duration: Times,
}

impl Places {
    pub fn new() -> Self {
        let mut places =
            Self { rows: Vec::new(), indices: HashMap::new(), known: HashMap::new(), locations: Vec::new() };
        let unknown = places.find(None, None, &|| (None, None));
        debug_assert_eq!(unknown, UNKNOWN_PLACE);
        places
    }

    /// The place of a location and a name, both as indices in the recording; `texts` returns what they stand for.
    pub fn find(
        &mut self,
        location: Option<u32>,
        name: Option<u32>,
        texts: &dyn Fn() -> (Option<String>, Option<String>),
    ) -> u32 {
        if let Some(place) = self.known.get(&(location, name)) {
            return *place;
        }
        let (place, mut key) = (self.rows.len() as u32, texts());
        let is_further = key.1.is_some() && self.rows.len() >= PLACES_MAX && !self.indices.contains_key(&key);
        if is_further {
            key.1 = Some(FURTHER_NAMES.to_owned());
        }
        let found = *self.indices.entry(key.clone()).or_insert(place);
        if found == place {
            self.rows.push(PlaceRow::new(key));
            self.locations.push(location);
        }
        // Names may be as many as tasks: those that share a place are looked up by their text each time.
        if !is_further {
            self.known.insert((location, name), found);
        }
        found
    }

    /// The location, in the recording, of a place.
    pub fn location(&self, place: u32) -> Option<u32> {
        self.locations[place as usize]
    }

    #[inline]
    pub fn row(&mut self, place: u32) -> &mut PlaceRow {
        &mut self.rows[place as usize]
    }

    pub fn into_rows(self) -> Vec<PlaceRow> {
        self.rows
    }
}

impl PlaceRow {
    fn new((location, name): (Option<String>, Option<String>)) -> Self {
        Self {
            location,
            name,
            tasks: 0,
            polls: 0,
            from_previous: ByOrigin::default(),
            from_waker: ByOrigin::default(),
            polled_ns: 0,
            delay: Times::new(),
            duration: Times::new(),
        }
    }

    pub fn finish(self, costs: Vec<MoveCost>, cost: Total) -> SpawnPlace {
        SpawnPlace {
            location: self.location,
            name: self.name,
            tasks: self.tasks,
            polls: self.polls,
            from_previous: self.from_previous,
            from_waker: self.from_waker,
            polled_ns: self.polled_ns,
            delay: self.delay.quantiles(),
            duration: self.duration.quantiles(),
            costs,
            cost,
        }
    }
}
