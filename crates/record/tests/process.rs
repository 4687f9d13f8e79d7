//! What a recording has after each way in which a process ends, and what the process notices.
//!
//! A test starts this binary again, as a child that runs the test [`child`] in one of its modes.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::task::Poll;
use std::time::{Duration, Instant};
use warmcore_record::{Event, Recording, SAMPLE_FACTOR, TaskRecord};

/// The variable with the child's mode.
const MODE: &str = "RECORD_TEST_MODE";

/// Polls of a child that counts them.
const POLLS: u32 = 10_000;

/// Tasks of the child that polls faster than the file may grow.
const SAMPLED_TASKS: usize = 64;

fn command(mode: &str, file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(MODE, mode).env("WARMCORE_RECORD", file).env_remove("WARMCORE_RECORD_MAX");
    command
}

fn run(mode: &str, file: &Path) -> Output {
    command(mode, file).output().unwrap()
}

/// Starts a child that polls until it is killed, and returns when it polls.
fn start(mode: &str, file: &Path) -> Child {
    let mut child = command(mode, file).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("polling")), "the child has ended");
    child
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a recording has.
#[derive(Debug, Default)]
struct Found {
    polls: u64,
    /// Polls by task.
    tasks: BTreeMap<u32, u64>,
    last: u64,
    spawns: u64,
    names: Vec<String>,
    dropped: u64,
    end: Option<String>,
    is_cut: bool,
}

fn read(path: &Path) -> Found {
    let mut recording = Recording::open(path).unwrap();
    let mut found = Found::default();
    let mut prev_end = BTreeMap::new();
    while let Some(event) = recording.next_event().unwrap() {
        match event {
            Event::Poll(poll) => {
                let before = prev_end.insert(poll.task, poll.end());
                assert!(before.is_none_or(|end| end <= poll.start), "{poll:?} begins before {before:?}");
                found.polls += 1;
                found.last += u64::from(poll.is_last);
                *found.tasks.entry(poll.task).or_default() += 1;
            }
            Event::Spawn(spawn) => {
                assert!(recording.location(spawn.location).file.ends_with("process.rs"));
                found.spawns += 1;
            }
            Event::Name { name, .. } => found.names.push(recording.name(name).to_owned()),
            Event::Gap { records, .. } => found.dropped += records,
            Event::End { why } => found.end = Some(why),
            Event::Worker { .. }
            | Event::Drop { .. }
            | Event::Stats { .. }
            | Event::Sampled { .. }
            | Event::Machine { .. } => {}
        }
    }
    found.is_cut = recording.cut().is_some();
    found
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.rec");
    (folder, file)
}

/// Spawns a task and polls it this many times.
fn poll(polls: u32, name: Option<&str>) {
    let task = TaskRecord::spawned(Location::caller(), name).expect("the recorder is on");
    for poll in 1..=polls {
        let is_last = poll == polls;
        let _ = task.poll(|| if is_last { Poll::Ready(()) } else { Poll::Pending });
        task.woken();
    }
}

