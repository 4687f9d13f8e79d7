//! Relayout: the cheapest layout that removes at least 95 % of the excess cost ([`Verdict::excess_ns_per_s`]: what
//! touches cost beyond those of fields on lines of their own).
//!
//! A field moves into a hole of another line, or is exchanged with a field of the same size on another line; or a few
//! fields move to lines of their own after or before all others. All other fields stay at their offset in their line,
//! except an array of unknown length, which stays the last field. Each candidate is analyzed. The cheapest one adds the
//! fewest bytes, then moves the fewest fields, then has the lowest cost of all touches. A candidate whose total cost is
//! not below that of the given layout is dropped. If no single move is enough, the best one is made and the search
//! continues from there, up to six moves, as long as each removes more than 1 % of the excess that is left. A struct of
//! 140 fields of which four are touched has about 300 candidates.
//!
//! An exchange is only safe if the profile is complete: a field that the profile does not name counts as untouched.
//! The report states this.

use super::{Analyzer, FieldCost, Verdict};
use crate::{Layout, LayoutError};
use serde::Serialize;

/// The least share of the excess cost that a layout has to remove.
const GONE: f64 = 0.95;
/// The most moves in a row.
const STEPS_MAX: usize = 6;

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayoutKind {
    /// Into bytes that no field uses.
    Hole,
    /// In exchange with a field of the same size on another line.
    Exchange,
    /// To one or more lines of its own after all others; an array of unknown length stays behind it.
    End,
    /// To one or more lines of its own before all others.
    Front,
    /// Several of the changes above, one after the other.
    Several,
    /// A line of padding after the field whose reads suffer most: useless if the culprit is before it.
    PadAfter,
}

/// Another layout of the same struct.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Relayout {
    /// The kind of change.
    pub kind: RelayoutKind,
    /// What to do, in words.
    pub what: String,
    /// The fields that are moved, by name; empty for padding.
    pub moved: Vec<String>,
    /// Bytes added to the given layout.
    pub added: isize,
    /// The share of the excess cost that it removes; for padding, of the excess cost of the reads of the field before
    /// the padding. Negative if the cost grows.
    pub gone: f64,
    /// The layout.
    pub layout: Layout,
    /// What the touches cost in it.
    pub verdict: Verdict,
}

impl Relayout {
    /// Whether `gone` is at least 0.95.
    pub fn helps(&self) -> bool {
        self.gone >= GONE
    }

    fn price(&self) -> (isize, usize, u64, RelayoutKind) {
        // In whole µs per second: smaller differences do not decide.
        (self.added, self.moved.len(), (self.verdict.ns_per_s / 1000.0) as u64, self.kind)
    }
}

/// Layouts that remove at least 95 % of the excess cost, the cheapest of each kind, in ascending order; then, if reads
/// of a field suffer, padding after the field whose reads suffer most, whether or not it helps. Empty if no field
/// suffers.
///
/// # Errors
///
/// A field that the layout does not have.
pub fn relayouts(analyzer: &Analyzer, layout: &Layout) -> Result<Vec<Relayout>, LayoutError> {
    let before = analyzer.verdict(layout)?;
    if !before.fields.iter().any(FieldCost::suffers) {
        return Ok(Vec::new());
    }
    let mut found: Vec<Relayout> = Vec::new();
    // The moves so far, as long as they are not enough.
    let mut best: Option<Relayout> = None;
    for _ in 0..STEPS_MAX {
        let from = best.as_ref().map_or((layout, &before), |best| (&best.layout, &best.verdict));
        let mut tried = Vec::new();
        for candidate in candidates(analyzer, from) {
            let verdict = analyzer.verdict(&candidate.layout)?;
            if verdict.ns_per_s < before.ns_per_s {
                let gone = 1.0 - verdict.excess_ns_per_s / before.excess_ns_per_s;
                let added = candidate.layout.added_to(layout);
                tried.push(candidate.after(best.as_ref(), added, gone, verdict));
            }
        }
        if tried.iter().any(Relayout::helps) {
            tried.into_iter().filter(Relayout::helps).for_each(|relayout| keep(&mut found, relayout));
            break;
        }
        // No single move is enough: take the one that removes most, and of those that leave the same thousandth of the
        // excess the cheapest.
        let excess = |relayout: &Relayout| relayout.verdict.excess_ns_per_s;
        let next = tried.into_iter().min_by_key(|relayout| {
            ((excess(relayout) / before.excess_ns_per_s * 1000.0) as u64, relayout.price())
        });
        let so_far = best.as_ref().map_or(before.excess_ns_per_s, excess);
        best = next.filter(|next| excess(next) < 0.99 * so_far);
        if best.is_none() {
            break;
        }
    }
    found.sort_by_key(Relayout::price);
    found.extend(pad_after(analyzer, layout, &before)?);
    Ok(found)
}

/// Adds `new` to `found` unless `found` has a cheaper one of its kind, which `new` replaces if it is cheaper.
fn keep(found: &mut Vec<Relayout>, new: Relayout) {
    match found.iter_mut().find(|old| old.kind == new.kind) {
        Some(old) if new.price() < old.price() => *old = new,
        Some(_) => {}
        None => found.push(new),
    }
}

