use super::*;

/// Builds BTF type by type, as `pahole -J` writes it.
#[derive(Default)]
struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl Builder {
    fn new() -> Self {
        Self { types: Vec::new(), strings: vec![0] }
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(name.as_bytes());
        self.strings.push(0);
        at
    }

    fn words(&mut self, words: &[u32]) {
        self.types.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    }

    fn int(&mut self, name: &str, size: u32) {
        let name = self.name(name);
        self.words(&[name, 1 << 24, size, size * 8]);
    }

    /// `kind` is 4 for a struct and 5 for a union; members are (name, type, bit, bits).
    fn compound(&mut self, kind: u32, name: &str, size: u32, members: &[(&str, u32, u32, u32)]) {
        let name = self.name(name);
        let has_bits = members.iter().any(|m| m.3 > 0);
        self.words(&[name, kind << 24 | u32::from(has_bits) << 31 | members.len() as u32, size]);
        for (member, of, bit, bits) in members {
            let member = self.name(member);
            self.words(&[member, *of, if has_bits { bits << 24 | bit } else { *bit }]);
        }
    }

    fn build(&self) -> Vec<u8> {
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        bytes.extend([24, 0, types, types, strings].iter().flat_map(|w: &u32| w.to_le_bytes()));
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }
}

/// `struct mm { struct { int count; long flags:3, rest:61; union { int a; long b; }; struct list list; int words[6]; };
/// }`
fn mm() -> Vec<u8> {
    let mut b = Builder::new();
    b.int("int", 4); // 1
    b.int("long", 8); // 2
    b.words(&[0, 2 << 24, 1]); // 3: int *
    b.compound(4, "list", 16, &[("next", 3, 0, 0), ("prev", 3, 64, 0)]); // 4
    b.compound(5, "", 8, &[("a", 1, 0, 0), ("b", 2, 0, 0)]); // 5
    let members = [
        ("count", 1, 0, 0),
        ("flags", 2, 64, 3),
        ("rest", 2, 67, 61),
        ("", 5, 128, 0),
        ("list", 4, 192, 0),
        ("words", 7, 320, 0),
    ];
    b.compound(4, "", 64, &members); // 6
    b.words(&[0, 3 << 24, 0, 1, 1, 6]); // 7: int[6]
    b.compound(4, "mm", 64, &[("", 6, 0, 0)]); // 8
    b.build()
}

#[test]
fn btf_gives_the_offsets_of_fields() {
    let layout = Layout::from_btf(&mm(), "mm", "mm.btf").unwrap();
    let fields: Vec<_> = layout.fields.iter().map(|f| (f.name.as_str(), f.offset, f.size, f.align)).collect();
    let expected = [
        ("count", 0, 4, 4),
        ("flags|rest", 8, 8, 8),
        ("a|b", 16, 8, 8),
        ("list", 24, 16, 8),
        ("words", 40, 24, 4),
    ];
    assert_eq!(fields, expected);
    assert_eq!((layout.size, layout.align), (64, 8));
    assert_eq!(layout.byte_range("list.prev").unwrap(), ByteRange { field: 3, offset: 32, size: 8 });
    assert_eq!(layout.byte_range("a").unwrap(), ByteRange { field: 2, offset: 16, size: 4 });
    assert_eq!(layout.byte_range("rest").unwrap(), ByteRange { field: 1, offset: 8, size: 8 });
    assert_eq!(layout.holes(), [Hole { offset: 4, size: 4 }]);
}

#[test]
fn btf_cut_off_anywhere_is_an_error_that_says_where() {
    let whole = mm();
    for end in 0..whole.len() {
        let error = Layout::from_btf(&whole[..end], "mm", "mm.btf").expect_err("it is cut off");
        let text = error.to_string();
        assert!(text.starts_with("mm.btf: ") && text.contains("byte"), "{end}: {text}");
    }
}

#[test]
fn btf_with_any_byte_changed_does_not_panic() {
    let whole = mm();
    for at in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let _ = Layout::from_btf(&bytes, "mm", "mm.btf");
        }
    }
}

#[test]
fn an_unknown_struct_is_answered_with_similar_names() {
    let error = Layout::from_btf(&mm(), "lists", "mm.btf").unwrap_err().to_string();
    assert_eq!(error, "mm.btf: has no struct lists; did you mean list?");
}

