//! Recordings of which it is known what they hold: each count is exact.

mod common;

use common::{PollAt, START, Writer, places};
use warmcore_record::{KernelStats, Recording, SAMPLE_FACTOR, TextLine, ThreadStats};
use warmcore_trace::{Analysis, Basis, Ending, Origin, analyze};

fn analysis(bytes: &[u8]) -> Analysis {
    analyze(|| Recording::new(bytes), &[]).expect("the header is whole")
}

/// A recording of one task that is polled for 10 ns each 100 ns on these CPUs, each with a thread of its own number.
fn one_task(cpus: &[u32]) -> Analysis {
    let threads = cpus.iter().max().unwrap() + 1;
    let mut writer = Writer::in_memory(places(32), threads as u16);
    writer.spawn(cpus[0] as u16, 1, 0, 1, cpus[0]);
    for (nth, cpu) in cpus.iter().enumerate() {
        writer.poll(PollAt::new(*cpu as u16, 1, *cpu, 100 * (nth as u64 + 1), 10));
    }
    writer.end();
    analysis(&writer.bytes())
}

#[test]
fn one_worker_moves_nothing() {
    let analysis = one_task(&[0; 1000]);
    assert_eq!((analysis.from_previous[Origin::First], analysis.from_previous[Origin::SameCpu]), (1, 999));
    assert_eq!((analysis.from_previous.total(), analysis.sentence.other_core), (1000, 0));
    assert_eq!((analysis.cost.total.basis, analysis.cost.total.micro_cpus), (Basis::NoMoves, 0));
    assert!(
        analysis
            .sentence
            .to_string()
            .contains(" ran on another core than that one, 0 % on another L3; no recorded poll moved;")
    );
}

#[test]
fn a_move_has_the_distance_between_the_two_cpus() {
    let far = [
        (1, Origin::SameCore),
        (2, Origin::SameLlc),
        (4, Origin::SameNode),
        (8, Origin::SameSocket),
        (16, Origin::SameMachine),
    ];
    for (cpu, origin) in far {
        // Two workers with scripted moves: there, stay, back.
        let analysis = one_task(&[0, cpu, cpu, 0]);
        assert_eq!(analysis.from_previous[origin], 2, "to CPU {cpu}");
        assert_eq!(analysis.from_previous[Origin::SameCpu], 1);
        assert_eq!(analysis.from_previous.total(), 4);
        let place = &analysis.places[0];
        assert_eq!((place.location.as_deref(), place.tasks, place.polls), (Some("src/main.rs:1:5"), 1, 4));
        assert_eq!(place.from_previous, analysis.from_previous);
        assert_eq!(place.polled_ns, 40);
        let busy: Vec<u64> = analysis.cpus.iter().map(|row| row.busy_ns).collect();
        assert_eq!(busy, [20, 20]);
    }
}

#[test]
fn a_task_that_hops_each_nth_poll_is_counted_that_often() {
    for n in [2, 3, 7] {
        let cpus: Vec<u32> = (0..100 * n).map(|poll| poll / n % 2 * 4).collect();
        let analysis = one_task(&cpus);
        assert_eq!(analysis.from_previous[Origin::SameNode], 99, "each {n}th poll");
        assert_eq!(analysis.sentence.other_llc, Some(99));
    }
}

