use super::*;
use crate::layout::Inner;

const MM: &str = include_str!("../../../../fixtures/sim/mm_struct.toml");
const HACKBENCH: &str = include_str!("../../../../fixtures/sim/hackbench.toml");
/// The least share of the excess cost that a relayout has to remove.
const GONE_MIN: f64 = 0.95;

fn spr() -> SimMachine {
    SimMachine::named("spr_224cpu_2p").unwrap()
}

fn mm() -> (Layout, Profile) {
    let layout = Layout::declared(MM, "mm_struct.toml").unwrap();
    (layout, Profile::parse(HACKBENCH, "hackbench.toml").unwrap())
}

fn analyzer(layout: &Layout, profile: &Profile) -> Analyzer {
    Analyzer::new(profile, layout, &spr()).unwrap()
}

/// Three fields of 8 bytes on one line, and a profile of them.
fn three(accesses: &str) -> (Layout, Profile) {
    let layout = r#"
        name = "s"
        size = 64
        align = 64
        fields = [
          { name = "a", offset = 0, size = 8 },
          { name = "b", offset = 8, size = 8 },
          { name = "c", offset = 16, size = 8 },
        ]"#;
    let profile = format!("struct = \"s\"\nrates = \"per_cpu\"\naccess = [{accesses}]");
    (Layout::declared(layout, "s").unwrap(), Profile::parse(&profile, "p").unwrap())
}

#[test]
fn the_writer_is_found_before_the_reader_in_the_line() {
    let (layout, profile) = mm();
    let verdict = analyzer(&layout, &profile).verdict(&layout).unwrap();
    let blame = verdict.culprit_of("pcpu_cid").expect("it suffers");
    assert_eq!((blame.field.as_str(), blame.stands), ("mm_count", Stands::Before));
    assert!(blame.share > 0.99, "{blame:?}");
    let after = verdict.culprit_of("pgd").expect("it suffers too");
    assert_eq!((after.field.as_str(), after.stands), ("mm_count", Stands::After));
}

#[test]
fn padding_after_the_reader_changes_nothing_and_a_line_for_the_writer_everything() {
    let (layout, profile) = mm();
    let analyzer = analyzer(&layout, &profile);
    let read = |layout: &Layout| analyzer.verdict(layout).unwrap().field("pcpu_cid").unwrap().read_ns;
    let number = |name: &str| layout.byte_range(name).unwrap().field;
    let before = read(&layout);
    for bytes in [64, 128, 1024] {
        assert_eq!(read(&layout.padded_after(number("pcpu_cid"), bytes)), before, "{bytes} bytes");
    }
    // The change in Linux 6.4.
    let fixed = layout.in_front(&[number("mm_count")], 64);
    let (after, alone) =
        (read(&fixed), analyzer.verdict(&layout).unwrap().field("pcpu_cid").unwrap().read_alone_ns);
    assert_eq!(fixed.added_to(&layout), 64);
    assert!((before - after) / (before - alone) >= GONE_MIN, "{before} -> {after}, alone {alone}");
}

#[test]
fn the_cheapest_relayout_is_found_and_holds_when_it_is_played() {
    let (layout, profile) = mm();
    let machine = spr();
    let culprit = find(&layout, &profile, &machine).unwrap();
    let best = &culprit.relayouts[0];
    assert!(best.helps() && best.added == 0, "{} {}", best.what, best.added);
    let kinds: Vec<RelayoutKind> = culprit.relayouts.iter().map(|r| r.kind).collect();
    assert_eq!(
        kinds,
        [RelayoutKind::Exchange, RelayoutKind::End, RelayoutKind::Front, RelayoutKind::PadAfter]
    );
    assert!(!culprit.relayouts[3].helps() && culprit.relayouts[3].gone.abs() < 1e-9);
    let read = |layout: &Layout| {
        let seen = simulate(layout, &profile, &machine, 7, 60_000).unwrap();
        seen.iter().find(|s| s.name == "pcpu_cid").unwrap().mean_read_ns()
    };
    let (before, after) = (read(&layout), read(&best.layout));
    let alone = culprit.verdict.field("pcpu_cid").unwrap().read_alone_ns;
    assert!((before - after) / (before - alone) >= GONE_MIN, "{before} -> {after}, alone {alone}");
}

