//! `warmcore report FILE`: what a recording says, as a page, as text, and for other programs.
//!
//! The file is read twice for the page and once for each export. What the process writes meanwhile is left out, so that all
//! passes read the same. A file that ends anywhere is shown up to its last whole block; one that is damaged is shown up to
//! the damage, and the command fails.

mod probe;

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_record::{ReadError, Recording};
use warmcore_report::recording;
use warmcore_results::{SCHEMA, write_whole};
use warmcore_trace::export::{self, Exported, Limits};
use warmcore_trace::{Analysis, Ending};

/// Arguments of `warmcore report FILE`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With FILE")]
pub struct Outputs {
    /// The page to write; default: beside FILE, with .html for .warmrec or after the name. Outputs that exist are replaced
    #[arg(long, short, value_name = "PAGE", requires = "file")]
    output: Option<PathBuf>,
    /// Also write the polls as a trace for ui.perfetto.dev, at most a million
    #[arg(long, value_name = "OUT", requires = "file")]
    perfetto: Option<PathBuf>,
    /// Also write the polls as a trace for dial9's viewer, at most a million
    #[arg(long, value_name = "OUT", requires = "file")]
    dial9: Option<PathBuf>,
    /// Begin these traces so many seconds after the recording began
    #[arg(long, value_name = "SECONDS", requires = "file", value_parser = nanoseconds)]
    from: Option<u64>,
    /// End these traces so many seconds after the recording began
    #[arg(long, value_name = "SECONDS", requires = "file", value_parser = nanoseconds)]
    to: Option<u64>,
    /// What `warmcore topo --probe --json PROBE` measured on the machine of the recording, for the cost of moves
    #[arg(long, value_name = "PROBE", requires = "file")]
    probe: Option<PathBuf>,
}

/// Reads seconds as nanoseconds.
fn nanoseconds(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..1e9).contains(&seconds) => Ok((seconds * 1e9).round() as u64),
        _ => Err("not a number of seconds from 0 on, such as 12.5".to_owned()),
    }
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Json<'a> {
    schema: u32,
    what: &'static str,
    recording: &'a Analysis,
}

/// Shows a recording.
///
/// # Errors
/// The file is no recording, or is damaged; an output can't be written, is the recording itself, or is chosen
/// twice.
pub(crate) fn show(file: &Path, args: &Outputs, json: Option<&Path>) -> anyhow::Result<()> {
    let page = args.output.clone().unwrap_or_else(|| page_of(file));
    let limits = limits(args)?;
    let outputs = [Some(&*page), json, args.perfetto.as_deref(), args.dial9.as_deref()];
    let outputs: Vec<&Path> = outputs.into_iter().flatten().collect();
    for (at, output) in outputs.iter().enumerate() {
        ensure!(
            !is_same(file, output),
            "{} is the recording itself; choose another output",
            output.display()
        );
        let is_taken = outputs[..at].iter().any(|other| is_same(other, output));
        ensure!(!is_taken, "{} is chosen for two outputs; choose another file for one", output.display());
    }
    let source = Source::of(file)?;
    // Minutes of reading begin only after the header was understood.
    let named = || file.display().to_string();
    let header = source.open(&ProgressBar::hidden()).with_context(named)?.header().clone();
    let probe = args.probe.as_ref().map(|path| probe::read(path, &header.cpus)).transpose()?;

    let bar = warmcore_bench::progress(source.bytes * 2, "the recording");
    let analysis = warmcore_trace::analyze(|| source.open(&bar), &probe.unwrap_or_default());
    end_if_interrupted();
    let analysis = analysis.with_context(named)?;
    bar.finish_and_clear();
    write_whole(&page, recording::page(&analysis).as_bytes())?;
    if let Some(path) = json {
        let json = Json { schema: SCHEMA, what: "recording", recording: &analysis };
        write_whole(path, &serde_json::to_vec(&json)?)?;
    }
    println!("{}", recording::text(&analysis));
    let page = std::path::absolute(&page).unwrap_or(page);
    println!("The page:  file://{}", page.display());
    if let Some(path) = &args.perfetto {
        let done =
            source.export(path, "to Perfetto", |recording, out| export::perfetto(recording, out, &limits))?;
        println!("Perfetto:  {} ({done}); open it at https://ui.perfetto.dev", path.display());
    }
    if let Some(path) = &args.dial9 {
        let done =
            source.export(path, "to dial9", |recording, out| export::dial9(recording, out, &limits))?;
        println!("dial9:     {} ({done})", path.display());
    }
    match &analysis.program.ending {
        Ending::Damaged(what) => bail!("{}: {what}; what is before that is shown", file.display()),
        Ending::Ended(_) | Ending::Open | Ending::Cut(_) => Ok(()),
    }
}

