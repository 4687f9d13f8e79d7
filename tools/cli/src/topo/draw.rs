//! Draws a machine as nested boxes of text, whether it has 2 CPUs or 384.
//!
//! There is a box for each socket, node and last-level cache, which contains the cores. There are three ways to draw
//! the cores, and the first whose result is short enough is used: a box for each core; a column of numbers for each
//! core; columns, but only one cache of each run of three or more equal caches (not with `--all`). Properties that are
//! the same everywhere are in the text above the boxes; the boxes have those that differ. 384 CPUs in 80 columns take
//! 57 lines.

use super::boxes::{Block, across, lowest, wrap};
use warmcore_report::machine_boxes::{
    self, BARRED, CoreBox, ISOLATED, LlcBox, NodeBox, OFFLINE, SocketBox, core_caches, counts, llc_cache,
    llc_label, some,
};
use warmcore_topo::{Llc, Node, Topology};
use warmcore_types::{CpuId, CpuSet};

#[cfg(test)]
mod tests;

/// The height in lines up to which each core has a box: with the text above and below it fills a terminal window.
const BOXED_LINES_MAX: usize = 24;
/// The height in lines up to which each core has a column: two terminal windows. In a higher drawing, equal caches are
/// drawn once, unless `--all` is given.
const COLUMNS_LINES_MAX: usize = 56;
/// The least number of consecutive equal caches that are drawn as one.
const ALIKE_MIN: usize = 3;
/// With more last-level caches than this, if all are equal, their size is in the text above and not in each box.
const SIZED_LLCS_MAX: usize = 4;

/// With more nodes than this, only the range of their distances is shown.
const DISTANCES_MAX: usize = 8;

/// The beginning of the title of a box that may have only some CPUs of its part.
fn part(is_whole: bool) -> &'static str {
    if is_whole { "" } else { "part of " }
}

/// The width inside a frame of `width` columns.
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
    /// The caches of every core, if all cores have equal caches.
    core_caches: Option<String>,
    /// The level and size of every last-level cache, if all caches are equal.
    llc_cache: Option<String>,
}