#[test]
fn a_poll_has_the_distance_from_its_waker_and_a_cell_of_the_matrix() {
    let mut writer = Writer::in_memory(places(32), 1);
    writer.spawn(0, 1, 0, 1, 0);
    for (nth, waker) in [(0, 0), (1, 1), (2, 6), (3, 6), (4, 31)] {
        writer.poll(PollAt::new(0, 1, 0, 1000 + nth * 100, 10).woken(50, waker));
    }
    writer.poll(PollAt::new(0, 1, 0, 2000, 10));
    let analysis = analysis(&writer.bytes());
    let counts = Origin::ALL.map(|origin| analysis.from_waker[origin]);
    assert_eq!(counts, [1, 1, 0, 2, 0, 1, 0, 0, 1]);
    assert_eq!((analysis.coverage.with_waker, analysis.coverage.with_delay), (5, 5));
    let cpus = |core: u32| analysis.matrix.cores[core as usize].cpus.clone();
    let cells: Vec<_> =
        analysis.matrix.cells.iter().map(|cell| (cpus(cell.from), cpus(cell.to), cell.polls)).collect();
    assert_eq!(cells, [(vec![0, 1], vec![0, 1], 2), (vec![6], vec![0, 1], 2), (vec![31], vec![0, 1], 1)]);
}

#[test]
fn delays_are_counted_and_the_longest_has_its_place() {
    let mut writer = Writer::in_memory(places(4), 2);
    writer.worker(1, 0, 5);
    writer.spawn(1, 9, 0, 1, 2);
    for nth in 1..100 {
        writer.poll(PollAt::new(1, 9, 2, nth * 10_000, 10).woken(1000, 0));
    }
    writer.poll(PollAt::new(1, 9, 3, 1_000_000, 77).woken(7000, 2).last());
    let analysis = analysis(&writer.bytes());
    let delays = &analysis.delays;
    assert_eq!(
        (delays.all.count, delays.all.max_ns, delays.buckets.iter().map(|b| b.polls).sum::<u64>()),
        (100, 7000, 100)
    );
    assert!((990..=1010).contains(&delays.all.p50_ns), "{:?}", delays.all);
    assert!(
        delays
            .buckets
            .iter()
            .all(|bucket| bucket.polls == 0 || bucket.from_ns <= 7000 && bucket.to_ns > 1000)
    );
    let long = delays.longest[0];
    assert_eq!((long.delay_ns, long.at_ns, long.duration_ns), (7000, 1_000_000, 77));
    assert_eq!((long.task, long.place, long.thread, long.worker), (9, 0, 1, Some(5)));
    assert_eq!((long.cpu, long.waker_cpu, long.origin), (Some(3), Some(2), Origin::SameCore));
    assert_eq!((delays.longest.len(), delays.run_delay_ns), (50, None));
}

#[test]
fn a_poll_is_not_linked_across_a_gap_of_any_thread() {
    let mut writer = Writer::in_memory(places(4), 2);
    writer.spawn(0, 1, 0, 1, 0);
    writer.spawn(0, 2, 0, 1, 0);
    writer.poll(PollAt::new(0, 1, 0, 100, 10));
    // Task 1 may have run on thread 1 meanwhile. The gap is written after the poll that it concerns.
    writer.poll(PollAt::new(0, 1, 2, 500, 10));
    writer.poll(PollAt::new(0, 1, 0, 900, 10));
    writer.poll(PollAt::new(0, 2, 0, 950, 10));
    writer.round(1000);
    writer.gap(1, 300, 700, 12);
    writer.end();
    let analysis = analysis(&writer.bytes());
    // The first poll of task 1 is its first; the two others and the one of task 2 follow or are in the gap.
    assert_eq!((analysis.from_previous[Origin::First], analysis.from_previous[Origin::Unknown]), (1, 3));
    assert_eq!((analysis.coverage.unlinked, analysis.coverage.dropped), (3, 12));
    // Thread 0 was seen from 0 to 960 ns, thread 1 only in its gap.
    assert_eq!((analysis.coverage.threads_ns, analysis.coverage.covered_ns), (960 + 400, 960));
    assert_eq!(analysis.timeline.missing_ns.iter().sum::<u64>(), 400);
    assert_eq!(analysis.sentence.recorded_permille, 250);
}

