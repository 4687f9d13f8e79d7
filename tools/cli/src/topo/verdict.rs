//! Compares the transfer times with the topology that the kernel reports.
//!
//! A pair is timed in several rounds (`probe.rs`). It is steady if its slowest round took at most twice its fastest;
//! only steady pairs are compared with the kernel's topology. The sorted times are divided into levels: a new level
//! begins where a time is more than 1.6 × the time before it. CPUs that are linked by pairs of a level or of a faster
//! one are a group of that level. Each steady pair's time is compared with the distance that the kernel reports, and
//! the CPUs of each last-level cache must be one group. On 2 × EPYC 9654 there are levels at 9, 23, 100 and 195 ns.
//!
//! Source: crates/topo/machines.toml, whose numbers `c2c_*` are times of a cache line between CPUs; a test compares the
//! limits below with them.

use std::collections::BTreeMap;
use warmcore_topo::{Distance, Llc, Topology};
use warmcore_types::{CpuId, CpuSet};

#[cfg(test)]
mod tests;

/// The most that a transfer between SMT siblings takes. Known times are 5.3 to 11 ns; the fastest pair of different
/// cores takes 15.7 ns.
const SMT_NS_MAX: f64 = 13.0;
/// The most that a transfer within one last-level cache takes. The fastest known pair across caches takes 72.7 ns.
const LLC_NS_MAX: f64 = 66.0;
/// The known times between CPUs of one last-level cache, in ns.
const LLC_NS_KNOWN: &str = "15.7 to 60";
/// A time that is more than this times the next lower one begins a new level. On the known machines, neighbouring times
/// within one cache differ by a smaller factor, and those of different levels by a larger one.
const GAP: f64 = 1.6;
/// The largest factor between the rounds of a steady pair. A larger one means that a hypervisor has moved a CPU between
/// two rounds, or that the machine is busy or its clock rates change.
const STEADY_MAX: f64 = 2.0;
/// If more than this share of the pairs is not steady, the times are noisy. With fewer than 20 pairs, one unsteady pair
/// is enough; of hundreds of pairs, some are disturbed by other processes.
const UNSTEADY_SHARE_MAX: f64 = 0.05;
/// No transfer takes this long; the longest known transfer takes 443 ns (two POWER7). A longer time means that a thread
/// waited for its CPU.
const LINE_NS_MAX: f64 = 1000.0;
/// The number of pairs that are named as examples.
const EXAMPLES: usize = 3;

/// The times of one pair of CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timed {
    pub a: CpuId,
    pub b: CpuId,
    /// The median of the rounds.
    pub median_ns: f64,
    /// The fastest round.
    pub lo_ns: f64,
    /// The slowest round.
    pub hi_ns: f64,
}

impl Timed {
    /// Computes the pair's times from its rounds; `None` if there are no rounds.
    pub fn of(a: CpuId, b: CpuId, mut rounds: Vec<f64>) -> Option<Self> {
        rounds.sort_by(f64::total_cmp);
        let (lo_ns, hi_ns) = (*rounds.first()?, *rounds.last()?);
        Some(Self { a, b, median_ns: rounds[rounds.len() / 2], lo_ns, hi_ns })
    }

    fn is_steady(&self) -> bool {
        self.hi_ns <= self.lo_ns * STEADY_MAX
    }

    fn name(&self) -> String {
        format!("{} and {}", self.a, self.b)
    }
}

/// Describes whether the times agree with the topology. The second value is whether they spread too far to trust the
/// description. `hypervisor` is the name that the CPU reports, if it reports one.
pub(super) fn verdict(t: &Topology, times: &[Timed], hypervisor: Option<&str>) -> (String, bool) {
    let machine = hypervisor.map_or("machine".to_owned(), |name| format!("virtual machine ({name})"));
    let (steady, moving): (Vec<Timed>, Vec<Timed>) = times.iter().partition(|p| p.is_steady());
    let noisy = moving.len() as f64 > times.len() as f64 * UNSTEADY_SHARE_MAX;
    let mut said: Vec<String> = spread(&moving, noisy, &machine, hypervisor.is_some()).into_iter().collect();
    let doubts = doubts(t, &steady, hypervisor);
    match doubts.is_empty() {
        true if noisy => {}
        true if steady.is_empty() => said.push("No pair of CPUs was timed.".into()),
        true => said.push(agreement(t, &steady)),
        false => said.extend(doubts),
    }
    if hypervisor.is_some() && !noisy && !steady.is_empty() {
        said.push(format!("This {machine} may move its CPUs later: probe again before you rely on it."));
    }
    (said.join(" "), noisy)
}

