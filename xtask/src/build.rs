//! Builds programs with cargo, shows what is compiled meanwhile, and finds the programs.

use crate::process::{self, Ended};
use anyhow::{Context, bail};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A call of cargo that builds programs.
pub struct Build<'a> {
    /// Where cargo is called.
    pub folder: &'a Path,
    pub args: &'a [&'a str],
    /// The folder of what is built; cargo's default if there is none.
    pub target: Option<&'a Path>,
    /// The folder for what cargo says.
    pub logs: &'a Path,
}

impl Build<'_> {
    /// Builds and returns the paths of the programs, in the order of their names. `show` gets the crate that is compiled.
    pub fn run(&self, names: &[&str], show: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<PathBuf>> {
        let (out, err) = (self.logs.join("built.json"), self.logs.join("build.txt"));
        let mut cargo = process::cargo(self.folder, self.args);
        cargo.args(["--message-format", "json-render-diagnostics"]);
        if let Some(target) = self.target {
            cargo.env("CARGO_TARGET_DIR", target);
        }
        cargo.stdout(File::create(&out)?).stderr(File::create(&err)?);
        match process::wait(&mut cargo, None, &[&err], &mut |text| show(&process::last_compiled(text)))? {
            Ended::Well => {}
            _ => bail!("does not build:\n{}", std::fs::read_to_string(&err).unwrap_or_default()),
        }
        let messages = std::fs::read_to_string(&out)?;
        let find = |name: &&str| {
            executable(&messages, name).with_context(|| format!("cargo names no program {name}"))
        };
        names.iter().map(find).collect()
    }
}

/// The path of a program, from cargo's messages.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_target = messages.filter(|message| message.pointer("/target/name").is_some_and(|it| it == name));
    // A library may have the name of the program.
    of_target.into_iter().find_map(|message| Some(message["executable"].as_str()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_cargos_messages() {
        let messages = "{\"target\":{\"name\":\"main\"},\"executable\":null}\n\
                        {\"target\":{\"name\":\"main\"},\"executable\":\"/t/main-1\"}\nx\n";
        assert_eq!(executable(messages, "main"), Some("/t/main-1".into()));
        assert_eq!(executable(messages, "other"), None);
    }
}
