//! A recording as text for a terminal: the sentence, what is missing, and the places with the most time in polls.

use super::words::{count, covered, p99, share, time};
use super::{places, warnings};
use crate::page::printable;
use crate::summary::wrapped;
use std::fmt::Write as _;
use warmcore_trace::Analysis;

/// The number of places in the text.
const ROWS_MAX: usize = 10;
/// The width of the text, but for long names.
const WIDTH: usize = 100;

/// Says the sentence and a short table.
pub fn text(analysis: &Analysis) -> String {
    let paragraph = |text: &str| format!("{}\n", wrapped(text, WIDTH, 0));
    // One line, which scripts read.
    let mut text = format!("{}\n", analysis.sentence);
    for warning in warnings(analysis) {
        text += &paragraph(&warning);
    }
    if analysis.coverage.polls == 0 {
        return printable(&text);
    }
    text.push('\n');
    let mut line = |cells: [&str; 7]| {
        let [polls, core, llc, of, p50, p99, place] = cells;
        writeln!(text, "{polls:>13} {core:>11} {llc:>9} {of:>13} {p50:>10} {p99:>8}  {place}")
            .expect("text is written into memory");
    };
    line(["polls", "other core", "other L3", "of", "delay p50", "p99", "spawned at"]);
    for place in analysis.places.iter().take(ROWS_MAX) {
        let known = place.from_previous.known();
        let of_known = |part: u64| if known == 0 { "?".to_owned() } else { share(part, known) };
        let llc = analysis.sentence.other_llc.map(|_| of_known(place.from_previous.other_llc()));
        let delay = |told: String| if place.delay.count == 0 { "?".to_owned() } else { told };
        line([
            &count(place.polls),
            &of_known(place.from_previous.other_core()),
            &llc.unwrap_or("?".to_owned()),
            &count(known),
            &delay(time(place.delay.p50_ns)),
            &delay(p99(&place.delay)),
            &places::name(place),
        ]);
    }
    let more = analysis.places.len().saturating_sub(ROWS_MAX);
    if more > 0 {
        writeln!(text, "{more} places more are on the page.").expect("text is written into memory");
    }
    let of = "The shares are of the polls that followed another poll of their task.";
    printable(&format!("{text}\n{}", paragraph(&format!("{of} {}", covered(&analysis.coverage)))))
}