/// Describes the pairs that were not steady; `None` if there are none.
fn spread(moving: &[Timed], noisy: bool, machine: &str, is_virtual: bool) -> Option<String> {
    let widest = moving.iter().max_by(|a, b| (a.hi_ns / a.lo_ns).total_cmp(&(b.hi_ns / b.lo_ns)))?;
    let others = match moving.len() - 1 {
        0 => String::new(),
        n => format!(" (and {n} more {} by more than {STEADY_MAX}×)", if n == 1 { "pair" } else { "pairs" }),
    };
    let range = format!("{} ns between rounds", range(widest.lo_ns, widest.hi_ns));
    if !noisy {
        return Some(format!("{} spread over {range}{others} and are left out here.", widest.name()));
    }
    let like = match (like(widest.lo_ns), like(widest.hi_ns)) {
        (near, far) if near == far || widest.hi_ns > LINE_NS_MAX => String::new(),
        (near, far) => format!(", from what {near} take to what {far} take"),
    };
    let why = match is_virtual {
        _ if widest.hi_ns > LINE_NS_MAX => "has other work for its CPUs",
        true => "moves its CPUs",
        false => "is busy, or its clocks change",
    };
    let next = "don't trust one reading; probe again when it is quiet";
    Some(format!("{} spread over {range}{like}{others}: this {machine} {why}; {next}.", widest.name()))
}

/// Describes which distance takes such a time on the known machines.
fn like(ns: f64) -> &'static str {
    match ns {
        ns if ns <= SMT_NS_MAX => "SMT siblings",
        ns if ns <= LLC_NS_MAX => "CPUs of one last-level cache",
        _ => "CPUs of different caches",
    }
}

/// Describes where steady pairs disagree with the kernel's topology, a sentence for each disagreement.
fn doubts(t: &Topology, steady: &[Timed], hypervisor: Option<&str>) -> Vec<String> {
    let at = |pair: &Timed| t.distance(pair.a, pair.b);
    let pick = |is: &dyn Fn(&Timed, Distance) -> bool| -> Vec<Timed> {
        steady.iter().filter(|p| at(p).is_some_and(|d| is(p, d))).copied().collect()
    };
    let who = match hypervisor {
        Some(name) => format!("the hypervisor ({name})"),
        None => "the firmware, or a container's /sys,".into(),
    };
    let mut said = Vec::new();

    let hidden = pick(&|p, d| d > Distance::Smt && p.median_ns <= SMT_NS_MAX);
    said.extend(examples(&hidden).map(|(pairs, ns)| {
        format!(
            "The kernel says {pairs} are two cores, but they hand a line over in {ns}, \
             like SMT siblings: {who} hides it."
        )
    }));
    let invented = pick(&|p, d| d == Distance::Smt && p.median_ns > SMT_NS_MAX * GAP);
    said.extend(examples(&invented).map(|(pairs, ns)| {
        format!(
            "The kernel says {pairs} are SMT siblings, but they take {ns}, like {}: {who} makes it up.",
            like(invented[0].median_ns)
        )
    }));

    for llc in &t.llcs {
        let within = |p: &Timed, d| d == Distance::Llc && llc.cpus.contains(p.a) && p.median_ns > SMT_NS_MAX;
        said.extend(one_cache(llc, &pick(&within), &who, hypervisor.is_some()));
    }

    let cache = median(&pick(&|p, d| d == Distance::Llc && p.median_ns > SMT_NS_MAX));
    let near = cache.map_or(LLC_NS_MAX, |ns| (ns * GAP).min(LLC_NS_MAX));
    let merged = pick(&|p, d| d > Distance::Llc && p.median_ns > SMT_NS_MAX && p.median_ns <= near);
    said.extend(examples(&merged).map(|(pairs, ns)| {
        format!(
            "The kernel says {pairs} share no last-level cache, but they take {ns}, \
             like CPUs of one: they are nearer than it says."
        )
    }));
    said
}

