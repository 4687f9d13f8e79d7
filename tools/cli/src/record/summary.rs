//! Summary: which files were written, what is in them, and why there is none.

use anyhow::{Context, bail};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use warmcore_record::{Event, Recording, ThreadStats};
use warmcore_report::recording::{count, share};

/// What the face and the runtime read from the environment: a program with the recorder has this text in its file.
const VARIABLE: &[u8] = b"WARMCORE_RECORD";

/// How many events are read between two looks for a signal.
const EVENTS_BETWEEN: u64 = 1 << 16;

/// What one process recorded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The file.
    pub file: PathBuf,
    /// The process.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// The size of the file.
    pub bytes: u64,
    /// From the beginning of the recording to the last event.
    pub seconds: f64,
    /// Tasks with at least one recorded poll.
    pub tasks: u64,
    /// Polls that are in the file.
    pub polls: u64,
    /// Records that are missing because a thread's buffer was full.
    pub dropped: u64,
    /// Polls of tasks that were left out because only some tasks were sampled.
    pub skipped: u64,
    /// Why the recording ended. `None`: the process was killed, or it still runs.
    pub end: Option<String>,
}

impl Summary {
    /// Reads a recording.
    ///
    /// # Errors
    /// The file is no recording, or a signal came.
    pub fn read(path: &Path, mut is_interrupted: impl FnMut() -> bool) -> anyhow::Result<Self> {
        let bytes = std::fs::metadata(path).context("can't read the file")?.len();
        let mut recording = Recording::open(path)?;
        let (mut events, mut polls, mut last, mut end) = (0_u64, 0, recording.header().start, None);
        let mut tasks = BTreeSet::new();
        let mut threads: BTreeMap<u16, ThreadStats> = BTreeMap::new();
        loop {
            let event = match recording.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) if error.is_damaged() => {
                    end = Some(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            events += 1;
            if events.is_multiple_of(EVENTS_BETWEEN) && is_interrupted() {
                bail!("interrupted; the recording is complete");
            }
            match event {
                Event::Poll(poll) => {
                    polls += 1;
                    tasks.insert(poll.task);
                    last = last.max(poll.end());
                }
                Event::Stats { thread, stats } => _ = threads.insert(thread, stats),
                Event::End { why } => end = Some(why),
                _ => {}
            }
        }
        let header = recording.header();
        Ok(Self {
            file: path.to_owned(),
            pid: header.pid,
            command: header.command.clone(),
            bytes,
            seconds: header.ns(last - header.start) as f64 / 1e9,
            tasks: tasks.len() as u64,
            polls,
            dropped: threads.values().map(|stats| stats.dropped).sum(),
            skipped: threads.values().map(|stats| stats.skipped).sum(),
            end,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, seconds, .. } = self;
        let [tasks, polls, dropped, skipped] =
            [self.tasks, self.polls, self.dropped, self.skipped].map(count);
        let size = *bytes as f64 / 1e6;
        writeln!(
            f,
            "recorded {}: {size:.1} MB, process {}, {polls} polls of {tasks} tasks in {seconds:.1} s",
            super::shown(&self.file),
            self.pid
        )?;
        let coverage = match self.polls {
            0 => "no poll was recorded".to_owned(),
            some => format!("{} of the polls", share(some, some + self.dropped + self.skipped)),
        };
        writeln!(f, "coverage: {coverage} ({dropped} dropped, {skipped} of tasks that were not sampled)")?;
        match &self.end {
            Some(why) => writeln!(f, "ended: {why}"),
            None => {
                writeln!(f, "ended: the process was killed or still runs; what it had not written is missing")
            }
        }
    }
}

/// The files of a recording: `FILE` of the first process, and `FILE.PID` of each further one.
pub fn files_of(file: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    let is_ours = |other: &OsStr| {
        let rest = other.as_encoded_bytes().strip_prefix(name);
        let pid = rest.map(|rest| rest.strip_prefix(b".").unwrap_or(rest));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
            && pid.is_some_and(|pid| pid.iter().all(u8::is_ascii_digit))
            && rest != Some(b".")
    };
    let entries = std::fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    let mut files: Vec<PathBuf> =
        entries.flatten().filter(|entry| is_ours(&entry.file_name())).map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

/// Why no file was written, and what to do.
pub fn why_none(program: &OsStr) -> String {
    const ADOPT: &str = "`warmcore adopt` in the program's folder, then build it";
    let none = "nothing was recorded";
    match has_recorder(program) {
        Some(false) => format!(
            "{none}: {} has no recorder. To record it: {ADOPT}. If it only starts the program, that program has none, or \
             it started no runtime",
            program.display()
        ),
        Some(true) => format!(
            "{none}: the program has the recorder, and ended before it started a runtime. It may also have no right to \
             write the file, which it would have said on standard error"
        ),
        None => format!(
            "{none}: {} could not be read to see whether it has the recorder. If not: {ADOPT}",
            program.display()
        ),
    }
}

/// Whether the file of a program has the recorder's text.
fn has_recorder(program: &OsStr) -> Option<bool> {
    let path = Path::new(program);
    let bytes = if path.components().count() > 1 {
        std::fs::read(path).ok()?
    } else {
        let folders = std::env::var_os("PATH")?;
        let found = std::env::split_paths(&folders).map(|folder| folder.join(path)).find(|it| it.is_file());
        std::fs::read(found?).ok()?
    };
    Some(bytes.windows(VARIABLE.len()).any(|part| part == VARIABLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_recording_are_those_of_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.warmrec", "a.warmrec.12", "a.warmrec.", "a.warmrec.1x", "a.warmrec12", "b.warmrec"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let at = |name: &str| folder.path().join(name);
        assert_eq!(files_of(&at("a.warmrec")).unwrap(), [at("a.warmrec"), at("a.warmrec.12")]);
    }

    #[test]
    fn coverage_counts_what_is_missing() {
        let mut summary = Summary {
            file: "f".into(),
            pid: 1,
            command: String::new(),
            bytes: 0,
            seconds: 1.0,
            tasks: 0,
            polls: 0,
            dropped: 0,
            skipped: 0,
            end: None,
        };
        assert!(summary.to_string().contains("coverage: no poll was recorded (0 dropped"), "{summary}");
        (summary.polls, summary.dropped, summary.skipped) = (99_999, 1, 0);
        assert!(summary.to_string().contains("coverage: 99.9 % of the polls (1 dropped"), "{summary}");
    }
}
