//! Matrix: the hand-over times as a table by what two CPUs share, and as a heatmap.
//!
//! Model.   Rows and columns stand in the order of the machine's picture, so that what shares a
//!          cache stands together. A stronger colour is slower, in eight steps of a logarithmic
//!          scale; up to 16 CPUs the time is written in the cell. The table says it all in text.
//! Number.  384 CPUs are 147 456 cells; runs of one shade are one stroke: about 150 KB.

use super::inputs::Probe;
use super::markup::{SHADE_MAX_UNDER_TEXT, amount, esc, standalone};
use std::collections::BTreeMap;
use warmcore_topo::{Distance, Topology};
use warmcore_types::CpuId;

/// Above this many CPUs a cell has no room for its number.
const NUMBERS_UP_TO: usize = 16;
const SHADES: usize = 8;
const CELL: (f64, f64) = (40.0, 26.0);

/// The times of all pairs that share the same thing.
pub(super) struct Class {
    /// What they share: `the core`, `the node`.
    pub shared: &'static str,
    /// How many pairs.
    pub pairs: usize,
    /// The middle one of their times, in ns.
    pub median: f64,
    /// The lowest.
    pub lo: f64,
    /// The highest.
    pub hi: f64,
}

/// The hand-over by what two CPUs share, nearest first.
pub(super) fn by_distance(t: &Topology, probe: &Probe) -> Vec<Class> {
    let mut classes: BTreeMap<Distance, Vec<f64>> = BTreeMap::new();
    for (i, a) in probe.cpus.iter().enumerate() {
        for (j, b) in probe.cpus.iter().enumerate() {
            if let (Some(ns), Some(d)) = (time(probe, i, j), t.distance(CpuId(*a), CpuId(*b))) {
                classes.entry(d).or_default().push(ns);
            }
        }
    }
    classes.remove(&Distance::Same);
    let row = |(distance, mut times): (Distance, Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        let shared = match distance {
            Distance::Same | Distance::Smt => "the core",
            Distance::Llc => "the last-level cache",
            Distance::Node => "the node",
            Distance::Socket => "the socket",
            Distance::Other => "only the machine",
        };
        let (pairs, lo, hi) = (times.len(), times[0], times[times.len() - 1]);
        Class { shared, pairs, median: times[pairs / 2], lo, hi }
    };
    classes.into_iter().map(row).collect()
}

/// The heatmap inside the page.
pub(super) fn html(t: &Topology, probe: &Probe) -> String {
    let (w, h, body) = draw(t, probe);
    let class = if probe.cpus.len() > NUMBERS_UP_TO { "heat wide" } else { "heat" };
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Hand-over times\">\
         <svg class=\"{class}\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" role=\"img\">\
         <title>Hand-over of a cache line between CPUs</title><desc>{}</desc>{body}</svg></div>{}",
        esc(&probe.verdict),
        scale(probe).map(|s| s.html(strongest(probe))).unwrap_or_default(),
    )
}

/// The heatmap on its own.
pub(super) fn svg(t: &Topology, probe: &Probe) -> String {
    let (w, h, body) = draw(t, probe);
    let key = scale(probe).map(|s| s.words()).unwrap_or_default();
    // A matrix of hundreds is drawn one unit per CPU; a picture is at least as wide as its key.
    let zoom = if probe.cpus.len() > NUMBERS_UP_TO { (720.0 / w).max(1.0) } else { 1.0 };
    let width = (w * zoom).max(key.chars().count() as f64 * 7.5);
    standalone(
        width + 40.0,
        h * zoom + 84.0,
        "Hand-over of a cache line between CPUs",
        &format!(
            "<text class=\"title\" x=\"20\" y=\"32\">One-way hand-over, from row to column</text>\
             <svg x=\"20\" y=\"46\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {w} {h}\">{body}</svg>\
             <text class=\"small muted\" x=\"20\" y=\"{}\">{}</text>",
            w * zoom,
            h * zoom,
            h * zoom + 70.0,
            esc(&key)
        ),
    )
}

fn time(probe: &Probe, i: usize, j: usize) -> Option<f64> {
    (*probe.hand_over_ns.get(i)?.get(j)?).filter(|ns| ns.is_finite() && *ns > 0.0)
}

/// How opaque the slowest cell is.
fn strongest(probe: &Probe) -> f64 {
    if probe.cpus.len() > NUMBERS_UP_TO { 1.0 } else { SHADE_MAX_UNDER_TEXT }
}

/// The shades' range of times.
struct Scale {
    lo: f64,
    hi: f64,
}

fn scale(probe: &Probe) -> Option<Scale> {
    let times =
        || probe.hand_over_ns.iter().flatten().flatten().copied().filter(|t| t.is_finite() && *t > 0.0);
    let (lo, hi) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    (hi > 0.0).then_some(Scale { lo, hi })
}

impl Scale {
    /// 1 for the fastest eighth of the scale, 8 for the slowest.
    fn shade(&self, ns: f64) -> usize {
        // Times that differ by a tenth are one class: the scale is never narrower than that.
        let span = (self.hi / self.lo).ln().max(0.1);
        (((ns / self.lo).ln() / span * SHADES as f64) as usize).min(SHADES - 1) + 1
    }

