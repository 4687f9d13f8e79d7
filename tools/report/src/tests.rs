use super::inputs::{EXPECTED, PROBE_COMMAND};
use super::*;
use std::collections::HashSet;
use warmcore_bench::cid::timeline as recorded;
use warmcore_results::names::drain as drains;
use warmcore_results::names::intermittent;
use warmcore_results::{Bound, HostInfo, Lane, Load, Row, SCHEMA, Span, Timeline};
use warmcore_topo::{Core, Cpu, Distance, Llc, MACHINES, Node, Socket, Topology, machines};
use warmcore_types::{CoreId, CpuId, CpuSet, LlcId, NodeId, SocketId};

/// A machine whose CPUs are numbered as on many x86 servers: first one CPU of each core, then the siblings.
fn machine(sockets: u32, llcs: u32, cores: u32, smt: u32) -> Topology {
    let n = sockets * llcs * cores;
    let place = |id: u32| {
        let core = id % n;
        let (llc, socket) = (core / cores, core / cores / llcs);
        Cpu {
            id: CpuId(id),
            core: CoreId(core),
            llc: LlcId(llc),
            node: NodeId(socket),
            socket: SocketId(socket),
        }
    };
    let cpus: Vec<Cpu> = (0..n * smt).map(place).collect();
    let of = |is: &dyn Fn(&Cpu) -> bool| cpus.iter().filter(|c| is(c)).map(|c| c.id).collect::<CpuSet>();
    let llc = |id| Llc { id: LlcId(id), cpus: of(&|c| c.llc.0 == id), level: 3, size_kib: Some(32 * 1024) };
    let t = Topology {
        source: "a test".into(),
        model: Some("Made-up 9000".into()),
        cores: (0..n)
            .map(|id| Core {
                id: CoreId(id),
                cpus: of(&|c| c.core.0 == id),
                l1d_kib: Some(32),
                l2_kib: Some(1024),
            })
            .collect(),
        llcs: (0..sockets * llcs).map(llc).collect(),
        nodes: (0..sockets)
            .map(|id| Node { id: NodeId(id), cpus: of(&|c| c.node.0 == id), distances: Vec::new() })
            .collect(),
        sockets: (0..sockets)
            .map(|id| Socket { id: SocketId(id), cpus: of(&|c| c.socket.0 == id) })
            .collect(),
        possible: cpus.iter().map(|c| c.id).collect(),
        offline: CpuSet::new(),
        isolated: CpuSet::new(),
        nohz_full: CpuSet::new(),
        allowed: None,
        quota: None,
        line_bytes: 64,
        is_flat: false,
        notes: Vec::new(),
        cpus,
    };
    t.check().unwrap();
    t
}

/// Samples around `ns`: all are within `spread` of it but one, which is far above, as with an interrupt.
fn slices(ns: f64, spread: f64) -> Vec<f64> {
    let wobble = |i: u32| (f64::from(i * 7919 % 101) / 101.0 - 0.5) * 2.0 * spread;
    (0..100).map(|i| if i == 50 { ns * 40.0 } else { ns * (1.0 + wobble(i)) }).collect()
}

fn results(what: &str, rows: Vec<Row>) -> Results {
    Results {
        schema: SCHEMA,
        what: what.into(),
        command: format!("warmcore bench {what} --slices 100"),
        when: "2001-02-03T04:05:06Z".into(),
        machine: HostInfo {
            cpu: "Made-up 9000 2-Core Processor".into(),
            kernel: "6.12.9".into(),
            libc: "glibc 2.41".into(),
            arch: "x86_64".into(),
            cpus: 2,
            allowed: "0-1".into(),
            hypervisor: Some("KVM".into()),
        },
        percpu_backend: "rseq (glibc)".into(),
        load: Load { loadavg_1m: 0.31, steal_share: 0.002, others_share: 0.014 },
        rows,
        timelines: Vec::new(),
    }
}

/// Made-up numbers of a plausible shape.
fn runs() -> Vec<Results> {
    let mut rows = Vec::new();
    for (case, times, promise) in [
        (
            "counter.add",
            [
                ("warmcore rseq", 0.52),
                ("plain thread-local", 0.49),
                ("warmcore atomic", 4.1),
                ("relaxed atomic", 5.8),
                ("relaxed atomic, contended", 21.0),
                ("mutex", 310.0),
            ],
            8.0,
        ),
        (
            "counter.sum",
            [
                ("warmcore rseq", 38.0),
                ("relaxed atomic", 0.9),
                ("mutex", 14.0),
                ("snapshot with membarrier", 2100.0),
                ("thread registry under a lock", 160.0),
                ("warmcore atomic", 36.0),
            ],
            0.5,
        ),
        (
            "free-list.pop-push",
            [
                ("warmcore rseq", 2.3),
                ("crossbeam SegQueue", 22.0),
                ("sharded-slab", 19.4),
                ("malloc", 9.9),
                ("mutex and Vec", 41.0),
                ("warmcore atomic", 8.8),
            ],
            12.0,
        ),
    ] {
        let wide = |variant: &str| if variant.contains("contended") { 0.9 } else { 0.06 };
        for (variant, ns) in times {
            rows.push(Row::of(case, variant, "time", "ns", &slices(ns, wide(variant))));
        }
        for (variant, ns) in
            times.iter().skip(1).filter(|(v, _)| v.contains("mutex") || v.contains("relaxed"))
        {
            let (above, below) = (slices(*ns, wide(variant)), slices(times[0].1, 0.03));
            let row = Row::ratio(case, variant, "warmcore rseq", &above, &below);
            rows.push(if *variant == "mutex" { row } else { row.promise(Bound::AtLeast, promise) });
        }
    }
    rows.push(Row::of("memory", "warmcore, 10 counters", "count", "pages", &[3.0]));
    let mut shared = Vec::new();
    for (case, same) in [("full", 11.4), ("100ns", 4.7), ("1us", 1.3), ("10us", 0.86)] {
        let case = format!("false-sharing.{case}");
        for (variant, ns, write) in [
            ("same line", same, same * 1.7),
            ("own line", 0.81, 1.2),
            ("own pair of lines", 0.80, 1.2),
            ("padding on the wrong side", same * 0.98, same * 1.65),
        ] {
            shared.push(Row::of(&case, variant, "time", "ns", &slices(ns, 0.08)));
            shared.push(Row::of(&case, variant, "time of a write", "ns", &slices(write, 0.08)));
        }
        let row = Row::ratio(&case, "same line", "own line", &slices(same, 0.05), &slices(0.81, 0.05));
        shared.push(if case.ends_with("full") { row.promise(Bound::AtLeast, 3.0) } else { row });
    }
    vec![results("percpu", rows), results("false-sharing", shared)]
}