fn limits(args: &Outputs) -> anyhow::Result<Limits> {
    let limits = Limits { from_ns: args.from.unwrap_or(0), to_ns: args.to, ..Limits::default() };
    if args.from.or(args.to).is_some() {
        ensure!(
            args.perfetto.is_some() || args.dial9.is_some(),
            "--from and --to choose the time of a trace; add --perfetto OUT or --dial9 OUT"
        );
    }
    ensure!(limits.to_ns.is_none_or(|to| to > limits.from_ns), "--to is not after --from");
    Ok(limits)
}

/// The page of a recording. FILE.PID, of a further process, has one of its own.
fn page_of(file: &Path) -> PathBuf {
    if file.extension().is_some_and(|extension| extension == "warmrec") {
        return file.with_extension("html");
    }
    let mut page = file.as_os_str().to_owned();
    page.push(".html");
    page.into()
}

/// Whether both paths lead to the same file, which need not exist.
fn is_same(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        let folder = || std::path::absolute(path).ok()?.parent()?.canonicalize().ok();
        path.canonicalize().ok().or_else(|| Some(folder()?.join(path.file_name()?)))
    };
    place(a).is_some_and(|a| place(b) == Some(a))
}

pub(crate) fn end_if_interrupted() {
    if INTERRUPTED.load(Relaxed) {
        eprintln!("interrupted: nothing more was written");
        warmcore_bench::signals::end();
    }
}

/// The file of a recording, and how long it was when the command began.
pub(crate) struct Source<'a> {
    path: &'a Path,
    file: File,
    pub(crate) bytes: u64,
}

pub(crate) type Reader<'s> = BufReader<Watched<'s>>;

impl<'a> Source<'a> {
    pub(crate) fn of(path: &'a Path) -> anyhow::Result<Self> {
        let help =
            || format!("can't read {}; `warmcore record -- COMMAND` writes a recording", path.display());
        let data = std::fs::metadata(path).with_context(help)?;
        ensure!(
            data.is_file(),
            "{} is not a file; a recording is a file that `warmcore record` wrote, and is read several times",
            path.display()
        );
        let file = File::open(path).with_context(help)?;
        Ok(Self { path, file, bytes: data.len() })
    }

    /// Reads the header. What is read moves the bar.
    pub(crate) fn open(&self, bar: &ProgressBar) -> Result<Recording<Reader<'_>>, ReadError> {
        let watched = Watched { file: &self.file, at: 0, end: self.bytes, bar: bar.clone() };
        Recording::new(BufReader::with_capacity(1 << 20, watched))
    }

    /// Writes an export whole, or not at all: a trace of [`Limits::POLLS_MAX`] polls fits in memory.
    fn export(
        &self,
        path: &Path,
        name: &str,
        export: impl FnOnce(&mut Recording<Reader<'_>>, &mut Vec<u8>) -> io::Result<Exported>,
    ) -> anyhow::Result<Exported> {
        let bar = warmcore_bench::progress(self.bytes, name);
        let mut bytes = Vec::new();
        let done = self
            .open(&bar)
            .map_err(io::Error::other)
            .and_then(|mut recording| export(&mut recording, &mut bytes));
        end_if_interrupted();
        let done = done.with_context(|| self.path.display().to_string())?;
        bar.finish_and_clear();
        write_whole(path, &bytes)?;
        Ok(done)
    }
}

/// Reads the file up to `end`, moves a progress bar, and fails after a signal.
pub(crate) struct Watched<'s> {
    file: &'s File,
    at: u64,
    end: u64,
    bar: ProgressBar,
}

impl Read for Watched<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if INTERRUPTED.load(Relaxed) {
            return Err(io::Error::other("interrupted"));
        }
        let most = bytes.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut bytes[..most], self.at)?;
        self.at += read as u64;
        self.bar.inc(read as u64);
        Ok(read)
    }
}