/// The part of the tests that runs in a process of its own.
#[test]
#[ignore = "the other tests start it"]
fn child() {
    let Ok(mode) = std::env::var(MODE) else { return };
    warmcore_record::start();
    match mode.as_str() {
        "counted" => {
            std::thread::spawn(|| poll(POLLS, Some("on a thread"))).join().unwrap();
            poll(POLLS, None);
        }
        "off" => {
            assert!(!warmcore_record::is_on());
            assert!(TaskRecord::spawned(Location::caller(), None).is_none());
        }
        "forever" => {
            println!("polling");
            loop {
                poll(POLLS, Some("forever"));
            }
        }
        "until the end" => {
            while warmcore_record::is_on() {
                let task = TaskRecord::spawned(Location::caller(), None);
                let _ = task.map(|task| task.poll(|| Poll::<()>::Pending));
            }
            println!("goes on");
        }
        "faster than the file may grow" => {
            let spawn = || TaskRecord::spawned(Location::caller(), None).expect("the recorder is on");
            let tasks: Vec<TaskRecord> = (0..SAMPLED_TASKS).map(|_| spawn()).collect();
            let began = Instant::now();
            let mut polls = 0;
            // The rate is looked at once a second.
            while began.elapsed() < Duration::from_millis(3_500) {
                polls += tasks.len();
                tasks.iter().for_each(|task| _ = task.poll(|| Poll::<()>::Pending));
                std::thread::sleep(Duration::from_millis(1));
            }
            println!("polls: {polls}");
        }
        "abort" => {
            poll(POLLS, None);
            warmcore_record::flush();
            std::process::abort();
        }
        "panic" => {
            let task = TaskRecord::spawned(Location::caller(), None).unwrap();
            let _ = task.poll(|| Poll::<()>::Pending);
            let _ = task.poll(|| -> Poll<()> { panic!("as the test wants it") });
        }
        "exec" => {
            poll(POLLS, None);
            warmcore_record::flush();
            panic!("{}", Command::new("/bin/true").exec());
        }
        "fork" => {
            poll(POLLS, None);
            // A ring has room for the polls before the fork, or for those after it.
            warmcore_record::flush();
            // SAFETY: the child polls, which takes no lock, and ends by `exit`, as a child of a program may.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let is_off =
                    !warmcore_record::is_on() && TaskRecord::spawned(Location::caller(), None).is_none();
                // SAFETY: as above. The handlers of the recorder run.
                unsafe { libc::exit(if is_off { 0 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: writes to `status` during the call.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0, "the child of the fork");
            poll(POLLS, None);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_process_that_exits_has_each_poll_in_its_recording() {
    let (_folder, file) = folder();
    let output = run("counted", &file);
    assert!(output.status.success(), "{}", stderr(&output));
    let found = read(&file);
    let polls: Vec<u64> = found.tasks.values().copied().collect();
    assert_eq!(polls, [u64::from(POLLS); 2]);
    assert_eq!((found.spawns, found.last, found.dropped), (2, 2, 0));
    assert_eq!(found.names, ["on a thread"]);
    assert_eq!((found.end.as_deref(), found.is_cut), (Some("the process exited"), false));
}

#[test]
fn a_panic_ends_a_task_and_the_recording_has_it() {
    let (_folder, file) = folder();
    assert_eq!(run("panic", &file).status.code(), Some(101));
    let found = read(&file);
    assert_eq!((found.polls, found.last), (2, 1));
    assert_eq!(found.end.as_deref(), Some("the process exited"));
}

#[test]
fn an_abort_and_an_exec_keep_what_was_written() {
    for mode in ["abort", "exec"] {
        let (_folder, file) = folder();
        let status = run(mode, &file).status;
        assert_eq!(status.signal().is_some(), mode == "abort", "{status}");
        let found = read(&file);
        assert_eq!((found.polls, found.end), (u64::from(POLLS), None), "{mode}");
    }
}

#[test]
fn a_recording_is_readable_wherever_its_process_is_killed() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut with_polls, kills) = (0, 100);
    for kill in 0..kills {
        let (_folder, file) = folder();
        let mut child = start("forever", &file);
        if kill % 2 == 1 {
            // Until a whole block of records is in the file, which has at most 320 KiB.
            while std::fs::metadata(&file).unwrap().len() < 400 << 10 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_micros(random.u64(0..60_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = read(&file);
        assert_eq!(found.end, None, "kill {kill}, seed {seed}");
        with_polls += u32::from(found.polls > 0);
    }
    assert!(with_polls >= kills / 2, "only {with_polls} of {kills} files have a poll");
}

#[test]
fn a_child_of_a_fork_records_nothing_and_leaves_the_file_alone() {
    let (_folder, file) = folder();
    let output = run("fork", &file);
    assert!(output.status.success(), "{}", stderr(&output));
    let found = read(&file);
    assert_eq!((found.polls, found.spawns), (2 * u64::from(POLLS), 2));
    assert_eq!(found.end.as_deref(), Some("the process exited"));
}

#[test]
fn two_processes_at_once_write_two_files() {
    let (folder, file) = folder();
    let mut first = start("forever", &file);
    let second = run("counted", &file);
    assert!(second.status.success(), "{}", stderr(&second));
    first.kill().unwrap();
    first.wait().unwrap();
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    let [one, other] = &names[..] else { panic!("{names:?}") };
    assert_eq!(one, "a.rec");
    let pid = other.strip_prefix("a.rec.").unwrap();
    assert!(pid.parse::<u32>().is_ok(), "{names:?}");
    assert_eq!(read(&folder.path().join(other)).polls, 2 * u64::from(POLLS));
}

#[test]
fn a_recording_ends_at_its_bound_and_the_program_goes_on() {
    let (_folder, file) = folder();
    let output = command("until the end", &file).env("WARMCORE_RECORD_MAX", "300k").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("goes on"));
    assert!(
        stderr(&output).contains("has reached 307200 bytes (WARMCORE_RECORD_MAX)"),
        "{}",
        stderr(&output)
    );
    assert!(std::fs::metadata(&file).unwrap().len() <= 300 << 10);
    let end = read(&file).end.unwrap();
    assert_eq!(end, "the file has reached 307200 bytes");
}

#[test]
fn above_the_rate_that_fills_the_file_all_polls_of_fewer_tasks_are_recorded() {
    let (_folder, file) = folder();
    let mut command = command("faster than the file may grow", &file);
    // 17 kB/s are allowed, and 64 tasks write 20 bytes up to a thousand times a second each.
    let output = command.env("WARMCORE_RECORD_MAX", "10M").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    let polls: u64 =
        said.lines().find_map(|line| line.split_once("polls: ")?.1.parse().ok()).expect("it says how many");
    let (mut shift, mut left_out, mut tasks) = (0, 0, BTreeMap::<u32, u64>::new());
    let mut recording = Recording::open(&file).unwrap();
    while let Some(event) = recording.next_event().unwrap() {
        match event {
            Event::Poll(poll) => *tasks.entry(poll.task).or_default() += 1,
            Event::Sampled { shift: next, .. } => {
                assert_eq!(next, shift + 1);
                shift = next;
            }
            Event::Stats { stats, .. } => left_out = stats.skipped,
            Event::Gap { records, .. } => panic!("{records} records were dropped"),
            _ => {}
        }
    }
    assert!(shift >= 1 && left_out > 0, "all tasks were recorded");
    // No poll is lost from the counts.
    assert_eq!(tasks.values().sum::<u64>() + left_out, polls, "at one of {} tasks", 1 << shift);
    for (task, recorded) in tasks {
        let is_in_sample = task.wrapping_mul(SAMPLE_FACTOR).leading_zeros() >= shift;
        assert_eq!(recorded == polls / SAMPLED_TASKS as u64, is_in_sample, "task {task}: {recorded} polls");
    }
}

/// A limit of the process stands for a full disk: both let a write end in its middle.
#[test]
fn a_disk_that_is_full_ends_the_recording_and_the_program_goes_on() {
    let (_folder, file) = folder();
    let mut command = command("until the end", &file);
    let limit = libc::rlimit { rlim_cur: 1_000_001, rlim_max: 1_000_001 };
    let set_limit = move || {
        // SAFETY: a system call with a struct that lives long enough.
        match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: `set_limit` makes one system call, as is allowed after a fork.
    unsafe { command.pre_exec(set_limit) };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{} {}", output.status, stderr(&output));
    assert!(stderr(&output).contains("File too large"), "{}", stderr(&output));
    let found = read(&file);
    assert!(found.polls > 0 && !found.is_cut, "{found:?}");
    assert!(found.end.is_none_or(|why| why.contains("can't be written")));
}

#[test]
fn a_file_that_cannot_be_created_is_one_line_and_the_program_goes_on() {
    let (folder, file) = folder();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o500)).unwrap();
    // Root writes into any folder of a disk, but not into these.
    for file in [file, PathBuf::from("/proc/a.rec"), PathBuf::from("/nowhere/a.rec")] {
        // SAFETY: no arguments, no memory.
        if file.starts_with(folder.path()) && unsafe { libc::geteuid() } == 0 {
            continue;
        }
        let output = run("off", &file);
        assert!(output.status.success(), "{}", stderr(&output));
        let lines = stderr(&output);
        let ours: Vec<&str> = lines.lines().filter(|line| line.starts_with("warmcore: ")).collect();
        assert!(matches!(ours[..], [line] if line.contains("nothing is recorded")), "{lines}");
    }
}

#[test]
fn a_bound_that_is_none_is_one_line_and_the_default() {
    let (_folder, file) = folder();
    let output = command("counted", &file).env("WARMCORE_RECORD_MAX", "much").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("WARMCORE_RECORD_MAX is \"much\""), "{}", stderr(&output));
    assert_eq!(read(&file).polls, 2 * u64::from(POLLS));
}
