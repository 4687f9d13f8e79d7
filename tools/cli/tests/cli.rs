//! Tests of the command as users run it, including bad input and systems with missing features.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use warmcore_bench::What;
use warmcore_results::{Results, Row, Standing};

fn warmcore(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmcore"));
    command.args(args).env_remove("WARMCORE_PERCPU");
    command
}

fn text(output: &Output) -> (String, String) {
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Runs the command, which must succeed; returns its stdout.
fn well(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{command:?}: {:?}\n{out}\n{err}", output.status);
    out
}

/// Runs the command, which must fail; returns its stderr.
fn badly(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = text(&output);
    assert!(!output.status.success(), "{command:?} succeeded:\n{out}");
    assert!(!err.contains("panicked"), "{err}");
    err
}

fn read(path: &Path) -> Results {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn help_is_enough_to_go_on() {
    let help = well(&mut warmcore(&["--help"]));
    for word in ["topo", "bench", "sim", "report", "doctor", "WARMCORE_PERCPU"] {
        assert!(help.contains(word), "{help}");
    }
    let help = well(&mut warmcore(&["bench", "--help"]));
    for word in ["percpu", "false-sharing", "cid", "budget", "wake", "http", "--json"] {
        assert!(help.contains(word), "{help}");
    }
    assert!(!help.contains("bench-part"), "{help}");
    // The old name of `bench` is accepted, and not shown.
    assert_eq!(well(&mut warmcore(&["run", "--help"])), help);
    for what in What::EVERY {
        let help = well(&mut warmcore(&["bench", what.name(), "--help"]));
        assert!(what.cases().iter().all(|case| help.contains(case.name)), "{help}");
        let error = badly(&mut warmcore(&["bench", what.name(), "--case", "nonsense"]));
        assert!(what.cases().iter().all(|case| error.contains(case.name)), "{error}");
    }
}

#[test]
fn a_closed_pipe_ends_a_command_without_the_message_of_a_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = warmcore(&["doctor"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.success(), text(&output).1), (false, String::new()));
}

#[test]
fn a_run_writes_what_it_prints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let out = well(warmcore(&["bench", "percpu", "--quick", "--case", "counter.add", "--json"]).arg(&path));
    let results = read(&path);
    assert_eq!((results.schema, results.what.as_str()), (3, "percpu"));
    assert!(
        results
            .rows
            .iter()
            .all(|r| r.case == "counter.add" && r.n > 0 && r.min <= r.p25 && r.p25 <= r.median)
    );
    for row in &results.rows {
        assert!(out.contains(&row.variant), "{} is not in\n{out}", row.variant);
    }
    assert!(results.rows.iter().any(|r| r.target.is_some()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a half-written file was left");
}

#[test]
fn ids_held_are_counted_and_a_timeline_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let out = well(warmcore(&["bench", "cid", "--quick", "--case", "cid.held", "--json"]).arg(&path));
    assert!(out.contains("cache-local") && out.contains("at most 4 ids: met"), "{out}");
    assert!(read(&path).timelines.is_empty());
    let out = well(warmcore(&["bench", "cid", "--quick", "--case", "cid.timeline", "--json"]).arg(&path));
    assert!(out.contains("The same CPU, the same id") && out.contains("CPU 7"), "{out}");
    let results = read(&path);
    assert_eq!(results.timelines.len(), 3);
    assert!(results.rows.iter().all(|r| r.case == "cid.timeline"));
}

#[test]
fn what_needs_a_process_of_its_own_gets_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    well(warmcore(&["bench", "cid", "--quick", "--case", "cid.memory", "--json"]).arg(&path));
    let rows = read(&path).rows;
    assert!(rows.len() > 4 && rows.iter().all(|r| r.unit == "bytes" && r.median > 0.0), "{rows:?}");
    // A part that is no valid JSON is an error.
    let error = badly(&mut warmcore(&["bench-part", "nonsense"]));
    assert!(error.contains("expected"), "{error}");
}

#[test]
fn budgets_are_measured_where_they_must_hold_and_where_two_cpus_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let rows = |case: &str| {
        well(warmcore(&["bench", "budget", "--quick", "--case", case, "--json"]).arg(&path));
        let results = read(&path);
        assert!(results.rows.iter().all(|r| r.case == case && r.n > 0), "{case}");
        results.rows
    };
    let memory = rows("memory");
    let each = memory.iter().find(|r| r.metric == "memory each").unwrap();
    assert_ne!(each.target.as_ref().unwrap().standing, Standing::Missed, "{each:?}");
    let two = warmcore_sys::affinity::allowed().unwrap().len() > 1;
    let limit = rows("limit");
    assert_eq!(limit.is_empty(), !two, "without a second CPU it is left out");
    for metric in ["over the limit", "false refusals", "left in the end"] {
        for row in limit.iter().filter(|r| r.variant == "warmcore atomic" && r.metric == metric) {
            let standing = row.target.as_ref().unwrap().standing;
            assert!(row.median == 0.0 && standing != Standing::Missed, "{row:?}");
        }
    }
}

