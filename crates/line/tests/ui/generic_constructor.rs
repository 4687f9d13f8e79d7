use warmcore_line::{Line, assert_lines};

#[derive(Line)]
#[repr(C, align(64))]
struct Slot<T> {
    #[line(owner)]
    value: T,
    #[line(contended)]
    claims: u64,
}

impl<T> Slot<T> {
    fn new(value: T) -> Self {
        const { assert_lines::<Self>() };
        Slot { value, claims: 0 }
    }
}

fn main() {
    Slot::new([0u8; 64]);
    Slot::new(7u64);
}
