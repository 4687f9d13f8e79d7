//! `warmcore record`: runs a command whose programs write a recording of their polls, and says what was recorded.
//!
//! The recorder is in the program: the face that `warmcore adopt` puts in tokio's place, or Warmcore's runtime. The
//! environment variable WARMCORE_RECORD tells it the file, and WARMCORE=0 tells the face to use tokio's scheduler. So this
//! command only sets both, waits (`child`), and reads what was written (`summary`).
//!
//! The command's output stays its own: all text of `warmcore record` goes to standard error.

mod child;
mod summary;

use anyhow::{Context, bail};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use summary::Summary;
use warmcore_results::{SCHEMA, system, write_whole};

/// Arguments of `warmcore record`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// The scheduler of the program's multi-thread runtimes
    #[arg(long, value_enum, default_value_t = Scheduler::Tokio)]
    scheduler: Scheduler,
    /// The file of the recording, which must be new; default: COMMAND-TIME.warmrec in the current folder
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write the summary to FILE, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Which scheduler runs the tasks of the recorded program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Scheduler {
    /// Tokio's: what the program does today
    Tokio,
    /// Warmcore's
    Warmcore,
}

impl Scheduler {
    fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio's scheduler",
            Self::Warmcore => "Warmcore's scheduler",
        }
    }
}

const AFTER: &str = "\
The program must be adopted (`warmcore adopt`, then build it), or use Warmcore itself. Ctrl-C and SIGTERM end the
program, and then this command says what was recorded. Its exit status is that of the command; 1 if the command
succeeds and nothing was recorded.

    warmcore record -- target/release/server --port 8080
    warmcore report server-20261123-081500.warmrec";

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    /// The exit status: the command's, or 128 and the number of the signal that ended it.
    status: i32,
    /// One for each process that recorded.
    recordings: Vec<Summary>,
}

/// `warmcore record`. Returns the exit status of the command.
///
/// # Errors
/// The command can't be run, nothing was recorded, or a recording can't be read.
pub fn command(args: &Args) -> anyhow::Result<i32> {
    let file = file(args)?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env("WARMCORE_RECORD", &file);
    match args.scheduler {
        Scheduler::Tokio => command.env("WARMCORE", "0"),
        Scheduler::Warmcore => command.env_remove("WARMCORE"),
    };
    eprintln!("warmcore: recording on {} into {}", args.scheduler.name(), file.display());
    let mut child = child::Running::start(&mut command)?;
    let status = child.wait()?;
    let files = summary::files_of(&file)?;
    let mut recordings = Vec::new();
    for path in &files {
        match Summary::read(path, || child.is_interrupted()) {
            Ok(summary) => {
                eprint!("{summary}");
                recordings.push(summary);
            }
            Err(error) => eprintln!("warmcore: {}: {error:#}", path.display()),
        }
    }
    if let Some(path) = &args.json {
        let json = serde_json::json!({ "schema": SCHEMA, "what": "record", "record": Outcome { status, recordings: recordings.clone() } });
        write_whole(path, &serde_json::to_vec_pretty(&json)?)?;
    }
    match status {
        0 => {}
        129..=192 => eprintln!("warmcore: the command was ended by signal {}", status - 128),
        _ => eprintln!("warmcore: the command ended with status {status}"),
    }
    match (status, files.is_empty(), recordings.len() < files.len()) {
        (0, true, _) => bail!("{}", summary::why_none(&args.command[0])),
        (0, _, true) => bail!("a recording can't be read"),
        (_, true, _) => eprintln!("warmcore: {}", summary::why_none(&args.command[0])),
        _ => {}
    }
    if let Some(file) = files.first() {
        eprintln!("next: warmcore report {}", shell_word(&shown(file)));
    }
    Ok(status)
}

/// The absolute path of the recording, where no file is yet and a file can be made.
fn file(args: &Args) -> anyhow::Result<PathBuf> {
    let chosen = match &args.output {
        Some(path) => path.clone(),
        None => {
            let time: String = system::utc_now().chars().filter(char::is_ascii_alphanumeric).collect();
            // 20261123T081500Z
            let name = Path::new(&args.command[0]).file_stem().unwrap_or(OsStr::new("program"));
            let name = name.to_string_lossy();
            let stem = format!("{name}-{}-{}", &time[..8], &time[9..15]);
            let numbered = (2..).map(|n| format!("{stem}-{n}.warmrec"));
            let mut names = std::iter::once(format!("{stem}.warmrec")).chain(numbered);
            names.find(|name| !exists(Path::new(name))).map(PathBuf::from).context("no name is free")?
        }
    };
    let path = std::path::absolute(&chosen).context("the current folder is gone")?;
    if exists(&path) {
        bail!(
            "{} exists; a recording needs a new file, so choose another one or remove it",
            chosen.display()
        );
    }
    // The recorder creates the file. This finds out whether it can, before the program runs.
    let folder = path.parent().unwrap_or(Path::new("/"));
    tempfile::tempfile_in(folder).with_context(|| {
        format!("no file can be made in {}; `--output FILE` chooses another folder", folder.display())
    })?;
    Ok(path)
}

/// Whether something has this name, a broken link too.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The path as one types it in the current folder.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let inner = here.as_ref().and_then(|here| path.strip_prefix(here).ok());
    inner.unwrap_or(path).display().to_string()
}

/// The text as one word of a shell.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@+=,%".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_is_one_word_of_a_shell() {
        assert_eq!(shell_word("a/b-1.warmrec"), "a/b-1.warmrec");
        assert_eq!(shell_word("it's one"), r"'it'\''s one'");
    }

    #[test]
    fn a_file_that_exists_or_has_no_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Args {
            scheduler: Scheduler::Tokio,
            output: Some(folder.path().join(name)),
            json: None,
            command: vec!["true".into()],
        };
        assert_eq!(file(&at("new")).unwrap(), folder.path().join("new"));
        std::fs::write(folder.path().join("old"), "kept").unwrap();
        assert!(file(&at("old")).unwrap_err().to_string().contains("exists"));
        assert!(file(&at("none/new")).unwrap_err().to_string().contains("--output FILE"));
        // What tried the folder is gone.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
