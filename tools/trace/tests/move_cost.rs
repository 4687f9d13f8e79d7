//! What a move costs, in recordings whose tasks have a known cost: it is found, and where there is none, none is.

mod common;

use common::{PollAt, Writer, places};
use fastrand::Rng;
use warmcore_record::Recording;
use warmcore_trace::{Analysis, Basis, Estimate, Origin, Probed, analyze};

/// A pause: what is shorter is in other strata than what is longer.
const PAUSE_NS: u64 = 1 << 19;

/// What the tasks of a recording do.
struct Tasks {
    polls: u64,
    /// What a move within the last-level cache costs, and what one to another socket costs.
    near_ns: u32,
    far_ns: u32,
    /// By how much a poll is longer that comes after a pause.
    pause_ns: u32,
    /// Whether mostly the polls after a long pause move.
    moves_follow_pauses: bool,
    /// By how much polls are longer in each second tenth of the time.
    phase_ns: u32,
    seed: u64,
}

impl Tasks {
    const PLAIN: Self = Self {
        polls: 40_000,
        near_ns: 0,
        far_ns: 0,
        pause_ns: 0,
        moves_follow_pauses: false,
        phase_ns: 0,
        seed: 1,
    };

    /// Twenty tasks of one place take turns on the CPUs 0, 2 (the same cache) and 16 (another socket).
    fn record(&self) -> Vec<u8> {
        const CPUS: [u32; 3] = [0, 2, 16];
        let mut rng = Rng::with_seed(self.seed);
        let mut writer = Writer::in_memory(places(32), 17);
        // The task's CPU, and when its last poll ended.
        let mut tasks = [(0, 0_u64); 20];
        (0..20).for_each(|task| writer.spawn(0, task, 0, 1, 0));
        let mut at = 1000;
        for poll in 0..self.polls {
            let task = rng.usize(..tasks.len());
            let (before, last) = tasks[task];
            at = (at + 20_000 + rng.u64(..20_000)).max(last);
            let is_after_pause = at - last >= PAUSE_NS;
            let chance = if !self.moves_follow_pauses || is_after_pause { 0.3 } else { 0.03 };
            let cpu = if rng.f64() < chance { CPUS[rng.usize(..3)] } else { before };
            let mut ns = 20_000 + task as u32 * 100 + self.work(&mut rng);
            ns += u32::from(is_after_pause) * self.pause_ns;
            ns += u32::from(poll * 10 / self.polls % 2 == 1) * self.phase_ns;
            ns += match (before, cpu) {
                _ if before == cpu => 0,
                (16, _) | (_, 16) => self.far_ns,
                _ => self.near_ns,
            };
            writer.poll(PollAt::new(cpu as u16, task as u32, cpu, at, ns).woken(500, 0));
            tasks[task] = (cpu, at + u64::from(ns));
            if poll % 1000 == 999 {
                writer.round(at);
            }
        }
        writer.end();
        writer.bytes()
    }

    /// Work with a long tail, of 10 µs in the middle.
    fn work(&self, rng: &mut Rng) -> u32 {
        (10_000.0 * (rng.f64() - rng.f64() + rng.f64() - rng.f64()).exp()) as u32
    }
}

fn analysis(bytes: &[u8], probe: &[Probed]) -> Analysis {
    analyze(|| Recording::new(bytes), probe).expect("the header is whole")
}

fn estimate(analysis: &Analysis, origin: Origin) -> Estimate {
    let costs = &analysis.places[0].costs;
    let cost = costs.iter().find(|cost| cost.origin == origin).expect("some polls moved so");
    assert!(cost.compared <= cost.matched && cost.matched <= cost.moved);
    cost.measured.expect("enough polls were compared")
}

fn holds_zero(estimate: Estimate) -> bool {
    (estimate.low_ns..=estimate.high_ns).contains(&0)
}

#[test]
fn a_known_cost_is_found_for_each_distance() {
    let analysis = analysis(&Tasks { near_ns: 6_000, far_ns: 40_000, ..Tasks::PLAIN }.record(), &[]);
    for (origin, ns) in [(Origin::SameLlc, 6_000), (Origin::SameMachine, 40_000)] {
        let found = estimate(&analysis, origin);
        assert!((found.ns - ns).abs() <= ns / 4, "{origin:?}: {found:?}");
        assert!(!holds_zero(found) && found.low_ns <= found.ns && found.ns <= found.high_ns, "{found:?}");
        assert!(found.shuffles_with_zero >= 90, "{found:?}");
    }
    // The total is the sum over the moves, for the time of the recording.
    let total = analysis.cost.total;
    let moves = analysis.from_previous;
    let sum = moves[Origin::SameLlc] * 6_000 + moves[Origin::SameMachine] * 40_000;
    let micro_cpus = (sum * 1_000_000 / analysis.program.length_ns) as i64;
    assert_eq!((total.basis, total.moved, total.priced), (Basis::Program, moves.moved(), moves.moved()));
    assert!((total.micro_cpus - micro_cpus).abs() <= micro_cpus / 4, "{total:?}, {micro_cpus}");
    assert!(0 < total.low && total.low <= total.micro_cpus && total.micro_cpus <= total.high);
    assert_eq!(analysis.places[0].cost, total);
}

