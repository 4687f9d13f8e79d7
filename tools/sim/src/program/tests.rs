use super::*;
use crate::costs::Costs;
use crate::policy::Kernel;
use crate::simulation::{Settings, Simulation};
use warmcore_topo::{MACHINES, Topology};

/// The result of a load on 32 CPUs.
fn run(text: &str) -> crate::simulation::Report {
    let load = rt_app::read(text).unwrap();
    let topology = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
    let costs = Costs::from_machine(MACHINES, "ryzen7950x").unwrap();
    let mut sim = Simulation::new(&topology, &costs, Settings::kernel(), Kernel::default(), 1);
    load.programs.iter().for_each(|program| _ = sim.spawn(program).unwrap());
    sim.run(load.duration.unwrap_or(Nanos(10_000_000_000))).unwrap()
}

#[test]
fn every_event_of_the_format_is_understood() {
    let text = r#"{
        /* A comment. */
        "global": { "duration": 2, "calibration": "CPU0", "logdir": "./" },
        "resources": {},
        "tasks": {
            "light": { "instance": 2, "loop": 10, "priority": 5,
                "run0": 100, "sleep": 200, "timer": { "ref": "unique", "period": 1000 }, "run1": 50,
                "lock": "m", "runtime": 20, "unlock": "m", "mem": 4096, "yield": "" },
            "ping": { "delay": 500, "loop": 5, "run": 100, "resume": "pong", "suspend": "" },
            "pong": { "loop": 5, "suspend": "", "run": 100, "resume": "ping" },
            "sync_a": { "loop": 1, "run": 500, "sync": { "ref": "c", "mutex": "cm" } },
            "waiter": { "loop": 1, "lock": "cm", "wait": { "ref": "c", "mutex": "cm" }, "unlock": "cm", "run": 500,
                "lock": "cm", "broad": "c", "unlock": "cm" },
            "phased": { "loop": 2, "cpus": [3], "phases": {
                "p1": { "loop": 3, "run": 10, "timer": { "ref": "unique", "period": 100, "mode": "absolute" } },
                "p2": { "cpus": [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23], "run": 30, "fork": "child" } } },
            "child": { "instance": 0, "loop": 1, "run": 40 },
            "meet_a": { "loop": 1, "run": 10, "barrier": "b" },
            "meet_b": { "loop": 1, "run": 900, "barrier": "b" }
        }
    }"#;
    let load = rt_app::read(text).unwrap();
    assert_eq!((load.programs.len(), load.duration), (9, Some(Nanos(2_000_000_000))));
    assert_eq!(load.ignored, ["global.calibration", "global.logdir", "resources", "tasks.light.priority"]);
    let report = run(text);
    assert!(report.is_complete(), "{:?}", report.deadlock());
    let of = |name: &str| report.tasks.iter().find(|task| task.name == name).unwrap();
    assert_eq!(of("child").tasks, 2);
    assert!(of("light-0").counts.run_ns >= 10 * 170_000);
}

#[test]
fn a_timer_keeps_its_period_and_a_sleep_does_not() {
    let report = run(
        r#"{ "tasks": { "timer": { "loop": 100, "cpus": [0], "run": 5000, "timer": { "ref": "unique", "period": 19000 } },
                        "mark": { "loop": 100, "cpus": [0], "run": 5000, "sleep": 10000 } } }"#,
    );
    assert!(report.is_complete());
    // The first use of a timer begins its period.
    assert!(report.now.0.abs_diff(5_000_000 + 100 * 19_000_000) < 20_000_000, "{}", report.now.0);
}

