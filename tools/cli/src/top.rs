//! `warmcore top`: shows the workers of a running process by last-level cache, and the use of CPU by its tenants and by
//! its tasks.
//!
//! The process answers on a socket (`warmcore_runtime::observe`). An [`Interval`] is made from two snapshots: the
//! differences of their counters, per second. `draw` writes the interval into the cells of a screen of any size;
//! `--once` prints the same cells as text. Each answer costs the process 10 µs per worker, 2 µs per tenant and
//! 0.1 µs per task, on a thread that is not a worker.

mod draw;
mod snapshot;
mod tables;
#[cfg(test)]
mod tests;

pub(crate) use draw::foreign_imbalance;
pub use snapshot::{Interval, Rates, Snapshot, Use};

use anyhow::{Context, bail};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;
use ratatui::layout::Rect;
use std::io::{ErrorKind, IsTerminal, stdout};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use warmcore_results::printable::printable_json;
use warmcore_runtime::observe::{self, Observable};

/// Arguments of `warmcore top`.
#[derive(Debug, clap::Args)]
#[command(after_help = HOW)]
pub struct Args {
    /// The process to watch; PID.2 is its second runtime. Needed only if several can be watched
    #[arg(value_name = "PID")]
    process: Option<String>,
    /// Prints one snapshot as JSON (docs/json.md), and ends
    #[arg(long, conflicts_with = "once")]
    json: bool,
    /// Prints one frame as text, and ends
    #[arg(long)]
    once: bool,
    /// Seconds between two snapshots
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    every: f64,
}

const HOW: &str = "\
A process can be watched if its runtime was built with `Runtime::builder().observe(true)`, or if it was
started with WARMCORE_TOP=1 in its environment:

    WARMCORE_TOP=1 ./server &
    warmcore top

It then opens a socket that its own user alone can connect to, and root.";

/// The width of a frame that is not printed to a terminal, or to one of unknown width.
const PLAIN_WIDTH: u16 = 80;

/// The time between two checks for a new snapshot; keys take effect at once.
const GLANCE: Duration = Duration::from_millis(50);

/// `warmcore top`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    if !(0.05..=3600.0).contains(&args.every) {
        bail!("a look every {} seconds; 0.05 to 3600 are possible", args.every);
    }
    let every = Duration::from_secs_f64(args.every);
    let which = choose(args.process.as_deref(), args.json, observe::list())?;
    if args.json {
        println!("{}", checked(&ask(&which)?)?);
        return Ok(());
    }
    let first = Snapshot::parse(&ask(&which)?)?;
    if args.once {
        sleep(&which, every);
        let interval = Interval::between(&first, Snapshot::parse(&ask(&which)?)?);
        let width = terminal::size().map_or(PLAIN_WIDTH, |(width, _)| width);
        print!("{}", plain(&interval, if stdout().is_terminal() { width } else { PLAIN_WIDTH }));
        return Ok(());
    }
    if !stdout().is_terminal() {
        bail!("the output is no terminal; `--once` prints one frame as text, `--json` one snapshot");
    }
    if let Some(end) = ratatui::run(|terminal| watch(terminal, &which, first, every))? {
        println!("{end}");
    }
    Ok(())
}

/// Returns the runtime that the arguments name, or the only one that can be watched.
fn choose(said: Option<&str>, is_json: bool, found: Vec<Observable>) -> anyhow::Result<Observable> {
    let Some(said) = said else {
        return match found.len() {
            0 => bail!("no process here can be watched\n\n{HOW}\n{}", looked_in()),
            1 => Ok(found.into_iter().next().expect("there is one")),
            _ => {
                bail!("several can be watched; say which:\n{}", describe(&found).join("\n"))
            }
        };
    };
    let (pid, runtime) = said.split_once('.').unwrap_or((said, "1"));
    let (Ok(pid), Ok(runtime)) = (pid.parse::<u32>(), runtime.parse::<u32>()) else {
        // The other commands have `--json FILE`, so explain the difference.
        let json = if is_json { "; `--json` takes no file here, and prints on standard output" } else { "" };
        bail!("`{said}` is no process; say its number, as in `warmcore top 1234`{json}");
    };
    let of_it: Vec<_> = found.into_iter().filter(|one| one.pid == pid).collect();
    if of_it.is_empty() {
        if !Path::new("/proc").join(pid.to_string()).exists() {
            bail!("there is no process {pid}");
        }
        bail!("process {pid} can't be watched by this user\n\n{HOW}\n{}", looked_in());
    }
    let count = of_it.len();
    let wanted = of_it.into_iter().find(|one| one.runtime == runtime);
    wanted.with_context(|| {
        format!("process {pid} has no runtime {runtime} that can be watched; it has {count}")
    })
}

fn looked_in() -> String {
    let folders: Vec<String> = observe::folders().iter().map(|path| path.display().to_string()).collect();
    format!("Looked for sockets in {}.", folders.join(" and "))
}

/// The most runtimes that an error message names.
const TOLD_MAX: usize = 32;

