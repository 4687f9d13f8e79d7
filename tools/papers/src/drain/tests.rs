use super::*;
use crate::sensitivity::by_a_tenth;
use crate::{Mark, first_predictions};

fn quick() -> Options {
    Options { seeds: 0..3, quick: true, ..Options::default() }
}

fn machine() -> SimMachine {
    SimMachine::named(MACHINE).unwrap()
}

#[test]
fn every_claimed_row_is_within_its_tolerance_and_names_its_inputs() {
    let table = table(&quick());
    let claims = |row: &&Row| row.tolerance.as_ref().is_some_and(|tolerance| tolerance.what.is_some());
    let claimed: Vec<&Row> = table.rows.iter().filter(claims).collect();
    assert_eq!(claimed.len(), 8);
    for row in claimed {
        // Between loops no CPU is in an operation, so this row is 0 whatever is simulated.
        let is_zero = row.name.starts_with("held locks");
        let expected = if is_zero { (Mark::ByConstruction, None) } else { (Mark::Fitted, Some(true)) };
        assert_eq!((row.mark(), row.is_met()), expected, "{row:?}");
    }
    assert_eq!(table.tally()[0], (7, 7));
    // In the null model remote collection costs what queueing does, which is within the tolerance at some numbers of
    // CPUs. For queueing that null model is the row itself, so its rows have none.
    let (null, of) = table.tally()[1];
    assert!(of == 4 && null < 4, "{null} of {of}");
    assert!(table.rows.iter().all(|row| row.null.is_none_or(|null| null != row.simulated)));
}

#[test]
fn without_fitted_numbers_the_direction_is_right_and_the_rows_are_predicted() {
    let table = table(&quick());
    let saved = table.rows.iter().find(|row| row.name == "nothing given, 128 CPUs, saved").unwrap();
    assert!(saved.inputs.is_empty() && saved.simulated < -50.0, "{saved:?}");
}

#[test]
fn a_stock_size_of_zero_makes_both_drains_equal() {
    let machine = machine();
    for seed in 0..5 {
        // No stock opens: a hundredth of the limit is less than two units for each CPU.
        let case = Case { limit: 256, ..Case::plain(128) };
        let [queued, remote] = METHODS.map(|(method, _)| drain(&machine, &case, method, seed));
        assert_eq!((queued, queued.stocks), (remote, 0));
        assert_ne!(queued.ns, 0, "both still read them all");
    }
}

#[test]
fn budgets_accounts_decide_which_stock_has_units() {
    let machine = machine();
    for charging in [0, 1, 8, 128] {
        let drain = drain(&machine, &Case::plain(charging), Method::Patched, 1);
        assert_eq!(drain.stocks, charging);
    }
    let part = Case { with_stock_per_mille: WITH_STOCK, ..Case::plain(128) };
    assert_eq!(drain(&machine, &part, Method::Patched, 1).stocks, 47);
}

#[test]
fn a_remote_drain_interrupts_no_cpu() {
    let machine = machine();
    let interrupted = |method| drain(&machine, &Case::plain(128), method, 3).interrupted;
    assert_eq!(
        (interrupted(Method::Upstream), interrupted(Method::Patched), interrupted(Method::Ours)),
        (127, 0, 0)
    );
}

#[test]
fn our_drain_goes_only_where_a_stock_may_be() {
    let machine = machine();
    let ns = |charging, method| drain(&machine, &Case::plain(charging), method, 3).ns;
    assert!(
        ns(8, Method::Ours) * 4 < ns(8, Method::Patched),
        "{} {}",
        ns(8, Method::Ours),
        ns(8, Method::Patched)
    );
    assert!(ns(128, Method::Ours) < ns(128, Method::Patched));
    assert_eq!(ns(0, Method::Ours), 0);
}

#[test]
fn drains_between_the_loops_meet_no_lock_and_drains_meanwhile_some() {
    let machine = machine();
    assert_eq!(met(&machine, When::BetweenLoops, DRAINS, 1), Met::default());
    let meanwhile = met(&machine, When::Meanwhile, DRAINS, 1);
    assert!((30..100).contains(&meanwhile.by_drains), "{meanwhile:?}");
    // Drains and owners hold a lock for equally long, so drains and owners find about as many locks held.
    assert!((30..100).contains(&meanwhile.by_owners), "{meanwhile:?}");
}

