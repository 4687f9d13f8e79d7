//! `warmcore doctor`: reports what this system offers to Warmcore, what limits it, and what the user can do about it.
//!
//! Each finding is a fact about something that Warmcore uses, a state (ok, limited or missing) and, if there is any,
//! advice. The command changes no setting, and fails only if the file of `--json` can't be written.

mod runtime;
mod sched_ext;

use crate::top::{Interval, Snapshot, foreign_imbalance};
use std::path::{Path, PathBuf};
use std::time::Duration;
use warmcore_budget::process as budget;
use warmcore_percpu::{Backend, VARIABLE, try_backend};
use warmcore_report::machine_boxes::counts;
use warmcore_report::{Finding, State};
use warmcore_results::system as host;
use warmcore_runtime::observe::{self, Observable};
use warmcore_sys::{affinity, clock, membarrier, platform, rseq, slice};
use warmcore_topo::Topology;

/// Arguments of `warmcore doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also write the findings to FILE, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// `warmcore doctor`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    let findings: Vec<Finding> = findings().into_iter().chain(processes()).collect();
    for finding in &findings {
        println!("{:<7}  {:<12} {}", finding.state.word(), finding.what, finding.fact);
        if let Some(advice) = &finding.advice {
            println!("         {:<12} → {advice}", "");
        }
    }
    if let Some(path) = &args.json {
        let json =
            serde_json::json!({ "schema": warmcore_results::SCHEMA, "what": "doctor", "findings": findings });
        warmcore_results::write_whole(path, &serde_json::to_vec_pretty(&json)?)?;
        eprintln!("written: {}", path.display());
    }
    Ok(())
}

/// All findings on this system and this process; if the topology can't be read, without those that need it.
pub fn findings() -> Vec<Finding> {
    let mut found =
        vec![kernel(), libc(), areas(), backend(), budgets(), fences(), cpus(), machine(), time(), build()];
    found.extend([slices(), sched_ext::find(Path::new("/sys"), &platform::kernel())]);
    match Topology::this_machine() {
        Ok(topology) => {
            found.push(places(&topology));
            found.push(quota(&topology));
            found.extend(runtime::findings(&topology));
            found.extend(isolation(&topology));
        }
        Err(error) => found.push(limited("topology", error.to_string(), "send us the file that it names")),
    }
    found
}

fn finding(what: &str, state: State, fact: impl Into<String>, advice: Option<String>) -> Finding {
    Finding { what: what.into(), state, fact: fact.into(), advice }
}

fn ok(what: &str, fact: impl Into<String>) -> Finding {
    finding(what, State::Ok, fact, None)
}

fn limited(what: &str, fact: impl Into<String>, advice: impl Into<String>) -> Finding {
    finding(what, State::Limited, fact, Some(advice.into()))
}

fn missing(what: &str, fact: impl Into<String>, advice: impl Into<String>) -> Finding {
    finding(what, State::Missing, fact, Some(advice.into()))
}

fn kernel() -> Finding {
    let release = platform::kernel();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let fact = format!("Linux {release}");
    match version {
        v if v < (4, 18) => missing("kernel", fact, "rseq needs 4.18"),
        v if v < (5, 10) => limited("kernel", fact, "fencing sections needs 5.10"),
        v if v < (6, 3) => {
            let advice = "concurrency ids need 6.3; data is indexed by CPU number instead";
            limited("kernel", fact, advice)
        }
        _ => ok("kernel", fact),
    }
}

fn libc() -> Finding {
    let name = platform::libc();
    match rseq::support() {
        Ok(rseq::Support { source: rseq::Source::Own, .. }) => limited(
            "libc",
            format!("{name} registered no rseq areas; ours are registered at each thread's first use"),
            "glibc 2.35 does it at thread start; look for GLIBC_TUNABLES=glibc.pthread.rseq=0",
        ),
        _ => ok("libc", name),
    }
}

fn areas() -> Finding {
    let support = match rseq::support() {
        Err(why) => return missing("rseq", why.to_string(), "counters run on the atomic backend"),
        Ok(support) => support,
    };
    let source = match support.source {
        rseq::Source::Glibc => "areas by glibc",
        rseq::Source::Own => "own areas",
    };
    let ids = if support.has_mm_cid { "with concurrency ids" } else { "without concurrency ids" };
    let node = if support.has_node_id { "and node ids" } else { "nor node ids" };
    let aborts = rseq::aborts();
    ok("rseq", format!("{source}, {ids} {node}; {aborts} sections aborted so far in this process"))
}

