//! The command as its users meet it, bad input and poor systems included.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;
use warmcore_lab::results::Results;

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

/// What went well, on stdout.
fn well(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{command:?}: {:?}\n{out}\n{err}", output.status);
    out
}

/// What went wrong, on stderr.
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
    for word in ["topo", "run", "report", "doctor", "WARMCORE_PERCPU"] {
        assert!(help.contains(word), "{help}");
    }
    let help = well(&mut warmcore(&["run", "--help"]));
    for word in ["percpu", "false-sharing", "cid", "budget", "wake", "http", "--json"] {
        assert!(help.contains(word), "{help}");
    }
    assert!(!help.contains("run-part"), "{help}");
}

#[test]
fn a_run_writes_what_it_prints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let out = well(warmcore(&["run", "percpu", "--quick", "--case", "counter.add", "--json"]).arg(&path));
    let results = read(&path);
    assert_eq!((results.schema, results.what.as_str()), (1, "percpu"));
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
    let out = well(warmcore(&["run", "cid", "--quick", "--case", "cid.held", "--json"]).arg(&path));
    assert!(out.contains("cache-local") && out.contains("at most 4 ids: met"), "{out}");
    assert!(read(&path).timelines.is_empty());
    let out = well(warmcore(&["run", "cid", "--quick", "--case", "cid.timeline", "--json"]).arg(&path));
    assert!(out.contains("The same CPU, the same id") && out.contains("CPU 7"), "{out}");
    let results = read(&path);
    assert_eq!(results.timelines.len(), 3);
    assert!(results.rows.iter().all(|r| r.case == "cid.timeline"));
}

#[test]
fn what_needs_a_process_of_its_own_gets_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    well(warmcore(&["run", "cid", "--quick", "--case", "cid.memory", "--json"]).arg(&path));
    let rows = read(&path).rows;
    assert!(rows.len() > 4 && rows.iter().all(|r| r.unit == "bytes" && r.median > 0.0), "{rows:?}");
    // A part that makes no sense is an error of the whole.
    let error = badly(&mut warmcore(&["run-part", "nonsense"]));
    assert!(error.contains("expected"), "{error}");
}

#[test]
fn budgets_are_measured_where_they_must_hold_and_where_two_cpus_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let rows = |case: &str| {
        well(warmcore(&["run", "budget", "--quick", "--case", case, "--json"]).arg(&path));
        let results = read(&path);
        assert!(results.rows.iter().all(|r| r.case == case && r.n > 0), "{case}");
        results.rows
    };
    let memory = rows("memory");
    let each = memory.iter().find(|r| r.metric == "memory each").unwrap();
    assert!(each.target.as_ref().unwrap().met, "{each:?}");
    let two = warmcore_sys::affinity::allowed().unwrap().len() > 1;
    let limit = rows("limit");
    assert_eq!(limit.is_empty(), !two, "without a second CPU it is left out");
    for metric in ["over the limit", "false refusals", "left in the end"] {
        for row in limit.iter().filter(|r| r.variant == "warmcore word" && r.metric == metric) {
            assert!(row.median == 0.0 && row.target.as_ref().unwrap().met, "{row:?}");
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
        ("warm.yield.chase", &["touches", "moved", "ratio, geometric mean of all"]),
        ("idle", &["CPU per second"]),
    ] {
        well(warmcore(&["run", "wake", "--quick", "--case", case, "--json"]).arg(&path));
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
    // Without Go, its variant is left out, and said so.
    let mut without = warmcore(&["run", "wake", "--quick", "--case", "storm", "--json"]);
    let output = without.arg(&path).env("PATH", folder.path()).output().unwrap();
    let (_, err) = text(&output);
    assert!(output.status.success() && err.contains("Go is left out"), "{err}");
    assert!(read(&path).rows.iter().all(|r| r.variant != "go" && r.over.as_deref() != Some("go")));
    let error = badly(&mut warmcore(&["run", "wake", "--case", "nonsense"]));
    assert!(error.contains("pingpong.oneshot.16") && error.contains("noisy.20us"), "{error}");
}

#[test]
fn servers_answer_rightly_on_every_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    for (case, metrics) in [
        (
            "state.8",
            &["requests", "p50", "p99", "p99.9", "CPU per 100k requests", "errors", "ratio, p99"][..],
        ),
        ("soak", &["errors"]),
    ] {
        let output =
            warmcore(&["run", "http", "--quick", "--case", case, "--json"]).arg(&path).output().unwrap();
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
    let error = badly(&mut warmcore(&["run", "http", "--case", "nonsense"]));
    assert!(error.contains("hello.64") && error.contains("soak"), "{error}");
}

/// Interrupts a run after some seconds: later, if its first case was not finished by then, since others
/// use this machine too. Says what was said, and which cases were kept.
fn interrupted(what: &str, first_ms: u64, finished: &str) -> (String, String, BTreeSet<String>, TempDir) {
    for wait_ms in [first_ms, 3 * first_ms, 9 * first_ms] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        let child = warmcore(&["run", what, "--json"])
            .arg(&path)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait_ms));
        // SAFETY: signals our own child.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        let output = child.wait_with_output().unwrap();
        let (out, err) = text(&output);
        assert_eq!(output.status.code(), Some(130), "{:?}: {err}", output.status.signal());
        let cases: BTreeSet<String> = read(&path).rows.into_iter().map(|r| r.case).collect();
        if cases.contains(finished) {
            return (out, err, cases, folder);
        }
    }
    panic!("{what} did not finish {finished} in {} s", 9 * first_ms / 1000);
}

