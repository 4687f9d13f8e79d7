// As in a crate that depends on `warmcore` only: `#[line(crate = ..)]` gives the path of `warmcore_line`.
mod warmcore {
    pub use warmcore_line as line;
}
use warmcore::line::{Line, Padded, assert_lines};

#[derive(Line)]
#[repr(align(128))]
#[line(crate = crate::warmcore::line, pair)]
struct Slot<T> {
    #[line(owner)]
    value: Padded<T>,
    #[line(contended)]
    claims: u64,
}

assert_lines!(Slot<u64>);

fn main() {
    assert_eq!(<Slot<u64> as Line>::FIELDS.len(), 2);
}
