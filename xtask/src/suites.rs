//! `cargo xtask suites`: runs the tests of tokio and of libraries that use it, unmodified, on tokio and through the
//! face (`adapters/tokio`), and compares.
//!
//! The packages come from the registry at test time ([`host`]). Each test runs in a process of its own ([`runs`]). Both
//! sides must have the same tests. A test that fails through the face, passes on tokio and is not in `skip.txt` fails
//! the run, and so does a share of passed tests below the limit of its line ([`table`]).
//!
//! Most of tokio's tests make no multi-thread runtime, so the face's scheduler is in none of them. The face counts the
//! polls by its workers and the multi-thread runtimes that it made; the lines of the table are chosen by these counts.
//! The tests without a multi-thread runtime run once more with a feature of the face that makes it the default of
//! `#[tokio::test]`, and are compared with the same programs under `WARMCORE=0`, which is tokio's multi-thread scheduler.

pub mod face;
pub mod host;
mod runs;
mod skip;
mod table;

use crate::test::{Binary, Live};
use anyhow::ensure;
use clap::builder::PossibleValuesParser;
use host::{Fetched, Patch};
use runs::{Results, Runs, Test, TestName};
use skip::Skips;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;
use table::{Comparison, Row};

/// The newest tokio that the face wraps; the suites run on it unless another one is named.
pub const TOKIO: &str = "1.54.1";

/// The feature of the face that makes the multi-thread runtime the default of `#[tokio::test]`.
const MULTI_THREAD_FEATURE: &str = "tokio/warmcore_test_multi_thread";

/// How many runs of a test that makes a multi-thread runtime come to one run of another test.
const MULTI_THREAD_RUNS: u32 = 20;

/// The files of tokio's tests that `--sample` runs, once with the flavours that they name: those with the most tests that
/// make a multi-thread runtime, without those that expect numbers of wakes.
const SAMPLE: [&str; 7] = [
    "rt_common",
    "rt_handle_block_on",
    "rt_threaded",
    "task_blocking",
    "task_id",
    "task_join_set",
    "task_local_set",
];

/// A package whose tests are run.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    pub package: &'static str,
    /// The requirement on its version; tokio's is an option of the command.
    pub version: &'static str,
    pub features: &'static str,
}

const SUITES: [Suite; 7] = [
    Suite { package: "tokio", version: "", features: "full,test-util" },
    Suite { package: "tokio-util", version: "=0.7.20", features: "full" },
    Suite { package: "tokio-stream", version: "=0.1.19", features: "full" },
    Suite { package: "hyper-util", version: "=0.1.21", features: "full" },
    Suite { package: "tower", version: "=0.5.3", features: "full" },
    Suite { package: "deadpool", version: "=0.13.1", features: "rt_tokio_1,serde" },
    Suite { package: "bb8", version: "=0.9.1", features: "" },
];

/// The arguments of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The packages whose tests run; all if none is named
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(SUITES.map(|suite| suite.package)))]
    names: Vec<String>,
    /// Only a few files of tokio's tests, with the flavours that they name
    #[arg(long)]
    sample: bool,
    /// Versions of tokio, separated by commas; each stands for its newest patch version
    #[arg(long, value_name = "VERSION", value_delimiter = ',', default_value = TOKIO)]
    tokio: Vec<String>,
    /// Run the tests that make a multi-thread runtime N times, and the other ones N / 20 times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Go on where a run was ended
    #[arg(long)]
    resume: bool,
}

/// Runs the suites that the arguments name. Returns an error if a line of the table misses its limit.
pub fn run(root: &Path, options: Options) -> anyhow::Result<()> {
    let chosen = SUITES
        .iter()
        .filter(|suite| options.names.is_empty() || options.names.iter().any(|name| name == suite.package));
    let chosen: Vec<&Suite> = match options.sample {
        true => chosen.filter(|suite| suite.package == "tokio").collect(),
        false => chosen.collect(),
    };
    ensure!(!chosen.is_empty(), "the sample has tests of tokio alone");
    let folder = root.join("target/suites");
    let mut run = Run { root, artifacts: folder.join("build"), folder, options, live: Live::new() };
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    for version in &run.options.tokio.clone() {
        for suite in &chosen {
            // A suite that does not build leaves the others their results.
            if let Err(error) = run.suite(suite, version, &mut rows) {
                errors.push(format!("{} with tokio {version}: {error:#}", suite.package));
            }
        }
    }
    println!("{}", table::text(&rows));
    let json = run.folder.join("suites.json");
    std::fs::write(&json, serde_json::to_vec_pretty(&table::json(&rows, &run.options.tokio.join(", ")))?)?;
    println!("as JSON: {}", json.display());
    errors.extend(rows.iter().flat_map(Row::faults));
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(())
}