/// Describes the evidence, if any, that the CPUs of these pairs don't share one cache.
fn one_cache(llc: &Llc, pairs: &[Timed], who: &str, is_virtual: bool) -> Option<String> {
    let levels = levels(pairs);
    let (&(lo, hi), far) = (levels.first()?, levels.last()?);
    let groups = groups(pairs, hi);
    if levels.len() > 1 && groups.len() > 1 {
        let shown: Vec<String> = groups.iter().take(EXAMPLES).map(|g| format!("{g}")).collect();
        let more = groups.len().saturating_sub(EXAMPLES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (near, apart) = (range(lo, hi), range(levels[1].0, far.1));
        let caches = if far.1 > LLC_NS_MAX { "like as many caches: " } else { "" };
        let says = if far.1 > LLC_NS_MAX { format!("{who} hides it") } else { "something parts them".into() };
        return Some(format!(
            "The kernel says CPUs {} share {}, but by their times they are {} groups, {}{more}: {near} ns within, \
             {apart} ns between, {caches}{says}.",
            llc.cpus,
            llc.id,
            groups.len(),
            shown.join(" and "),
        ));
    }
    // If the kernel lists no cache (level 0), the whole socket counts as one cache, and the limit does not apply.
    let slow = median(pairs).filter(|ns| llc.level > 0 && *ns > LLC_NS_MAX)?;
    let why = match is_virtual {
        true => format!("{who} hides a boundary"),
        false => "a boundary is hidden, or this cache is slower than those".into(),
    };
    Some(format!(
        "The kernel says CPUs {} share {}, but they take {} ns; on the machines we know, CPUs of one last-level \
         cache take {LLC_NS_KNOWN} ns: {why}.",
        llc.cpus,
        llc.id,
        round(slow)
    ))
}

/// The names of the first three pairs, and the range of all medians:
/// `cpu0 and cpu1, cpu2 and cpu3, cpu4 and cpu5 (and 1 more pair)`, `7–9 ns`. `None` if there are no pairs.
fn examples(pairs: &[Timed]) -> Option<(String, String)> {
    let names: Vec<String> = pairs.iter().take(EXAMPLES).map(Timed::name).collect();
    let more = match pairs.len().saturating_sub(EXAMPLES) {
        0 => String::new(),
        n => format!(" (and {n} more {})", if n == 1 { "pair" } else { "pairs" }),
    };
    let lo = pairs.iter().map(|p| p.median_ns).min_by(f64::total_cmp)?;
    let hi = pairs.iter().map(|p| p.median_ns).max_by(f64::total_cmp)?;
    Some((names.join(", ") + &more, format!("{} ns", range(lo, hi))))
}

/// The pairs by the distance that the kernel reports, [`Distance::Other`] if it reports none.
pub(super) fn by_distance(t: &Topology, timed: &[Timed]) -> BTreeMap<Distance, Vec<Timed>> {
    let mut of = BTreeMap::<Distance, Vec<Timed>>::new();
    for pair in timed {
        of.entry(t.distance(pair.a, pair.b).unwrap_or(Distance::Other)).or_default().push(*pair);
    }
    of
}

/// Describes the median time of each distance.
fn agreement(t: &Topology, steady: &[Timed]) -> String {
    let of = by_distance(t, steady);
    let part = |(distance, pairs): (&Distance, &Vec<Timed>)| {
        format!("{} ns {}", round(median(pairs).unwrap_or(0.0)), within(*distance))
    };
    format!("The times agree with the kernel: {}.", of.iter().map(part).collect::<Vec<_>>().join(", "))
}

/// Describes where two CPUs at this distance are.
pub(super) fn within(distance: Distance) -> &'static str {
    match distance {
        Distance::Same | Distance::Smt => "within a core",
        Distance::Llc => "within a last-level cache",
        Distance::Node => "within a node",
        Distance::Socket => "within a socket",
        Distance::Other => "across the machine",
    }
}

fn median(pairs: &[Timed]) -> Option<f64> {
    let mut times: Vec<f64> = pairs.iter().map(|p| p.median_ns).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// The levels of the pairs' times, each from its fastest to its slowest.
pub(super) fn levels(pairs: &[Timed]) -> Vec<(f64, f64)> {
    let mut times: Vec<f64> = pairs.iter().map(|p| p.median_ns).collect();
    times.sort_by(f64::total_cmp);
    times.chunk_by(|a, b| *b <= a * GAP).map(|level| (level[0], level[level.len() - 1])).collect()
}

/// The CPUs of the pairs, in groups that pairs of at most `ns` link. A CPU that no such pair links is a group of its
/// own.
pub(super) fn groups(pairs: &[Timed], ns: f64) -> Vec<CpuSet> {
    let mut groups: Vec<CpuSet> = Vec::new();
    let mut join = |cpus: CpuSet| {
        let (linked, apart): (Vec<_>, Vec<_>) =
            groups.drain(..).partition(|g| !g.intersection(&cpus).is_empty());
        groups = apart;
        groups.push(linked.iter().fold(cpus, |all, g| all.union(g)));
    };
    for pair in pairs {
        let ends = [pair.a, pair.b];
        match pair.median_ns <= ns {
            true => join(ends.into_iter().collect()),
            false => ends.into_iter().for_each(|cpu| join([cpu].into_iter().collect())),
        }
    }
    groups.sort_by_key(CpuSet::first);
    groups
}

/// `23–195`, or `23` if both bounds round to 23.
pub(super) fn range(lo: f64, hi: f64) -> String {
    match (round(lo), round(hi)) {
        (lo, hi) if lo == hi => lo,
        (lo, hi) => format!("{lo}–{hi}"),
    }
}

/// Formats a time with one decimal below 9.95 ns, and without decimals above.
pub(super) fn round(ns: f64) -> String {
    if ns < 9.95 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}
