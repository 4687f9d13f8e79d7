//! Perf: a profile from the output of `perf c2c report --stdio` and `perf mem report --stdio`.
//!
//! Both commands print samples of loads and stores with their data addresses. Given the address of a struct
//! ([`Base`]), a sample at an offset that a field has counts as a touch of that field. `perf c2c` prints samples by
//! line (its *pareto* table: counts of a line, and the share of each offset in them) and the number of CPUs, with
//! `--node-info` also their list. `perf mem` prints samples by data symbol or address, without CPUs, so all CPUs are
//! assumed.
//!
//! It is assumed that the samples of loads are the same fraction of the loads of each field, and those of stores of its
//! stores; with a latency threshold (`ldlat`), loads that hit are not sampled. The ratios between fields are then
//! right, while a cost per second is that of the samples only; a note in the report states this.
//!
//! # Source
//!
//! Linux tools/perf/builtin-c2c.c (columns called `peer` exist since 6.0, `N/A` since 5.19) and
//! Documentation/perf-mem.txt.

use super::{Cpus, Per, Profile, Touch};
use crate::{Layout, LayoutError};
use std::collections::BTreeMap;

const PARETO: &str = "Shared Cache Line Distribution Pareto";

/// The address of the struct while `perf` took samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// This address.
    Address(u64),
    /// The address of this symbol, a static. `perf mem` prints symbols, `perf c2c` does not.
    Symbol(String),
}

impl Base {
    /// Parses `0x55d0c8a4e0c0`, or a symbol's name.
    pub fn parse(text: &str) -> Self {
        hex(text).map_or_else(|| Self::Symbol(text.to_owned()), Self::Address)
    }

    /// The offset of an address, or of `symbol+0x8`, from the base. `None` if an address is before the base, or if the
    /// text has another symbol, or has a symbol where the base is an address (and the reverse).
    fn offset_of(&self, symbol: &str) -> Option<u64> {
        // `[.] shared+0x8`, `[k] 0xffff8a0b8f1a2c48`.
        let symbol = symbol.split_once("] ").map_or(symbol, |(_, name)| name).trim();
        match self {
            Self::Address(base) => hex(symbol)?.checked_sub(*base),
            Self::Symbol(name) => {
                let behind = symbol.strip_prefix(name.as_str())?;
                if behind.is_empty() { Some(0) } else { hex(behind.strip_prefix('+')?) }
            }
        }
    }
}

/// Whether a text looks like output of `perf c2c` or `perf mem`.
pub fn is_perf(text: &str) -> bool {
    text.contains(PARETO) || (text.contains("# Samples:") && text.contains("Data Symbol"))
}

/// By (field, CPUs): loads and stores. The CPUs are a list (`0-7`), or `#` and their number, or empty for all.
type Counts = BTreeMap<(String, String), (f64, f64)>;

/// A profile from output of `perf`, and notes about it.
///
/// # Errors
/// A text without samples in a field of the struct; `perf c2c` with a base that is a symbol.
pub fn from_perf(
    text: &str,
    layout: &Layout,
    base: &Base,
    location: &str,
) -> Result<(Profile, Vec<String>), LayoutError> {
    let wrong = |fact: String, next: &str| Err(LayoutError::new(location, fact, next));
    let is_c2c = text.contains(PARETO);
    let mut counts = Counts::new();
    let rows = match (is_c2c, base) {
        (true, Base::Symbol(name)) => {
            let fact = format!("has addresses, and the struct is said to be at `{name}`");
            return wrong(fact, "say its address: the hottest line's stands above its rows, or see nm");
        }
        (true, Base::Address(at)) => c2c(text, *at, layout, &mut counts),
        (false, base) => mem(text, base, layout, &mut counts),
    };
    if counts.is_empty() {
        let fact = format!("has {rows} rows of samples, and none of them in {}", layout.name);
        return wrong(fact, "say with --at where the struct stood while perf took samples");
    }
    let seconds = duration(text);
    let access = counts.into_iter().map(|((field, cpus), (loads, stores))| Touch {
        field,
        reads_per_s: loads / seconds.unwrap_or(1.0),
        writes_per_s: stores / seconds.unwrap_or(1.0),
        cpus: match cpus.strip_prefix('#') {
            Some(count) => Cpus::First(count.parse().unwrap_or(1)),
            None if cpus.is_empty() => Cpus::All,
            None => Cpus::List(cpus),
        },
    });
    let tool = if is_c2c { "perf c2c" } else { "perf mem" };
    let profile = Profile {
        workload: format!("{tool}, {location}"),
        name: layout.name.clone(),
        machine: None,
        pair: false,
        rates: Per::Total,
        access: access.collect(),
    };
    let mut notes = vec![format!(
        "Rates are samples of {tool}{}: the ratios between fields hold, and the cost per second is that of the samples \
         only. Loads that hit are not sampled where a latency threshold is set (ldlat).",
        match seconds {
            Some(seconds) => format!(" in {seconds:.3} s"),
            None => ", as if all were of one second (`--header` would say of how many)".to_owned(),
        }
    )];
    if profile.access.iter().any(|touch| !matches!(touch.cpus, Cpus::List(_))) {
        let how =
            if is_c2c { "how many CPUs took part and not which (--node-info says it)" } else { "no CPUs" };
        notes.push(format!("It says {how}; taken as the first so many, or all."));
    }
    Ok((profile, notes))
}