#[test]
fn an_interrupted_pause_ends_and_keeps_what_was_finished() {
    // The first cases take less than a second, in a debug build; then it sleeps for a minute.
    let (.., cases, _) = interrupted("cid", 8000, "cid.held");
    assert!(!cases.contains("cid.memory"), "{cases:?}");
}

#[test]
fn wrong_words_are_told_the_right_ones() {
    let error = badly(&mut warmcore(&["run", "percpu", "--case", "nonsense"]));
    assert!(error.contains("counter.add.2threads") && error.contains("freelist.pair"), "{error}");
    let error = badly(warmcore(&["run", "percpu", "--case", "counter.add"]).env("WARMCORE_PERCPU", "fast"));
    assert!(
        error.contains("WARMCORE_PERCPU=fast names no backend; it takes rseq, atomic or plain"),
        "{error}"
    );
    let error = badly(&mut warmcore(&["topo", "--machine", "nonsense"]));
    assert!(error.contains("epyc9654_2p"), "{error}");
    let error = badly(&mut warmcore(&[
        "run",
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
    // `percpu` takes some nine seconds, its first case one.
    let (out, err, cases, folder) = interrupted("percpu", 4000, "counter.add");
    assert!(out.contains("counter.add") && err.contains("interrupted"), "{out}\n{err}");
    assert!(!cases.contains("memory"), "{cases:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a half-written file was left");
}

#[test]
fn a_report_is_a_folder_that_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report");
    let said = well(warmcore(&["report", "--quick", "--out"]).arg(&out));
    assert!(said.contains("report.html"), "{said}");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for word in [
        "counter.add",
        "false-sharing.full",
        "drain_all",
        "cid.enter",
        "class=\"lanes\"",
        "Budgets",
        "hit.2threads",
        "<svg",
    ] {
        assert!(page.contains(word), "{word} is not in the page");
    }
    for file in [
        "summary.txt",
        "raw.csv",
        "machine.svg",
        "percpu.json",
        "cid.json",
        "cid-timeline.svg",
        "budget.json",
        "budget-drain.svg",
    ] {
        assert!(out.join(file).is_file(), "{file} is missing");
    }
    // What another program left there joins the page, without a new measurement.
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

/// Gives the command one CPU.
fn on_one_cpu(command: &mut Command) -> &mut Command {
    let first: warmcore_terms::CpuSet =
        warmcore_sys::affinity::allowed().unwrap().first().into_iter().collect();
    // SAFETY: one syscall between fork and exec; the set was made before.
    unsafe { command.pre_exec(move || warmcore_sys::affinity::set_allowed(&first)) }
}

#[test]
fn one_cpu_is_enough_for_what_needs_no_second() {
    let output =
        on_one_cpu(&mut warmcore(&["run", "percpu", "--quick", "--case", "drain_all"])).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    well(on_one_cpu(&mut warmcore(&["run", "percpu", "--quick", "--case", "freelist.pair"])));
    let output =
        on_one_cpu(&mut warmcore(&["run", "budget", "--quick", "--case", "drain.quiet"])).output().unwrap();
    let (_, err) = text(&output);
    assert!(output.status.success() && err.contains("drain.quiet: left out, it needs two CPUs"), "{err}");
    well(on_one_cpu(&mut warmcore(&["run", "budget", "--quick", "--case", "hit"])));
    let doctor = well(on_one_cpu(&mut warmcore(&["doctor"])));
    assert!(doctor.contains("two-thread cases are left out"), "{doctor}");
}

/// A kernel without a syscall, played by a filter that the command inherits.
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
    let error = badly(poor(&["run", "percpu"]).env("WARMCORE_PERCPU", "rseq"));
    assert!(
        error.contains("WARMCORE_PERCPU=rseq, but no rseq: kernel") && error.contains("unset it"),
        "{error}"
    );
    let out = well(&mut poor(&["run", "percpu", "--quick", "--case", "counter.add"]));
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
