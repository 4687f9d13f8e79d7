//! The sides of a comparison: a program that runs slices, built from the working tree or from a revision, and a runtime.
//!
//! Both programs are the package `warmcore-bench` of the working tree. For a revision it is built with the crates of that
//! revision, in a git worktree under `target/compare` that has the revision's files but for [`OWN`]. So both sides are
//! measured by the same benches, even if the revision is older than a case, and a change of a bench is not taken for a
//! change of what it measures. Where the benches use an interface that the revision does not have, the build fails.
//!
//! Cargo derives the names of symbols from paths relative to the workspace, so two equal revisions give the same
//! instructions at the same addresses; only a few constants differ, such as the time of the build.

use crate::build::Build;
use crate::process::{git, said};
use crate::test::Live;
use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use warmcore_results::Row;

/// The folders that both sides have from the working tree: the benches, and the rows that they print.
const OWN: [&str; 2] = ["tools/bench", "tools/results"];

const PROGRAM: &str = "warmcore-bench";

/// What a side that is no revision is called on the command line.
pub const TOKIO: &str = "tokio";

/// A side.
pub struct Side {
    /// The name, as in the rows.
    pub name: String,
    program: PathBuf,
    /// What the program calls the runtime.
    runtime: &'static str,
}

impl Side {
    /// The working tree and the other side: tokio, or Warmcore at a revision. Builds what is needed, with `folder` for
    /// all files. `is_shared`: Warmcore's workers share one driver.
    pub fn both(
        root: &Path,
        folder: &Path,
        (other, is_shared): (&str, bool),
        live: &mut Live,
    ) -> anyhow::Result<[Self; 2]> {
        let tree = git(root, &["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])?;
        // The build that a revision needs may fail, so it is first.
        let other = match other {
            TOKIO => None,
            revision => Some(at_revision(root, folder, revision, live)?),
        };
        let built = build(root, None, folder, &format!("building {tree}"), live)?;
        // Copies: another call of cargo may replace a program meanwhile. Their paths have the same length, because the
        // path of a program is on its stack, and moves what comes after it.
        let copy = |built: &Path, name| {
            let program = folder.join(name);
            std::fs::copy(built, &program).with_context(|| format!("can't copy {}", built.display()))?;
            Ok::<_, anyhow::Error>(program)
        };
        let program = copy(&built, "this")?;
        let (of, runtime) = if is_shared { (", shared driver", "OursShared") } else { ("", "Ours") };
        let ours =
            |revision: &str, program| Self { name: format!("warmcore {revision}{of}"), program, runtime };
        let other = match other {
            None => Self { name: TOKIO.to_owned(), program: program.clone(), runtime: "Tokio" },
            Some((commit, built)) => ours(&commit, copy(&built, "that")?),
        };
        // Two equal sides would have one name.
        let tree = if ours(&tree, PathBuf::new()).name == other.name { "working tree" } else { &tree };
        Ok([ours(tree, program), other])
    }

    /// The names of the cases.
    pub fn cases(&self) -> anyhow::Result<Vec<String>> {
        self.ask(&json!({ "Names": null }))
    }

    /// Measures this many slices of a case in a process of its own. Returns a row for each metric, the most important one
    /// first; its median is that of the slices. A slice is `least_ms` long at least, if the program is not older than that.
    pub fn slice(&self, case: &str, slices: u16, least_ms: u16) -> anyhow::Result<Vec<Row>> {
        let part = json!({ "case": case, "runtime": self.runtime, "slices": slices, "least_ms": least_ms });
        self.ask(&json!({ "Once": part })).with_context(|| format!("{case} on {}", self.name))
    }

    fn ask<T: DeserializeOwned>(&self, part: &Value) -> anyhow::Result<T> {
        let said = said(Command::new(&self.program).args(["bench-part", &part.to_string()]))?;
        serde_json::from_str(&said).with_context(|| format!("{part} was answered by {said:?}"))
    }
}

/// Builds the program in a workspace.
fn build(
    workspace: &Path,
    target: Option<&Path>,
    logs: &Path,
    step: &str,
    live: &mut Live,
) -> anyhow::Result<PathBuf> {
    let args = ["build", "--release", "--package", PROGRAM, "--bin", PROGRAM];
    let build = Build { folder: workspace, args: &args, target, logs };
    let mut built = build.run(&[PROGRAM], &mut |krate| live.show(step, krate, None))?;
    built.pop().context("cargo built the program")
}

/// Builds the program with the crates of a revision. Returns the abbreviated commit and the program.
fn at_revision(
    root: &Path,
    folder: &Path,
    revision: &str,
    live: &mut Live,
) -> anyhow::Result<(String, PathBuf)> {
    let commit = git(root, &["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")])
        .with_context(|| format!("{revision} is neither a revision nor {TOKIO}"))?;
    let short = git(root, &["describe", "--always", "--abbrev=12", "--exclude=*", &commit])?;
    let tree = folder.join("revision");
    check_out(root, folder, &tree, &commit)?;
    let built = build(&tree, Some(&folder.join("target")), folder, &format!("building {short}"), live);
    match built {
        Ok(program) => Ok((short, program)),
        Err(error) => bail!(
            "the benches of the working tree ({}) with the crates of {short}: {error:#}",
            OWN.join(", ")
        ),
    }
}

/// Makes `tree` a worktree with the files of the commit, but for [`OWN`]. Git writes only files that differ from those
/// that `tree` has, so cargo builds only what changed since the last call.
fn check_out(root: &Path, folder: &Path, tree: &Path, commit: &str) -> anyhow::Result<()> {
    let index = folder.join("index");
    let staged = |args: &[&str]| {
        let mut git = Command::new("git");
        git.env("GIT_INDEX_FILE", &index).args(["-c", "user.name=xtask", "-c", "user.email=xtask@localhost"]);
        Ok::<_, anyhow::Error>(said(git.args(args).current_dir(root))?.trim().to_owned())
    };
    staged(&["read-tree", commit])?;
    staged(&[&["rm", "-r", "--cached", "--force", "--quiet", "--ignore-unmatch", "--"][..], &OWN].concat())?;
    staged(&[&["add", "--"][..], &OWN].concat())?;
    let files = staged(&["write-tree"])?;
    let both = staged(&["commit-tree", &files, "-p", commit, "-m", "with the benches of the working tree"])?;
    let path = tree.to_str().context("the path of the repository is no text")?;
    if tree.join(".git").exists() {
        git(tree, &["checkout", "--detach", "--force", "--quiet", &both])?;
    } else {
        git(root, &["worktree", "prune"])?;
        git(root, &["worktree", "add", "--force", "--detach", "--quiet", path, &both])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Files of a repository, with their text.
    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn a_revision_has_its_own_files_and_the_benches_of_the_working_tree() {
        let root = std::env::temp_dir().join(format!("xtask-compare-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let commit = |text: &str| {
            git(&root, &["add", "."]).unwrap();
            let who = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"];
            git(&root, &[&who[..], &["commit", "--quiet", "-m", text]].concat()).unwrap();
            git(&root, &["rev-parse", "HEAD"]).unwrap()
        };
        write(&root, &[("crates/a", "1"), ("crates/same", "1"), ("tools/results/r", "1")]);
        write(&root, &[("tools/bench/b", "1"), ("tools/bench/gone", "1"), (".gitignore", "target\n")]);
        git(&root, &["init", "--quiet"]).unwrap();
        let first = commit("first");
        write(&root, &[("crates/a", "2"), ("crates/new", "2")]);
        let second = commit("second");
        // Changed, new and deleted files of the working tree, none of them committed.
        write(&root, &[("tools/bench/b", "3"), ("tools/bench/new", "3"), ("crates/a", "3")]);
        fs::remove_file(root.join("tools/bench/gone")).unwrap();
        let status = git(&root, &["status", "--porcelain"]).unwrap();

        let folder = root.join("target/compare");
        fs::create_dir_all(&folder).unwrap();
        let tree = folder.join("revision");
        let text = |name: &str| fs::read_to_string(tree.join(name)).ok();
        let check = |commit: &str, a: &str, new: Option<&str>| {
            check_out(&root, &folder, &tree, commit).unwrap();
            assert_eq!((text("crates/a").as_deref(), text("crates/new").as_deref()), (Some(a), new));
            let own = ["tools/bench/b", "tools/bench/new", "tools/bench/gone", "tools/results/r"].map(text);
            assert_eq!(own.each_ref().map(Option::as_deref), [Some("3"), Some("3"), None, Some("1")]);
            fs::metadata(tree.join("crates/same")).unwrap().modified().unwrap()
        };
        let written = check(&first, "1", None);
        assert_eq!(check(&second, "2", Some("2")), written, "a file that is the same was written again");
        assert_eq!(check(&first, "1", None), written);
        assert_eq!(git(&root, &["status", "--porcelain"]).unwrap(), status, "the repository was changed");
        fs::remove_dir_all(&root).unwrap();
    }
}
