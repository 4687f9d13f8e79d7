use super::draw::{View, draw, scroll_max};
use super::snapshot::GroupUse;
use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyEvent;
use warmcore_results::printable::is_unprintable;
use warmcore_runtime::observe::TaskGroupMetrics;
use warmcore_runtime::{RuntimeMetrics, TenantMetrics, WorkerMetrics};

/// An interval of one second on a machine of two nodes with two caches each. The third cache has no worker.
fn interval() -> Interval {
    let worker = |cpu: u32, llc: u32, node: u32| {
        let mut worker = WorkerMetrics::default();
        (worker.cpu, worker.llc, worker.node) = (cpu, llc, node);
        (worker.shard, worker.mean_poll_ns) = (llc as usize, 4_200);
        worker
    };
    let tenant = |name: &str, serial: u64, weight: u32| {
        let mut tenant = TenantMetrics::default();
        (tenant.name, tenant.serial, tenant.weight) = (name.into(), serial, weight);
        (tenant.num_alive_tasks, tenant.polls, tenant.run_ns) = (2, 1_000_000, 3_600_000_000_000);
        tenant
    };
    let mut metrics = RuntimeMetrics::default();
    (metrics.num_alive_tasks, metrics.remote_schedules) = (1_234, 100);
    metrics.injection_queue_depths = vec![0, 3, 0, 1];
    metrics.workers =
        vec![worker(0, 0, 0), worker(1, 0, 0), worker(8, 1, 0), worker(9, 1, 0), worker(192, 3, 1)];
    metrics.tenants = vec![
        tenant("a customer whose name is long", 7, 100),
        tenant("gold", 9, 300),
        tenant("still", 11, 50),
    ];
    let group = |name: Option<&str>, location: Option<&str>, num_alive_tasks| {
        let mut group = TaskGroupMetrics::default();
        (group.name, group.location) = (name.map(Into::into), location.map(Into::into));
        (group.num_alive_tasks, group.polls, group.run_ns) = (num_alive_tasks, 1_000, 1_000_000);
        group
    };
    let hyper = "/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/hyper-util-0.1.21/src/rt/tokio.rs:92:9";
    let mut task_groups = vec![
        group(Some("rebuild the index of all orders of a year"), None, 1),
        group(None, Some(hyper), 1_200),
        group(None, Some("src/main.rs:41:9"), 12),
        group(None, None, 21),
    ];
    task_groups[0].tenant = Some("a customer whose name is long".into());
    let before = Snapshot {
        pid: 4321,
        process: "shop".into(),
        name: "orders".into(),
        policy: "home".into(),
        at_ns: 5_000_000_000,
        up_ns: 3_600_000_000_000,
        metrics,
        task_groups,
    };
    let mut now = before.clone();
    now.at_ns = 6_000_000_000;
    let metrics = &mut now.metrics;
    metrics.remote_schedules = 150;
    // The second to the fourth worker also run the driver; foreign tasks dominate the second worker.
    let used_ms = [(1000, 1000), (750, 100), (340, 300), (2, 1), (0, 0)];
    for (worker, (busy_ms, own_ms)) in metrics.workers.iter_mut().zip(used_ms) {
        worker.busy_ns += busy_ms * 1_000_000;
        worker.own_ns += own_ms * 1_000_000;
    }
    let busy = &mut metrics.workers[0];
    (busy.stats.polls, busy.stats.same_worker, busy.stats.same_llc) = (123_456, 120_000, 2_000);
    (busy.stats.other_llc, busy.stats.other_node, busy.stats.first_polls) = (400, 56, 1_000);
    (busy.local_queue_depth, busy.stats.steal_operations) = (17, 310);
    let next = &mut metrics.workers[1];
    (next.stats.polls, next.stats.same_worker, next.foreign_tasks) = (9_999, 9_999, 3);
    // One worker is in a long poll, and one worker is parked.
    let stuck = &mut metrics.workers[2];
    (stuck.is_stuck, stuck.stats.long_polls, stuck.stats.polls, stuck.stats.same_worker) = (true, 2, 12, 12);
    (metrics.workers[3].is_idle, metrics.workers[4].is_idle) = (true, true);
    // The first tenant has a quarter of 1.6 CPUs, the second three quarters.
    for (tenant, (polls, run_ms)) in metrics.tenants.iter_mut().zip([(900, 400), (88_000, 1_200)]) {
        (tenant.polls, tenant.run_ns) = (tenant.polls + polls, tenant.run_ns + run_ms * 1_000_000);
    }
    metrics.tenants[1].num_alive_tasks = 1_200;
    for (group, (polls, run_ms)) in
        now.task_groups.iter_mut().zip([(900, 390), (100_000, 900), (0, 0), (60, 1)])
    {
        (group.polls, group.run_ns) = (group.polls + polls, group.run_ns + run_ms * 1_000_000);
        (group.moves, group.llc_moves) = (polls / 8, polls / 40);
    }
    Interval::between(&before, now)
}