#[test]
fn polls_before_and_after_a_gap_are_linked() {
    let mut writer = Writer::in_memory(places(4), 1);
    writer.spawn(0, 1, 0, 1, 0);
    for at in [100, 200, 1100, 1200] {
        writer.poll(PollAt::new(0, 1, 0, at, 10));
    }
    writer.gap(0, 1500, 1600, 1);
    writer.gap(0, 1700, 1800, 1);
    writer.poll(PollAt::new(0, 1, 0, 1900, 10));
    let analysis = analysis(&writer.bytes());
    assert_eq!((analysis.from_previous[Origin::SameCpu], analysis.coverage.unlinked), (3, 1));
}

#[test]
fn a_task_that_left_the_sample_and_came_back_is_not_linked() {
    let is_in = |task: u32| task.wrapping_mul(SAMPLE_FACTOR).leading_zeros() >= 1;
    let stays = (1..).find(|task| is_in(*task)).unwrap();
    let leaves = (1..).find(|task| !is_in(*task)).unwrap();
    let mut writer = Writer::in_memory(places(4), 1);
    for task in [stays, leaves] {
        writer.spawn(0, task, 0, 1, 0);
    }
    for (task, at) in [(stays, 100), (leaves, 200), (stays, 400), (stays, 700), (leaves, 800), (leaves, 900)]
    {
        writer.poll(PollAt::new(0, task, 0, at, 10));
    }
    writer.line(TextLine::Sampled(1, START + 300));
    writer.line(TextLine::Sampled(0, START + 600));
    writer.stats(0, 1000, ThreadStats { polls: 6, skipped: 4, ..ThreadStats::default() });
    let analysis = analysis(&writer.bytes());
    assert_eq!((analysis.from_previous[Origin::SameCpu], analysis.coverage.unlinked), (3, 1));
    let shifts: Vec<(u64, u32)> = analysis.coverage.sampling.iter().map(|it| (it.at_ns, it.shift)).collect();
    assert_eq!(shifts, [(300, 1), (600, 0)]);
    assert_eq!((analysis.coverage.skipped, analysis.sentence.recorded_permille), (4, 600));
}

#[test]
fn a_task_whose_spawn_is_missing_has_no_place_and_no_first_poll() {
    let mut writer = Writer::in_memory(places(4), 1);
    writer.poll(PollAt::new(0, 1, 0, 100, 10));
    writer.poll(PollAt::new(0, 1, 2, 200, 10));
    let analysis = analysis(&writer.bytes());
    assert_eq!((analysis.from_previous[Origin::Unknown], analysis.from_previous[Origin::SameLlc]), (1, 1));
    assert_eq!((analysis.coverage.without_place, &analysis.places[0].location), (2, &None));
}

#[test]
fn names_part_the_tasks_of_one_location_up_to_a_bound() {
    let mut writer = Writer::in_memory(places(4), 1);
    for task in 0..2000 {
        writer.line(TextLine::Name(task, format!("task {task}")));
        writer.spawn(0, task, u64::from(task) * 100, 1, 0);
        writer.name(0, task, u64::from(task) * 100, task);
        writer.poll(PollAt::new(0, task, 0, u64::from(task) * 100 + 10, 10).last());
    }
    let analysis = analysis(&writer.bytes());
    assert_eq!(analysis.places.iter().map(|place| place.tasks).sum::<u64>(), 2000);
    assert!((500..=513).contains(&analysis.places.len()), "{}", analysis.places.len());
    let further = analysis.places.iter().find(|place| place.name.as_deref() == Some("…")).unwrap();
    assert!(further.tasks > 1400 && further.location.is_some());
}

