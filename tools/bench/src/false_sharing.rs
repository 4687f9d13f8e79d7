//! `bench false-sharing`: the cost for a reader if another CPU writes to a field near the reader's field.
//!
//! The reader follows a pointer that leads to itself, so each read waits for the previous read: the time is the latency
//! that a program sees. The writer adds to a counter on another CPU, as fast as it can or once in a given time. Only
//! the positions of the two fields differ.
//!
//! A read takes 1 to 2 ns from L1; a line that another CPU has written arrives after 10 to 200 ns. A writer that writes
//! to the line once per µs costs the reader one such transfer per µs.
//!
//! Source: linux-kernel, April 2023: `mm_struct.pcpu_cid` beside `mm_count`. Padding *after* the reader alone had no
//! effect, since the writer was *before* it.

use crate::case::{Case, CaseCtx};
use crate::measure::Variant;
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use warmcore_line::Padded;
use warmcore_results::Row;
use warmcore_sys::clock;

/// The cases: how often the writer writes.
pub const CASES: &[Case] = &[
    Case::new("false-sharing.full", |ctx| rate(ctx, 0)).needs_two_cpus(),
    Case::new("false-sharing.100ns", |ctx| rate(ctx, 100)).needs_two_cpus(),
    Case::new("false-sharing.1us", |ctx| rate(ctx, 1000)).needs_two_cpus(),
    Case::new("false-sharing.10us", |ctx| rate(ctx, 10_000)).needs_two_cpus(),
];

/// A reader's field: a pointer to itself.
type Reader = AtomicPtr<u8>;

/// Both fields on one line.
#[derive(Default)]
#[repr(C, align(128))]
struct SameLine {
    reader: Reader,
    writer: AtomicU64,
}

/// The reader has padding after it, and the writer is before it: both are still on one line.
#[derive(Default)]
#[repr(C, align(128))]
struct WrongSide {
    before: [u64; 6],
    writer: AtomicU64,
    reader: Reader,
    after: [u64; 8],
}

/// Two neighbouring lines of one aligned pair.
#[derive(Default)]
#[repr(C, align(128))]
struct OwnLine {
    reader: Reader,
    between: [u64; 7],
    writer: AtomicU64,
}

/// As `Padded` and the derive with `pair` lay the fields out.
#[derive(Default)]
#[repr(C)]
struct OwnPair {
    reader: Padded<Reader>,
    writer: Padded<AtomicU64>,
}

// Check that the types have the layouts that their names claim.
const _: () = {
    use std::mem::offset_of;
    const fn line(offset: usize) -> usize {
        offset / 64
    }
    assert!(line(offset_of!(SameLine, reader)) == line(offset_of!(SameLine, writer)));
    assert!(line(offset_of!(WrongSide, reader)) == line(offset_of!(WrongSide, writer)));
    assert!(offset_of!(WrongSide, after) + 64 == size_of::<WrongSide>());
    assert!(line(offset_of!(OwnLine, reader)) + 1 == line(offset_of!(OwnLine, writer)));
    assert!(line(offset_of!(OwnPair, reader)) + 2 == line(offset_of!(OwnPair, writer)));
};

fn rate(ctx: &CaseCtx, every_ns: u64) -> anyhow::Result<Vec<Row>> {
    let (same, wrong, line, pair) =
        (SameLine::default(), WrongSide::default(), OwnLine::default(), OwnPair::default());
    let variants = vec![
        variant("same line", &same.reader, &same.writer, every_ns),
        variant("padding on the wrong side", &wrong.reader, &wrong.writer, every_ns),
        variant("own line", &line.reader, &line.writer, every_ns),
        variant("own pair of lines", &pair.reader, &pair.writer, every_ns),
    ];
    let measured = ctx.interleave(variants)?;
    let mut rows = measured.rows("own pair of lines", []);
    rows.extend(measured.partner_times("writer time"));
    Ok(rows)
}

fn variant<'a>(name: &str, reader: &'a Reader, writer: &'a AtomicU64, every_ns: u64) -> Variant<'a> {
    reader.store(std::ptr::from_ref(reader).cast_mut().cast(), Relaxed);
    let read = move |n: u64| {
        let mut at: *const Reader = reader;
        for _ in 0..n {
            // SAFETY: the field holds its own address, stored above, and lives as long as this.
            at = unsafe { (*at).load(Relaxed) }.cast();
        }
        std::hint::black_box(at);
    };
    thread_local! {
        static NEXT_NS: Cell<u64> = const { Cell::new(0) };
    }
    let write = move || {
        if every_ns == 0 {
            (0..64).for_each(|_| _ = writer.fetch_add(1, Relaxed));
            return 64;
        }
        let now = clock::now().0;
        if now < NEXT_NS.get() {
            return 0;
        }
        writer.fetch_add(1, Relaxed);
        // Count from now, not from the time at which this write was due, so that no burst of writes follows a pause.
        NEXT_NS.set(now + every_ns);
        1
    };
    Variant::new(name, read).beside(write)
}