#[test]
fn where_a_transfer_costs_nothing_no_field_suffers() {
    let (layout, profile) = mm();
    let mut machine = spr();
    let names: Vec<String> = machine
        .costs
        .numbers()
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.starts_with("c2c_"))
        .collect();
    for name in names {
        machine.costs = machine.costs.with(&name, 0).unwrap();
    }
    let culprit = find(&layout, &profile, &machine).unwrap();
    assert!(culprit.sufferers().is_empty() && culprit.relayouts.is_empty(), "{culprit}");
    assert!(culprit.to_string().contains("No field suffers"), "{culprit}");
}

#[test]
fn a_lock_and_the_data_that_it_guards_blame_no_field() {
    let (layout, profile) = three(
        r#"{ field = "a", reads_per_s = 1000, writes_per_s = 1000, cpus = 32 },
           { field = "b", reads_per_s = 1000, writes_per_s = 1000, cpus = 32 }"#,
    );
    let verdict = analyzer(&layout, &profile).verdict(&layout).unwrap();
    assert!(verdict.fields.iter().all(|f| f.blame.is_empty() && f.write_blame.is_empty()), "{verdict:?}");
}

#[test]
fn two_writers_share_the_blame_by_what_they_write() {
    let (layout, profile) = three(
        r#"{ field = "a", writes_per_s = 3000, cpus = "0-15" },
           { field = "b", reads_per_s = 1000, cpus = "32-47" },
           { field = "c", writes_per_s = 1000, cpus = "0-15" }"#,
    );
    let verdict = analyzer(&layout, &profile).verdict(&layout).unwrap();
    let blame = &verdict.field("b").unwrap().blame;
    let said: Vec<_> = blame.iter().map(|b| (b.field.as_str(), b.stands)).collect();
    assert_eq!(said, [("a", Stands::Before), ("c", Stands::After)]);
    assert!((blame[0].share - 0.75).abs() < 1e-9, "{blame:?}");
    // Either both culprits go to a line of their own, or the reader does. To move the reader, one field, is cheaper.
    let best = &relayouts(&analyzer(&layout, &profile), &layout).unwrap()[0];
    assert_eq!((best.moved.as_slice(), best.added), (&["b".to_owned()][..], 64), "{}", best.what);
}