fn is_forced(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| !value.is_empty())
}

fn backend() -> Finding {
    let name = "per-CPU data";
    match try_backend() {
        Err(error) => missing(name, error.to_string(), format!("unset {VARIABLE}")),
        Ok(backend @ Backend::Rseq(_)) => ok(name, format!("{backend}, self-test passed")),
        Ok(backend) if is_forced(VARIABLE) => {
            limited(name, backend.to_string(), format!("unset {VARIABLE} for the fastest"))
        }
        Ok(backend) => limited(name, backend.to_string(), "see rseq and membarrier here"),
    }
}

fn budgets() -> Finding {
    let variable = budget::VARIABLE;
    match budget::try_default_kind() {
        Err(error) => missing("budgets", error.to_string(), format!("unset {variable}")),
        Ok(budget::StockKind::Rseq) => ok("budgets", "stocks are rseq; trees made `strict` are atomic"),
        Ok(kind) => {
            let advice = match is_forced(variable) {
                true => format!("unset {variable} for the fastest"),
                false => "see per-CPU data here".into(),
            };
            limited("budgets", format!("stocks are {kind}"), advice)
        }
    }
}

fn fences() -> Finding {
    match membarrier::register_rseq() {
        Ok(()) => ok("membarrier", membarrier::describe()),
        Err(why) => {
            missing("membarrier", why, "without it, no exact snapshots of sections: the atomic backend runs")
        }
    }
}

fn slices() -> Finding {
    match slice::enable_thread() {
        Ok(()) => ok("time slices", "the kernel extends that of a thread that holds a lock"),
        Err(why) => {
            let advice = "a thread may lose its CPU while it holds a lock; all works without it";
            missing("time slices", why.to_string(), advice)
        }
    }
}

fn cpus() -> Finding {
    let allowed = match affinity::allowed() {
        Err(error) => {
            return finding("CPUs", State::Limited, format!("affinity can't be read: {error}"), None);
        }
        Ok(allowed) => allowed,
    };
    let (n, end) = (allowed.len(), affinity::nr_cpu_ids());
    let fact = format!("{n} allowed ({allowed}); slots reserved for {end} numbers");
    match n {
        1 => limited("CPUs", fact, "two-thread cases are left out; taskset or the cpuset says 1"),
        _ => ok("CPUs", fact),
    }
}

fn machine() -> Finding {
    let cpu = host::machine().cpu;
    match platform::hypervisor() {
        None => ok("machine", format!("{cpu}, no hypervisor announced")),
        Some(name) => limited(
            "machine",
            format!("{cpu}, a virtual machine of {name}"),
            "its topology may be made up: `warmcore topo --probe` measures it; trust ratios, not ns",
        ),
    }
}

