//! File: the numbers of a section, with the tags in its comments.
//!
//! A machine file has the source of a number in the comment at the line's end: `c2c_smt = 9  # [M] measured there`.
//! The TOML parser gives the position where a value ends; the text after a `#` on that line is its comment. A number
//! is an estimate if its comment has no tag, or if any of its tags is `[E]`; else the first tag counts. For example,
//! `2900  # [M] LOCAL` is measured, and `35  # [S] as printed; number [E]` is estimated.

use super::{CostsError, Number, Trust};
use std::collections::BTreeMap;
use toml::de::{DeTable, DeValue};

/// The numbers of a section, with those that it inherits and those of `[defaults]`.
pub(super) struct Section {
    pub(super) numbers: BTreeMap<String, Number>,
    pub(super) states: Vec<String>,
}

/// Reads the section `name`, the sections that it inherits from, and `[defaults]`. The topology was read from the same
/// text before, so the section exists and inheritance has no circle.
pub(super) fn read(text: &str, name: &str) -> Result<Section, CostsError> {
    let file = DeTable::parse(text)
        .map_err(|e| CostsError::new("machine file", e.to_string().trim(), "mend the TOML"))?;
    let mut section = Section { numbers: BTreeMap::new(), states: Vec::new() };
    let mut next = Some(name.to_owned());
    while let Some(name) = next.take() {
        let Some(table) = file.get_ref().get(name.as_str()).and_then(|v| v.get_ref().as_table()) else {
            break;
        };
        fill(&mut section, text, &name, table)?;
        next = table.get("inherits").and_then(|v| v.get_ref().as_str()).map(str::to_owned);
    }
    if let Some(table) = file.get_ref().get("defaults").and_then(|v| v.get_ref().as_table()) {
        fill(&mut section, text, "defaults", table)?;
    }
    Ok(section)
}

/// Adds the numbers that the section does not have yet, and the idle states if it has none yet.
fn fill(section: &mut Section, text: &str, name: &str, table: &DeTable<'_>) -> Result<(), CostsError> {
    let had_states = !section.states.is_empty();
    for (key, value) in table {
        let (key, end) = (key.get_ref().as_ref(), value.span().end);
        let location = || {
            let line = text[..value.span().start].matches('\n').count() + 1;
            format!("machine file [{name}], line {line}")
        };
        let (trust, basis) = tagged(comment(text, end));
        let number = |milli| Number { milli, trust, basis: basis.to_owned() };
        match value.get_ref() {
            DeValue::Array(states) if key == "cstates" => {
                if had_states {
                    continue;
                }
                for state in states {
                    let parts = state.get_ref().as_array().map(|state| state.iter().map(|v| v.get_ref()));
                    let parts: Vec<&DeValue<'_>> = parts.into_iter().flatten().collect();
                    let [DeValue::String(name), exit, residency] = parts[..] else {
                        let (fact, next) =
                            ("has a state that is none", "write [\"C1\", exit ns, residency ns]");
                        return Err(CostsError::new(location(), format!("`{key}` {fact}"), next));
                    };
                    for (what, value) in [("exit", exit), ("residency", residency)] {
                        let milli = milli(value)
                            .unwrap_or(Err(NO_NUMBER))
                            .map_err(|fact| bad(location(), key, fact))?;
                        section.numbers.insert(format!("cstates.{name}.{what}"), number(milli));
                    }
                    section.states.push(name.to_string());
                }
            }
            value => {
                let Some(milli) = milli(value) else {
                    if key.starts_with("c2c_") || key.starts_with("dram_") || key.ends_with("_cycles") {
                        return Err(bad(location(), key, NO_NUMBER));
                    }
                    continue;
                };
                let milli = milli.map_err(|fact| bad(location(), key, fact))?;
                section.numbers.entry(key.to_owned()).or_insert_with(|| number(milli));
            }
        }
    }
    Ok(())
}

const NO_NUMBER: &str = "is no number";

fn bad(location: String, key: &str, fact: &str) -> CostsError {
    CostsError::new(location, format!("`{key}` {fact}"), "write a number that is 0 or more")
}

/// A value in thousandths. `None` if it is neither an integer nor a float; an error if it is NaN, negative or too
/// large.
fn milli(value: &DeValue<'_>) -> Option<Result<u64, &'static str>> {
    const TOO_MUCH: &str = "is more than a cost can be";
    let milli = match value {
        DeValue::Integer(n) => {
            let n = i64::from_str_radix(n.as_str(), n.radix());
            n.map_or(Err(TOO_MUCH), |n| Ok(n as f64 * 1000.0))
        }
        DeValue::Float(x) => x.as_str().parse::<f64>().map_or(Err(NO_NUMBER), |x| Ok(x * 1000.0)),
        _ => return None,
    };
    Some(milli.and_then(|milli| match () {
        _ if milli.is_nan() => Err(NO_NUMBER),
        _ if milli < 0.0 => Err("is negative"),
        // The limit is a thousand seconds for a time, so that sums of many costs fit into 64 bits.
        _ if milli > 1e15 => Err(TOO_MUCH),
        _ => Ok(milli.round() as u64),
    }))
}

/// The text after a `#` on the line where a value ends.
fn comment(text: &str, end: usize) -> &str {
    let line = text[end..].lines().next().unwrap_or("");
    line.split_once('#').map_or("", |(_, comment)| comment.trim())
}

/// The trust in a number, by the tags of its comment.
fn tagged(comment: &str) -> (Trust, &str) {
    let tags = comment.split('[').skip(1).filter_map(|rest| {
        let mut chars = rest.chars();
        let trust = Trust::of(chars.next()?)?;
        matches!(chars.next(), Some(']' | ' ')).then_some(trust)
    });
    let tags: Vec<Trust> = tags.collect();
    let trust = match tags.contains(&Trust::Estimated) {
        true => Trust::Estimated,
        false => tags.first().copied().unwrap_or(Trust::Estimated),
    };
    (trust, comment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_says_how_far_its_number_is_to_be_trusted() {
        for (text, trust) in [
            ("[M] C2C#132: 22..25", Trust::Measured),
            ("[S issue C2C#106 lscpu]; TSC", Trust::Said),
            ("[R] (all-core 2700 [R])", Trust::Recalled),
            ("[S] \"similar\"; number [E] Genoa 100", Trust::Estimated),
            ("[D] same file; [E] in truth", Trust::Estimated),
            ("without one", Trust::Estimated),
            ("", Trust::Estimated),
            ("numa [10,16,32] [D] gist", Trust::Documented),
            ("[Mail] is no tag", Trust::Estimated),
        ] {
            assert_eq!(tagged(text).0, trust, "{text}");
        }
    }

    #[test]
    fn a_comment_is_what_follows_its_own_value() {
        let text = "[m]\nmodel = \"a # b [S]\" # [R] c\nx = [1, # [S]\n 2] # [D] d\ny = 3\n# [M] not y's\n";
        let file = DeTable::parse(text).unwrap();
        let table = file.get_ref().get("m").unwrap().get_ref().as_table().unwrap();
        let of = |key: &str| comment(text, table.get(key).unwrap().span().end);
        assert_eq!((of("model"), of("x"), of("y")), ("[R] c", "[D] d", ""));
    }
}
