use warmcore_line::Line;

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

fn main() {}
