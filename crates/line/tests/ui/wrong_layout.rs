//! Structs with a line of two groups, or without an alignment to lines.

use warmcore_line::{Line, assert_lines};

#[derive(Line)]
#[repr(C, align(64))]
struct Mm {
    #[line(read_mostly)]
    mmap_base: [u64; 8],
    #[line(contended)]
    mm_count: u64,
    #[line(read_mostly)]
    pcpu_cid: u64,
}

#[derive(Line)]
#[repr(C, align(64))]
struct Ring {
    #[line(owner = "producer")]
    tail: u64,
    #[line(owner = "consumer")]
    head: u64,
}

#[derive(Line)]
#[repr(C, align(64))]
struct Counts(#[line(owner)] u64, #[line(contended)] u64);

#[repr(align(64))]
struct OneLine(u64);

// Builds: each field has a line of its own.
#[derive(Line)]
#[repr(C, align(128))]
struct Apart {
    #[line(owner)]
    tail: OneLine,
    #[line(contended)]
    head: OneLine,
}

// Does not build: with `pair`, the two lines are one pair.
#[derive(Line)]
#[repr(C, align(128))]
#[line(pair)]
struct Together {
    #[line(owner)]
    tail: OneLine,
    #[line(contended)]
    head: OneLine,
}

#[derive(Line)]
#[line(default = contended)]
struct Loose {
    count: u64,
}

#[derive(Line)]
#[repr(align(64))]
#[line(default = contended, pair)]
struct HalfAPair {
    count: u64,
}

#[derive(Line)]
#[repr(C, align(64))]
struct Slot<T> {
    #[line(owner)]
    value: T,
    #[line(contended)]
    claims: u64,
}

assert_lines!(Slot<[u8; 64]>);
assert_lines!(Slot<[u8; 65]>);

fn main() {}
