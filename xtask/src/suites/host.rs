//! Obtains a package through Cargo and writes the host packages that build its tests.
//!
//! A host stands in `target/suites/TOKIO/SUITE/SIDE` and is a workspace of its own. For a library that uses tokio it is
//! a copy of the package. For tokio it is a package of another name that depends on tokio, because Cargo replaces
//! dependencies and not the package that it builds: the host has a copy of tokio's folder `tests`, tokio's features
//! under their names, since tests are compiled under `cfg(feature = "full")`, and tokio's dependencies, since tests
//! use them.
//!
//! Both hosts of a suite have the same versions of all packages: those of this repository's lock file, and the newest
//! ones of what it lacks. (Lock files in packages are not used, since some have versions that do not build.) So a later
//! call needs no network. All hosts share a folder of build artifacts.

use super::Suite;
use crate::process::{self, Ended};
use crate::test::binaries::{self, Binary};
use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A package as `cargo metadata` describes it.
pub struct Package {
    pub version: String,
    /// The unpacked source in the registry's folder.
    folder: PathBuf,
    metadata: Value,
}

impl Package {
    /// A package in a folder that is not the registry's.
    pub fn in_folder(folder: &Path) -> Self {
        Self { version: String::new(), folder: folder.to_owned(), metadata: Value::Null }
    }
}

/// A tokio version and a package of a suite, from the registry.
pub struct Fetched {
    pub tokio: Package,
    pub package: Package,
}

/// Downloads and unpacks the package of a suite and the newest tokio that the requirement `tokio` admits.
pub fn fetch(root: &Path, folder: &Path, suite: &Suite, tokio: &str) -> anyhow::Result<Fetched> {
    std::fs::create_dir_all(folder.join("src"))?;
    std::fs::write(folder.join("src/lib.rs"), "")?;
    let mut manifest = String::from(
        "[package]\nname = \"suites-fetch\"\nedition = \"2024\"\n[workspace]\n[dependencies.tokio]\ndefault-features = false\n",
    );
    writeln!(manifest, "version = \"~{tokio}\"")?;
    if suite.package != "tokio" {
        let (name, version) = (suite.package, suite.version);
        writeln!(manifest, "[dependencies.{name}]\ndefault-features = false\nversion = \"{version}\"")?;
    }
    write_changed(&folder.join("Cargo.toml"), &manifest)?;
    // A new resolution each time, since another requirement may have been here.
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let metadata = metadata(folder, &[])?;
    Ok(Fetched { tokio: package(&metadata, "tokio")?, package: package(&metadata, suite.package)? })
}

fn metadata(folder: &Path, args: &[&str]) -> anyhow::Result<Value> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let args = [&["metadata", "--format-version", "1", "--filter-platform", &target], args].concat();
    let output = process::cargo(folder, &args).output().context("can't run cargo")?;
    ensure!(
        output.status.success(),
        "can't obtain from the registry what {} names, which the first run needs: {}",
        folder.join("Cargo.toml").display(),
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("cargo printed something else than JSON")
}

fn package(metadata: &Value, name: &str) -> anyhow::Result<Package> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.into_iter().find(|package| package["name"] == name);
    let metadata = found.with_context(|| format!("the registry has no {name} for this requirement"))?;
    let text = |key: &str| metadata[key].as_str().unwrap_or_default();
    let folder = Path::new(text("manifest_path")).parent().context("a manifest without a folder")?.to_owned();
    Ok(Package { version: text("version").to_owned(), folder, metadata: metadata.clone() })
}

/// What the registry's tokio is replaced by.
#[derive(Debug, Clone, Copy)]
pub struct Patch<'a> {
    /// The folder with the face's package.
    pub face: &'a Path,
    /// The lock file of the host without the patch, from which the versions are taken.
    pub lock: &'a Path,
}