/// Texts with an error that a parser could accept by mistake, and the messages.
const SLIPS: &[(&str, &str)] = &[
    (" \n", "the file: is empty; describe one thread at least"),
    ("{ \"tasks\": { \"a\": { \"run\": 5 }, ", "line 1, column 32: EOF while parsing a value; mend the JSON"),
    (
        r#"{ "tasks": { "a": { "instance": 2, "instance": 3, "run": 5 } } }"#,
        "tasks.a.instance: is there twice; leave one of them out",
    ),
    (
        r#"{ "tasks": { "a": { "run": 5 }, "a": { "run": 7 } } }"#,
        "tasks.a: there are two tasks of this name; give one of them another name, or say `instance`",
    ),
    (
        r#"{ "tasks": { "a": { "instance": 0, "run": 5 } } }"#,
        "tasks: all have `instance` 0, so no thread begins; let one begin",
    ),
    (
        r#"{ "tasks": { "a": { "loop": 10000000000, "run": 5 } } }"#,
        "tasks.a.loop: 10000000000 rounds; 4294967294 is the most, and -1 for ever",
    ),
    (
        r#"{ "global": { "duration": 9000000000000 }, "tasks": { "a": { "run": 5 } } }"#,
        "global.duration: 9000000000000 s; 1 to 9007199 s, 104 days, or -1 for no end",
    ),
    (
        r#"{ "global": { "duration": 0 }, "tasks": { "a": { "run": 5 } } }"#,
        "global.duration: 0 s; 1 to 9007199 s",
    ),
    (
        r#"{ "tasks": { "a": { "loop": 1, "barier": "x" } } }"#,
        "tasks.a.barier: unknown key; perhaps `barrier` is meant",
    ),
    (
        r#"{ "tasks": { "web": { "run": 1, "fork": "wep" } } }"#,
        "tasks.web.fork: forks `wep`, and no task is called so; perhaps `web` is meant",
    ),
    (
        r#"{ "tasks": { "a": { "loop": 1, "phases": { "p": { "loop": -1, "run": 0 } } } } }"#,
        "tasks.a.phases.p: a loop for ever in which no time passes",
    ),
    (
        r#"{ "tasks": { "a": { "phases": { "p": { "run": 5, "loop": 1, "loop": 2 } } } } }"#,
        "tasks.a.phases.p.loop: is there twice",
    ),
];

#[test]
fn an_error_at_run_time_names_its_location_in_the_file() {
    let says = |text: &str| {
        let load = rt_app::read(text).unwrap();
        let topology = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
        let mut sim =
            Simulation::new(&topology, &Costs::of(&topology), Settings::kernel(), Kernel::default(), 1);
        load.programs.iter().for_each(|program| _ = sim.spawn(program).unwrap());
        match sim.run(Nanos(1_000_000_000)) {
            Ok(report) => report.deadlock().unwrap(),
            Err(e) => e.to_string(),
        }
    };
    for (text, told) in [
        (
            r#"{ "tasks": { "a": { "loop": 2, "run": 5, "lock": "m" } } }"#,
            "`a` waits for the lock `m`, which it holds itself (tasks.a.lock)",
        ),
        (
            r#"{ "tasks": { "a": { "loop": 1, "run": 5, "lock": "m" } } }"#,
            "tasks.a.lock: takes the lock `m`, and its task ends with it; unlock it before",
        ),
        (
            r#"{ "tasks": { "a": { "phases": { "p": { "run": 5 }, "q": { "unlock": "m" } } } } }"#,
            "tasks.a.phases.q.unlock: gives back the lock `m`, which it has not; lock it before",
        ),
        (
            r#"{ "tasks": { "a": { "loop": 1, "lock": "m1", "run": 100, "lock2": "m2", "unlock2": "m2", "unlock": "m1" },
                            "b": { "loop": 1, "lock": "m2", "run": 100, "lock2": "m1", "unlock2": "m1", "unlock": "m2" } } }"#,
            "`a` waits for the lock `m2`, which `b` holds (tasks.a.lock2)\n\
             `b` waits for the lock `m1`, which `a` holds (tasks.b.lock2)",
        ),
        (
            r#"{ "tasks": { "a": { "loop": 2, "run": 10, "barrier": "b" }, "b": { "loop": 1, "run": 10, "barrier": "b" } } }"#,
            "`a` waits at the barrier `b`, and no task is left that could end that (tasks.a.barrier)",
        ),
        (
            r#"{ "tasks": { "ping": { "loop": 3, "run": 10, "resume": "pong", "suspend": "" },
                            "pong": { "loop": 2, "suspend": "", "run": 10, "resume": "ping" } } }"#,
            "`ping` waits for a signal of `ping`, and no task is left that could end that (tasks.ping.suspend)",
        ),
        (
            r#"{ "tasks": { "a": { "loop": 1000000000, "phases": { "p": { "loop": 1000000000, "run": 0 } } } } }"#,
            "tasks.a.phases.p.run: 1000000 steps, and no time has passed; let it run, sleep or wait in its loop",
        ),
    ] {
        assert_eq!(says(text), told, "{text}");
    }
    let many = says(
        r#"{ "tasks": { "w": { "instance": 200, "loop": 1, "suspend": "c" }, "s": { "loop": 1, "signal": "c" } } }"#,
    );
    assert!(many.lines().count() == 13 && many.ends_with("\nand 187 more wait"), "{many}");
}

