//! Tests of the page of a recording: what it shows, of how much, and that names from the program stay text.

use super::*;
use warmcore_trace::*;

fn by(polls: &[(Origin, u64)]) -> ByOrigin {
    let mut by = ByOrigin::default();
    polls.iter().for_each(|(origin, count)| by[*origin] = *count);
    by
}

fn total(basis: Basis, moved: u64) -> Total {
    let (micro_cpus, low, high) =
        if basis == Basis::Program { (123_000, 80_000, 166_000) } else { (0, 0, 0) };
    Total { basis, micro_cpus, low, high, moved, priced: moved / 2 }
}

/// A recording on a machine with so many CPUs, two to a core, sixteen to a last-level cache.
fn recorded(cpus: u32, name: &str) -> Analysis {
    let bins = 300;
    let moves =
        [(Origin::SameCpu, 700), (Origin::SameLlc, 200), (Origin::SameMachine, 90), (Origin::First, 10)];
    let (from_previous, polls) = (by(&moves), 1000);
    let row = |cpu: u32| CpuRow {
        cpu,
        core: Some(cpu / 2),
        llc: Some(cpu / 16),
        node: Some(cpu / 96),
        socket: Some(cpu / 192),
        polls: 10,
        busy_ns: 1_000_000,
    };
    let core = |core: u32| MatrixCore {
        cpus: (2 * core..(2 * core + 2).min(cpus)).collect(),
        llc: Some(core / 8),
        node: Some(core / 48),
    };
    let cores = cpus.div_ceil(2);
    let cells = (0..cores).flat_map(|from| {
        (0..cores).filter(move |to| (from + to) % 3 == 0).map(move |to| MatrixCell {
            from,
            to,
            polls: u64::from(from * 7 + to + 1),
        })
    });
    let bin = |cpu: u32, bin: u32| {
        by(&[
            (Origin::SameCpu, u64::from((cpu + bin) % 7) * 500_000),
            (Origin::SameLlc, u64::from((cpu * bin) % 5) * 300_000),
            (Origin::SameMachine, u64::from(bin % 3) * 200_000),
        ])
    };
    let estimate = Estimate { ns: 850, low_ns: -20, high_ns: 1400, shuffles_with_zero: 95 };
    let cost =
        |origin, measured| MoveCost { origin, moved: 200, matched: 180, compared: 90, needed: 100, measured };
    let place = |location: &str, name: Option<&str>| SpawnPlace {
        location: Some(location.to_owned()),
        name: name.map(str::to_owned),
        tasks: 12,
        polls,
        from_previous,
        from_waker: from_previous,
        polled_ns: 9_000_000,
        delay: Quantiles { count: 900, p50_ns: 4_000, p99_ns: 90_000, max_ns: 4_000_000 },
        duration: Quantiles { count: 1000, p50_ns: 7_000, p99_ns: 60_000, max_ns: 1_000_000 },
        costs: vec![cost(Origin::SameLlc, Some(estimate)), cost(Origin::SameMachine, None)],
        cost: total(Basis::Program, 290),
    };
    let bucket = |power: u32| DelayBucket {
        from_ns: 1 << power,
        to_ns: 2 << power,
        polls: u64::from(20 - power.abs_diff(12)) * 10,
        maybe_kernel: u64::from(power / 3),
    };
    let coverage = Coverage {
        polls,
        skipped: 0,
        dropped: 40,
        threads_ns: 20_000_000_000,
        covered_ns: 19_000_000_000,
        machine_busy_permille: Some(1500),
        cpu_ns: Some(9_000_000_000),
        polled_ns: 4_000_000_000,
        sampling: Vec::new(),
        with_cpu: 1000,
        with_waker: 930,
        with_delay: 900,
        unlinked: 3,
        without_place: 0,
        changed_cpu: 1,
        cpus,
        cpus_with_llc: cpus,
        cpus_with_node: cpus,
        forgotten_tasks: 0,
    };
    Analysis {
        program: Program {
            command: format!("/usr/bin/{name} --listen [::]:80"),
            pid: 4242,
            started_unix_ns: 1_700_000_000_000_000_000,
            length_ns: 10_000_000_000,
            ending: Ending::Ended("the program ended".to_owned()),
        },
        sentence: Sentence {
            polls: from_previous.known(),
            unknown: 0,
            other_core: from_previous.other_core(),
            other_llc: Some(from_previous.other_llc()),
            cost: total(Basis::Program, 290),
            covered_permille: coverage.covered_permille(),
            recorded_permille: 961,
            is_whole: true,
        },
        coverage,
        from_previous,
        from_waker: from_previous,
        cpus: (0..cpus).map(row).collect(),
        matrix: Matrix { cores: (0..cores).map(core).collect(), cells: cells.collect(), others: 5 },
        places: vec![place("src/main.rs:41:9", Some(name)), place(&format!("src/{name}.rs:7:1"), None)],
        delays: Delays {
            all: Quantiles { count: 900, p50_ns: 4_000, p99_ns: 90_000, max_ns: 4_000_000 },
            buckets: (8..22).map(bucket).collect(),
            run_delay_ns: Some(120_000_000),
            involuntary_switches: Some(77),
            longest: vec![LongDelay {
                delay_ns: 4_000_000,
                at_ns: 3_200_000_000,
                duration_ns: 900,
                task: 17,
                place: 1,
                thread: 0,
                worker: Some(3),
                cpu: Some(1),
                waker_cpu: None,
                origin: Origin::SameLlc,
            }],
            beside_idle: Some(BesideIdle {
                times: Quantiles { count: 1200, p50_ns: 300_000, p99_ns: 900_000, max_ns: 1_900_000 },
                buckets: vec![DelayBucket { from_ns: 262_144, to_ns: 393_216, polls: 1200, maybe_kernel: 7 }],
            }),
        },
        timeline: Timeline {
            bin_ns: 33_333_333,
            bins,
            busy_ns: (0..cpus).map(|cpu| (0..bins).map(|at| bin(cpu, at)).collect()).collect(),
            missing_ns: (0..bins).map(|at| if at == 100 { 1_000_000 } else { 0 }).collect(),
        },
        threads: vec![ThreadRow {
            name: name.to_owned(),
            tid: 4243,
            worker: Some(3),
            polls,
            dropped: 40,
            skipped: 0,
            polled_ns: 4_000_000_000,
            from_previous,
            cpu_changes: 2,
            kernel: vec![KernelInterval {
                until_ns: 1_000_000_000,
                cpu_ns: 900_000_000,
                run_delay_ns: 1_000_000,
                involuntary_switches: 5,
            }],
        }],
        cost: Cost { total: total(Basis::Program, 290), probe: Vec::new() },
    }
}

