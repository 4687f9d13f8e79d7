//! `warmcore adopt`: runs a tokio program on Warmcore's scheduler, by two lines of its Cargo.toml.
//!
//! The program's tokio is replaced by the face (`adapters/tokio`), a package of the same name and version that
//! re-exports the real tokio and has Warmcore's runtime in the place of its scheduler. The face, a copy of the real
//! tokio and Warmcore's crates are written into a folder of the program (`prepare`), and `[patch.crates-io]` leads to
//! them (`manifest`).
//!
//! Cargo only warns about a patch that fits no dependency, and builds the program with the registry's package. So what
//! counts is not that Cargo succeeds but what `cargo metadata` says of every package named tokio (`verify`).
//!
//! On an error or a signal the program's files are as they were (`restore`).

use anyhow::{Context, bail};
use cargo::{Cargo, Dependency, Metadata, Package, minor, rustc};
use lock::{Lock, Locked};
use manifest::{FOLDER, Manifest, Patch};
use restore::{Pair, Restore};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_results::{SCHEMA, write_whole};

mod cargo;
mod lock;
mod manifest;
mod prepare;
mod restore;
#[cfg(test)]
mod tests;

/// The minor versions of tokio 1 that are tested: from the oldest with long-term support to the newest.
const MINORS: std::ops::RangeInclusive<u32> = 51..=54;

/// How Cargo.lock names the registry of crates.io, with the protocols git and sparse.
const CRATES_IO: [&str; 2] =
    ["registry+https://github.com/rust-lang/crates.io-index", "sparse+https://index.crates.io/"];

/// Arguments of `warmcore adopt`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// A folder of the program, or of one member of its workspace
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Let git see the prepared folder, so that a clone builds without this command
    #[arg(long, conflicts_with_all = ["undo", "check"])]
    vendor: bool,
    /// Put Cargo.toml and Cargo.lock back as they were; if they were edited since, remove the added lines alone
    #[arg(long, conflicts_with_all = ["check", "dry_run"])]
    undo: bool,
    /// Exit with 1 unless every tokio of the program is Warmcore's; change nothing
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,
    /// Fail where Cargo.toml or Cargo.lock would change: for CI, where only the prepared folder is missing
    #[arg(long, conflicts_with = "undo")]
    locked: bool,
    /// Use no network
    #[arg(long)]
    offline: bool,
    /// Also write what was found and done to FILE, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const AFTER: &str = "\
The environment variable WARMCORE=0 runs an adopted program on tokio's own scheduler.
In CI: `warmcore adopt --locked && warmcore adopt --check && cargo build --locked`.";

/// What was found and done: the object of `--json`.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    /// The root of the program's workspace.
    root: PathBuf,
    /// The version of the program's tokio.
    tokio: String,
    /// Whether every tokio of the program is the face now.
    is_adopted: bool,
    /// The lines added to Cargo.toml.
    added_lines: Vec<String>,
    /// The packages added to Cargo.lock: `tokio-real 1.54.1`.
    added_packages: Vec<String>,
    /// Whether the prepared folder was written; an equal one is left alone.
    is_prepared: bool,
}

/// `warmcore adopt`.
///
/// # Errors
/// The program can't be adopted, and why; Cargo fails; a file can't be read or written; with `--check`, the program is
/// not adopted. After an error the program's files are as they were.
pub fn command(args: &Args) -> anyhow::Result<()> {
    if !args.folder.is_dir() {
        bail!("{} is not a folder; name one with a Cargo.toml in it or above it", args.folder.display());
    }
    let done = run(args);
    // What succeeded is complete, even if a signal arrived at its end.
    if done.is_err() && INTERRUPTED.load(Relaxed) {
        eprintln!("interrupted: Cargo.toml and Cargo.lock are as they were");
        warmcore_bench::signals::end();
    }
    let outcome = done?;
    if let Some(path) = &args.json {
        let json = serde_json::json!({ "schema": SCHEMA, "what": "adopt", "adopt": outcome });
        write_whole(path, &serde_json::to_vec_pretty(&json)?)?;
    }
    Ok(())
}