fn screen(interval: &Interval, view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(interval, view, frame.area(), frame.buffer_mut())).unwrap();
    let cells = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| cells[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
}

fn live() -> View {
    View { is_live: true, ..View::default() }
}

/// Compares with a golden file. With `UPDATE` in the environment the file is written again; then check the diff.
fn compare(file: &str, drawn: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top").join(file);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, drawn).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(drawn, kept, "\n{drawn}\nis not {file}:\n{kept}");
}

#[test]
fn a_wide_screen_shows_everything() {
    compare("wide.txt", &screen(&interval(), &live(), 132, 25));
}

#[test]
fn eighty_columns_show_every_distance_and_what_each_tenant_uses() {
    compare("80.txt", &screen(&interval(), &live(), 80, 25));
}

#[test]
fn forty_columns_show_busy_workers_and_wakes_that_leave_their_worker() {
    compare("40.txt", &screen(&interval(), &live(), 40, 25));
}

#[test]
fn no_size_is_too_small_and_none_writes_outside() {
    let interval = interval();
    for width in 0..140 {
        for height in [0, 1, 2, 3, 5, 8, 40] {
            let view = View { scroll: height, ..live() };
            let area = Rect::new(0, 0, width, height);
            draw(&interval, &view, area, &mut Buffer::empty(area));
        }
        for line in plain(&interval, width).lines() {
            assert!(line.chars().count() <= width.into(), "{line:?} is wider than {width}");
        }
    }
}

#[test]
fn what_does_not_fit_is_scrolled_to() {
    let interval = interval();
    let small = Rect::new(0, 0, 80, 7);
    let top = screen(&interval, &live(), 80, 7);
    assert!(top.contains("LLC 0") && !top.contains("  192 "), "{top}");
    assert!(top.contains("q quits · ↓ 17 more lines"), "{top}");
    let end = screen(&interval, &View { scroll: scroll_max(&interval, small), ..live() }, 80, 7);
    assert!(end.contains("src/main.rs:41:9") && end.contains("shop (4321)"), "{end}");
    assert!(end.contains("q quits · ↑ more lines"), "{end}");
    assert_eq!(scroll_max(&interval, Rect::new(0, 0, 80, 40)), 0);
}

#[test]
fn without_tenants_nothing_is_said_of_them_and_of_many_those_that_ran_longest() {
    let mut interval = interval();
    let one = interval.now.metrics.tenants[0].clone();
    (interval.now.metrics.tenants, interval.uses) = (Vec::new(), Vec::new());
    (interval.now.task_groups, interval.group_uses) = (Vec::new(), Vec::new());
    assert!(!plain(&interval, 80).contains("tenant"), "{}", plain(&interval, 80));
    let before = interval.now.clone();
    let mut now = interval.now;
    now.at_ns += 1_000_000_000;
    let tenant = |n| {
        let mut tenant = one.clone();
        (tenant.name, tenant.serial, tenant.polls, tenant.run_ns) = (format!("t{n}"), n, n, n * 1_000);
        tenant
    };
    now.metrics.tenants = (0..1_234).map(tenant).collect();
    let drawn = plain(&Interval::between(&before, now), 80);
    assert!(
        drawn.contains("\nt1233 ") && drawn.contains("\nt1134 ") && !drawn.contains("\nt1133 "),
        "{drawn}"
    );
    assert!(drawn.ends_with("and 1.1k tenants that ran less\n"), "{drawn}");
}

