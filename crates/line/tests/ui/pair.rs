use warmcore_line::Line;

#[repr(align(64))]
struct OneLine(u64);

// A line each is enough ...
#[derive(Line)]
#[repr(C, align(128))]
struct Apart {
    #[line(owner)]
    tail: OneLine,
    #[line(contended)]
    head: OneLine,
}

// ... until pairs count.
#[derive(Line)]
#[repr(C, align(128))]
#[line(pair)]
struct Together {
    #[line(owner)]
    tail: OneLine,
    #[line(contended)]
    head: OneLine,
}

fn main() {}