#[test]
fn a_declaration_that_contradicts_itself_is_an_error_that_names_the_fields() {
    let declared = |fields: &str| {
        let text = format!("name = \"s\"\nsize = 64\nfields = [{fields}]");
        Layout::declared(&text, "s.toml").unwrap_err().to_string()
    };
    let overlap = declared("{ name = \"a\", offset = 0, size = 8 }, { name = \"b\", offset = 4, size = 4 }");
    assert!(overlap.contains("field a (bytes 0..8) and field b (bytes 4..8) overlap"), "{overlap}");
    let beyond = declared("{ name = \"a\", offset = 60, size = 8 }");
    assert!(beyond.contains("field a of 8 bytes at 60 is not within 0..64"), "{beyond}");
    let twice = declared("{ name = \"a\", offset = 0, size = 8 }, { name = \"a\", offset = 8, size = 8 }");
    assert!(twice.contains("two fields are called a"), "{twice}");
    let crooked = declared("{ name = \"a\", offset = 4, size = 8, align = 8 }");
    assert!(crooked.contains("field a at 4 is not aligned to 8"), "{crooked}");
    let wrong = Layout::declared("name = 3", "s.toml").unwrap_err().to_string();
    assert!(wrong.starts_with("s.toml: "), "{wrong}");
    let json = r#"{"name": "s", "size": 8, "fields": [{"name": "a", "offset": 0, "size": 8}]"#;
    let cut = Layout::declared(json, "s.json").unwrap_err().to_string();
    assert!(cut.contains("line 1"), "{cut}");
}

fn declared() -> Layout {
    let text = r#"
        name = "s"
        size = 128
        fields = [
          { name = "a", offset = 0, size = 8 },
          { name = "b", offset = 16, size = 4 },
          { name = "c", offset = 64, size = 8 },
        ]"#;
    Layout::declared(text, "s.toml").unwrap()
}

#[test]
fn a_move_changes_nothing_else() {
    let layout = declared();
    let moved = layout.with(&[(1, 72)]).unwrap();
    assert_eq!(moved.fields.iter().map(|f| f.offset).collect::<Vec<_>>(), [0, 64, 72]);
    assert_eq!((moved.fields[2].name.as_str(), moved.size), ("b", 128));
    assert!(layout.with(&[(1, 68)]).is_none(), "c is there");
    assert!(layout.with(&[(0, 12)]).is_none(), "not aligned");
    let swapped = layout.with(&[(0, 64), (2, 0)]).unwrap();
    assert_eq!((swapped.byte_range("a").unwrap().offset, swapped.byte_range("c").unwrap().offset), (64, 0));
}

#[test]
fn a_line_of_its_own_has_no_other_field_and_moves_no_field_within_its_line() {
    let layout = declared();
    for moved in [layout.in_front(&[1], 64), layout.at_the_end(&[1], 64)] {
        let line = moved.byte_range("b").unwrap().offset / 64;
        assert!(moved.fields.iter().all(|f| f.name == "b" || f.offset / 64 != line), "{moved:?}");
        assert_eq!((moved.added_to(&layout), moved.align), (64, 64));
        for name in ["a", "c"] {
            let (before, after) = (layout.byte_range(name).unwrap(), moved.byte_range(name).unwrap());
            assert_eq!(before.offset % 64, after.offset % 64);
        }
    }
}

#[test]
fn an_array_of_unknown_length_stays_the_last_field() {
    let mut b = Builder::new();
    b.int("long int", 8); // 1
    b.int("char", 1); // 2
    b.words(&[0, 3 << 24, 0, 2, 1, 0]); // 3: char[]
    b.compound(
        4,
        "message",
        24,
        &[("head", 1, 0, 0), ("tail", 1, 64, 0), ("len", 2, 128, 0), ("data", 3, 136, 0)],
    );
    let layout = Layout::from_btf(&b.build(), "message", "m.btf").unwrap();
    assert_eq!(layout.flexible(), Some(3));
    assert_eq!(layout.holes(), [], "the bytes after `len` are the array's elements");
    assert!(layout.with(&[(2, 18)]).is_none(), "the array's elements are there");
    let moved = layout.at_the_end(&[0], 64);
    let at = |name: &str| moved.byte_range(name).unwrap().offset;
    assert_eq!((at("head"), at("tail"), at("data"), moved.size), (64, 8, 128, 128));
    assert_eq!(moved.fields.last().unwrap().name, "data");
    assert_eq!(moved.flexible(), Some(3));
    let data = layout.byte_range("data").unwrap();
    assert_eq!(data.units(64), 0..1, "it is on the line where it begins");
}

