//! The README's server of ten lines, built in a new package as a user would build it.
//!
//! If the README has no such block, the test builds the example `hello_http`. If it has one, both must be the same.
#![cfg(unix)]

#[path = "project/mod.rs"]
mod project;

use project::Project;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ATTRIBUTE: &str = "#[warmcore::main]";

/// The README's block with a server, if there is one.
fn readme() -> Option<String> {
    let readme = include_str!("../README.md");
    let mut blocks = readme.split("```rust").skip(1).filter_map(|rest| rest.split_once("\n```"));
    // The first line may continue with `,no_run`.
    let block = blocks.find(|(block, _)| block.contains(ATTRIBUTE) && block.contains("serve("))?.0;
    Some(block.split_once('\n')?.1.trim().to_owned())
}

/// The README's dependencies, with this crate by its path.
fn dependencies() -> String {
    let readme = include_str!("../README.md");
    let (_, rest) = readme.split_once("```toml\n[dependencies]\n").expect("it says what to depend on");
    let (lines, _) = rest.split_once("```").expect("a block ends");
    let path = "\"../warmcore/crates/warmcore\"";
    assert_eq!(lines.matches(path).count(), 1, "{lines}");
    lines.replace(path, &format!("{:?}", env!("CARGO_MANIFEST_DIR")))
}

/// The example without its module comment.
fn example() -> String {
    let example = include_str!("../examples/hello_http.rs");
    example[example.find("use axum").expect("it uses axum")..].trim().to_owned()
}

#[test]
fn the_readme_and_the_example_say_the_same_in_ten_lines() {
    let code = example();
    assert!(
        code.lines().filter(|line| !line.trim().is_empty() && line.trim() != "}").count() <= 10,
        "{code}"
    );
    if let Some(readme) = readme() {
        assert_eq!(readme, code);
    }
}

/// A child process that is killed when the test ends, also if it fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_readmes_server_builds_in_a_new_project_and_serves() {
    // Port 0: any free port.
    let code = readme().unwrap_or_else(example);
    assert_eq!(code.matches(":8080").count(), 1, "{code}");
    let project = Project::new("readme-server", &dependencies(), &code.replace(":8080", ":0"));
    let mut program = Command::new(project.build("readme-server"));
    let mut server = Server(program.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit('/').next().unwrap().to_owned();
    let clients = (0..8).map(|_| {
        let address = address.clone();
        std::thread::spawn(move || {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            write!(stream, "GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            reply
        })
    });
    for client in clients.collect::<Vec<_>>() {
        let reply = client.join().unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("\r\n\r\nwarm\n"), "{reply}");
    }
    // Ctrl-C ends the server although a connection is open and idle: the program exits by itself, with success.
    let mut idle = TcpStream::connect(&address).unwrap();
    idle.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(idle, "GET / HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    let mut reader = BufReader::new(idle);
    let mut line = String::new();
    while line != "warm\n" {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "closed before its answer");
    }
    // SAFETY: a system call without pointers; the process is this test's child, which was not waited for yet.
    assert_eq!(unsafe { libc::kill(server.0.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(reader.read_line(&mut line).unwrap(), 0, "{line}");
    assert!(server.0.wait().unwrap().success());
}