/// Returns a line for each of the first [`TOLD_MAX`] runtimes, and, if there are more, one with their number. The
/// runtimes that have a line are asked at the same time, so that a runtime without an answer doesn't delay the others.
fn describe(found: &[Observable]) -> Vec<String> {
    let told = &found[..found.len().min(TOLD_MAX)];
    let user = observe::user();
    let mut lines: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            told.iter().map(|one| scope.spawn(|| Snapshot::parse(&one.ask().ok()?).ok())).collect();
        let lines = told.iter().zip(asked).map(|(one, asked)| {
            let runtime = if one.runtime == 1 { String::new() } else { format!(".{}", one.runtime) };
            let name = match asked.join().ok().flatten() {
                Some(it) => format!("  {}: {} ({} workers)", it.process, it.name, it.metrics.workers.len()),
                None => "  does not answer".into(),
            };
            let of = if one.user == user { String::new() } else { format!(", user {}", one.user) };
            format!("    warmcore top {}{runtime}{name}{of}", one.pid)
        });
        lines.collect()
    });
    if found.len() > TOLD_MAX {
        lines.push(format!("    and {} more", found.len() - TOLD_MAX));
    }
    lines
}

/// Returns a snapshot as a line that is safe to print: unprintable characters are escaped. An error if `line` is not a
/// snapshot.
fn checked(line: &str) -> anyhow::Result<String> {
    Snapshot::parse(line)?;
    Ok(printable_json(line.trim_end()))
}

fn ask(which: &Observable) -> anyhow::Result<String> {
    which.ask().map_err(|error| match gone(which, &error) {
        Some(text) => anyhow::Error::msg(text),
        None => anyhow::Error::new(error).context(format!("process {} does not answer", which.pid)),
    })
}

/// Returns a message if the error means that the process or its runtime has ended.
fn gone(which: &Observable, error: &std::io::Error) -> Option<String> {
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    let pid = which.pid;
    match error.kind() {
        NotFound | ConnectionRefused | ConnectionReset | BrokenPipe | UnexpectedEof => {
            Some(match which.is_running() {
                true => format!("the runtime has ended; process {pid} still runs"),
                false => format!("process {pid} has ended"),
            })
        }
        _ => None,
    }
}

/// Draws a screen of the height `draw::height`, and returns its cells as text.
fn plain(interval: &Interval, width: u16) -> String {
    let area = Rect::new(0, 0, width, draw::height(interval));
    let mut cells = Buffer::empty(area);
    draw::draw(interval, &draw::View::default(), area, &mut cells);
    let rows = (0..area.height).map(|y| {
        let row: String = (0..width).map(|x| cells[(x, y)].symbol()).collect();
        format!("{}\n", row.trim_end())
    });
    rows.collect()
}

/// Shows the process until the user quits. Returns a message if the process or its runtime has ended.
fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    which: &Observable,
    first: Snapshot,
    every: Duration,
) -> anyhow::Result<Option<String>> {
    let answers = ask_on(which.clone(), every);
    let mut view = draw::View { is_live: true, ..draw::View::default() };
    let mut interval = Interval::between(&first.clone(), first);
    loop {
        terminal.draw(|frame| {
            let area = frame.area();
            view.scroll = view.scroll.min(draw::scroll_max(&interval, area));
            draw::draw(&interval, &view, area, frame.buffer_mut());
        })?;
        let mut is_same = true;
        while is_same {
            if event::poll(GLANCE)? {
                let page = terminal.size()?.height.saturating_sub(5).max(1);
                match act(&event::read()?) {
                    Act::Quit => return Ok(view.end),
                    Act::Up => view.scroll = view.scroll.saturating_sub(1),
                    Act::Down => view.scroll = view.scroll.saturating_add(1),
                    Act::PageUp => view.scroll = view.scroll.saturating_sub(page),
                    Act::PageDown => view.scroll = view.scroll.saturating_add(page),
                    Act::Nothing => {}
                }
                is_same = false;
            }
            while let Ok(answer) = answers.try_recv() {
                is_same = false;
                match answer {
                    Ok(line) => {
                        interval = Interval::between(&interval.now, Snapshot::parse(&line)?);
                        view.note = None;
                    }
                    Err(error) => match gone(which, &error) {
                        Some(end) => view.end = Some(end),
                        None => view.note = Some(format!("process {} does not answer", which.pid)),
                    },
                }
            }
        }
    }
}

/// Asks for snapshots on a separate thread: a stopped process may delay an answer, and keys and resizes must not wait
/// for it.
fn ask_on(which: Observable, every: Duration) -> Receiver<std::io::Result<String>> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        // Ask again soon, since rates need a second snapshot.
        std::thread::sleep(every.min(Duration::from_millis(200)));
        loop {
            let answer = which.ask();
            let is_over = answer.as_ref().is_err_and(|error| gone(&which, error).is_some());
            if tell.send(answer).is_err() || is_over {
                return;
            }
            sleep(&which, every);
        }
    });
    told
}

/// Waits for `rest`. Meanwhile asks the process every [`observe::LOOK_EVERY`] and drops the answer, since the process
/// keeps some counters only while it is asked.
fn sleep(which: &Observable, mut rest: Duration) {
    while rest > observe::LOOK_EVERY {
        std::thread::sleep(observe::LOOK_EVERY);
        rest -= observe::LOOK_EVERY;
        let _ = which.ask();
    }
    std::thread::sleep(rest);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Quit,
    Up,
    Down,
    PageUp,
    PageDown,
    // The screen is drawn again even then, because its size may have changed.
    Nothing,
}

fn act(event: &Event) -> Act {
    let Event::Key(key) = event else { return Act::Nothing };
    if key.kind == KeyEventKind::Release {
        return Act::Nothing;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Act::Quit,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Act::Quit,
        KeyCode::Up | KeyCode::Char('k') => Act::Up,
        KeyCode::Down | KeyCode::Char('j') => Act::Down,
        KeyCode::PageUp => Act::PageUp,
        KeyCode::PageDown | KeyCode::Char(' ') => Act::PageDown,
        _ => Act::Nothing,
    }
}
