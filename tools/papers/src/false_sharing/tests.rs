use super::*;
use crate::Mark;

fn quick() -> Options {
    Options { seeds: 0..3, quick: true, ..Options::default() }
}

fn sim() -> FalseSharingSim {
    FalseSharingSim::new(&quick())
}

#[test]
fn rows_by_construction_hold_and_are_not_counted() {
    let table = table(&quick());
    for row in table.rows.iter().filter(|row| row.tolerance.is_some()) {
        let tolerance = row.tolerance.as_ref().unwrap();
        assert_eq!(tolerance.allows(row.simulated, row.published), Some(true), "{row:?}");
        assert_eq!((row.mark(), row.is_met()), (Mark::ByConstruction, None), "{row:?}");
    }
    assert_eq!(table.tally(), [(0, 0); 2]);
    let padded = table.rows.iter().find(|row| row.name.contains("padding after")).unwrap();
    assert!(padded.simulated.abs() < 0.02, "padding after the reader does nothing: {padded:?}");
    let ratio = table.rows.iter().find(|row| row.name.contains("solved / played")).unwrap();
    assert!((0.95..1.05).contains(&ratio.simulated), "{ratio:?}");
}

#[test]
fn the_same_seed_gives_the_same_table_and_another_one_another() {
    let rows = |seeds| format!("{:?}", table(&Options { seeds, ..quick() }).rows);
    assert_eq!(rows(0..2), rows(0..2));
    assert_ne!(rows(0..2), rows(2..4));
}

#[test]
fn without_a_cost_of_hand_overs_there_is_nothing_to_gain() {
    let mut sim = sim();
    for class in ["c2c_smt", "c2c_same_l3", "c2c_same_node", "c2c_same_socket", "c2c_other_socket"] {
        sim.machine.costs = sim.machine.costs.with(class, 0).unwrap();
    }
    let culprit = sim.culprit();
    assert!(culprit.sufferers().is_empty() && culprit.relayouts.is_empty());
    // A hit still takes its time, less than 2 ns, and a miss takes none.
    let options = Options { seeds: 1..2, ..quick() };
    assert!(sim.read_ns(&options, &sim.layout, "pcpu_cid")[0] < 2.0);
}

#[test]
fn a_writer_that_does_not_write_harms_no_field() {
    let mut sim = sim();
    sim.profile.access.retain(|access| access.field != "mm_count");
    let culprit = sim.culprit();
    assert!(culprit.verdict.field("pcpu_cid").unwrap().read_ns < 3.0, "{culprit}");
}

#[test]
fn padding_between_helps_the_reader_and_not_the_fields_next_to_the_writer() {
    let table = table(&quick());
    let row =
        |name: &str| table.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}"));
    let freed = row("pcpu_cid: the same, by padding between mm_count and it");
    assert!(freed.simulated >= 0.95, "{freed:?}");
    for field in BESIDE_WRITER {
        let stays =
            |what: &str| row(&format!("{field}: share of its extra cost that stays, {what}")).simulated;
        let (between, apart) =
            (stays("padding between mm_count and pcpu_cid"), stays("mm_count on a line of its own"));
        assert!(between > 0.9 && apart < 0.1, "{field}: {between} {apart}");
    }
}
