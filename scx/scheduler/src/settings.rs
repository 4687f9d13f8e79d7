//! Settings: parsing `NAME=VALUE`, listing them, and reading and writing those of the running program.
//!
//! The program's struct has one u64 per setting in the order of [`SETTINGS`]; both come from `settings.h`.

use crate::tables::{SETTINGS, Setting};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;

/// Values of `mode`, by number.
const MODES: [&str; 4] = ["warm", "nosteal", "first-idle", "shared-queue"];

/// A setting and the value it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// The position in [`SETTINGS`].
    pub index: usize,
    /// The value, within the setting's bounds.
    pub value: u64,
}

/// Parses `NAME=VALUE`. A switch takes `on` and `off`, `mode` takes names.
///
/// # Errors
/// Returns an error with the nearest name if the name is unknown, and with the bounds if the value is outside.
pub fn parse(text: &str) -> Result<Assignment> {
    let (name, value) = text
        .split_once('=')
        .with_context(|| format!("`{text}` is not NAME=VALUE; `scx_warm --list` prints the names"))?;
    let Some(index) = SETTINGS.iter().position(|s| s.name == name) else {
        let nearest = SETTINGS.iter().min_by_key(|s| distance(s.name, name)).map_or("", |s| s.name);
        bail!("no setting is called `{name}`: did you mean `{nearest}`? `scx_warm --list` prints all");
    };
    let setting = &SETTINGS[index];
    let value = match value {
        "on" | "true" => 1,
        "off" | "false" => 0,
        _ if name == "mode" && MODES.contains(&value) => {
            MODES.iter().position(|m| *m == value).unwrap_or(0) as u64
        }
        _ => match value.parse() {
            Ok(value) => value,
            Err(_) => bail!(
                "`{value}` is no value of {name}: expected {} to {} ({})",
                setting.least,
                setting.greatest,
                setting.unit
            ),
        },
    };
    if value < setting.least || value > setting.greatest {
        bail!(
            "{name}={value} is out of bounds: expected {} to {} ({})",
            setting.least,
            setting.greatest,
            setting.unit
        );
    }
    Ok(Assignment { index, value })
}

/// Returns the number of edits that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replace = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Returns every setting with its default, unit and effect: one line each.
pub fn list() -> String {
    let mut text = String::new();
    for Setting { name, default, unit, what, .. } in &SETTINGS {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{:<24} {unit}: {what}", format!("{name}={default}"));
    }
    text
}

/// The program's struct of settings in the memory that it shares with the loader.
#[derive(Debug)]
pub struct Shared(*mut u64);

impl Shared {
    /// Wraps the struct at `first`.
    ///
    /// # Safety
    /// At `first` stand `SETTINGS.len()` u64s, which outlive the result and are not borrowed meanwhile.
    pub unsafe fn new(first: *mut u64) -> Self {
        Self(first)
    }

    /// Writes a setting. The program sees it at its next decision.
    pub fn set(&mut self, a: Assignment) {
        assert!(a.index < SETTINGS.len(), "{} is no setting", a.index);
        // SAFETY: the index is below the number of u64s; the program reads them at any time, as aligned words.
        unsafe { self.0.add(a.index).write_volatile(a.value) }
    }

    /// Returns the values, in the order of [`SETTINGS`].
    pub fn values(&self) -> Vec<u64> {
        // SAFETY: as in `set`.
        (0..SETTINGS.len()).map(|i| unsafe { self.0.add(i).read_volatile() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_parsed_by_name() {
        let a = parse("hand_us=250").expect("a known name");
        assert_eq!((SETTINGS[a.index].name, a.value), ("hand_us", 250));
        assert_eq!(parse("mode=shared-queue").expect("a mode").value, 3);
        assert_eq!(parse("steal=off").expect("a switch").value, 0);
    }

    #[test]
    fn an_unknown_name_gets_the_nearest_one() {
        let error = parse("hand_ovr=1").expect_err("no such name").to_string();
        assert!(error.contains("did you mean `hand_over`"), "{error}");
    }

    #[test]
    fn a_value_out_of_bounds_is_refused_with_the_bounds() {
        let error = parse("wait_pct=101").expect_err("above 100").to_string();
        assert!(error.contains("expected 0 to 100"), "{error}");
        assert!(parse("slice_us").is_err());
        assert!(parse("slice_us=fast").is_err());
    }

    #[test]
    fn defaults_are_within_their_bounds() {
        for s in &SETTINGS {
            assert!((s.least..=s.greatest).contains(&s.default), "{}", s.name);
        }
    }
}
