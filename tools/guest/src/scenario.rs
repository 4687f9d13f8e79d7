//! Scenarios: files that say what a guest's tasks do.

use anyhow::Context;
use serde::Deserialize;
use std::path::Path;
use warmcore_guest_init::{Run, Work};

/// A scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// Its file's name without `.toml`.
    pub name: String,
    /// What it is, in a sentence.
    pub about: String,
    /// Its workload.
    pub run: Run,
}

/// The program that runs a file of tasks.
const RT_APP: &str = "/usr/bin/rt-app";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    #[serde(default)]
    groups: Vec<String>,
    work: Work,
}

macro_rules! files {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("../scenarios/", $name, ".toml")))),*] };
}

/// The scenarios that are built in, by name and text.
const FILES: [(&str, &str); 25] = files![
    "hackbench" "hackbench-pipes" "hogs" "hogs-beside" "hogs-weighted" "hotplug" "messages" "moved" "pinned" "pipeline" "rrf" "rrj" "rrj-16-cpus" "rrj-25"
    "rrj-90" "rrp" "rrp-10" "rrp-short" "rt-app" "sections" "storm" "stress-aggressive" "stress-cyclic" "timers" "timers-16-cpus"
];

/// The scenarios that are built in.
pub fn scenarios() -> Vec<Scenario> {
    FILES.iter().map(|(name, text)| Scenario::read(name, text).expect("a test reads each of them")).collect()
}

impl Scenario {
    /// Reads a scenario's text.
    ///
    /// # Errors
    /// It is no scenario.
    fn read(name: &str, text: &str) -> anyhow::Result<Self> {
        let File { about, groups, work } = toml::from_str(text)?;
        Ok(Self { name: name.to_owned(), about, run: Run { name: name.to_owned(), groups, work } })
    }

    /// rt-app with a file of tasks, which is called like the file.
    pub fn of_tasks(file: &Path) -> Self {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // rt-app's folder is the guest's root, where the file lies under the path that it has here.
        let path = file.strip_prefix("./").unwrap_or(file).to_string_lossy().into_owned();
        let work = Work::Program {
            package: "rt-app".to_owned(),
            command: vec![RT_APP.to_owned(), path.clone()],
            files: vec![path.clone()],
            end_ms: 0,
        };
        Self {
            about: format!("rt-app {path}."),
            run: Run { name: name.clone(), groups: Vec::new(), work },
            name,
        }
    }

    /// What this machine lacks to run it, in words.
    pub fn missing(&self) -> Option<String> {
        let Work::Program { command, package, .. } = &self.run.work else { return None };
        let program = command.first().filter(|program| !Path::new(program).is_file())?;
        Some(format!("missing: {program}; on Debian: apt-get install {package}"))
    }

    /// The scenario with this name, or the file that it names.
    ///
    /// # Errors
    /// There is none, or the file is no scenario.
    pub fn find(name: &str) -> anyhow::Result<Self> {
        if name.ends_with(".toml") {
            let text = std::fs::read_to_string(name).with_context(|| format!("can't read {name}"))?;
            let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return Self::read(&stem, &text).with_context(|| format!("{name} is no scenario"));
        }
        scenarios().into_iter().find(|scenario| scenario.name == name).with_context(|| {
            let near = FILES.map(|(known, _)| known);
            let near = near.iter().max_by(|a, b| {
                strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name))
            });
            format!(
                "no scenario is called {name}; did you mean {}? `warmcore guest list` names all; a file's name ends with .toml",
                near.expect("there are scenarios")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_can_be_read_and_says_what_it_is() {
        for (name, text) in FILES {
            let scenario = Scenario::read(name, text).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(scenario.about.ends_with('.'), "{name}");
        }
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).unwrap().count();
        assert_eq!(files, FILES.len(), "each file is built in");
    }

    #[test]
    fn a_program_that_this_machine_lacks_is_named_with_its_package() {
        let of = |program| {
            let text = format!(
                "about = \"x\"\n[work]\nkind = \"program\"\npackage = \"p\"\ncommand = [\"{program}\"]"
            );
            Scenario::read("x", &text).unwrap().missing()
        };
        assert_eq!(of("/bin/sh"), None);
        assert_eq!(of("/no/such").as_deref(), Some("missing: /no/such; on Debian: apt-get install p"));
        assert_eq!(Scenario::find("rrj").unwrap().missing(), None);
    }

    #[test]
    fn an_unknown_name_and_a_wrong_file_are_refused_with_what_to_do() {
        let error = |name: &str| format!("{:#}", Scenario::find(name).unwrap_err());
        assert!(error("rrs").contains("did you mean rr"), "{}", error("rrs"));
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        std::fs::write(&file, "about = \"x\"\n[work]\nkind = \"pairs\"\nover = \"ether\"").unwrap();
        let error = error(file.path().to_str().unwrap());
        assert!(error.contains("is no scenario") && error.contains("sockets"), "{error}");
    }
}
