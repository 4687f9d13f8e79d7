//! The server that the README promises in ten lines: in a project of its own, as a reader would make it.
//!
//! Until the README has it, the lines are those of the example `hello_http`; when it does, both must say the same.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ATTRIBUTE: &str = "#[warmcore::main]";

/// The README's block with a server, if it has one.
fn readme() -> Option<String> {
    let readme = include_str!("../../../README.md");
    let mut blocks = readme.split("```rust").skip(1).filter_map(|rest| rest.split_once("\n```"));
    // The first line may go on with `,no_run`.
    let block = blocks.find(|(block, _)| block.contains(ATTRIBUTE) && block.contains("serve("))?.0;
    Some(block.split_once('\n')?.1.trim().to_owned())
}

/// The example's lines without its head.
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

/// Ended with the test, however that ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where the workspace's things are built.
fn target() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.ancestors().nth(3).expect("target/PROFILE/deps/TEST").to_owned()
}

#[test]
fn the_readmes_server_builds_in_a_new_project_and_serves() {
    let folder = tempfile::tempdir().unwrap();
    let cargo = || {
        let mut cargo = Command::new(env!("CARGO"));
        // The workspace's flags are not the reader's.
        cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS").env("CARGO_NET_OFFLINE", "true");
        cargo
    };
    let made =
        cargo().args(["new", "--quiet", "--vcs", "none", "hello"]).current_dir(&folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let project = folder.path().join("hello");
    let warmcore = env!("CARGO_MANIFEST_DIR");
    let mut manifest = std::fs::read_to_string(project.join("Cargo.toml")).unwrap();
    manifest.push_str(&format!(
        "warmcore = {{ path = {warmcore:?}, features = [\"http\"] }}\n\
         axum = {{ version = \"0.8\", default-features = false }}\n\
         tokio = {{ version = \"1\", features = [\"net\"] }}\n\
         # As fast as it builds.\n\
         [profile.dev]\n\
         debug = false\n"
    ));
    std::fs::write(project.join("Cargo.toml"), manifest).unwrap();
    // Any free port.
    let code = readme().unwrap_or_else(example);
    assert_eq!(code.matches(":8080").count(), 1, "{code}");
    std::fs::write(project.join("src/main.rs"), code.replace(":8080", ":0")).unwrap();
    // The versions that the workspace has are those that are here.
    let lock = Path::new(warmcore).join("../../Cargo.lock");
    std::fs::copy(lock, project.join("Cargo.lock")).unwrap();
    let target = target().join("tests").join("readme-server");
    let mut build = cargo();
    build.args(["build", "--quiet", "--offline", "--message-format", "short"]);
    let built = build.env("CARGO_TARGET_DIR", &target).current_dir(&project).output().unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    if !built.status.success() {
        let is_missing =
            ["offline", "no matching package", "failed to download", "failed to select a version"];
        if is_missing.iter().any(|text| errors.contains(text)) {
            return eprintln!(
                "skipped: a crate is not on this machine, and nothing is downloaded:\n{errors}"
            );
        }
        panic!("{errors}");
    }
    let mut program = Command::new(target.join("debug/hello"));
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
}
