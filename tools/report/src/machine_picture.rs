//! Draws a machine as nested boxes in SVG, whether it has 2 CPUs or 384.
//!
//! A box has its children in rows that wrap at its width. Text has one size, so the machine is drawn once for each of
//! [`WIDTHS`], and CSS shows the picture that fits the screen. For each width the layout is tried with several numbers
//! of cores side by side in a last-level cache, and the lowest is used.
//!
//! 384 CPUs at 896 px are about 600 px high, 40 KB of SVG.

use super::machine_boxes::{
    self, BARRED, CoreBox, ISOLATED, LlcBox, NodeBox, OFFLINE, SocketBox, counts, llc_label, some,
};
use super::markup::{esc, standalone};
use warmcore_topo::Topology;
use warmcore_types::CpuId;

/// The widths of the page's three pictures; the page's style sheet chooses one by the width of the screen.
pub(super) const WIDTHS: [f64; 3] = [320.0, 592.0, 896.0];

const PAD: f64 = 6.0;
const GAP: f64 = 6.0;
const HEAD: f64 = 20.0;
/// The width of a digit, and of a letter of a label, at 12 px.
const DIGIT: f64 = 7.5;

/// Describes the machine: `2 sockets, 2 nodes, …`.
pub(super) fn in_words(t: &Topology) -> String {
    counts(t).join(", ")
}

/// The picture inside the page, once per width.
pub(super) fn html(t: &Topology) -> String {
    let one = |(i, width): (usize, &f64)| {
        let (width, height, body) = draw(t, *width);
        format!(
            "<svg class=\"machine w{i}\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\"><title>The machine</title><desc>{}</desc>{body}</svg>\n",
            esc(&in_words(t))
        )
    };
    WIDTHS.iter().enumerate().map(one).collect()
}

/// The picture for a separate file.
pub(super) fn svg(t: &Topology) -> String {
    let (width, height, body) = draw(t, WIDTHS[2]);
    let body = format!("<svg x=\"12\" y=\"12\" width=\"{width}\" height=\"{height}\">{body}</svg>");
    standalone(width + 24.0, height + 24.0, &in_words(t), &body)
}

/// A box, and the positions of its children inside it.
struct Shape {
    class: String,
    label: String,
    w: f64,
    h: f64,
    children: Vec<(f64, f64, Shape)>,
}

impl Shape {
    /// A box of this size without children.
    fn cell(class: String, label: String, w: f64, h: f64) -> Self {
        Self { class, label, w, h, children: Vec::new() }
    }

    /// A box around `children`, which are in rows no wider than `width` unless a single child is wider.
    fn around(class: &str, label: String, children: Vec<Shape>, width: f64, pad: f64, gap: f64) -> Self {
        let head = if label.is_empty() { pad } else { HEAD };
        // Take as few rows as fit into `width`, and of the boxes with so many rows the narrowest: children of one size
        // then leave the last row as full as possible.
        let widest = children.iter().map(|c| c.w).fold(1.0, f64::max);
        let fit = (((width - 2.0 * pad + gap) / (widest + gap)) as usize).max(1);
        let across = children.len().div_ceil(children.len().div_ceil(fit).max(1));
        let width = width.min(across as f64 * (widest + gap) - gap + 2.0 * pad + 0.5);
        let (mut x, mut y, mut row, mut right) = (pad, head, 0.0f64, 0.0f64);
        let mut placed = Vec::with_capacity(children.len());
        for child in children {
            if x > pad && x + child.w + pad > width {
                (x, y, row) = (pad, y + row + gap, 0.0);
            }
            (row, right) = (row.max(child.h), right.max(x + child.w));
            let w = child.w;
            placed.push((x, y, child));
            x += w + gap;
        }
        let w = (right + pad).max(label.chars().count() as f64 * DIGIT + 2.0 * pad);
        Self { class: class.into(), label, w, h: y + row + pad, children: placed }
    }

    fn svg(&self, x: f64, y: f64, out: &mut String) {
        let (class, w, h) = (&self.class, self.w, self.h);
        let cell = class.starts_with("cpu");
        *out +=
            &format!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"3\"/>");
        if class.contains("barred") {
            let (x2, y2) = (x + w - 3.0, y + 3.0);
            let (x1, y1) = (x + 3.0, y + h - 3.0);
            *out += &format!("<line class=\"strike\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>");
        }
        match &*self.label {
            "" => {}
            label if cell => {
                let barred =
                    if class.contains("barred") || class.contains("offline") { " muted" } else { "" };
                let (mid, base) = (x + w / 2.0, y + h / 2.0 + 4.5);
                *out += &format!("<text class=\"small mid{barred}\" x=\"{mid}\" y=\"{base}\">{label}</text>");
            }
            label => {
                let (x, y) = (x + PAD, y + 14.5);
                *out += &format!("<text class=\"small muted\" x=\"{x}\" y=\"{y}\">{}</text>", esc(label));
            }
        }
        for (dx, dy, child) in &self.children {
            child.svg(x + dx, y + dy, out);
        }
    }
}

