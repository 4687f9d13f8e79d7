//! Structs whose attributes or kind the derive refuses.

use std::marker::PhantomData;
use warmcore_line::Line;

#[derive(Line)]
enum State {
    Idle,
    Busy(u64),
}

#[derive(Line)]
union Word {
    bytes: [u8; 8],
    number: u64,
}

#[derive(Line)]
#[repr(align(64))]
struct Queue {
    #[line(owner)]
    head: u64,
    pub capacity: usize,
    #[line()]
    mask: usize,
    marker: PhantomData<u64>,
}

#[derive(Line)]
#[repr(align(64))]
struct Fields {
    #[line(hot)]
    unknown: u64,
    #[line(owner, contended)]
    twice: u64,
    #[line(owner = "")]
    nameless: u64,
    #[line(owner = producer)]
    unquoted: u64,
    #[line]
    bare: u64,
    #[line(pair)]
    misplaced: u64,
}

#[derive(Line)]
#[repr(align(64))]
#[line(read_mostly)]
struct GroupOnStruct {
    count: u64,
}

#[derive(Line)]
#[repr(align(64))]
#[line(default = hot)]
struct UnknownDefault {
    count: u64,
}

#[derive(Line)]
#[repr(align(64))]
#[line(pairs)]
struct UnknownOption {
    count: u64,
}

fn main() {}
