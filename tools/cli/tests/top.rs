//! Tests `warmcore top` on a real process, over the process's socket. The process runs this test program.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use warmcore_runtime::{Runtime, spawn, yield_now};

/// The environment variable that tells the watched process what to do.
const ROLE: &str = "WARMCORE_TEST_ROLE";

/// Not a test: the body of the watched process. In the test process it does nothing.
#[test]
fn watched_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut builder = Runtime::builder().worker_threads(2).name("orders");
    if role == "builder" {
        builder = builder.observe(true);
    }
    let runtime = builder.build().unwrap();
    let second =
        (role == "two").then(|| Runtime::builder().worker_threads(1).name("second").build().unwrap());
    if role == "foreign" {
        // Like a `main` with `axum::serve`: all work is in tasks of `tokio::spawn`, spawned by a thread that is not a
        // worker and stays in the runtime.
        let handle = runtime.handle().clone();
        std::thread::spawn(move || {
            handle.block_on(async {
                for _ in 0..8 {
                    tokio::spawn(async {
                        loop {
                            (0..100_000).for_each(|n| _ = std::hint::black_box(n));
                            tokio::task::yield_now().await;
                        }
                    });
                }
                std::future::pending::<()>().await
            })
        });
    }
    let tasks: Vec<_> = (0..if role == "foreign" { 0 } else { 4 })
        .map(|_| {
            runtime.spawn(async {
                loop {
                    spawn(async {}).await.unwrap();
                    yield_now().await;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    // Drops the runtime; the process stays until it is told to end.
    drop((tasks, second, runtime));
    println!("\ngone");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Compares the busy time of the workers with the CPU time of the process according to the kernel.
#[test]
fn a_server_that_only_runs_foreign_tasks_is_as_busy_as_its_threads() {
    let folder = tempfile::tempdir().unwrap();
    let watched = Watched::start("foreign", folder.path());
    let pid = watched.pid().to_string();
    let said = || serde_json::from_str::<serde_json::Value>(&well(&folder, &["--json", &pid])).unwrap();
    let sum = |said: &serde_json::Value, of: &str| {
        said["workers"].as_array().unwrap().iter().map(|worker| worker[of].as_u64().unwrap()).sum::<u64>()
    };
    // The CPU time of all threads of the process, which the kernel counts in ticks of 10 ms. Only its workers use much.
    let process_ns = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>() * 10_000_000
    };
    let (used_before, before) = (process_ns(), said());
    // Wait until the threads have used a second of CPU time, and three times as much as they used before the first
    // answer and after the last: the kernel's number contains that time too, and on a busy machine it is longer.
    let began = Instant::now();
    let (after, used, told) = loop {
        let after = said();
        let (used, told) = (process_ns() - used_before, sum(&after, "busy_ns") - sum(&before, "busy_ns"));
        if told >= 1_000_000_000 && told * 4 > used * 3 && sum(&after, "foreign_tasks") == 8 {
            break (after, used, told);
        }
        assert!(began.elapsed() < HANG, "told {told}, used {used}: {after}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let own = sum(&after, "own_ns") - sum(&before, "own_ns");
    assert!(told <= used + 20_000_000, "told {told}, used {used}");
    assert!(own * 10 < told, "foreign tasks count as own: {own} of {told}");
    // A worker with less than a quarter of a CPU is not reported, so repeat until the worker gets more. On a machine
    // that is always busy there is nothing to report.
    let told = "8 tasks of tokio::spawn, which stay there; 1 other idles";
    let until_told = |what: &str, look: &dyn Fn() -> String| {
        let (began, mut most) = (Instant::now(), 0.0);
        while began.elapsed() < HANG {
            let (used_before, at) = (process_ns(), Instant::now());
            let text = look();
            if text.contains(told) && !text.contains("0.0 of 2 CPUs busy") {
                return Some(text);
            }
            most = f64::max(most, (process_ns() - used_before) as f64 / at.elapsed().as_nanos() as f64);
            // If the worker has more than half a CPU over the whole interval, it has at least a quarter in the part
            // that is compared.
            assert!(most < 0.5, "{what} does not tell it of a worker that had {most:.2} CPUs: {text}");
        }
        eprintln!("not judged: other processes left the workers {most:.2} CPUs");
        None
    };
    if let Some(frame) = until_told("top", &|| well(&folder, &["--once", "--every", "0.5", &pid])) {
        assert!(frame.contains("8 foreign"), "{frame}");
    }
    // `doctor` reports it too, with advice.
    let doctor = || {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_warmcore"));
        let output = doctor.arg("doctor").env("XDG_RUNTIME_DIR", folder.path()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    if let Some(text) = until_told("the doctor", &doctor) {
        assert!(text.contains(&format!("({pid}): CPU ")), "{text}");
        assert!(text.contains("warmcore::runtime::spawn") && text.contains("http::serve"), "{text}");
    }
}

/// A wait that takes longer fails the test.
const HANG: Duration = Duration::from_secs(120);

struct Watched {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Watched {
    fn start(role: &str, folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "watched_process", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env("XDG_RUNTIME_DIR", folder).env_remove("WARMCORE_TOP");
        if role != "builder" && role != "unseen" {
            command.env("WARMCORE_TOP", "1");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut watched = Self { child, out };
        watched.wait_for("ready");
        watched
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "it ended before it said {word:?}");
        }
    }

    fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sockets in the user's folder.
fn sockets(folder: &TempDir) -> usize {
    let own = folder.path().join(format!("warmcore-{}", warmcore_runtime::observe::user()));
    std::fs::read_dir(own).unwrap().count()
}

fn top(folder: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmcore"));
    command.arg("top").args(args).env("XDG_RUNTIME_DIR", folder.path());
    command.stdin(Stdio::null()).output().unwrap()
}

fn well(folder: &TempDir, args: &[&str]) -> String {
    let output = top(folder, args);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {err}");
    String::from_utf8(output.stdout).unwrap()
}

fn badly(folder: &TempDir, args: &[&str]) -> String {
    let output = top(folder, args);
    assert!(!output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!err.contains("panicked"), "{err}");
    err
}

#[test]
fn a_process_that_was_built_observable_is_shown_and_its_end_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut watched = Watched::start("builder", folder.path());
    let pid = watched.pid().to_string();
    let frame = well(&folder, &["--once", "--every", "0.2", &pid]);
    // Find the process by the executable's name, which is that of this test program.
    let program = std::env::current_exe().unwrap();
    let program = program.file_name().unwrap().to_string_lossy().into_owned();
    assert!(frame.starts_with(&format!("{program} ({pid}) · ")), "{frame}");
    assert!(frame.lines().all(|line| line.chars().count() <= 80), "{frame}");
    for word in ["LLC 0", "home/s", "polls/s", "foreign", "of 2 CPUs busy"] {
        assert!(frame.contains(word), "no {word} in\n{frame}");
    }
    let said = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let (before, after) = (said(&well(&folder, &["--json", &pid])), said(&well(&folder, &["--json", &pid])));
    assert_eq!(
        (&before["schema"], &before["what"], &before["name"]),
        (&3.into(), &"top".into(), &"orders".into())
    );
    assert_eq!(before["workers"].as_array().unwrap().len(), 2);
    let polls = |said: &serde_json::Value| {
        said["workers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|worker| worker["polls"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert!(polls(&after) >= polls(&before));
    let began = Instant::now();
    while polls(&said(&well(&folder, &["--json", &pid]))) == 0 {
        assert!(began.elapsed() < HANG, "its tasks are not polled");
    }
    watched.tell();
    watched.wait_for("gone");
    let text = badly(&folder, &["--once", &pid]);
    assert!(text.contains(&format!("process {pid} can't be watched")), "{text}");
    assert_eq!(sockets(&folder), 0, "a socket was left behind");
    drop(watched);
    assert!(badly(&folder, &[&pid]).contains(&format!("there is no process {pid}")));
}

#[test]
fn the_environment_makes_a_process_observable_and_its_second_runtime_too() {
    let folder = tempfile::tempdir().unwrap();
    let watched = Watched::start("two", folder.path());
    let (first, second) = (format!("{}", watched.pid()), format!("{}.2", watched.pid()));
    let names = [&first, &second].map(|which| {
        let said: serde_json::Value = serde_json::from_str(&well(&folder, &["--json", which])).unwrap();
        said["name"].as_str().unwrap().to_owned()
    });
    assert_eq!(names, ["orders", "second"]);
    let text = badly(&folder, &["--json", &format!("{first}.3")]);
    assert!(text.contains("no runtime 3") && text.contains("it has 2"), "{text}");
    // The socket that a killed process leaves behind is not shown.
    drop(watched);
    assert!(sockets(&folder) > 0);
    assert!(badly(&folder, &["--once", &first]).contains("there is no process"));
}

#[test]
fn an_error_about_a_process_that_can_t_be_watched_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let watched = Watched::start("unseen", folder.path());
    let text = badly(&folder, &["--once", &watched.pid().to_string()]);
    for word in ["can't be watched", "observe(true)", "WARMCORE_TOP=1", &folder.path().display().to_string()]
    {
        assert!(text.contains(word), "no {word} in\n{text}");
    }
    for (args, word) in [
        (&["--once", "orders"][..], "`orders` is no process"),
        (&["--json", "out.json"], "`--json` takes no file here, and prints on standard output"),
        (&["--once", "--every", "0"], "0.05 to 3600"),
        (&["--once", "--json"], "cannot be used with"),
    ] {
        let text = badly(&folder, args);
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn without_a_terminal_it_says_what_else_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let watched = Watched::start("builder", folder.path());
    let text = badly(&folder, &[&watched.pid().to_string()]);
    assert!(text.contains("no terminal") && text.contains("--once") && text.contains("--json"), "{text}");
}
