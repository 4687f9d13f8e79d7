//! A chart of points that belong to groups: one figure of each against another.

use super::{INDENT, Ink, SIDE, WIDTH, alone, draw_legend, drawn, line, mark, nice, short, text};
use plotters::style::text_anchor::HPos;

/// A group of points of a [`scatter`].
#[derive(Debug, Clone, PartialEq)]
pub struct Cloud {
    /// Its name in the legend.
    pub name: String,
    /// Horizontal and vertical.
    pub points: Vec<(f64, f64)>,
}

/// A chart for a file of its own; `x` and `y` name the axes. The first group has Warmcore's colour.
pub fn scatter(groups: &[Cloud], x: &str, y: &str) -> String {
    let top = 24 * groups.len().div_ceil(2) as i32 + 36;
    let height = top as u32 + 300;
    let (left, right, bottom) = (70, (WIDTH - SIDE) as i32, height as i32 - 60);
    let points = || groups.iter().flat_map(|group| group.points.iter().copied());
    let most = points().fold(0.0_f64, |most, (x, _)| most.max(x));
    let (least_y, most_y) = points().fold((f64::MAX, f64::MIN), |(a, b), (_, y)| (a.min(y), b.max(y)));
    let across = nice(0.0, most.max(1e-9));
    let up = if least_y > most_y { (0.0, 1.0) } else { nice(least_y, most_y) };
    let place = |value: f64, (low, high): (f64, f64), from: i32, to: i32| {
        from + ((value - low) / (high - low) * f64::from(to - from)).round() as i32
    };
    let at = |(x, y): (f64, f64)| (place(x, across, left, right), place(y, up, bottom, top));
    let ticks = |(low, high): (f64, f64)| (0..=4).map(move |i| low + (high - low) * f64::from(i) / 4.0);
    alone(&drawn(height, &format!("{y} against {x}"), |area| {
        draw_legend(area, 16, 2, groups.iter().enumerate().map(|(class, group)| (class, &*group.name)));
        text(area, (INDENT, top - 20), y, Ink::QUIET, HPos::Left);
        for tick in ticks(up) {
            let (_, at) = at((0.0, tick));
            line(area, (left, at), (right, at), Ink::LINE, 1);
            text(area, (left - 12, at), &short(tick), Ink::QUIET, HPos::Right);
        }
        for tick in ticks(across) {
            let (at, _) = at((tick, up.0));
            line(area, (at, top), (at, bottom), Ink::LINE, 1);
            text(area, (at, bottom + 18), &short(tick), Ink::QUIET, HPos::Center);
        }
        text(area, (right, bottom + 42), x, Ink::QUIET, HPos::Right);
        for (class, group) in groups.iter().enumerate() {
            group.points.iter().for_each(|point| mark(area, at(*point), class));
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_is_drawn_and_each_group_is_named() {
        let group = |name: &str, points: &[(f64, f64)]| Cloud { name: name.into(), points: points.to_vec() };
        let marks = |svg: &str| {
            svg.matches("<circle").count() + svg.matches("<rect").count() + svg.matches("<poly").count()
        };
        let empty = scatter(&[group("a", &[]), group("b", &[])], "x", "y");
        let full = scatter(&[group("a", &[(1.0, 70.0), (2.0, 72.0)]), group("b", &[(0.5, 80.0)])], "x", "y");
        assert!(marks(&full) >= marks(&empty) + 3, "{full}");
        assert!(
            full.contains("\na\n") && full.contains("\nb\n") && full.contains("prefers-color-scheme:dark")
        );
    }
}
