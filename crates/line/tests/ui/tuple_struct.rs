use warmcore_line::Line;

#[derive(Line)]
#[repr(C, align(64))]
struct Counts(#[line(owner)] u64, #[line(contended)] u64);

fn main() {}