#[test]
fn a_tenant_that_is_new_has_its_rates_and_shares_are_of_what_all_tenants_ran() {
    let interval = interval();
    let percent = |of_it: &Use| (of_it.tenant, (of_it.share * 100.0).round(), (of_it.run * 100.0).round());
    let uses: Vec<_> = interval.uses.iter().map(percent).collect();
    assert_eq!(uses, [(1, 75.0, 120.0), (0, 25.0, 40.0), (2, 0.0, 0.0)]);
    let mut before = interval.now.clone();
    before.metrics.tenants.clear();
    before.at_ns -= 1_000_000_000;
    let mut now = interval.now.clone();
    now.metrics.tenants.truncate(1);
    now.metrics.tenants[0].polls = 50;
    assert_eq!(Interval::between(&before, now).uses[0].polls, 50.0);
}

#[test]
fn a_group_of_tasks_that_is_new_has_its_rates_and_one_that_counts_anew_has_none() {
    let interval = interval();
    let rates = |interval: &Interval| {
        let rates = |it: &GroupUse| (it.group, (it.run * 100.0).round(), it.polls);
        interval.group_uses.iter().map(rates).collect::<Vec<_>>()
    };
    assert_eq!(rates(&interval), [(1, 90.0, 1e5), (0, 39.0, 900.0), (3, 0.0, 60.0), (2, 0.0, 0.0)]);
    let mut before = interval.now.clone();
    before.at_ns -= 1_000_000_000;
    before.task_groups.remove(2);
    let mut now = interval.now;
    now.task_groups.truncate(3);
    now.task_groups[1].polls = 3;
    assert_eq!(rates(&Interval::between(&before, now)), [(2, 0.0, 1_000.0), (1, 0.0, 0.0), (0, 0.0, 0.0)]);
}

#[test]
fn of_many_groups_of_tasks_those_that_ran_longest_have_a_line() {
    let mut interval = interval();
    let before = interval.now.clone();
    let group = |n: u64| {
        let mut group = TaskGroupMetrics::default();
        (group.name, group.run_ns) = (Some(format!("t{n}")), n * 1_000);
        group
    };
    interval.now.at_ns += 1_000_000_000;
    interval.now.task_groups = (0..1_000).map(group).collect();
    let interval = Interval::between(&before, interval.now);
    let drawn = plain(&interval, 80);
    assert!(drawn.contains("\nt999 ") && drawn.contains("\nt900 ") && !drawn.contains("\nt899 "), "{drawn}");
    assert!(drawn.ends_with("and 900 groups of tasks that ran less\n"), "{drawn}");
}

#[test]
fn the_end_of_a_process_is_said_in_words_under_its_last_numbers() {
    let view = View { end: Some("process 4321 has ended".into()), ..live() };
    let drawn = screen(&interval(), &view, 80, 25);
    assert!(drawn.ends_with("process 4321 has ended; q quits\n"), "{drawn}");
    assert!(drawn.contains("polls/s"), "{drawn}");
}

#[test]
fn busy_is_what_the_thread_used_and_foreign_what_its_driver_did_for_foreign_tasks() {
    let interval = interval();
    let percent = |share: f64| (share * 100.0).round();
    let used: Vec<_> = interval.rates.iter().map(|it| (percent(it.busy), percent(it.foreign))).collect();
    assert_eq!(used, [(100.0, 0.0), (75.0, 65.0), (34.0, 0.0), (0.0, 0.0), (0.0, 0.0)]);
    assert_eq!(interval.dominated().collect::<Vec<_>>(), [1]);
    assert_eq!(interval.foreign_imbalance(), Some((1, 3)));
    let same = Interval::between(&interval.now, interval.now.clone());
    assert!(same.rates.iter().all(|rates| *rates == Rates::default()), "{same:?}");
}

#[test]
fn foreign_tasks_that_dominate_a_worker_are_marked_and_reported_where_others_idle() {
    let mut interval = interval();
    let cells = |interval: &Interval| {
        let area = Rect::new(0, 0, 80, 19);
        let mut cells = Buffer::empty(area);
        draw(interval, &live(), area, &mut cells);
        cells
    };
    let colour = |cells: &Buffer, line: &str, of: &str| {
        let row = |y| (0..80).map(|x| cells[(x, y)].symbol()).collect::<String>();
        let y = (0..19).find(|y| row(*y).trim_start().starts_with(line)).unwrap();
        let x = row(y).char_indices().position(|(at, _)| row(y)[at..].starts_with(of)).unwrap();
        cells[(x as u16, y)].fg
    };
    let drawn = cells(&interval);
    assert_eq!(colour(&drawn, "1 f", "3, 65 %"), ratatui::style::Color::Magenta);
    let told = "CPU 1: 65 % goes to 3 tasks of tokio::spawn, which stay there; 3 others idle";
    assert!(plain(&interval, 80).contains(told) && told.chars().count() <= 80, "{}", plain(&interval, 80));
    // If foreign tasks take little time, no worker is marked; if no worker idles, nothing is reported.
    interval.rates[1].foreign = 0.3;
    assert_eq!(colour(&cells(&interval), "1  ", "3, 30 %"), ratatui::style::Color::Reset);
    assert_eq!(interval.foreign_imbalance(), None);
    interval.rates[1].foreign = 0.7;
    interval.rates.iter_mut().for_each(|rates| rates.busy = 0.9);
    assert_eq!((interval.foreign_imbalance(), interval.dominated().count()), (None, 1));
}

