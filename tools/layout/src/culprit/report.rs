//! Report: the result for a layout as text: the struct's cache lines one after the other, each with its fields and
//! holes, similar to pahole's output.
//!
//! Cache lines that the profile touches are drawn with all their fields and holes; of the others only the numbers are
//! printed. A `!` marks a field that suffers: its touches cost more than on lines of its own. The culprits of each such
//! field follow, and then the layouts that help, and whether padding would.

use super::{Blame, Culprit, FieldCost, RelayoutKind, Stands};
use crate::{Field, Layout};
use std::fmt::{self, Write};

impl Culprit {
    /// Fields that suffer, the one with the largest excess cost first.
    pub fn sufferers(&self) -> Vec<&FieldCost> {
        let excess = |f: &FieldCost| {
            f.reads_per_s * (f.read_ns - f.read_alone_ns) + f.writes_per_s * (f.write_ns - f.write_alone_ns)
        };
        let mut sufferers: Vec<_> = self.verdict.fields.iter().filter(|f| f.suffers()).collect();
        sufferers.sort_by(|a, b| excess(b).total_cmp(&excess(a)));
        sufferers
    }

    fn draw(&self, out: &mut impl Write) -> fmt::Result {
        let (layout, unit) = (&self.layout, self.verdict.unit);
        let touches = |line: usize| {
            let on = |f: &FieldCost| overlap((f.offset, f.size), (line * unit, unit));
            self.verdict.fields.iter().any(on)
        };
        writeln!(out, "  Rates are of all cores together.")?;
        writeln!(
            out,
            "  {:>6} {:>5}  {:<28} {:>9} {:>9}  {:>11}  {:>8} {:>8}",
            "offset", "size", "field", "reads/s", "writes/s", "read write", "ns/read", "ns/write"
        )?;
        // An array of unknown length begins at the struct's end or before it, and its elements may lie beyond that end.
        let flexible = layout.flexible().map_or(0, |last| layout.fields[last].offset / unit + 1);
        let lines: Vec<usize> = (0..layout.size.div_ceil(unit).max(flexible)).collect();
        for lines in lines.chunk_by(|a, b| !touches(*a) && !touches(*b)) {
            match *lines {
                [line] if touches(line) => {
                    writeln!(out, "  -- line {line}, bytes {}..{} --", line * unit, (line + 1) * unit)?;
                    self.draw_line(out, (line * unit, unit))?;
                }
                [line] => writeln!(out, "  -- line {line}: not touched --")?,
                [first, .., last] => writeln!(out, "  -- lines {first} to {last}: not touched --")?,
                [] => {}
            }
        }
        Ok(())
    }

    fn draw_line(&self, out: &mut impl Write, line: (usize, usize)) -> fmt::Result {
        let fields = self.layout.fields.iter().map(|f| (f.offset, f.size, Some(f)));
        let holes = self.layout.holes().into_iter().map(|hole| (hole.offset, hole.size, None));
        let mut rows: Vec<(usize, usize, Option<&Field>)> =
            fields.chain(holes).filter(|(offset, size, _)| overlap((*offset, *size), line)).collect();
        rows.sort_by_key(|(offset, size, _)| (*offset, *size));
        for (offset, size, field) in rows {
            let Some(field) = field else {
                writeln!(out, "  {offset:>6} {size:>5}  (nothing)")?;
                continue;
            };
            // The profile may name parts of a field that is longer than the line.
            let within = |f: &&FieldCost| {
                overlap((f.offset, f.size), (offset, size)) && overlap((f.offset, f.size), line)
            };
            let touched: Vec<&FieldCost> = self.verdict.fields.iter().filter(within).collect();
            if touched.is_empty() {
                writeln!(out, "  {offset:>6} {size:>5}  {}", field.name)?;
            }
            for f in touched {
                let mark = if f.suffers() { '!' } else { ' ' };
                let by = format!("{:>5} {:>5}", f.readers, f.writers);
                let ns = |rate: f64, ns: f64| if rate > 0.0 { format!("{ns:.1}") } else { String::new() };
                let row = format!(
                    "{mark} {:>6} {:>5}  {:<28} {:>9} {:>9}  {by}  {:>8} {:>8}",
                    f.offset,
                    f.size,
                    f.name,
                    rate(f.reads_per_s),
                    rate(f.writes_per_s),
                    ns(f.reads_per_s, f.read_ns),
                    ns(f.writes_per_s, f.write_ns),
                );
                writeln!(out, "{}", row.trim_end())?;
            }
        }
        Ok(())
    }

