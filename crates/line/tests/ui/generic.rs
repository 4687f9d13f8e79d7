use warmcore_line::{Line, assert_lines};

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
