use std::marker::PhantomData;
use warmcore_line::Line;

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

fn main() {}