impl<'a> Painter<'a> {
    fn new(t: &'a Topology) -> Self {
        let barred = t.online().difference(&t.usable());
        let online = |set: &CpuSet| set.intersection(&t.online());
        let mut marks = vec![
            ('i', online(&t.isolated), ISOLATED),
            ('n', online(&t.nohz_full), "without a tick (nohz_full=)"),
            ('x', barred, BARRED),
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

    /// The sockets, in rows, and below them, if there are offline CPUs, a box of these: no source knows where an
    /// offline CPU is.
    fn sockets(&self, width: usize, cores: Cores) -> Block {
        let sockets = machine_boxes::sockets(self.t);
        let mut blocks = vec![lowest(width, |each| {
            Block::in_rows(sockets.iter().map(|socket| self.socket(socket, each, cores)).collect(), width)
        })];
        if !self.t.offline.is_empty() {
            let offline = wrap(&format!("CPUs {}", self.t.offline), inside(width), 2);
            blocks.push(Block::new(offline).framed(OFFLINE));
        }
        Block::above_each_other(blocks)
    }

    fn socket(&self, socket: &SocketBox<'_>, width: usize, cores: Cores) -> Block {
        let title = |node: &NodeBox<'_>| format!("{}node {}", part(node.is_whole), node.id);
        if let [node] = &socket.nodes[..] {
            let title = format!("socket {} · {}", socket.id, title(node));
            return self.llcs(&node.llcs, inside(width), cores).framed(&title);
        }
        let nodes = lowest(inside(width), |each| {
            let node = |node: &NodeBox<'_>| self.llcs(&node.llcs, inside(each), cores).framed(&title(node));
            Block::in_rows(socket.nodes.iter().map(node).collect(), inside(width))
        });
        nodes.framed(&format!("socket {}", socket.id))
    }

    /// The last-level caches of a node, in rows.
    fn llcs(&self, llcs: &[LlcBox<'_>], width: usize, cores: Cores) -> Block {
        let framed = |llc: &LlcBox<'_>| self.llc(llc, width, cores);
        if cores != Cores::Folded {
            return Block::in_rows(llcs.iter().map(framed).collect(), width);
        }
        let runs = llcs.chunk_by(|a, b| self.shape(a) == self.shape(b));
        let drawn = runs.flat_map(|run| match run {
            [first, rest @ ..] if run.len() >= ALIKE_MIN => {
                let (from, to) = (rest[0].llc.id, rest[rest.len() - 1].llc.id);
                let cpus = rest.iter().fold(CpuSet::new(), |all, llc| all.union(&llc.cpus()));
                let text = format!("× {} more alike: {from} to {to}, CPUs {cpus}", rest.len());
                vec![framed(first), Block::new(wrap(&text, width, 2))]
            }
            run => vec![Block::in_rows(run.iter().map(framed).collect(), width)],
        });
        Block::above_each_other(drawn)
    }

    /// The properties in which two caches must agree to be drawn as one.
    fn shape(&self, of: &LlcBox<'_>) -> (String, usize, Vec<(String, Vec<String>)>) {
        let core = |of: &CoreBox<'_>| {
            (core_caches(of.core), of.cpus.iter().map(|cpu| self.letters_of(*cpu)).collect())
        };
        (llc_cache(of.llc), of.llc.cpus.len(), of.cores.iter().map(core).collect())
    }

    fn llc(&self, of: &LlcBox<'_>, width: usize, how: Cores) -> Block {
        let inner = inside(width);
        let runs = of.cores.chunk_by(|a, b| core_caches(a.core) == core_caches(b.core));
        let run = |run: &[CoreBox<'_>]| {
            let grid = match how {
                Cores::Boxed => {
                    Block::in_rows(run.iter().map(|c| self.core_box(&c.cpus, inside(inner))).collect(), inner)
                }
                _ => self.core_columns(run, inner),
            };
            match &self.core_caches {
                Some(_) => grid,
                None => {
                    let caches = core_caches(run[0].core);
                    let caches = if caches.is_empty() { "caches unknown".to_owned() } else { caches };
                    let text = format!("{}: {caches}", some(run.len(), "core"));
                    Block::above_each_other([Block::new(wrap(&text, inner, 2)), grid])
                }
            }
        };
        let title = part(of.is_whole).to_owned() + &llc_label(of.llc, " · ", self.llcs_are_sized());
        Block::above_each_other(runs.map(run)).framed(&title)
    }

    fn core_box(&self, cpus: &[CpuId], width: usize) -> Block {
        let cells = cpus.iter().map(|c| Block::new(vec![self.cell(*c)])).collect();
        Block::in_rows(cells, width).framed("")
    }

    /// Draws a column for each core, with its CPUs one below the other.
    fn core_columns(&self, cores: &[CoreBox<'_>], width: usize) -> Block {
        let each = self.digits + self.letters;
        let deepest = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
        let mut lines = Vec::new();
        for row in cores.chunks(across(cores.len(), each, width)) {
            if deepest > 1 && !lines.is_empty() {
                lines.push(String::new());
            }
            lines.extend((0..deepest).map(|i| {
                let cell = |core: &CoreBox<'_>| core.cpus.get(i).map_or(" ".repeat(each), |c| self.cell(*c));
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

/// The text above and below the boxes.
impl Painter<'_> {
    fn heading(&self, whence: &str) -> Vec<String> {
        let t = self.t;
        let cores_of =
            |llc: &Llc| t.cores.iter().filter(|core| !core.cpus.intersection(&llc.cpus).is_empty()).count();
        let mut counts = counts(t);
        if let Some(n) = alike(t.llcs.iter().map(cores_of)).filter(|_| t.llcs.len() > 1) {
            counts[2] += &format!(" of {}", some(n, "core"));
        }
        let cores = match self.core_caches.as_deref() {
            Some(caches) => format!("each core: {caches}"),
            None => "the cores' caches are not all alike".into(),
        };
        let llcs = self
            .llc_cache
            .iter()
            .filter(|_| !self.llcs_are_sized())
            .map(|cache| format!("each llc: {cache}"));
        let caches: Vec<String> = std::iter::once(cores)
            .chain(llcs)
            .chain([format!("lines: {} bytes", t.line_bytes)])
            .filter(|part| !part.ends_with(": "))
            .collect();
        vec![
            format!("{} ({whence})", t.model.as_deref().unwrap_or("A processor of unknown name")),
            counts.join(", "),
            caches.join(" · "),
        ]
    }

    fn legend(&self, cores: Cores) -> Vec<String> {
        let smt = self.t.cores.iter().any(|c| c.cpus.len() > 1);
        let form = match cores {
            Cores::Boxed if smt => Some("The innermost boxes are cores, the numbers in them CPUs.".into()),
            Cores::Columns | Cores::Folded if smt => {
                Some("Each column is a core; its CPUs stand below each other.".into())
            }
            _ => None,
        };
        let mark = |(letter, cpus, means): &(char, CpuSet, &str)| {
            format!("{letter}  {means}: {} ({cpus})", some(cpus.len(), "CPU"))
        };
        form.into_iter().chain(self.marks.iter().map(mark)).collect()
    }

    /// The CPU quota of this process, and nodes without CPUs, which no box shows.
    fn facts(&self) -> Vec<String> {
        let mut facts = Vec::new();
        if let Some(quota) = &self.t.quota {
            let (cpus, file) = ((quota.cpus * 100.0).round() / 100.0, quota.file.display());
            facts.push(format!("quota: the time of {cpus} CPUs ({file}); threads beyond it are stopped"));
        }
        let bare = self.t.nodes.iter().filter(|n| n.cpus.is_empty());
        facts.extend(bare.map(|n| format!("node {} has memory and no CPU", n.id.0)));
        facts
    }

    /// The firmware's distances between nodes, as a matrix; with more than [`DISTANCES_MAX`] nodes only their range.
    fn distances(&self) -> Vec<String> {
        let nodes = &self.t.nodes;
        let all = || nodes.iter().flat_map(|n| n.distances.iter().map(|(_, d)| *d));
        let (Some(lo), Some(hi)) = (all().min(), all().max()) else { return Vec::new() };
        match nodes.len() {
            0 | 1 => Vec::new(),
            n if n > DISTANCES_MAX => vec![format!("node distances: {lo} to {hi}")],
            _ => {
                let head: String = nodes.iter().map(|n| format!("{:>5}", n.id.0)).collect();
                let row = |n: &Node| {
                    let to: String = n.distances.iter().map(|(_, d)| format!("{d:>5}")).collect();
                    format!("  node {:>7}{to}", n.id.0)
                };
                std::iter::once(format!("node distances{head}")).chain(nodes.iter().map(row)).collect()
            }
        }
    }
}
