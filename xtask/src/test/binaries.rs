//! Test programs: reads from cargo's output which test programs it built, and runs them as cargo would.

use super::steps::LONG;
use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// The package, as in `-p`.
    pub package: String,
    /// The target: `warmcore_cid` of a library, or the name of a program or of a file in `tests/`.
    pub target: String,
    /// Whether its tests are the unit tests of the library.
    is_library: bool,
    program: PathBuf,
    /// The folder of the package, in which cargo runs its tests.
    folder: PathBuf,
    /// Folders with the shared libraries that build scripts made and that proc macros need.
    libraries: Vec<PathBuf>,
}

impl Binary {
    /// The package and the target.
    pub fn name(&self) -> String {
        if self.is_library { self.package.clone() } else { format!("{} {}", self.package, self.target) }
    }

    /// The program's path.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The arguments with which the program skips the tests of [`LONG`]. `None` if all of its tests are in [`LONG`].
    pub fn without_long(&self) -> Option<Vec<&'static str>> {
        let mut args = Vec::new();
        for test in self.long() {
            args.extend(["--skip", test?]);
        }
        Some(args)
    }

    /// The arguments with which the program runs only its tests of [`LONG`]. `None` if it has no such tests.
    pub fn only_long(&self) -> Option<Vec<&'static str>> {
        let tests: Option<Vec<&str>> = self.long().collect();
        match tests {
            None => Some(Vec::new()),
            Some(tests) if tests.is_empty() => None,
            Some(tests) => Some(["--exact"].into_iter().chain(tests).collect()),
        }
    }

    fn long(&self) -> impl Iterator<Item = Option<&'static str>> {
        let is_own =
            |(package, target, _): &&(&str, &str, _)| (*package, *target) == (&*self.package, &*self.target);
        LONG.iter().filter(is_own).map(|(_, _, test)| *test)
    }

    /// The command that runs the program as cargo does: in the package's folder, with those of cargo's environment
    /// variables that the test programs read.
    pub fn command(&self, harness: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(harness).current_dir(&self.folder).stdin(Stdio::null());
        command.env("CARGO_MANIFEST_DIR", &self.folder).env("CARGO_PKG_NAME", &self.package);
        command.env("CARGO_MANIFEST_PATH", self.folder.join("Cargo.toml"));
        let set = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let paths = self.libraries.iter().cloned().chain(std::env::split_paths(&set));
        let joined = std::env::join_paths(paths).context("a folder's name has a colon")?;
        command.env("LD_LIBRARY_PATH", joined);
        Ok(command)
    }

    /// A command line that runs all tests of this program, with these environment variables but without cargo's.
    pub fn again(&self, env: &[(&str, &str)]) -> String {
        let env: String = env.iter().map(|(key, value)| format!("{key}=\"{value}\" ")).collect();
        format!("cd {} && {env}{}", self.folder.display(), self.program.display())
    }
}

/// The path of the command `warmcore`, from cargo's messages; `None` if they don't name it.
pub fn command_of_messages(messages: &str) -> Option<PathBuf> {
    let artifacts = messages.lines().filter(|line| line.contains("\"bin\""));
    artifacts.filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let is_it =
            message.pointer("/target/name")? == "warmcore" && message.pointer("/profile/test")? == false;
        Some(message.pointer("/executable")?.as_str().filter(|_| is_it)?.into())
    })
}

