//! Relayout: the cheapest layout in which no field suffers from another one.
//!
//! A few fields move, and all others stay at their offset in their line: into a hole of another line, in exchange
//! with a field of the same size there, or to a line of their own after or before all others. Each candidate is
//! analyzed. The cheapest one adds the fewest bytes, then moves the fewest fields, then has the lowest cost of all
//! touches. A candidate with a higher total cost is dropped. If one move is not enough, the best one is made and the
//! search continues from there. A struct of 140 fields of which four are touched has about 300 candidates.
//!
//! An exchange is only safe if the profile is complete: a field that the profile does not name counts as untouched.
//! The report states this.

use super::{Analyzer, Verdict};
use crate::{Layout, LayoutError};
use serde::Serialize;

/// The share of the excess cost that a layout has to remove.
const GONE: f64 = 0.95;
/// The most moves in a row.
const STEPS_MAX: usize = 6;

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayoutKind {
    /// Into bytes that no field uses.
    Hole,
    /// In exchange with a field that is untouched, or touched by the same cores.
    Exchange,
    /// To a line of its own after all others.
    End,
    /// To a line of its own before all others.
    Front,
    /// Several such changes.
    Several,
    /// A line of padding after the field that suffers: useless if the culprit is before it.
    PadAfter,
}

/// Another layout of the same struct.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Relayout {
    /// The kind of change.
    pub kind: RelayoutKind,
    /// What to do, in words.
    pub what: String,
    /// Fields whose offset in their line changed.
    pub moved: Vec<String>,
    /// Bytes added.
    pub added: isize,
    /// The share of the excess cost that it removes.
    pub gone: f64,
    /// The layout.
    pub layout: Layout,
    /// What the touches cost in it.
    pub verdict: Verdict,
}

impl Relayout {
    /// Whether no field suffers any more.
    pub fn helps(&self) -> bool {
        self.gone >= GONE
    }

    fn price(&self) -> (isize, usize, u64, RelayoutKind) {
        // In whole µs per second: smaller differences do not decide.
        (self.added, self.moved.len(), (self.verdict.ns_per_s / 1000.0) as u64, self.kind)
    }
}

/// Layouts without the excess cost, the cheapest of each kind, in ascending order; then padding after the field that
/// suffers most, whether or not it helps. Empty if no field suffers.
///
/// # Errors
///
/// A field that the layout does not have.
pub fn relayouts(analyzer: &Analyzer, layout: &Layout) -> Result<Vec<Relayout>, LayoutError> {
    let before = analyzer.verdict(layout)?;
    let suffers = |v: &Verdict| v.fields.iter().any(|f| !f.blame.is_empty() || !f.write_blame.is_empty());
    if !suffers(&before) {
        return Ok(Vec::new());
    }
    let mut found: Vec<Relayout> = Vec::new();
    let (mut from, mut said) = (layout.clone(), Vec::<(String, Vec<String>)>::new());
    for _ in 0..STEPS_MAX {
        let mut tried = Vec::new();
        for Candidate { kind, what, moved, layout: to } in candidates(analyzer, &from) {
            let verdict = analyzer.verdict(&to)?;
            if verdict.ns_per_s >= before.ns_per_s {
                continue;
            }
            let gone = 1.0 - verdict.excess_ns_per_s / before.excess_ns_per_s;
            let mut all = moved.clone();
            all.extend(said.iter().flat_map(|(_, moved)| moved.clone()));
            all.sort();
            all.dedup();
            let whole: Vec<&str> = said.iter().map(|(w, _)| w.as_str()).chain([what.as_str()]).collect();
            let kind = if said.is_empty() { kind } else { RelayoutKind::Several };
            let relayout = Relayout {
                kind,
                what: whole.join("; "),
                moved: all,
                added: to.added_to(layout),
                gone,
                layout: to,
                verdict,
            };
            tried.push((relayout, (what, moved)));
        }
        let helps = tried.iter().any(|(relayout, _)| relayout.helps());
        if helps {
            for (relayout, _) in tried {
                if relayout.helps() {
                    keep(&mut found, relayout);
                }
            }
            break;
        }
        // No single move is enough: take the one that removes most, and of equal ones the cheapest.
        let best = tried.into_iter().min_by_key(|(relayout, _)| {
            ((relayout.verdict.excess_ns_per_s / before.excess_ns_per_s * 1000.0) as u64, relayout.price())
        });
        let Some((best, step)) = best.filter(|(best, _)| {
            let so_far = analyzer.verdict(&from).map_or(f64::MAX, |v| v.excess_ns_per_s);
            best.verdict.excess_ns_per_s < 0.99 * so_far
        }) else {
            break;
        };
        from = best.layout;
        said.push(step);
    }
    found.sort_by_key(Relayout::price);
    found.extend(pad_after(analyzer, layout, &before)?);
    Ok(found)
}

