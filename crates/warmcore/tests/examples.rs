//! Runs the examples' programs and checks their output.
//!
//! `tenants_runtime`, `prometheus` and `hello_http` have further tests in other files of this folder.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The program of an example. `cargo test -p warmcore` builds it; `cargo test --test examples` does not, so this builds
/// it if it is missing or older than its sources.
fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let folder = this.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let program = folder.join("examples").join(name);
    if !is_current(&program) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "warmcore", "--example", name]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        cargo.env("CARGO_TARGET_DIR", folder.parent().expect("target/PROFILE"));
        assert!(cargo.status().unwrap().success(), "the example {name} does not build");
    }
    program
}

/// Whether a program exists and is not older than its sources. Cargo lists the sources in the file of the program's
/// name and `.d`, including the sources of packages that are dependencies by path.
fn is_current(program: &Path) -> bool {
    let modified = |path: &Path| std::fs::metadata(path)?.modified();
    let (Ok(built), Ok(listed)) = (modified(program), std::fs::read_to_string(program.with_extension("d")))
    else {
        return false;
    };
    // A space in a path is escaped.
    let listed = listed.replace("\\ ", "\0");
    let sources = listed.split_once(": ").map_or("", |(_, sources)| sources).split_whitespace();
    let mut sources = sources.map(|source| source.replace('\0', " ")).peekable();
    sources.peek().is_some()
        && sources.all(|source| modified(Path::new(&source)).is_ok_and(|changed| changed <= built))
}

#[test]
fn a_program_that_is_older_than_one_of_its_sources_is_not_current() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (program, sources) = (file("example"), [file("main.rs"), file("a library.rs")]);
    let at = |path: &Path, second: u64| {
        std::fs::write(path, "").unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    assert!(!is_current(&program), "it is not there");
    sources.iter().for_each(|source| at(source, 10));
    at(&program, 20);
    assert!(!is_current(&program), "its sources are not known");
    let escaped = |path: &Path| path.display().to_string().replace(' ', "\\ ");
    let listed = sources.each_ref().map(|source| escaped(source)).join(" ");
    std::fs::write(file("example.d"), format!("{}: {listed}\n", escaped(&program))).unwrap();
    assert!(is_current(&program));
    for source in &sources {
        at(source, 30);
        assert!(!is_current(&program), "{} is newer", source.display());
        at(source, 10);
    }
    std::fs::remove_file(&sources[1]).unwrap();
    assert!(!is_current(&program), "a source is gone");
}

/// The output of an example that ends by itself.
fn output(name: &str) -> String {
    let output = Command::new(program(name)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{name}: {}\n{text}\n{errors}", output.status);
    text
}

/// The numbers in a text, in order.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[test]
fn counters_prints_what_its_threads_added() {
    let text = output("counters");
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("no line {key} in\n{text}")).trim()
    };
    let bytes = 4 * (0..5_000_000u64).map(|i| i % 1500).sum::<u64>();
    assert_eq!(value("requests"), "20000000");
    assert_eq!(value("bytes"), bytes.to_string());
    assert_eq!(value("errors"), "20000");
    assert_eq!(value("open"), "0");
    let backend = value("backend");
    assert!(["rseq", "atomic", "plain"].iter().any(|name| backend.contains(name)), "{text}");
    let [kib, slots] = numbers(value("memory"))[..] else { panic!("{text}") };
    assert!(kib > 0 && slots > 0, "{text}");
}

#[test]
fn buffers_gives_back_every_buffer_that_it_allocated() {
    let text = output("buffers");
    let lines: Vec<&str> = text.lines().collect();
    let [first, _, last] = lines[..] else { panic!("{text}") };
    let [requests, allocated, at_hand] = numbers(first)[..] else { panic!("{text}") };
    assert_eq!(requests, 8_000_000, "{text}");
    // Each of the four threads has one buffer at a time. If as many buffers were allocated as there are requests, none
    // would be reused.
    assert!((1..1000).contains(&allocated), "{text}");
    assert_eq!(at_hand, allocated, "{text}");
    assert_eq!(numbers(last), [allocated], "{text}");
}

#[test]
fn tenants_counts_each_request_once_in_one_slot_per_running_thread() {
    let text = output("tenants");
    assert_eq!(text.lines().count(), 3, "{text}");
    for (number, name) in ["orders", "search", "billing"].into_iter().enumerate() {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
        let [requests, bytes, slots, cpus, overflows] = numbers(line)[..] else { panic!("{line}") };
        let served = |thread: usize| (0..1_000_000).filter(|n| (thread + n) % 3 == number).count();
        assert_eq!(requests, (0..8).map(served).sum::<usize>() as u64, "{line}");
        assert_eq!(bytes, 100 * requests, "{line}");
        // A thread that is preempted in a request keeps its CPU's id, so the next thread on that CPU takes an overflow
        // id.
        assert!(slots >= 1 && (slots <= cpus || overflows > 0), "{line}");
    }
}

/// A server process that is killed when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn budget_server_answers_shows_its_accounts_and_ends_with_nothing_left() {
    let mut server = Command::new(program("budget_server"));
    let mut server = Server(server.arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let address = first.strip_prefix("listening on http://").unwrap_or_else(|| panic!("{first}"));
    for path in ["/a/work?kb=256", "/b/work?kb=64", "/hog/work?kb=1024&ms=10"] {
        let reply = get(address, path);
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {reply}");
    }
    let stats = get(address, "/stats");
    assert!(["a", "b", "hog", "server"].iter().all(|name| stats.contains(name)), "{stats}");
    // SAFETY: a system call without pointers; the process is this test's child, which was not waited for yet.
    assert_eq!(unsafe { libc::kill(server.0.id() as i32, libc::SIGINT) }, 0);
    let ended: Vec<String> = lines.map(|line| line.unwrap()).collect();
    assert!(server.0.wait().unwrap().success(), "{ended:?}");
    assert_eq!(ended.len(), 4, "{ended:?}");
    for line in &ended {
        let [used, peak] = numbers(line)[..] else { panic!("{line}") };
        assert!(used == 0 && peak > 0, "{line}");
    }
}

/// Gold's weight is three times bronze's, and both always have work. All requests do the same work, but bronze pays for waiting
/// for its budget: 3.0 to 3.3 requests of gold were served to one of bronze in 70 runs, on two CPUs alone and beside four other
/// processes. If the system preempts a worker during a poll for less than 200 µs, that time counts for the poll's tenant. So the
/// test fails only if the ratio is wrong in three runs. The counts of each run are exact.
#[test]
fn tenants_runtime_prints_requests_as_the_weights_are() {
    let mut ratios = Vec::new();
    for _ in 0..3 {
        let text = output("tenants_runtime");
        let of = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name));
            numbers(line.unwrap_or_else(|| panic!("no line of {name} in\n{text}")))
        };
        let (gold, bronze) = (of("gold"), of("bronze"));
        assert!((2_000..3_000).contains(&gold[0]), "{text}");
        ratios.push(gold[0] as f64 / bronze[0] as f64);
        for numbers in [gold, bronze] {
            let [requests, mib, peak, limit, ids, left] = numbers[..] else { panic!("{text}") };
            assert!(mib == (requests * 32) >> 10 && peak <= 2 * limit && ids > 0 && left == 0, "{text}");
        }
        if ratios.last().is_some_and(|ratio| (2.4..=3.6).contains(ratio)) {
            return;
        }
    }
    panic!("requests of gold to one of bronze in each run: {ratios:.2?}, 3 is the weights'");
}
