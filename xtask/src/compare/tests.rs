use super::*;

const NAMES: [&str; 2] = ["warmcore new", "warmcore old"];

fn row(metric: &str, unit: &str, value: f64) -> Row {
    Row::exact("x", "warmcore", metric, unit, value, 1)
}

/// Compares two sides whose rates and times in a round these functions give, and counts the slices.
fn compared(rate: fn(usize, usize) -> f64, time: fn(usize, usize) -> f64) -> (Vec<Compared>, usize) {
    let mut slices = 0;
    let compared = compare("x", NAMES, &mut Orders::new(2), |round, side| {
        slices += 1;
        Ok(vec![
            row("polls", "k/s", rate(round, side)),
            row("largest ÷ smallest", "x", 1.0),
            row("CPU per operation", "ns", time(round, side)),
            row("errors", "errors", 0.0),
        ])
    });
    (compared.unwrap(), slices)
}

fn verdicts(compared: &[Compared]) -> Vec<(&str, Verdict)> {
    compared.iter().map(|it| (&*it.samples.metric, it.look.verdict)).collect()
}

#[test]
fn a_case_ends_at_the_first_look_that_decides_all_its_metrics() {
    // A round is slow on both sides or on none, so the ratio stays; the time differs between the sides.
    let rate = |round: usize, _: usize| [100.0, 300.0][round % 2];
    let (level, slices) = compared(rate, |_, side| [110.0, 100.0][side]);
    assert_eq!(verdicts(&level), [("polls", Verdict::Level), ("CPU per operation", Verdict::Behind)]);
    assert_eq!(slices, 2 * 16);
    let (behind, slices) = compared(|_, side| [90.0, 100.0][side], |_, side| [50.0, 100.0][side]);
    assert_eq!(verdicts(&behind), [("polls", Verdict::Behind), ("CPU per operation", Verdict::Ahead)]);
    assert_eq!(slices, 2 * 16);
    // Every fourth ratio is 2 and the others are 1: the first interval includes 2, a later one does not.
    let (late, slices) =
        compared(|round, side| if side == 0 && round % 4 == 0 { 2.0 } else { 1.0 }, |_, _| 1.0);
    assert_eq!(verdicts(&late)[0].1, Verdict::Level);
    assert_eq!(slices, 2 * 64);
    // The time alone is decided late.
    let (late, slices) =
        compared(|_, _| 1.0, |round, side| if side == 0 && round % 4 == 0 { 2.0 } else { 1.0 });
    assert_eq!((late[0].look.verdict, late[1].look.verdict), (Verdict::Level, Verdict::Level));
    assert_eq!(slices, 2 * 64);
    // The ratio is 0.5 or 2: no number of rounds decides.
    let (never, slices) = compared(|round, side| [1.0, 2.0][(round + side) % 2], |_, _| 1.0);
    assert_eq!((verdicts(&never)[0].1, slices), (Verdict::Undecided, 2 * 128));
}

#[test]
fn the_text_and_the_rows_have_what_decided_each_case() {
    let (compared, _) = compared(|_, side| [90.0, 100.0][side], |_, side| [95.5, 100.0][side]);
    let rows: Vec<Row> = compared.iter().flat_map(Compared::rows).collect();
    let ratio = |i: usize| {
        let target = rows[i].target.as_ref().unwrap();
        (&*rows[i].metric, rows[i].median, target.value, target.standing.word())
    };
    assert_eq!(ratio(2), ("ratio, polls", 0.9, 0.95, "missed"));
    assert_eq!(ratio(5), ("ratio, CPU per operation", 0.955, 1.05, "met"));
    let results = results("compare", "cargo xtask compare old x", utc_now(), &LoadMeter::start(), rows);
    let text = text(NAMES, &compared, &results);
    let counts = "0 behind, 0 undecided, 0 not behind, 1 level, 0 ahead.";
    assert!(text.contains(&format!("The other metrics: {counts}")), "{text}");
    assert!(text.contains("| warmcore old | warmcore new ÷ warmcore old: p25 |"), "{text}");
    let line = "| x | polls | 100.0 k/s | 0.900 | 0.900 | 0.900 | 0.900 to 0.900 | behind | 16 |";
    assert!(text.contains(line), "{text}");
    assert!(super::line(&compared[0], Duration::from_secs(2)).starts_with("behind     x "));
}

#[test]
fn each_slice_has_a_line_for_each_number() {
    let rows = [row("polls", "k/s", 2.5), row("CPU per operation", "ns", 4.0)];
    assert_eq!(lines("tokio", &rows), "x\tpolls\tk/s\ttokio\t2.5\nx\tCPU per operation\tns\ttokio\t4.0\n");
}

#[test]
fn a_side_that_answers_errors_or_other_metrics_ends_the_run() {
    let failed = |rows: fn(usize) -> Vec<Row>| {
        let failed = compare("x", NAMES, &mut Orders::new(2), |_, side| Ok(rows(side)));
        format!("{:#}", failed.err().unwrap())
    };
    let errors = failed(|side| vec![row("polls", "k/s", 1.0), row("errors", "errors", side as f64 * 3.0)]);
    assert_eq!(errors, "x on warmcore old: 3 errors");
    let other = failed(|side| vec![row(["polls", "wakes"][side], "k/s", 1.0)]);
    assert!(other.contains("wakes instead of polls") || other.contains("polls instead of wakes"), "{other}");
    let fewer = failed(|side| [vec![row("polls", "k/s", 1.0)], vec![]][side].clone());
    assert!(fewer.contains("0 numbers instead of 1"), "{fewer}");
    assert_eq!(failed(|_| vec![row("moved", "%", 1.0)]), "x has no rate and no time");
}

#[test]
fn cases_are_chosen_by_their_first_words() {
    let names = ["messaging.1", "messaging.16", "warm.yield.chase.4x256K", "warm.sleep.chase.4x256K"];
    let names = names.map(str::to_owned);
    let chosen = |cases: &[&str]| {
        let cases = cases.iter().map(|case| (*case).to_owned()).collect();
        chosen(
            &names,
            &Options { other: String::new(), cases, shared: false, slices: 1, out: PathBuf::new() },
        )
    };
    assert_eq!(chosen(&[]).unwrap().len(), 4);
    assert_eq!(chosen(&["messaging.1"]).unwrap(), ["messaging.1"]);
    assert_eq!(chosen(&["warm.yield", "messaging"]).unwrap(), names[..3]);
    let unknown = chosen(&["messaging.1", "warm.y"]).unwrap_err().to_string();
    assert!(unknown.starts_with("no case is called warm.y; there are messaging.1, "), "{unknown}");
}

#[test]
fn the_time_left_is_that_of_cases_like_those_before() {
    let seconds = |before, so_far| [Duration::from_secs(before), Duration::from_secs(so_far)];
    assert_eq!(left(seconds(0, 0), [0, 3], 0), None);
    // A second a round: 128 seconds a case.
    assert_eq!(left(seconds(0, 8), [0, 3], 8), Some(Duration::from_secs(120 + 2 * 128)));
    assert_eq!(left(seconds(20, 4), [2, 4], 8), Some(Duration::from_secs(6 + 10)));
    assert_eq!(left(seconds(20, 14), [2, 4], 8), Some(Duration::from_secs(10)));
}
