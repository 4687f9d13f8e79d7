use super::*;
use crate::Mark;

#[test]
fn every_row_names_the_chosen_length_of_a_turn() {
    let machine = warmcore_sim::machine::SimMachine::named("ryzen7950x").ok();
    let table = table(&Options { machine, seeds: 0..1, quick: true, ..Options::default() });
    for row in &table.rows {
        assert_eq!((row.inputs[0], row.mark()), (KNEW, Mark::Fitted), "{row:?}");
        let chooses = row.name.contains(", at ");
        assert_eq!(row.inputs.contains(&CHOSEN), chooses, "{row:?}");
        assert!(
            row.null.is_none_or(|null| null != row.simulated || !row.name.starts_with("storm")),
            "{row:?}"
        );
    }
    // The notes about the rows have to agree with the rows.
    let gain = table.rows.iter().find(|row| row.name == "85 %, gain").unwrap();
    assert!(table.notes[0].contains(&format!("by {:+.1} % at 85 %", gain.simulated)), "{:?}", table.notes);
}

fn few(windows: Windows) -> Trips {
    let machine = warmcore_sim::machine::SimMachine::named("ryzen7950x").unwrap();
    let shape = Shape { pairs: 4, turn: TURN, data_kib: 0, windows, hz: HZ };
    pairs(&machine, Kernel::default(), 1, shape)
}

#[test]
fn a_run_ends_when_two_successive_windows_agree_and_says_so_if_none_do() {
    // Few pairs never move: the second window agrees with the first.
    let settled = few(Windows::ms(5, 400));
    assert!(settled.is_settled && settled.until == Nanos(20_000_000), "{settled:?}");
    // A single window has none to agree with.
    let alone = few(Windows::ms(5, 10));
    assert!(!alone.is_settled && alone.until == Nanos(10_000_000), "{alone:?}");
    assert_eq!(transients(&[settled, alone]), 1);
}