    fn words(&self) -> String {
        format!(
            "Palest {}, strongest {}; steps of equal ratio.",
            amount(self.lo, "ns"),
            amount(self.hi, "ns")
        )
    }

    fn html(&self, strongest: f64) -> String {
        let swatches: String = (1..=SHADES)
            .map(|s| {
                let (x, opacity) = ((s - 1) * 22, strongest * s as f64 / SHADES as f64);
                format!("<rect class=\"shade\" x=\"{x}\" width=\"22\" height=\"12\" fill-opacity=\"{opacity:.3}\"/>")
            })
            .collect();
        format!(
            "<p class=\"key\"><span>{}</span><svg width=\"176\" height=\"12\" aria-hidden=\"true\">{swatches}</svg>\
             <span>{}</span></p>",
            esc(&amount(self.lo, "ns")),
            esc(&amount(self.hi, "ns"))
        )
    }
}

/// The indices of `probe.cpus`, in the order of the machine's picture.
fn order(t: &Topology, probe: &Probe) -> Vec<usize> {
    let mut order: Vec<usize> = (0..probe.cpus.len()).collect();
    order.sort_by_key(|&i| {
        let place = t.cpu(CpuId(probe.cpus[i])).map(|c| (c.socket, c.node, c.llc, c.core));
        (place.is_none(), place, probe.cpus[i])
    });
    order
}

fn draw(t: &Topology, probe: &Probe) -> (f64, f64, String) {
    let order = order(t, probe);
    match scale(probe) {
        None => (1.0, 1.0, String::new()),
        Some(scale) if order.len() <= NUMBERS_UP_TO => with_numbers(probe, &order, &scale),
        Some(scale) => shades_alone(t, probe, &order, &scale),
    }
}

fn with_numbers(probe: &Probe, order: &[usize], scale: &Scale) -> (f64, f64, String) {
    let (w, h) = CELL;
    let mut out = String::new();
    for (row, &i) in order.iter().enumerate() {
        let (along, cpu) = ((row + 1) as f64, probe.cpus[i]);
        out += &format!(
            "<text class=\"small muted mid\" x=\"{}\" y=\"{}\">{cpu}</text>\
             <text class=\"small muted end\" x=\"{}\" y=\"{}\">{cpu}</text>",
            along * w + w / 2.0,
            h - 8.0,
            w - 10.0,
            along * h + 17.5,
        );
        for (column, &j) in order.iter().enumerate() {
            let (x, y) = ((column + 1) as f64 * w, along * h);
            let place = format!(
                "x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"",
                x + 1.0,
                y + 1.0,
                w - 2.0,
                h - 2.0
            );
            let Some(ns) = time(probe, i, j) else {
                out += &format!("<rect class=\"empty\" {place}/>");
                continue;
            };
            let opacity = strongest(probe) * scale.shade(ns) as f64 / SHADES as f64;
            let spread = probe.spread_ns.get(i).and_then(|r| *r.get(j)?);
            let spread = spread.map(|(lo, hi)| format!(", {} to {}", amount(lo, "ns"), amount(hi, "ns")));
            let number = if ns < 10.0 { format!("{ns:.1}") } else { format!("{ns:.0}") };
            out += &format!(
                "<g><title>CPU {cpu} to CPU {}: {}{}</title><rect class=\"shade\" {place} fill-opacity=\"{opacity:.3}\"/>\
                 <text class=\"small mid\" x=\"{}\" y=\"{}\">{number}</text></g>",
                probe.cpus[j],
                amount(ns, "ns"),
                spread.unwrap_or_default(),
                x + w / 2.0,
                y + 17.5,
            );
        }
    }
    let n = order.len() as f64 + 1.0;
    (n * w, n * h, out)
}

fn shades_alone(t: &Topology, probe: &Probe, order: &[usize], scale: &Scale) -> (f64, f64, String) {
    let n = order.len();
    let mut paths = vec![String::new(); SHADES + 1];
    for (y, &i) in order.iter().enumerate() {
        let shade = |x: usize| time(probe, i, order[x]).map_or(0, |ns| scale.shade(ns));
        let mut from = 0;
        for x in 1..=n {
            if x == n || shade(x) != shade(from) {
                paths[shade(from)] += &format!("M{from} {y}h{}v1H{from}z", x - from);
                from = x;
            }
        }
    }
    let mut out = String::new();
    for (shade, path) in paths.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
        let (class, opacity) =
            if shade == 0 { ("empty", 1.0) } else { ("shade", shade as f64 / SHADES as f64) };
        out += &format!("<path class=\"{class}\" fill-opacity=\"{opacity:.3}\" d=\"{path}\"/>");
    }
    // Lines where the LLC changes; twice as thick where the socket does.
    for (k, pair) in order.windows(2).enumerate() {
        let place = |i: usize| t.cpu(CpuId(probe.cpus[i])).map(|c| (c.socket, c.llc));
        let (a, b) = (place(pair[0]), place(pair[1]));
        if a != b {
            let width = n as f64 / if a.map(|p| p.0) == b.map(|p| p.0) { 500.0 } else { 150.0 };
            let at = k + 1;
            out += &format!("<path class=\"cut\" stroke-width=\"{width:.2}\" d=\"M{at} 0V{n}M0 {at}H{n}\"/>");
        }
    }
    (n as f64, n as f64, out)
}