/// Draws the picture in at most `width`, if its boxes can be made that narrow. Returns the width that it takes, its
/// height, and its content.
fn draw(t: &Topology, width: f64) -> (f64, f64, String) {
    let widest = t.llcs.iter().map(|l| l.cpus.len()).max().unwrap_or(1);
    let best = (1..=widest.min((width / cell_width(t)) as usize).max(1))
        .map(|columns| sockets(t, width, columns))
        .min_by(|a, b| height(a).total_cmp(&height(b)));
    let mut out = String::new();
    let mut y = 1.0;
    for shape in best.iter().flatten() {
        shape.svg(1.0, y, &mut out);
        y += shape.h + GAP;
    }
    let mut used = best.iter().flatten().map(|s| s.w + 2.0).fold(0.0, f64::max);
    for (class, text) in legend(t) {
        used = used.max(36.0 + text.chars().count() as f64 * DIGIT).min(width);
        Shape::cell(class.into(), String::new(), 26.0, 18.0).svg(2.0, y + 4.0, &mut out);
        out += &format!("<text class=\"small muted\" x=\"36\" y=\"{}\">{text}</text>", y + 17.0);
        y += 26.0;
    }
    (used, y + 2.0, out)
}

fn height(shapes: &[Shape]) -> f64 {
    shapes.iter().map(|s| s.h + GAP).sum()
}

fn cell_width(t: &Topology) -> f64 {
    let last = t.possible.last().or(t.cpus.last().map(|c| c.id)).map_or(0, |c| c.0);
    (last.max(1).ilog10() as f64 + 1.0) * DIGIT + 9.0
}

/// The sockets, one below the other, and below them, if there are offline CPUs, a box of these: no source tells where
/// an offline CPU is.
fn sockets(t: &Topology, width: f64, columns: usize) -> Vec<Shape> {
    let width = width - 2.0;
    let cell = cell_width(t);
    let cpu = |id: CpuId, class: &str| Shape::cell(format!("cpu{class}"), id.0.to_string(), cell, 20.0);
    let usable = t.usable();
    let online = |id: &CpuId| {
        let barred = if usable.contains(*id) { "" } else { " barred" };
        let isolated = if t.isolated.contains(*id) { " isolated" } else { "" };
        cpu(*id, &format!("{barred}{isolated}"))
    };
    let core = |of: &CoreBox<'_>, width| {
        Shape::around("core", String::new(), of.cpus.iter().map(online).collect(), width, 3.0, 2.0)
    };
    let llc = |of: &LlcBox<'_>, width: f64| {
        let cores: Vec<Shape> = of.cores.iter().map(|of| core(of, width - 2.0 * PAD)).collect();
        let across = cores.iter().map(|c| c.w).fold(0.0, f64::max) + GAP;
        let label = llc_label(of.llc, " ", true);
        // A label may be wider than the cores below it.
        let least = label.len() as f64 * DIGIT + 2.0 * PAD;
        let fits = (across * columns as f64 - GAP + 2.0 * PAD).min(width).max(least);
        Shape::around("llc", label, cores, fits, PAD, GAP)
    };
    let node = |class: &str, label: String, of: &NodeBox<'_>, width: f64| {
        let llcs = of.llcs.iter().map(|of| llc(of, width - 2.0 * PAD)).collect();
        Shape::around(class, label, llcs, width, PAD, GAP)
    };
    let socket = |of: &SocketBox<'_>| {
        let label = format!("socket {}", of.id);
        if let [one] = &of.nodes[..] {
            return node("socket", format!("{label} · node {}", one.id), one, width);
        }
        let inner = width - 2.0 * PAD;
        let nodes = of.nodes.iter().map(|of| node("node", format!("node {}", of.id), of, inner));
        Shape::around("socket", label, nodes.collect(), width, PAD, GAP)
    };
    let mut shapes: Vec<Shape> = machine_boxes::sockets(t).iter().map(socket).collect();
    if !t.offline.is_empty() {
        let cpus = t.offline.iter().map(|id| cpu(id, " offline")).collect();
        shapes.push(Shape::around("node", "offline".into(), cpus, width, PAD, 4.0));
    }
    shapes
}

/// The meaning of each unusual style of a CPU that occurs in the picture.
fn legend(t: &Topology) -> Vec<(&'static str, String)> {
    let barred = t.online().difference(&t.usable()).len();
    [
        ("cpu isolated", t.isolated.len(), ISOLATED),
        ("cpu barred", barred, BARRED),
        ("cpu offline", t.offline.len(), OFFLINE),
    ]
    .into_iter()
    .filter(|(_, n, _)| *n > 0)
    .map(|(class, n, text)| (class, format!("{text}: {}", some(n, "CPU"))))
    .collect()
}
