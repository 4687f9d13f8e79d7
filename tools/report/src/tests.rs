use super::inputs::{EXPECTED, PROBE_COMMAND};
use super::*;
use std::collections::HashSet;
use warmcore_bench::cid::timeline as recorded;
use warmcore_results::names::drain as drains;
use warmcore_results::names::intermittent;
use warmcore_results::{Bound, HostInfo, Lane, Load, Row, SCHEMA, Span, Timeline};
use warmcore_topo::{Core, Cpu, Distance, Llc, MACHINES, Node, Socket, Topology, machines};
use warmcore_types::{CoreId, CpuId, CpuSet, LlcId, NodeId, SocketId};

/// A machine whose siblings are numbered as Linux does: first one CPU of each core.
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

/// Samples around `ns`: most close, a few far above, as interrupts make them.
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
    Results { timelines: recorded::record_all(), ..results(cids::RUN, rows) }
}

/// A made-up run of budgets: charges, drains of both sorts, what was counted at a limit.
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
    results(budgets::RUN, rows)
}

/// Who runs in the made-up runs of the runtime, and how fast over tokio.
const RUNTIMES: [(&str, f64); 5] = [
    ("warmcore", 1.5),
    ("warmcore shared queue", 1.2),
    ("tokio", 1.0),
    ("tokio per core", 1.6),
    ("smol", 0.4),
];

/// A made-up run of tasks that wake each other: what is drawn, what is folded, and a floor.
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
    results(wakes::RUN, rows)
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
    results(wakes::HTTP, rows)
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

/// Parses what we wrote: a page that is well-formed XML can't have an unescaped name.
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
        // HTML, unlike XML, takes `<div/>` for an opening tag.
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
    // The same names where the known runs put them: in their titles and groups.
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
fn every_row_appears_and_a_noisy_one_says_so() {
    let (t, runs) = (machine(1, 1, 2, 1), runs());
    let inputs = Inputs { topology: &t, probe: None, runs: &runs, doctor: &[], imagined: None };
    let page = page(&inputs);
    let document = parsed(&page);
    let raw = document.descendants().find(|n| n.attribute("class") == Some("raw")).unwrap();
    let rows: Vec<_> = raw.descendants().filter(|n| n.has_tag_name("tr")).skip(1).collect();
    let all: Vec<&Row> = runs.iter().flat_map(|r| &r.rows).collect();
    assert_eq!(rows.len(), all.len());
    for (cells, row) in rows.iter().zip(&all) {
        let texts: Vec<&str> = cells.children().filter_map(|c| c.text()).collect();
        assert!(texts.contains(&&*row.case) && texts.contains(&&*row.metric), "{texts:?} is not {row:?}");
        assert_eq!(texts.contains(&"noisy"), row.noisy, "{texts:?}");
    }
    let lines: Vec<_> =
        document.descendants().filter(|n| n.has_tag_name("li") && n.has_attribute("class")).collect();
    for line in &lines {
        let text: String = line.descendants().filter_map(|n| n.text()).collect();
        assert_eq!(line.attribute("class").unwrap().contains("noisy"), text.ends_with("noisy"), "{text}");
    }
    assert_eq!(lines.len(), all.iter().filter(|r| r.unit == "ns").count(), "a time has no line in a chart");
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
    for command in [PROBE_COMMAND, "warmcore doctor"] {
        assert!(page.contains(&format!("<code>{command}</code>")), "{command}");
    }
}

