//! Wake-to-poll delays: the histogram, and the longest ones with their place in the recording.

use super::places;
use super::svg::{Align, Picture, WIDTH};
use super::words::{self, count, share, time};
use warmcore_trace::{Analysis, Delays};

/// The classes of the histogram's colours, and what they are.
pub const LEGEND: [(&str, &str); 2] =
    [("o2", "the kernel alone does not explain it"), ("lost", "the kernel may explain it")];

/// The histogram; empty if no delay is known.
pub fn histogram(analysis: &Analysis) -> String {
    const LEFT: f64 = 138.0;
    const RIGHT: f64 = 150.0;
    const ROW: f64 = 20.0;
    let delays = &analysis.delays;
    let most = delays.buckets.iter().map(|bucket| bucket.polls).max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let all: u64 = delays.buckets.iter().map(|bucket| bucket.polls).sum();
    let mut picture = Picture::new(ROW * delays.buckets.len() as f64 + 4.0);
    for (index, bucket) in delays.buckets.iter().enumerate() {
        let y = ROW * index as f64;
        let width = |polls: u64| (WIDTH - LEFT - RIGHT) * polls as f64 / most as f64;
        let label = format!("{} – {}", time(bucket.from_ns), time(bucket.to_ns));
        picture.text(LEFT - 8.0, y + 14.0, Align::End, true, &label);
        // A single poll is seen too.
        let seen = |polls: u64| if polls == 0 { 0.0 } else { width(polls).max(1.0) };
        let kernel = seen(bucket.maybe_kernel);
        let other = seen(bucket.polls - bucket.maybe_kernel.min(bucket.polls));
        picture.rect("o2", [LEFT, y + 3.0, other, ROW - 6.0]);
        picture.rect("lost", [LEFT + other, y + 3.0, kernel, ROW - 6.0]);
        let told = format!("{}, {}", count(bucket.polls), share(bucket.polls, all));
        picture.text(LEFT + other + kernel + 6.0, y + 14.0, Align::Start, false, &told);
    }
    picture.done("Polls by their wake-to-poll delay")
}

/// What the histogram shows, and of how much.
pub fn says(analysis: &Analysis) -> String {
    let (delays, coverage) = (&analysis.delays, &analysis.coverage);
    if delays.all.count == 0 {
        return format!(
            "No wake-to-poll delay is known: no data, and not the absence of delays. {}",
            words::covered(coverage)
        );
    }
    let kernel = match (delays.run_delay_ns, delays.involuntary_switches) {
        (Some(waited), Some(switches)) => format!(
            "Orange: polls that the kernel may explain, since it kept their thread waiting for a CPU for as long in that \
             second. For the blue ones, the kernel's wait of the thread that polled is too short to explain the delay alone. All threads together waited {} for a CPU and lost one {} times.",
            time(waited),
            count(switches)
        ),
        _ => "Which part the kernel explains is not known: the process could not read its run delay."
            .to_owned(),
    };
    let p99 = match delays.all.count {
        ..100 => String::new(),
        _ => format!(", 99 of 100 within {}", time(delays.all.p99_ns)),
    };
    format!(
        "Half of the polls began within {} of the wake{p99}; the longest took {}. {}The delay is known of {}. \
         {kernel} {}",
        time(delays.all.p50_ns),
        time(delays.all.max_ns),
        beside_idle(delays),
        words::of_polls(delays.all.count, coverage),
        words::covered(coverage)
    )
}

/// How often tasks waited beside an idle worker; empty if that is not known.
fn beside_idle(delays: &Delays) -> String {
    let Some(beside) = &delays.beside_idle else { return String::new() };
    if beside.times.count == 0 {
        return "No task waited for 0.2 ms while a worker polled nothing. ".to_owned();
    }
    let kernel: u64 = beside.buckets.iter().map(|bucket| bucket.maybe_kernel).sum();
    let kernel = match delays.run_delay_ns {
        Some(_) => format!("; {} of them may be the kernel's, which gave that worker no CPU", count(kernel)),
        None => String::new(),
    };
    format!(
        "{} tasks waited for 0.2 ms or longer while a worker polled nothing, the longest for {}{kernel}. ",
        count(beside.times.count),
        time(beside.times.max_ns)
    )
}

/// The longest delays: delay, when, the poll, the task, its place, the thread, the CPUs, where the task came from.
pub fn longest(analysis: &Analysis) -> Vec<[String; 8]> {
    let cpu = |cpu: Option<u32>| cpu.map_or("?".to_owned(), |cpu| cpu.to_string());
    let row = |delay: &warmcore_trace::LongDelay| {
        let thread = analysis.threads.get(usize::from(delay.thread)).map_or("", |thread| &*thread.name);
        let worker = delay.worker.map(|worker| format!(", worker {worker}")).unwrap_or_default();
        [
            time(delay.delay_ns),
            words::seconds(delay.at_ns),
            time(delay.duration_ns),
            delay.task.to_string(),
            analysis.places.get(delay.place as usize).map(places::name).unwrap_or_default(),
            format!("{thread}{worker}"),
            format!("{} → {}", cpu(delay.waker_cpu), cpu(delay.cpu)),
            words::origin(delay.origin).to_owned(),
        ]
    };
    analysis.delays.longest.iter().map(row).collect()
}
