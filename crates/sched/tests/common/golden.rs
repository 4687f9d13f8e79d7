//! The golden wakes: compares the answers of policies with those in the files of `fixtures/wakes`, whose README
//! describes the format.
//!
//! `WARMCORE_GOLDEN=rewrite` writes the new answers into the files: read the difference, and correct each `why` that is
//! no longer true.

use crate::common::{Facts, whole};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use warmcore_sched::{
    Allowed, Policy, SchedDomains, StealDecision, TargetQueue, Wake, WakeDecision, WakeSource, Wakee,
};
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::{CpuId, CpuSet, LlcId, Nanos, NodeId};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    machine: Drawing,
    #[serde(default)]
    wake: Vec<Case>,
    #[serde(default)]
    steal: Vec<Case>,
    #[serde(default)]
    notify: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Drawing {
    Known(String),
    Counts(toml::Table),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    why: String,
    now_ns: u64,
    #[serde(default)]
    idle: String,
    #[serde(default)]
    offline: String,
    #[serde(default)]
    stuck: String,
    #[serde(default)]
    hot_until_ns: BTreeMap<String, u64>,
    #[serde(default)]
    waiting: BTreeMap<String, Waiting>,
    // Only in a wake.
    wakee: Option<Task>,
    waker: Option<String>,
    // Only in a steal or a notification.
    cpu: Option<String>,
    answer: BTreeMap<String, toml::Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Waiting {
    tasks: u32,
    #[serde(default)]
    since_ns: u64,
    oldest_since_ns: Option<u64>,
    #[serde(default)]
    migration_cost_ns: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Task {
    prev_cpu: Option<String>,
    #[serde(default)]
    migration_cost_ns: u64,
    #[serde(default)]
    accrued_cost_ns: u64,
    woken_from: Option<String>,
    allowed: Option<String>,
}

/// The number in `cpu7`.
fn number(text: &str, what: &str) -> u32 {
    let digits = text.strip_prefix(what).and_then(|digits| digits.parse().ok());
    digits.unwrap_or_else(|| panic!("`{text}` is no {what}"))
}

fn cpu(text: &str) -> CpuId {
    CpuId(number(text, "cpu"))
}

fn machine(drawing: &Drawing) -> SchedDomains {
    whole(&match drawing {
        Drawing::Known(name) => Topology::from_machine(MACHINES, name).unwrap(),
        Drawing::Counts(counts) => {
            let text = toml::to_string(&BTreeMap::from([("drawn", counts)])).unwrap();
            Topology::from_machine(&text, "drawn").unwrap()
        }
    })
}

impl Case {
    fn facts(&self, machine: &SchedDomains) -> Facts {
        let mut facts = Facts::busy(machine);
        let list = |text: &str| CpuSet::parse_list(text).unwrap();
        list(&self.idle).iter().for_each(|cpu| facts.cpus[cpu.index()].idle = true);
        list(&self.offline).iter().for_each(|cpu| facts.cpus[cpu.index()].offline = true);
        list(&self.stuck).iter().for_each(|cpu| facts.cpus[cpu.index()].stuck = true);
        for (name, until) in &self.hot_until_ns {
            facts.cpus[cpu(name).index()].hot_until = Nanos(*until);
        }
        for (name, waiting) in &self.waiting {
            if name.starts_with("shard") {
                facts.waiting[number(name, "shard") as usize] = waiting.tasks;
                continue;
            }
            let cpu = &mut facts.cpus[cpu(name).index()];
            (cpu.backlog, cpu.since, cpu.migration_cost) =
                (waiting.tasks, Nanos(waiting.since_ns), Nanos(waiting.migration_cost_ns));
            cpu.oldest = waiting.oldest_since_ns.map(Nanos);
        }
        facts
    }

    fn wake(&self) -> Wake {
        let task = self.wakee.as_ref().expect("a wake has a wakee");
        let allowed = match task.allowed.as_deref() {
            None => Allowed::Anywhere,
            Some(text) if text.starts_with("llc") => Allowed::Llc(LlcId(number(text, "llc"))),
            Some(text) if text.starts_with("node") => Allowed::Node(NodeId(number(text, "node"))),
            Some(text) => Allowed::Cpu(cpu(text)),
        };
        let waker = match self.waker.as_deref().expect("a wake has a waker") {
            "outside" => WakeSource::Outside(None),
            text => match text.strip_prefix("outside, on ") {
                Some(text) => WakeSource::Outside(Some(cpu(text))),
                None => WakeSource::Cpu(cpu(text)),
            },
        };
        let wakee = Wakee {
            first_poll: Nanos(0),
            prev_cpu: task.prev_cpu.as_deref().map(cpu),
            migration_cost: Nanos(task.migration_cost_ns),
            far_cost: Nanos(task.migration_cost_ns),
            accrued_cost: Nanos(task.accrued_cost_ns),
            woken_from: task.woken_from.as_deref().map(cpu),
            allowed,
        };
        Wake { now: Nanos(self.now_ns), wakee, waker }
    }
}

fn said(entries: impl IntoIterator<Item = (&'static str, toml::Value)>) -> toml::Table {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn of_wake(placed: WakeDecision) -> toml::Table {
    let WakeDecision { to, kick, accrued_cost, hot_kept, hot_broken } = placed;
    let to = match to {
        TargetQueue::Cpu(cpu) => cpu.to_string(),
        TargetQueue::Shard(shard) => format!("shard{shard}"),
    };
    let mut all = said([("to", to.into())]);
    all.extend(said(kick.map(|cpu| ("kick", cpu.to_string().into()))));
    all.extend(said((accrued_cost.0 > 0).then(|| ("accrued_cost_ns", (accrued_cost.0 as i64).into()))));
    all.extend(said((hot_kept > 0).then(|| ("hot_kept", i64::from(hot_kept).into()))));
    all.extend(said(hot_broken.then(|| ("hot_broken", true.into()))));
    all
}

fn of_steal(steal: StealDecision) -> toml::Table {
    match steal {
        StealDecision::Shard(shard) => said([("from", format!("shard{shard}").into())]),
        StealDecision::From { cpu, at_most } => {
            said([("from", cpu.to_string().into()), ("at_most", i64::from(at_most).into())])
        }
        StealDecision::Until(at) => said([("until_ns", (at.0 as i64).into())]),
        StealDecision::Nothing => said([("nothing", true.into())]),
    }
}

fn of_notify(called: Option<CpuId>) -> toml::Table {
    match called {
        Some(cpu) => said([("kick", cpu.to_string().into())]),
        None => said([("none", true.into())]),
    }
}

/// The answer as a line of the file.
fn line(policy: &str, answer: &toml::Table) -> String {
    // Sorts the keys in the order of the files.
    let order =
        |key: &&String| ["to", "from", "kick", "at_most"].iter().position(|first| first == key).unwrap_or(9);
    let mut keys: Vec<&String> = answer.keys().collect();
    keys.sort_by_key(order);
    let said = |key: &String| match &answer[key] {
        toml::Value::Integer(number) if key.ends_with("_ns") => format!("{key} = {}", grouped(*number)),
        other => format!("{key} = {other}"),
    };
    let all: Vec<String> = keys.into_iter().map(said).collect();
    format!("{policy} = {{ {} }}", all.join(", "))
}

/// A number with its digits in groups of three: `1_054_000`.
fn grouped(number: i64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{}_{:03}", grouped(number / 1000), number % 1000),
    }
}

/// Compares the answers in the files with those of each policy of `all`. Answers of policies for whose names `is_other`
/// is true are skipped, and questions for which `is_asked` is false. Returns how many answers were compared.
pub fn check<P: Policy + fmt::Display>(
    all: &[P],
    is_other: fn(&str) -> bool,
    is_asked: impl Fn(&str, Option<&Wake>) -> bool,
) -> usize {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/wakes");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let (mut wrong, mut cases, mut answered, mut compared) = (String::new(), 0, BTreeSet::new(), 0);
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut rewritten = text.clone();
        let file: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let machine = machine(&file.machine);
        let kinds = [("wake", &file.wake), ("steal", &file.steal), ("notify", &file.notify)];
        for (kind, case) in kinds.into_iter().flat_map(|(kind, all)| all.iter().map(move |case| (kind, case)))
        {
            cases += 1;
            if !is_asked(kind, case.wakee.as_ref().map(|_| case.wake()).as_ref()) {
                continue;
            }
            let (facts, now) = (case.facts(&machine), Nanos(case.now_ns));
            let at = || cpu(case.cpu.as_deref().expect("a steal has a cpu"));
            let mut diff = String::new();
            assert!(!case.answer.is_empty(), "{name}: no policy answers `{}`", case.why);
            for (policy, expected) in &case.answer {
                let Some(asked) = all.iter().find(|asked| asked.to_string() == *policy) else {
                    assert!(is_other(policy), "{name}: no policy `{policy}`");
                    continue;
                };
                answered.insert((kind, policy.clone()));
                compared += 1;
                let answer = match kind {
                    "wake" => of_wake(asked.wake(&machine, &facts, &case.wake())),
                    "steal" => of_steal(asked.steal(&machine, &facts, at(), now)),
                    _ => of_notify(asked.cpu_to_notify(&machine, &facts, at(), now)),
                };
                if answer != *expected {
                    let (of_case, new) = (rewritten.find(&case.why).unwrap(), line(policy, &answer));
                    let old = line(policy, expected);
                    // Replaces the line if it is formatted as `line` formats it. Other lines must be changed by hand.
                    if let Some(at) = rewritten[of_case..].find(&old).map(|at| of_case + at) {
                        rewritten.replace_range(at..at + old.len(), &new);
                    }
                    writeln!(diff, "  the file  {}", line(policy, expected)).unwrap();
                    writeln!(diff, "  it says   {}", line(policy, &answer)).unwrap();
                }
            }
            if !diff.is_empty() {
                writeln!(wrong, "{name}, {kind}: {}\n{diff}", case.why).unwrap();
            }
        }
        if rewritten != text && std::env::var("WARMCORE_GOLDEN").is_ok_and(|how| how == "rewrite") {
            std::fs::write(&path, rewritten).unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n\n{wrong}");
    assert!(cases >= 40, "only {cases} cases were found");
    for policy in all {
        for kind in ["wake", "steal", "notify"].into_iter().filter(|kind| is_asked(kind, None)) {
            assert!(answered.contains(&(kind, policy.to_string())), "no file asks {policy} for a {kind}");
        }
    }
    compared
}