/// A made-up run of ids, with the picture as it is recorded.
fn cid_run() -> Results {
    let mut rows = Vec::new();
    for (delay, kept_ns, kept_own) in [(10, 760.0, 100.0), (200, 19_000.0, 12.5)] {
        for kind in ["touched", "untouched"] {
            let case = format!("{}.{delay}ms.{kind}", intermittent::CASE);
            for (way, ns, own) in
                [("by cpu", 660.0, 100.0), ("kept-per-cpu", kept_ns, kept_own), ("cache-local", 690.0, 100.0)]
            {
                rows.push(Row::of(&case, way, intermittent::AFTER_A_PAUSE, "ns", &slices(ns, 0.05)));
                rows.push(Row::of(&case, way, intermittent::MEAN, "ns", &slices(ns * 0.9, 0.05)));
                rows.push(Row::exact(&case, way, intermittent::OWN, "%", own, 80));
                rows.push(Row::exact(&case, way, intermittent::FOREIGN, "%", 100.0 - own, 80));
                rows.push(Row::exact(&case, way, intermittent::FAULTS, "faults", 0.25, 80));
            }
        }
    }
    rows.push(Row::of("cid.enter", "warmcore tenant", "time", "ns", &slices(2.5, 0.02)));
    Results { timelines: recorded::record_all(), ..results("cid", rows) }
}

/// A made-up run of budgets: charges, both cases of drains, counts at a limit.
fn budget_run() -> Results {
    let mut rows = Vec::new();
    for (way, ns) in [("warmcore rseq", 0.76), ("warmcore atomic", 2.4), ("one shared atomic", 5.1)] {
        rows.push(Row::of("hit", way, "time", "ns", &slices(ns, 0.02)));
    }
    let ratio =
        Row::ratio("hit", "one shared atomic", "warmcore rseq", &slices(5.1, 0.02), &slices(0.76, 0.02));
    rows.push(ratio.promise(Bound::AtLeast, 6.0));
    for (case, slow) in [(drains::QUIET, 1.0), (drains::CONTENDED, 8.0)] {
        for (way, ns) in [
            ("warmcore rseq", 120.0),
            ("warmcore atomic", 90.0),
            ("a message, answered after 1 ms loops", 555_000.0),
            ("a helper thread there, woken", 16_000.0),
        ] {
            rows.push(Row::of(case, way, "time", "ns", &slices(ns, 0.05)));
            rows.push(Row::exact(case, way, drains::P99, "ns", ns * 4.0 * slow, 100));
        }
        let (helper, ours) = (slices(16_000.0, 0.05), slices(120.0, 0.05));
        rows.push(Row::ratio(case, drains::HELPER, "warmcore rseq", &helper, &ours));
    }
    rows.push(Row::of("limit", "warmcore atomic", "time", "ns", &slices(140.0, 0.02)));
    rows.push(
        Row::exact("limit", "warmcore atomic", "over the limit", "units", 0.0, 9).promise(Bound::AtMost, 0.0),
    );
    results("budget", rows)
}

/// The runtimes of the made-up runs, and how many times as fast as tokio each is.
const RUNTIMES: [(&str, f64); 5] = [
    ("warmcore", 1.5),
    ("warmcore shared queue", 1.2),
    ("tokio", 1.0),
    ("tokio per core", 1.6),
    ("smol", 0.4),
];

/// A made-up run of tasks that wake each other: rows that the page draws, rows that it folds, and a lower bound.
fn wake_run() -> Results {
    let mut rows = Vec::new();
    let mut case = |case: &str, metrics: &[(&str, &str, f64)]| {
        for (metric, unit, value) in metrics {
            for (who, fast) in RUNTIMES {
                let value = if *unit == "ns" { value / fast } else { value * fast };
                rows.push(Row::of(case, who, metric, unit, &slices(value, 0.05)));
            }
        }
        let (above, below) = (slices(1.5, 0.02), slices(1.0, 0.02));
        rows.push(Row::ratio(case, "warmcore", "tokio", &above, &below).promise(Bound::AtLeast, 1.0));
    };
    for kind in ["warm.yield.chase", "warm.yield.sequential"] {
        for shape in ["4x256K", "16x512K"] {
            let metrics = [
                ("touches", "k/s", 40.0),
                ("p50", "ns", 17e3),
                ("p99", "ns", 160e3),
                ("moved", "%", 3.0),
                ("slowest task", "k/s", 9.0),
                ("largest ÷ smallest", "x", 1.1),
            ];
            case(&format!("{kind}.{shape}"), &metrics);
        }
    }
    for name in ["pingpong.channel.1", "pingpong.oneshot.16"] {
        case(name, &[("round trips", "k/s", 900.0), ("p50", "ns", 1100.0), ("p99", "ns", 9000.0)]);
    }
    case("messaging.4", &[("messages", "k/s", 5000.0)]);
    case("noisy.20us", &[("p99", "ns", 650e3), ("p50", "ns", 300e3), ("hogs' polls", "k/s", 95.0)]);
    case("storm", &[("time", "ns", 3e6)]);
    rows.push(Row::exact("noisy.20us", "floor of 2 workers (computed)", "p99", "ns", 18e3, 1));
    let (metric, samples) = ("ratio, geometric mean of all", slices(1.5, 0.02));
    let mean = Row::of("warm.yield.chase", "warmcore", metric, "x", &samples);
    rows.push(Row { over: Some("tokio".into()), ..mean }.promise(Bound::AtLeast, 1.6));
    let (metric, samples) = ("ratio, slowest task, geometric mean of all", slices(1.2, 0.02));
    let slowest = Row::of("warm.yield.chase", "warmcore", metric, "x", &samples);
    rows.push(Row { over: Some("tokio".into()), ..slowest });
    results("wake", rows)
}

