use super::*;
use crate::{Access, Group, Line, Padded, layout};
use fastrand::Rng;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicI32;

const GROUPS: [Group<'static>; 4] = [
    Group { access: Access::ReadMostly, name: "" },
    Group { access: Access::Contended, name: "" },
    Group { access: Access::Owner, name: "producer" },
    Group { access: Access::Owner, name: "consumer" },
];

fn field(name: &'static str, group: usize, offset: usize, size: usize) -> FieldLine<'static> {
    FieldLine { name, group: GROUPS[group], offset, size }
}

/// Returns up to six fields: one after the other with or without gaps, as a compiler places them, or at random offsets,
/// so that they may overlap, as in a union or a bit field that DWARF reports. Three of the seven sizes differ from the
/// unit by at most a byte, where mistakes are likely.
fn random_fields(rng: &mut Rng, unit: usize) -> Vec<FieldLine<'static>> {
    let overlap = rng.usize(..2) == 0;
    let mut next = 0;
    let mut fields = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f"].into_iter().take(rng.usize(..7)) {
        let size = [0, 1, 8, unit - 1, unit, unit + 1, 2 * unit][rng.usize(..7)];
        let offset = if overlap { rng.usize(..4 * unit) } else { next + [0, 0, 1, unit][rng.usize(..4)] };
        next = offset + size;
        fields.push(field(name, rng.usize(..GROUPS.len()), offset, size));
    }
    // The order of the source need not be that of the offsets.
    if rng.usize(..2) == 0 {
        fields.reverse();
    }
    fields
}

/// Returns the conflicts, each as two names and the first common unit, found byte by byte.
fn brute_force(fields: &[FieldLine<'static>], unit: usize) -> BTreeSet<(&'static str, &'static str, usize)> {
    let mut met = BTreeSet::new();
    for a in fields {
        for b in fields {
            let lines_of = |f: &FieldLine| (f.offset..f.offset + f.size).map(|byte| byte / unit).collect();
            let (of_a, of_b): (BTreeSet<usize>, BTreeSet<usize>) = (lines_of(a), lines_of(b));
            if a.name < b.name && a.group != b.group {
                met.extend(of_a.intersection(&of_b).next().map(|&index| (a.name, b.name, index)));
            }
        }
    }
    met
}

#[test]
fn conflicts_are_what_a_byte_by_byte_search_finds() {
    let (mut clean, mut dirty) = (0, 0);
    for seed in 1..=20_000 {
        let mut rng = Rng::with_seed(seed);
        let unit = [16, 64, 128][rng.usize(..3)];
        let fields = random_fields(&mut rng, unit);
        let found = conflicts(&fields, unit);
        let as_model = |c: &Conflict<'static>| {
            let (a, b) = (c.first.name, c.second.name);
            (a.min(b), a.max(b), c.index)
        };
        let as_set: BTreeSet<_> = found.iter().map(as_model).collect();
        assert_eq!(as_set, brute_force(&fields, unit), "seed {seed}, unit {unit}: {fields:#?}");
        assert_eq!(as_set.len(), found.len(), "seed {seed}: a pair was reported twice");
        assert!(found.iter().all(|c| c.first.offset <= c.second.offset), "seed {seed}: {found:#?}");
        assert_eq!(first_conflict(&fields, unit), found.first().copied(), "seed {seed}");
        if found.is_empty() { clean += 1 } else { dirty += 1 }
    }
    assert!(clean > 2_000 && dirty > 2_000, "one-sided inputs: {clean} clean, {dirty} dirty");
}

#[test]
fn a_message_names_both_fields_and_the_line() {
    let fields = [field("pcpu_cid", 0, 72, 8), field("mm_count", 1, 64, 8)];
    let text = conflicts(&fields, 64)[0].to_string();
    assert!(text.starts_with(
        "field 'mm_count' (contended, bytes 64..72) shares line 1 (bytes 64..128) \
         with field 'pcpu_cid' (read_mostly, bytes 72..80); move one group into a Padded<_>"
    ));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_message_about_pairs_says_so() {
    let fields = [field("tail", 2, 0, 8), field("head", 3, 64, 8)];
    assert_eq!(conflicts(&fields, LINE), []);
    assert_eq!(
        conflicts(&fields, PAIR)[0].to_string(),
        "field 'tail' (owner \"producer\", bytes 0..8) shares aligned pair of lines 0 (bytes 0..128) \
         with field 'head' (owner \"consumer\", bytes 64..72); \
         move one group into a Padded<_> or into a struct with #[repr(align(128))]"
    );
}

#[test]
fn the_text_of_a_constant_is_the_text_at_run_time() {
    let fields = [field("größe", 2, 60, 4), field("b", 3, 0, 61)];
    let conflict = conflicts(&fields, 64)[0];
    let panic = std::panic::catch_unwind(|| conflict.fail("Ring")).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("Ring: {conflict}"));
}