#[test]
fn a_packed_struct_does_not_grow_by_an_alignment_that_it_does_not_have() {
    let mut b = Builder::new();
    b.int("long int", 8); // 1
    b.int("char", 1); // 2
    b.compound(4, "packed", 17, &[("a", 1, 0, 0), ("b", 1, 64, 0), ("c", 2, 128, 0)]);
    b.compound(4, "outer", 48, &[("packed", 3, 56, 0), ("x", 1, 192, 0), ("y", 2, 256, 0)]);
    let bytes = b.build();
    let layout = Layout::from_btf(&bytes, "packed", "p.btf").unwrap();
    assert_eq!((layout.align, layout.fields[0].align), (1, 1));
    let swapped = layout.with(&[(0, 8), (1, 0)]).unwrap();
    assert_eq!(swapped.added_to(&layout), 0);
    let outer = Layout::from_btf(&bytes, "outer", "p.btf").unwrap();
    assert_eq!((outer.fields[0].align, outer.align), (1, 8));
}

#[test]
fn pointers_are_as_wide_as_long() {
    for (wide, offset) in [(4u32, 4), (8, 8)] {
        let mut b = Builder::new();
        b.int("long unsigned int", wide); // 1
        b.words(&[0, 2 << 24, 1]); // 2: a pointer
        b.compound(4, "list", 2 * wide, &[("next", 2, 0, 0), ("prev", 2, 8 * wide, 0)]);
        let layout = Layout::from_btf(&b.build(), "list", "l.btf").unwrap();
        let fields: Vec<_> = layout.fields.iter().map(|f| (f.name.as_str(), f.offset, f.size)).collect();
        assert_eq!(fields, [("next", 0, offset), ("prev", offset, offset)]);
    }
}

#[test]
fn every_kind_of_btf_may_be_a_member() {
    let mut b = Builder::new();
    let float = b.name("double");
    b.words(&[float, 16 << 24, 8]); // 1
    let wide = b.name("wide");
    b.words(&[wide, 19 << 24 | 1, 8, 0, 1, 0]); // 2: an enum64 of one
    let user = b.name("user");
    b.words(&[user, 18 << 24, 1]); // 3: a type tag
    b.words(&[0, 2 << 24, 3]); // 4: a pointer to it
    b.words(&[0, 10 << 24, 2]); // 5: const
    let named = b.name("named");
    b.words(&[named, 8 << 24, 5]); // 6: typedef
    b.words(&[0, 3 << 24, 0, 6, 1, 2]); // 7: two of them
    b.words(&[user, 17 << 24, 9, 0]); // 8: a declaration tag
    b.compound(4, "all", 40, &[("f", 1, 0, 0), ("e", 2, 64, 0), ("p", 4, 128, 0), ("n", 7, 192, 0)]); // 9
    let layout = Layout::from_btf(&b.build(), "all", "a.btf").unwrap();
    let fields: Vec<_> = layout.fields.iter().map(|f| (f.offset, f.size, f.align)).collect();
    assert_eq!(fields, [(0, 8, 8), (8, 8, 8), (16, 8, 8), (24, 16, 8)]);
}

#[test]
fn a_declared_size_is_a_multiple_of_the_alignment() {
    let declared = |text: &str| Layout::declared(text, "s.toml");
    let crooked = declared("name = \"s\"\nsize = 100\nalign = 64\nfields = []").unwrap_err().to_string();
    assert!(crooked.contains("a size of 100 is no multiple of the alignment 64"), "{crooked}");
    let huge = declared("name = \"s\"\nsize = 9000000000000000000\nfields = []").unwrap_err().to_string();
    assert!(huge.contains("1 GiB is the most"), "{huge}");
    let packed = "name = \"s\"\nsize = 9\nfields = [{ name = \"a\", offset = 0, size = 8 }]";
    assert_eq!(declared(packed).unwrap().align, 1);
}