#[test]
fn a_runtime_that_was_replaced_meanwhile_has_no_rates_below_zero() {
    let interval = interval();
    let mut older = interval.now.clone();
    older.at_ns += 1_000_000_000;
    older.metrics.workers.truncate(2);
    let workers = older.metrics.workers.iter_mut();
    workers.for_each(|worker| (worker.stats.polls, worker.stats.same_worker) = (0, 0));
    let between = Interval::between(&interval.now, older);
    assert_eq!((between.total(|it| it.polls), between.total(|it| it.same_worker)), (0.0, 0.0));
}

#[test]
fn another_version_is_an_error_and_an_unknown_field_is_not() {
    let error = Snapshot::parse(r#"{"schema":1,"what":"top"}"#).unwrap_err().to_string();
    assert!(error.contains("version 1,") && error.contains("version 3:"), "{error}");
    assert!(Snapshot::parse("").is_err());
    let line = r#"{"schema":3,"what":"top","pid":1,"process":"p","name":"a","policy":"home","at_ns":1,"up_ns":1,
        "num_alive_tasks":7,"remote_schedules":8,"injection_queue_depths":[9],"workers":[],"new":{}}"#;
    assert_eq!(Snapshot::parse(line).unwrap().name, "a");
}

#[test]
fn an_answer_of_the_version_before_is_read() {
    let line = r#"{"schema":2,"what":"top","pid":1,"process":"p","name":"a","policy":"home","at_ns":1,"up_ns":1,
        "num_alive_tasks":7,"remote_schedules":8,"injection_queue_depths":[9],"workers":[],"tenants":[]}"#;
    let line = line.replace("num_alive_tasks", "living"); // alias: the name in the previous version
    let line = line.replace("remote_schedules", "outside_wakes"); // alias
    let line = line.replace("injection_queue_depths", "shelves"); // alias
    let read = Snapshot::parse(&line).unwrap();
    let read = read.metrics;
    assert_eq!((read.num_alive_tasks, read.remote_schedules, read.injection_queue_depths), (7, 8, vec![9]));
}

/// A hostile answer, from a process without Warmcore: every number is as large as possible, every text is an attack.
fn hostile() -> String {
    let text = "\\u001b[2J\\u009b\\u202e\u{9d}\u{202e}\\u2028\u{2029}\u{61c}\u{e0041}".to_owned()
        + &"x".repeat(1 << 16);
    let (most, few) = (u64::MAX, u32::MAX);
    let worker: Vec<String> = ["mean_poll_ns", "cpu", "llc", "node", "shard", "local_queue_depth"]
        .iter()
        .map(|name| format!("\"{name}\":{few}"))
        .chain(
            [
                "foreign_tasks",
                "polls",
                "same_worker",
                "same_llc",
                "other_llc",
                "other_node",
                "first_polls",
                "steal_operations",
            ]
            .iter()
            .chain(&["busy_ns", "own_ns", "long_polls"])
            .map(|name| format!("\"{name}\":{most}")),
        )
        .collect();
    let worker = format!("{{\"is_idle\":true,\"is_stuck\":true,{}}}", worker.join(","));
    let tenant = format!(
        r#"{{"name":"{text}","serial":{most},"weight":{few},"num_alive_tasks":{most},"polls":{most},"run_ns":{most}}}"#
    );
    format!(
        r#"{{"schema":3,"what":"top","pid":{few},"process":"{text}","name":"{text}","policy":"{text}","at_ns":{most},"up_ns":{most},"num_alive_tasks":{most},"remote_schedules":{most},"injection_queue_depths":[{few},{few}],"workers":[{worker},{worker}],"tenants":[{tenant},{tenant}]}}"#
    ) + "\n"
}