#[test]
fn a_number_is_written_as_display_writes_it() {
    for n in [0, 1, 9, 10, 19, 90, 100, 4096, 10_000_000, usize::MAX] {
        let mut text = Text::new();
        text.num(n);
        assert_eq!(text.as_str(), n.to_string());
    }
}

#[test]
fn a_name_too_long_for_a_constant_is_left_out() {
    let mut text = Text::new();
    text.str("a");
    text.str(&"ß".repeat(600));
    text.str("b");
    assert_eq!(text.as_str(), "ab");
}

const READ_MOSTLY: Group<'static> = GROUPS[0];
const CONTENDED: Group<'static> = GROUPS[1];

/// Returns `mm_count`, `pcpu_cid` and `mm_users` one after the other, with `gap` bytes of padding before `pcpu_cid`,
/// besides the 4 that align it, and `after` bytes behind it.
fn mm(gap: usize, after: usize) -> [FieldLine<'static>; 3] {
    [
        FieldLine { name: "mm_count", group: CONTENDED, offset: 0, size: 4 },
        FieldLine { name: "pcpu_cid", group: READ_MOSTLY, offset: 8 + gap, size: 8 },
        FieldLine { name: "mm_users", group: CONTENDED, offset: 16 + gap + after, size: 4 },
    ]
}

fn met(fields: &[FieldLine<'static>]) -> Vec<(&'static str, &'static str)> {
    conflicts(fields, LINE).iter().map(|c| (c.first.name, c.second.name)).collect()
}

#[test]
fn padding_after_the_reader_does_not_separate_it_from_the_writer_before_it() {
    assert_eq!(met(&mm(0, 0)), [("mm_count", "pcpu_cid"), ("pcpu_cid", "mm_users")]);
    for after in [LINE, 2 * LINE, 16 * LINE] {
        assert_eq!(met(&mm(0, after)), [("mm_count", "pcpu_cid")], "{after} bytes after the reader");
    }
    assert_eq!(met(&mm(LINE, LINE)), []);
}

/// Three fields of Linux's `mm_struct`, whose reference count was on the same line as the pointer to the concurrency
/// ids.
///
/// `mmgrab` and `mmdrop` write `mm_count` at context switches on all CPUs, and context switches read `pcpu_cid`. The
/// function that reads it took several percent of all cycles while both fields were on one line, and less than 0.1 %
/// afterwards. The struct is `repr(C)`, as in the kernel.
#[derive(Line)]
#[repr(C, align(256))]
#[line(crate = crate)]
#[allow(dead_code)]
struct MmStruct {
    #[line(contended)]
    mm_count: Padded<AtomicI32>,
    #[line(read_mostly)]
    pcpu_cid: *const u8,
    #[line(read_mostly)]
    mmap_base: u64,
}

#[test]
fn padding_of_the_writer_separates_it_from_the_readers() {
    let [count, cid, base] = MmStruct::FIELDS else { panic!("three fields, found {:?}", MmStruct::FIELDS) };
    assert_eq!((count.name, count.group, count.offset), ("mm_count", CONTENDED, 0));
    assert_eq!((cid.name, cid.group, base.group), ("pcpu_cid", READ_MOSTLY, READ_MOSTLY));
    assert_ne!(cid.offset / LINE, count.offset / LINE);
    assert_eq!(cid.offset / LINE, base.offset / LINE, "what is read together stays together");

    let drawn = layout::<MmStruct>().to_string();
    assert!(drawn.contains("mm_count (contended, 0..") && !drawn.contains('!'), "{drawn}");
}
