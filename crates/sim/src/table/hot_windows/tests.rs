use super::*;
use crate::table::Mark;

#[test]
fn whatever_came_out_of_turns_of_a_chosen_length_says_so() {
    let machine = crate::machine::Machine::named("ryzen7950x").ok();
    let table = table(&Options { machine, seeds: 0..1, quick: true, ..Options::default() });
    for row in &table.rows {
        assert_eq!((row.inputs.as_slice(), row.mark()), (&[KNEW][..], Mark::Fitted), "{row:?}");
    }
}