#[test]
fn runtimes_are_raced_and_weighed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let two = warmcore_sys::affinity::allowed().unwrap().len() > 1;
    for (case, metrics) in [
        ("spawn.task", &["spawned and joined", "ratio"][..]),
        ("pingpong.channel.1", &["round trips", "p50", "p99", "p99.9", "ratio, p99"]),
        (
            "warm.yield.chase",
            &["touches", "slowest task", "largest ÷ smallest", "moved", "ratio, geometric mean of all"],
        ),
        ("idle", &["CPU per second"]),
    ] {
        well(warmcore(&["bench", "wake", "--quick", "--case", case, "--json"]).arg(&path));
        let results = read(&path);
        assert_eq!(results.what, "wake");
        if !two && case != "spawn.task" && case != "idle" {
            assert!(results.rows.is_empty(), "without a second CPU it is left out");
            continue;
        }
        for metric in metrics {
            let rows: Vec<_> = results.rows.iter().filter(|r| r.metric == *metric).collect();
            assert!(!rows.is_empty(), "{case} has no {metric}");
            for row in rows {
                assert!(row.case.starts_with(case) && row.n > 0 && row.min <= row.median, "{row:?}");
            }
        }
        for variant in ["warmcore", "tokio", "tokio pinned", "tokio per core", "smol"] {
            assert!(results.rows.iter().any(|r| r.variant == variant), "{case}: {variant} is missing");
        }
        assert!(results.rows.iter().any(|r| r.target.is_some()), "{case} promises nothing");
    }
    // Without Go, the variant `go` is left out, and a message says so.
    let mut without = warmcore(&["bench", "wake", "--quick", "--case", "storm", "--json"]);
    let output = without.arg(&path).env("PATH", folder.path()).output().unwrap();
    let (_, err) = text(&output);
    assert!(output.status.success() && err.contains("Go is left out"), "{err}");
    assert!(read(&path).rows.iter().all(|r| r.variant != "go" && r.over.as_deref() != Some("go")));
}

#[test]
fn servers_answer_rightly_on_every_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let of_slices = &["requests", "p50", "p99", "p99.9", "CPU per 100k requests", "errors", "ratio, p99"][..];
    for (case, metrics) in [("state.8", of_slices), ("hello.beside.8", of_slices), ("soak", &["errors"])] {
        let output =
            warmcore(&["bench", "http", "--quick", "--case", case, "--json"]).arg(&path).output().unwrap();
        let (_, err) = text(&output);
        assert!(output.status.success() && err.contains("our own generator"), "{err}");
        let results = read(&path);
        assert_eq!(results.what, "http");
        for metric in metrics {
            let rows: Vec<_> = results.rows.iter().filter(|r| r.metric == *metric).collect();
            assert!(!rows.is_empty(), "{case} has no {metric}");
            assert!(rows.iter().all(|r| r.case == case && r.n > 0 && r.min <= r.median), "{rows:?}");
        }
        for variant in ["warmcore", "tokio", "tokio pinned", "tokio per core", "smol"] {
            let errors = results.rows.iter().find(|r| r.variant == variant && r.metric == "errors").unwrap();
            assert!(errors.max == 0.0, "{errors:?}");
        }
        assert!(results.rows.iter().any(|r| r.target.is_some()), "{case} promises nothing");
    }
}

/// A bench whose stderr is read while it runs.
struct Running {
    child: Child,
    err: BufReader<ChildStderr>,
    said: String,
    folder: TempDir,
}