/// Writes a host of the suite into `folder`.
pub fn write(
    root: &Path,
    folder: &Path,
    suite: &Suite,
    fetched: &Fetched,
    patch: Option<Patch<'_>>,
) -> anyhow::Result<()> {
    let Fetched { tokio, package } = fetched;
    let mut manifest = if suite.package == "tokio" {
        copy(&package.folder.join("tests"), &folder.join("tests"), &|_| true)?;
        write_changed(&folder.join("src/lib.rs"), "")?;
        manifest_for_tokio(&package.metadata)?
    } else {
        let is_written = |path: &Path| path.ends_with("Cargo.toml") || path.ends_with("Cargo.lock");
        copy(&package.folder, folder, &|path| !is_written(path))?;
        std::fs::read_to_string(package.folder.join("Cargo.toml"))?
    };
    if !manifest.contains("\n[workspace]\n") {
        manifest += "\n[workspace]\n";
    }
    manifest += "\n[profile.dev]\ndebug = false\nincremental = false\n";
    if let Some(patch) = patch {
        write!(manifest, "\n[patch.crates-io]\ntokio = {{ path = {:?} }}\n", patch.face)?;
    }
    write_changed(&folder.join("Cargo.toml"), &manifest)?;
    let lock = folder.join("Cargo.lock");
    let Some(patch) = patch else {
        if !lock.exists() {
            std::fs::copy(root.join("Cargo.lock"), lock)?;
        }
        if self::package(&metadata(folder, &[])?, "tokio")?.version != tokio.version {
            let args = ["update", "--quiet", "tokio", "--precise", &tokio.version];
            let is_updated = process::cargo(folder, &args).status()?.success();
            ensure!(is_updated, "{} does not build with tokio {}", suite.package, tokio.version);
        }
        return Ok(());
    };
    std::fs::copy(patch.lock, lock)?;
    // Cargo only warns if a patch does not fit.
    let metadata = metadata(folder, &["--all-features"])?;
    let all = metadata["packages"].as_array().into_iter().flatten();
    let not_replaced = all.filter(|package| package["name"] == "tokio" && !package["source"].is_null());
    ensure!(not_replaced.count() == 0, "the face did not replace tokio in {}", folder.display());
    Ok(())
}

/// The manifest of the host of tokio's tests.
fn manifest_for_tokio(tokio: &Value) -> anyhow::Result<String> {
    let text = |key: &str| tokio[key].as_str().unwrap_or_default();
    let (version, edition) = (text("version"), text("edition"));
    // A test reads the manifest and expects the address of tokio's site.
    let mut manifest = format!(
        "[package]\nname = \"suites-tokio\"\nedition = {edition:?}\nhomepage = {:?}\n\n[features]\n",
        text("homepage")
    );
    // Tests ask for features of their own package, so a feature turns on the others that it turns on in tokio.
    let features = tokio["features"].as_object().context("tokio without features")?;
    for (feature, parts) in features.iter().filter(|(name, _)| *name != "default") {
        let parts = parts.as_array().into_iter().flatten().filter_map(Value::as_str);
        let others = parts.filter(|part| features.contains_key(*part)).map(str::to_owned);
        let parts: Vec<String> = others.chain([format!("tokio/{feature}")]).collect();
        writeln!(manifest, "{feature} = {parts:?}")?;
    }
    write!(manifest, "\n[dependencies.tokio]\nversion = \"={version}\"\ndefault-features = false\n")?;
    for dependency in tokio["dependencies"].as_array().into_iter().flatten() {
        write!(manifest, "\n{}", dependency_table(dependency)?)?;
    }
    Ok(manifest)
}

/// The table of a manifest for one dependency of `cargo metadata`, which is never optional there.
fn dependency_table(dependency: &Value) -> anyhow::Result<String> {
    let name = dependency["name"].as_str().context("a dependency without a name")?;
    let section = match dependency["kind"].as_str() {
        None => "dependencies",
        Some("dev") => "dev-dependencies",
        Some(kind) => bail!("{name} is a {kind} dependency"),
    };
    let target =
        dependency["target"].as_str().map(|target| format!("target.'{target}'.")).unwrap_or_default();
    let key = dependency["rename"].as_str().unwrap_or(name);
    let mut table = format!("[{target}{section}.{key}]\n");
    if key != name {
        writeln!(table, "package = {name:?}")?;
    }
    // JSON's strings, lists and booleans are also TOML's.
    writeln!(table, "version = {}", dependency["req"])?;
    writeln!(table, "default-features = {}", dependency["uses_default_features"])?;
    writeln!(table, "features = {}", dependency["features"])?;
    Ok(table)
}