/// The test programs in the output of `cargo test --no-run --message-format json`, in the order of their packages'
/// folders.
pub fn of_messages(messages: &str, root: &Path) -> anyhow::Result<Vec<Binary>> {
    let mut binaries = Vec::new();
    let mut libraries = vec![sysroot_libraries()?];
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo printed something else than JSON")?;
        let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if text("/reason") == "build-script-executed" {
            let paths = message.pointer("/linked_paths").and_then(Value::as_array).into_iter().flatten();
            let paths = paths.filter_map(Value::as_str).map(|path| path.trim_start_matches("native="));
            libraries.extend(paths.map(PathBuf::from).filter(|path| path.starts_with(root)));
        }
        let is_test = message.pointer("/profile/test").and_then(Value::as_bool) == Some(true);
        let program = text("/executable");
        if text("/reason") != "compiler-artifact" || !is_test || program.is_empty() {
            continue;
        }
        let folder = Path::new(text("/manifest_path")).parent().context("a manifest without a folder")?;
        let kind = text("/target/kind/0");
        binaries.push(Binary {
            package: package(text("/package_id")),
            target: text("/target/name").to_owned(),
            is_library: !matches!(kind, "test" | "bin" | "example" | "bench"),
            program: program.into(),
            folder: folder.to_owned(),
            libraries: Vec::new(),
        });
    }
    // Cargo's order: packages by their folders, the library before the folder `tests`.
    binaries
        .sort_by(|a, b| (&a.folder, !a.is_library, &a.target).cmp(&(&b.folder, !b.is_library, &b.target)));
    binaries.iter_mut().for_each(|binary| binary.libraries.clone_from(&libraries));
    Ok(binaries)
}

/// The package's name in an id: `path+file:///a/cid#warmcore-cid@0.1.0`, or `path+file:///a/xtask#0.1.0`, where it is
/// the folder's.
fn package(id: &str) -> String {
    let (path, name) = id.split_once('#').unwrap_or((id, ""));
    match name.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => path.rsplit('/').next().unwrap_or(path).to_owned(),
    }
}

/// The folder of the compiler's libraries, to which tests of proc macros are linked.
fn sysroot_libraries() -> anyhow::Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output =
        Command::new(rustc).args(["--print", "target-libdir"]).output().context("can't run rustc")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_found_in_cargos_messages() {
        let artifact = |package: &str, kind: &str, name: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///r/{package}#warmcore-{package}@0.1.0","manifest_path":"/r/{package}/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let messages = [
            artifact("cid", "test", "ids", true, "\"/t/ids-1\""),
            artifact("cid", "lib", "warmcore_cid", false, "null"),
            artifact("cid", "lib", "warmcore_cid", true, "\"/t/cid-2\""),
            artifact("budget", "bin", "warmcore", false, "\"/t/warmcore\""),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let binaries = of_messages(&messages.join("\n"), Path::new("/r")).unwrap();
        let names: Vec<String> = binaries.iter().map(Binary::name).collect();
        assert_eq!(names, ["warmcore-cid", "warmcore-cid ids"]);
        assert_eq!(command_of_messages(&messages.join("\n")), Some("/t/warmcore".into()));
        assert_eq!(binaries[0].folder, Path::new("/r/cid"));
        assert_eq!(binaries[1].again(&[("A", "b")]), "cd /r/cid && A=\"b\" /t/ids-1");
    }

    #[test]
    fn long_tests_are_left_out_or_run_alone() {
        let binary = |package: &str, target: &str| {
            let target = target.to_owned();
            let [program, folder] = [PathBuf::new(), PathBuf::new()];
            Binary {
                package: package.into(),
                target,
                is_library: false,
                program,
                folder,
                libraries: Vec::new(),
            }
        };
        let short = binary("warmcore-cid", "ids");
        assert_eq!((short.without_long(), short.only_long()), (Some(vec![]), None));
        let long = binary("warmcore", "alone");
        assert_eq!((long.without_long(), long.only_long()), (None, Some(vec![])));
        let mixed = binary("warmcore-cli", "cli");
        let test = "a_report_is_a_folder_that_stands_alone";
        assert_eq!(mixed.without_long(), Some(vec!["--skip", test]));
        assert_eq!(mixed.only_long(), Some(vec!["--exact", test]));
    }

    #[test]
    fn a_package_is_named_in_its_id_or_as_its_folder() {
        assert_eq!(package("path+file:///r/crates/cid#warmcore-cid@0.1.0"), "warmcore-cid");
        assert_eq!(package("path+file:///r/xtask#0.1.0"), "xtask");
    }
}