#[test]
fn all_five_local_operations_are_listed_and_claim_nothing() {
    let table = table(&quick());
    let local: Vec<&Row> = table.rows.iter().filter(|row| row.name.starts_with("local, ")).collect();
    let names = ["consume_stock", "refill_stock", "mod_objcg_state", "consume_obj_stock", "refill_obj_stock"];
    assert_eq!(local.len(), names.len());
    for (row, name) in local.iter().zip(names) {
        assert!(row.name.contains(name) && row.published.is_some_and(|cycles| cycles > 1.0), "{row:?}");
        assert_eq!((row.mark(), row.is_met()), (Mark::NotClaimed, None), "{row:?}");
        assert!(row.simulated > 0.0 && row.simulated < 10.0, "{row:?}");
    }
}

#[test]
fn hand_overs_that_cost_nothing_leave_nothing_of_either_drain() {
    let mut machine = machine();
    for class in ["c2c_smt", "c2c_same_l3", "c2c_same_node", "c2c_same_socket", "c2c_other_socket"] {
        machine.costs = machine.costs.with(class, 0).unwrap();
    }
    // Lines in the drainer's own core still take a hit each: two stocks, and one sibling's queue.
    let all: Vec<u64> =
        METHODS.iter().map(|(method, _)| drain(&machine, &Case::plain(128), *method, 1).ns).collect();
    assert!(all.iter().all(|ns| *ns < 40), "{all:?}");
}

#[test]
fn the_same_seed_gives_the_same_drain_at_every_size() {
    for size in [1, 2, 16, 1024] {
        let machine = grown(size);
        assert_eq!(machine.topology.cpus.len(), size);
        let drain = |seed| drain(&machine, &Case::plain(size), Method::Ours, seed);
        assert_eq!(drain(9), drain(9));
        assert_eq!(drain(9).stocks, size);
    }
}

#[test]
fn hand_overs_between_sockets_move_a_large_drain_most() {
    let machine = grown(512);
    for (method, what) in ALL_METHODS {
        let moved = by_a_tenth(&machine.costs, |costs| {
            let machine = SimMachine { costs: costs.clone(), ..machine.clone() };
            drain(&machine, &Case::plain(512), method, 1).ns as f64
        });
        assert_eq!(moved[0].0, "c2c_other_socket", "{what}: {moved:?}");
        assert!((2.0..10.1).contains(&moved[0].1), "{what}: {moved:?}");
    }
}

#[test]
fn the_predictions_are_still_the_first_results() {
    let options = Options { seeds: 0..30, quick: true, ..Options::default() };
    let counts = [1, 8, 128].map(|cpus| Cycles { cpus, upstream: 1.0, patched: 1.0 });
    let run = Run { options: &options, machine: &machine(), is_published: false };
    let rows = run.with_nothing_given(&counts);
    let all = first_predictions("drain");
    assert_eq!(all.len(), 6);
    for said in &all {
        let row = rows.iter().find(|row| row.name == said.name).unwrap();
        let ratio = row.simulated / said.number;
        assert!((0.99..1.01).contains(&ratio), "{}: {} then, {} now", said.name, said.number, row.simulated);
    }
    assert_eq!(changed("drain", &rows, SAME), [""; 0]);
}

#[test]
fn the_notes_agree_with_the_rows_and_name_no_published_numbers_on_another_machine() {
    let options = quick();
    let of = |machine: Option<&str>| {
        let machine = machine.map(|name| SimMachine::named(name).unwrap());
        table(&Options { machine, ..options.clone() })
    };
    let published = of(None);
    let row = published.rows.iter().find(|row| row.name == "nothing given, 128 CPUs, remote").unwrap();
    let said = format!("from afar {:.1} times", row.simulated / row.published.unwrap());
    assert!(published.notes.iter().any(|note| note.contains(&said)), "{said}: {:?}", published.notes);
    let other = of(Some("ryzen7950x"));
    assert!(
        other.notes.iter().all(|note| !note.contains("was published") && !note.contains("128 CPUs")),
        "{:?}",
        other.notes
    );
}
