//! Tests of `warmcore adopt` on small programs in temporary folders, with Cargo as users run it.
//!
//! Nothing is downloaded: what these programs need was needed to build this test. No test is skipped, so a missing
//! crate fails the test.
#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, str};
use tempfile::TempDir;

/// A program in a temporary folder.
struct Program {
    _folder: TempDir,
    root: PathBuf,
}

/// The lines of `[dependencies]` for tokio with everything.
const FULL: &str = "tokio = { version = \"1\", features = [\"full\"] } # all of it\n";

const FACE: &str = "tokio = { path = \".warmcore/run-warmcore-adopt/tokio\" }";

impl Program {
    /// A package `program` with these lines below `[dependencies]`. Its lock file is that of this workspace, whose
    /// versions are available without a download, without what the package doesn't use.
    fn new(dependencies: &str) -> Self {
        let program = Self::empty(&manifest("program", dependencies));
        fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"), program.root.join("Cargo.lock"))
            .unwrap();
        if !dependencies.contains("warmcore") {
            program.metadata(&[]);
        }
        program
    }

    /// A package without a lock file.
    fn empty(manifest: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("program");
        let program = Self { _folder: folder, root };
        program.write("Cargo.toml", manifest);
        program.write("src/main.rs", "fn main() {}\n");
        program
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.root.join(name)).unwrap()
    }

    fn has(&self, name: &str) -> bool {
        self.root.join(name).exists()
    }

    /// Replaces text in a file, which must have it.
    fn replace(&self, name: &str, old: &str, new: &str) {
        let text = self.read(name);
        assert!(text.contains(old), "{name} lacks {old}:\n{text}");
        self.write(name, &text.replace(old, new));
    }

    /// Cargo.toml and Cargo.lock.
    fn files(&self) -> (String, Option<String>) {
        (self.read("Cargo.toml"), fs::read_to_string(self.root.join("Cargo.lock")).ok())
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.root).env("CARGO_NET_OFFLINE", "true");
        for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC", "WARMCORE"] {
            command.env_remove(variable);
        }
        command
    }

    fn cargo(&self, args: &[&str]) -> String {
        well(&mut self.command(env!("CARGO"), args))
    }

    /// What Cargo says of the packages that a build on this machine uses: no other one need be available.
    fn metadata(&self, args: &[&str]) -> String {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        self.cargo(&[&["metadata", "--format-version", "1", "--filter-platform", &platform], args].concat())
    }

    fn adopt_command(&self, args: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_warmcore"), &["adopt"]);
        command.args(args);
        command
    }

    /// Runs the command, which must succeed; returns its stdout.
    fn adopt(&self, args: &[&str]) -> String {
        well(&mut self.adopt_command(args))
    }

    /// Runs the command, which must fail and change nothing; returns its stderr.
    fn refuses(&self, args: &[&str]) -> String {
        let (before, had_folder) = (self.files(), self.has(".warmcore"));
        let error = badly(&mut self.adopt_command(args));
        assert!(self.files() == before, "the files changed: {error}");
        assert_eq!(self.has(".warmcore"), had_folder, "{error}");
        error
    }

    /// What `cargo metadata` says of the packages of this name: the folder of its manifest, or None for a registry.
    fn packages(&self, name: &str) -> Vec<Option<PathBuf>> {
        let metadata: serde_json::Value = serde_json::from_str(&self.metadata(&["--locked"])).unwrap();
        let packages = metadata["packages"].as_array().unwrap().iter().filter(|it| it["name"] == name);
        let folder = |it: &serde_json::Value| {
            Path::new(it["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
        };
        packages.map(|it| it["source"].is_null().then(|| folder(it))).collect()
    }

    fn prepared(&self, name: &str) -> PathBuf {
        self.root.join(".warmcore/run-warmcore-adopt").join(name)
    }
}

fn manifest(name: &str, dependencies: &str) -> String {
    format!(
        "# A program.\n[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [dependencies]   # what it needs\n{dependencies}"
    )
}

fn text(output: &Output) -> (&str, &str) {
    (str::from_utf8(&output.stdout).unwrap(), str::from_utf8(&output.stderr).unwrap())
}

fn well(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{command:?}: {:?}\n{out}\n{err}", output.status);
    out.to_owned()
}

fn badly(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(1), "{command:?}:\n{out}\n{err}");
    assert!(!err.contains("panicked"), "{err}");
    err.to_owned()
}