/// What a bench that has ended left: its output, its exit status, the rows that it wrote, and the number of its files.
struct Left {
    status: ExitStatus,
    out: String,
    err: String,
    rows: Vec<Row>,
    cases: BTreeSet<String>,
    files: usize,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        Self::start_as(args, |command| command)
    }

    fn start_as(args: &[&str], prepare: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = warmcore(&["bench"]);
        command.args(args).arg("--json").arg(folder.path().join("out.json"));
        // A signal to the bench's process group must not reach this test.
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = prepare(&mut command).spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Self { child, err, said: String::new(), folder }
    }

    /// Waits until stderr says that a case is done.
    fn until_done(self, case: &str) -> Self {
        self.until(&format!("{case} is done"))
    }

    /// Waits until stderr has this text.
    fn until(mut self, words: &str) -> Self {
        while !self.said.lines().any(|line| line.contains(words)) {
            assert!(
                self.err.read_line(&mut self.said).unwrap() > 0,
                "it ended before {words}: {}",
                self.said
            );
        }
        self
    }

    /// Waits until the bench has a child process for a part; returns the child's id.
    fn part(&mut self) -> i32 {
        let parent_of = |stat: &str| stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok();
        loop {
            for entry in std::fs::read_dir("/proc").unwrap().flatten() {
                let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                    continue;
                };
                let read = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
                if parent_of(&read("stat")) == Some(self.child.id()) && read("cmdline").contains("bench-part")
                {
                    return pid;
                }
            }
            assert!(self.child.try_wait().unwrap().is_none(), "it ended before it had a part");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns whether the bench ends within `limit`. Its output until then must fit into pipes.
    fn ends_within(&mut self, limit: Duration) -> bool {
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if began.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Sends a signal to the bench alone, or to its process group.
    fn signal(self, signal: i32, to_group: bool) -> Self {
        let id = self.child.id() as i32;
        // SAFETY: signals a child of this test that has not been reaped, or the group that it leads.
        unsafe { libc::kill(if to_group { -id } else { id }, signal) };
        self
    }

    fn end(mut self) -> Left {
        // A table may be larger than a pipe.
        let mut stdout = self.child.stdout.take().unwrap();
        let reading = std::thread::spawn(move || std::io::read_to_string(&mut stdout).unwrap());
        self.err.read_to_string(&mut self.said).unwrap();
        let (out, status) = (reading.join().unwrap(), self.child.wait().unwrap());
        let rows = read(&self.folder.path().join("out.json")).rows;
        let cases = rows.iter().map(|row| row.case.clone()).collect();
        let files = std::fs::read_dir(self.folder.path()).unwrap().count();
        Left { status, out, err: self.said, rows, cases, files }
    }
}

#[test]
fn an_interrupted_pause_ends_and_keeps_what_was_finished() {
    // After this case the bench sleeps for a minute.
    let running = Running::start(&["cid"]).until_done("cid.held");
    std::thread::sleep(Duration::from_millis(500));
    let left = running.signal(libc::SIGINT, false).end();
    assert_eq!(left.status.code(), Some(130), "{}", left.err);
    assert!(left.cases.contains("cid.held") && !left.cases.contains("cid.memory"), "{:?}", left.cases);
}

#[test]
fn an_interrupted_bench_keeps_the_finished_cases() {
    let ended = |left: Left, status: i32| {
        assert_eq!(left.status.code(), Some(status), "{}", left.err);
        assert!(left.out.contains("spawn.task") && left.err.contains("interrupted"), "{}", left.err);
        assert!(left.cases.contains("spawn.task") && !left.cases.contains("scope"), "{:?}", left.cases);
        assert_eq!(left.files, 1, "a half-written file was left");
    };
    let run = ["wake", "--quick"];
    let running = Running::start(&run).until_done("spawn.task");
    ended(running.signal(libc::SIGTERM, false).end(), 143);
    // Like `timeout`: a signal to the program, then to its group, which has the program and its Go child.
    let running = Running::start(&run).until_done("spawn.task");
    ended(running.signal(libc::SIGTERM, false).signal(libc::SIGTERM, true).end(), 143);
    // Like a shell, which starts background jobs with SIGINT ignored.
    fn ignoring(command: &mut Command) -> &mut Command {
        // SAFETY: one syscall between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::signal(libc::SIGINT, libc::SIG_IGN) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        }
    }
    let running = Running::start_as(&run, ignoring).until_done("spawn.task");
    ended(running.signal(libc::SIGINT, true).end(), 130);
}

#[test]
fn a_run_that_is_killed_has_left_the_cases_that_it_said_are_done() {
    let left =
        Running::start(&["wake", "--quick"]).until_done("spawn.one").signal(libc::SIGKILL, false).end();
    assert_eq!(left.status.signal(), Some(libc::SIGKILL));
    assert!(["spawn.task", "spawn.one"].iter().all(|case| left.cases.contains(*case)), "{:?}", left.cases);
}

#[test]
fn a_part_in_a_process_of_its_own_is_given_up_by_a_signal() {
    let mut running = Running::start(&["wake", "--case", "idle"]);
    let part = running.part();
    assert!(running.folder.path().join("out.json").is_file(), "an older run's file could stand for this one");
    // A stopped part never answers: the bench can only end by killing it.
    // SAFETY: signals a grandchild, whose parent waits for its answer.
    unsafe { libc::kill(part, libc::SIGSTOP) };
    running = running.signal(libc::SIGTERM, false);
    let has_ended = running.ends_within(Duration::from_secs(30));
    if !has_ended {
        // SAFETY: as above; the parent that waits for it has not reaped it.
        unsafe { libc::kill(part, libc::SIGKILL) };
    }
    let left = running.end();
    assert!(has_ended, "it waited for its part: {}", left.err);
    assert!(!Path::new(&format!("/proc/{part}")).exists(), "its part is still there");
    assert_eq!(left.status.code(), Some(143), "{}", left.err);
    assert!(left.rows.is_empty() && left.err.contains("interrupted"), "{}", left.err);
}

#[test]
fn an_interrupted_long_case_keeps_its_finished_parts() {
    if warmcore_sys::affinity::allowed().unwrap().len() < 2 {
        return;
    }
    // Five more shapes follow, which take seconds each.
    let (case, first) = ("warm.yield.chase", "warm.yield.chase.4x256K");
    let running = Running::start(&["wake", "--case", case]).until(&format!("{first} is measured"));
    let left = running.signal(libc::SIGTERM, false).end();
    assert_eq!(left.status.code(), Some(143), "{}", left.err);
    assert!(left.cases.contains(first) && left.cases.len() < 6, "{:?}", left.cases);
    assert!(!left.err.contains(&format!("{case} is done")), "it is not: {}", left.err);
    assert!(left.rows.iter().all(|row| row.n == left.rows[0].n), "a part of a shape: {:?}", left.rows);
}

#[test]
fn an_error_about_a_wrong_argument_names_the_right_ones() {
    let error = badly(warmcore(&["bench", "percpu", "--case", "counter.add"]).env("WARMCORE_PERCPU", "fast"));
    assert!(
        error.contains("WARMCORE_PERCPU=fast names no backend; it takes rseq, atomic or plain"),
        "{error}"
    );
    let error = badly(&mut warmcore(&["topo", "--machine", "nonsense"]));
    assert!(error.contains("epyc9654_2p"), "{error}");
    let error = badly(&mut warmcore(&[
        "bench",
        "percpu",
        "--quick",
        "--case",
        "memory",
        "--json",
        "/nowhere/out.json",
    ]));
    assert!(error.contains("/nowhere/out.json") && error.contains("may write"), "{error}");
}

#[test]
fn a_machine_that_is_not_here_is_simulated_and_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sim = |name: &str| {
        let path = file(name);
        let text = well(&mut warmcore(&[
            "sim",
            "drain",
            "--seeds",
            "2",
            "--quick",
            "--json",
            path.to_str().unwrap(),
        ]));
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        (text, written)
    };
    let ((text, first), (again, second)) = (sim("a.json"), sim("b.json"));
    assert_eq!(text, again);
    assert_eq!(first["tables"], second["tables"]);
    assert_eq!(first["command"], "warmcore sim drain --seeds 2 --quick");
    let rows = first["tables"][0]["rows"].as_array().unwrap();
    for row in rows {
        assert!(text.contains(row["name"].as_str().unwrap()), "{row} is not printed: {text}");
    }
    assert!(rows.iter().any(|row| row["met"] == true) && text.contains("published"), "{text}");
}