/// A made-up run of HTTP servers.
fn http_run() -> Results {
    let mut rows = Vec::new();
    for case in ["hello.64", "state.8"] {
        for (who, fast) in RUNTIMES {
            rows.push(Row::of(case, who, "requests", "k/s", &slices(80.0 * fast, 0.03)));
            rows.push(Row::of(case, who, "p99", "ns", &slices(2e6 / fast, 0.05)));
            rows.push(Row::exact(case, who, "errors", "errors", 0.0, 1_000_000));
        }
        let (above, below) = (slices(120.0, 0.02), slices(80.0, 0.02));
        rows.push(Row::ratio(case, "warmcore", "tokio", &above, &below).promise(Bound::AtLeast, 1.0));
    }
    rows.push(Row::exact("soak", "warmcore", "errors", "errors", 0.0, 70_000).promise(Bound::AtMost, 0.0));
    results("http", rows)
}

fn probe(t: &Topology) -> Probe {
    let cpus: Vec<u32> = t.cpus.iter().map(|c| c.id.0).collect();
    let ns = |a: u32, b: u32| {
        let ns = match t.distance(CpuId(a), CpuId(b))? {
            Distance::Same => return None,
            Distance::Smt => 9.0,
            Distance::Llc => 23.0,
            Distance::Node | Distance::Socket => 100.0,
            Distance::Other => 195.0,
        };
        Some(ns + f64::from((a * 31 + b * 17) % 7))
    };
    let times = |a: &u32| cpus.iter().map(|b| ns(*a, *b)).collect::<Vec<_>>();
    let hand_over_ns: Vec<Vec<Option<f64>>> = cpus.iter().map(times).collect();
    let spread = |ns: &Option<f64>| ns.map(|ns| (ns - 2.0, ns + 8.0));
    let spread_ns = hand_over_ns.iter().map(|row| row.iter().map(spread).collect()).collect();
    Probe {
        cpus,
        hand_over_ns,
        spread_ns,
        working_sets: Vec::new(),
        verdict: "The times agree with what sysfs says.".into(),
        noisy: false,
    }
}

fn doctor() -> Vec<Finding> {
    let finding = |what: &str, state, fact: &str, advice: Option<&str>| Finding {
        what: what.into(),
        state,
        fact: fact.into(),
        advice: advice.map(Into::into),
    };
    vec![
        finding("rseq", State::Ok, "registered by glibc 2.41, 32 bytes, with mm_cid", None),
        finding("membarrier", State::Ok, "private expedited rseq is there", None),
        finding(
            "clock",
            State::Limited,
            "the TSC runs under a hypervisor and is not marked invariant",
            Some("time with CLOCK_MONOTONIC: set WARMCORE_CLOCK=monotonic"),
        ),
        finding(
            "sched_ext",
            State::Missing,
            "no /sys/kernel/sched_ext",
            Some("boot a kernel of 6.12 or later with CONFIG_SCHED_CLASS_EXT"),
        ),
    ]
}

/// Parses markup as XML. If it is well-formed, no name in it is unescaped.
fn parsed(markup: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(markup, options).unwrap_or_else(|e| panic!("{e}:\n{markup}"))
}

fn text_of(document: &roxmltree::Document) -> String {
    document.descendants().filter(|n| n.is_text()).filter_map(|n| n.text()).collect::<Vec<_>>().join(" ")
}

/// Writes the pages that a person should look at: `cargo test -p warmcore-cli look_at -- --ignored`.
#[test]
#[ignore = "writes pages to look at"]
fn pages_to_look_at() {
    let folder = std::env::temp_dir().join("warmcore-report");
    std::fs::create_dir_all(&folder).unwrap();
    let (mut runs, doctor, all) = (runs(), doctor(), imagined());
    runs.extend([cid_run(), budget_run(), wake_run(), http_run()]);
    for (name, mut t) in
        [("2", machine(1, 1, 2, 1)), ("16", machine(2, 2, 2, 2)), ("384", machine(2, 12, 8, 2))]
    {
        if name == "384" {
            t.isolated = CpuSet::parse_list("8-15").unwrap();
            t.offline = CpuSet::parse_list("384-391").unwrap();
            t.allowed = Some(CpuSet::parse_list("0-95,192-287").unwrap());
        }
        let probe = probe(&t);
        let inputs =
            Inputs { topology: &t, probe: Some(&probe), runs: &runs, doctor: &doctor, imagined: Some(&all) };
        std::fs::write(folder.join(format!("{name}.html")), page(&inputs)).unwrap();
        std::fs::write(folder.join(format!("{name}.txt")), summary(&inputs)).unwrap();
        for (file, svg) in pictures(&inputs) {
            std::fs::write(folder.join(format!("{name}-{file}")), svg).unwrap();
        }
    }
    let t = machine(1, 1, 2, 1);
    let empty = Inputs { topology: &t, probe: None, runs: &[], doctor: &[], imagined: None };
    std::fs::write(folder.join("empty.html"), page(&empty)).unwrap();
}