/// One move: of one field, of two that are exchanged, or of several to lines of their own.
struct Candidate {
    kind: RelayoutKind,
    what: String,
    moved: Vec<String>,
    layout: Layout,
}

impl Candidate {
    /// The layout after this move and the ones before it.
    fn after(self, before: Option<&Relayout>, added: isize, gone: f64, verdict: Verdict) -> Relayout {
        let Self { mut kind, mut what, mut moved, layout } = self;
        if let Some(before) = before {
            kind = RelayoutKind::Several;
            what = format!("{}; {what}", before.what);
            moved.extend(before.moved.iter().cloned());
        }
        moved.sort();
        moved.dedup();
        Relayout { kind, what, moved, added, gone, layout, verdict }
    }
}

/// Every move of a field that suffers (its touches cost more than on lines of its own) or is a culprit; and of all
/// culprits of one field's reads, or of its writes, together, which only move to the end or to the front.
fn candidates(analyzer: &Analyzer, (layout, verdict): (&Layout, &Verdict)) -> Vec<Candidate> {
    let unit = analyzer.unit();
    let hot = analyzer.hot(layout);
    let mut sets: Vec<Vec<usize>> = Vec::new();
    let number = |name: &str| layout.byte_range(name).ok().map(|range| range.field);
    for field in &verdict.fields {
        for blames in [&field.blame, &field.write_blame] {
            if blames.is_empty() {
                continue;
            }
            let mut culprits: Vec<usize> = blames.iter().filter_map(|b| number(&b.field)).collect();
            sets.extend(culprits.iter().map(|f| vec![*f]));
            sets.extend(number(&field.name).map(|f| vec![f]));
            culprits.sort_unstable();
            culprits.dedup();
            sets.push(culprits);
        }
    }
    sets.sort();
    sets.dedup();
    let mut candidates = Vec::new();
    for set in sets {
        let names: Vec<String> = set.iter().map(|f| layout.fields[*f].name.clone()).collect();
        let said = names.join(" and ");
        let mut add = |kind, what: String, layout: Layout| {
            candidates.push(Candidate { kind, what, moved: names.clone(), layout });
        };
        let behind = match layout.flexible().filter(|last| !set.contains(last)) {
            Some(last) => format!(", {} behind it", layout.fields[last].name),
            None => String::new(),
        };
        let what = format!("give {said} a line of its own at the end{behind}");
        add(RelayoutKind::End, what, layout.at_the_end(&set, unit));
        if layout.flexible().is_some_and(|last| set.contains(&last)) {
            continue; // An array of unknown length has to be the last field.
        }
        let what = format!("give {said} a line of its own in front");
        add(RelayoutKind::Front, what, layout.in_front(&set, unit));
        let &[only] = set.as_slice() else { continue };
        let field = &layout.fields[only];
        let home = field.offset / unit;
        for hole in layout.holes() {
            // The first aligned offset in each line that the hole reaches.
            for line in hole.offset / unit..(hole.offset + hole.size).div_ceil(unit) {
                let at = hole.offset.max(line * unit).next_multiple_of(field.align);
                if line != home
                    && at + field.size <= hole.offset + hole.size
                    && let Some(to) = layout.with(&[(only, at)])
                {
                    add(RelayoutKind::Hole, format!("move {said} into the hole at byte {at}"), to);
                }
            }
        }
        for (number, other) in layout.fields.iter().enumerate() {
            let fits = other.size == field.size && other.offset / unit != home;
            if number == only || !fits {
                continue;
            }
            // The other field may be a touched one: the analysis shows what its new place costs.
            if let Some(to) = layout.with(&[(only, other.offset), (number, field.offset)]) {
                let cold = if hot.contains(&number) { "" } else { ", which is untouched" };
                let what = format!("exchange {said} and {}{cold}", other.name);
                let moved = vec![field.name.clone(), other.name.clone()];
                candidates.push(Candidate { kind: RelayoutKind::Exchange, what, moved, layout: to });
            }
        }
    }
    candidates
}

fn pad_after(
    analyzer: &Analyzer,
    layout: &Layout,
    before: &Verdict,
) -> Result<Option<Relayout>, LayoutError> {
    let excess = |f: &&FieldCost| (f.read_ns - f.read_alone_ns) * f.reads_per_s;
    let worst = before.fields.iter().filter(|f| !f.blame.is_empty());
    let Some(worst) = worst.max_by(|a, b| excess(a).total_cmp(&excess(b))) else { return Ok(None) };
    let range = layout.byte_range(&worst.name)?;
    let padded = layout.padded_after(range.field, analyzer.unit());
    let verdict = analyzer.verdict(&padded)?;
    // The effect on the reads of this field, not on others.
    let after = verdict.field(&worst.name).map_or(worst.read_ns, |f| f.read_ns);
    let gone = (worst.read_ns - after) / (worst.read_ns - worst.read_alone_ns);
    Ok(Some(Relayout {
        kind: RelayoutKind::PadAfter,
        what: format!("a line of padding after {}", worst.name),
        moved: Vec::new(),
        added: padded.added_to(layout),
        gone,
        layout: padded,
        verdict,
    }))
}