/// Copies the files below a folder that are wanted. A file that is the same already is left as it is, so that Cargo does
/// not build it again.
pub fn copy(from: &Path, to: &Path, is_wanted: &dyn Fn(&Path) -> bool) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| format!("can't read {}", from.display()))? {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&path, &to, is_wanted)?;
        } else if is_wanted(&path) {
            let bytes = std::fs::read(&path)?;
            if std::fs::read(&to).ok().as_ref() != Some(&bytes) {
                std::fs::create_dir_all(to.parent().unwrap_or(&to))?;
                std::fs::write(&to, bytes)?;
            }
        }
    }
    Ok(())
}

pub fn write_changed(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    if std::fs::read_to_string(path).ok().as_deref() != Some(text) {
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// Builds the tests of a host, or only those of the `files` in its folder `tests`.
pub fn build(
    folder: &Path,
    artifacts: &Path,
    features: &str,
    files: &[&str],
    show: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<Binary>> {
    let (out, err) = (folder.join("built.json"), folder.join("build.txt"));
    let mut args =
        vec!["test", "--no-run", "--message-format", "json-render-diagnostics", "--features", features];
    match files {
        [] => args.push("--tests"),
        files => args.extend(files.iter().flat_map(|file| ["--test", file])),
    }
    let mut cargo = process::cargo(folder, &args);
    cargo.env("CARGO_TARGET_DIR", artifacts).stdout(File::create(&out)?).stderr(File::create(&err)?);
    match process::wait(&mut cargo, None, &[&err], &mut |text| show(&process::last_compiled(text)))? {
        Ended::Well => binaries::of_messages(&std::fs::read_to_string(&out)?, artifacts),
        _ => bail!("does not build:\n{}", errors(&std::fs::read_to_string(&err).unwrap_or_default())),
    }
}

/// The errors in a compiler's output, without the warnings.
fn errors(text: &str) -> String {
    let blocks = text.split("\n\n").filter(|block| block.starts_with("error") || block.contains("\nerror"));
    blocks.take(20).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_host_has_tokios_features_and_dependencies_under_their_names() {
        let tokio = json!({
            "version": "1.54.1", "edition": "2021", "homepage": "https://tokio.rs",
            "features": { "default": [], "full": ["fs", "mio/net"], "fs": [] },
            "dependencies": [
                { "name": "bytes", "req": "^1.2.1", "kind": null, "rename": null, "optional": true,
                  "uses_default_features": true, "features": [], "target": null },
                { "name": "nix", "req": "^0.31.0", "kind": "dev", "rename": null, "optional": false,
                  "uses_default_features": false, "features": ["aio", "fs"], "target": "cfg(unix)" },
            ],
        });
        let expected = r#"[package]
name = "suites-tokio"
edition = "2021"
homepage = "https://tokio.rs"

[features]
fs = ["tokio/fs"]
full = ["fs", "tokio/full"]

[dependencies.tokio]
version = "=1.54.1"
default-features = false

[dependencies.bytes]
version = "^1.2.1"
default-features = true
features = []

[target.'cfg(unix)'.dev-dependencies.nix]
version = "^0.31.0"
default-features = false
features = ["aio","fs"]
"#;
        assert_eq!(manifest_for_tokio(&tokio).unwrap(), expected);
    }

    #[test]
    fn errors_are_found_between_warnings() {
        let text = "warning: unused\n --> a\n\nerror[E0425]: not found\n --> b\n\nwarning: x\n";
        assert_eq!(errors(text), "error[E0425]: not found\n --> b");
    }
}