/// The test makes a link to standard output: `/dev/stdout` itself would be lost if the test failed as root.
#[test]
fn results_go_through_links_to_wherever_standard_output_goes_and_each_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let tasks = format!("{}/../../fixtures/sim/web.json", env!("CARGO_MANIFEST_DIR"));
    let load = ["sim", "load", "--tasks", &tasks, "--machine", "ryzen7950x", "--seeds", "1", "--policy"];
    let out = file("stdout");
    std::os::unix::fs::symlink("/dev/stdout", &out).unwrap();
    let is_link = || std::fs::symlink_metadata(&out).unwrap().is_symlink();
    let jsons = |text: &str| text.matches("\"schema\":").count();

    // To a pipe, and to a file: the JSON is before or after the printed text, not in its place.
    for (option, told) in [("--json", "\"schema\":"), ("--trace", "# tracer: nop")] {
        let text = well(&mut warmcore(&[&load[..], &["kernel", option, &out]].concat()));
        assert!(is_link() && text.contains(told) && text.contains("switches"), "{option}: {text}");
    }
    let run = ["bench", "percpu", "--quick", "--case", "counter.add", "--json", &out];
    let text = well(&mut warmcore(&run));
    assert!(is_link() && jsons(&text) == 1 && text.contains("relaxed atomic"), "{text}");
    let (kept, before) = (file("kept"), "what was there\n");
    std::fs::write(&kept, before).unwrap();
    let append = std::fs::OpenOptions::new().append(true).open(&kept).unwrap();
    well(warmcore(&run).stdout(append));
    let text = std::fs::read_to_string(&kept).unwrap();
    assert!(text.starts_with(before) && jsons(&text) == 1 && !text.contains('\0'), "{text}");

    // The page's folder too: a link in it stays a link.
    let page = folder.path().join("page");
    std::fs::create_dir(&page).unwrap();
    std::os::unix::fs::symlink(file("elsewhere"), page.join("report.html")).unwrap();
    well(warmcore(&["report", "--render", "--out"]).arg(&page));
    assert!(std::fs::symlink_metadata(page.join("report.html")).unwrap().is_symlink());
    assert!(std::fs::read_to_string(file("elsewhere")).unwrap().contains("</html>"));
}

#[test]
fn the_culprit_is_named_though_it_stands_before_its_victim() {
    let fixture = |name: &str| format!("{}/../../fixtures/sim/{name}", env!("CARGO_MANIFEST_DIR"));
    let (layout, profile) = (fixture("mm_struct.toml"), fixture("hackbench.toml"));
    let text = well(&mut warmcore(&["layout", &layout, "--profile", &profile]));
    let old = well(&mut warmcore(&["sim", "false-sharing", "--layout", &layout, "--profile", &profile]));
    assert_eq!(text, old, "its name in version 0.1");
    assert!(text.contains("pcpu_cid") && text.contains("mm_count"), "{text}");
    assert!(text.contains("on spr_224cpu_2p"), "the profile names it: {text}");
    let error = badly(&mut warmcore(&["sim", "cid", "--layout", &layout, "--profile", &profile]));
    assert!(error.contains("unexpected argument '--layout'"), "{error}");
    let error = badly(&mut warmcore(&["sim", "false-sharing", "--layout", &layout, "--profile", "/none"]));
    assert!(error.contains("can't read /none"), "{error}");
    let error = badly(&mut warmcore(&["sim", "drain", "--machine", "pdp11"]));
    assert!(error.contains("no such machine") && error.contains("epyc9654_2p"), "{error}");
}