#[test]
fn without_caches_a_move_is_never_called_near() {
    let mut cpus = places(16);
    cpus.iter_mut().for_each(|place| place.llc = None);
    let with = |cpus| {
        let mut writer = Writer::in_memory(cpus, 1);
        writer.spawn(0, 1, 0, 1, 0);
        for (nth, cpu) in [0, 0, 1, 2, 9].into_iter().enumerate() {
            writer.poll(PollAt::new(0, 1, cpu, nth as u64 * 100, 10));
        }
        analysis(&writer.bytes())
    };
    let without_llcs = with(cpus);
    assert_eq!(Origin::ALL.map(|origin| without_llcs.from_previous[origin]), [1, 1, 0, 0, 0, 0, 2, 1, 0]);
    assert_eq!((without_llcs.coverage.cpus, without_llcs.coverage.cpus_with_llc), (16, 0));
    assert_eq!(without_llcs.sentence.other_llc, None);
    let without_places = with(Vec::new());
    assert_eq!(Origin::ALL.map(|origin| without_places.from_previous[origin]), [1, 0, 0, 0, 0, 0, 3, 1, 0]);
    assert_eq!(without_places.matrix.cores.len(), 4);
    assert_eq!(without_places.sentence.other_llc, None);
}

#[test]
fn a_cpu_that_is_not_known_is_counted_apart() {
    let mut writer = Writer::in_memory(places(4), 1);
    writer.spawn(0, 1, 0, 1, 0);
    for (nth, cpu) in [0, u32::MAX, 0, 0].into_iter().enumerate() {
        writer.poll(PollAt::new(0, 1, cpu, nth as u64 * 100, 10));
    }
    let analysis = analysis(&writer.bytes());
    assert_eq!((analysis.from_previous[Origin::Unknown], analysis.from_previous[Origin::SameCpu]), (2, 1));
    assert_eq!((analysis.coverage.with_cpu, analysis.coverage.unlinked), (3, 0));
}

#[test]
fn a_task_that_is_dropped_has_no_poll_more() {
    let mut writer = Writer::in_memory(places(4), 1);
    for task in [1, 2] {
        writer.spawn(0, task, 0, 1, 0);
    }
    writer.poll(PollAt::new(0, 1, 0, 100, 10));
    for task in [1, 2] {
        writer.drop_task(0, task, 200);
    }
    let analysis = analysis(&writer.bytes());
    assert_eq!((analysis.coverage.polls, analysis.places[0].tasks, analysis.places[0].polls), (1, 1, 1));
}

#[test]
fn the_kernel_may_explain_delays_up_to_its_own() {
    let mut writer = Writer::in_memory(places(4), 1);
    writer.spawn(0, 1, 0, 1, 0);
    let kernel = |cpu_ns, run_delay_ns, involuntary_switches| ThreadStats {
        kernel: Some(KernelStats { cpu_ns, run_delay_ns, involuntary_switches }),
        ..ThreadStats::default()
    };
    writer.stats(0, 10, kernel(5, 1000, 2));
    writer.poll(PollAt::new(0, 1, 0, 500_000, 10).woken(100, 0));
    writer.poll(PollAt::new(0, 1, 0, 600_000, 10).woken(90_000, 0));
    writer.stats(0, 1_000_000, kernel(105, 6000, 5));
    writer.poll(PollAt::new(0, 1, 0, 1_500_000, 10).woken(100, 0));
    writer.stats(0, 2_000_000, kernel(305, 6000, 5));
    // A thread that has ended: the kernel may explain what came after its totals before.
    writer.poll(PollAt::new(0, 1, 0, 2_500_000, 10).woken(90_000, 0));
    writer.stats(0, 3_000_000, ThreadStats::default());
    let analysis = analysis(&writer.bytes());
    let maybe: Vec<(u64, u64)> = analysis
        .delays
        .buckets
        .iter()
        .filter(|bucket| bucket.polls > 0)
        .map(|bucket| (bucket.polls, bucket.maybe_kernel))
        .collect();
    // 5 µs of the first second explain the delay of 100 ns there; those of the second second are 0.
    assert_eq!(maybe, [(2, 1), (2, 1)]);
    assert_eq!((analysis.delays.run_delay_ns, analysis.delays.involuntary_switches), (Some(6000), Some(5)));
    assert_eq!(analysis.coverage.cpu_ns, Some(305));
    let intervals: Vec<(u64, u64)> =
        analysis.threads[0].kernel.iter().map(|it| (it.until_ns, it.run_delay_ns)).collect();
    assert_eq!(intervals, [(10, 1000), (1_000_000, 5000), (2_000_000, 0)]);
}