/// Keeps the cheapest of each kind.
fn keep(found: &mut Vec<Relayout>, new: Relayout) {
    match found.iter_mut().find(|old| old.kind == new.kind) {
        Some(old) if new.price() < old.price() => *old = new,
        Some(_) => {}
        None => found.push(new),
    }
}

struct Candidate {
    kind: RelayoutKind,
    what: String,
    moved: Vec<String>,
    layout: Layout,
}

/// Every move of a field that suffers or is a culprit, and of all culprits of one field together.
fn candidates(analyzer: &Analyzer, layout: &Layout) -> Vec<Candidate> {
    let unit = analyzer.unit();
    let hot = analyzer.hot(layout);
    let Ok(verdict) = analyzer.verdict(layout) else { return Vec::new() };
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
        let mut add = |kind, what: String, moved: Vec<String>, layout: Layout| {
            candidates.push(Candidate { kind, what, moved, layout });
        };
        let end = layout.at_the_end(&set, unit);
        let behind = match layout.flexible().filter(|last| !set.contains(last)) {
            Some(last) => format!(", {} behind it", layout.fields[last].name),
            None => String::new(),
        };
        add(
            RelayoutKind::End,
            format!("give {said} a line of its own at the end{behind}"),
            names.clone(),
            end,
        );
        if layout.flexible().is_some_and(|last| set.contains(&last)) {
            continue; // It has to be the last field.
        }
        let front = layout.in_front(&set, unit);
        add(RelayoutKind::Front, format!("give {said} a line of its own in front"), names.clone(), front);
        let &[only] = set.as_slice() else { continue };
        let field = &layout.fields[only];
        let home = field.offset / unit;
        for hole in layout.holes() {
            // The first offset in each line that the hole reaches.
            for line in hole.offset / unit..(hole.offset + hole.size).div_ceil(unit) {
                let at = hole.offset.max(line * unit).next_multiple_of(field.align);
                if line != home
                    && at + field.size <= hole.offset + hole.size
                    && let Some(to) = layout.with(&[(only, at)])
                {
                    let what = format!("move {said} into the hole at byte {at}");
                    add(RelayoutKind::Hole, what, names.clone(), to);
                }
            }
        }
        for (number, other) in layout.fields.iter().enumerate() {
            let fits = other.size == field.size && other.offset / unit != home;
            if number == only || !fits {
                continue;
            }
            // An untouched field may be anywhere; a touched one is analyzed as all are.
            if let Some(to) = layout.with(&[(only, other.offset), (number, field.offset)]) {
                let cold = if hot.contains(&number) { "" } else { ", which is untouched" };
                let what = format!("exchange {said} and {}{cold}", other.name);
                let moved = vec![field.name.clone(), other.name.clone()];
                add(RelayoutKind::Exchange, what, moved, to);
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
    let excess = |f: &&super::FieldCost| (f.read_ns - f.read_alone_ns) * f.reads_per_s;
    let worst = before.fields.iter().filter(|f| !f.blame.is_empty());
    let Some(worst) = worst.max_by(|a, b| excess(a).total_cmp(&excess(b))) else { return Ok(None) };
    let range = layout.byte_range(&worst.name)?;
    let padded = layout.padded_after(range.field, analyzer.unit());
    let verdict = analyzer.verdict(&padded)?;
    // The effect on the field that suffers, not on others.
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