#[test]
fn the_page_is_well_formed_and_loads_nothing() {
    let (t, mut runs, doctor, all) = (machine(2, 2, 2, 2), runs(), doctor(), imagined());
    runs.extend([cid_run(), budget_run(), wake_run(), http_run()]);
    let probe = probe(&t);
    let inputs =
        Inputs { topology: &t, probe: Some(&probe), runs: &runs, doctor: &doctor, imagined: Some(&all) };
    let page = page(&inputs);
    let document = parsed(&page);
    let loads = ["script", "link", "img", "iframe", "object", "image", "use"];
    for node in document.descendants().filter(|n| n.is_element()) {
        assert!(!loads.contains(&node.tag_name().name()), "{node:?} may load something");
        // HTML, unlike XML, reads `<div/>` as an opening tag.
        let void = ["meta"].contains(&node.tag_name().name());
        let inside_svg = node.ancestors().any(|a| a.has_tag_name("svg"));
        let source = &page[node.range()];
        assert!(void || inside_svg || !source.ends_with("/>"), "HTML leaves {source} open");
        for attribute in node.attributes() {
            assert!(!attribute.value().contains("://"), "{attribute:?} names an address");
        }
    }
    for outside in ["url(", "@import", "://"] {
        assert!(!page.contains(outside), "the page contains {outside}");
    }
    for (file, svg) in pictures(&inputs) {
        assert_eq!(parsed(&svg).root_element().tag_name().name(), "svg", "{file}");
        assert_eq!(svg.matches("://").count(), 1, "{file}: the name space is the only address");
        assert!(!svg.contains("var("), "{file}: a variable that nobody sets");
    }
}

#[test]
fn ids_are_unique_and_links_lead_somewhere() {
    let (t, mut runs) = (machine(1, 1, 2, 1), runs());
    runs.extend([cid_run(), budget_run(), wake_run(), http_run()]);
    let page =
        page(&Inputs { topology: &t, probe: None, runs: &runs, doctor: &[], imagined: Some(&imagined()) });
    let document = parsed(&page);
    let ids: Vec<&str> = document.descendants().filter_map(|n| n.attribute("id")).collect();
    assert_eq!(ids.len(), ids.iter().collect::<HashSet<_>>().len(), "an id occurs twice: {ids:?}");
    for link in document.descendants().filter_map(|n| n.attribute("href")) {
        assert!(ids.contains(&link.trim_start_matches('#')), "{link} leads nowhere");
    }
}

#[test]
fn hostile_names_stay_text() {
    let evil = "</title><script>alert('x')</script>&\"\u{1b}[31m\u{0}";
    let mut run = results(evil, vec![Row::of(evil, evil, evil, "ns", &[1.0, 2.0])]);
    run.rows.push(Row::ratio(evil, evil, evil, &[1.0], &[2.0]).promise(Bound::AtMost, 1.0));
    (run.command, run.percpu_backend, run.when) = (evil.into(), evil.into(), evil.into());
    run.machine.cpu = evil.into();
    run.machine.hypervisor = Some(evil.into());
    run.rows.push(Row { unit: evil.into(), ..run.rows[0].clone() });
    let span = Span { cid: u32::MAX, from_ms: 7, to_ms: 3 };
    let lanes = vec![Lane { cpu: u32::MAX, bursts: vec![span, span], kept: vec![span] }];
    run.timelines = vec![Timeline { policy: evil.into(), end_ms: 0, lanes }];
    run.rows.push(Row { case: format!("{}.{evil}.touched", intermittent::CASE), ..run.rows[0].clone() });
    run.rows.push(Row { case: drains::QUIET.into(), metric: "time".into(), ..run.rows[0].clone() });
    run.rows.push(Row { case: drains::QUIET.into(), metric: drains::P99.into(), ..run.rows[0].clone() });
    // The same hostile names in cases of the known runs, which are in titles and groups.
    for case in ["warm", "warm.yield.chase", "pingpong", "messaging", "noisy", "hello"] {
        for (metric, unit) in [("touches", "k/s"), ("requests", "k/s"), ("p50", "ns"), ("p99", "ns")] {
            let case = format!("{case}.{evil}.{evil}.{evil}");
            run.rows.push(Row { case, metric: metric.into(), unit: unit.into(), ..run.rows[0].clone() });
        }
    }
    let known = ["percpu", "false-sharing", "cid", "budget", "wake", "http"];
    let known = known.map(|what| Results { what: what.into(), ..run.clone() });
    let runs: Vec<Results> = known.into_iter().chain([run]).collect();
    let mut t = machine(1, 1, 2, 1);
    (t.source, t.notes) = (evil.into(), vec![evil.into()]);
    let probe = Probe { verdict: evil.into(), ..probe(&t) };
    let doctor =
        [Finding { what: evil.into(), state: State::Limited, fact: evil.into(), advice: Some(evil.into()) }];
    let inputs = Inputs { topology: &t, probe: Some(&probe), runs: &runs, doctor: &doctor, imagined: None };
    let page = page(&inputs);
    assert!(!page.contains("<script"), "a name became markup");
    assert!(text_of(&parsed(&page)).contains("<script>alert('x')</script>"), "a name was lost");
    for (file, svg) in pictures(&inputs) {
        parsed(&svg);
        assert!(!svg.contains("<script"), "{file}");
        assert!(
            file.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b)),
            "{file} is no file name"
        );
    }
    assert!(!summary(&inputs).contains('\u{1b}'), "a name steers the terminal");
}

#[test]
fn every_row_appears_once_and_a_noisy_one_says_so() {
    let (t, runs) = (machine(1, 1, 2, 1), runs());
    let inputs = Inputs { topology: &t, probe: None, runs: &runs, doctor: &[], imagined: None };
    let page = page(&inputs);
    let document = parsed(&page);
    let tables = document.descendants().filter(|n| n.attribute("class") == Some("raw"));
    let bodies = tables.flat_map(|table| table.descendants().filter(|n| n.has_tag_name("tbody")));
    let rows: Vec<_> = bodies.flat_map(|body| body.children().filter(|n| n.has_tag_name("tr"))).collect();
    // The page has the rows case by case, in the order of the cases.
    let of_case = |run: &'static Results, case: &str| {
        run.rows.iter().filter(|row| row.case == case).collect::<Vec<_>>()
    };
    let runs: &'static [Results] = runs.clone().leak();
    let all: Vec<&Row> =
        runs.iter().flat_map(|run| cases(run).into_iter().flat_map(|case| of_case(run, case))).collect();
    assert_eq!(rows.len(), all.len());
    for (cells, row) in rows.iter().zip(&all) {
        let texts: Vec<&str> = cells.children().filter_map(|c| c.text()).collect();
        assert!(
            texts.contains(&&*words::compared(row)) && texts.contains(&&*row.metric),
            "{texts:?}: {row:?}"
        );
        assert_eq!(texts.iter().any(|text| text.starts_with("noisy")), row.noisy, "{texts:?}");
    }
    assert!(summary(&inputs).contains("noisy"));
}