#[test]
fn the_headline_says_what_was_found_and_how_noisy_it_is() {
    let (t, mut runs) = (machine(1, 1, 2, 1), runs());
    let probe = probe(&t);
    let said = |runs: &[Results]| {
        headline::headline(&Inputs { topology: &t, probe: Some(&probe), runs, doctor: &[], imagined: None })
    };
    let before = said(&runs);
    for part in [
        "a per-CPU counter add costs 0.520 ns, 11.2× less than a relaxed atomic",
        "a read beside a busy writer costs 11.4 ns, 14.1× its price on a line of its own",
        "a cache line takes 26.0 ns from CPU to CPU.",
    ] {
        assert!(before.contains(part), "{before}");
    }
    assert!(!before.contains("noisy"), "{before}");
    runs[0].rows.iter_mut().for_each(|r| r.noisy = true);
    assert!(said(&runs).contains("less than a relaxed atomic (noisy)"), "{}", said(&runs));
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
fn a_promise_whose_interval_holds_both_sides_is_undecided_on_the_page_and_in_the_text() {
    let wide: Vec<f64> = (1..=21).map(f64::from).collect();
    let row = Row::of("hit", "a", "ratio", "x", &wide).promise(Bound::AtLeast, 12.0);
    let runs = [results(budgets::RUN, vec![row])];
    let t = machine(1, 1, 2, 1);
    let inputs = Inputs { topology: &t, probe: None, runs: &runs, doctor: &[], imagined: None };
    for text in [page(&inputs), short(&inputs), raw_csv(&runs)] {
        assert!(text.contains("undecided") && !text.contains("1 is met"), "{text}");
    }
}

#[test]
fn the_page_says_what_a_case_measures_and_begins_with_what_programs_do() {
    let row = |case: &str, ns: f64| Row::of(case, "warmcore rseq", "time", "ns", &slices(ns, 0.02));
    let cases = warmcore_results::names::percpu::CASES.iter().copied();
    assert_eq!(cases.clone().next(), Some("counter.add.called"));
    // As an older file has them: the loop first.
    let mut rows: Vec<Row> =
        cases.clone().map(|case| row(case, if case == "counter.add" { 0.5 } else { 1.6 })).collect();
    let ratio = |case: &str, peer: &str, ns: f64| {
        Row::ratio(case, peer, "warmcore rseq", &slices(ns, 0.02), &slices(1.6, 0.02))
    };
    rows.sort_by_key(|row| row.case != "counter.add");
    rows.push(ratio("counter.add.called", "thread-local += 1", 1.2));
    rows.push(ratio("counter.add.called", "relaxed atomic", 2.4));
    rows.push(ratio("counter.add", "relaxed atomic", 4.8));
    let runs = [results("percpu", rows)];
    let t = machine(1, 1, 2, 1);
    let inputs = Inputs { topology: &t, probe: None, runs: &runs, doctor: &[], imagined: None };
    let page = page(&inputs);
    let first = "On this machine a per-CPU counter add costs 1.60 ns, 1.50× less than a relaxed atomic";
    assert!(page.contains(first), "{}", headline::headline(&inputs));
    for case in cases {
        let about = words::about(case).unwrap_or_else(|| panic!("what does {case} measure?"));
        assert!(page.contains(&format!("<h4>{case}: {about}")), "{case}");
    }
}

#[test]
fn every_cpu_is_in_the_machines_picture_once_per_width_and_inside_it() {
    let built_in = |name: &String| Topology::from_machine(MACHINES, name).unwrap();
    let made = [machine(1, 1, 2, 1), machine(1, 1, 128, 1), machine(2, 12, 8, 2), machine(1, 1, 4, 8)];
    let all: Vec<Topology> = machines(MACHINES).unwrap().iter().map(built_in).chain(made).collect();
    for mut t in all {
        t.offline = CpuSet::parse_list("5000-5001").unwrap();
        t.possible = t.online().union(&t.offline);
        let html = format!("<p>{}</p>", topo_picture::html(&t));
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
        let run = results("percpu", vec![Row::of("case", "the variant", "time", "ns", samples)]);
        let inputs = Inputs { topology: &t, probe: None, runs: &[run], doctor: &[], imagined: None };
        let page = page(&inputs);
        assert!(!page.contains("NaN") && !page.contains("inf%"), "{samples:?}");
        assert_eq!(
            page.matches(">the variant<").count(),
            2,
            "{samples:?}: once in its case, once in the rows"
        );
        pictures(&inputs).iter().for_each(|(_, svg)| assert!(!svg.contains("NaN"), "{samples:?}"));
    }
}

#[test]
fn a_matrix_of_384_cpus_stays_small_and_one_of_16_has_its_numbers() {
    let t = machine(2, 12, 8, 2);
    let svg = matrix::svg(&t, &probe(&t));
    assert!(svg.len() < 300_000, "{} bytes", svg.len());
    let t = machine(2, 2, 2, 2);
    let probe = probe(&t);
    let svg = matrix::svg(&t, &probe);
    let texts: Vec<String> = parsed(&svg).descendants().filter_map(|n| n.text().map(str::to_owned)).collect();
    for ns in probe.hand_over_ns.iter().flatten().flatten().filter(|ns| **ns >= 10.0) {
        assert!(texts.contains(&format!("{ns:.0}")), "{ns} is missing");
    }
    // A probe that timed nothing, or only some pairs, is drawn all the same.
    let none = Probe { hand_over_ns: Vec::new(), spread_ns: Vec::new(), ..probe };
    parsed(&matrix::svg(&t, &none));
    assert!(matrix::by_distance(&t, &none).is_empty());
}

#[test]
fn a_timeline_is_drawn_burst_by_burst_inside_its_panel_and_told_in_numbers() {
    let (t, run) = (machine(1, 1, 2, 1), cid_run());
    let inputs =
        Inputs { topology: &t, probe: None, runs: std::slice::from_ref(&run), doctor: &[], imagined: None };
    let page = page(&inputs);
    let document = parsed(&page);
    let panels: Vec<_> = document.descendants().filter(|n| n.attribute("class") == Some("lanes")).collect();
    assert_eq!(panels.len(), run.timelines.len());
    let number = |n: &roxmltree::Node, name| n.attribute(name).unwrap().parse::<f64>().unwrap();
    for (panel, timeline) in panels.iter().zip(&run.timelines) {
        let title = panel.first_element_child().unwrap().text().unwrap();
        assert!(title.starts_with(&timeline.policy), "{title}");
        let numbers: Vec<&str> = panel
            .descendants()
            .filter(|n| n.attribute("class") == Some("inside mid"))
            .filter_map(|n| n.text())
            .collect();
        let ids = timeline.lanes.iter().flat_map(|lane| &lane.bursts).map(|burst| burst.cid.to_string());
        assert_eq!(numbers, ids.collect::<Vec<_>>());
        let (width, height) = (number(panel, "width"), number(panel, "height"));
        // Phones: 360 px, less the margins.
        assert!(width <= 328.0, "{width}");
        for r in panel.descendants().filter(|n| n.has_tag_name("rect")) {
            let (right, low) =
                (number(&r, "x") + number(&r, "width"), number(&r, "y") + number(&r, "height"));
            assert!(right <= width && low <= height, "{r:?} leaves {width} × {height}");
        }
    }
    assert!(page.contains("The same CPU, the same id: cache-local"), "the title says what one sees");
    let summary = summary(&inputs);
    for text in ["CPU 7", "  0 0 0 0 0 0 0 0", "id of each burst", "kept-per-cpu"] {
        assert!(summary.contains(text), "{text} is not in\n{summary}");
    }
    assert!(pictures(&inputs).iter().any(|(name, _)| name == "cid-timeline.svg"));
}

#[test]
fn the_run_of_ids_counts_in_words_and_groups_its_delays() {
    let (t, run) = (machine(1, 1, 2, 1), cid_run());
    let inputs =
        Inputs { topology: &t, probe: None, runs: std::slice::from_ref(&run), doctor: &[], imagined: None };
    let said = headline::headline(&inputs);
    assert!(
        said.contains("after a delay of 200 ms a CPU finds its own data in 100 % of its bursts"),
        "{said}"
    );
    assert!(said.contains("in 12.5 % with ids that expire"), "{said}");
    let charts = cids::charts(&run);
    let names: Vec<&str> = charts.iter().map(|c| &*c.name).collect();
    assert_eq!(names, ["cid-intermittent-touched", "cid-intermittent-untouched", "cid-enter"]);
    assert_eq!(charts[0].groups.iter().map(|(_, rows)| rows.len()).collect::<Vec<_>>(), [3, 3]);
    let counted = cids::counted(&run);
    assert_eq!(counted.len(), 12);
    assert!(counted.iter().all(|cells| cells.len() == cids::COUNTED.len()));
    assert_eq!(counted[10][..5], ["200 ms, untouched", "kept-per-cpu", "12.5 %", "87.5 %", "–"]);
}

#[test]
fn drains_stand_in_one_chart_with_their_slow_ones_and_what_was_counted_is_not_folded() {
    let (t, run) = (machine(1, 1, 2, 1), budget_run());
    let inputs =
        Inputs { topology: &t, probe: None, runs: std::slice::from_ref(&run), doctor: &[], imagined: None };
    let said = headline::headline(&inputs);
    for part in [
        "a charge against a limit costs 0.760 ns, 6.71× less than one shared atomic",
        "what another CPU holds ready is taken back in 120 ns, 133× faster than by a thread that is woken there",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let charts = budgets::charts(&run);
    let names: Vec<&str> = charts.iter().map(|c| &*c.name).collect();
    assert_eq!(names, ["budget-hit", "budget-drain", "budget-limit"]);
    assert_eq!(charts[1].groups.iter().map(|(_, rows)| rows.len()).collect::<Vec<_>>(), [4, 4]);
    let page = page(&inputs);
    assert!(page.contains("<small>p99 2.22 ms</small>") && page.contains("99 of 100 at or below 480 ns"));
    let document = parsed(&page);
    let counted = document.descendants().find(|n| n.text() == Some("over the limit (units)")).unwrap();
    assert!(!counted.ancestors().any(|n| n.has_tag_name("details")), "only ratios are folded");
    assert_eq!(budgets::counted(&run, "limit").1, [["warmcore atomic", "0 ✓"]]);
    assert_eq!(charts[2].title, "limit: four threads at their limit on two CPUs");
    assert!(pictures(&inputs).iter().any(|(name, _)| name == "budget-drain.svg"));
}

/// A title of so many letters fits a picture that stands alone.
const TITLE_CHARS_MAX: usize = 74;

#[test]
fn the_runtime_is_drawn_part_by_part_over_tokio_and_beside_its_floor() {
    let (t, runs) = (machine(1, 1, 2, 1), [wake_run(), http_run()]);
    let inputs = Inputs { topology: &t, probe: None, runs: &runs, doctor: &[], imagined: None };
    let names = |run| wakes::charts(run).into_iter().map(|c| c.name).collect::<Vec<_>>();
    let warm = ["wake-warm-yield-chase", "wake-warm-yield-chase-slowest", "wake-warm-yield-chase-p99"];
    let folded = [
        "wake-warm-yield-sequential",
        "wake-warm-yield-sequential-slowest",
        "wake-warm-yield-sequential-p99",
    ];
    let others = ["wake-pingpong", "wake-pingpong-times", "wake-messaging", "wake-noisy", "wake-storm"];
    assert_eq!(names(&runs[0]), [&warm[..], &folded, &others].concat());
    assert_eq!(names(&runs[1]), ["http-requests", "http-p99"]);
    let files = pictures(&inputs);
    for name in names(&runs[0]).into_iter().chain(names(&runs[1])) {
        assert!(files.iter().any(|(file, _)| *file == format!("{name}.svg")), "{name} is no file");
    }

    for chart in runs.iter().flat_map(wakes::charts) {
        assert!(chart.title.chars().count() <= TITLE_CHARS_MAX, "{} leaves its picture", chart.title);
    }

    let parts = wakes::parts(&runs[0]);
    let folded: Vec<_> = parts.iter().filter(|part| part.is_folded).map(|part| &*part.title).collect();
    let in_order = "Warm sets touched in order, then a yield";
    assert_eq!(folded, [in_order, "storm"]);
    let touches = &parts[0].charts[0].groups;
    assert_eq!(touches[0].0.as_deref(), Some("4 tasks with 256 KiB each; 1× is 40.0 k/s"));
    let drawn: Vec<(&str, String)> =
        touches[0].1.iter().map(|r| (&*r.variant, markup::amount(r.median, &r.unit))).collect();
    // Our other policies stand in the table.
    let over_tokio =
        [("warmcore", "1.50×"), ("tokio", "1.00×"), ("tokio per core", "1.60×"), ("smol", "0.400×")];
    assert_eq!(drawn, over_tokio.map(|(who, times)| (who, times.to_owned())));
    let (heads, lines) = wakes::numbers(&runs[0], &parts[0].cases);
    assert_eq!(
        heads,
        ["case", "variant", "#touches", "#p50", "#p99", "#moved", "#slowest task", "#largest ÷ smallest"]
    );
    assert_eq!(lines.len(), 2 * RUNTIMES.len());

    let noisy = wakes::charts(&runs[0]).into_iter().find(|c| c.name == "wake-noisy").unwrap();
    assert!(noisy.groups[0].1[0].variant.starts_with("floor"), "the floor is above the others");
    let said = headline::headline(&inputs);
    for part in [
        "tasks that yield between touches of their own data touch it 1.50× as often as on tokio, the slowest of them 1.20× as often as the slowest there",
        "an HTTP server of short answers to 64 connections gives 1.50× as many as on tokio",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let page = page(&inputs);
    for tally in ["Of 10 promises 9 are met and 1 is missed.", "Of 3 promises 3 are met."] {
        assert!(page.contains(tally), "each run says how its own promises stand");
    }
}

#[test]
fn a_rate_is_said_in_the_unit_that_keeps_it_short() {
    let said = [0.0, 0.7, 40.0, 999.0, 11_473.0].map(|rate| markup::amount(rate, "k/s"));
    assert_eq!(said, ["0 k/s", "700 /s", "40.0 k/s", "999 k/s", "11.5 M/s"]);
    let ticks = [0.01, 0.5, 500.0, 20_000.0].map(|rate| markup::tick_of(rate, "k/s"));
    assert_eq!(ticks, ["10 /s", "500 /s", "500 k/s", "20 M/s"]);
    assert_eq!([0.1, 2.0].map(|ratio| markup::tick_of(ratio, "x")), ["0.1×", "2×"]);
}

#[test]
fn a_part_of_the_runtime_that_was_not_run_is_not_drawn() {
    let t = machine(1, 1, 2, 1);
    let mut run = wake_run();
    run.rows
        .retain(|r| r.case.starts_with("pingpong") && r.variant != "tokio" || r.case.ends_with("16x512K"));
    run.rows.retain(|r| !(r.case.starts_with("warm") && r.variant == "tokio"));
    let names: Vec<String> = wakes::charts(&run).into_iter().map(|c| c.name).collect();
    // Nothing can stand over a tokio that did not run.
    let p99 = ["wake-warm-yield-chase-p99", "wake-warm-yield-sequential-p99"];
    assert_eq!(names, [&p99[..], &["wake-pingpong", "wake-pingpong-times"]].concat());
    let inputs =
        Inputs { topology: &t, probe: None, runs: std::slice::from_ref(&run), doctor: &[], imagined: None };
    let page = page(&inputs);
    assert!(!page.contains("Messaging") && !page.contains("Noisy neighbour"));
    assert!(page.contains("<code>warmcore bench http --json http.json</code>"));
    assert_eq!(page.matches("draw the page again").count(), 1);
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
    // Made-up variants with a comma stand in quotes; the others must have a cell per head.
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

/// WCAG AA for text of usual size, and for parts of a picture that one must see to read it.
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
        let (paper, accent) = (colour("paper", dark), colour("accent", dark));
        let share = markup::SHADE_MAX_UNDER_TEXT;
        let shade = [0, 1, 2].map(|i| paper[i] * (1.0 - share) + accent[i] * share);
        let ratio = contrast(colour("ink", dark), shade);
        assert!(ratio >= TEXT_CONTRAST_MIN, "ink on the strongest shade, dark: {dark}: {ratio:.2}");
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

/// A made-up table: a number that is met, one that is missed, one that nobody published.
fn imagined() -> Imagined {
    let row = |name: &str, simulated: f64, met: Option<bool>, mark: &str| imagined::Row {
        name: name.into(),
        unit: "ns".into(),
        published: met.map(|_| 100.0),
        simulated: Some(simulated),
        spread: (Some(simulated), Some(simulated + 1.0)),
        tolerance: met.map(|_| warmcore_papers::tolerance::named("cid.10_ms")),
        inputs: if mark == "fitted" { vec!["a fault of a page".into()] } else { Vec::new() },
        mark: mark.into(),
        met,
        null_met: met.map(|_| mark == "fitted"),
        by_construction: (mark == "by_construction").then(|| "so the model is made".into()),
        transient: usize::from(mark == "new"),
    };
    let rows = vec![
        row("8 threads", 129.0, Some(true), "predicted"),
        row("24 threads", 4000.0, Some(false), "predicted"),
        row("192 threads", 50.0, Some(false), "fitted"),
        row("churn", 7.0, None, "new"),
        row("ids", 1.0, None, "by_construction"),
    ];
    let table = imagined::Table {
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
    let run = |pair, from_ns, came_from_llc| Run { pair, from_ns, to_ns: from_ns + 20_000, came_from_llc };
    let lane = |cpu, llc, runs| imagined::Lane { cpu, llc, runs, wakes_ns: vec![25_000] };
    let panel = |policy: &str, came| Panel {
        policy: policy.into(),
        trips_per_second: 1_500_000,
        lanes: vec![lane(0, 0, vec![run(1, 0, None), run(9, 30_000, came)]), lane(1, 1, vec![])],
    };
    let lanes = Lanes {
        machine: "2 CPUs".into(),
        load: "2 pairs".into(),
        from_ns: 0,
        to_ns: 100_000,
        panels: vec![panel("Linux", Some(1)), panel("hot windows", None)],
    };
    Imagined {
        simulated: Some(Simulated {
            schema: 1,
            what: "sim tables".into(),
            command: "warmcore sim tables --seeds 3".into(),
            when: "2001-02-03T04:05:06Z".into(),
            interrupted: Some("the drains".into()),
            tables: vec![table],
        }),
        pictures: Some(Pictures { schema: 1, sensitivities: vec![moved], lanes: Some(lanes) }),
    }
}

/// What a page and a summary say of `imagined`.
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
    assert!(text.contains("Of 3 numbers that were claimed, 1 is within"), "{text}");
    assert!(text.contains("✕ 1 of 2 missed") && text.contains("✕ missed"), "{text}");
    assert_eq!(page.matches("class=\"miss\"").count(), 2, "a hollow dot for each");
    assert!(text.contains("Interrupted: the drains"), "{text}");
    // A null model stands beside, and what can't come out otherwise is counted nowhere.
    assert!(text.contains("A model in which no proposal has any effect meets 1 of 3."), "{text}");
    assert!(text.contains("1 row can’t come out otherwise and is not counted"), "{text}");
    assert!(text.contains("so the model is made") && text.contains("transient"), "{text}");
    assert!(text.contains("a model without any effect meets it"), "{text}");
    assert!(
        summary.contains("1 of 3 rows within what was allowed; a model without any effect meets 1 of 3"),
        "{summary}"
    );
    assert!(text.contains("a fault of a page"), "what was fitted is named: {text}");
    assert!(summary.contains("missed, predicted: 24 threads: 4.00 µs, published 100 ns"), "{summary}");
}

#[test]
fn the_number_that_moves_an_answer_most_is_named_with_its_trust_and_source() {
    let (page, summary) = told(&imagined());
    let text = text_of(&parsed(&page));
    for part in [
        "dram_remote moves it most (205 ns, estimated)",
        "700 ns with half, 1.90 µs with twice",
        "by analogy",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("Of 7 numbers") && summary.contains("dram_remote"), "{summary}");
}

#[test]
fn lanes_count_the_moves_that_they_show() {
    let (page, summary) = told(&imagined());
    let text = text_of(&parsed(&page));
    assert!(text.contains("50.0 % of 2 runs began on another CPU"), "{text}");
    assert!(text.contains("0 % of 2 runs"), "{text}");
    assert_eq!(page.matches("class=\"moved\"").count(), 1);
    assert!(summary.contains("1.50 M/s"), "{summary}");
}

#[test]
fn what_was_not_simulated_says_how_to_add_it() {
    let (page, summary) = told(&Imagined::default());
    assert!(text_of(&parsed(&page)).contains("warmcore sim tables --json sim.json"), "{page}");
    assert!(summary.contains("sim-tables"), "{summary}");
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
    let pictures = all.pictures.as_mut().unwrap();
    let one = &mut pictures.sensitivities[0];
    (one.name, one.asked, one.machine, one.unit) = (evil.into(), evil.into(), evil.into(), evil.into());
    one.inputs[0] = warmcore_papers::sensitivity::Input {
        name: evil.into(),
        unit: evil.into(),
        basis: evil.into(),
        trust: '<',
        low: f64::NAN,
        high: f64::INFINITY,
        ..one.inputs[0].clone()
    };
    let lanes = pictures.lanes.as_mut().unwrap();
    (lanes.machine, lanes.load, lanes.to_ns) = (evil.into(), evil.into(), 0);
    lanes.panels[0].policy = evil.into();
    let (page, summary) = told(&all);
    assert!(!page.contains("<script") && !summary.contains('\u{1b}'));
    parsed(&page);
}

#[test]
fn the_docs_list_the_fields_of_what_is_drawn() {
    let docs = include_str!("../../../docs/json.md");
    let written = serde_json::to_value(imagined().pictures.unwrap()).unwrap();
    for (heading, at) in [
        ("Pictures of a report", ""),
        ("Sensitivity", "/sensitivities/0"),
        ("Input", "/sensitivities/0/inputs/0"),
    ] {
        let section = docs.split("\n## ").find(|s| s.lines().next() == Some(heading)).unwrap();
        let named = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
        let listed: HashSet<String> = section.lines().filter_map(named).collect();
        let fields: HashSet<String> =
            written.pointer(at).unwrap().as_object().unwrap().keys().cloned().collect();
        assert_eq!(listed, fields, "left: docs/json.md, right: the code, of {heading}");
    }
}
