//! Linux's `mm_struct`, whose reference count was on the same line as the pointer to the concurrency ids.
//!
//! `mmgrab` and `mmdrop` write `mm_count` at context switches of all CPUs, and the same switches read `pcpu_cid`.
//! The function that reads it took several percent of all cycles while both fields were on one line, and less
//! than 0.1 % afterwards. The struct is `repr(C)`, as in the kernel.

use std::sync::atomic::AtomicI32;
use warmcore_line::{Access, FieldLine, Group, LINE, Line, Padded, conflicts, layout};

const CONTENDED: Group<'static> = Group { access: Access::Contended, name: "" };
const READ_MOSTLY: Group<'static> = Group { access: Access::ReadMostly, name: "" };

/// Returns the first fields of the struct, with `gap` bytes before `pcpu_cid` and `after` bytes behind it.
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

#[derive(Line)]
#[repr(C, align(256))]
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
