//! `warmcore topo`: draws a machine, and with `--probe` compares the drawing with measured times.
//!
//! A source gives a topology; `draw` draws it as boxes, `probe` times pairs of CPUs, `verdict` compares the two,
//! `table` prints the times. Only this machine can be probed. 384 CPUs are drawn in about 60 lines of 80 columns;
//! timing the pairs takes 2 s on 2 CPUs and at most 20 s.
//!
//! `docs/json.md`, section topo, describes the output of `--json`; a test in `topo/tests.rs` compares its fields.

use anyhow::bail;
use ratatui::crossterm::terminal;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_report::Probe;
use warmcore_results::{SCHEMA, write_whole};
use warmcore_sys::platform;
use warmcore_topo::{MACHINES, Topology, machines};

mod boxes;
mod draw;
mod pairs;
mod probe;
mod table;
#[cfg(test)]
mod tests;
mod verdict;
mod working_set;

pub use probe::probe;

/// Arguments of `warmcore topo`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Draw the machine of this /sys tree, of a folder with sys/ and proc/ in it, or of a file that --save wrote
    #[arg(long, value_name = "PATH", group = "source")]
    sysfs: Option<PathBuf>,
    /// Draw the machine of this file of `lstopo --of xml` (hwloc 2 or 3)
    #[arg(long, value_name = "FILE", group = "source")]
    hwloc: Option<PathBuf>,
    #[arg(long, value_name = "NAME", group = "source", help = machine_help())]
    machine: Option<String>,
    /// Time how long a cache line takes between the CPUs of this machine (up to 20 s), and report whether the times
    /// agree with the kernel's topology
    #[arg(long)]
    probe: bool,
    /// Also write the topology, and the times of --probe, to FILE as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the files of /sys and /proc that describe this machine, or those of --sysfs, to FILE: a text that
    /// --sysfs reads on any machine
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Draw every last-level cache, also where many are alike
    #[arg(long)]
    all: bool,
    /// Draw with -, | and +; the default if the locale is not UTF-8
    #[arg(long)]
    ascii: bool,
}

fn machine_help() -> String {
    let names = machines(MACHINES).map(|names| names.join(", ")).unwrap_or_default();
    format!("Draw a machine that Warmcore knows: {names}")
}

/// What `--json` writes.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    what: &'static str,
    topology: &'a Topology,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<&'a Probe>,
}

/// `warmcore topo`.
///
/// # Errors
/// A source that can't be read or contradicts itself, options that exclude each other, a probe that fails (see
/// [`probe`](fn@probe)), a file that can't be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    run_on(args, &mut std::io::stdout())
}

fn run_on(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    if let Some(path) = &args.save {
        save(args, path)?;
    }
    let (topology, whence) = read(args)?;
    let mut paper = Paper::of(args, out);
    paper.print(&draw::draw(&topology, &whence, paper.width, args.all));
    let mut probed = None;
    if args.probe && topology.usable().len() < 2 {
        // A single CPU has no pairs to time. That is a fact about the machine and no error.
        paper.print(&format!(
            "\nNo hand-over to time: this process may use CPU {} alone.\n",
            topology.usable()
        ));
    } else if args.probe {
        let found = probe_with_bar(&topology, TIMING);
        if INTERRUPTED.load(Relaxed) {
            eprintln!("interrupted: the probe was not finished, and nothing of it is kept");
            warmcore_bench::signals::end();
        }
        let found = probed.insert(found?);
        paper.print(&format!("\n{}", table::table(&topology, found, paper.width)));
    }
    if let Some(path) = &args.json {
        write_whole(path, &serde_json::to_vec_pretty(&Json::of(&topology, probed.as_ref()))?)?;
        eprintln!("written: {}", path.display());
    }
    Ok(())
}

/// The title of the progress bar of a probe.
pub(crate) const TIMING: &str = "timing pairs of CPUs";

/// Probes the machine, and shows the progress on a bar.
pub(crate) fn probe_with_bar(topology: &Topology, title: &str) -> anyhow::Result<Probe> {
    let bar = warmcore_bench::progress(1, title);
    let found = probe(topology, &|done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    found
}

impl<'a> Json<'a> {
    fn of(topology: &'a Topology, probe: Option<&'a Probe>) -> Self {
        Self { schema: SCHEMA, what: "topo", topology, probe }
    }
}

/// Writes a capture of a /sys tree, even of one that contradicts itself, since the capture is needed to find out why.
fn save(args: &Args, path: &Path) -> anyhow::Result<()> {
    let given = [("--hwloc", args.hwloc.is_some()), ("--machine", args.machine.is_some())];
    if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given) {
        bail!("--save keeps the files of a /sys tree, and {option} has none; leave one of them out");
    }
    let root = args.sysfs.as_deref().unwrap_or(Path::new("/"));
    write_whole(path, Topology::capture(root)?.as_bytes())?;
    eprintln!("written: {}", path.display());
    Ok(())
}

/// The machine, and a description of where it was read.
fn read(args: &Args) -> anyhow::Result<(Topology, String)> {
    let elsewhere = [args.sysfs.is_some(), args.hwloc.is_some(), args.machine.is_some()];
    let option = ["--sysfs", "--hwloc", "--machine"].into_iter().zip(elsewhere).find(|(_, given)| *given);
    if let (true, Some((option, _))) = (args.probe, option) {
        bail!("--probe times the CPUs of this machine, and {option} names another; leave one of them out");
    }
    let topology = match (&args.sysfs, &args.hwloc, &args.machine) {
        (Some(path), ..) => Topology::from_captured(path)?,
        (_, Some(file), _) => Topology::from_hwloc(file)?,
        (.., Some(name)) => Topology::from_machine(MACHINES, name)?,
        _ => {
            let virtual_of = platform::hypervisor().map(|name| format!(", virtual: {name}"));
            return Ok((
                Topology::this_machine()?,
                format!("this machine{}", virtual_of.unwrap_or_default()),
            ));
        }
    };
    let whence = topology.source.clone();
    Ok((topology, whence))
}

/// The output, its width, and whether it can show Unicode.
struct Paper<'a> {
    out: &'a mut dyn Write,
    width: usize,
    ascii: bool,
}

/// Narrower than this, nested boxes have no room; wider, lines are hard to follow.
const WIDTHS: std::ops::RangeInclusive<usize> = 40..=240;
const WIDTH: usize = 80;

impl<'a> Paper<'a> {
    fn of(args: &Args, out: &'a mut dyn Write) -> Self {
        let set = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
        let width = set.or_else(terminal_width).unwrap_or(WIDTH).clamp(*WIDTHS.start(), *WIDTHS.end());
        // The first variable that is set and not empty decides, even if it names no encoding: locale(7).
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|v| std::env::var(v).ok().filter(|l| !l.is_empty()));
        let utf8 = locale.is_some_and(|l| is_utf8(&l));
        Self { out, width, ascii: args.ascii || !utf8 }
    }

    fn print(&mut self, text: &str) {
        let text = boxes::harmless(text);
        let text = if self.ascii { boxes::ascii(&text) } else { text };
        // Ignore an error: usually the reader has closed the pipe.
        let _ = self.out.write_all(text.as_bytes());
    }
}

fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The columns of the terminal behind stdout, if it is one.
fn terminal_width() -> Option<usize> {
    let (columns, _) = std::io::stdout().is_terminal().then(|| terminal::size().ok())??;
    Some(usize::from(columns)).filter(|columns| *columns > 0)
}
