use super::loads::shares;
use super::*;
use warmcore_sim::costs::Costs;
use warmcore_topo::Distance;

/// The first CPUs of the machine, with few rounds.
fn setup(cpus: usize) -> Setup {
    let SimMachine { topology, costs, .. } = prefix(&SimMachine::named(MACHINE).unwrap(), cpus);
    Setup { topology, costs, probe: Some(probe()), has_data: true, cpu_ns: 100_000_000 }
}

/// What the sides do under each load.
fn sides(setup: &Setup, percent: u64) -> Vec<(Load, [Point; 3])> {
    Load::ALL.map(|load| (load, Side::ALL.map(|side| setup.simulate(load, percent, side, 1)))).to_vec()
}

/// The largest CPU time of a round by the least one.
fn spread(points: &[Point; 3]) -> f64 {
    let cpu = || points.iter().map(|point| point.cpu_ns);
    cpu().fold(0.0, f64::max) / cpu().fold(f64::INFINITY, f64::min)
}

/// The same costs, but a line from another core or from memory takes as long as one in the core's own cache.
fn flat(costs: &Costs) -> Costs {
    let own = costs.resident() * costs.ps("mlp_rmw_dirty_remote") / 1000;
    let names: Vec<String> = costs.numbers().map(|(name, _)| name.to_owned()).collect();
    let names = names.iter().filter(|name| name.starts_with("c2c_") || name.starts_with("dram_"));
    names.fold(costs.clone(), |costs, name| costs.with(name, own).unwrap())
}

#[test]
fn where_every_line_is_as_near_and_calls_are_free_all_sides_take_the_same_cpu_time() {
    for cpus in [8, 24] {
        let setup = setup(cpus);
        let costs = flat(&setup.costs).with_equal_latencies();
        assert_eq!(costs.hand_over(Distance::Smt), costs.hand_over(Distance::Other));
        let flat = Setup { costs, probe: None, ..setup.clone() };
        for (load, points) in sides(&flat, 50) {
            println!("{cpus} {} {:.4}", load.name(), spread(&points));
            assert!(spread(&points) < 1.03, "{cpus} CPUs, {}: {points:#?}", load.name());
        }
        // The control means something: with the machine's costs the sides differ.
        assert!(sides(&setup, 50).iter().any(|(_, points)| spread(points) > 1.2), "{cpus} CPUs");
    }
}

#[test]
fn without_data_the_sides_differ_by_searches_and_calls_alone() {
    // A worker that parks and is unparked for each poll, in ns, as the probe has it.
    const PARK_NS: f64 = 4_000.0 + 8_000.0;
    for cpus in [8, 24] {
        let of = setup(cpus);
        // A search reads a line of each worker, and moves three with a task; there is at most one for each poll.
        let line = of.costs.hand_over(if cpus > 8 { Distance::Socket } else { Distance::Llc }) as f64 / 1e3;
        let search_ns = (cpus + 3) as f64 * line;
        for (probe, most) in [(None, search_ns), (Some(probe()), search_ns + PARK_NS)] {
            let empty = Setup { has_data: false, probe, ..of.clone() };
            for (load, points) in sides(&empty, 50) {
                let cpu = || points.iter().map(|point| point.cpu_ns);
                let differ = cpu().fold(0.0, f64::max) - cpu().fold(f64::INFINITY, f64::min);
                // A hog's round is charged for the polls of the light tasks beside it.
                let light = match load {
                    Load::Noisy => empty.arrivals_per_ns(load, 50) * 1e6 / empty.bound(load, 50).k_per_second,
                    _ => 0.0,
                };
                let polls = load.round().polls.max(1) as f64 + light;
                // Rounds that are not over when the time is vary by 2 %.
                let most = polls * most + 0.02 * cpu().fold(0.0, f64::max);
                println!("{cpus} CPUs, {}: {differ:.0} ns of {most:.0}", load.name());
                assert!(differ < most, "{cpus} CPUs, {}: {points:#?}", load.name());
            }
        }
    }
}

