//! Layouts from this test's own debug information, and from this machine's kernel if it has BTF.

use std::mem::offset_of;
use std::path::Path;
use warmcore_sim::layout::Layout;

/// What is looked for in this very file's debug information.
#[repr(C)]
#[derive(Debug, Default)]
struct WarmcoreLayoutProbe {
    first: u8,
    second: u64,
    inside: Inside,
    array: [u32; 5],
    pair: (u16, u16),
}

#[repr(C)]
#[derive(Debug, Default)]
struct Inside {
    deep: u32,
    deeper: u64,
}

mod other {
    #[repr(C)]
    #[derive(Debug, Default)]
    pub(super) struct Twice {
        pub one: u8,
    }
}

#[repr(C)]
#[derive(Debug, Default)]
struct Twice {
    one: u64,
}

fn own(name: &str) -> Result<Layout, warmcore_sim::layout::LayoutError> {
    // Nothing that is not used is in the debug information.
    let kept = (WarmcoreLayoutProbe::default(), Twice::default(), other::Twice::default());
    std::hint::black_box(format!("{kept:?}"));
    Layout::read(&std::env::current_exe().unwrap(), name)
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "a release build says nothing of types")]
fn dwarf_gives_the_fields_where_the_compiler_put_them() {
    let layout = own("WarmcoreLayoutProbe").unwrap();
    assert_eq!(layout.size, size_of::<WarmcoreLayoutProbe>());
    assert_eq!(layout.align, align_of::<WarmcoreLayoutProbe>());
    let at = |name: &str| layout.place(name).map(|p| (p.offset, p.size)).unwrap();
    assert_eq!(at("first"), (0, 1));
    assert_eq!(at("second"), (offset_of!(WarmcoreLayoutProbe, second), 8));
    assert_eq!(at("inside"), (offset_of!(WarmcoreLayoutProbe, inside), size_of::<Inside>()));
    assert_eq!(at("inside.deeper"), (offset_of!(WarmcoreLayoutProbe, inside.deeper), 8));
    assert_eq!(at("array"), (offset_of!(WarmcoreLayoutProbe, array), 20));
    assert_eq!(at("pair"), (offset_of!(WarmcoreLayoutProbe, pair), 4));
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "a release build says nothing of types")]
fn a_name_that_is_not_there_or_there_twice_is_an_error_that_says_what_is() {
    let error = own("WarmcoreLayoutProbes").unwrap_err().to_string();
    assert!(error.contains("did you mean WarmcoreLayoutProbe?"), "{error}");
    let error = own("Twice").unwrap_err().to_string();
    assert!(error.contains("layout::Twice (8 bytes)"), "{error}");
    assert!(error.contains("layout::other::Twice (1 bytes)") && error.contains("say which"), "{error}");
    assert_eq!(own("layout::other::Twice").unwrap().size, 1);
}

#[test]
fn a_file_that_is_none_of_the_kinds_is_an_error_that_names_it() {
    let read = |path: &str, name: &str| Layout::read(Path::new(path), name).unwrap_err().to_string();
    let missing = read("no/such/file", "s");
    assert!(missing.starts_with("no/such/file: cannot be read"), "{missing}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    for (bytes, said) in [
        (&b"\x7fELF"[..], "give a whole ELF file"),
        (&b"\x9f\xeb\x02\x00"[..], "version 2"),
        (&b"\xff\xfe\x00"[..], "no text from byte 0 on"),
        (&b"name = \"t\"\nsize = 8\nfields = []"[..], "declares t, not s"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = read(path.to_str().unwrap(), "s");
        assert!(error.contains(said), "{said}: {error}");
    }
    // An ELF file cut off in the middle.
    let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for part in [64, whole.len() / 3, whole.len() - 1] {
        std::fs::write(&path, &whole[..part]).unwrap();
        let _ = Layout::read(&path, "WarmcoreLayoutProbe").expect_err("it is cut off");
    }
}

#[test]
fn this_kernels_own_structs_can_be_read_where_it_describes_them() {
    let btf = Path::new("/sys/kernel/btf/vmlinux");
    if !btf.exists() {
        eprintln!("skipped: this kernel has no BTF");
        return;
    }
    let mm = Layout::read(btf, "mm_struct").unwrap();
    let (users, count) = (mm.place("mm_users").unwrap(), mm.place("mm_count").unwrap());
    assert_eq!((users.size, count.size), (4, 4));
    assert_ne!(users.offset, count.offset);
    assert!(mm.fields.windows(2).all(|pair| pair[0].end() <= pair[1].offset || pair[1].size == 0));
    let task = Layout::read(btf, "task_struct").unwrap();
    assert!(task.place("se.vruntime").unwrap().offset < task.size && task.fields.len() > 50);
    let error = Layout::read(btf, "mm_strut").unwrap_err().to_string();
    assert!(error.contains("did you mean mm_struct"), "{error}");
}
