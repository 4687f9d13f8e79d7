//! The page of one recording: how far a program's tasks moved between their polls, and what that cost.
//!
//! [`page`] draws a [`trace::Analysis`](Analysis) as one HTML file that loads nothing: the sentence first, then the CPUs over
//! time, the matrix from waker to poll, the places that spawn tasks, the delays, and what is not known. [`text()`] says the
//! most of it for a terminal. Each figure has beside it the share of polls that it is of, so that what was not recorded is
//! not taken for what did not happen.
//!
//! # Cost
//! A page has at most 32 rows of CPUs and cores and 100 places: about 300 KB, whatever the length of the recording.

mod delays;
mod groups;
mod matrix;
mod places;
mod svg;
mod text;
mod timeline;
mod words;

pub use text::text;
pub use words::{count, in_package, share, shortened, time};

use super::markup::palette_css;
use super::page::printable;
use askama::Template;
use warmcore_trace::{Analysis, Basis, Ending, Origin};
use words::{of_polls, origin, seconds};

/// The template of the page, and the data that it shows.
#[derive(Template)]
#[template(path = "recording.html")]
struct Page {
    css: String,
    title: String,
    facts: Vec<String>,
    sentence: String,
    /// What the reader has to know before any figure: what is missing.
    warnings: Vec<String>,
    has_polls: bool,
    timeline: String,
    timeline_says: String,
    legend: Vec<(&'static str, &'static str, String)>,
    matrix_legend: Vec<Swatch>,
    matrix: String,
    matrix_says: String,
    /// Tables of which the first rows are open and the others folded.
    places: Folded<places::PlaceRow>,
    places_left_out: usize,
    places_say: String,
    costs: Folded<[String; 4]>,
    cost: String,
    probe: Vec<[String; 3]>,
    histogram_legend: Vec<Swatch>,
    histogram: String,
    histogram_says: String,
    longest: Folded<[String; 8]>,
    threads: Vec<[String; 8]>,
    known: Vec<[String; 2]>,
}

/// A colour's class, and what it is.
type Swatch = (&'static str, &'static str);

/// The colours that a picture has.
fn used(legend: &[Swatch], picture: &str) -> Vec<Swatch> {
    let is_used = |(class, _): &&Swatch| picture.contains(&format!("class=\"{class}\""));
    legend.iter().filter(is_used).copied().collect()
}

/// The rows of a table that are open, and those that are folded.
type Folded<T> = (Vec<T>, Vec<T>);

/// Folds a long table, whose first rows matter most.
fn folded<T>(mut rows: Vec<T>) -> Folded<T> {
    const OPEN: usize = 10;
    let more = rows.split_off(rows.len().min(OPEN));
    (rows, more)
}

/// Draws a recording as one self-contained HTML page. The same analysis gives the same bytes.
///
/// # Panics
/// Never: the template writes into memory.
pub fn page(analysis: &Analysis) -> String {
    let Analysis { program, coverage, .. } = analysis;
    let legend = |at: &Origin| {
        let polls = analysis.from_previous[*at];
        (svg::class(*at), origin(*at), share(polls, coverage.polls))
    };
    let (matrix, histogram) = (matrix::svg(analysis), delays::histogram(analysis));
    let page = Page {
        css: [
            &palette_css(),
            &svg::css(),
            include_str!("../templates/page.css"),
            include_str!("../templates/recording.css"),
        ]
        .concat(),
        title: words::program_name(&program.command),
        facts: facts(analysis),
        sentence: analysis.sentence.to_string(),
        warnings: warnings(analysis),
        has_polls: coverage.polls > 0,
        timeline: timeline::svg(analysis),
        timeline_says: timeline::says(analysis),
        legend: Origin::ALL.iter().filter(|at| analysis.from_previous[**at] > 0).map(legend).collect(),
        matrix_legend: used(&matrix::LEGEND, &matrix),
        matrix,
        matrix_says: matrix::says(analysis),
        places: folded(places::rows(analysis)),
        places_left_out: analysis.places.len().saturating_sub(places::ROWS_MAX),
        places_say: format!(
            "Shares are of the polls that followed another poll of their task, both on a known CPU: {}. {}",
            of_polls(analysis.from_previous.known(), coverage),
            words::covered(coverage)
        ),
        costs: folded(places::costs(analysis)),
        cost: cost(analysis),
        probe: probe(analysis),
        histogram_legend: used(&delays::LEGEND, &histogram),
        histogram,
        histogram_says: delays::says(analysis),
        longest: folded(delays::longest(analysis)),
        threads: threads(analysis),
        known: known(analysis),
    };
    printable(&page.render().expect("the template writes into memory"))
}

fn facts(analysis: &Analysis) -> Vec<String> {
    let program = &analysis.program;
    vec![
        words::shortened(&program.command, 120),
        format!("process {}", program.pid),
        format!("{} recorded", seconds(program.length_ns)),
        format!("{} polls", count(analysis.coverage.polls)),
        format!("{} CPUs seen", analysis.cpus.len()),
        match analysis.threads.len() {
            1 => "1 thread".to_owned(),
            some => format!("{some} threads"),
        },
    ]
}