#[test]
fn a_wait_beside_an_idle_worker_is_known_when_that_worker_polls_again() {
    let waits = |is_worker: bool, is_whole: bool| {
        let mut writer = Writer::in_memory(places(4), 2);
        writer.worker(0, 0, 0);
        if is_worker {
            writer.worker(1, 0, 1);
        }
        (1..=9).for_each(|task| writer.spawn(0, task, 0, 1, 0));
        let mut polled = |thread: u16, task, at, ns, waited: u32| {
            writer.poll(PollAt::new(thread, task, 0, at, ns).woken(waited, 0));
        };
        polled(1, 1, 0, 100_000, 0);
        // Both workers are idle for all of this wait.
        polled(0, 2, 900_000, 10, 800_000);
        polled(1, 1, 1_000_000, 950_000, 0);
        // The other one is idle for 50 µs of this one, which is too little.
        polled(0, 9, 1_400_000, 590_000, 0);
        polled(0, 3, 2_000_000, 10, 500_000);
        // Here it is in a poll, whose record comes later.
        polled(0, 9, 2_100_000, 890_000, 0);
        polled(0, 4, 3_000_000, 10, 800_000);
        polled(1, 1, 2_100_000, 1_400_000, 0);
        // The task was woken in its own poll, at whose end another worker may poll it.
        polled(0, 5, 5_000_000, 900_000, 0);
        polled(0, 5, 6_000_000, 10, 800_000);
        // Here it is idle for 300 µs.
        polled(0, 9, 6_100_000, 890_000, 0);
        polled(0, 6, 7_000_000, 10, 600_000);
        polled(1, 1, 6_700_000, 1, 0);
        // And here the one that polls the task at last, for 250 µs.
        polled(0, 8, 7_100_000, 1_000_000, 0);
        polled(1, 1, 7_050_000, 1_250_000, 0);
        polled(0, 7, 8_350_000, 10, 900_000);
        if !is_whole {
            writer.gap(0, 9_500_000, 9_600_000, 1);
        }
        writer.end();
        analysis(&writer.bytes()).delays.beside_idle
    };
    let beside = waits(true, true).unwrap();
    let parts: Vec<u64> =
        beside.buckets.iter().map(|bucket| bucket.polls).filter(|polls| *polls > 0).collect();
    assert_eq!((beside.times.count, beside.times.max_ns, &parts[..]), (3, 800_000, &[1, 1, 1][..]));
    assert_eq!(waits(false, true).unwrap().times.count, 2, "a thread without a worker is none");
    assert_eq!(waits(true, false), None, "what is missing might be polls of that worker");
}

#[test]
fn the_timeline_has_each_nanosecond_of_each_poll() {
    let mut writer = Writer::in_memory(places(4), 2);
    writer.spawn(0, 1, 0, 1, 0);
    writer.spawn(0, 2, 0, 1, 0);
    for nth in 0..1000_u64 {
        writer.poll(PollAt::new(0, 1, 0, nth * 1000, 900));
        writer.poll(PollAt::new(1, 2, 2 + (nth % 2) as u32, nth * 1000, 500));
    }
    let analysis = analysis(&writer.bytes());
    let timeline = &analysis.timeline;
    assert!(timeline.bins <= 600 && timeline.bin_ns * u64::from(timeline.bins) >= analysis.program.length_ns);
    let busy: Vec<u64> = timeline.busy_ns.iter().map(|row| row.iter().map(|bin| bin.total()).sum()).collect();
    assert_eq!(busy, [900_000, 250_000, 250_000]);
    assert!(timeline.busy_ns[0].iter().all(|bin| bin.total() <= timeline.bin_ns));
    let moved: u64 = timeline.busy_ns[1].iter().map(|bin| bin[Origin::SameCore]).sum();
    // All but the task's first poll.
    assert_eq!(moved, 249_500);
    assert_eq!(analysis.threads[1].cpu_changes, 999);
}