#[test]
fn an_error_in_a_file_has_its_location() {
    let cases = [
        (r#"{ "tasks": { "a": { "run": 5"#, "line 1, column 28: EOF while parsing an object; mend the JSON"),
        (r#"{ "tasks": [] }"#, "tasks: an array, no object; write { … }"),
        (r#"{ "tasks": {} }"#, "tasks: there are none; describe one thread at least"),
        (r#"{ "task": {} }"#, "task: unknown key; perhaps `tasks` is meant"),
        (r#"{ "global": { "speed": 1 }, "tasks": {} }"#, "global.speed: unknown key"),
        (r#"{ "tasks": { "a": { "run": -5 } } }"#, "tasks.a.run: -5, no time in µs; 0 is the least"),
        (
            r#"{ "tasks": { "a": { "phases": { "p": { "runs": 5 } } } } }"#,
            "tasks.a.phases.p.runs: unknown key",
        ),
        (r#"{ "tasks": { "a": { "run": 5, "phases": {} } } }"#, "tasks.a.run: unknown key; there are beside"),
        (
            r#"{ "tasks": { "a": { "suspend": "" } } }"#,
            "tasks.a.suspend: waits for `a` for ever: no thread resumes",
        ),
        (
            r#"{ "tasks": { "a": { "lock": "m", "wait": { "ref": "c", "mutex": "m" } } } }"#,
            "tasks.a.wait: waits for `c` for ever",
        ),
        (r#"{ "tasks": { "a": { "wait": { "ref": "c" } } } }"#, "tasks.a.wait: has no `mutex`; add `mutex`"),
        (r#"{ "tasks": { "a": { "timer": { "ref": "unique" } } } }"#, "tasks.a.timer: has no `period`"),
        (
            r#"{ "tasks": { "a": { "run": 1, "fork": "b" } } }"#,
            "tasks.a.fork: forks `b`, and no task is called so",
        ),
        (r#"{ "tasks": { "a": { "run": 1, "fork": "a" } } }"#, "tasks.a.fork: `a` forks itself, in the end"),
        (r#"{ "tasks": { "a": { "cpus": [], "run": 1 } } }"#, "tasks.a.cpus: no CPU at all"),
        (r#"{ "tasks": { "a": { "cpus": [-1], "run": 1 } } }"#, "tasks.a.cpus: -1, no CPU"),
        (r#"{ "tasks": { "a": { "instance": 9999999, "run": 1 } } }"#, "tasks.a.instance: 9999999 threads"),
        (
            r#"{ "tasks": { "a": { "run": 0 } } }"#,
            "tasks.a: a loop for ever in which no time passes; let it run or sleep",
        ),
        (
            r#"{ "tasks": { "a": { "run": 1, "sleep": 18446744073709551 } } }"#,
            "tasks.a.sleep: 18446744073709551 µs; 9007199254740 µs is the most, 104 days",
        ),
        (
            r#"{ "tasks": { "a": { "run": 1, "mem": 4398046511104 } } }"#,
            "tasks.a.mem: 4398046511104 bytes; 4398046510080 is the most",
        ),
    ];
    for (text, starts) in cases.into_iter().chain(SLIPS.iter().copied()) {
        let error = rt_app::read(text).unwrap_err().to_string();
        assert!(error.starts_with(starts), "{text}\nsays     {error}\nand not  {starts}");
    }
}

#[test]
fn sets_of_cpus_that_the_machine_cannot_restrict_to_are_refused() {
    let load = rt_app::read(r#"{ "tasks": { "a": { "cpus": [0, 9], "run": 1 } } }"#).unwrap();
    let topology = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
    let mut sim = Simulation::new(&topology, &Costs::of(&topology), Settings::kernel(), Kernel::default(), 1);
    let error = sim.spawn(&load.programs[0]).unwrap_err().to_string();
    let says = "tasks.a: CPUs 0,9 are neither one CPU nor all of an LLC, a node or the machine; \
                name one CPU of 0-31, all of an LLC or of a node, or none for all";
    assert_eq!(error, says);
}

#[test]
fn loops_too_deep_are_refused() {
    fn nest(p: Program, depth: usize) -> Program {
        if depth == 0 { p.run(1) } else { p.repeat(2, |p| nest(p, depth - 1)) }
    }
    assert!(nest(Program::new("a"), LOOPS_MAX).check().is_ok());
    let error = nest(Program::new("a"), LOOPS_MAX + 1).check().unwrap_err().to_string();
    assert!(error.contains("7 loops within each other"), "{error}");
}

#[test]
fn properties_that_are_numbered_as_events_are_unknown() {
    for key in ["loop2", "cpus7", "instance3", "delay9"] {
        for text in [
            format!(r#"{{ "tasks": {{ "a": {{ "run": 1, "{key}": 1 }} }} }}"#),
            format!(r#"{{ "tasks": {{ "a": {{ "phases": {{ "p": {{ "run": 1, "{key}": 1 }} }} }} }} }}"#),
        ] {
            let error = rt_app::read(&text).unwrap_err().to_string();
            assert!(error.contains(&format!(".{key}: unknown key")), "{error}");
        }
    }
}

#[test]
fn a_short_file_does_not_make_a_large_load() {
    // 663 bytes once took 1.3 GB: each task had a million threads of its own.
    let tasks = |n: usize, instances: u32, events: &str| {
        let task = |i| format!(r#""t{i}": {{ "instance": {instances}, {events} }}"#);
        format!(r#"{{ "tasks": {{ {} }} }}"#, (0..n).map(task).collect::<Vec<_>>().join(", "))
    };
    let error = |text: &str| rt_app::read(text).unwrap_err().to_string();
    let many = error(&tasks(20, 20_000, r#""run": 1"#));
    assert!(many.starts_with("tasks.t3.instance: more than 65536 threads in all"), "{many}");
    let steps: Vec<String> = (0..100).map(|i| format!(r#""run{i}": 1"#)).collect();
    let long = error(&tasks(2, 30_000, &steps.join(", ")));
    assert!(long.starts_with("tasks.t1: all threads together have more than 4194304 steps"), "{long}");
    let far = error(&tasks(1, 60_000, r#""cpus": [1048575], "run": 1"#));
    assert!(far.starts_with("tasks.t0.cpus: 1048575, no CPU"), "{far}");
    // Programs are shared: 60 000 threads have the steps of one.
    let load = rt_app::read(&tasks(1, 60_000, r#""run": 1, "sleep": 2"#)).unwrap();
    let (first, last) = (&load.programs[0], &load.programs[59_999]);
    assert!(
        std::sync::Arc::ptr_eq(&first.ops, &last.ops)
            && std::sync::Arc::ptr_eq(&first.locations, &last.locations)
    );
    assert_eq!((first.name(), last.name(), load.programs.len()), ("t0-0", "t0-59999", 60_000));
}

#[test]
fn more_threads_at_a_barrier_than_can_be_counted_are_refused() {
    let barriers: String = (0..66_000).map(|i| format!(r#", "barrier{i}": "x""#)).collect();
    let text = format!(r#"{{ "tasks": {{ "a": {{ "instance": 65536, "run": 1{barriers} }} }} }}"#);
    let error = rt_app::read(&text).unwrap_err().to_string();
    assert!(error.starts_with("tasks.a.barrier65535: more than 4294967295 threads come to `x`"), "{error}");
}

#[test]
fn two_sizes_of_mem_are_one_buffer_and_each_goes_over_its_own_bytes() {
    let lines = |sizes: [u32; 2]| {
        let [a, b] = sizes;
        let text = format!(r#"{{ "tasks": {{ "a": {{ "loop": 1, "mem": {a}, "mem2": {b}, "run": 1 }} }} }}"#);
        let memory = run(&text).memory;
        (memory.lines, memory.faults)
    };
    let both = ((4 << 10) + (4 << 20)) / 64;
    assert_eq!(lines([4 << 10, 4 << 20]), (both, 1024));
    assert_eq!(lines([4 << 20, 4 << 10]), (both, 1024));
    assert_eq!(lines([0, 4 << 10]), (64, 1));
}

#[test]
fn a_working_set_of_two_kinds_of_pages_is_refused() {
    let of = |program: Program, pages| program.touch_own(4, pages, Access::Write);
    let error = of(of(Program::new("a"), Pages::Touched), Pages::Anonymous).check().unwrap_err().to_string();
    let says = "program `a`, step 2: its own working set has Touched pages, and Anonymous ones here";
    assert!(error.starts_with(says), "{error}");
}

#[test]
fn a_body_that_gives_back_another_program_is_refused() {
    let other = |steps: u64| (0..steps).fold(Program::new("b"), Program::run);
    for begin in 0..4 {
        for steps in 0..6 {
            let program = other(begin).repeat(3, |_| other(steps));
            let error = program.check().unwrap_err().to_string();
            assert!(error.contains("a loop ends that does not begin in this program"), "{error}");
        }
    }
    let mut kept = None;
    _ = Program::new("a").forever(|p| {
        kept = Some(p.clone());
        p.run(1)
    });
    let error = kept.unwrap().check().unwrap_err().to_string();
    assert!(error.starts_with("program `a`, step 1: a loop begins that does not end"), "{error}");
}

#[test]
fn lengths_beyond_the_bound_are_refused_wherever_they_stand() {
    let most = LENGTH_MAX.0;
    let fits = [
        Length::from(most),
        (1..=most).into(),
        Length::Around(Nanos(most / 2), 100),
        Length::Exponential(Nanos(most / 46)),
    ];
    let over = [
        Length::from(most + 1),
        (1..=most + 1).into(),
        Length::Around(Nanos(most), 1),
        Length::Exponential(Nanos(most / 46 + 1)),
        Length::Exponential(Nanos(u64::MAX)),
        Length::Around(Nanos(u64::MAX), u32::MAX),
    ];
    let all = |length: Length| {
        let a = || Program::new("a");
        let child = a().fork(a().run(length));
        [a().run(length), a().sleep(length), a().after(length), child].map(|p| p.check())
    };
    for length in fits {
        assert!(all(length).iter().all(Result::is_ok), "{length:?}");
    }
    for length in over {
        assert!(all(length).iter().all(Result::is_err), "{length:?}");
    }
    assert!(Program::new("a").timer(0, Nanos(most), true).check().is_ok());
    let error = Program::new("a").timer(0, Nanos(most + 1), true).check().unwrap_err().to_string();
    let says = "program `a`, step 1: takes 9007199254740993 ns; 9007199254740992 ns is the most, 104 days";
    assert_eq!(error, says);
}
