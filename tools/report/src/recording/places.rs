//! The table of places that spawn tasks.

use super::words::{self, count, in_package, share, shortened, signed_time, time};
use warmcore_trace::{Analysis, MoveCost, SHUFFLES, SpawnPlace};

/// The largest number of rows. The places are in the order of their time in polls.
pub const ROWS_MAX: usize = 100;

/// The longest name or location that is shown whole.
const CHARS_MAX: usize = 80;

/// Of [`SHUFFLES`] shuffled repetitions, those that have to hold 0 for an interval to be trusted.
const WITH_ZERO_MIN: u32 = 90;

/// A row of the table. The second text of a pair is what the first is of.
#[derive(Debug)]
pub struct PlaceRow {
    pub name: String,
    pub location: String,
    pub polls: (String, String),
    pub other_core: (String, String),
    pub other_llc: String,
    pub delay: (String, String),
    pub duration: (String, String),
    pub total: String,
}

pub fn rows(analysis: &Analysis) -> Vec<PlaceRow> {
    analysis.places.iter().take(ROWS_MAX).map(|place| row(analysis, place)).collect()
}

/// The name of a place's tasks and where it is; the name alone is enough where there is one.
pub fn name(place: &SpawnPlace) -> String {
    match (&place.name, &place.location) {
        (Some(name), _) => shortened(name, CHARS_MAX),
        (None, Some(location)) => shortened(in_package(location), CHARS_MAX),
        (None, None) => "spawn not in the recording".to_owned(),
    }
}

fn row(analysis: &Analysis, place: &SpawnPlace) -> PlaceRow {
    let known = place.from_previous.known();
    let quantiles = |of: &warmcore_trace::Quantiles| match of.count {
        0 => "not known".to_owned(),
        _ => format!("{} · {}", time(of.p50_ns), words::p99(of)),
    };
    PlaceRow {
        name: name(place),
        location: match (&place.name, &place.location) {
            (Some(_), Some(location)) => shortened(in_package(location), CHARS_MAX),
            _ => String::new(),
        },
        polls: (count(place.polls), format!("{} tasks, {}", count(place.tasks), time(place.polled_ns))),
        other_core: match known {
            0 => ("not known".to_owned(), String::new()),
            _ => (share(place.from_previous.other_core(), known), format!("of {}", count(known))),
        },
        other_llc: match (analysis.sentence.other_llc, known) {
            (None, _) | (_, 0) => "not known".to_owned(),
            _ => share(place.from_previous.other_llc(), known),
        },
        delay: (
            quantiles(&place.delay),
            match place.delay.count {
                0 => String::new(),
                some => format!("of {}", count(some)),
            },
        ),
        duration: (quantiles(&place.duration), format!("of {}", count(place.duration.count))),
        total: words::total(&place.cost),
    }
}

/// Moved polls that were compared for the intervals that are trusted.
pub fn compared(analysis: &Analysis) -> u64 {
    let is_trusted =
        |cost: &&MoveCost| cost.measured.is_some_and(|it| it.shuffles_with_zero >= WITH_ZERO_MIN);
    let costs = analysis.places.iter().flat_map(|place| &place.costs);
    costs.filter(is_trusted).map(|cost| cost.compared).sum()
}

/// What a move costs the tasks of each place: place, origin, cost and interval, polls that were compared. The rows are at
/// most [`ROWS_MAX`].
pub fn costs(analysis: &Analysis) -> Vec<[String; 4]> {
    let of = |place: &SpawnPlace| place.costs.iter().map(|cost| row_of_cost(place, cost)).collect::<Vec<_>>();
    analysis.places.iter().flat_map(of).take(ROWS_MAX).collect()
}

fn row_of_cost(place: &SpawnPlace, cost: &MoveCost) -> [String; 4] {
    let compared = format!("{} of {}", count(cost.compared), count(cost.moved));
    let (told, of) = match cost.measured {
        None => ("cannot be told".to_owned(), format!("{compared}; {} needed", count(cost.needed))),
        Some(told) => {
            let [ns, low, high] = [told.ns, told.low_ns, told.high_ns].map(signed_time);
            let trusted = match told.shuffles_with_zero {
                WITH_ZERO_MIN.. => "",
                _ => ", not trusted",
            };
            let control = format!("{compared}; 0 in {} of {SHUFFLES} shuffled", told.shuffles_with_zero);
            (format!("{ns} ({low} … {high}){trusted}"), control)
        }
    };
    [name(place), words::origin(cost.origin).to_owned(), told, of]
}