#[test]
fn what_was_not_run_is_named_with_the_command_that_adds_it() {
    let t = machine(1, 1, 2, 1);
    let inputs = Inputs { topology: &t, probe: None, runs: &[], doctor: &[], imagined: None };
    let (page, summary) = (page(&inputs), summary(&inputs));
    assert!(text_of(&parsed(&page)).contains("Nothing was measured"), "{page}");
    for (_, title, command) in EXPECTED {
        assert!(page.contains(title) && page.contains(&format!("<code>{command}</code>")), "{title}");
        assert!(summary.contains(command), "{summary}");
    }
    assert!(page.contains(&format!("<code>{PROBE_COMMAND}</code>")), "{page}");
}

/// Checks the standing of an interval, and of the inverse ratio.
#[test]
fn a_comparison_is_ahead_level_behind_or_undecided_by_its_interval() {
    for (interval, word) in [
        ([1.2, 3.0], "ahead"),
        ([1.001, 1.06], "ahead"),
        ([0.96, 1.04], "level"),
        ([1.01, 1.049], "level"),
        ([0.5, 0.9], "behind"),
        ([0.9, 1.04], "undecided"),
        ([0.99, 1.5], "undecided"),
    ] {
        assert_eq!(Standing::of(interval).word(), word, "{interval:?}");
        let turned = match word {
            "ahead" => "behind",
            "behind" => "ahead",
            same => same,
        };
        assert_eq!(Standing::of([1.0 / interval[1], 1.0 / interval[0]]).word(), turned, "{interval:?}");
    }
}

#[test]
fn an_answer_is_turned_so_that_more_is_better_whichever_way_the_row_has_it() {
    let ratio = |case: &str, metric: &str, ours: &str, other: &str, value: f64| {
        let (above, below) = (slices(value, 0.001), slices(1.0, 0.001));
        Row { metric: metric.into(), ..Row::ratio(case, ours, other, &above, &below) }
    };
    let runs = [
        // Times with the alternative in the numerator: 2 means that Warmcore takes half the time.
        results("percpu", vec![ratio("counter.add.called", "ratio", "relaxed atomic", "warmcore rseq", 2.0)]),
        // Times with Warmcore in the numerator: half the time is twice as good. Rates: half the rate is half as good.
        results(
            "wake",
            vec![
                ratio("noisy.20us", "ratio", "warmcore", "tokio", 0.5),
                ratio("pingpong.channel.16", "ratio", "warmcore", "tokio", 0.5),
            ],
        ),
        // Warmcore inlined is not compared with an atomic in a function; both in a function are compared.
        results(
            "budget",
            vec![
                ratio("hit", "ratio", "one shared atomic, in a function", "warmcore rseq", 9.0),
                ratio(
                    "hit",
                    "ratio",
                    "one shared atomic, in a function",
                    "warmcore rseq, in a function",
                    0.8,
                ),
            ],
        ),
    ];
    let all = [answers::data(&runs), answers::tasks(&runs)].concat();
    let told: Vec<(&str, String, &str)> =
        all.iter().map(|one| (one.what, format!("{:.1}", one.times), one.standing().word())).collect();
    assert_eq!(
        told,
        [
            ("a counter add, 16 counters in turn", "2.0".to_owned(), "ahead"),
            ("a charge against a limit, 3 levels deep, through a call", "0.8".to_owned(), "behind"),
            ("a ping beside 64 tasks that compute 20 µs at a time: p99 of a wake", "2.0".to_owned(), "ahead"),
            ("16 pairs of tasks that ping-pong: round trips", "0.5".to_owned(), "behind"),
        ]
    );
}

#[test]
fn the_page_counts_its_comparisons_and_shows_each_with_its_picture() {
    let (t, runs) = (machine(1, 1, 2, 1), [wake_run(), http_run()]);
    let inputs = Inputs { topology: &t, probe: None, runs: &runs, doctor: &[], imagined: None };
    let page = page(&inputs);
    let document = parsed(&page);
    let tasks = document.descendants().find(|n| n.attribute("id") == Some("tasks")).unwrap();
    let rows = tasks.descendants().filter(|n| n.has_tag_name("tr")).count() - 1;
    assert_eq!(rows, answers::tasks(&runs).len());
    assert!(rows >= 3, "{rows}");
    let dots = tasks.descendants().filter(|n| n.has_tag_name("circle")).count();
    assert_eq!(dots, rows, "a dot for each");
    assert!(page.contains(&tally(&inputs)) && tally(&inputs).contains(&format!("Of {rows} comparisons")));
    assert!(page.contains("warmcore bench percpu"), "what was not measured names its command");
}

#[test]
fn a_run_beside_busy_processes_is_marked_wherever_it_is_read() {
    let quiet = budget_run();
    let mut busy = budget_run();
    busy.load.others_share = 0.23;
    let t = machine(1, 1, 2, 1);
    let told = |run: &Results| {
        let runs = [run.clone()];
        let inputs = Inputs { topology: &t, probe: None, runs: &runs, doctor: &[], imagined: None };
        [page(&inputs), short(&inputs).replace('\n', " "), run_table(run)]
    };
    for text in told(&busy) {
        assert!(text.contains("Not quiet: other processes used 23 % of the CPUs during budget"), "{text}");
    }
    for text in told(&quiet) {
        assert!(!text.contains("Not quiet"), "{text}");
    }
}