#[test]
fn a_layout_of_the_users_is_judged_here_with_what_a_line_takes_here() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let layout = put(
        "layout.toml",
        "name = \"s\"\nsize = 64\nalign = 64\nfields = [{ name = \"a\", offset = 0, size = 8 }, { name = \"b\", offset = 8, \
         size = 8 }]",
    );
    let profile = put(
        "profile.toml",
        "struct = \"s\"\nrates = \"total\"\naccess = [{ field = \"a\", writes_per_s = 9 }]",
    );
    let of = |profile: &str, more: &[&str]| {
        let base = ["layout", &layout, "--profile", profile];
        warmcore(&[&base[..], more].concat())
    };
    let text = well(&mut of(&profile, &[]));
    assert!(text.contains("on this machine"), "{text}");
    if std::thread::available_parallelism().unwrap().get() > 1 {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("a hand-over of a line was timed here, in ns: c2c_"), "{text}");
    }
    let perf = put(
        "c2c.txt",
        "Shared Cache Line Distribution Pareto\n ---\n 0 0 5 4 0 0x1000\n ---\n\
         0.00% 100.00% 0.00% 0.00% 0x8 0 1 0x44 0 134 120 60 1 [.] r a.out m.c:1 0{0}\n\
         0.00% 0.00% 100.00% 0.00% 0x0 0 1 0x45 0 0 0 4 1 [.] w a.out m.c:2 0{0}\n",
    );
    let error = badly(&mut of(&perf, &[]));
    assert!(error.contains("is what perf printed") && error.contains("--at"), "{error}");
    let text = well(&mut of(&perf, &["--at", "0x1000", "--machine", "ryzen7950x"]));
    assert!(text.contains("perf c2c") && text.contains("Rates are samples of perf c2c"), "{text}");
}

#[test]
fn tasks_of_a_file_are_simulated_under_every_policy_and_traced() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let tasks = format!("{}/../../fixtures/sim/web.json", env!("CARGO_MANIFEST_DIR"));
    let load = ["sim", "load", "--tasks", &tasks, "--machine", "ryzen7950x", "--seeds", "1"];
    let with = |more: &[&str]| warmcore(&[&load[..], more].concat());
    let text = well(&mut with(&[]));
    for policy in ["kernel", "kernel-wake-queue", "home", "work-steal"] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(policy)), "{policy}: {text}");
    }
    assert_eq!(text, well(&mut with(&[])));

    let (trace, json) = (file("trace"), file("load.json"));
    well(&mut with(&["--policy", "kernel", "--trace", &trace, "--json", &json]));
    let trace = std::fs::read_to_string(trace).unwrap();
    assert!(trace.starts_with("# tracer: nop") && trace.contains("sched_switch: prev_comm=batch-0"));
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(written["loads"][0]["policy"], "kernel");
    assert!(written["loads"][0]["reports"][0]["hash"].is_u64(), "{written}");

    // Truncated input: the error says where, and in which file.
    let cut = file("cut.json");
    let whole = std::fs::read_to_string(&tasks).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let error = badly(&mut warmcore(&["sim", "load", "--tasks", &cut]));
    assert!(error.contains("cut.json") && error.contains("line"), "{error}");
    // The error names a task that waits for ever.
    let stuck = file("stuck.json");
    std::fs::write(
        &stuck,
        r#"{ "tasks": { "a": { "lock": "m", "suspend": "go" }, "b": { "lock": "m", "resume": "go" } } }"#,
    )
    .unwrap();
    let error = badly(&mut warmcore(&["sim", "load", "--tasks", &stuck, "--seed", "4", "--seeds", "3"]));
    assert!(error.contains("`b` waits"), "{error}");
    // The command at the end replays exactly the failed simulation.
    let replay =
        error.lines().find_map(|line| line.strip_prefix("Replay it: warmcore ")).expect("there is one");
    assert!(replay.contains("--policy kernel") && replay.ends_with("--seed 4 --seeds 1"), "{replay}");
    assert_eq!(badly(&mut warmcore(&replay.split(' ').collect::<Vec<_>>())), error);
    let error = badly(&mut with(&["--policy", "lottery"]));
    assert!(error.contains("kernel-hot-windows"), "{error}");
    let error = badly(&mut warmcore(&["sim", "load"]));
    assert!(error.contains("--tasks"), "{error}");
}

#[test]
fn a_machine_from_elsewhere_gets_an_answer_and_its_estimates_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let drawn = format!("{}/../../fixtures/hwloc/zen4-vm-2cpu.xml", env!("CARGO_MANIFEST_DIR"));
    std::fs::write(file("mine.toml"), "[mine]\ninherits = \"ryzen7950x\"\ncores_per_l3 = 2\ncpus = 8\n")
        .unwrap();
    let tasks = format!("{}/../../fixtures/sim/web.json", env!("CARGO_MANIFEST_DIR"));
    for machine in [&drawn, &file("mine.toml"), "this"] {
        let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = one_line(well(&mut warmcore(&["sim", "hot-windows", "--quick", "--machine", machine])));
        assert!(text.contains("Not claimed: nothing published for this machine"), "{text}");
        assert!(text.contains("costs are estimates") && text.contains("round trips"), "{text}");
        let load =
            ["sim", "load", "--tasks", &tasks, "--policy", "home", "--seeds", "1", "--machine", machine];
        let text = one_line(well(&mut warmcore(&load)));
        assert!(text.contains("costs are estimates") && text.contains("home"), "{text}");
    }
    std::fs::write(file("none.toml"), "[mine]\nsockets = 1\nl3_per_socket = 2\ncores_per_l3 = 0\n").unwrap();
    let error = badly(&mut warmcore(&["sim", "drain", "--machine", &file("none.toml")]));
    assert!(error.contains("none.toml, [mine], line 4: `cores_per_l3` is 0"), "{error}");
    // A file that the command reads must not be an output too.
    let error = badly(&mut warmcore(&["sim", "load", "--tasks", &tasks, "--json", &tasks]));
    assert!(error.contains("would be overwritten"), "{error}");
    let mine = file("mine.toml");
    let error =
        badly(&mut warmcore(&["sim", "drain", "--machine", &format!("{mine}:mine"), "--json", &mine]));
    assert!(error.contains("would be overwritten"), "{error}");
}