#[test]
fn what_a_hostile_process_says_neither_reaches_the_terminal_nor_ends_the_command() {
    let now = Snapshot::parse(&hostile()).unwrap();
    let mut before = now.clone();
    let metrics = &mut before.metrics;
    (before.at_ns, metrics.workers[0].stats.polls, metrics.remote_schedules) = (0, 0, 0);
    for (interval, width) in
        [(Interval::between(&before, now.clone()), 80), (Interval::between(&now, before), 132)]
    {
        let drawn = plain(&interval, width);
        let is_bad = |c: char| c != '\n' && is_unprintable(c);
        assert!(!drawn.contains(is_bad), "{drawn:?}");
        assert!(drawn.lines().all(|line| line.chars().count() <= width.into()), "{drawn}");
    }
    // As JSON it has the same meaning, in one line.
    let value = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
    let line = checked(&hostile()).unwrap();
    assert!(!line.contains(is_unprintable));
    assert_eq!(value(&line), value(&hostile()));
    let text = said();
    assert_eq!(checked(&text).unwrap() + "\n", text);
    for wrong in ["\u{1b}[2J\n", "{\"schema\":\"\u{9b}2J\"}\n", "{\"schema\":2,\"\u{9b}\":1}\n"] {
        let error = format!("{:#}", checked(wrong).unwrap_err());
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

#[test]
fn a_name_from_another_process_does_not_reach_the_terminal_as_it_is() {
    let line = said().replace("\"said\"", "\"a\\u001b[2J\\nb\"");
    let now = Snapshot::parse(&line).unwrap();
    let drawn = plain(&Interval::between(&now.clone(), now), 200);
    assert!(!drawn.contains('\u{1b}') && drawn.contains(" · runtime a [2J b ·"), "{drawn:?}");
}

#[test]
fn keys_do_what_the_last_line_says() {
    let key = |code| Event::Key(KeyEvent::from(code));
    assert_eq!(act(&key(KeyCode::Char('q'))), Act::Quit);
    assert_eq!(act(&key(KeyCode::Esc)), Act::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(act(&Event::Key(interrupt)), Act::Quit);
    assert_eq!(act(&key(KeyCode::Char('c'))), Act::Nothing);
    assert_eq!(act(&key(KeyCode::Down)), Act::Down);
    assert_eq!(act(&Event::Resize(10, 10)), Act::Nothing);
}

/// Checks that the section of docs/json.md on reports agrees with a real report.
#[test]
fn the_schema_in_the_docs_is_the_schema() {
    let docs = include_str!("../../../../docs/json.md");
    let told = |heading: &str| {
        let section = docs.split_once(heading).unwrap_or_else(|| panic!("no section{heading}")).1;
        let section = section.split_once("\n#").map_or(section, |(section, _)| section);
        let fields =
            section.lines().filter_map(|l| l.strip_prefix("| `")?.split_once('`').map(|(field, _)| field));
        fields.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let text = said();
    let said: serde_json::Value = serde_json::from_str(&text).unwrap();
    let fields = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect();
    assert_eq!(told("\n## top\n"), fields(&said));
    assert_eq!(told("\n### Worker\n"), fields(&said["workers"][0]));
    assert_eq!(told("\n### Tenant\n"), fields(&said["tenants"][0]));
    assert_eq!(told("\n### Task group\n"), fields(&said["task_groups"][0]));
    Snapshot::parse(&text).unwrap();
}

/// The report of a runtime of this process. Tests run on several threads: the lock keeps the name one runtime's.
fn said() -> String {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = warmcore_types::ignore_poison(ONE.lock());
    let runtime =
        warmcore_runtime::Runtime::builder().worker_threads(1).name("said").observe(true).build().unwrap();
    let tenant = warmcore_tenant::Tenant::builder().build();
    runtime.block_on(runtime.spawn_in(&tenant, async {})).unwrap();
    let _waits = runtime.spawn(std::future::pending::<()>());
    let ours = observe::list().into_iter().filter(|one| one.pid == std::process::id());
    let text = ours.filter_map(|one| one.ask().ok()).find(|text| text.contains("\"name\":\"said\""));
    drop(runtime);
    text.expect("it is listed")
}
