//! Schedulers that others wrote: `prepare` builds them from crates.io, in pinned versions.
//!
//! They are licensed under the GPL 2.0. They are built on the user's machine, and Warmcore has no part of them.

use crate::cache::Cache;
use crate::kernel::sha256;
use crate::needs::BUILD;
use crate::programs::cargo;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use warmcore_results::write_whole;

/// A scheduler on crates.io. Its program has the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rival {
    /// Its name.
    pub name: &'static str,
    /// The version that is built.
    pub version: &'static str,
}

/// Those that `prepare` can build.
pub const RIVALS: &[Rival] = &[
    Rival { name: "scx_beerland", version: "1.1.4" },
    Rival { name: "scx_bpfland", version: "1.1.4" },
    Rival { name: "scx_cake", version: "1.2.2" },
    Rival { name: "scx_cosmos", version: "1.1.7" },
    Rival { name: "scx_flash", version: "1.1.4" },
    Rival { name: "scx_lavd", version: "1.1.4" },
    Rival { name: "scx_p2dq", version: "1.1.4" },
    Rival { name: "scx_rusty", version: "1.1.4" },
];

/// What was built, beside the program.
#[derive(Debug, Serialize, Deserialize)]
struct Built {
    version: String,
    sha256: String,
}

impl Rival {
    /// The one with this name.
    ///
    /// # Errors
    /// It is not known.
    pub fn find(name: &str) -> anyhow::Result<&'static Self> {
        RIVALS.iter().find(|rival| rival.name == name).with_context(|| {
            let known: Vec<&str> = RIVALS.iter().map(|rival| rival.name).collect();
            format!("no rival is called {name}; there are {}", known.join(", "))
        })
    }

    /// Whether the cache has this version.
    pub fn is_built(&self, cache: &Cache) -> bool {
        version(cache, self.name).as_deref() == Some(self.version)
    }

    fn build(&self, cache: &Cache) -> anyhow::Result<()> {
        let Self { name, version } = *self;
        let target = cache.folder("target-rivals")?;
        let root = tempfile::tempdir_in(&target)?;
        let clang = BUILD[1].found().context("no clang")?;
        let output = cargo("install", &target)
            .args(["--quiet", "--locked", "--no-track", "--version", &format!("={version}"), name, "--root"])
            .arg(root.path())
            .env("BPF_CLANG", clang)
            .output()
            .context("can't run cargo")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", why(&said));
        let [built, bin] = [root.path().join("bin"), cache.folder("bin")?].map(|folder| folder.join(name));
        let content = std::fs::read(&built).with_context(|| format!("cargo left no {}", built.display()))?;
        write_whole(&bin, &content)?;
        let about = Built { version: version.to_owned(), sha256: sha256(&bin)? };
        write_whole(&bin.with_extension("json"), serde_json::to_string_pretty(&about)?.as_bytes())?;
        Ok(())
    }
}

/// The version of a program of the cache. `None`: it was put there by hand, or changed since it was built.
pub(crate) fn version(cache: &Cache, name: &str) -> Option<String> {
    let program = cache.program(name).ok()?;
    let text = std::fs::read_to_string(program.with_extension("json")).ok()?;
    let built: Built = serde_json::from_str(&text).ok()?;
    (sha256(&program).ok()? == built.sha256).then_some(built.version)
}

/// What of a compiler's and linker's words says why they failed: the lines with an error, or the last ones.
fn why(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let has_error = |line: &&&str| {
        ["error", "not found", "could not find", "cannot find"]
            .iter()
            .any(|word| line.to_lowercase().contains(word))
    };
    let errors: Vec<&str> = lines.iter().filter(has_error).take(8).copied().collect();
    if errors.is_empty() { lines[lines.len().saturating_sub(8)..].join("\n") } else { errors.join("\n") }
}

/// Builds each of these that the cache does not have.
///
/// # Errors
/// Some can't be built; the error says which, and why. The others are there.
pub(crate) fn build(cache: &Cache, rivals: &[&Rival], step: &dyn Fn(&str)) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for rival in rivals.iter().filter(|rival| !rival.is_built(cache)) {
        let name = format!("{} {}", rival.name, rival.version);
        step(&name);
        if let Err(error) = rival.build(cache) {
            failed.push(format!("{name} can't be built: {error:#}"));
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_rival_is_refused_with_those_that_are_known() {
        assert_eq!(Rival::find("scx_rusty").unwrap().name, "scx_rusty");
        let error = Rival::find("scx_rust").unwrap_err().to_string();
        assert!(error.contains("scx_rust;") && error.contains("scx_lavd"), "{error}");
    }

    #[test]
    fn a_program_has_its_version_until_it_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned());
        let bin = cache.folder("bin").unwrap().join("scx_rusty");
        std::fs::write(&bin, "x").unwrap();
        assert_eq!(version(&cache, "scx_rusty"), None);
        let built = Built { version: "1.1.4".to_owned(), sha256: sha256(&bin).unwrap() };
        std::fs::write(bin.with_extension("json"), serde_json::to_string(&built).unwrap()).unwrap();
        assert_eq!(version(&cache, "scx_rusty").as_deref(), Some("1.1.4"));
        std::fs::write(&bin, "y").unwrap();
        assert_eq!(version(&cache, "scx_rusty"), None);
    }

    #[test]
    fn of_a_failed_build_the_errors_are_said() {
        let said = "   Compiling x v1\nerror: failed to run custom build command for `x`\n  thread 'main' panicked\n  Could not find `protoc`\n";
        assert_eq!(why(said), "error: failed to run custom build command for `x`\nCould not find `protoc`");
        assert_eq!(why("a\n\nb\n"), "a\nb");
    }
}