#[test]
fn one_cpu_or_all_give_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = format!("{}/../../fixtures/hwloc/zen4-vm-2cpu.xml", env!("CARGO_MANIFEST_DIR"));
    let sim = |is_alone: bool| {
        let path = folder.path().join(if is_alone { "alone.json" } else { "all.json" });
        let mut command =
            warmcore(&["sim", "wake-queue", "--quick", "--seeds", "4", "--machine", &drawn, "--json"]);
        command.arg(&path);
        // SAFETY: between fork and exec only calls that may be made there; the set is of this frame.
        unsafe {
            command.pre_exec(move || {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                let size = size_of::<libc::cpu_set_t>();
                if is_alone && libc::sched_getaffinity(0, size, &mut set) == 0 {
                    let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &set));
                    libc::CPU_ZERO(&mut set);
                    libc::CPU_SET(first.unwrap_or(0), &mut set);
                    libc::sched_setaffinity(0, size, &set);
                }
                Ok(())
            })
        };
        well(&mut command);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| !line.contains("\"when\"")).collect();
        lines.join("\n")
    };
    assert_eq!(sim(true), sim(false));
}

#[test]
fn an_interrupted_simulation_keeps_the_seeds_that_were_finished() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = format!("{}/../../fixtures/hwloc/zen4-vm-2cpu.xml", env!("CARGO_MANIFEST_DIR"));
    let path = folder.path().join("cut.json");
    // Wait longer each time, until a seed is finished before the signal.
    for timeout in [1, 2, 4, 8, 16, 32] {
        let args = ["sim", "wake-queue", "--quick", "--seeds", "1000000", "--machine", &drawn, "--json"];
        let child = warmcore(&args).arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(timeout));
        // SAFETY: a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
        let output = child.wait_with_output().unwrap();
        let (out, err) = text(&output);
        assert_eq!(output.status.code(), Some(130), "{out}{err}");
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let Some(rows) = written["tables"][0]["rows"].as_array() else { continue };
        let seeds = rows[0]["seeds"].as_u64().unwrap();
        assert!(seeds > 0 && rows.iter().all(|row| row["seeds"] == seeds), "{written}");
        let told = format!("wake-queue has {seeds} of 1000000 seeds");
        assert!(err.contains(&told) && out.contains(&format!("[seeds: {seeds}]")), "{out}{err}");
        assert_eq!(written["interrupted"], told);
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 1, "a half-written file was left");
        // The result is the same as that of a run that is asked for this number of seeds.
        let few = seeds.to_string();
        let asked = ["sim", "wake-queue", "--quick", "--seeds", &few, "--machine", &drawn, "--json"];
        well(warmcore(&asked).arg(&path));
        let again: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(again["tables"][0]["rows"], written["tables"][0]["rows"]);
        return;
    }
    panic!("no seed within half a minute");
}

#[test]
fn every_machine_and_every_fixture_is_drawn_or_explained() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    for name in warmcore_topo::machines(warmcore_topo::MACHINES).unwrap() {
        assert!(!well(&mut warmcore(&["topo", "--machine", &name])).is_empty());
    }
    let mut seen = [0, 0];
    for (option, folder) in [("--sysfs", "sysfs"), ("--hwloc", "hwloc")] {
        for entry in std::fs::read_dir(fixtures.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "md") {
                continue;
            }
            let output = warmcore(&["topo", option]).arg(&path).output().unwrap();
            let (out, err) = text(&output);
            let broken = path.file_name().unwrap().to_string_lossy().contains("broken");
            seen[usize::from(broken)] += 1;
            match broken {
                false => assert!(output.status.success() && !out.is_empty(), "{}: {err}", path.display()),
                true => {
                    // The error names the file: at least the fixture it is in.
                    let name = path.file_name().unwrap().to_string_lossy().into_owned();
                    let well_said =
                        !output.status.success() && err.contains(&name) && !err.contains("panicked");
                    assert!(well_said, "{}: {:?} {err}", path.display(), output.status);
                }
            }
        }
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
}

#[test]
fn an_interrupted_run_keeps_what_was_finished() {
    let left =
        Running::start(&["percpu", "--quick"]).until_done("counter.add").signal(libc::SIGINT, false).end();
    assert_eq!(left.status.code(), Some(130), "{}", left.err);
    assert!(
        left.out.contains("counter.add") && left.err.contains("interrupted"),
        "{}\n{}",
        left.out,
        left.err
    );
    assert!(left.cases.contains("counter.add") && !left.cases.contains("memory"), "{:?}", left.cases);
    assert_eq!(left.files, 1, "a half-written file was left");
}

