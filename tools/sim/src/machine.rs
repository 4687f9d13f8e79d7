//! Machine: the machine on which something is simulated: a topology, its costs, and whether results were published
//! for it.
//!
//! `--machine` selects a machine in one of four ways: a name in `crates/topo/machines.toml`; `this`; a file of
//! hwloc's `lstopo --of xml`; a user's machine file, which may inherit from that of this repository. Published tables
//! exist only for the first kind, so nothing is claimed for the others.
//!
//! If only the topology is known (`this`, hwloc), it gives up to 4 costs, which are the sizes of the caches and of a
//! line. The others, 26 or more, are the defaults of `costs/known.rs`, which are estimates; [`SimMachine::notes`] lists
//! them. For `this`, the transfer of a line can be measured ([`SimMachine::timed`]).

use crate::costs::{Costs, Trust};
use crate::error::similar_names;
use std::collections::BTreeMap;
use std::path::Path;
use warmcore_topo::{Distance, MACHINES, Topology, machines};

pub use crate::error::Error as MachineError;

#[cfg(test)]
mod tests;

/// The basis of a cost that a probe measured on the machine itself.
const TIMED: &str = "timed by a probe";

/// The names of the costs of transferring a line, by distance, the nearest first.
const HAND_OVERS: [(Distance, &str); 5] = [
    (Distance::Smt, "c2c_smt"),
    (Distance::Llc, "c2c_same_l3"),
    (Distance::Node, "c2c_same_node"),
    (Distance::Socket, "c2c_same_socket"),
    (Distance::Other, "c2c_other_socket"),
];

/// The name of the machine that this program runs on.
pub const THIS: &str = "this";

/// The machine on which something is simulated.
#[derive(Debug, Clone)]
pub struct SimMachine {
    /// Its name in the machine file, or as the user gave it; `this machine` for `this`.
    pub name: String,
    /// What its operations cost.
    pub costs: Costs,
    /// Its CPUs, caches and nodes.
    pub topology: Topology,
    /// Whether it is in `crates/topo/machines.toml`.
    pub is_known: bool,
}

impl SimMachine {
    /// Reads what `--machine` takes: a name, `this`, `FILE.xml`, `FILE.toml`, or `FILE.toml:NAME`.
    ///
    /// # Errors
    /// An unknown name, with the known ones; a file that cannot be read, is cut off, or describes no machine, or
    /// several if none is named; `this`, if its topology cannot be read.
    pub fn read(what: &str) -> Result<Self, MachineError> {
        let ends = |end: &str| what.to_ascii_lowercase().ends_with(end);
        if what == THIS {
            let topology = Topology::this_machine().map_err(|e| told(THIS, e))?;
            return Ok(Self::drawn("this machine".to_owned(), topology));
        }
        if ends(".xml") {
            let topology = Topology::from_hwloc(Path::new(what)).map_err(|e| told(what, e))?;
            return Ok(Self::drawn(what.to_owned(), topology));
        }
        match what.rsplit_once(':') {
            Some((file, name)) if file.to_ascii_lowercase().ends_with(".toml") => {
                Self::of_file(file, Some(name))
            }
            _ if ends(".toml") => Self::of_file(what, None),
            _ => Self::named(what),
        }
    }

    /// A machine of `crates/topo/machines.toml`.
    ///
    /// # Errors
    /// An unknown name. The error lists all known ones.
    pub fn named(name: &str) -> Result<Self, MachineError> {
        let names = machines(MACHINES).map_err(|e| told(name, e))?;
        if !names.iter().any(|known| known == name) {
            let next =
                "or say `this`, a file of `lstopo --of xml` (*.xml), or a machine file of yours (*.toml)";
            let (mut meant, all) = (nearest(name, &names), names.join(", "));
            if Path::new(name).exists() {
                meant = ", and a file of this name would have to end in .xml or .toml".to_owned();
            }
            let fact = format!("no such machine{meant}; there are {all}");
            return Err(MachineError::new(format!("`{name}`"), fact, next));
        }
        Self::of_text(name.to_owned(), MACHINES, name, true)
    }