/// The analysis of a recording without any poll, of a machine that is not known.
fn nothing() -> Analysis {
    let cost = total(Basis::CannotTell, 0);
    Analysis {
        program: Program { ending: Ending::Open, ..recorded(1, "idle").program },
        coverage: Coverage::default(),
        sentence: Sentence {
            polls: 0,
            unknown: 0,
            other_core: 0,
            other_llc: None,
            cost,
            covered_permille: 0,
            recorded_permille: 0,
            is_whole: true,
        },
        from_previous: ByOrigin::default(),
        from_waker: ByOrigin::default(),
        cpus: Vec::new(),
        matrix: Matrix::default(),
        places: Vec::new(),
        delays: Delays::default(),
        timeline: Timeline::default(),
        threads: Vec::new(),
        cost: Cost { total: cost, probe: Vec::new() },
    }
}

/// One poll, of which only the time is known.
fn one_poll() -> Analysis {
    let unknown = by(&[(Origin::Unknown, 1)]);
    let mut one = nothing();
    one.coverage = Coverage { polls: 1, threads_ns: 1000, covered_ns: 1000, cpus: 4, ..Coverage::default() };
    (one.from_previous, one.from_waker) = (unknown, unknown);
    one.places = vec![SpawnPlace {
        location: None,
        from_previous: unknown,
        from_waker: unknown,
        tasks: 1,
        polls: 1,
        delay: Quantiles::default(),
        costs: Vec::new(),
        cost: total(Basis::CannotTell, 0),
        ..recorded(1, "x").places[1].clone()
    }];
    one
}

fn parsed(markup: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(markup, options).unwrap_or_else(|e| panic!("{e}\n{markup}"))
}

fn text_of(page: &str) -> String {
    let document = parsed(page);
    let text = document.descendants().filter(|node| node.is_text()).filter_map(|node| node.text());
    text.collect::<Vec<_>>().join(" ")
}

/// Writes pages to look at into the folder that `WARMCORE_PAGES` names.
#[test]
fn pages_to_look_at() {
    let Some(folder) = std::env::var_os("WARMCORE_PAGES") else { return };
    let folder = std::path::Path::new(&folder);
    let hostile = "<script>alert(1)</script>&\u{1b}[31m\"'";
    for (name, analysis) in [
        ("two", recorded(2, "server")),
        ("sixteen", recorded(16, "server")),
        ("large", recorded(384, "server")),
        ("hostile", recorded(4, hostile)),
        ("nothing", nothing()),
        ("one", one_poll()),
    ] {
        std::fs::write(folder.join(name).with_extension("html"), page(&analysis)).unwrap();
    }
}

#[test]
fn the_page_is_well_formed_loads_nothing_and_is_the_same_twice() {
    for cpus in [1, 2, 3, 32, 33, 384] {
        let html = page(&recorded(cpus, "server"));
        assert_eq!(html, page(&recorded(cpus, "server")));
        let document = parsed(&html);
        for node in document.descendants() {
            assert!(!["script", "link", "img", "iframe"].contains(&node.tag_name().name()));
            for name in ["src", "href"] {
                assert!(node.attribute(name).is_none_or(|to| to.starts_with('#')), "{node:?}");
            }
        }
        assert!(!html.contains("url(") && !html.contains("NaN") && !html.contains("inf "));
        assert!(html.len() < 500_000, "{cpus} CPUs: {} bytes", html.len());
    }
}