fn run(args: &Args) -> anyhow::Result<Outcome> {
    let asked = Cargo { folder: args.folder.clone(), is_offline: args.offline };
    let members = asked.members()?;
    let cargo = Cargo { folder: members.workspace_root.clone(), is_offline: args.offline };
    match (args.undo, args.check) {
        (true, _) => undo(&cargo),
        (_, true) => check(&cargo),
        _ => adopt(&cargo, &members, args),
    }
}

/// The program as this command finds it.
struct Program {
    manifest: Manifest,
    /// Warmcore's crates that members of the workspace depend on.
    ours: Vec<String>,
    was_adopted: bool,
}

impl Program {
    fn read(before: &Pair, members: &Metadata) -> anyhow::Result<Self> {
        let manifest = Manifest::parse(before.manifest_text()?)?;
        let was_adopted = match manifest.patch("tokio") {
            Patch::Missing => false,
            Patch::Ours => true,
            Patch::Foreign(line) => bail!(
                "[patch.crates-io] in Cargo.toml takes tokio from {line}, and Warmcore wraps tokio from crates.io alone; \
                 remove that line first"
            ),
        };
        let crates = prepare::our_crates();
        let declared = members.packages.iter().flat_map(|package| &package.dependencies);
        let mut ours = BTreeSet::new();
        for Dependency { name, source } in declared.filter(|dependency| crates.contains_key(&dependency.name))
        {
            if !source.as_deref().is_some_and(|source| CRATES_IO.contains(&source)) {
                bail!(
                    "a member of the workspace takes {name} from {}, which would be a second runtime in the program; \
                     write `{name} = \"{}\"`, which this command leads to the prepared folder",
                    source.as_deref().unwrap_or("a path"),
                    env!("CARGO_PKG_VERSION")
                );
            }
            ours.insert(name.clone());
        }
        Ok(Self { manifest, ours: ours.into_iter().collect(), was_adopted })
    }
}

fn adopt(cargo: &Cargo, members: &Metadata, args: &Args) -> anyhow::Result<Outcome> {
    let root = &cargo.folder;
    check_rust(root)?;
    let mut restore = Restore::new(root)?;
    let before = restore.before.clone();
    let mut program = Program::read(&before, members)?;
    if args.locked && !program.was_adopted {
        bail!(
            "adopting changes Cargo.toml and Cargo.lock; run `warmcore adopt` without --locked once and commit both"
        );
    }
    // What Cargo has of the program without the face: unlike the lock file, without entries that nothing uses.
    let resolved = if program.was_adopted { None } else { Some(resolve(cargo, &program.ours)?) };
    let requirement = match (&resolved, &before.lock) {
        (Some(lock), _) => wanted(lock, false)?,
        (None, Some(_)) => wanted(&Lock::parse(before.lock_text()?)?, true)?,
        // Without the prepared folder Cargo resolves nothing, and without a lock file any version that fits will do.
        (None, None) => format!(">=1.{}, <1.{}", MINORS.start(), MINORS.end() + 1),
    };
    let tokio = obtain(cargo, &before, &requirement)?;
    let files = prepare::files(&tokio)?;
    let mut outcome = Outcome { root: root.clone(), tokio: tokio.version.clone(), ..Outcome::default() };
    let folders = prepare::our_crates();
    for name in std::iter::once("tokio").chain(program.ours.iter().map(String::as_str)) {
        match program.manifest.patch(name) {
            Patch::Ours => {}
            Patch::Missing => {
                let folder = folders.get(name).map_or(name, String::as_str);
                outcome.added_lines.push(program.manifest.add(name, folder)?);
            }
            Patch::Foreign(line) => {
                bail!("[patch.crates-io] in Cargo.toml takes {name} from {line}; remove that line")
            }
        }
    }
    if args.locked && !outcome.added_lines.is_empty() {
        bail!(
            "Cargo.toml lacks `{}`; run `warmcore adopt` without --locked",
            outcome.added_lines.join("`, `")
        );
    }
    tell_of_needs(&tokio);
    if args.dry_run {
        println!("would write {} files to {FOLDER}", files.len());
        outcome.added_lines.iter().for_each(|line| println!("would add to [patch.crates-io]: {line}"));
        println!("would take tokio {} and tokio-real from there in Cargo.lock", tokio.version);
        return Ok(outcome);
    }

    outcome.is_prepared = restore.install(&files, args.vendor)?;
    if !program.was_adopted {
        restore::record_before(root, &before)?;
    }
    let manifest = program.manifest.text().into_bytes();
    // If the program had no lock file, `resolve` has written one, which has the versions that it would have.
    let lock = before.lock.clone().or(Pair::read(root)?.lock);
    Pair { manifest, lock }.write(root)?;
    verify(cargo, if args.locked { &["--locked"] } else { &[] }).context(
        "the program can't be resolved with Warmcore; if a package is locked to a version that is too old for Warmcore, \
         run `cargo update PACKAGE --recursive` first",
    )?;
    let after = Pair::read(root)?;
    if let Some(resolved) = resolved {
        outcome.added_packages = added(&resolved, &Lock::parse(after.lock_text()?)?)?;
    }
    restore::record_after(root, &before, &after, program.was_adopted)?;
    restore.keep();
    outcome.is_adopted = true;
    tell(&outcome, files.len(), program.was_adopted, args.vendor);
    Ok(outcome)
}

