use warmcore_line::Line;

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

fn main() {}