    /// A machine of which only the topology is known: its costs are estimates ([`Costs::of`]).
    pub fn drawn(name: String, topology: Topology) -> Self {
        Self { costs: Costs::of(&topology).called(&name), name, topology, is_known: false }
    }

    /// The same machine with measured costs of transferring a line, in picoseconds by distance.
    ///
    /// A distance whose cost is an estimate and was not measured costs at least as much as the nearer distances that
    /// were measured.
    pub fn timed(mut self, hand_overs: &BTreeMap<Distance, u64>) -> Self {
        let mut nearer = 0;
        for (distance, name) in HAND_OVERS {
            let estimate = self.costs.get(name).filter(|n| n.trust == Trust::Estimated).map(|n| n.milli);
            let number = match (hand_overs.get(&distance), estimate) {
                (Some(&ps), _) => Some((ps, TIMED)),
                (None, Some(estimate)) if estimate < nearer => {
                    Some((nearer, "not timed; as far as what is nearer"))
                }
                _ => None,
            };
            if let Some((ps, basis)) = number {
                nearer = nearer.max(ps);
                let costs = match hand_overs.contains_key(&distance) {
                    true => self.costs.measured(name, ps, basis),
                    false => self.costs.with(name, ps),
                };
                self.costs = costs.unwrap_or(self.costs);
            }
        }
        self
    }

    /// A machine of a user's file: the one with this name, or the only one.
    fn of_file(path: &str, name: Option<&str>) -> Result<Self, MachineError> {
        let at = |fact: String, next: &str| MachineError::new(path, fact, next);
        let text = std::fs::read_to_string(path)
            .map_err(|e| at(format!("can't be read: {e}"), "check that it is a readable text file"))?;
        let names = machines(&text).map_err(|e| told(path, e))?;
        let all = names.join(", ");
        let chosen = match (name, &names[..]) {
            (_, []) => {
                let next = "write a section per machine, as crates/topo/machines.toml has them: `[mine]`, `sockets = 1`, …";
                return Err(at("describes no machine".to_owned(), next));
            }
            (None, [only]) => only.as_str(),
            (None, _) => {
                return Err(at(
                    format!("describes several machines: {all}"),
                    &format!("say which: {path}:NAME"),
                ));
            }
            (Some(name), names) if names.iter().any(|known| known == name) => name,
            (Some(name), names) => {
                let fact = format!("has no machine `{name}`{}", nearest(name, names));
                return Err(at(fact, &format!("there are {all}")));
            }
        };
        if let Some((line, key)) = zero(&text, chosen) {
            let location = format!("{path}, [{chosen}], line {line}");
            return Err(MachineError::new(
                location,
                format!("`{key}` is 0"),
                "there is at least 1 of each; write how many",
            ));
        }
        let called = name.map_or_else(|| path.to_owned(), |name| format!("{path}:{name}"));
        Self::of_text(called, &with_ours(&text), chosen, false).map_err(|e| told(path, e))
    }

    fn of_text(name: String, text: &str, section: &str, is_known: bool) -> Result<Self, MachineError> {
        // The costs are read first, because this finds all errors of the topology too, and names the section.
        let costs = Costs::from_machine(text, section)?;
        let topology = Topology::from_machine(text, section).map_err(|e| told(&name, e))?;
        Ok(Self { costs: costs.called(&name), name, topology, is_known })
    }

