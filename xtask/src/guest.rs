//! `cargo xtask guest`: boots a real kernel in an emulated machine, loads the scheduler of `scx/`, and checks what it is for.
//!
//! The programs of the guest are built from this checkout. Kernels are those that `warmcore guest prepare` fetched: this command
//! fetches none. Each band is far from what was seen on all kernels, so that another compiler's code does not leave it.

use anyhow::{Context, bail, ensure};
use std::path::Path;
use warmcore_guest::{
    Cache, Comparison, Guest, Machine, Outcome, Scenario, ScenarioRow, Scheduler, needed, prepare,
    test_scheduler,
};
use warmcore_guest_init::{Line, Run, Work};

/// The scheduler, which logs each decision.
const WARM: &str = "warm,sample=1";

/// It, searching for an idle CPU as the runtime does.
const AS_RUNTIME: [&str; 2] = ["warm,sample=1,hot_windows=2", "warm,sample=1,mode=shared-queue"];

/// Each of these decisions is made again in some guest.
const DECISIONS: [&str; 8] =
    ["place", "look", "hand", "wait_home", "wait_llc", "steal", "balance", "preempt"];

/// Seeds of each scenario.
const SEEDS: [u64; 2] = [1, 2];

/// The largest share of a hog by the smallest, of equal weights and of two.
const UNEQUAL_MAX: [(&str, f64); 2] = [("hogs", 1.15), ("hogs-weighted", 1.2)];

/// Pairs over pipes and over futexes stay on their CPU in so many points more of a hundred wakes than under the kernel's own scheduler.
const SAME_MORE: f64 = 10.0;

/// Of a hundred wakes of pairs over sockets so many at most wait for a busy CPU beside an idle one.
const QUEUED_MAX: f64 = 8.0;

/// Checks that a guest can be built and booted. If not, the error names what is missing.
pub fn is_possible() -> anyhow::Result<()> {
    if let Some(missing) = needed() {
        bail!(missing);
    }
    ensure!(
        !Cache::of_user()?.kernels().is_empty(),
        "no kernel was fetched: `warmcore guest prepare` does that"
    );
    Ok(())
}

/// Builds the programs, runs the guests, and checks the bands.
pub fn run(root: &Path) -> anyhow::Result<()> {
    is_possible()?;
    let cache = Cache::of_user()?;
    let kernel = cache.kernels().into_iter().next().context("no kernel")?;
    prepare(&cache, root, &[], &[], false, &|step| println!("{step}"))?;
    println!("the scheduler's decisions, beside those of the runtime");
    test_scheduler(&cache, root)?;
    let scenarios = ["hogs", "hogs-weighted", "rrp", "rrf", "rrj"];
    let scenarios = scenarios.map(Scenario::find).into_iter().collect::<Result<_, _>>()?;
    let comparison = Comparison {
        kernel,
        machine: Machine { cpus: 8, llcs: 2, threads: 1, memory: 1024 },
        schedulers: ["eevdf", WARM, AS_RUNTIME[0], AS_RUNTIME[1]]
            .map(Scheduler::parse)
            .into_iter()
            .collect::<Result<_, _>>()?,
        scenarios,
        seeds: SEEDS.to_vec(),
    };
    check_probe(&cache, &comparison)?;
    let folder = tempfile::tempdir()?;
    let outcomes = comparison.run(&cache, folder.path(), 2, &|| false, &|_, _| {})?;
    for outcome in &outcomes {
        ensure!(
            outcome.warnings().is_empty(),
            "{}: the kernel says: {}",
            outcome.job.scheduler,
            outcome.warnings().join("; ")
        );
    }
    let rows = comparison.rows(&outcomes);
    if let Some((row, (seed, error))) = rows.iter().find_map(|row| Some((row, row.errors.first()?))) {
        bail!("{} under {}, seed {seed}: {error}", row.scenario, row.scheduler);
    }
    let row = |scenario: &str, scheduler: &str| -> anyhow::Result<&ScenarioRow> {
        let found = rows.iter().find(|row| row.scenario == scenario && row.scheduler == scheduler);
        found.with_context(|| format!("no row of {scenario} under {scheduler}"))
    };
    check_replay(&outcomes)?;
    println!("Linux {}:", comparison.kernel.release);
    for (hogs, most) in UNEQUAL_MAX {
        let unequal = row(hogs, WARM)?.spread(|figures| figures.unequal.unwrap_or(f64::MAX)).most;
        println!("{hogs}: the largest share of a hog is {unequal:.2} times the smallest");
        ensure!(unequal <= most, "{hogs}: {unequal:.2} times the smallest share, and {most} is the limit");
    }
    for pairs in ["rrp", "rrf"] {
        let same = |scheduler| anyhow::Ok(row(pairs, scheduler)?.spread(|figures| figures.same).mean);
        let more = same(WARM)? - same("eevdf")?;
        println!("{pairs}: {more:+.1} points more of the wakes stay on their CPU than under EEVDF");
        ensure!(more >= SAME_MORE, "{pairs}: {more:.1} points more, and {SAME_MORE} are expected");
    }
    let queued = row("rrj", WARM)?.spread(|figures| figures.queued).mean;
    println!("rrj: {queued:.1} % queued");
    ensure!(
        queued <= QUEUED_MAX,
        "{queued:.1} % of the wakes of pairs over sockets are queued, and {QUEUED_MAX} is the limit"
    );
    Ok(())
}