#[test]
fn a_field_that_suffers_from_its_own_writes_blames_no_other_and_no_layout_helps() {
    let (layout, profile) = three(r#"{ field = "a", reads_per_s = 1000, writes_per_s = 1000, cpus = 32 }"#);
    let machine = spr();
    let culprit = find(&layout, &profile, &machine).unwrap();
    assert!(culprit.verdict.field("a").unwrap().read_ns > 30.0);
    assert!(culprit.sufferers().is_empty() && culprit.relayouts.is_empty(), "{culprit}");
}

#[test]
fn one_core_alone_never_waits_for_itself() {
    let (layout, profile) = three(
        r#"{ field = "a", writes_per_s = 100000, cpus = "0,112" },
           { field = "b", reads_per_s = 100000, cpus = "0,112" }"#,
    );
    let verdict = analyzer(&layout, &profile).verdict(&layout).unwrap();
    assert!(verdict.fields.iter().all(|f| f.read_ns < 3.0 && f.write_ns < 3.0), "{verdict:?}");
}

#[test]
fn the_report_names_the_culprit_its_offset_and_what_to_do() {
    let (layout, profile) = mm();
    let machine = spr();
    let report = find(&layout, &profile, &machine).unwrap().to_string();
    for said in [
        "struct mm_struct: 896 bytes, 14 lines of 64 (mm_struct.toml)",
        "-- line 1, bytes 64..128 --",
        "!     96     8  pcpu_cid ",
        "      92     4  (nothing)",
        "  mm_count, byte 88, before it: 100 % of it",
        "Cheapest: exchange mm_count and ",
        "Or: give mm_count a line of its own in front. +64 bytes, 1 moved",
        "A line of padding after pcpu_cid does not help: +64 bytes, 0.0 % of what it suffers gone.",
    ] {
        assert!(report.contains(said), "{said}\n{report}");
    }
}

#[test]
fn parts_of_a_long_field_are_drawn_on_their_own_lines_only() {
    let layout = r#"
        name = "s"
        size = 192
        align = 64
        fields = [{ name = "outer", offset = 0, size = 192, align = 64 }]"#;
    let mut layout = Layout::declared(layout, "s").unwrap();
    layout.fields[0].inner = [("outer.a", 0), ("outer.b", 128), ("outer.c", 136)]
        .map(|(path, offset)| Inner { path: path.to_owned(), offset, size: 8 })
        .into();
    let profile = "struct = \"s\"\nrates = \"per_cpu\"\naccess = [{ field = \"outer.a\", reads_per_s = 5000 }, \
                   { field = \"outer.b\", reads_per_s = 5000 }, { field = \"outer.c\", writes_per_s = 5000 }]";
    let profile = Profile::parse(profile, "p").unwrap();
    let text = find(&layout, &profile, &spr()).unwrap().to_string();
    let lines = |name: &str| text.lines().filter(|line| line.contains(&format!("  {name}  "))).count();
    assert_eq!((lines("outer.a"), lines("outer.b"), lines("outer.c")), (1, 1, 1), "{text}");
    assert!(text.contains("-- line 1: not touched --"), "{text}");
    assert!(text.contains("b is a field of outer, which moves as a whole"), "{text}");
}

#[test]
fn conflicts_are_those_of_the_line_crate() {
    let (layout, profile) = mm();
    let machine = spr();
    let culprit = find(&layout, &profile, &machine).unwrap();
    let met = |a: &str, b: &str| {
        culprit.conflicts.iter().any(|c| c.contains(&format!("'{a}'")) && c.contains(&format!("'{b}'")))
    };
    assert!(met("mm_count", "pcpu_cid") && met("pgd", "mm_count") && !met("pgd", "pcpu_cid"));
    let fixed = layout.in_front(&[layout.byte_range("mm_count").unwrap().field], 64);
    let after = find(&fixed, &profile, &machine).unwrap();
    assert!(after.conflicts.iter().all(|c| !c.contains("mm_count")), "{:?}", after.conflicts);
}

#[test]
fn an_error_in_a_profile_names_the_entry() {
    let machine = spr();
    for (access, said) in [
        (r#"{ field = "d" }"#, "access 1 (d): struct s (s): has no field d; did you mean"),
        (r#"{ field = "pid" }"#, "its fields are a, b, c"),
        (r#"{ field = "a", reads_per_s = -1 }"#, "access 1 (a): reads_per_s = -1"),
        (r#"{ field = "a" }, { field = "b", cpus = "0-300" }"#, "access 2 (b): cpus = 0-300"),
        (r#"{ field = "a", cpus = "0--3" }"#, "write them as 0-7,64"),
        (r#"{ field = "a", cpus = 0 }"#, "name at least one"),
        ("", "says nothing"),
    ] {
        let (layout, profile) = three(access);
        let error = find(&layout, &profile, &machine).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    let (layout, mut profile) = three(r#"{ field = "a" }"#);
    profile.name = "t".into();
    let error = find(&layout, &profile, &machine).unwrap_err().to_string();
    assert!(error.contains("is of struct t, and the layout of s"), "{error}");
    let error = Profile::parse("struct = \"s\"\nrates = \"total\"", "p.toml").unwrap_err().to_string();
    assert!(error.starts_with("p.toml: ") && error.contains("missing field `access`"), "{error}");
}

#[test]
fn an_array_of_unknown_length_suffers_and_blames_as_all_fields_do() {
    let mut layout = three("").0;
    (layout.size, layout.fields[2].size, layout.fields[2].offset) = (64, 0, 64);
    layout.fields[1].offset = 56;
    let text = r#"struct = "s"
        rates = "per_cpu"
        access = [{ field = "a", writes_per_s = 5000, cpus = 32 }, { field = "c", reads_per_s = 5000, cpus = 32 }]"#;
    let profile = Profile::parse(text, "p").unwrap();
    let machine = spr();
    assert!(find(&layout, &profile, &machine).unwrap().sufferers().is_empty(), "it is on the next line");
    (layout.fields[2].offset, layout.fields[1].offset) = (16, 8);
    let culprit = find(&layout, &profile, &machine).unwrap();
    assert_eq!(culprit.verdict.culprit_of("c").expect("it suffers").field, "a");
    for way in &culprit.relayouts {
        assert_eq!(way.layout.fields.last().unwrap().name, "c", "it stays the last: {}", way.what);
        assert!(
            way.layout.fields.iter().all(|f| f.end() <= way.layout.byte_range("c").unwrap().offset),
            "{}",
            way.what
        );
    }
    assert!(culprit.relayouts[0].helps() && culprit.to_string().contains(" c "), "{culprit}");
}

#[test]
fn a_profile_says_whether_its_rates_are_each_cpus_or_of_all() {
    let silent = Profile::parse(r#"{ "struct": "s", "access": [] }"#, "p.json").unwrap_err().to_string();
    assert!(
        silent.contains("missing field `rates`") && silent.contains("\"per_cpu\" or \"total\""),
        "{silent}"
    );
    let access = |a: u32, b: u32| {
        format!(
            r#"{{ field = "a", writes_per_s = {a}, cpus = "0-31" }}, {{ field = "b", reads_per_s = {b}, cpus = 8 }}"#
        )
    };
    let (layout, each) = three(&access(1000, 4000));
    let mut total = three(&access(32_000, 32_000)).1;
    total.rates = Per::Total;
    let machine = spr();
    let of = |profile: &Profile| find(&layout, profile, &machine).unwrap();
    assert_eq!(of(&each), of(&total));
    assert_eq!(of(&total).verdict.field("a").map(|f| f.writes_per_s), Some(32_000.0));
    assert!(of(&each).to_string().contains("Rates are of all cores together."));
    let played = |profile: &Profile| simulate(&layout, profile, &machine, 1, 20_000).unwrap();
    assert_eq!(played(&each), played(&total));
}

#[test]
fn a_field_that_is_hardly_ever_touched_can_be_played() {
    let (layout, profile) = three(r#"{ field = "a", reads_per_s = 1e-300, writes_per_s = 1e-10, cpus = 2 }"#);
    let machine = spr();
    assert_eq!(simulate(&layout, &profile, &machine, 1, 10_000).unwrap().len(), 1);
}

/// Output of `perf c2c report --stdio`: a field at 0 that some CPUs write, one at 16 that others read.
const C2C: &str = "
=================================================
            Trace Event Information              
=================================================
  Total records                     :       6044
=================================================
      Shared Cache Line Distribution Pareto      
=================================================
#
#        ----- HITM -----  ------- Store Refs ------  --------- Data address ---------                      ---------- cycles ----------    Total       cpu                                     Shared
#   Num  RmtHitm  LclHitm   L1 Hit  L1 Miss      N/A              Offset  Node  PA cnt        Code address  rmt hitm  lcl hitm      load  records       cnt               Symbol              Object  Source:Line  Node
# .....  .......  .......  .......  .......  .......  ..................  ....  ......  ..................  ........  ........  ........  .......  ........  ...................  .................  ...........  ....
#
  ----------------------------------------------------------------------
      0       10      200      800      200        0      0x55d0c8a4e0c0
  ----------------------------------------------------------------------
           0.00%    0.00%   75.00%  100.00%    0.00%                 0x0     0       1      0x55d0c8a4b2f6         0       134       120      810         4  [.] writer      a.out  main.c:34   0{0-3}
           0.00%    0.00%   25.00%    0.00%    0.00%                 0x0     0       1      0x55d0c8a4b301         0         0         0      200         4  [.] writer      a.out  main.c:35   0{0-3}
         100.00%  100.00%    0.00%    0.00%    0.00%                0x10     0       1      0x55d0c8a4b316       200       134       120      500         8  [.] reader      a.out  main.c:44   0{4-7}  1{8-11}
  ----------------------------------------------------------------------
      1        0        5        1        0        0      0x55d0c8a4e100
  ----------------------------------------------------------------------
           0.00%  100.00%  100.00%    0.00%    0.00%                 0x8     0       1      0x55d0c8a4b2f6         0       134       120       10         2  [.] other       a.out  main.c:34   0{0-1}
";

fn touches(profile: &Profile) -> Vec<(&str, f64, f64, Cpus)> {
    profile.access.iter().map(|t| (t.field.as_str(), t.reads_per_s, t.writes_per_s, t.cpus.clone())).collect()
}

#[test]
fn output_of_perf_c2c_is_a_profile() {
    let layout = three("").0;
    let base = Base::parse("0x55d0c8a4e0c0");
    assert!(is_perf(C2C));
    let (profile, notes) = from_perf(C2C, &layout, &base, "c2c.txt").unwrap();
    let list = |text: &str| Cpus::List(text.to_owned());
    assert_eq!(touches(&profile), [("a", 10.0, 1000.0, list("0-3")), ("c", 500.0, 0.0, list("4-7,8-11"))]);
    assert_eq!((profile.rates, profile.machine.as_deref()), (Per::Total, None));
    assert_eq!(notes.len(), 1, "it says which CPUs: {notes:?}");
    let machine = spr();
    let culprit = find(&layout, &profile, &machine).unwrap();
    assert_eq!(culprit.verdict.culprit_of("c").map(|b| b.field.as_str()), Some("a"));
    // Without --node-info, with the columns of newer versions, and with the duration.
    let bare = C2C.replace("{0-3}", "").replace("{4-7}", "").replace("{8-11}", "");
    let newer = bare
        .replace("LclHitm   L1", "LclHitm     Peer   L1")
        .replace("10      200      800", "10      200       3      800")
        .replace("%   75.00%", "%    0.00%   75.00%")
        .replace("%   25.00%", "%    0.00%   25.00%")
        .replace("100.00%  100.00%    0.00%", "100.00%  100.00%    0.00%    0.00%")
        .replace("134       120      ", "134       120       7      ")
        .replace("0         0         0      ", "0         0         0       0      ");
    for text in [bare, format!("# sample duration :   2000.000 ms\n{newer}")] {
        let (profile, notes) = from_perf(&text, &layout, &base, "c2c.txt").unwrap();
        let by = if text.contains("duration") { 2.0 } else { 1.0 };
        let first = Cpus::First;
        assert_eq!(
            touches(&profile),
            [("a", 10.0 / by, 1000.0 / by, first(4)), ("c", 500.0 / by, 0.0, first(8))]
        );
        assert!(notes[0].contains(if by > 1.0 { "in 2.000 s" } else { "one second" }), "{notes:?}");
        assert!(notes[1].contains("not which"), "{notes:?}");
    }
    // A struct that begins within the first line and continues in the second.
    let (profile, _) = from_perf(C2C, &layout, &Base::parse("0x55d0c8a4e0f8"), "c2c.txt").unwrap();
    assert_eq!(touches(&profile), [("c", 9.0, 1.0, list("0-1"))]);
    for (base, said) in
        [("0x1000", "4 rows of samples, and none of them in s"), ("counters", "say its address")]
    {
        let error = from_perf(C2C, &layout, &Base::parse(base), "c2c.txt").unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// Output of `perf mem report --stdio`: loads, then stores.
const MEM: &str = "
# To display the perf.data header info, please use --header/--header-only options.
#
# Samples: 1K of event 'cpu/mem-loads,ldlat=30/P'
# Total weight : 123456
# Sort order   : local_weight,mem,sym,dso,symbol_daddr,dso_daddr,snoop,tlb,locked
#
# Overhead       Samples  Local Weight  Memory access             Symbol                Shared Object  Data Symbol            Data Object  Snoop
# ........  ............  ............  ........................  ....................  .............  .....................  ...........  .....
#
    12.00%           120  134           L3 or L3 hit              [.] reader            a.out          [.] shared+0x10        a.out        HitM
     1.00%             3  134           L1 or L1 hit              [.] reader            a.out          [.] shared             a.out        None
     1.00%             9  134           L1 or L1 hit              [.] reader            a.out          [.] sharedness+0x10    a.out        None

# Samples: 2K of event 'cpu/mem-stores/P'
# Overhead       Samples  Local Weight  Memory access             Symbol                Shared Object  Data Symbol            Data Object  Snoop
# ........  ............  ............  ........................  ....................  .............  .....................  ...........  .....
#
    50.00%           700  0             L1 hit                    [.] writer            a.out          [.] shared+0x4         a.out        N/A
     5.00%            70  0             L1 hit                    [.] writer            a.out          [.] 0x0000000000404040 anon         N/A
";

#[test]
fn output_of_perf_mem_is_a_profile() {
    let layout = three("").0;
    assert!(is_perf(MEM) && !is_perf("struct = \"s\""));
    let (profile, notes) = from_perf(MEM, &layout, &Base::parse("shared"), "mem.txt").unwrap();
    assert_eq!(touches(&profile), [("a", 3.0, 700.0, Cpus::All), ("c", 120.0, 0.0, Cpus::All)]);
    assert!(notes[1].contains("no CPUs"), "{notes:?}");
    let (profile, _) = from_perf(MEM, &layout, &Base::parse("0x404038"), "mem.txt").unwrap();
    assert_eq!(touches(&profile), [("b", 0.0, 70.0, Cpus::All)]);
    let error = from_perf(MEM, &layout, &Base::parse("share"), "mem.txt").unwrap_err().to_string();
    assert!(error.contains("5 rows of samples, and none"), "{error}");
}