#[test]
fn what_a_bench_expects_of_itself_stands_in_its_own_table_and_in_the_csv() {
    let wide: Vec<f64> = (1..=21).map(f64::from).collect();
    let row = Row::of("hit", "a", "ratio", "x", &wide).promise(Bound::AtLeast, 12.0);
    let run = results("budget", vec![row]);
    for text in [run_table(&run), raw_csv(std::slice::from_ref(&run))] {
        assert!(text.contains("undecided"), "{text}");
    }
}

#[test]
fn what_it_costs_to_move_data_stands_by_distance() {
    let t = machine(2, 2, 2, 2);
    let set = |to: u32, ns: f64| WorkingSet { from: 0, to, kib: 256, ns };
    let probe =
        Probe { working_sets: vec![set(0, 16_000.0), set(1, 60_000.0), set(4, 300_000.0)], ..probe(&t) };
    let told: Vec<(&str, bool, String)> = distances::moves(&t, &probe)
        .into_iter()
        .map(|one| (one.shared, one.line.is_empty(), one.working_set))
        .collect();
    assert_eq!(told[0], ("itself", true, "16.0 µs".to_owned()));
    assert!(told.contains(&("the last-level cache", false, "60.0 µs".to_owned())), "{told:?}");
    assert!(told.contains(&("only the machine", false, "300 µs".to_owned())), "{told:?}");
    // A probe that timed nothing has no moves.
    let none = Probe { hand_over_ns: Vec::new(), spread_ns: Vec::new(), working_sets: Vec::new(), ..probe };
    assert!(distances::moves(&t, &none).is_empty());
}

#[test]
fn every_cpu_is_in_the_machines_picture_once_per_width_and_inside_it() {
    let built_in = |name: &String| Topology::from_machine(MACHINES, name).unwrap();
    let made = [machine(1, 1, 2, 1), machine(1, 1, 128, 1), machine(2, 12, 8, 2), machine(1, 1, 4, 8)];
    let all: Vec<Topology> = machines(MACHINES).unwrap().iter().map(built_in).chain(made).collect();
    for mut t in all {
        t.offline = CpuSet::parse_list("5000-5001").unwrap();
        t.possible = t.online().union(&t.offline);
        let html = format!("<p>{}</p>", machine_picture::html(&t));
        let document = parsed(&html);
        for picture in document.descendants().filter(|n| n.has_tag_name("svg")) {
            let number = |n: &roxmltree::Node, name| n.attribute(name).unwrap().parse::<f64>().unwrap();
            let (width, height) = (number(&picture, "width"), number(&picture, "height"));
            let mut cpus: Vec<u32> = Vec::new();
            for node in picture.children().filter(|n| n.has_tag_name("text")) {
                cpus.extend(node.text().and_then(|t| t.parse::<u32>().ok()));
            }
            cpus.sort();
            assert_eq!(cpus, t.possible.iter().map(|c| c.0).collect::<Vec<_>>());
            for b in picture.children().filter(|n| n.has_tag_name("rect")) {
                let (right, low) =
                    (number(&b, "x") + number(&b, "width"), number(&b, "y") + number(&b, "height"));
                assert!(right <= width + 0.5 && low <= height, "{b:?} leaves {width} × {height}");
            }
        }
    }
}

#[test]
fn odd_times_are_drawn_or_listed_and_never_break_the_axis() {
    let t = machine(1, 1, 2, 1);
    for samples in
        [&[1.0][..], &[0.0], &[0.0, 0.0, 3.0], &[1e-6, 1e12], &[f64::INFINITY], &[f64::NAN], &[-1.0]]
    {
        let row = |variant: &str| Row::of("case", variant, "time", "ns", samples);
        let run = results("percpu", vec![row("the variant"), row("another")]);
        let inputs = Inputs { topology: &t, probe: None, runs: &[run], doctor: &[], imagined: None };
        let page = page(&inputs);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{samples:?}");
        assert!(page.contains("<td>the variant</td>"), "{samples:?}");
        pictures(&inputs).iter().for_each(|(_, svg)| assert!(!svg.contains("NaN"), "{samples:?}"));
    }
}

#[test]
fn a_timeline_has_a_mark_for_each_burst_with_its_id() {
    let run = cid_run();
    let svg = plot::timelines(&run.timelines, "ids");
    let document = parsed(&svg);
    let marks = document.descendants().filter(|n| n.has_tag_name("rect")).count();
    let bursts = run.timelines.iter().flat_map(|timeline| &timeline.lanes).map(|lane| lane.bursts.len());
    assert_eq!(marks, bursts.sum::<usize>());
    for timeline in &run.timelines {
        assert!(text_of(&document).contains(&timeline.policy), "{}", timeline.policy);
    }
}

#[test]
fn the_csv_has_every_row_and_quotes_what_needs_it() {
    let mut runs = runs();
    runs[0].rows[0].variant = "a \"quoted\", name".into();
    let csv = raw_csv(&runs);
    let lines: Vec<&str> = csv.split_terminator("\r\n").collect();
    assert_eq!(lines.len(), 1 + runs.iter().map(|r| r.rows.len()).sum::<usize>());
    assert!(lines[1].contains(",\"a \"\"quoted\"\", name\",time,ns,"), "{}", lines[1]);
    let commas = lines[0].matches(',').count();
    // Made-up variants with a comma are in quotes; the other lines must have a cell for each column.
    for line in lines.iter().filter(|l| !l.contains('"')) {
        assert_eq!(line.matches(',').count(), commas, "{line}");
    }
}