#[test]
fn a_report_is_a_folder_that_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (out, tables) = (folder.path().join("report"), folder.path().join("tables.json"));
    // One table in place of all eight, which the tests of `sim` simulate.
    well(warmcore(&["sim", "drain", "--quick", "--seeds", "5", "--json"]).arg(&tables));
    let said = well(warmcore(&["report", "--quick", "--sim"]).arg(&tables).arg("--out").arg(&out));
    assert!(said.contains("report.html"), "{said}");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for word in
        ["counter.add.called", "cid.enter", "hit.2threads", "noisy.20us", "hello.64", "id=\"tasks\"", "<svg"]
    {
        assert!(page.contains(word), "{word} is not in the page");
    }
    for file in [
        "summary.txt",
        "raw.csv",
        "machine.svg",
        "tasks.svg",
        "costs.svg",
        "percpu.json",
        "cid.json",
        "wake.json",
        "http.json",
    ] {
        assert!(out.join(file).is_file(), "{file} is missing");
    }
    // The page shows a result that another program put into the folder, without a new measurement.
    let mut peers = read(&out.join("percpu.json"));
    peers.what = "peers".into();
    peers.rows.truncate(1);
    peers.rows[0].case = "peers.made-up".into();
    std::fs::write(out.join("peers.json"), serde_json::to_vec(&peers).unwrap()).unwrap();
    well(warmcore(&["report", "--render", "--out"]).arg(&out));
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap().contains("peers.made-up"));
    std::fs::write(out.join("peers.json"), b"{").unwrap();
    let error = badly(warmcore(&["report", "--render", "--out"]).arg(&out));
    assert!(error.contains("peers.json"), "{error}");
}

/// Restricts the command to one CPU.
fn on_one_cpu(command: &mut Command) -> &mut Command {
    let first: warmcore_types::CpuSet =
        warmcore_sys::affinity::allowed().unwrap().first().into_iter().collect();
    // SAFETY: one syscall between fork and exec; the set was made before.
    unsafe { command.pre_exec(move || warmcore_sys::affinity::set_allowed(&first)) }
}

#[test]
fn one_cpu_is_enough_for_what_needs_no_second() {
    let output =
        on_one_cpu(&mut warmcore(&["bench", "percpu", "--quick", "--case", "drain_all"])).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    well(on_one_cpu(&mut warmcore(&["bench", "percpu", "--quick", "--case", "freelist.pair"])));
    let output =
        on_one_cpu(&mut warmcore(&["bench", "budget", "--quick", "--case", "drain.quiet"])).output().unwrap();
    let (_, err) = text(&output);
    assert!(output.status.success() && err.contains("drain.quiet: left out, it needs two CPUs"), "{err}");
    well(on_one_cpu(&mut warmcore(&["bench", "budget", "--quick", "--case", "hit"])));
    let doctor = well(on_one_cpu(&mut warmcore(&["doctor"])));
    assert!(doctor.contains("two-thread cases are left out"), "{doctor}");
    assert!(doctor.contains("ok       time slices") || doctor.contains("missing  time slices"), "{doctor}");
}

