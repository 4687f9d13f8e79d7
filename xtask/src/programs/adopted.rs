//! Obtains a program, builds it as it is, lets `warmcore adopt` lead it to the face, and builds it again.
//!
//! The program is a copy of its package in `target/programs`, with the lock file that it comes with. Adopting is undone
//! once, which must restore its manifest and lock file byte for byte. All programs share a folder of build artifacts.
//! What is built stays there for the next call, until
//! `target/programs` is removed; a package of `xtask/programs` is copied again after a change.

use super::Program;
use crate::process::{self, Ended};
use crate::test::Live;
use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime};
use warmcore_results::{Bound, Row};

/// Replaces what the packages say of their release builds: some ask for optimization across all crates, which takes many
/// minutes. Both variants are the same binary.
const PROFILE: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
    ("CARGO_PROFILE_RELEASE_STRIP", "none"),
];

/// The program for which a time is promised in which it is adopted and built again, and this time in s.
const BOUND: (&str, f64) = ("mini-redis", 60.0);

/// An adopted program.
pub struct Adopted {
    /// The folder with the programs of the package.
    pub binaries: PathBuf,
    /// The command.
    pub warmcore: PathBuf,
    /// How long it took to build the package, to adopt it, and to build it again.
    pub rows: Vec<Row>,
}

/// Adopts and builds the package of a program, unless that is done.
pub fn prepare(root: &Path, folder: &Path, program: &Program, live: &mut Live) -> anyhow::Result<Adopted> {
    let artifacts = folder.join("build");
    let mut work = Work { folder, artifacts: &artifacts, name: program.package, live };
    let warmcore = work.command(root)?;
    let package = folder.join(program.package);
    let done = folder.join(format!("{}-{}-built.json", program.package, program.version));
    let adopt = |args: &[&str]| adopt(&warmcore, &package, args);
    let own = root.join("xtask/programs");
    let is_done = std::fs::metadata(&done)
        .and_then(|done| done.modified())
        .is_ok_and(|done| !program.version.is_empty() || newest(&own).is_ok_and(|newest| newest < done));
    if !is_done {
        work.obtain(&own, program, &package)?;
        if adopt(&["--dry-run"]).is_err_and(|error| error.to_string().contains(UPDATE)) {
            let update: Vec<&str> = UPDATE.split(' ').skip(1).collect();
            work.cargo(&package, &update)?;
        }
        work.cargo(&package, &["fetch"])?;
        let own_build_s = work.timed(|work| work.build(&package))?;
        let before = pair(&package)?;
        adopt(&[])?;
        ensure!(pair(&package)? != before, "`warmcore adopt` changed nothing");
        adopt(&["--undo"])?;
        ensure!(
            pair(&package)? == before,
            "`warmcore adopt --undo` did not restore Cargo.toml and Cargo.lock"
        );
        let adopt_s = work.timed(|_| adopt(&[]))?;
        let build_s = work.timed(|work| work.build(&package))?;
        let row =
            |metric: &str, seconds: f64| Row::exact(program.package, "warmcore", metric, "s", seconds, 1);
        let rows = [
            row("build before it is adopted", own_build_s),
            row("adopt", adopt_s),
            row("adopt and build", adopt_s + build_s).promise_if(
                program.package == BOUND.0,
                Bound::AtMost,
                BOUND.1,
            ),
        ];
        std::fs::write(&done, serde_json::to_vec_pretty(&rows)?)?;
    }
    // Brings a change of the face.
    adopt(&[])?;
    adopt(&["--check"])?;
    work.build(&package)?;
    let rows = serde_json::from_slice(&std::fs::read(&done)?)?;
    Ok(Adopted { binaries: artifacts.join("release"), warmcore, rows })
}

/// What `warmcore adopt` asks for if the program's lock file has a tokio that is too old.
const UPDATE: &str = "cargo update tokio --recursive";

fn adopt(warmcore: &Path, package: &Path, args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(warmcore).arg("adopt").args(args).arg(package).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`warmcore adopt {}`: {said}", args.join(" "));
    Ok(())
}