    /// Notes about the machine: the counts of its parts, which costs are estimates or were timed here, how to give
    /// costs of one's own, and what was assumed about the topology.
    pub fn notes(&self) -> Vec<String> {
        let Self { costs, topology, name, .. } = self;
        let all = costs.numbers().count();
        let said =
            |(key, number): (&str, &crate::costs::Number)| format!("{key} {}", thousandths(number.milli));
        let estimated: Vec<String> = costs.estimated().map(said).collect();
        let model = topology.model.as_ref().map_or_else(String::new, |model| format!(" ({model})"));
        let counts = format!(
            "CPUs: {}, cores: {}, LLCs: {}, nodes: {}, sockets: {}",
            topology.cpus.len(),
            topology.cores.len(),
            topology.llcs.len(),
            topology.nodes.len(),
            topology.sockets.len()
        );
        let mut notes = vec![format!(
            "{name}{model}: {counts}. {} of its {all} costs are estimates by class (ns, or what the name says): {}.",
            estimated.len(),
            estimated.join(", ")
        )];
        let timed: Vec<String> = costs.numbers().filter(|(_, n)| n.basis == TIMED).map(said).collect();
        if !timed.is_empty() {
            notes.push(format!("{name}: a hand-over of a line was timed here, in ns: {}.", timed.join(", ")));
        }
        if !self.is_known {
            notes.push(
                "To give costs of your own, write a machine file (crates/topo/machines.toml has the format; `inherits` may \
                 name a machine of it) and say --machine FILE.toml."
                    .to_owned(),
            );
        }
        notes.extend(topology.notes.iter().map(|note| format!("{name}: {note}")));
        notes
    }
}

/// An error about the machine that the user named. The text of `error` already contains what to do.
fn told(what: &str, error: impl std::error::Error) -> MachineError {
    let text = error.to_string();
    // The errors of hwloc's reader already begin with the file's name.
    MachineError::new(what, text.strip_prefix(&format!("{what}: ")).unwrap_or(&text), "")
}

/// A user's machine file, followed by the sections of this repository's file whose names it does not have, so that it
/// can inherit from them. The lines of the user's file keep their numbers.
fn with_ours(text: &str) -> String {
    let own: Vec<String> = text.lines().filter_map(section_of).map(str::to_owned).collect();
    let mut whole = format!("{text}\n");
    let mut is_new = false;
    for line in MACHINES.lines() {
        if let Some(name) = section_of(line) {
            is_new = !own.iter().any(|known| known == name);
        }
        if is_new {
            whole.push_str(line);
            whole.push('\n');
        }
    }
    whole
}

/// Keys of counts that have to be at least 1.
const COUNTS: &[&str] = &[
    "sockets",
    "numa_nodes",
    "dies_per_socket",
    "l3_per_die",
    "l3_per_socket",
    "cores_per_l3",
    "cores",
    "smt",
    "cpus",
];

/// The line and the key of the first count in a section that is 0, such as an L3 without cores.
fn zero<'a>(text: &'a str, name: &str) -> Option<(usize, &'a str)> {
    let begin = text.lines().position(|line| section_of(line) == Some(name))? + 1;
    let lines =
        (begin + 1..).zip(text.lines().skip(begin)).take_while(|(_, line)| section_of(line).is_none());
    let mut values = lines.filter_map(|(number, line)| {
        let (key, value) = line.split_once('=')?;
        Some((number, key.trim(), value.split('#').next()?.trim()))
    });
    values.find(|(_, key, value)| COUNTS.contains(key) && *value == "0").map(|(line, key, _)| (line, key))
}

/// The name of the section that begins on a line.
fn section_of(line: &str) -> Option<&str> {
    let (name, _) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    Some(name.trim().trim_matches(['"', '\'']))
}

/// `, did you mean …?` with the similar names, or else with the first name that begins with `name`; empty if there is
/// none.
fn nearest(name: &str, names: &[String]) -> String {
    let begun = || names.iter().find(|known| !name.is_empty() && known.starts_with(name)).cloned();
    let found = similar_names(name, names.iter().map(String::as_str)).or_else(begun);
    found.map_or_else(String::new, |known| format!(", did you mean {known}?"))
}

/// Thousandths as a decimal number: 5300 is `5.3`.
fn thousandths(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