/// Checks that the decisions that were logged in the guests are the same when they are made again natively.
fn check_replay(outcomes: &[Outcome]) -> anyhow::Result<()> {
    let mut replayed = [0; DECISIONS.len()];
    for outcome in outcomes.iter().filter(|outcome| outcome.job.scheduler.starts_with(WARM)) {
        let said = outcome.lines.iter().find_map(|line| match line {
            Line::Scheduler { said, .. } => said.iter().find(|said| said.starts_with("{\"scheduler\"")),
            _ => None,
        });
        let said = said.context("the scheduler did not print its counts")?;
        let decisions = &serde_json::from_str::<serde_json::Value>(said)?["decisions"];
        ensure!(decisions["different"] == 0, "decisions were made otherwise natively: {decisions}");
        for (name, number) in DECISIONS.iter().zip(&mut replayed) {
            *number += decisions["replayed"][*name].as_u64().unwrap_or(0);
        }
    }
    for (name, number) in DECISIONS.iter().zip(replayed) {
        ensure!(number > 0, "no decision `{name}` was logged in any guest");
    }
    println!("{} decisions made again natively: the same answers", replayed.iter().sum::<u64>());
    Ok(())
}

/// Lets the probe count scenarios whose counts were written down by hand.
fn check_probe(cache: &Cache, comparison: &Comparison) -> anyhow::Result<()> {
    let command = vec!["/bin/probe-check".to_owned()];
    let work = Work::Program { command, package: String::new(), files: Vec::new(), end_ms: 0 };
    let guest = Guest {
        kernel: comparison.kernel.clone(),
        machine: comparison.machine,
        scheduler: Scheduler::own(),
        seed: SEEDS[0],
        runs: vec![Run { name: "probe-check".to_owned(), groups: Vec::new(), work }],
        is_probed: false,
    };
    let ended = guest.run(cache, 0, &|| false, &mut |_| {})?.context("it is not interrupted")?;
    let ran = ended.lines.iter().find_map(|line| match line {
        Line::Ran { status, said, .. } => Some((*status, said.join("\n"))),
        _ => None,
    });
    let (status, said) = ran.context("the guest did not run probe-check")?;
    ensure!(status == 0, "the probe counts something else than was written down:\n{said}");
    println!("the probe: {} scenarios as written down by hand", said.matches("as written down").count());
    Ok(())
}
