use super::*;
use warmcore_papers::{Row, runtime};

/// Two sizes of one load, in which each number says where it stands.
pub(in super::super) fn table() -> Table<JsonRow> {
    let mut rows = Vec::new();
    for (cpus, scale) in [(2, 1.0), (384, 100.0)] {
        for (at, side) in Side::ALL.iter().enumerate() {
            for (figure, unit, _) in FIGURES {
                if *side == Side::PerCore && figure.starts_with("moved") {
                    continue;
                }
                let number = match unit {
                    "percent" => 10.0 + at as f64,
                    "ns" => 2_000.0 * (1 + at) as f64,
                    _ => 50.0 * scale - at as f64,
                };
                let name = format!("{cpus} CPUs, warm sets, 50 %, {}, {figure}", side.name());
                rows.push(Row::of(name, unit, vec![number; 3]).beside_null(1_000.0));
            }
        }
    }
    let notes = vec!["lengths are estimates".to_owned()];
    let (name, machine) = (runtime::NAME.to_owned(), "epyc9654_2p".to_owned());
    Table { name, machine, source: "not published".to_owned(), rows, notes }.into()
}

#[test]
fn the_text_has_all_sides_of_a_point_in_a_line() {
    let text = text(&table());
    let line = text.lines().find(|line| line.contains("warm sets, 50 %") && line.contains("384")).unwrap();
    let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(
        cells,
        [
            "warm sets, 50 %",
            "384",
            "5.00 M/s",
            "5.00 M/s",
            "5.00 M/s",
            "1.00 M/s",
            "2.00 µs",
            "4.00 µs",
            "6.00 µs",
            "1.00 µs",
            "2.00 µs",
            "4.00 µs",
            "6.00 µs",
            "1.00 µs",
            "20 %",
            "22 %"
        ],
        "{text}"
    );
    assert!(text.contains("Medians of 3 seeds") && text.contains("lengths are estimates"), "{text}");
}

#[test]
fn a_load_has_a_curve_of_each_side_and_of_the_bound_for_each_figure() {
    let table = table();
    let page = page(&table);
    assert_eq!((page.loads.len(), page.lines.len(), page.seeds), (1, 2, 3));
    let part = &page.loads[0].parts[0];
    assert_eq!((part.percent, part.charts.len()), (50, 4));
    for (what, svg) in &part.charts {
        for name in ["Warmcore", "tokio&apos;s rules", "per core", "bound"] {
            let plain = name.replace("&apos;", "'");
            assert!(
                svg.contains(name) || svg.contains(&plain) || svg.contains("tokio&#39;s rules"),
                "{what}: {name}"
            );
        }
    }
}

#[test]
fn a_name_of_another_form_is_no_point() {
    for name in ["8 threads, 200 ms, kept", "2 CPUs, warm sets, 50 %, Warmcore", "x CPUs, a, 5 %, b, c", ""] {
        assert!(parts(name).is_none(), "{name}");
    }
    let point = Name { load: "a", percent: 5, cpus: 2 };
    assert_eq!(parts("2 CPUs, a, 5 %, b, c"), Some((point, "b", "c")));
}