#[test]
fn no_side_takes_less_than_the_bound() {
    let setup = setup(24);
    for percent in [50, 100] {
        for (load, points) in sides(&setup, percent) {
            let bound = setup.bound(load, percent);
            for (point, side) in points.iter().zip(Side::ALL) {
                let at = format!("{}, {percent} %, {}: {point:?} {bound:?}", load.name(), side.name());
                // Lengths and arrivals vary.
                assert!(point.cpu_ns > 0.98 * bound.cpu_ns, "{at}");
                assert!(point.k_per_second < 1.05 * bound.k_per_second, "{at}");
                assert!(point.p99_ns > bound.p99_ns, "{at}");
            }
            assert_eq!((points[2].near, points[2].far), (0.0, 0.0), "a task per core moved: {}", load.name());
        }
    }
}

#[test]
fn loads_need_the_part_of_the_cpus_that_they_are_to_need() {
    let setup = setup(8);
    for (load, points) in sides(&setup, 50) {
        let Point { k_per_second, cpu_ns, .. } = points[2];
        let busy = k_per_second * cpu_ns / 1e6 / 8.0;
        println!("{} {busy:.3}", load.name());
        // Beside the calls that the bound does not have. Light tasks come on top of the hogs.
        let most = if load == Load::Messaging { 0.85 } else { 0.65 };
        assert!((0.45..most).contains(&busy), "{}: {busy}", load.name());
    }
}

#[test]
fn a_hot_connection_gets_at_most_half_a_cpu_and_all_get_everything() {
    for (clients, most) in [(16, 0.25), (192, 0.5 / 24.0), (3072, 0.5 / 238.0)] {
        let all = shares(Load::Skewed, clients, most);
        assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{clients}");
        assert!(
            all.iter().all(|share| *share <= most + 1e-12) && all.is_sorted_by(|a, b| a >= b),
            "{clients}"
        );
        assert!(all[0] > 5.0 * all[clients - 1], "they are skewed: {clients}");
    }
    assert_eq!(shares(Load::WarmSets, 4, 0.1), [0.25; 4]);
}

#[test]
fn a_prefix_has_one_thread_of_each_core_before_it_has_siblings() {
    let machine = SimMachine::named(MACHINE).unwrap();
    for (cpus, cores) in [(2, 2), (24, 24), (192, 192), (200, 192), (384, 192)] {
        let topology = prefix(&machine, cpus).topology;
        let used: BTreeSet<_> = topology.cpus.iter().map(|cpu| cpu.core).collect();
        assert_eq!((topology.cpus.len(), used.len()), (cpus, cores));
    }
    assert_eq!(setup(24).capacity(), 24.0);
    let (all, cores) = (setup(384).capacity(), setup(192).capacity());
    assert!(cores == 192.0 && all > 1.1 * cores && all < 2.0 * cores, "{all}");
    assert_eq!(sizes(384, false), [2, 8, 24, 96, 192, 384]);
    assert_eq!(sizes(8, false), [2, 8]);
    assert_eq!(sizes(72, true), [2, 24, 72]);
}

#[test]
fn the_table_has_a_row_for_each_figure_and_a_bound_beside_each() {
    let machine = Some(prefix(&SimMachine::named(MACHINE).unwrap(), 2));
    let options = Options { machine, seeds: 0..2, quick: true, ..Options::default() };
    let table = table(&options);
    // Two parts of the CPUs, six loads, five figures; per core three.
    assert_eq!(table.rows.len(), 2 * 6 * (5 + 5 + 3));
    assert!(table.rows.iter().all(|row| row.numbers.len() == 2 && row.null.is_some()), "{:#?}", table.rows);
    let row = super::super::row_named(&table.rows, "2 CPUs, warm sets, 50 %, Warmcore, rounds").unwrap();
    assert!(row.simulated > 40.0 && row.simulated <= 1.05 * row.null.unwrap(), "{row:?}");
    assert!(table.rows.iter().any(|row| row.numbers[0] != row.numbers[1]), "seeds differ");
}
