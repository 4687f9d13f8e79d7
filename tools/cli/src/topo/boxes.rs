//! Rectangles of text that can be put side by side, one below the other, and into a frame.
//!
//! A block is a list of lines of the same width; every character takes one column. Frames are drawn with Unicode's box
//! characters; [`ascii`] replaces them in the finished drawing for terminals that can't show them. A frame takes 4
//! columns and 2 lines.

/// Lines of the same width.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Block {
    lines: Vec<String>,
    width: usize,
}

impl Block {
    /// Makes a block of the lines, each padded to the length of the longest.
    pub fn new(lines: Vec<String>) -> Self {
        Self::filled(lines, 0)
    }

    fn filled(lines: Vec<String>, at_least: usize) -> Self {
        let width = lines.iter().map(|l| columns(l)).max().unwrap_or(0).max(at_least);
        let fill = |l: String| format!("{l}{}", " ".repeat(width - columns(&l)));
        Self { lines: lines.into_iter().map(fill).collect(), width }
    }

    /// Returns the lines without the padding at their ends.
    pub fn into_lines(self) -> impl Iterator<Item = String> {
        self.lines.into_iter().map(|l| l.trim_end().to_owned())
    }

    /// Draws a frame around the block, with a title in its upper edge.
    pub fn framed(self, title: &str) -> Self {
        let inner = Self::filled(self.lines, columns(title));
        let above = match title {
            "" => "─".repeat(inner.width + 2),
            title => format!(" {title} {}", "─".repeat(inner.width - columns(title))),
        };
        let below = "─".repeat(inner.width + 2);
        let mut lines = vec![format!("┌{above}┐")];
        lines.extend(inner.lines.iter().map(|l| format!("│ {l} │")));
        lines.push(format!("└{below}┘"));
        Self::new(lines)
    }

    /// Stacks the blocks.
    pub fn above_each_other(blocks: impl IntoIterator<Item = Self>) -> Self {
        Self::new(blocks.into_iter().flat_map(|b| b.lines).collect())
    }

    /// Puts the blocks into rows no wider than `width`, if each block fits. Each row but the last has as few blocks as
    /// the least number of rows allows, so that the last row is nearly as full.
    pub fn in_rows(blocks: Vec<Self>, width: usize) -> Self {
        let widest = blocks.iter().map(|b| b.width).max().unwrap_or(0);
        let row = |row: &[Self]| {
            let height = row.iter().map(|b| b.lines.len()).max().unwrap_or(0);
            let line = |i| {
                let part = |b: &Self| b.lines.get(i).cloned().unwrap_or_else(|| " ".repeat(b.width));
                row.iter().map(part).collect::<Vec<_>>().join(" ")
            };
            Self::new((0..height).map(line).collect())
        };
        let across = across(blocks.len(), widest, width);
        Self::above_each_other(blocks.chunks(across).map(row))
    }
}

/// Returns the drawing in which each part has the full `width`; or one with two to four parts side by side, if it is
/// lower by a fifth or more.
pub(super) fn lowest(width: usize, draw: impl Fn(usize) -> Block) -> Block {
    let narrower = (2..=4).map(|across| draw((width + 1) / across - 1)).filter(|b| b.width <= width);
    narrower.fold(
        draw(width),
        |best, next| if next.lines.len() * 5 <= best.lines.len() * 4 { next } else { best },
    )
}

/// Returns how many of `n` items of the width `each`, one column apart, to put into each row of `width`: as few as the
/// least number of rows allows, at least one.
pub(super) fn across(n: usize, each: usize, width: usize) -> usize {
    let fit = ((width + 1) / (each + 1)).max(1);
    n.div_ceil(n.div_ceil(fit).max(1)).max(1)
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Breaks the text into lines no wider than `width`, between words or after a comma, as in lists of CPUs; only a word
/// that is longer, or that does not fit behind the indent, makes a wider line. Lines after the first are indented by
/// `indent`.
pub(super) fn wrap(text: &str, width: usize, indent: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let room = |line: &str, more: &str| columns(line) + columns(more.trim_end()) <= width;
    for part in text.split_inclusive([' ', ',']) {
        let line = lines.last_mut().expect("there is always a line");
        if room(line, part) || line.trim().is_empty() {
            line.push_str(part);
        } else {
            lines.push(" ".repeat(indent) + part);
        }
    }
    lines.into_iter().map(|l| l.trim_end().to_owned()).collect()
}

/// Converts the text to ASCII: box characters become `-`, `|` and `+`, some signs a similar character (`×` an `x`), and
/// other characters `?`.
pub(super) fn ascii(text: &str) -> String {
    let like = |c| match c {
        '─' | '–' | '·' => '-',
        '│' => '|',
        '┌' | '┐' | '└' | '┘' => '+',
        '×' => 'x',
        'µ' => 'u',
        '→' => '>',
        c if c.is_ascii() => c,
        _ => '?',
    };
    text.chars().map(like).collect()
}

/// Replaces control characters but line ends by `?`, since names come from files and could move the cursor.
pub(super) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(block: Block) -> Vec<String> {
        block.into_lines().collect()
    }

    fn block(lines: &[&str]) -> Block {
        Block::new(lines.iter().map(|l| l.to_string()).collect())
    }

    #[test]
    fn a_frame_is_as_wide_as_its_title_needs() {
        assert_eq!(lines(block(&["0 1"]).framed("llc0")), ["┌ llc0 ┐", "│ 0 1  │", "└──────┘"]);
        assert_eq!(lines(block(&["0"]).framed("")), ["┌───┐", "│ 0 │", "└───┘"]);
        assert_eq!(lines(Block::default().framed("none")), ["┌ none ┐", "└──────┘"]);
    }

    #[test]
    fn rows_wrap_and_the_last_is_as_full_as_the_others() {
        let six = || (0..6).map(|i| block(&[&i.to_string(), "x"])).collect::<Vec<_>>();
        // Five blocks would fit into a row, but then the last row would have one.
        assert_eq!(lines(Block::in_rows(six(), 10)), ["0 1 2", "x x x", "3 4 5", "x x x"]);
        assert_eq!(lines(Block::in_rows(vec![block(&["ab"]), block(&["c", "d"])], 80)), ["ab c", "   d"]);
        assert_eq!(lines(Block::in_rows(six(), 0)).len(), 12, "what doesn't fit stands alone");
        assert_eq!(Block::in_rows(Vec::new(), 80), Block::default());
    }

    #[test]
    fn text_wraps_between_words_and_in_lists() {
        assert_eq!(wrap("one two three", 7, 2), ["one two", "  three"]);
        assert_eq!(wrap("CPUs 0-7,16-23,32-39", 12, 2), ["CPUs 0-7,", "  16-23,", "  32-39"]);
        assert_eq!(wrap("unbreakable", 3, 0), ["unbreakable"]);
        assert_eq!(wrap("", 3, 0), [""]);
    }

    #[test]
    fn ascii_is_ascii_and_names_cannot_move_the_cursor() {
        assert_eq!(ascii("┌─┐│ 2× 5 µs –"), "+-+| 2x 5 us -");
        assert!(ascii("Größe → 日本").is_ascii());
        assert_eq!(harmless("a\u{1b}[31mb\nc"), "a?[31mb\nc");
    }
}