/// (name, version, source) of each package of a lock file.
fn locked(text: &str) -> Vec<String> {
    let packages = text.split("[[package]]").skip(1);
    packages.map(|package| package.split("dependencies").next().unwrap().trim().to_owned()).collect()
}

#[test]
fn an_adopted_program_has_the_face_alone_and_undo_restores_every_byte() {
    let program = Program::new(&format!("{FULL}# the end\n"));
    let before = program.files();
    assert_eq!(program.packages("tokio"), [None]);

    let out = program.adopt(&["--dry-run"]);
    assert!(out.contains(FACE), "{out}");
    assert!(program.files() == before && !program.has(".warmcore"));
    let error = program.refuses(&["--check"]);
    assert!(error.contains("run `warmcore adopt`"), "{error}");

    let out = program.adopt(&[]);
    assert!(out.contains("Rust 1.93") && out.contains("--undo"), "{out}");
    assert_eq!(program.packages("tokio"), [Some(program.prepared("tokio"))]);
    assert_eq!(program.packages("tokio-real"), [Some(program.prepared("tokio-real"))]);
    program.adopt(&["--check"]);
    // The lines of Cargo.toml are the old ones and three more.
    let (toml, lock) = program.files();
    let added: Vec<&str> = toml.lines().filter(|line| !before.0.lines().any(|old| old == *line)).collect();
    assert_eq!(added, ["[patch.crates-io]", FACE]);
    // No package of the lock file moved, except for tokio.
    let lock = locked(lock.as_deref().unwrap());
    let gone: Vec<String> =
        locked(before.1.as_deref().unwrap()).into_iter().filter(|package| !lock.contains(package)).collect();
    assert!(gone.len() == 1 && gone[0].starts_with("name = \"tokio\""), "{gone:?}");
    assert_eq!(program.read(".warmcore/.gitignore"), "*\n");

    program.adopt(&["--undo"]);
    assert!(program.files() == before);
    assert!(!program.has(".warmcore"));
    let error = program.refuses(&["--undo"]);
    assert!(error.contains("nothing to undo"), "{error}");
}

#[test]
fn undo_after_an_edit_removes_its_own_lines_alone() {
    let program = Program::new(FULL);
    let before = program.files();
    program.adopt(&[]);
    program.replace("Cargo.toml", "[patch.crates-io]", "# mine\n[patch.crates-io]");
    program.adopt(&[]);
    program.adopt(&["--undo"]);
    let (toml, lock) = program.files();
    assert_eq!(toml.replace("# mine\n", "").trim_end(), before.0.trim_end());
    assert!(toml.contains("# mine"), "{toml}");
    assert_eq!(lock, before.1);
    assert!(!program.has(".warmcore"));
}

#[test]
fn a_workspace_is_adopted_from_the_folder_of_a_member() {
    let program = Program::new(FULL);
    program.write(
        "member/Cargo.toml",
        &manifest("member", "tokio = { version = \"1\", default-features = false }\nlocal = \"3\"\n"),
    );
    program.write("member/src/lib.rs", "");
    program
        .write("local/Cargo.toml", "[package]\nname = \"local\"\nversion = \"3.0.0\"\nedition = \"2024\"\n");
    program.write("local/src/lib.rs", "");
    let patch =
        "[workspace]\nmembers = [\"member\"]\n[patch.crates-io]\nlocal = { path = \"local\" } # ours\n";
    program.write("Cargo.toml", &format!("{}{patch}", program.read("Cargo.toml")));
    program.metadata(&[]);
    let before = program.files();
    well(program.adopt_command(&[]).current_dir(program.root.join("member/src")));
    assert!(!program.has("member/.warmcore"));
    let added = format!("local = {{ path = \"local\" }} # ours\n{FACE}\n");
    assert_eq!(program.read("Cargo.toml"), before.0.replace("local = { path = \"local\" } # ours\n", &added));
    assert_eq!(program.packages("tokio"), [Some(program.prepared("tokio"))]);
    // No package of the prepared folder is a member of the workspace.
    let members = program.metadata(&["--no-deps", "--locked"]);
    assert!(!members.contains("tokio-real"), "{members}");
    program.adopt(&["--check", "member"]);
    program.adopt(&["--undo", "member"]);
    assert!(program.files() == before);
}