    fn blame(
        &self,
        out: &mut impl Write,
        field: &FieldCost,
        what: &str,
        blame: &[Blame],
        (ns, alone): (f64, f64),
    ) -> fmt::Result {
        if blame.is_empty() {
            return Ok(());
        }
        let line = field.offset / self.verdict.unit;
        writeln!(
            out,
            "{}: {ns:.1} ns a {what}, on a line of its own {alone:.1}. Line {line} is taken away by",
            field.name
        )?;
        for b in blame {
            let it = self.verdict.field(&b.field);
            let offset = it.map_or(0, |f| f.offset);
            let mut touches = Vec::new();
            for (rate_per_s, cores, word) in it.into_iter().flat_map(|f| {
                // A read suffers from writes only.
                let reads = if what == "read" { 0.0 } else { f.reads_per_s };
                [(f.writes_per_s, f.writers, "writes"), (reads, f.readers, "reads")]
            }) {
                if rate_per_s > 0.0 {
                    touches.push(format!("{} {word}/s by {cores} cores", rate(rate_per_s).trim()));
                }
            }
            let stands = match b.stands {
                Stands::Before => "before it",
                Stands::After => "after it",
                Stands::Inside => "in the same bytes",
            };
            writeln!(
                out,
                "  {}, byte {offset}, {stands}: {:.0} % of it, {:.1} ns a {what} ({})",
                b.field,
                100.0 * b.share,
                b.by_ns,
                touches.join(", "),
            )?;
        }
        Ok(())
    }

    fn ways_out(&self, out: &mut impl Write) -> fmt::Result {
        let (ways, not): (Vec<_>, Vec<_>) =
            self.relayouts.iter().partition(|r| r.kind != RelayoutKind::PadAfter);
        if ways.is_empty() {
            let found = "No layout helps: the culprits cannot be moved away from the fields that suffer.";
            writeln!(out, "{found}")?;
            let is_part = |f: &&FieldCost| self.layout.fields.iter().all(|field| field.name != f.name);
            return match self.sufferers().into_iter().find(is_part).and_then(|f| f.name.rsplit_once('.')) {
                None => Ok(()),
                Some((outer, inner)) => writeln!(
                    out,
                    "{inner} is a field of {outer}, which moves as a whole: give the struct that {outer} is with --struct."
                ),
            };
        }
        for (number, way) in ways.iter().enumerate() {
            let which = if number == 0 { "Cheapest" } else { "Or" };
            writeln!(
                out,
                "{which}: {}. {:+} bytes, {} moved, {:.1} % of the excess gone.",
                way.what,
                way.added,
                way.moved.len(),
                100.0 * way.gone
            )?;
            if number > 0 {
                continue;
            }
            for field in self.sufferers() {
                if let Some(after) = way.verdict.field(&field.name) {
                    let position =
                        format!("byte {}, line {}", after.offset, after.offset / self.verdict.unit);
                    let mut said = Vec::new();
                    if field.reads_per_s > 0.0 {
                        said.push(format!("{:.1} -> {:.1} ns a read", field.read_ns, after.read_ns));
                    }
                    if field.writes_per_s > 0.0 {
                        said.push(format!("{:.1} -> {:.1} ns a write", field.write_ns, after.write_ns));
                    }
                    writeln!(out, "  {} ({position}): {}", field.name, said.join(", "))?;
                }
            }
        }
        for way in not {
            let verdict = if way.helps() { "helps the reader too" } else { "does not help" };
            writeln!(
                out,
                "{} {verdict}: {:+} bytes, {:.1} % of what it suffers gone.",
                capital(&way.what),
                way.added,
                100.0 * way.gone
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { name, size, align, source, .. } = &self.layout;
        let unit = self.verdict.unit;
        let lines = size.div_ceil(unit);
        writeln!(f, "struct {name}: {size} bytes, {lines} lines of {unit} ({source})")?;
        let workload = if self.workload.is_empty() { "the profile" } else { &self.workload };
        writeln!(f, "{workload} on {}", self.machine)?;
        self.draw(f)?;
        if *align < unit {
            writeln!(
                f,
                "Lines are counted from its start, and it is aligned to {align}: its allocator decides."
            )?;
        }
        let sufferers = self.sufferers();
        if sufferers.is_empty() {
            return writeln!(f, "No field suffers from another field of its line.");
        }
        for field in sufferers {
            self.blame(f, field, "read", &field.blame, (field.read_ns, field.read_alone_ns))?;
            self.blame(f, field, "write", &field.write_blame, (field.write_ns, field.write_alone_ns))?;
        }
        for (line, busy) in &self.verdict.busy {
            writeln!(
                f,
                "Line {line} travels {:.0} % of the time: with a few more touches, cores wait for it without bound.",
                100.0 * busy
            )?;
        }
        self.ways_out(f)?;
        writeln!(f, "Fields that the profile does not name are taken for untouched.")
    }
}

/// Whether two ranges of bytes, each an offset and a size, have a byte in common. A range without bytes counts as one
/// byte.
fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.0 + b.1.max(1) && b.0 < a.0 + a.1.max(1)
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// A rate in whole numbers below 10 000, else with one decimal and `k`, `M` or `G`. Empty if it is 0.
fn rate(per_s: f64) -> String {
    match per_s {
        0.0 => String::new(),
        x if x >= 1e9 => format!("{:.1} G", x / 1e9),
        x if x >= 1e6 => format!("{:.1} M", x / 1e6),
        x if x >= 1e4 => format!("{:.1} k", x / 1e3),
        x => format!("{x:.0}"),
    }
}