/// Adds the samples of the pareto table to `counts`. Returns the number of its rows that have an offset and could be
/// read.
fn c2c(text: &str, base: u64, layout: &Layout, counts: &mut Counts) -> usize {
    let table = text.split_once(PARETO).map_or("", |(_, behind)| behind);
    // Columns of loads come first: remote, local, and in newer versions peer. Further right are as many columns of
    // cycles, and one for the load.
    let has_peer =
        table.lines().take_while(|l| !l.trim_start().starts_with("---")).any(|l| l.contains("Peer"));
    let (of_loads, cycles) = if has_peer { (3, 4) } else { (2, 3) };
    let (mut line, mut stores_of, mut rows) = (0, Vec::new(), 0);
    for row in table.lines() {
        let words: Vec<&str> = row.split_whitespace().collect();
        let shares: Vec<f64> = words
            .iter()
            .map_while(|w| w.strip_suffix('%')?.parse().ok())
            .filter(|s: &f64| s.is_finite())
            .collect();
        let behind = &words[shares.len()..];
        // `0  4  2092  0  0  0  0x20ea08034080`: number, counts, address.
        if let ([_, numbers @ .., address], true) = (&words[..], shares.is_empty()) {
            let numbers: Option<Vec<f64>> =
                numbers.iter().map(|n| n.parse::<u32>().ok().map(f64::from)).collect();
            if let (Some(address), Some(numbers)) = (hex(address), numbers.filter(|n| n.len() > of_loads)) {
                (line, stores_of) = (address, numbers[of_loads..].to_vec());
                continue;
            }
        }
        let Some(offset) = behind.first().and_then(|w| hex(w)).filter(|_| shares.len() > of_loads) else {
            continue;
        };
        let Some(code) = behind.iter().skip(1).position(|w| hex(w).is_some()) else { continue };
        let mut numbers = behind[code + 2..].iter().skip(cycles).map_while(|w| w.parse::<u32>().ok());
        let (Some(records), Some(cpus)) = (numbers.next(), numbers.next()) else { continue };
        rows += 1;
        let stores: f64 =
            shares[of_loads..].iter().zip(&stores_of).map(|(share, all)| share / 100.0 * all).sum();
        let stores = stores.round().min(records.into());
        let loads = f64::from(records) - stores;
        // `0{0-3,8}  1{4}`, with --node-info.
        let listed: Vec<&str> = row.split('{').skip(1).filter_map(|w| w.split('}').next()).collect();
        let cpus = if listed.is_empty() { format!("#{}", cpus.max(1)) } else { listed.join(",") };
        if let Some(field) =
            line.checked_add(offset).and_then(|at| at.checked_sub(base)).and_then(|o| field(layout, o))
        {
            add(counts, field, cpus, loads, stores);
        }
    }
    rows
}

/// Adds the samples of `perf mem report` to `counts`. Returns the number of its rows with a data symbol. Dots below the
/// header mark where columns begin.
fn mem(text: &str, base: &Base, layout: &Layout, counts: &mut Counts) -> usize {
    let (mut is_store, mut columns, mut names, mut rows) = (false, Vec::new(), "", 0);
    for row in text.lines() {
        if let Some(event) = row.strip_prefix("# Samples:") {
            (is_store, columns) = (event.contains("store"), Vec::new());
        } else if row.starts_with("# ..") {
            columns = starts(row).into_iter().map(|at| (at, column(names, &starts(row), at))).collect();
        } else if row.starts_with('#') {
            names = row;
        }
        if row.starts_with('#') || row.trim().is_empty() || columns.is_empty() {
            continue;
        }
        let bounds: Vec<usize> = columns.iter().map(|c| c.0).collect();
        let of = |name: &str| columns.iter().find(|c| c.1 == name).map(|c| column(row, &bounds, c.0));
        let Some(symbol) = of("Data Symbol") else { continue };
        rows += 1;
        let samples = of("Samples").and_then(|n| n.parse::<u32>().ok()).map_or(1.0, f64::from);
        // On AMD and Arm one event samples both loads and stores, and a column has which of them a row is.
        let store = is_store && !of("Memory access").unwrap_or_default().to_lowercase().contains("load");
        if let Some(field) = base.offset_of(symbol).and_then(|offset| field(layout, offset)) {
            let (loads, stores) = if store { (0.0, samples) } else { (samples, 0.0) };
            add(counts, field, String::new(), loads, stores);
        }
    }
    rows
}

/// Where columns begin in a line of dots that begins with `#`.
fn starts(dots: &str) -> Vec<usize> {
    let bytes = dots.as_bytes();
    (1..bytes.len()).filter(|&i| bytes[i] == b'.' && bytes[i - 1] == b' ').collect()
}

/// The text of a row in the column that begins at `start`.
fn column<'a>(row: &'a str, starts: &[usize], start: usize) -> &'a str {
    let end = starts.iter().copied().find(|&s| s > start).unwrap_or(row.len()).min(row.len());
    row.get(start.min(end)..end).unwrap_or("").trim()
}

/// The name of the field at an offset, if there is one. A field of 0 bytes counts as one byte.
fn field(layout: &Layout, offset: u64) -> Option<String> {
    let offset = usize::try_from(offset).ok()?;
    let at = layout.fields.iter().find(|f| (f.offset..f.end().max(f.offset + 1)).contains(&offset))?;
    Some(at.name.clone())
}

fn add(counts: &mut Counts, field: String, cpus: String, loads: f64, stores: f64) {
    let sum = counts.entry((field, cpus)).or_default();
    *sum = (sum.0 + loads, sum.1 + stores);
}

/// The value of `# sample duration :   1005.123 ms`, which `--header` prints, in seconds.
fn duration(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|l| l.strip_prefix("# sample duration")?.split_once(':'))?.1;
    let ms: f64 = line.trim().strip_suffix("ms")?.trim().parse().ok()?;
    Some(ms / 1e3).filter(|s| s.is_finite() && *s > 1e-6)
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