/// What is missing in the recording, worst first.
pub(super) fn warnings(analysis: &Analysis) -> Vec<String> {
    let coverage = &analysis.coverage;
    let mut warnings = Vec::new();
    match &analysis.program.ending {
        Ending::Ended(_) => {}
        Ending::Open => warnings.push(
            "The recording has no end: the process was killed, or still runs. All that was written is below."
                .to_owned(),
        ),
        Ending::Cut(bytes) => warnings.push(format!(
            "The file ends within a block, of which {bytes} bytes are there: the process was killed, or still runs. All \
             before that block is below."
        )),
        Ending::Damaged(what) => warnings.push(format!("Only a part could be read: {what}.")),
    }
    if coverage.polls == 0 {
        warnings.push("The recording has no poll. Nothing is known of moves, delays and costs.".to_owned());
        return warnings;
    }
    if coverage.dropped > 0 {
        warnings.push(format!(
            "{} records were dropped, since a thread wrote faster than they were saved.",
            count(coverage.dropped)
        ));
    }
    if let Some(shift) = coverage.sampling.iter().map(|change| change.shift).max().filter(|shift| *shift > 0)
    {
        warnings.push(format!(
            "Tasks were sampled, down to one of {}; {} polls of other tasks are not in the recording.",
            1u64 << shift.min(63),
            count(coverage.skipped)
        ));
    }
    if coverage.cpus_with_llc < coverage.cpus || coverage.cpus == 0 {
        warnings.push(format!(
            "The process could read the last-level cache of {} of its {} CPUs: moves between the others count as moves \
             whose distance is not known.",
            coverage.cpus_with_llc, coverage.cpus
        ));
    }
    warnings
}

/// What the cost in the sentence rests on.
fn cost(analysis: &Analysis) -> String {
    let total = &analysis.cost.total;
    match total.basis {
        Basis::Program => format!(
            "The cost rests on this program's own polls: those after a move beside those of the same place without one, as \
             long after the task's last poll and behind as many other polls. It is of {} of {} moved polls, of which {} were \
             compared. Durations are elapsed time, so time in which the kernel took the CPU is in them; the figures are \
             differences of medians, so rare long polls are not; first polls are not compared.{}",
            count(total.priced),
            count(total.moved),
            count(places::compared(analysis)),
            if total.high < 0 {
                " An interval below 0 is no gain: polls that moved do other work."
            } else {
                ""
            }
        ),
        Basis::Probe => format!(
            "The cost rests on the machine's probe, not on this program: from one cache line per move to 256 KiB per move. \
             It is of {} of {} moved polls.",
            count(total.priced),
            count(total.moved)
        ),
        Basis::NoMoves => "No recorded poll moved.".to_owned(),
        Basis::CannotTell if total.moved == 0 => "Whether a recorded poll moved is not known.".to_owned(),
        Basis::CannotTell => format!(
            "What the {} moved polls cost cannot be told from this recording: there are too few comparable polls. That is \
             no sign that they cost nothing. Record longer, or under more load.",
            count(total.moved)
        ),
    }
}

fn probe(analysis: &Analysis) -> Vec<[String; 3]> {
    let row = |probed: &warmcore_trace::Probed| {
        [origin(probed.origin).to_owned(), words::time(probed.line_ns), words::time(probed.refill_ns)]
    };
    analysis.cost.probe.iter().map(row).collect()
}

fn threads(analysis: &Analysis) -> Vec<[String; 8]> {
    let row = |thread: &warmcore_trace::ThreadRow| {
        let delay: u64 = thread.kernel.iter().map(|interval| interval.run_delay_ns).sum();
        let switches: u64 = thread.kernel.iter().map(|interval| interval.involuntary_switches).sum();
        let kernel = |text: String| if thread.kernel.is_empty() { "not known".to_owned() } else { text };
        [
            format!("{} ({})", thread.name, thread.tid),
            thread.worker.map_or("–".to_owned(), |worker| worker.to_string()),
            count(thread.polls),
            words::share_of(thread.from_previous.other_core(), thread.from_previous.known()),
            count(thread.dropped),
            count(thread.cpu_changes),
            kernel(words::time(delay)),
            kernel(count(switches)),
        ]
    };
    analysis.threads.iter().map(row).collect()
}

/// What is known, and of how many polls.
fn known(analysis: &Analysis) -> Vec<[String; 2]> {
    let coverage = &analysis.coverage;
    let row = |what: &str, value: String| [what.to_owned(), value];
    let polls = |part| of_polls(part, coverage);
    vec![
        row(
            "polls in the recording, of all that are known of",
            format!("{} of {}", count(coverage.polls), count(coverage.all_polls())),
        ),
        row("records dropped", count(coverage.dropped)),
        row("polls of tasks that were not sampled", count(coverage.skipped)),
        row(
            "time of all threads without a dropped record",
            words::share_of(coverage.covered_ns, coverage.threads_ns),
        ),
        row("time in recorded polls, of all threads together", words::time(coverage.polled_ns)),
        row(
            "CPU time of all threads together, in polls or not",
            coverage.cpu_ns.map_or("not known: the process could not read it".to_owned(), words::time),
        ),
        row("polls whose CPU is known", polls(coverage.with_cpu)),
        row("polls whose waker's CPU is known", polls(coverage.with_waker)),
        row("polls whose wake-to-poll delay is known", polls(coverage.with_delay)),
        row(
            "polls not linked to the task's poll before, since records are missing between",
            polls(coverage.unlinked),
        ),
        row("polls of tasks whose spawn is not in the recording", polls(coverage.without_place)),
        row("polls in which the thread changed its CPU", polls(coverage.changed_cpu)),
        row("tasks forgotten because too many were alive", count(coverage.forgotten_tasks)),
        row(
            "CPUs whose last-level cache is known",
            format!("{} of {}", coverage.cpus_with_llc, coverage.cpus),
        ),
        row(
            "CPUs whose node and socket are known",
            format!("{} of {}", coverage.cpus_with_node, coverage.cpus),
        ),
    ]
}

#[cfg(test)]
mod tests;