#[test]
fn shuffled_labels_cost_nothing() {
    for seed in 1..=4 {
        for tasks in [
            Tasks { seed, ..Tasks::PLAIN },
            Tasks { seed, far_ns: 40_000, ..Tasks::PLAIN },
            Tasks { seed, phase_ns: 15_000, ..Tasks::PLAIN },
            Tasks { seed, polls: 4_000, ..Tasks::PLAIN },
        ] {
            let analysis = analysis(&tasks.record(), &[]);
            for origin in [Origin::SameLlc, Origin::SameMachine] {
                let found = estimate(&analysis, origin);
                assert!(found.shuffles_with_zero >= 90, "seed {seed}, {origin:?}: {found:?}");
            }
        }
    }
}

#[test]
fn where_moves_cost_nothing_most_intervals_hold_zero() {
    let without_cost = (1..=10).flat_map(|seed| {
        let analysis = analysis(&Tasks { seed, polls: 10_000, ..Tasks::PLAIN }.record(), &[]);
        [Origin::SameLlc, Origin::SameMachine].map(|origin| estimate(&analysis, origin))
    });
    let holding = without_cost.filter(|found| holds_zero(*found)).count();
    assert!(holding >= 17, "{holding} of 20");
}

#[test]
fn polls_that_moved_after_a_pause_are_compared_with_polls_after_a_pause() {
    let tasks = Tasks { pause_ns: 30_000, moves_follow_pauses: true, ..Tasks::PLAIN };
    let found = estimate(&analysis(&tasks.record(), &[]), Origin::SameMachine);
    // Moved polls are longer by a good part of 30 µs, of which nothing comes from the move.
    assert!(found.ns.abs() < 1_500, "{found:?}");
    let tasks = Tasks { far_ns: 20_000, ..tasks };
    let found = estimate(&analysis(&tasks.record(), &[]), Origin::SameMachine);
    assert!((15_000..=25_000).contains(&found.ns), "{found:?}");
}

#[test]
fn with_too_few_moves_the_cost_cannot_be_told_or_rests_on_the_probe() {
    let few = Tasks { polls: 200, far_ns: 40_000, ..Tasks::PLAIN }.record();
    let without = analysis(&few, &[]);
    let (moves, total) = (without.from_previous, without.cost.total);
    assert!(moves.moved() > 0);
    assert_eq!((total.basis, total.micro_cpus, total.priced), (Basis::CannotTell, 0, 0));
    assert!(without.sentence.to_string().contains("cannot be told"));
    for cost in &without.places[0].costs {
        assert!(cost.measured.is_none() && cost.compared < cost.needed);
        assert_eq!(cost.moved, moves[cost.origin]);
    }
    let probe = Probed { origin: Origin::SameMachine, line_ns: 100, refill_ns: 50_000 };
    let with = analysis(&few, &[probe]);
    let micro_cpus = |ns| (moves[Origin::SameMachine] * ns * 1_000_000 / with.program.length_ns) as i64;
    let total = with.cost.total;
    assert_eq!((total.basis, total.priced), (Basis::Probe, moves[Origin::SameMachine]));
    assert_eq!((total.low, total.high), (micro_cpus(100), micro_cpus(50_000)));
    assert!(with.sentence.to_string().contains("by the machine's probe"));
}

#[test]
fn sampled_polls_stand_for_all_polls() {
    let tasks = Tasks { far_ns: 40_000, ..Tasks::PLAIN };
    let whole = analysis(&tasks.record(), &[]).cost.total;
    let mut bytes = tasks.record();
    // Totals of a thread say that three of four polls were left out.
    let line = warmcore_record::TextLine::Stats(
        0,
        warmcore_record::ThreadStats { skipped: 3 * tasks.polls, ..Default::default() },
    );
    let mut writer = Writer::in_memory(places(32), 0);
    writer.line(line);
    let text = writer.bytes();
    let empty = Writer::in_memory(places(32), 0).bytes().len();
    let end = bytes.split_off(bytes.len() - warmcore_record::format::BLOCK_HEADER_BYTES - "it ended".len());
    bytes.extend(&text[empty..]);
    bytes.extend(end);
    let sampled = analysis(&bytes, &[]);
    assert_eq!(sampled.coverage.skipped, 3 * tasks.polls);
    let total = sampled.cost.total;
    // Each of the two distances is rounded.
    assert!((total.micro_cpus - 4 * whole.micro_cpus).abs() <= 8, "{total:?}, {whole:?}");
}

#[test]
fn the_same_recording_gives_the_same_bytes() {
    let bytes = Tasks { far_ns: 40_000, ..Tasks::PLAIN }.record();
    let json = || serde_json::to_string(&analysis(&bytes, &[])).unwrap();
    assert_eq!(json(), json());
}
