//! Draws the machine as nested boxes of text, for 2 CPUs and for 384.
//!
//! There is a box for each socket, node and last-level cache; the innermost boxes contain the cores. There are three
//! ways to draw the cores, and the first whose result is short enough is used: a box for each core; a column of numbers
//! for each core; columns, but only one cache of each run of equal caches. Properties that are the same everywhere are
//! in the text above; the boxes have those that differ. 384 CPUs in 80 columns take 57 lines, and every CPU is named.

use super::boxes::{Block, across, lowest, wrap};
use std::collections::BTreeMap;
use warmcore_topo::{Core, Cpu, Llc, Topology};
use warmcore_types::{CpuId, CpuSet, NodeId};

#[cfg(test)]
mod tests;
mod words;

use words::some;

/// The height in lines up to which each core has a box: a terminal window, with the text above and below.
const BOXED_LINES_MAX: usize = 24;
/// The height in lines up to which each core has a column: two windows. In a higher drawing, equal caches are drawn
/// once.
const COLUMNS_LINES_MAX: usize = 56;
/// The least number of consecutive equal caches that are drawn as one.
const ALIKE_MIN: usize = 3;
/// With more caches than this, their size is in the text above and not in each box.
const SIZED_LLCS_MAX: usize = 4;

/// The width inside a frame.
fn inside(width: usize) -> usize {
    width.saturating_sub(4)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cores {
    Boxed,
    Columns,
    Folded,
}

/// Draws the machine in lines of at most `width` columns, if its boxes can be made that narrow. `whence` describes
/// where the topology was read; with `all`, equal caches are not folded.
pub(super) fn draw(t: &Topology, whence: &str, width: usize, all: bool) -> String {
    let painter = Painter::new(t);
    let mut lines = Vec::new();
    for line in painter.heading(whence) {
        lines.extend(wrap(&line, width, 2));
    }
    lines.push(String::new());
    let drawn = |cores| painter.sockets(width, cores).into_lines().collect::<Vec<_>>();
    let (boxed, columns) = (drawn(Cores::Boxed), drawn(Cores::Columns));
    let (cores, machine) = match () {
        _ if boxed.len() <= BOXED_LINES_MAX => (Cores::Boxed, boxed),
        _ if all || columns.len() <= COLUMNS_LINES_MAX => (Cores::Columns, columns),
        _ => (Cores::Folded, drawn(Cores::Folded)),
    };
    lines.extend(machine);
    for line in painter.legend(cores).into_iter().chain(painter.facts()) {
        lines.extend(wrap(&line, width, 2));
    }
    lines.extend(painter.distances());
    for note in &t.notes {
        lines.extend(wrap(&format!("note: {note}"), width, 2));
    }
    lines.join("\n") + "\n"
}

/// `48 KiB`, `32 MiB`, `112.5 MiB`.
fn size(kib: u32) -> String {
    match kib {
        k if k < 1024 => format!("{k} KiB"),
        k if k % 1024 == 0 => format!("{} MiB", k / 1024),
        k => format!("{:.1} MiB", f64::from(k) / 1024.0),
    }
}

/// `L1d 32 KiB, L2 1 MiB`, as far as that is known.
fn core_caches(core: &Core) -> String {
    let sizes = [("L1d", core.l1d_kib), ("L2", core.l2_kib)];
    let known = sizes.iter().filter_map(|(name, kib)| Some(format!("{name} {}", size((*kib)?))));
    known.collect::<Vec<_>>().join(", ")
}

/// `L3 32 MiB`; empty if no cache is listed.
fn llc_cache(llc: &Llc) -> String {
    match (llc.level, llc.size_kib) {
        (0, _) => String::new(),
        (level, Some(kib)) => format!("L{level} {}", size(kib)),
        (level, None) => format!("L{level}"),
    }
}

/// The value that all items have, if they are equal.
fn alike<T: PartialEq>(mut each: impl Iterator<Item = T>) -> Option<T> {
    let first = each.next()?;
    each.all(|other| other == first).then_some(first)
}

/// The machine, and how its parts are drawn.
struct Painter<'a> {
    t: &'a Topology,
    /// The marks of CPUs: the letter, the CPUs, and the meaning.
    marks: Vec<(char, CpuSet, &'static str)>,
    digits: usize,
    /// The largest number of letters on a CPU.
    letters: usize,
    /// The caches of every core, if all cores are equal.
    core_caches: Option<String>,
    /// The level and size of the last-level caches, if all are equal.
    llc_cache: Option<String>,
}

impl<'a> Painter<'a> {
    fn new(t: &'a Topology) -> Self {
        let barred = t.online().difference(&t.usable());
        let online = |set: &CpuSet| set.intersection(&t.online());
        let mut marks = vec![
            ('i', online(&t.isolated), "isolated at boot (isolcpus=)"),
            ('n', online(&t.nohz_full), "without a tick (nohz_full=)"),
            ('x', barred, "not allowed for this process"),
        ];
        marks.retain(|(_, cpus, _)| !cpus.is_empty());
        let mut painter = Self {
            t,
            marks,
            digits: t.cpus.last().map_or(1, |c| c.id.0.to_string().len()),
            letters: 0,
            core_caches: alike(t.cores.iter().map(core_caches)),
            llc_cache: alike(t.llcs.iter().map(llc_cache)),
        };
        painter.letters = t.cpus.iter().map(|c| painter.letters_of(c.id).len()).max().unwrap_or(0);
        painter
    }

    /// Whether each last-level cache has its size in its title.
    fn llcs_are_sized(&self) -> bool {
        self.llc_cache.is_none() || self.t.llcs.len() <= SIZED_LLCS_MAX
    }

    /// The sockets, one below the other, and a last box of the offline CPUs: no source knows where an offline CPU is.
    fn sockets(&self, width: usize, cores: Cores) -> Block {
        let all: Vec<&Cpu> = self.t.cpus.iter().collect();
        let sockets = by(&all, |c| c.socket.0);
        let mut blocks = vec![lowest(width, |each| {
            let socket = |(id, cpus): (&u32, &Vec<&Cpu>)| self.socket(*id, cpus, each, cores);
            Block::in_rows(sockets.iter().map(socket).collect(), width)
        })];
        if !self.t.offline.is_empty() {
            let offline = wrap(&format!("CPUs {}", self.t.offline), inside(width), 2);
            blocks.push(Block::new(offline).framed("offline, place unknown"));
        }
        Block::above_each_other(blocks)
    }

    fn socket(&self, id: u32, cpus: &[&Cpu], width: usize, cores: Cores) -> Block {
        let nodes = by(cpus, |c| c.node.0);
        if let [node] = nodes.keys().collect::<Vec<_>>()[..] {
            let title = format!("socket {id} · {}", self.node_title(*node, cpus));
            return self.llcs(cpus, inside(width), cores).framed(&title);
        }
        let nodes = lowest(inside(width), |each| {
            let node = |(node, cpus): (&u32, &Vec<&Cpu>)| {
                self.llcs(cpus, inside(each), cores).framed(&self.node_title(*node, cpus))
            };
            Block::in_rows(nodes.iter().map(node).collect(), inside(width))
        });
        nodes.framed(&format!("socket {id}"))
    }

    fn node_title(&self, node: u32, cpus: &[&Cpu]) -> String {
        let whole = self.t.node(NodeId(node)).is_some_and(|n| n.cpus.len() == cpus.len());
        format!("{}node {node}", if whole { "" } else { "part of " })
    }

    /// The last-level caches of `cpus`, in rows.
    fn llcs(&self, cpus: &[&Cpu], width: usize, cores: Cores) -> Block {
        let groups: Vec<(&Llc, CpuSet)> = by(cpus, |c| c.llc.0)
            .iter()
            .map(|(id, cpus)| (&self.t.llcs[*id as usize], cpus.iter().map(|c| c.id).collect()))
            .collect();
        let framed = |(llc, cpus): &(&Llc, CpuSet)| self.llc(llc, cpus, width, cores);
        if cores != Cores::Folded {
            return Block::in_rows(groups.iter().map(framed).collect(), width);
        }
        let runs = groups.chunk_by(|a, b| self.shape(a) == self.shape(b));
        let drawn = runs.flat_map(|run| match run {
            [first, rest @ ..] if run.len() >= ALIKE_MIN => {
                let ids: Vec<_> = rest.iter().map(|(llc, _)| llc.id).collect();
                let cpus: CpuSet = rest.iter().flat_map(|(_, cpus)| cpus.iter()).collect();
                let text =
                    format!("× {} more alike: {} to {}, CPUs {cpus}", rest.len(), ids[0], ids[ids.len() - 1]);
                vec![framed(first), Block::new(wrap(&text, width, 2))]
            }
            run => vec![Block::in_rows(run.iter().map(framed).collect(), width)],
        });
        Block::above_each_other(drawn)
    }

    /// The properties in which two caches must agree to be drawn as one.
    fn shape(&self, (llc, cpus): &(&Llc, CpuSet)) -> (String, usize, Vec<(String, Vec<String>)>) {
        let core = |core: &&Core| {
            let here = core.cpus.intersection(cpus);
            (core_caches(core), here.iter().map(|c| self.letters_of(c)).collect())
        };
        (llc_cache(llc), llc.cpus.len(), self.cores(cpus).iter().map(core).collect())
    }

    fn llc(&self, llc: &Llc, cpus: &CpuSet, width: usize, how: Cores) -> Block {
        let inner = inside(width);
        let runs = self.cores(cpus);
        let runs = runs.chunk_by(|a, b| core_caches(a) == core_caches(b));
        let run = |run: &[&Core]| {
            // Of a core that spans nodes or sockets, this list has only the CPUs in this node.
            let cores: Vec<Vec<CpuId>> =
                run.iter().map(|c| c.cpus.intersection(cpus).iter().collect()).collect();
            let grid = match how {
                Cores::Boxed => {
                    Block::in_rows(cores.iter().map(|c| self.core_box(c, inside(inner))).collect(), inner)
                }
                _ => self.core_columns(&cores, inner),
            };
            match &self.core_caches {
                Some(_) => grid,
                None => {
                    let caches = core_caches(run[0]);
                    let caches = if caches.is_empty() { "caches unknown".to_owned() } else { caches };
                    let text = format!("{}: {caches}", some(run.len(), "core"));
                    Block::above_each_other([Block::new(wrap(&text, inner, 2)), grid])
                }
            }
        };
        let part = if cpus.len() < llc.cpus.len() { "part of " } else { "" };
        let title = match llc_cache(llc) {
            cache if cache.is_empty() => format!("{part}{} · assumed", llc.id),
            cache if self.llcs_are_sized() => format!("{part}{} · {cache}", llc.id),
            _ => format!("{part}{}", llc.id),
        };
        Block::above_each_other(runs.map(run)).framed(&title)
    }

    /// The cores of the CPUs in the set, by their smallest CPU.
    fn cores(&self, cpus: &CpuSet) -> Vec<&'a Core> {
        let ids: std::collections::BTreeSet<_> =
            cpus.iter().filter_map(|c| self.t.cpu(c)).map(|c| c.core).collect();
        ids.into_iter().map(|id| &self.t.cores[id.index()]).collect()
    }

    fn core_box(&self, cpus: &[CpuId], width: usize) -> Block {
        let cells = cpus.iter().map(|c| Block::new(vec![self.cell(*c)])).collect();
        Block::in_rows(cells, width).framed("")
    }

    /// Draws a column for each core, with its CPUs one below the other.
    fn core_columns(&self, cores: &[Vec<CpuId>], width: usize) -> Block {
        let each = self.digits + self.letters;
        let deepest = cores.iter().map(Vec::len).max().unwrap_or(0);
        let mut lines = Vec::new();
        for row in cores.chunks(across(cores.len(), each, width)) {
            if deepest > 1 && !lines.is_empty() {
                lines.push(String::new());
            }
            lines.extend((0..deepest).map(|i| {
                let cell = |core: &Vec<CpuId>| core.get(i).map_or(" ".repeat(each), |c| self.cell(*c));
                row.iter().map(cell).collect::<Vec<_>>().join(" ")
            }));
        }
        Block::new(lines)
    }

    fn cell(&self, cpu: CpuId) -> String {
        format!(
            "{:>digits$}{:<letters$}",
            cpu.0,
            self.letters_of(cpu),
            digits = self.digits,
            letters = self.letters
        )
    }

    fn letters_of(&self, cpu: CpuId) -> String {
        self.marks.iter().filter(|(_, cpus, _)| cpus.contains(cpu)).map(|(letter, ..)| *letter).collect()
    }
}

fn by<'a>(cpus: &[&'a Cpu], key: impl Fn(&Cpu) -> u32) -> BTreeMap<u32, Vec<&'a Cpu>> {
    cpus.iter().fold(BTreeMap::new(), |mut groups, cpu| {
        groups.entry(key(cpu)).or_insert_with(Vec::new).push(*cpu);
        groups
    })
}
