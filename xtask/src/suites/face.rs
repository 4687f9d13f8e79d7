//! Prepares the face for a version of tokio, as `warmcore adopt` does for a program.

use super::host::write_changed;
use crate::process::{self, Ended};
use crate::test::Live;
use anyhow::{Context, bail};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Lets `warmcore adopt` lead a package in `folder` that depends on this tokio to the face, and returns the folder of the
/// face's package. All hosts use this one, so that the face is built once.
pub fn prepare(root: &Path, folder: &Path, tokio: &str, live: &mut Live) -> anyhow::Result<PathBuf> {
    let (manifest, source) = (folder.join("Cargo.toml"), folder.join("src/lib.rs"));
    if !manifest.exists() {
        let dependency = format!("tokio = {{ version = \"={tokio}\", default-features = false }}");
        let text =
            "[package]\nname = \"suites-adopted\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n";
        write_changed(&source, "")?;
        write_changed(&manifest, &format!("{text}{dependency}\n"))?;
        std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    }
    let output = folder.join("adopt.txt");
    let mut adopt = process::cargo(root, &["run", "-p", "warmcore-cli", "--", "adopt"]);
    // Standard output and standard error both append. Otherwise each would overwrite the other's text.
    File::create(&output)?;
    let append = || File::options().append(true).open(&output);
    adopt.arg(folder).stdout(append()?).stderr(append()?);
    let mut show = |text: &str| live.show("warmcore adopt", &process::last_compiled(text), None);
    match process::wait(&mut adopt, None, &[&output], &mut show)? {
        Ended::Well => Ok(folder
            .canonicalize()
            .context("the folder of the face")?
            .join(".warmcore/run-warmcore-adopt/tokio")),
        _ => bail!("`warmcore adopt`:\n{}", std::fs::read_to_string(&output).unwrap_or_default()),
    }
}
