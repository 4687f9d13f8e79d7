use super::*;
use crate::{Access, Group};

const READ: Group<'static> = Group { access: Access::ReadMostly, name: "" };
const PRODUCER: Group<'static> = Group { access: Access::Owner, name: "producer" };

#[test]
fn a_drawing_marks_mixed_lines_and_folds_long_fields() {
    let fields = [
        FieldLine { name: "ring", group: READ, offset: 192, size: 4096 },
        FieldLine { name: "limit", group: READ, offset: 8, size: 8 },
        FieldLine { name: "tail", group: PRODUCER, offset: 0, size: 8 },
        FieldLine { name: "marker", group: READ, offset: 64, size: 0 },
    ];
    let drawn = Layout { name: "Ring", size: 4352, unit: LINE, fields: &fields }.to_string();
    #[cfg(target_arch = "x86_64")]
    assert_eq!(
        drawn,
        "\
Ring: 4352 bytes
! line 0         0..64        tail (owner \"producer\", 0..8), limit (read_mostly, 8..16)
  lines 1..3     64..192      -
  lines 3..67    192..4288    ring (read_mostly, 192..4288)
  line 67        4288..4352   -
"
    );
    assert!(drawn.starts_with("Ring: 4352 bytes\n! "));
}

#[test]
fn rows_cover_all_bytes_in_order() {
    let fields = [FieldLine { name: "a", group: READ, offset: 100, size: 200 }];
    for (size, rows) in [(0, 0), (1, 1), (300, 2), (384, 3), (1000, 3)] {
        let drawn = Layout { name: "S", size, unit: 64, fields: &fields }.to_string();
        let mut end = 0;
        for row in drawn.lines().skip(1) {
            let (from, to) = row.split_whitespace().nth(2).and_then(|range| range.split_once("..")).unwrap();
            assert_eq!(from, end.to_string(), "{drawn}");
            end = to.parse().unwrap();
        }
        assert_eq!((end, drawn.lines().count() - 1), (size.next_multiple_of(64), rows), "{drawn}");
    }
}