/// The manifest and the lock file.
fn pair(package: &Path) -> anyhow::Result<[Vec<u8>; 2]> {
    let read = |name: &str| std::fs::read(package.join(name)).with_context(|| format!("no {name}"));
    Ok([read("Cargo.toml")?, read("Cargo.lock")?])
}

/// Calls of Cargo for one package.
struct Work<'a> {
    folder: &'a Path,
    artifacts: &'a Path,
    name: &'a str,
    live: &'a mut Live,
}

impl Work<'_> {
    /// Builds the command `warmcore` and returns its path.
    fn command(&mut self, root: &Path) -> anyhow::Result<PathBuf> {
        let args = ["build", "-p", "warmcore-cli", "--message-format", "json-render-diagnostics"];
        let out = self.run(process::cargo(root, &args), "warmcore")?;
        let mut found = out.lines().filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            Some(PathBuf::from(message["executable"].as_str()?))
        });
        found.next_back().context("cargo names no executable of warmcore-cli")
    }

    /// Copies the package from the registry or from `own`.
    fn obtain(&mut self, own: &Path, program: &Program, to: &Path) -> anyhow::Result<()> {
        let from = if program.version.is_empty() { own.to_owned() } else { self.unpacked(program)? };
        let _ = std::fs::remove_dir_all(to);
        copy(&from, to)
    }

    /// Lets Cargo download and unpack the package of a program, and returns its folder. `cargo metadata` would not do: it
    /// leaves out packages without a library.
    fn unpacked(&mut self, program: &Program) -> anyhow::Result<PathBuf> {
        let Program { package, version, .. } = program;
        self.cargo(self.folder, &["info", "--quiet", &format!("{package}@{version}")])?;
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("no CARGO_HOME")?;
        let name = format!("{package}-{version}");
        for index in std::fs::read_dir(home.join("registry/src")).context("no packages in CARGO_HOME")? {
            let folder = index?.path().join(&name);
            if folder.join("Cargo.toml").exists() {
                return Ok(folder);
            }
        }
        bail!("`cargo info` did not unpack {name} below {}", home.display())
    }

    fn build(&mut self, package: &Path) -> anyhow::Result<()> {
        self.cargo(package, &["build", "--release", "--bins"])
    }

    fn cargo(&mut self, package: &Path, args: &[&str]) -> anyhow::Result<()> {
        let mut cargo = process::cargo(package, args);
        cargo.env("CARGO_TARGET_DIR", self.artifacts).envs(PROFILE);
        self.run(cargo, self.name).map(drop)
    }

    /// Runs Cargo and returns its standard output.
    fn run(&mut self, mut cargo: Command, what: &str) -> anyhow::Result<String> {
        let (out, err) = (self.folder.join("cargo.out"), self.folder.join("cargo.err"));
        cargo.stdout(File::create(&out)?).stderr(File::create(&err)?);
        let title = format!("building {what}");
        let ended = process::wait(&mut cargo, None, &[&err], &mut |text| {
            self.live.show(&title, &process::last_compiled(text), None);
        })?;
        match ended {
            Ended::Well => Ok(std::fs::read_to_string(&out)?),
            _ => bail!("{what} can't be built:\n{}", std::fs::read_to_string(&err).unwrap_or_default()),
        }
    }

    /// Returns the seconds that `act` takes.
    fn timed(&mut self, act: impl FnOnce(&mut Self) -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let began = Instant::now();
        act(self)?;
        Ok(began.elapsed().as_secs_f64())
    }
}

/// When a file of the folder was changed last.
fn newest(folder: &Path) -> std::io::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        newest = newest.max(if is_folder {
            self::newest(&entry.path())?
        } else {
            entry.metadata()?.modified()?
        });
    }
    Ok(newest)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("can't read {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &to)?,
            false => drop(std::fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_newest_file_may_be_in_a_folder_below() {
        let folder = std::env::temp_dir().join(format!("xtask-newest-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("src/bin")).unwrap();
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (file, seconds) in [("Cargo.toml", 50), ("src/bin/a.rs", 70), ("src/b.rs", 60)] {
            File::create(folder.join(file)).unwrap().set_modified(at(seconds)).unwrap();
        }
        let found = newest(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.unwrap(), at(70));
    }
}
