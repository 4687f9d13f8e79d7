// Names and lints of the user's crate must not affect the generated code.
#![no_implicit_prelude]
#![deny(warnings)]
#![allow(dead_code)]

use ::std::marker::PhantomData;
use ::std::primitive::{u8, u16, u64, usize};
use ::warmcore_line::{Line, Padded, assert_lines};

mod core {}
mod std {}
mod warmcore_line {}
struct FieldLine;
struct Group;

#[derive(Line)]
#[repr(align(128))]
#[line(pair)]
struct Rust {
    #[line(read_mostly)]
    small: u8,
    #[line(owner)]
    owned: Padded<u64>,
    #[line(read_mostly)]
    large: u64,
    #[line(contended)]
    shared: Padded<u16>,
}

#[derive(Line)]
#[repr(align(128))]
struct Tuple(#[line(owner = "a")] Padded<u64>, #[line(owner = "b")] Padded<u64>, PhantomData<u64>);

#[derive(Line)]
#[repr(align(64))]
struct Unit;

#[derive(Line)]
#[repr(align(64))]
#[line(default = read_mostly)]
struct Borrowed<'a, 'b: 'a> {
    r#type: &'a u64,
    #[deprecated]
    old: &'b u64,
    #[line(owner)]
    own: Padded<u64>,
}

#[derive(Line)]
#[repr(align(64))]
#[line(default = owner)]
struct Generic<'a, T: ::std::marker::Copy, const N: usize = 4>
where
    T: 'a,
{
    values: [T; N],
    next: ::std::option::Option<&'a Self>,
    #[line(contended)]
    claims: Padded<u64>,
}

assert_lines!(Generic<'static, u64>, Generic<'static, u8, 65>);

macro_rules! from_a_macro {
    ($name:ident, $field:ident: $ty:ty) => {
        #[derive(Line)]
        #[repr(align(64))]
        struct $name {
            #[line(contended)]
            $field: $ty,
        }
    };
}
from_a_macro!(Made, count: u64);

fn main() {}
