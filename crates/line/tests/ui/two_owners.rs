use warmcore_line::Line;

#[derive(Line)]
#[repr(C, align(64))]
struct Ring {
    #[line(owner = "producer")]
    tail: u64,
    #[line(owner = "consumer")]
    head: u64,
}

fn main() {}
