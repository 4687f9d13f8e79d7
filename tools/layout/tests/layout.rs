//! Reads layouts from this test's own debug information, from files that a C or C++ compiler builds, and from the
//! running kernel if it has BTF.

use std::mem::offset_of;
use std::path::Path;
use warmcore_layout::Layout;

/// The struct that is searched in this file's debug information.
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

fn own(name: &str) -> Result<Layout, warmcore_layout::LayoutError> {
    // The types are used here, because an unused type is not in the debug information.
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
    let at = |name: &str| layout.byte_range(name).map(|p| (p.offset, p.size)).unwrap();
    assert_eq!(at("first"), (0, 1));
    assert_eq!(at("second"), (offset_of!(WarmcoreLayoutProbe, second), 8));
    assert_eq!(at("inside"), (offset_of!(WarmcoreLayoutProbe, inside), size_of::<Inside>()));
    assert_eq!(at("inside.deeper"), (offset_of!(WarmcoreLayoutProbe, inside.deeper), 8));
    assert_eq!(at("array"), (offset_of!(WarmcoreLayoutProbe, array), 20));
    assert_eq!(at("pair"), (offset_of!(WarmcoreLayoutProbe, pair), 4));
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "a release build says nothing of types")]
fn an_unknown_or_ambiguous_name_is_an_error_that_lists_the_names() {
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
    // An ELF file that is cut off in the middle.
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
    let (users, count) = (mm.byte_range("mm_users").unwrap(), mm.byte_range("mm_count").unwrap());
    assert_eq!((users.size, count.size), (4, 4));
    assert_ne!(users.offset, count.offset);
    assert!(mm.fields.windows(2).all(|pair| pair[0].end() <= pair[1].offset || pair[1].size == 0));
    let task = Layout::read(btf, "task_struct").unwrap();
    assert!(task.byte_range("se.vruntime").unwrap().offset < task.size && task.fields.len() > 50);
    let error = Layout::read(btf, "mm_strut").unwrap_err().to_string();
    assert!(error.contains("did you mean mm_struct"), "{error}");
}

/// Features of C that affect a layout.
const C: &str = r#"
typedef struct { int a; long b; } Ring;
typedef float wide __attribute__((vector_size(16)));
struct packed { char c; int bits:3; int more:9; } __attribute__((packed));
struct all {
    char first;
    int low:5, high:20;
    char after;
    Ring ring;
    int own __attribute__((aligned(64)));
    wide vector;
    struct packed packed;
    union { int x; struct { short y, z; }; };
    int (*call)(void);
    char name[3][2];
    _Bool flag;
    long data[];
};
struct all *all; Ring *ring;
"#;

/// Compiles `text` as C or C++ into `built.so`. `None` if there is no compiler with these flags.
fn built(directory: &Path, flags: &str, name: &str, text: &str) -> Option<std::path::PathBuf> {
    let (source, to) = (directory.join(name), directory.join("built.so"));
    std::fs::write(&source, text).unwrap();
    let cc = if name.ends_with(".c") { "cc" } else { "c++" };
    let mut command = std::process::Command::new(cc);
    command.args(["-shared", "-fPIC", "-nostdlib", "-w"]).args(flags.split(' '));
    let done = command.arg("-o").arg(&to).arg(&source).output().is_ok_and(|done| done.status.success());
    if !done {
        eprintln!("skipped {flags}: {cc} does not build it");
    }
    done.then_some(to)
}

#[test]
#[cfg(target_arch = "x86_64")]
fn every_version_of_dwarf_gives_the_layout_of_the_c_compiler() {
    let directory = tempfile::tempdir().unwrap();
    for flags in [
        "-gdwarf-2 -gstrict-dwarf",
        "-gdwarf-3 -gstrict-dwarf",
        "-gdwarf-4",
        "-gdwarf-5",
        "-gdwarf-4 -fdebug-types-section",
        "-gdwarf-5 -fdebug-types-section",
    ] {
        let Some(file) = built(directory.path(), flags, "all.c", C) else { continue };
        let layout = Layout::read(&file, "all").unwrap_or_else(|e| panic!("{flags}: {e}"));
        let at = |name: &str| {
            layout.byte_range(name).map(|p| (p.offset, p.size)).unwrap_or_else(|e| panic!("{flags}: {e}"))
        };
        assert_eq!((at("first"), at("low"), at("high")), ((0, 1), (1, 1), (4, 3)), "{flags}");
        assert_eq!((at("after"), at("ring"), at("ring.b")), ((7, 1), (8, 16), (16, 8)), "{flags}");
        assert_eq!((at("own"), at("vector")), ((64, 4), (80, 16)), "{flags}");
        assert_eq!(
            (at("packed"), at("packed.bits"), at("packed.more")),
            ((96, 3), (97, 1), (97, 2)),
            "{flags}"
        );
        assert_eq!(
            (at("x"), at("z"), at("call"), at("name")),
            ((100, 4), (102, 2), (104, 8), (112, 6)),
            "{flags}"
        );
        assert_eq!((at("flag"), at("data"), layout.size), ((118, 1), (120, 0), 128), "{flags}");
        let of = |name: &str| layout.fields.iter().find(|f| f.name == name).unwrap();
        // Before version 5, DWARF has no alignment.
        assert!(of("own").align == 64 || !flags.contains("dwarf-5"), "{flags}");
        assert_eq!((of("vector").align, of("packed").align), (16, 1), "{flags}");
        assert_eq!(layout.flexible(), Some(layout.fields.len() - 1), "{flags}");
        let ring = Layout::read(&file, "Ring").unwrap_or_else(|e| panic!("{flags}: {e}"));
        assert_eq!((ring.name.as_str(), ring.size, ring.fields.len()), ("Ring", 16, 2), "{flags}");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn bytes_of_an_unknown_type_are_no_hole() {
    let directory = tempfile::tempdir().unwrap();
    let text = "struct Base { long x; }; struct Below : virtual Base { int y; }; Below below;\n\
                struct Method { int (Base::*call)(); long Base::*where; decltype(nullptr) none; } method;\n";
    if let Some(file) = built(directory.path(), "-g", "below.cc", text) {
        let error = Layout::read(&file, "Below").unwrap_err().to_string();
        assert!(error.contains("a virtual base"), "{error}");
        let method = Layout::read(&file, "Method").unwrap();
        let sizes: Vec<usize> = method.fields.iter().map(|f| f.size).collect();
        assert_eq!((sizes, method.holes().len()), (vec![16, 8, 8], 0));
    }
    if let Some(file) = built(directory.path(), "-g -r", "all.c", C) {
        let error = Layout::read(&file, "all").unwrap_err().to_string();
        assert!(error.contains("is not linked yet"), "{error}");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn damaged_debug_information_does_not_panic() {
    let directory = tempfile::tempdir().unwrap();
    for flags in ["-gdwarf-3 -gstrict-dwarf", "-gdwarf-5"] {
        let Some(file) = built(directory.path(), flags, "all.c", C) else { continue };
        let whole = std::fs::read(&file).unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..1500 {
            let mut bytes = whole.clone();
            for _ in 0..4 {
                let at = rng.usize(..bytes.len());
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)];
            }
            if let Ok(layout) = Layout::from_elf(&bytes, "all", "damaged") {
                let _ = (layout.holes(), layout.at_the_end(&[0], 64), layout.in_front(&[0], 64));
            }
        }
    }
}