#[test]
fn a_library_without_a_runtime_is_adopted() {
    let program =
        Program::new("tokio = { version = \"1\", default-features = false, features = [\"sync\"] }\n");
    program.adopt(&[]);
    program.adopt(&["--check"]);
    assert!(!program.read("Cargo.lock").contains("warmcore"), "the runtime came along");
}

#[test]
fn a_program_without_a_lock_file_gets_one_that_undo_removes() {
    let program = Program::new(FULL);
    fs::remove_file(program.root.join("Cargo.lock")).unwrap();
    program.adopt(&[]);
    program.adopt(&["--check"]);
    program.adopt(&["--undo"]);
    assert!(!program.has("Cargo.lock"));
}

#[test]
fn ci_prepares_the_folder_of_a_clone() {
    let program = Program::new(FULL);
    let error = program.refuses(&["--locked"]);
    assert!(error.contains("commit both"), "{error}");
    program.adopt(&[]);
    let adopted = program.files();
    fs::remove_dir_all(program.root.join(".warmcore")).unwrap();
    let error = program.refuses(&["--check"]);
    assert!(error.contains("`warmcore adopt --locked`"), "{error}");
    program.adopt(&["--locked", "--offline"]);
    program.adopt(&["--check", "--offline"]);
    assert!(program.files() == adopted);
    // A second run leaves the folder as it is, and what was built from it.
    let json = program.root.join("out.json");
    program.adopt(&["--json", json.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&program.read("out.json")).unwrap();
    assert_eq!((&json["adopt"]["is_prepared"], &json["adopt"]["is_adopted"]), (&false.into(), &true.into()));
}

#[test]
fn vendored_sources_are_seen_by_git() {
    let program = Program::new(FULL);
    program.adopt(&["--vendor"]);
    well(&mut program.command("git", &["init", "--quiet"]));
    let seen = well(&mut program.command("git", &["status", "--porcelain", "--untracked-files=all"]));
    assert!(seen.contains(".warmcore/run-warmcore-adopt/tokio/src/lib.rs"), "{seen}");
    assert!(!seen.contains(".warmcore/undo"), "{seen}");
}

#[test]
fn check_names_the_command_that_repairs_and_it_does() {
    let program = Program::new(FULL);
    let before = program.files();
    program.adopt(&[]);
    let adopted = program.files();
    // A lock file from before, as after a merge.
    program.write("Cargo.lock", before.1.as_deref().unwrap());
    let error = program.refuses(&["--check"]);
    assert!(error.contains("run `warmcore adopt`"), "{error}");
    program.adopt(&[]);
    assert!(program.files() == adopted);
    // A folder that was prepared for another version than the lock file's, as after `cargo update`.
    let version = format!("version = \"{}\"", locked_version(&program, "tokio"));
    let face = ".warmcore/run-warmcore-adopt/tokio/Cargo.toml";
    program.replace(face, &version, "version = \"1.51.0\"");
    let error = program.refuses(&["--check"]);
    assert!(error.contains("run `warmcore adopt`"), "{error}");
    program.adopt(&[]);
    program.adopt(&["--check"]);
    assert!(program.read(face).contains(&version));
}

fn locked_version(program: &Program, name: &str) -> String {
    let text = program.read("Cargo.lock");
    let rest = text.split(&format!("name = \"{name}\"\nversion = \"")).nth(1).unwrap();
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn a_program_that_uses_warmcore_has_one_runtime() {
    let program = Program::new(&format!("{FULL}warmcore = \"0.1\"\n"));
    program.adopt(&[]);
    let toml = program.read("Cargo.toml");
    assert!(toml.contains("warmcore = { path = \".warmcore/run-warmcore-adopt/warmcore\" }"), "{toml}");
    assert_eq!(program.packages("warmcore-runtime"), [Some(program.prepared("runtime"))]);
    assert_eq!(program.packages("tokio").len(), 1);
    program.adopt(&["--check"]);

    let program = Program::new(&format!("{FULL}warmcore = {{ path = {:?} }}\n", env!("CARGO_MANIFEST_DIR")));
    program.write("Cargo.toml", &program.read("Cargo.toml").replace("tools/cli", "crates/warmcore"));
    let error = program.refuses(&[]);
    assert!(error.contains("a second runtime"), "{error}");
}

/// A registry of packages without code, in place of crates.io.
fn registry(program: &Program, packages: &[(&str, &str, &str)]) {
    for (name, version, dependencies) in packages {
        let folder = format!("registry/{name}-{version}");
        program.write(
            &format!("{folder}/Cargo.toml"),
            &format!("[package]\nname = \"{name}\"\nversion = \"{version}\"\nedition = \"2024\"\n[dependencies]\n{dependencies}"),
        );
        program.write(&format!("{folder}/src/lib.rs"), "");
        let hash = "0".repeat(64);
        program.write(
            &format!("{folder}/.cargo-checksum.json"),
            &format!("{{\"files\":{{}},\"package\":\"{hash}\"}}"),
        );
    }
    program.write(
        ".cargo/config.toml",
        "[source.crates-io]\nreplace-with = \"small\"\n[source.small]\ndirectory = \"registry\"\n",
    );
}

#[test]
fn two_versions_of_tokio_are_refused_with_what_wants_them() {
    let program = Program::empty(&manifest("program", "tokio = \"1\"\nold = \"1\"\n"));
    let packages = [("tokio", "1.54.1", ""), ("tokio", "0.2.25", ""), ("old", "1.0.0", "tokio = \"0.2\"\n")];
    registry(&program, &packages);
    let error = program.refuses(&[]);
    assert!(error.contains("tokio 0.2.25: old\n") && error.contains("tokio 1.54.1: program\n"), "{error}");
}

#[test]
fn versions_that_are_not_tested_are_refused() {
    for (version, advice) in [("1.50.3", "cargo update tokio"), ("1.60.0", "--precise"), ("0.3.0", "older")] {
        let program = Program::empty(&manifest("program", &format!("tokio = \"{version}\"\n")));
        registry(&program, &[("tokio", version, "")]);
        let error = program.refuses(&[]);
        assert!(error.contains(version) && error.contains(advice), "{error}");
    }
}

#[test]
fn a_tokio_from_elsewhere_is_refused() {
    let program = Program::empty(&manifest("program", ""));
    let error = program.refuses(&[]);
    assert!(error.contains("no package of this workspace depends on tokio"), "{error}");

    let manifest_of =
        |version| format!("[package]\nname = \"tokio\"\nversion = \"{version}\"\nedition = \"2024\"\n");
    program.write("own/Cargo.toml", &manifest_of("1.54.1"));
    program.write("own/src/lib.rs", "");
    program.write("Cargo.toml", &manifest("program", "tokio = { path = \"own\" }\n"));
    let error = program.refuses(&[]);
    assert!(error.contains("tokio from a path"), "{error}");

    let patched = manifest("program", "tokio = \"1\"\n[patch.crates-io]\ntokio = { path = \"own\" }\n");
    program.write("Cargo.toml", &patched);
    let error = program.refuses(&[]);
    assert!(error.contains("remove that line"), "{error}");

    let origin = Program::empty(&manifest_of("1.54.1"));
    origin.write("src/lib.rs", "");
    let git = |args: &[&str]| well(&mut origin.command("git", args));
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "tokio"]);
    let url = format!("tokio = {{ git = \"file://{}\" }}\n", origin.root.display());
    program.write("Cargo.toml", &manifest("program", &url));
    // Git fetches from a folder here, and Cargo does that only online.
    let mut command = program.adopt_command(&[]);
    let home = tempfile::tempdir().unwrap();
    let error = badly(command.env_remove("CARGO_NET_OFFLINE").env("CARGO_HOME", home.path()));
    assert!(error.contains("tokio from git+file://"), "{error}");
}