/// A call of the command.
struct Run<'a> {
    root: &'a Path,
    /// `target/suites`
    folder: PathBuf,
    /// Where Cargo puts what it builds, for all hosts.
    artifacts: PathBuf,
    options: Options,
    live: Live,
}

/// The sides of a comparison, as the file of results names them.
const ON_TOKIO: &str = "tokio";
const ON_FACE: &str = "the face";
/// The face with `WARMCORE=0`, for the counts of tests that leave none on the face's scheduler.
const ON_FACE_OFF: &str = "the face, WARMCORE=0";
/// Both with the multi-thread runtime as the default of `#[tokio::test]`.
const ON_TOKIO_MULTI: &str = "tokio, multi-thread";
const ON_FACE_MULTI: &str = "the face, multi-thread";

impl Run<'_> {
    /// Adds the lines of a suite to `rows`. After an error these are the lines that were measured before.
    fn suite(&mut self, suite: &Suite, version: &str, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let fetched = host::fetch(self.root, &self.folder.join("fetch"), suite, version)?;
        let version = &fetched.tokio.version;
        let title = match suite.package {
            "tokio" => format!("tokio {version}"),
            name => format!("{name} {}", fetched.package.version),
        };
        let hosts = self.hosts(suite, &fetched)?;
        let tokio = self.build(&title, &hosts.tokio, ON_TOKIO, suite.features)?;
        let face = self.build(&title, &hosts.face, ON_FACE, suite.features)?;
        let (tokio, face) = (runs::list(&tokio)?, runs::list(&face)?);
        compare_names(&tokio, &face)?;
        let all = (!self.options.sample).then_some(&tokio);
        let skips = Skips::of(suite.package, all)?;

        let sample = if self.options.sample { "sample-" } else { "" };
        let path = self.folder.join(format!("results-{sample}{}-{version}.json", suite.package));
        let mut results = Results::open(path, self.options.resume)?;
        self.rounds(&title, &mut results, [&tokio, &face], &skips)?;
        let own = Comparison { results: &results, sides: [ON_TOKIO, ON_FACE], skips: &skips };
        let is_multi = |name: &&TestName| makes_multi_thread(&results, name);
        if suite.package == "tokio" {
            rows.push(Row::of(title.clone(), face.keys(), &own, 97.0));
            let multi = format!("{title}, multi-thread tests");
            rows.push(Row::of(multi, face.keys().filter(is_multi), &own, 95.0));
        } else {
            rows.push(Row::of(title.clone(), face.keys(), &own, 100.0));
        }
        if self.options.sample {
            return Ok(());
        }
        let title = format!("{title}, default flavour");
        let features = format!("{},{MULTI_THREAD_FEATURE}", suite.features);
        let built = self.build(&title, &hosts.face, ON_FACE_MULTI, &features)?;
        let skips = Skips::of(&format!("{}-default-flavour", suite.package), Some(&tokio))?;
        let others = runs::list(&built)?.into_iter().filter(|(name, _)| !is_multi(&name)).collect();
        let others = self.default_flavour(&title, &mut results, others, &skips)?;
        let own = Comparison { results: &results, sides: [ON_TOKIO_MULTI, ON_FACE_MULTI], skips: &skips };
        rows.push(Row::of(title, others.iter(), &own, 95.0));
        Ok(())
    }

    /// Writes the hosts of a suite.
    fn hosts(&mut self, suite: &Suite, fetched: &Fetched) -> anyhow::Result<Hosts> {
        let version = &fetched.tokio.version;
        let folder = self.folder.join(version);
        let prepared = face::prepare(self.root, &folder.join("adopted"), version, &mut self.live)?;
        let [tokio, face] = ["tokio", "face"].map(|side| folder.join(suite.package).join(side));
        host::write(self.root, &tokio, suite, fetched, None)?;
        let lock = tokio.join("Cargo.lock");
        host::write(self.root, &face, suite, fetched, Some(Patch { face: &prepared, lock: &lock }))?;
        Ok(Hosts { tokio, face })
    }

    /// Builds the test programs of a host.
    fn build(&mut self, title: &str, host: &Path, side: &str, features: &str) -> anyhow::Result<Vec<Binary>> {
        let files: &[&str] = if self.options.sample { &SAMPLE } else { &[] };
        host::build(host, &self.artifacts, features, files, &mut |krate| {
            self.live.show(&format!("{title}, building for {side}"), krate, None);
        })
    }

    /// Runs the tests of a suite on both sides: each once, and then as often as the options say.
    fn rounds(
        &mut self,
        title: &str,
        results: &mut Results,
        [tokio, face]: [&Tests<'_>; 2],
        skips: &Skips,
    ) -> anyhow::Result<()> {
        let not_skipped = |name: &&TestName| !skips.has(name);
        let once = |_: &TestName| 1;
        self.run(title, results, ON_FACE, None, pick(face, not_skipped, once))?;
        // A test that hangs or aborts leaves no counts.
        let unknown = |name: &&TestName| !results.record(ON_FACE, name).has_passed();
        let unknown = pick(face, unknown, once);
        self.run(title, results, ON_FACE_OFF, Some("0"), unknown)?;
        let rest = (self.options.times / MULTI_THREAD_RUNS).max(1);
        let multi: BTreeSet<_> = face.keys().filter(|name| makes_multi_thread(results, name)).collect();
        let times = |name: &TestName| if multi.contains(name) { self.options.times } else { rest };
        let [tokio, face] = [pick(tokio, |_| true, times), pick(face, not_skipped, times)];
        self.run(title, results, ON_TOKIO, None, tokio)?;
        self.run(title, results, ON_FACE, None, face)
    }

    /// Runs the tests that make a multi-thread runtime only if that is the default of `#[tokio::test]`, on tokio's
    /// scheduler and then on the face's. Returns their names.
    fn default_flavour(
        &mut self,
        title: &str,
        results: &mut Results,
        tests: Tests<'_>,
        skips: &Skips,
    ) -> anyhow::Result<BTreeSet<TestName>> {
        let rest = (self.options.times / MULTI_THREAD_RUNS).max(1);
        self.run(title, results, ON_TOKIO_MULTI, Some("0"), pick(&tests, |_| true, |_| rest))?;
        let of_interest = |name: &&TestName| results.record(ON_TOKIO_MULTI, name).runtimes > 0;
        let names = tests.keys().filter(of_interest).cloned().collect();
        let chosen = pick(&tests, |name| of_interest(name) && !skips.has(name), |_| rest);
        self.run(title, results, ON_FACE_MULTI, None, chosen)?;
        Ok(names)
    }

    fn run(
        &mut self,
        title: &str,
        results: &mut Results,
        side: &'static str,
        warmcore: Option<&'static str>,
        tests: Vec<(TestName, Test<'_>, u32)>,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        let live = &mut self.live;
        runs::run(&Runs { side, warmcore, tests }, results, &mut |all, done, test| {
            let left = began.elapsed() / done as u32 * (all - done) as u32;
            live.show(&format!("{title} on {side}"), &format!("{done} of {all}, {test}"), Some(left));
        })
    }
}

/// The host packages of a suite.
struct Hosts {
    tokio: PathBuf,
    face: PathBuf,
}

type Tests<'a> = BTreeMap<TestName, Test<'a>>;

/// Some of the tests, each with how often it is to run.
fn pick<'a>(
    tests: &Tests<'a>,
    is_chosen: impl Fn(&&TestName) -> bool,
    times: impl Fn(&TestName) -> u32,
) -> Vec<(TestName, Test<'a>, u32)> {
    let chosen = tests.iter().filter(|(name, _)| is_chosen(name));
    chosen.map(|(name, test)| (name.clone(), test.clone(), times(name))).collect()
}

/// Whether a test made a multi-thread runtime through the face.
fn makes_multi_thread(results: &Results, name: &str) -> bool {
    [ON_FACE, ON_FACE_OFF].iter().any(|side| results.record(side, name).runtimes > 0)
}

/// Returns an error that names the tests that only one side has.
fn compare_names(tokio: &Tests<'_>, face: &Tests<'_>) -> anyhow::Result<()> {
    let only = |a: &Tests<'_>, b: &Tests<'_>| {
        a.keys().filter(|name| !b.contains_key(*name)).cloned().collect::<Vec<_>>().join(", ")
    };
    let (on_tokio, on_face) = (only(tokio, face), only(face, tokio));
    ensure!(!tokio.is_empty(), "there are no tests");
    ensure!(
        on_tokio.is_empty() && on_face.is_empty(),
        "the sides have different tests; only on tokio: {on_tokio}; only through the face: {on_face}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_has_the_newest_tokio_that_is_tested() {
        let lock = include_str!("../../Cargo.lock");
        assert!(lock.contains(&format!("name = \"tokio\"\nversion = \"{TOKIO}\"\n")));
    }
}