#[test]
fn a_cut_or_damaged_file_is_analyzed_up_to_that_place() {
    let mut writer = Writer::in_memory(places(4), 1);
    writer.spawn(0, 1, 0, 1, 0);
    writer.poll(PollAt::new(0, 1, 0, 100, 10));
    writer.round(200);
    writer.poll(PollAt::new(0, 1, 2, 300, 10));
    let bytes = writer.bytes();
    let whole = analysis(&bytes);
    assert_eq!((whole.coverage.polls, &whole.program.ending), (2, &Ending::Open));
    let cut = analysis(&bytes[..bytes.len() - 3]);
    assert_eq!((cut.coverage.polls, cut.from_previous.moved()), (1, 0));
    assert!(matches!(cut.program.ending, Ending::Cut(bytes) if bytes > 0));
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let damaged = analysis(&damaged);
    assert_eq!(damaged.coverage.polls, 1);
    assert!(matches!(&damaged.program.ending, Ending::Damaged(what) if what.contains("checksum")));
    assert!(analyze(|| Recording::new(&b"something else"[..]), &[]).is_err());
    // A recording without any event.
    let empty = analysis(&Writer::in_memory(places(4), 0).bytes());
    assert_eq!((empty.coverage.polls, empty.program.length_ns), (0, 0));
    assert!(empty.sentence.to_string().starts_with("No poll"));
}

#[test]
fn hostile_numbers_are_no_panic() {
    use warmcore_record::format::{BlockKind, NO_CPU, RecordKind, tag};
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..300 {
        let mut writer = Writer::in_memory(places(4), 3);
        writer.line(TextLine::Name(3, "a name".to_owned()));
        for _ in 0..rng.usize(1..6) {
            let mut records = Vec::new();
            for _ in 0..rng.usize(1..30) {
                let kind = *rng
                    .choice(&[
                        RecordKind::Poll,
                        RecordKind::Poll,
                        RecordKind::Gap,
                        RecordKind::Worker,
                        RecordKind::Drop,
                    ])
                    .unwrap();
                let mut number = || if rng.bool() { rng.u32(..) } else { rng.u32(..50) };
                let words = [number() % 8, number(), number(), number()];
                let cpus = [number() % 8192, number() % 8];
                let tag = tag(kind, if cpus[0] < 4000 { cpus[0] % 4 } else { NO_CPU }, cpus[1], number() % 8);
                records.extend(
                    [words[0], words[1], words[2], words[3], tag].iter().flat_map(|w| w.to_le_bytes()),
                );
            }
            let base = if rng.bool() { rng.u64(..1 << 62) } else { rng.u64(..1 << 34) };
            writer.block(BlockKind::Records, rng.u16(..3), base, &records);
            let mut number = || if rng.bool() { rng.u64(..) } else { rng.u64(..1000) };
            let kernel =
                KernelStats { cpu_ns: number(), run_delay_ns: number(), involuntary_switches: number() };
            let (at, polls, dropped, skipped) = (number() / 4, number(), number(), number());
            let stats = ThreadStats { at, polls, dropped, skipped, kernel: Some(kernel) };
            writer.line(TextLine::Stats(rng.u16(..3), stats));
            writer.line(TextLine::Sampled(rng.u32(..), rng.u64(..)));
        }
        let analysis = analysis(&writer.bytes());
        let busy: u64 = analysis.cpus.iter().map(|row| row.busy_ns).sum();
        let bins: u64 = analysis.timeline.busy_ns.iter().flatten().map(|bin| bin.total()).sum();
        assert_eq!(busy, bins);
        assert!(!analysis.sentence.to_string().is_empty());
    }
}