/// Writes an executable script.
fn script(program: &Program, name: &str, lines: &str) -> PathBuf {
    program.write(name, &format!("#!/bin/sh\n{lines}\n"));
    let path = program.root.join(name);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn an_old_compiler_is_refused_before_anything_is_written() {
    let program = Program::new(FULL);
    let before = program.files();
    let rustc = script(&program, "rustc.sh", "rustc \"$@\" | sed 's/^release: .*/release: 1.90.0/'");
    let error = badly(program.adopt_command(&[]).env("RUSTC", rustc));
    assert!(error.contains("needs Rust 1.93") && error.contains("1.90.0"), "{error}");
    assert!(program.files() == before && !program.has(".warmcore"));
}

#[test]
fn an_error_or_a_signal_in_the_middle_leaves_the_files_as_they_were() {
    let program = Program::new(FULL);
    let before = program.files();
    // The first command that sees the new lines of Cargo.toml is the one that resolves the program with the face.
    let seen = "grep -q run-warmcore-adopt Cargo.toml 2>/dev/null";
    let cargo = env!("CARGO");
    let fails = script(
        &program,
        "fails.sh",
        &format!("{seen} && {{ echo no space >&2; exit 7; }}\nexec {cargo} \"$@\""),
    );
    let error = badly(program.adopt_command(&[]).env("CARGO", fails));
    assert!(error.contains("no space"), "{error}");
    assert!(program.files() == before && !program.has(".warmcore"));

    // The command looks for a signal when Cargo ends; by then the thread that waits for signals has seen it.
    let interrupted = format!("{cargo} \"$@\" || exit\n{seen} && {{ kill -INT $PPID; sleep 5; }}\nexit 0");
    let interrupts = script(&program, "interrupts.sh", &interrupted);
    let output = program.adopt_command(&[]).env("CARGO", interrupts).output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{:?}", text(&output));
    assert!(program.files() == before && !program.has(".warmcore"));
}

#[test]
fn an_adopted_program_runs_on_either_scheduler() {
    let program = Program::new(
        "tokio = { version = \"1\", features = [\"rt-multi-thread\", \"macros\", \"time\"] }\nwarmcore = \"0.1\"\n\
         [profile.dev]\ndebug = false\n",
    );
    program.write("src/main.rs", include_str!("adopt/tenant.rs"));
    program.adopt(&[]);
    let this = std::env::current_exe().unwrap();
    let target = this.ancestors().nth(3).expect("target/PROFILE/deps/TEST").join("tests/adopt");
    well(program.command(env!("CARGO"), &["build", "--quiet", "--locked"]).env("CARGO_TARGET_DIR", &target));
    let built = target.join("debug/program");
    // The face appends a line to this file: the polls by its workers, and the runtimes that it made.
    let count = program.root.join("count");
    // The sum of 0 to 99, and with tenants 8 more.
    for (scheduler, is_ours, sum) in [(None, true, "4958\n"), (Some("0"), false, "4950\n")] {
        let mut command = Command::new(&built);
        command.env_remove("WARMCORE").envs(scheduler.map(|value| ("WARMCORE", value)));
        assert_eq!(well(command.env("WARMCORE_FACE_COUNT", &count)), sum);
        let counted = program.read("count");
        let polls: u64 = counted.split_whitespace().next().unwrap().parse().unwrap();
        // 108 tasks of `tokio::spawn`, each polled at least once.
        assert!(if is_ours { polls >= 108 } else { polls == 0 }, "{scheduler:?}: {counted}");
        fs::remove_file(&count).unwrap();
    }
    for (scheduler, tasks) in [("tokio", 100), ("warmcore", 108)] {
        let args =
            ["record", "--scheduler", scheduler, "--json", "record.json", "--", built.to_str().unwrap()];
        well(&mut program.command(env!("CARGO_BIN_EXE_warmcore"), &args));
        let json: serde_json::Value = serde_json::from_str(&program.read("record.json")).unwrap();
        let recording = &json["record"]["recordings"][0];
        let number = |name: &str| recording[name].as_u64().unwrap();
        assert!(number("tasks") >= tasks && number("polls") >= tasks, "{scheduler}: {json}");
        assert_eq!((number("dropped"), number("skipped")), (0, 0), "{scheduler}: {json}");
        assert_eq!(recording["end"], "the process exited");
    }
    program.adopt(&["--undo"]);
    assert!(!program.has(".warmcore"));
}