/// Fails if the compiler that builds the program is too old for Warmcore.
fn check_rust(root: &Path) -> anyhow::Result<()> {
    let (release, needed) = (rustc(root)?.release, prepare::rust_version());
    if minor(&release) < minor(&needed) {
        bail!(
            "Warmcore needs Rust {needed}, and {} is built with {release}; run `rustup update`, or change the toolchain file",
            root.display()
        );
    }
    Ok(())
}

/// Says what the program needs from now on, before anything is written.
fn tell_of_needs(tokio: &Package) {
    let alone = tokio.rust_version.as_deref().map(|it| format!("; tokio alone {it}")).unwrap_or_default();
    println!("tokio {}: the program will need Rust {}{alone}", tokio.version, prepare::rust_version());
    if cfg!(not(target_os = "linux")) {
        println!("built for another system than Linux, the program runs on tokio itself");
    }
}

/// Resolves the program as it is; returns its packages. Cargo writes Cargo.lock if it is missing or doesn't fit.
///
/// No registry has Warmcore's crates. Those that the program depends on are replaced meanwhile by empty packages which
/// depend on tokio, as they do.
fn resolve(cargo: &Cargo, ours: &[String]) -> anyhow::Result<Lock> {
    let empty = tempfile::tempdir()?;
    let mut args = Vec::new();
    for name in ours {
        let folder = empty.path().join(name);
        let manifest = format!(
            "[package]\nname = {name:?}\nversion = {:?}\nedition = \"2024\"\n[dependencies]\ntokio = \"1\"\n[features]\n{}",
            env!("CARGO_PKG_VERSION"),
            prepare::features(name).iter().map(|feature| format!("{feature} = []\n")).collect::<String>()
        );
        write_package(&folder, &manifest)?;
        args.extend([
            "--config".to_owned(),
            format!("patch.crates-io.{name}.path={:?}", folder.display().to_string()),
        ]);
    }
    cargo.packages(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
    Lock::parse(Pair::read(&cargo.folder)?.lock_text()?)
}

/// A package without code.
fn write_package(folder: &Path, manifest: &str) -> anyhow::Result<()> {
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/lib.rs"), "")?;
    fs::write(folder.join("Cargo.toml"), manifest)?;
    Ok(())
}

/// The version of tokio that the program is to have, as a requirement of Cargo.
///
/// # Errors
/// The program has no tokio, one that isn't from crates.io, several, or one that isn't tested.
fn wanted(lock: &Lock, was_adopted: bool) -> anyhow::Result<String> {
    let mut tokios = lock.tokios();
    // The face from an earlier adoption has no source. Beside one from the registry it isn't used any more.
    if was_adopted && tokios.iter().any(|it| it.source.is_some()) {
        tokios.retain(|it| it.source.is_some());
    }
    let tokio = match tokios.as_slice() {
        [] => bail!("no package of this workspace depends on tokio: there is nothing to adopt"),
        [one] => *one,
        several => {
            let list = several.iter().map(|it| format!("  tokio {}: {}", it.version, lock.dependents(it, 8)));
            bail!(
                "the program has {} versions of tokio, and a task can't move between them:\n{}\n\
                 update the packages that want the older one (`cargo tree -i tokio@{}`)",
                several.len(),
                list.collect::<Vec<_>>().join("\n"),
                several[0].version
            )
        }
    };
    match tokio.source.as_deref() {
        Some(source) if CRATES_IO.contains(&source) => {}
        None if was_adopted => {}
        source => bail!(
            "the program takes tokio from {}, and Warmcore wraps tokio from crates.io alone; wanted by: {}",
            source.unwrap_or("a path"),
            lock.dependents(tokio, 8)
        ),
    }
    let Locked { version, .. } = tokio;
    let (oldest, newest) = (MINORS.start(), MINORS.end());
    match minor(version) {
        Some((1, minor)) if MINORS.contains(&minor) => Ok(format!("={version}")),
        Some((1, minor)) if minor > *newest => bail!(
            "tokio {version} is newer than what this version of Warmcore is tested with (1.{oldest} to 1.{newest}); \
             run `cargo update tokio --precise 1.{newest}.0`, or update Warmcore"
        ),
        _ => bail!(
            "tokio {version} is older than what Warmcore is tested with (1.{oldest} to 1.{newest}); \
             run `cargo update tokio --recursive`. It is wanted by: {}",
            lock.dependents(tokio, 8)
        ),
    }
}

/// The package tokio of crates.io that meets the requirement, unpacked by Cargo. A package in a temporary folder, which
/// depends on tokio alone, makes Cargo obtain it.
///
/// Cargo runs in the program's folder, so that a mirror or a vendored folder of its configuration is used, and gets the
/// program's lock file, so that a version that was yanked meanwhile is found.
fn obtain(cargo: &Cargo, program: &Pair, requirement: &str) -> anyhow::Result<Package> {
    let folder = tempfile::tempdir()?;
    let manifest = format!(
        "[package]\nname = \"obtains-tokio\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\ntokio = {requirement:?}\n"
    );
    write_package(folder.path(), &manifest)?;
    if let Some(lock) = &program.lock {
        fs::write(folder.path().join("Cargo.lock"), lock)?;
    }
    let path = folder.path().join("Cargo.toml");
    let found =
        cargo.packages(&["--manifest-path", path.to_str().context("a temporary folder that is not UTF-8")?]);
    let found = found.with_context(|| format!("can't get tokio {requirement} from crates.io"))?;
    let tokio =
        found.packages.into_iter().find(|it| it.name == "tokio").context("cargo metadata has no tokio")?;
    if !tokio.source.as_deref().is_some_and(|source| CRATES_IO.contains(&source)) {
        bail!(
            "the configuration of Cargo patches tokio: it comes from {}, and Warmcore wraps tokio from crates.io alone",
            tokio.manifest_path.display()
        );
    }
    Ok(tokio)
}

/// Fails unless the face is the only tokio of the program.
fn verify(cargo: &Cargo, args: &[&str]) -> anyhow::Result<Locked> {
    let root = &cargo.folder;
    let found = cargo.packages(args)?;
    let lock = Lock::parse(Pair::read(root)?.lock_text()?)?;
    let tokios = lock.tokios();
    if let Some(foreign) = tokios.iter().find(|it| it.source.is_some()) {
        bail!("tokio {} comes from crates.io, for {}", foreign.version, lock.dependents(foreign, 8));
    }
    if let Some(warning) = found.unused_patch(FOLDER) {
        bail!("{warning}");
    }
    if lock.unused_patches.contains("tokio") {
        bail!("Cargo.lock lists the patch of tokio as unused: the prepared version fits no dependency");
    }
    let face = root.join(FOLDER).join("tokio/Cargo.toml").canonicalize()?;
    for package in found.packages.iter().filter(|it| it.name == "tokio") {
        if package.source.is_some() || package.manifest_path.canonicalize()? != face {
            bail!("tokio {} comes from {}", package.version, package.manifest_path.display());
        }
    }
    match tokios.as_slice() {
        [face] => Ok((*face).clone()),
        _ => bail!("Cargo.lock has {} packages named tokio", tokios.len()),
    }
}

/// The packages that are new in the lock file.
///
/// # Errors
/// A package other than tokio is gone: adopting must not move a version.
fn added(before: &Lock, after: &Lock) -> anyhow::Result<Vec<String>> {
    let gone = before.packages.difference(&after.packages).filter(|it| it.name != "tokio");
    let gone: Vec<String> = gone.map(|it| format!("{} {}", it.name, it.version)).take(8).collect();
    if !gone.is_empty() {
        bail!("Cargo would move packages that have nothing to do with it: {}", gone.join(", "));
    }
    let new = after.packages.difference(&before.packages).filter(|it| it.name != "tokio");
    Ok(new.map(|it| format!("{} {}", it.name, it.version)).collect())
}

fn tell(outcome: &Outcome, files: usize, was_adopted: bool, is_vendored: bool) {
    let seen = if is_vendored { "to be committed" } else { "ignored by git" };
    match outcome.is_prepared {
        true => println!("{FOLDER}: {files} files written, {seen}"),
        false => println!("{FOLDER}: up to date"),
    }
    outcome.added_lines.iter().for_each(|line| println!("Cargo.toml, [patch.crates-io]: {line}"));
    if !outcome.added_packages.is_empty() {
        println!("Cargo.lock: added {}; no other package moved", outcome.added_packages.join(", "));
    }
    println!("checked: the program's one tokio is Warmcore's");
    if !was_adopted {
        println!(
            "\nBuild and run as before. WARMCORE=0 in the environment runs the same program on tokio's scheduler.\n\
             To undo: warmcore adopt --undo"
        );
    }
}

fn check(cargo: &Cargo) -> anyhow::Result<Outcome> {
    let root = &cargo.folder;
    let before = Pair::read(root)?;
    let manifest = Manifest::parse(before.manifest_text()?)?;
    if manifest.patch("tokio") != Patch::Ours {
        bail!("{} runs on tokio's own scheduler; run `warmcore adopt`", root.display());
    }
    if !root.join(FOLDER).join("tokio/Cargo.toml").is_file() {
        bail!("{FOLDER} is missing; run `warmcore adopt --locked`");
    }
    let face =
        verify(cargo, &["--locked"]).context("the program is not adopted as it is; run `warmcore adopt`")?;
    println!("the program's one tokio, {}, is Warmcore's", face.version);
    Ok(Outcome { root: root.clone(), tokio: face.version, is_adopted: true, ..Outcome::default() })
}

fn undo(cargo: &Cargo) -> anyhow::Result<Outcome> {
    let root = &cargo.folder;
    let restore = Restore::new(root)?;
    let before = &restore.before;
    let mut manifest = Manifest::parse(before.manifest_text()?)?;
    let lines = manifest.remove()?;
    if lines == 0 {
        bail!("Cargo.toml has no line of `warmcore adopt`: there is nothing to undo");
    }
    let tokio = Lock::parse(before.lock_text()?)?.tokios().first().map(|it| it.version.clone());
    let mut told = String::from("Cargo.toml and Cargo.lock are as they were");
    match restore::recorded(root) {
        Some(original) => original.write(root)?,
        None => {
            Pair { manifest: manifest.text().into_bytes(), ..before.clone() }.write(root)?;
            told = format!(
                "Cargo.toml or Cargo.lock was edited since, or there is no copy of them from before\n\
                 Cargo.toml: removed what adopt added to [patch.crates-io], lines: {lines}"
            );
            if let Some(version) = before.lock.as_ref().and(tokio.as_ref()) {
                relock(cargo, version)?;
                told += &format!("\nCargo.lock: tokio {version} comes from crates.io again");
            }
        }
    }
    restore.keep();
    let home = restore::home(root);
    if home.exists() {
        fs::remove_dir_all(&home).with_context(|| format!("can't remove {}", home.display()))?;
    }
    // Not before: if the pipe to its reader is closed, this panics.
    println!("{told}");
    Ok(Outcome { root: root.clone(), tokio: tokio.unwrap_or_default(), ..Outcome::default() })
}

/// Takes tokio of this version from crates.io again. Cargo would take the newest that fits.
fn relock(cargo: &Cargo, version: &str) -> anyhow::Result<()> {
    cargo.packages(&[]).context("the added lines are removed, and Cargo.lock can't be updated")?;
    let lock = Lock::parse(Pair::read(&cargo.folder)?.lock_text()?)?;
    if lock.tokios().iter().any(|it| it.version != version) {
        cargo.run("update", &["tokio", "--precise", version])?;
    }
    Ok(())
}
