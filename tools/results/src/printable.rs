//! Makes text from outside safe to print: it only fills cells of the terminal.
//!
//! Names come from other processes, from files and from results. A control character can move the cursor or send
//! commands to the terminal, a bidi mark reorders the text beside it, and a character without width is not visible.
//!
//! # Source
//!
//! Unicode 16: the categories `Cc`, `Zl`, `Zp` and `Cf`, and `Default_Ignorable_Code_Point`.

use std::fmt::Write;

/// Whether a character does more to a terminal than fill its cells. A joiner between two emoji counts as such a
/// character.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Format characters of scripts, soft hyphens, fillers.
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
            | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{3164}' | '\u{ffa0}'
            // Spaces without a width, marks of direction, line and paragraph separators, isolates, invisible operators.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            // Variation selectors, the byte order mark, interlinear annotations.
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            // Format characters of scripts, shorthand and music beyond the first plane.
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            // Tags, and the other ignorable code points of their plane.
            | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the text with `instead` in the place of each character for which [`is_unprintable`] is true.
pub fn printable(text: &str, instead: char) -> String {
    text.chars().map(|c| if is_unprintable(c) { instead } else { c }).collect()
}

/// Rewrites JSON to one printable line with the same meaning. `json` must be valid: an unprintable character that is
/// escaped here is then inside a string.
pub fn printable_json(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // These are between values: JSON forbids them in a string.
            '\n' | '\r' | '\t' => line.push(' '),
            c if is_unprintable(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(line, "\\u{unit:04x}").expect("a string takes everything");
                }
            }
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At least one of each kind: controls, separators, marks of direction, isolates, characters without width, tags.
    const BAD: &str = "\0\u{1b}\u{7f}\u{9b}\u{2028}\u{2029}\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}\u{200b}\
                       \u{200d}\u{2060}\u{feff}\u{fe0f}\u{fff9}\u{ad}\u{3164}\u{180e}\u{e0001}\u{e0041}\u{e007f}\u{e0100}";

    #[test]
    fn what_steers_reorders_or_hides_is_not_printed_and_the_rest_is() {
        for c in BAD.chars() {
            assert!(is_unprintable(c), "U+{:04X}", c as u32);
        }
        let good = "orders, заказы, 注文, طلبات, 2 × ½ µs · é e\u{301} \u{fffd} 🦀";
        assert_eq!(printable(good, ' '), good);
        assert_eq!(printable("a\u{202e}b\u{1b}[2J\nc", '?'), "a?b?[2J?c");
    }

    #[test]
    fn json_means_the_same_in_one_line_without_them() {
        let value = serde_json::json!({ "name": BAD, "of": [1, "a\nb"] });
        let mut json = serde_json::to_string_pretty(&value).unwrap();
        json.push('\n');
        let line = printable_json(&json);
        assert!(!line.contains(is_unprintable), "{line:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }
}