fn time() -> Finding {
    match clock::source() {
        clock::Source::Counter => ok("clock", "the CPU's own counter, calibrated"),
        clock::Source::Monotonic => limited(
            "clock",
            "clock_gettime: the CPU's counter is not invariant, or the kernel does not trust it",
            "see /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
    }
}

fn build() -> Finding {
    match cfg!(debug_assertions) {
        true => limited("build", "a debug build", "measure with `cargo run --release`"),
        false => ok("build", "a release build"),
    }
}

/// Reports where the CPUs are, and what had to be assumed about that.
fn places(topology: &Topology) -> Finding {
    let mut counts = counts(topology);
    counts.reverse();
    let mut fact = counts.join(", ");
    for note in &topology.notes {
        fact += &format!("; {note}");
    }
    if topology.is_flat {
        let advice = "programs start and run; wakes and steals treat all CPUs as equally near. Mend the file that the fact \
                      names, or give the builder a topology (`Topology::from_hwloc`)";
        return limited("topology", fact, advice);
    }
    ok("topology", fact)
}

fn quota(topology: &Topology) -> Finding {
    match &topology.quota {
        None => ok("cgroup", "no CPU quota"),
        Some(quota) => limited(
            "cgroup",
            format!("a quota of {} CPUs ({})", quota.cpus, quota.file.display()),
            "threads beyond it are stopped in the middle of what they do; measure without it",
        ),
    }
}

fn isolation(topology: &Topology) -> Vec<Finding> {
    let sets = [("isolated", &topology.isolated), ("nohz_full", &topology.nohz_full)];
    let sets = sets.into_iter().filter(|(_, cpus)| !cpus.is_empty());
    sets.map(|(name, cpus)| {
        let advice =
            "a fence interrupts each CPU that runs a thread of this process; keep drains away from them";
        finding(name, State::Ok, format!("CPUs {cpus}"), Some(advice.into()))
    })
    .collect()
}

/// The time between the two snapshots of a runtime.
const BETWEEN: Duration = Duration::from_millis(300);

/// The most runtimes that are asked, all at the same time.
const ASKED_MAX: usize = 32;

const ADVICE: &str = "such tasks stay on the worker that spawned them: spawn with `warmcore::runtime::spawn` instead of \
                      `tokio::spawn` and `JoinSet`, and serve with `http::serve` instead of `axum::serve` \
                      (docs/from-tokio.md)";

/// Asks each runtime that `warmcore top` can watch, at most [`ASKED_MAX`], two times, [`BETWEEN`] apart. Returns a
/// finding for each runtime in which tasks of `tokio::spawn` take most of the busy time of a worker that is busy for
/// more than a quarter of the time, while another worker is less than half as busy.
fn processes() -> Vec<Finding> {
    let found = observe::list();
    let asked = &found[..found.len().min(ASKED_MAX)];
    std::thread::scope(|scope| {
        let looks: Vec<_> = asked.iter().map(|one| scope.spawn(|| interval(one))).collect();
        let looks = looks.into_iter().filter_map(|interval| interval.join().ok().flatten());
        looks.filter_map(|interval| foreign(&interval)).collect()
    })
}

fn interval(one: &Observable) -> Option<Interval> {
    let ask = || Snapshot::parse(&one.ask().ok()?).ok();
    let before = ask()?;
    std::thread::sleep(BETWEEN);
    Some(Interval::between(&before, ask()?))
}

fn foreign(interval: &Interval) -> Option<Finding> {
    let fact = format!("{} ({}): {}", interval.now.process, interval.now.pid, foreign_imbalance(interval)?);
    Some(limited("tokio tasks", fact, ADVICE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the section of docs/json.md on findings agrees with a real finding.
    #[test]
    fn the_schema_in_the_docs_is_the_schema() {
        let docs = include_str!("../../../docs/json.md");
        let section = docs.split_once("\n## doctor\n").expect("a section for the doctor").1;
        let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
        let mut told: Vec<&str> = section
            .lines()
            .filter_map(|l| l.strip_prefix("| `")?.split_once('`').map(|(field, _)| field))
            .collect();
        let finding = finding("what", State::Ok, "fact", Some("advice".into()));
        let serde_json::Value::Object(fields) = serde_json::to_value(finding).unwrap() else { panic!() };
        let mut real: Vec<&str> = fields.keys().map(String::as_str).collect();
        told.sort_unstable();
        real.sort_unstable();
        assert_eq!(told, real);
    }

    #[test]
    fn a_flat_machine_is_limited_and_its_reason_is_reported() {
        let mut topology = Topology::from_machine(warmcore_topo::MACHINES, "ryzen7950x").unwrap();
        let known = places(&topology);
        assert_eq!((known.state, known.advice), (State::Ok, None));
        assert_eq!(known.fact, "32 CPUs, 16 cores, 2 last-level caches, 1 node, 1 socket");
        topology.is_flat = true;
        topology.notes.push("what the machine is cannot be read: /sys/x: is not there".into());
        let flat = places(&topology);
        assert!(flat.state == State::Limited && flat.fact.ends_with("/sys/x: is not there"), "{flat:?}");
        assert!(flat.advice.unwrap().contains("equally near"));
    }

    #[test]
    fn everything_is_looked_at_once_and_says_something() {
        let findings = findings();
        let mut names: Vec<&str> = findings.iter().map(|f| f.what.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), findings.len());
        assert!(findings.iter().all(|f| !f.fact.is_empty()));
        assert!(findings.iter().filter(|f| f.state == State::Missing).all(|f| f.advice.is_some()));
    }
}
