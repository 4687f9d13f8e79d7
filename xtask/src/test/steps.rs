//! The steps of `cargo xtask test`, in the order in which they run, and what each needs.

use super::LIMIT;
use std::time::Duration;

/// Which command runs a step. Each command also runs the steps of the levels before; `--rest` runs those of `Full`
/// alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// `cargo xtask test`
    Test,
    /// `cargo xtask test --full`
    Full,
    /// `cargo xtask test --all`
    All,
}

/// What a step needs besides a toolchain. If that is missing the step is skipped, since no step installs anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// Restartable sequences, which depend on the kernel and the C library.
    Rseq,
    /// The standard library of a target.
    Target(&'static str),
    /// Another toolchain, called by `+VERSION`.
    Toolchain(&'static str),
    /// A command of cargo that is installed separately.
    Cargo(&'static str),
    Valgrind,
    Strace,
    /// An emulator, a compiler for its programs, and a kernel.
    Guest,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Calls cargo with the step's arguments.
    Cargo,
    /// Builds and runs the tests that the arguments name, without those of [`LONG`] if `leaves_out_long`; then the
    /// examples in the documentation, if `also_documentation`.
    Tests { also_documentation: bool, leaves_out_long: bool },
    /// Runs again the test programs of `packages` (all if it is empty) of the step `of`, or of these programs only the
    /// tests of [`LONG`] if `only_long`. Builds them if that step has not.
    Again { of: &'static str, packages: &'static [&'static str], only_long: bool },
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub name: &'static str,
    pub level: Level,
    pub work: Work,
    /// Cargo's arguments, separated by blanks. If the first is a toolchain, such as `+nightly`, rustup's cargo is
    /// called.
    pub args: &'static str,
    pub env: &'static [(&'static str, &'static str)],
    pub needs: Needs,
    /// How much CPU time a test program or a cargo command of the step may use without printing a line.
    pub limit: Duration,
    /// The estimate before there is a measured time: seconds on two cores that do nothing else, from a cold start.
    pub seconds: u32,
}

/// A step that calls cargo.
pub const fn step(name: &'static str, level: Level, seconds: u32, args: &'static str) -> Step {
    Step { name, level, work: Work::Cargo, args, env: &[], needs: Needs::Nothing, limit: LIMIT, seconds }
}

/// A step that builds and runs tests.
const fn tests(name: &'static str, level: Level, seconds: u32, args: &'static str) -> Step {
    let work = Work::Tests { also_documentation: false, leaves_out_long: false };
    Step { work, ..step(name, level, seconds, args) }
}

/// A step that runs test programs again.
const fn again(
    name: &'static str,
    level: Level,
    seconds: u32,
    of: &'static str,
    packages: &'static [&'static str],
) -> Step {
    Step { work: Work::Again { of, packages, only_long: false }, ..step(name, level, seconds, "") }
}

/// Tests that `cargo xtask test` leaves out and `--full` runs: the package, the program, and the test's name, or `None`
/// for all tests of the program. From a cold start each takes about a minute of CPU time: the first three programs
/// compile tokio again in a separate folder, the fourth runs tasks for seconds, the first single test measures a whole
/// report, and the second compiles tokio and the face.
pub const LONG: [(&str, &str, Option<&str>); 6] = [
    ("warmcore", "alone", None),
    ("warmcore", "readme_server", None),
    ("warmcore-runtime-derive", "ui", None),
    ("warmcore-runtime", "shares", None),
    ("warmcore-cli", "cli", Some("a_report_is_a_folder_that_stands_alone")),
    ("warmcore-cli", "adopt", Some("an_adopted_program_runs_on_either_scheduler")),
];

/// The crates whose code differs by the backend of per-CPU data.
const BACKENDS: &[&str] = &["warmcore-percpu", "warmcore-budget", "warmcore-tenant"];

/// The crates of `BACKENDS`, and the crate that registers a thread's area for restartable sequences.
const AREAS: &[&str] = &["warmcore-sys", "warmcore-percpu", "warmcore-budget", "warmcore-tenant"];

/// Each package but xtask. When cargo builds the examples of the documentation, it leaves out packages without a
/// library, and so the features of `syn` that xtask needs. If xtask were in the command that builds the tests, all that
/// depends on `syn` would be built twice.
const EACH: &str = "test --workspace --exclude xtask";

/// The packages that users link. The tools differ from their debug builds in speed alone, and to link them takes longer.
const EACH_RELEASE: &str = "test --release --workspace --exclude xtask --exclude warmcore-bench --exclude warmcore-cli \
     --exclude warmcore-layout --exclude warmcore-papers --exclude warmcore-report --exclude warmcore-results \
     --exclude warmcore-sim --exclude warmcore-trace";

const DEBUG: &str = "tests";
const RELEASE: &str = "tests, release";

const RSEQ: &[(&str, &str)] = &[("WARMCORE_PERCPU", "rseq")];
const ATOMIC: &[(&str, &str)] = &[("WARMCORE_PERCPU", "atomic")];
const PLAIN: &[(&str, &str)] = &[("WARMCORE_PERCPU", "plain")];
const OWN_AREAS: &[(&str, &str)] = &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")];
const STRICT: &[(&str, &str)] = &[("WARMCORE_BUDGET", "atomic")];

impl Step {
    /// The command line that runs this step's cargo command alone; without arguments for [`Work::Again`].
    pub fn command(&self) -> String {
        let env: String = self.env.iter().map(|(key, value)| format!("{key}=\"{value}\" ")).collect();
        format!("{env}cargo {}", self.args)
    }
}

/// All steps but those of sanitizers.
pub fn all() -> Vec<Step> {
    use Level::{Full, Test};
    let documentation = Work::Tests { also_documentation: true, leaves_out_long: false };
    let mut steps = vec![
        step("format", Test, 2, "fmt --all --check"),
        step("format of the peers", Test, 1, "fmt --manifest-path peers/Cargo.toml --check"),
        step(
            "format of tokio's libraries",
            Test,
            1,
            "fmt --manifest-path peers/ecosystem/Cargo.toml --check",
        ),
        step("format of mini-redis", Test, 1, "fmt --manifest-path peers/mini-redis/Cargo.toml --check"),
        step("format of the shapes", Test, 1, "fmt --manifest-path peers/shapes/Cargo.toml --check"),
        step("format of the programs", Test, 1, "fmt --manifest-path xtask/programs/Cargo.toml --check"),
        step("format of the adapter", Test, 1, "fmt --manifest-path adapters/datafusion/Cargo.toml --check"),
        step("clippy", Test, 70, "clippy --workspace --all-targets -- -D warnings"),
        step("tidy", Test, 5, "xtask tidy"),
        Step {
            work: Work::Tests { also_documentation: true, leaves_out_long: true },
            ..tests(DEBUG, Test, 430, EACH)
        },
        tests("tests of xtask", Test, 15, "test -p xtask"),
        Step { env: ATOMIC, ..again("backend atomic", Test, 50, DEBUG, BACKENDS) },
        Step { env: STRICT, ..again("strict budgets", Test, 25, DEBUG, &["warmcore-budget"]) },
        Step {
            work: Work::Again { of: DEBUG, packages: &[], only_long: true },
            ..again("long tests", Full, 120, DEBUG, &[])
        },
        // Users link a release build, so the restartable sequences must work in one.
        Step { work: documentation, ..tests(RELEASE, Full, 300, EACH_RELEASE) },
        Step { needs: Needs::Valgrind, ..step("instructions", Full, 85, "xtask instructions") },
        Step { needs: Needs::Strace, ..step("system calls", Full, 30, "xtask syscalls") },
        Step { needs: Needs::Guest, ..step("scheduler in a guest", Full, 300, "xtask guest") },
        Step { env: RSEQ, needs: Needs::Rseq, ..again("backend rseq, release", Full, 25, RELEASE, BACKENDS) },
        Step { env: ATOMIC, ..again("backend atomic, release", Full, 35, RELEASE, BACKENDS) },
        Step { env: PLAIN, ..again("backend plain, release", Full, 40, RELEASE, BACKENDS) },
        Step { env: OWN_AREAS, needs: Needs::Rseq, ..again("own areas, release", Full, 30, RELEASE, AREAS) },
        Step { env: STRICT, ..again("strict budgets, release", Full, 20, RELEASE, &["warmcore-budget"]) },
        Step {
            needs: Needs::Rseq,
            work: documentation,
            ..tests(
                "lengthened sections",
                Full,
                60,
                "test --release -p warmcore-sys -p warmcore-percpu -p warmcore-budget --features warmcore-percpu/delay",
            )
        },
        Step {
            env: &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")],
            ..tests(
                "loom models",
                Full,
                90,
                "test --release -p warmcore-percpu -p warmcore-cid -p warmcore-budget -p warmcore-record --lib \
                 --features warmcore-percpu/loom,warmcore-cid/loom,warmcore-budget/loom,warmcore-record/loom",
            )
        },
        // Tokio leaves its sockets out under `cfg(loom)`, so the runtime's models use the flag `warmcore_loom` instead.
        Step {
            env: &[("RUSTFLAGS", "--cfg warmcore_loom"), ("CARGO_TARGET_DIR", "target/warmcore_loom")],
            ..tests(
                "runtime's loom models",
                Full,
                100,
                "test --release -p warmcore-runtime -p warmcore-sched -p warmcore-driver --lib --no-default-features \
                 --features warmcore-runtime/loom,warmcore-sched/loom,warmcore-driver/loom -- loom",
            )
        },
        Step {
            env: &[("RUSTFLAGS", "--cfg shuttle"), ("CARGO_TARGET_DIR", "target/shuttle")],
            ..tests(
                "shuttle models",
                Full,
                70,
                "test --release -p warmcore-runtime --lib --no-default-features --features shuttle -- shuttle",
            )
        },
        tests("results as Parquet", Full, 60, "test -p warmcore-cli --lib --features parquet -- sim::"),
        step("without the runtime", Full, 5, "check -p warmcore --no-default-features"),
        tests(
            "the runtime without tokio",
            Full,
            40,
            "test -p warmcore-runtime --no-default-features --test own_driver",
        ),
        Step {
            env: &[("RUSTDOCFLAGS", "-D warnings")],
            ..step("documentation", Full, 30, "doc --workspace --no-deps --document-private-items")
        },
        step("the package in tokio's place", Full, 200, "xtask face"),
        step("a sample of tokio's tests", Full, 90, "xtask suites --sample"),
        tests("tokio's libraries", Full, 110, "test --release --manifest-path peers/ecosystem/Cargo.toml"),
        Step {
            needs: Needs::Target("aarch64-unknown-linux-gnu"),
            ..step(
                "aarch64 compiles",
                Full,
                20,
                "check --target aarch64-unknown-linux-gnu -p warmcore-percpu -p warmcore-runtime",
            )
        },
        // The tests of the crate budget are left out: they depend on mimalloc, which is in C and needs a C compiler for
        // musl.
        Step {
            needs: Needs::Target("x86_64-unknown-linux-musl"),
            ..tests(
                "static, with musl",
                Full,
                150,
                "test --release --target x86_64-unknown-linux-musl -p warmcore-sys -p warmcore-percpu \
                 -p warmcore-cid -p warmcore-tenant -p warmcore-driver -p warmcore-runtime -p warmcore-http",
            )
        },
        Step {
            needs: Needs::Toolchain(MSRV),
            env: &[("CARGO_TARGET_DIR", "target/msrv")],
            ..step("the oldest Rust", Full, 60, MSRV_CHECK)
        },
    ];
    steps.extend(thorough());
    steps
}

/// The steps of `--all` but those of sanitizers.
fn thorough() -> Vec<Step> {
    let level = Level::All;
    let documentation = Work::Tests { also_documentation: true, leaves_out_long: false };
    let crates = "test --release -p warmcore-percpu -p warmcore-budget -p warmcore-tenant";
    vec![
        tests("adapter", level, 900, "test --release --manifest-path adapters/datafusion/Cargo.toml"),
        // These two steps run the tests and the examples in the documentation on a backend each.
        Step { env: ATOMIC, work: documentation, ..tests("backend atomic, examples", level, 90, crates) },
        Step { env: PLAIN, work: documentation, ..tests("backend plain, examples", level, 90, crates) },
        Step { needs: Needs::Cargo("semver-checks"), ..step("public interface", level, 300, SEMVER) },
        step("a sample of older tokio's tests", level, 300, OLDER_TOKIO),
        Step {
            limit: Duration::from_hours(4),
            ..step("tests of tokio and its libraries", level, 7200, "xtask suites --times 100")
        },
        // The tests of the runtime that are marked `ignore`: all combinations of which the other tests in `shares.rs`
        // and `weights.rs` test samples.
        Step {
            limit: Duration::from_hours(4),
            ..tests(
                "every combination",
                level,
                2700,
                "test --release -p warmcore-runtime --tests -- --ignored --test-threads 1",
            )
        },
        Step {
            env: &[("WARMCORE_SOAK", "1000000000")],
            // One test, which prints nothing before its end.
            limit: Duration::from_hours(4),
            ..tests("soak", level, 3600, "test --release -p warmcore-runtime --test soak")
        },
    ]
}

/// The oldest toolchain that builds the product: `rust-version` of the workspace.
const MSRV: &str = "1.93";

const MSRV_CHECK: &str = "+1.93 check -p warmcore --all-features";

/// Compares the public interface with that of the newest tag, or of the commit before this one if there is no tag.
const SEMVER: &str = "xtask semver";

/// Tests the minor versions of tokio that `warmcore adopt` takes, but the newest one, which has steps of its own.
const OLDER_TOKIO: &str = "xtask suites --sample --tokio 1.51,1.52,1.53";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::TOKIO;

    #[test]
    fn each_version_of_tokio_that_is_adopted_is_tested() {
        let (_, minors) =
            include_str!("../../../tools/cli/src/adopt.rs").split_once("const MINORS: ").unwrap();
        let (minors, _) = minors.split_once("= ").unwrap().1.split_once(';').unwrap();
        let (oldest, newest) = minors.split_once("..=").unwrap();
        let adopted: Vec<String> = (oldest.parse::<u32>().unwrap()..=newest.parse().unwrap())
            .map(|minor| format!("1.{minor}"))
            .collect();
        let (_, older) = OLDER_TOKIO.split_once("--tokio ").unwrap();
        let newest = TOKIO.rsplit_once('.').unwrap().0;
        assert_eq!(older.split(',').chain([newest]).collect::<Vec<_>>(), adopted);
    }

    #[test]
    fn the_oldest_toolchain_is_the_one_that_the_workspace_names() {
        let manifest = include_str!("../../../Cargo.toml");
        assert!(manifest.contains(&format!("rust-version = \"{MSRV}\"")));
        assert!(MSRV_CHECK.starts_with(&format!("+{MSRV} ")));
    }

    #[test]
    fn a_step_runs_programs_of_an_earlier_step() {
        let steps = all();
        for (number, step) in steps.iter().enumerate() {
            let is_unique = steps.iter().filter(|other| other.name == step.name).count() == 1;
            assert!(is_unique, "{}", step.name);
            if let Work::Again { of, .. } = step.work {
                let built = steps[..number].iter().find(|earlier| earlier.name == of);
                assert!(built.is_some_and(|earlier| earlier.level <= step.level), "{}", step.name);
            }
        }
    }

    #[test]
    fn each_long_test_is_there() {
        for (package, program, test) in LONG {
            let folder = package.strip_prefix("warmcore-").unwrap_or(package);
            let files = ["crates", "tools"].map(|group| format!("{group}/{folder}/tests/{program}.rs"));
            let texts =
                files.iter().filter_map(|file| std::fs::read_to_string(crate::root().join(file)).ok());
            let text = texts.collect::<String>();
            assert!(
                text.contains(&test.map_or_else(|| "#[test]".into(), |test| format!("fn {test}()"))),
                "{program}"
            );
        }
    }

    #[test]
    fn the_estimates_are_within_what_is_promised() {
        let seconds = |level: Level| -> u32 {
            all().iter().filter(|step| step.level <= level).map(|step| step.seconds).sum()
        };
        assert!(seconds(Level::Test) <= 12 * 60, "{}", seconds(Level::Test));
        assert!(seconds(Level::Full) <= 45 * 60, "{}", seconds(Level::Full));
    }
}