#[test]
fn the_sentence_comes_first_and_each_figure_says_of_how_much_it_is() {
    let analysis = recorded(16, "server");
    let html = page(&analysis);
    let document = parsed(&html);
    let paragraph = document.descendants().find(|node| node.has_tag_name("p")).unwrap();
    assert_eq!(paragraph.text(), Some(&*analysis.sentence.to_string()));
    let captions: Vec<&str> = document
        .descendants()
        .filter(|node| node.has_tag_name("figcaption"))
        .map(|node| node.text().unwrap())
        .collect();
    assert_eq!(captions.len(), 3);
    for caption in captions {
        assert!(
            caption.contains("dropped in 95 % of the threads' time, and 96 % of the polls were"),
            "{caption}"
        );
    }
    let text = text_of(&html);
    for told in [
        "40 records were dropped",
        "of 990",
        "850 ns (−20.0 ns … 1.40 µs)",
        "90 of 200; 0 in 95 of 100 shuffled",
        "90 of 200; 100 needed",
        "0.12 CPUs (0.08 … 0.17)",
        "It is of 145 of 290 moved polls, of which 180 were compared.",
        "the kernel may explain it",
        "another L3",
        "? → 1",
        "lost one 77 times",
        "while a worker polled nothing, the longest for 1.90 ms; 7 of them may be the kernel's",
    ] {
        assert!(text.contains(told), "{told:?} is missing in {text}");
    }
}

#[test]
fn no_data_is_never_told_as_no_loss() {
    let text = text_of(&page(&nothing()));
    assert!(
        text.contains("The recording has no poll. Nothing is known of moves, delays and costs."),
        "{text}"
    );
    assert!(text.contains("the process was killed, or still runs"), "{text}");
    assert!(!text.contains("100 %"), "{text}");

    let text = text_of(&page(&one_poll()));
    for told in [
        "No CPU of any poll is known.",
        "no data, and not the absence of wakes",
        "no data, and not the absence of delays",
        "Whether a recorded poll moved is not known.",
        "could read the last-level cache of 0 of its 4 CPUs",
        "spawn not in the recording",
    ] {
        assert!(text.contains(told), "{told:?} is missing in {text}");
    }
    let terminal = super::text(&one_poll());
    assert!(terminal.lines().any(|line| line.contains(" ? ")), "{terminal}");
}

#[test]
fn what_is_not_all_is_not_written_as_all() {
    assert_eq!(words::share(9_999, 10_000), "99.9 %");
    assert_eq!(words::share(10_000, 10_000), "100 %");
    assert_eq!(words::share(1, 10_000), "< 0.1 %");
    assert_eq!(words::share(0, 0), "–");
    assert_eq!(words::count(1_234_567), "1\u{202f}234\u{202f}567");
}

#[test]
fn what_cannot_be_told_is_not_told() {
    let times = |count| Quantiles { count, p50_ns: 1, p99_ns: 2_000, max_ns: 3_000 };
    assert_eq!([99, 100].map(|count| words::p99(&times(count))), ["–", "2.00 µs"]);
    let shorter = Total { micro_cpus: -9_000, low: -12_000, high: -1_000, ..total(Basis::Program, 2) };
    let told = words::total(&shorter);
    assert!(
        told.starts_with('−') && told.ends_with("moved polls were shorter, so it cannot be told"),
        "{told}"
    );
    assert_eq!(words::total(&total(Basis::CannotTell, 0)), "not known");
    assert_eq!(words::total(&total(Basis::CannotTell, 2)), "cannot be told");
}

#[test]
fn hostile_names_stay_text() {
    let hostile = "<script>alert(1)</script>&\u{1b}[31m\"']]>";
    let analysis = recorded(4, hostile);
    let html = page(&analysis);
    assert!(!html.contains("<script"));
    assert!(!html.contains('\u{1b}'));
    assert!(text_of(&html).contains("<script>alert(1)</script>&\u{fffd}[31m\"']]>"));
    assert!(!super::text(&analysis).contains('\u{1b}'));
}

#[test]
fn a_large_machine_is_drawn_in_rows_that_can_be_read() {
    let html = page(&recorded(384, "server"));
    let text = text_of(&html);
    assert!(text.contains("A row is all CPUs of one last-level cache"), "{text}");
    assert!(text.contains("L3 23") && !text.contains("CPU 200"));
    // 24 caches: the largest number of cells is their square.
    let cells = parsed(&html).descendants().filter(|node| node.has_tag_name("title")).count();
    assert!((24..=24 * 24 + 1).contains(&cells), "{cells} cells");
}

#[test]
fn the_text_has_the_sentence_and_a_row_per_place() {
    let text = super::text(&recorded(4, "server"));
    assert!(text.starts_with("29 % of the polls that followed another poll of their task ran"), "{text}");
    assert!(
        text.lines().any(|line| line.contains("29 %") && line.ends_with("  src/server.rs:7:1")),
        "{text}"
    );
    assert!(text.contains("40 records were dropped"), "{text}");
}