/// Makes the system call `number` fail with `errno` in the command, as on a kernel without it: by a filter that the
/// command inherits.
#[cfg(target_arch = "x86_64")]
fn without_syscall(command: &mut Command, number: i64, errno: i32) -> &mut Command {
    const LOAD_NR: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let program = [
        op(LOAD_NR, 0, 0, 0),
        op(JUMP_EQ, 0, 1, number as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = move || {
        let mut program = program;
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: two prctl calls between fork and exec, on a program that lives through them.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes only syscalls.
    unsafe { command.pre_exec(filter) }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_kernel_without_rseq_is_fallen_back_from_and_explained() {
    let poor = |args: &[&str]| {
        let mut command = warmcore(args);
        without_syscall(&mut command, libc::SYS_rseq, libc::ENOSYS);
        command
    };
    let doctor = well(&mut poor(&["doctor"]));
    assert!(doctor.contains("missing  rseq") && doctor.contains("answers ENOSYS"), "{doctor}");
    assert!(doctor.contains("limited  per-CPU data atomic: no rseq"), "{doctor}");
    let error = badly(poor(&["bench", "percpu"]).env("WARMCORE_PERCPU", "rseq"));
    assert!(
        error.contains("WARMCORE_PERCPU=rseq, but no rseq: kernel") && error.contains("unset it"),
        "{error}"
    );
    let out = well(&mut poor(&["bench", "percpu", "--quick", "--case", "counter.add"]));
    assert!(out.contains("warmcore atomic"), "{out}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_kernel_without_membarrier_is_fallen_back_from_and_explained() {
    let mut command = warmcore(&["doctor"]);
    let doctor = well(without_syscall(&mut command, libc::SYS_membarrier, libc::EPERM));
    assert!(
        doctor.contains("missing  membarrier") && doctor.contains("atomic: no rseq: membarrier"),
        "{doctor}"
    );
}

#[test]
fn shards_of_a_sweep_that_are_merged_are_the_whole_sweep() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let json = |name: &str| -> serde_json::Value {
        let mut value: serde_json::Value = serde_json::from_slice(&std::fs::read(at(name)).unwrap()).unwrap();
        value.as_object_mut().unwrap().remove("when").unwrap();
        value
    };
    std::fs::write(
        at("two.toml"),
        "[two]\ninherits = \"epyc9654_2p\"\nsockets = 1\nnuma_nodes = 1\nl3_per_socket = 1\ncores_per_l3 = 2\nsmt = 1\ncpus = 2\n",
    )
    .unwrap();
    let two = at("two.toml");
    // A table of which a part has the first three seeds alone, one whose notes follow from its rows, and two tables of one command.
    let commands: [&[&str]; 3] = [
        &["sim", "drain", "--quick", "--seeds", "5"],
        &["sim", "cid", "--seed", "3", "--seeds", "4"],
        &["sim", "runtime", "--quick", "--seeds", "3", "--machine", &two, "--machine", &two],
    ];
    for command in commands {
        let run = |more: &[&str]| {
            let all = [command, more].concat();
            well(&mut warmcore(&all))
        };
        let whole = run(&["--json", &at("whole.json")]);
        for shard in 1..=3 {
            run(&["--shard", &format!("{shard}/3"), "--json", &at(&format!("{shard}.json"))]);
        }
        let merge = ["sim", "merge", &at("merged.json"), &at("3.json"), &at("1.json"), &at("2.json")];
        let merged = well(&mut warmcore(&merge));
        assert_eq!(merged, whole, "{command:?}");
        assert!(json("merged.json") == json("whole.json"), "{command:?}: {:#}", json("merged.json"));
        assert!(json("1.json") != json("whole.json"), "{command:?}");
    }
}

#[test]
fn shards_that_do_not_fit_are_refused_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let drain = |more: &[&str]| warmcore(&[&["sim", "drain", "--quick"], more].concat());
    for (shard, said) in [
        ("0/0", "there is at least one shard"),
        ("4/3", "there is no shard 4 of 3; say 1/3 to 3/3"),
        ("0/3", "counted from 1; say 1/3 to 3/3"),
        ("2", "not a shard; say which one and of how many, such as 2/3"),
        ("-1/3", "not a shard"),
        ("3/4", "there are 3 seeds"),
    ] {
        let error = badly(&mut drain(&["--seeds", "3", "--json", &at("x.json"), "--shard", shard]));
        assert!(error.contains(said), "{shard}: {error}");
    }
    let error = badly(&mut drain(&["--seeds", "3", "--shard", "1/3"]));
    assert!(error.contains("say --json FILE"), "{error}");
    let error =
        badly(&mut drain(&["--seeds", "3", "--shard", "1/3", "--json", &at("x.json"), "--machine", "this"]));
    assert!(error.contains("--machine this"), "{error}");
    let error = badly(&mut drain(&["--machine", "ryzen7950x", "--machine", "ryzen7950x"]));
    assert!(error.contains("given 2 times"), "{error}");

    let shard = |name: &str, seeds: &str, shard: &str| {
        well(&mut drain(&["--seeds", seeds, "--shard", shard, "--json", &at(name)]));
        at(name)
    };
    let (one, two) = (shard("1.json", "3", "1/3"), shard("2.json", "3", "2/3"));
    let other = shard("other.json", "4", "3/3");
    let whole = at("whole.json");
    well(&mut drain(&["--seeds", "3", "--json", &whole]));
    let edited = |name: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(&one).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(at(name), text.replace(from, to)).unwrap();
        at(name)
    };
    let old = edited("old.json", "\"schema\": 2", "\"schema\": 1");
    let cut = edited("cut.json", "\"when\"", "\"interrupted\": \"of drain no seed was finished\", \"when\"");
    let emptied = edited("emptied.json", "\"sweeps\": [", "\"sweeps\": [], \"rest\": [");
    std::fs::write(at("text.json"), "once upon a time").unwrap();
    let out = at("out.json");
    for (shards, said) in [
        (
            vec![&one, &two],
            "of 3 shards 2 are here and 1 missing; the first of these is made by: warmcore sim drain",
        ),
        (vec![&one, &two], "--seeds 3 --quick --shard 3/3 --json FILE"),
        (vec![&one, &one], "are both shard 1/3"),
        (vec![&one, &two, &other], "merge shards of one command"),
        (vec![&one, &whole], "is no shard: it has all of `warmcore sim drain --seeds 3 --quick`"),
        (vec![&old], "has schema 1, and this program reads 2"),
        (vec![&cut], "was interrupted: of drain no seed was finished; run it again"),
        (vec![&at("text.json")], "is not JSON"),
        (vec![&at("absent.json")], "can't read"),
        (vec![&one, &two, &out], "would be overwritten"),
    ] {
        let names = shards.iter().map(|name| name.as_str());
        let error =
            badly(&mut warmcore(&["sim", "merge", &out].into_iter().chain(names).collect::<Vec<_>>()));
        assert!(error.contains(said), "{shards:?}: {error}");
        assert!(!Path::new(&out).exists(), "{shards:?}");
    }
    let three = shard("3.json", "3", "3/3");
    let error = badly(&mut warmcore(&["sim", "merge", &out, &emptied, &two, &three]));
    assert!(
        error.contains("does not fit the other shards; run it again") || error.contains("emptied"),
        "{error}"
    );
}
