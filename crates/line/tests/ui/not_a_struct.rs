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

fn main() {}