/// Luminance ratio of two colours by WCAG 2.1.
fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    let linear = |c: f64| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
    let light = |c: [f64; 3]| 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
    let (a, b) = (light(a), light(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

/// The least contrasts of WCAG AA: for text of usual size, and for the necessary parts of a picture.
const TEXT_CONTRAST_MIN: f64 = 4.5;
const MARK_CONTRAST_MIN: f64 = 3.0;

#[test]
fn colours_stand_out_in_both_themes() {
    let colour = |name: &str, dark: bool| {
        let (_, light, night) = markup::PALETTE.iter().find(|(n, ..)| *n == name).unwrap();
        let hex = if dark { night } else { light };
        [1, 3, 5].map(|i| f64::from(u8::from_str_radix(&hex[i..i + 2], 16).unwrap()) / 255.0)
    };
    for dark in [false, true] {
        let least = |front: &str, back: &str, min: f64| {
            let ratio = contrast(colour(front, dark), colour(back, dark));
            assert!(ratio >= min, "{front} on {back}, dark: {dark}: {ratio:.2}");
        };
        for (front, back) in
            [("ink", "paper"), ("muted", "paper"), ("accent", "paper"), ("ink", "tint"), ("muted", "tint")]
        {
            least(front, back, TEXT_CONTRAST_MIN);
        }
        least("mark", "paper", MARK_CONTRAST_MIN);
        (0..markup::COLOURS).for_each(|i| least("paper", &format!("id{i}"), TEXT_CONTRAST_MIN));
        ["good", "bad", "open"].into_iter().for_each(|standing| least(standing, "paper", TEXT_CONTRAST_MIN));
    }
}

#[test]
fn a_probe_and_a_finding_survive_json() {
    let probe = probe(&machine(1, 1, 2, 2));
    assert_eq!(serde_json::from_str::<Probe>(&serde_json::to_string(&probe).unwrap()).unwrap(), probe);
    for finding in doctor() {
        assert_eq!(
            serde_json::from_str::<Finding>(&serde_json::to_string(&finding).unwrap()).unwrap(),
            finding
        );
    }
}

/// A made-up table: a number that is met, a number that is missed, and a number that is not published.
fn imagined() -> Imagined {
    let row = |name: &str, simulated: f64, met: Option<bool>, mark: &str| warmcore_papers::JsonRow {
        name: name.into(),
        unit: "ns".into(),
        published: met.map(|_| 100.0),
        simulated: Some(simulated),
        mean: Some(simulated),
        spread: (Some(simulated), Some(simulated + 1.0)),
        seeds: 3,
        tolerance: met.map(|_| warmcore_papers::tolerance::named("cid.10_ms")),
        inputs: if mark == "fitted" { vec!["a fault of a page".into()] } else { Vec::new() },
        mark: mark.into(),
        met,
        null: None,
        null_met: met.map(|_| mark == "fitted"),
        by_construction: (mark == "by_construction").then(|| "so the model is made".into()),
        transient: usize::from(mark == "new"),
    };
    let rows = vec![
        row("8 threads, a burst", 129.0, Some(true), "predicted"),
        row("24 threads, a burst", 4000.0, Some(false), "predicted"),
        row("192 threads, a burst", 50.0, Some(false), "fitted"),
        row("churn", 7.0, None, "new"),
        row("ids", 1.0, None, "by_construction"),
    ];
    let table = warmcore_papers::Table {
        name: "cid".into(),
        machine: "somewhere".into(),
        source: "a mail".into(),
        rows,
        notes: vec!["believe it late".into()],
    };
    let input = |name: &str, low: f64, high: f64| warmcore_papers::sensitivity::Input {
        name: name.into(),
        value: 205.0,
        unit: "ns".into(),
        trust: 'E',
        basis: "[E] by analogy".into(),
        low,
        high,
    };
    let moved = warmcore_papers::sensitivity::Sensitivity {
        name: "drain".into(),
        asked: "A drain".into(),
        machine: "somewhere".into(),
        unit: "ns".into(),
        plain: 1000.0,
        inputs: vec![input("dram_remote", 700.0, 1900.0), input("mlp_read", 1100.0, 950.0)],
        still: 5,
    };
    Imagined {
        runtime: Some(Simulated {
            schema: 2,
            what: "sim runtime".into(),
            command: "warmcore sim runtime --seeds 3".into(),
            when: "2026-11-29T00:00:00Z".into(),
            interrupted: None,
            part: None,
            tables: vec![super::sides::tests::table()],
            loads: Vec::new(),
            culprit: None,
        }),
        simulated: Some(Simulated {
            schema: 1,
            what: "sim tables".into(),
            command: "warmcore sim tables --seeds 3".into(),
            when: "2001-02-03T04:05:06Z".into(),
            interrupted: Some("the drains".into()),
            part: None,
            tables: vec![table],
            loads: Vec::new(),
            culprit: None,
        }),
        sensitivities: vec![moved],
    }
}

/// The texts of the page and of the summary about `imagined`.
fn told(imagined: &Imagined) -> (String, String) {
    let t = machine(1, 1, 2, 1);
    let inputs = Inputs { topology: &t, probe: None, runs: &[], doctor: &[], imagined: Some(imagined) };
    for (file, svg) in pictures(&inputs) {
        assert_eq!(parsed(&svg).root_element().tag_name().name(), "svg", "{file}");
        assert!(!svg.contains("var(") && !svg.contains("NaN"), "{file}");
    }
    (page(&inputs), summary(&inputs))
}

#[test]
fn a_simulated_miss_is_told_as_one_wherever_it_stands() {
    let (page, summary) = told(&imagined());
    let text = text_of(&parsed(&page));
    assert!(text.contains("1 of 2 predicted numbers and 0 of 1 fitted ones are within"), "{text}");
    assert!(text.contains("1 of 3 claimed rows are within what was allowed"), "{text}");
    assert_eq!(page.matches("<td>missed</td>").count(), 2);
    assert!(text.contains("Interrupted: the drains"), "{text}");
    // The null model is mentioned, and a result by construction is not counted.
    assert!(text.contains("A model in which no proposal has any effect meets 1 of 3."), "{text}");
    assert!(text.contains("so the model is made") && text.contains("transient"), "{text}");
    assert!(text.contains("a model without any effect meets it"), "{text}");
    assert!(summary.contains("a model without any effect meets 1 of 3"), "{summary}");
    assert!(text.contains("a fault of a page"), "what was fitted is named: {text}");
    assert!(
        summary.contains("missed, predicted: 24 threads, a burst: 4.00 µs, published 100 ns"),
        "{summary}"
    );
}

#[test]
fn the_number_that_moves_an_answer_most_is_named_with_its_trust_and_source() {
    let text = text_of(&parsed(&told(&imagined()).0));
    for part in
        ["A drain", "dram_remote", "205 ns", "700 ns", "1.90 µs", "estimated", "by analogy", "5 more were"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_docs_list_the_fields_of_what_moves_an_answer() {
    let docs = include_str!("../../../docs/json.md");
    let written = serde_json::to_value(imagined().sensitivities).unwrap();
    for (heading, at) in [("Sensitivity", "/0"), ("Input", "/0/inputs/0")] {
        let section = docs.split("\n## ").find(|s| s.lines().next() == Some(heading)).unwrap();
        let named = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
        let listed: HashSet<String> = section.lines().filter_map(named).collect();
        let fields: HashSet<String> =
            written.pointer(at).unwrap().as_object().unwrap().keys().cloned().collect();
        assert_eq!(listed, fields, "left: docs/json.md, right: the code, of {heading}");
    }
}

#[test]
fn rows_over_a_number_become_a_curve_with_a_ring_for_what_was_published() {
    let table = &imagined().simulated.unwrap().tables[0];
    let [svg] = &elsewhere::charts(table)[..] else { panic!("one unit, one chart") };
    let document = parsed(svg);
    let rings =
        document.descendants().filter(|n| n.has_tag_name("circle") && n.attribute("fill") == Some("none"));
    assert_eq!(rings.count(), 3, "{svg}");
    assert!(text_of(&document).contains("a burst") && text_of(&document).contains("threads"), "{svg}");
}

#[test]
fn what_was_not_simulated_says_how_to_add_it() {
    let (page, summary) = told(&Imagined::default());
    assert!(text_of(&parsed(&page)).contains("warmcore sim tables --json sim.json"), "{page}");
    assert!(summary.contains("sim-tables"), "{summary}");
}

#[test]
fn the_curves_of_runtimes_stand_above_what_they_rest_on() {
    let (page, _) = told(&imagined());
    let text = text_of(&parsed(&page));
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
    assert!(at("warm sets, 50 % of the CPUs") < at("What these curves rest on"), "{text}");
    assert!(at("What these curves rest on") < at("lengths are estimates"), "{text}");
    assert!(text.contains("warmcore sim runtime --seeds 3"), "{text}");
    let (page, _) = told(&Imagined { runtime: None, ..imagined() });
    assert!(page.contains("warmcore sim runtime --json sim-runtime.json"), "it says how to add them");
}

#[test]
fn hostile_names_in_what_was_simulated_stay_text() {
    let evil = "</title><script>alert('x')</script>&\"\u{1b}[31m\u{0}";
    let mut all = imagined();
    let simulated = all.simulated.as_mut().unwrap();
    (simulated.command, simulated.what) = (evil.into(), evil.into());
    let table = &mut simulated.tables[0];
    (table.name, table.machine, table.source, table.notes) =
        (evil.into(), evil.into(), evil.into(), vec![evil.into()]);
    for row in &mut table.rows {
        (row.name, row.unit, row.mark, row.inputs) =
            (evil.into(), evil.into(), evil.into(), vec![evil.into()]);
        (row.simulated, row.spread) = (None, (None, Some(f64::MAX)));
    }
    let one = &mut all.sensitivities[0];
    (one.name, one.asked, one.machine, one.unit) = (evil.into(), evil.into(), evil.into(), evil.into());
    let input = &mut one.inputs[0];
    (input.name, input.unit, input.basis, input.trust) = (evil.into(), evil.into(), evil.into(), '<');
    (input.low, input.high) = (f64::NAN, f64::INFINITY);
    let (page, summary) = told(&all);
    assert!(!page.contains("<script") && !summary.contains('\u{1b}'));
    parsed(&page);
}

/// The results of the newest report of the repository in which a bench has expectations of itself. A report may also
/// be about one comparison alone.
fn newest_report() -> Vec<Results> {
    let reports = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reports");
    let mut folders: Vec<_> =
        std::fs::read_dir(reports).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let has_expectations =
        |results: &Vec<Results>| results.iter().any(|run| run.rows.iter().any(|row| row.target.is_some()));
    folders.iter().rev().map(|folder| results_in(folder)).find(has_expectations).unwrap()
}

/// The results of the benches in a folder.
fn results_in(folder: &std::path::Path) -> Vec<Results> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    // Files of simulations and probes are no results of a bench.
    let is_other = |name: &str| ["sim", "probe"].iter().any(|other| name.starts_with(other));
    let results = files.iter().filter(|path| !is_other(path.file_name().unwrap().to_str().unwrap()));
    results.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
}

/// Checks the page. To write it again, run `WARMCORE_WRITE=1 cargo test -p warmcore-report standing`.
#[test]
fn the_page_on_standing_says_what_the_newest_report_does() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/standing.md");
    let told = standing(&newest_report());
    if std::env::var_os("WARMCORE_WRITE").is_some() {
        std::fs::write(&page, &told).unwrap();
    }
    assert_eq!(std::fs::read_to_string(page).unwrap(), told, "docs/standing.md is older than the report");
}

#[test]
fn of_rows_that_were_measured_twice_the_newer_one_stands() {
    let run = |when: &str, value: f64| {
        let row = Row::exact("hit", "a|b", "ratio", "x", value, 3).promise(Bound::AtLeast, 2.0);
        Results { when: when.into(), ..results("budget", vec![row]) }
    };
    let told = standing(&[run("2001-02-04T00:00:00Z", 1.0), run("2001-02-03T00:00:00Z", 3.0)]);
    assert!(told.contains("Of 1 expectations 0 are met"), "{told}");
    assert!(told.contains("| `hit` | a\\|b | at least 2× | 1.00× |"), "{told}");
    assert!(told.contains("2001-02-04"), "{told}");
}
