//! The dependencies of a program that uses Warmcore: no parser, no test framework, and of tokio only what a driver
//! needs, and with the feature `http` what hyper needs.
//!
//! A new dependency must be added to a list in this file, so that it is never added by accident.
#![cfg(target_os = "linux")]

mod project;

use project::{Project, warmcore};
use std::collections::BTreeSet;

/// The packages that a program on Linux links besides this repository's crates, and the packages that its derives need.
const LINKED: &[&str] = &[
    "bytemuck",
    "bytemuck_derive",
    "bytes",
    "cfg-if",
    "libc",
    "mio",
    "once_cell",
    "pin-project-lite",
    "proc-macro2",
    "quote",
    "socket2",
    "syn",
    "tokio",
    "tracing",
    "tracing-core",
    "unicode-ident",
];

/// Further packages with the feature `http`.
const LINKED_WITH_HTTP: &[&str] = &[
    "atomic-waker",
    "equivalent",
    "fnv",
    "futures-channel",
    "futures-core",
    "futures-sink",
    "futures-task",
    "futures-util",
    "h2",
    "hashbrown",
    "http",
    "http-body",
    "httparse",
    "httpdate",
    "hyper",
    "hyper-util",
    "indexmap",
    "itoa",
    "slab",
    "smallvec",
    "tokio-util",
    "tower-service",
];

/// Packages that only tests, simulations and readers of files need. They must not be in a user's lock file, on any
/// system.
const NEVER: &[&str] = &[
    "clap",
    "loom",
    "proptest",
    "roxmltree",
    "serde",
    "serde_derive",
    "serde_json",
    "shuttle",
    "signal-hook-registry",
    "tempfile",
    "tokio-macros",
    "toml",
    "tracing-attributes",
    "tracing-subscriber",
];

/// A package, and its enabled features.
type Package = (String, Vec<String>);

/// The packages that a program with these dependencies links, and the names in its lock file.
fn packages(name: &str, dependencies: &str) -> (Vec<Package>, BTreeSet<String>) {
    let project = Project::new(name, dependencies, "fn main() {}\n");
    let args = ["--offline", "--prefix", "none", "--edges", "normal", "--format", "{p}|{f}"];
    let tree = project.cargo("tree", &args);
    let text = String::from_utf8_lossy(&tree.stdout).into_owned();
    let package = |line: &str| {
        let (package, features) = line.split_once('|')?;
        let name = package.split_whitespace().next()?.to_owned();
        // `cargo tree` marks a package that it printed before with a star.
        let features = features.trim_end_matches(" (*)");
        Some((name, features.split(',').map(str::to_owned).collect()))
    };
    let linked = text.lines().filter_map(package).collect();
    let lock = project.read("Cargo.lock");
    let names = lock.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    (linked, names.map(str::to_owned).collect())
}

fn check(name: &str, options: &str, lists: &[&[&str]], tokios: &[&str]) {
    check_dependencies(name, &warmcore(options), lists, tokios);
}

fn check_dependencies(name: &str, dependencies: &str, lists: &[&[&str]], tokios: &[&str]) {
    let (linked, locked) = packages(name, dependencies);
    let is_known = |package: &str| {
        package.starts_with("warmcore") || package == name || lists.iter().any(|list| list.contains(&package))
    };
    let unknown: BTreeSet<_> = linked.iter().map(|(package, _)| package).filter(|p| !is_known(p)).collect();
    assert!(unknown.is_empty(), "a program with {dependencies} links what is in no list here: {unknown:?}");
    let features = linked.iter().filter(|(package, _)| package == "tokio").flat_map(|(_, features)| features);
    // Compares only tokio's public features, and not those named like an optional dependency.
    let public = ["fs", "full", "io-std", "io-util", "macros", "net", "process", "rt", "rt-multi-thread"];
    let is_public =
        |f: &&String| public.contains(&f.as_str()) || ["signal", "sync", "time"].contains(&f.as_str());
    let features: BTreeSet<&str> = features.filter(is_public).map(String::as_str).collect();
    assert_eq!(features, tokios.iter().copied().collect(), "tokio's features");
    let never: Vec<_> = NEVER.iter().filter(|package| locked.contains(**package)).collect();
    assert!(never.is_empty(), "in the lock file of a program with {dependencies}: {never:?}");
}

#[test]
fn a_program_links_a_driver_and_no_parser() {
    check("links-default", "", &[LINKED], &["net", "rt", "rt-multi-thread", "time"]);
}

#[test]
fn a_server_also_links_hyper() {
    let options = r#", features = ["http"]"#;
    check(
        "links-http",
        options,
        &[LINKED, LINKED_WITH_HTTP],
        &["io-util", "net", "rt", "rt-multi-thread", "sync", "time"],
    );
}

#[test]
fn data_per_cpu_alone_links_no_runtime() {
    let without_tokio: Vec<&str> =
        LINKED.iter().copied().filter(|package| !["tokio", "mio", "tracing"].contains(package)).collect();
    check("links-data", ", default-features = false", &[&without_tokio], &[]);
}

/// A package named tokio that runs tasks on this runtime can only exist if nothing below the runtime needs tokio.
#[test]
fn the_runtime_without_its_default_driver_links_no_tokio() {
    let without_tokio: Vec<&str> =
        LINKED.iter().copied().filter(|package| !["tokio", "mio", "socket2"].contains(package)).collect();
    let runtime = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime");
    let dependencies = format!("warmcore-runtime = {{ path = {runtime:?}, default-features = false }}\n");
    check_dependencies("links-runtime", &dependencies, &[&without_tokio], &[]);
}
