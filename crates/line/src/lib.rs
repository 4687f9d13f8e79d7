#![doc = include_str!("../README.md")]

mod conflict;
mod field;
mod layout;
mod padded;

pub use conflict::{Conflict, conflicts, first_conflict};
pub use field::{Access, FieldLine, Group};
pub use layout::{Layout, layout};
pub use padded::Padded;
pub use warmcore_line_derive::Line;

/// The size of a cache line on the target, in bytes.
///
/// It is 256 on s390x, 128 on powerpc64 and on Apple's aarch64, and 64 elsewhere. A struct for lines of 64 and of 128
/// bytes uses `#[line(pair)]`.
pub const LINE: usize = if cfg!(target_arch = "s390x") {
    256
} else if cfg!(any(target_arch = "powerpc64", all(target_arch = "aarch64", target_vendor = "apple"))) {
    128
} else {
    64
};

/// The size of an aligned pair of cache lines in bytes. The adjacent-line prefetcher of x86 fetches both lines.
///
/// On targets whose lines have 128 bytes or more, it is the size of one line.
pub const PAIR: usize = if LINE > 128 { LINE } else { 128 };

/// A struct whose fields have groups, by how CPUs access them. Derive it; the crate's page has an example.
///
/// **On a field**, its group: `#[line(read_mostly)]`, `#[line(owner)]` or `#[line(contended)]`. A group may have a
/// name, as in `#[line(owner = "producer")]`, which makes it a different group. Fields of the same group may share a
/// line; fields of different groups must not. A field without a group is an error, unless the struct has a `default` or
/// the field's type is `PhantomData` or `PhantomPinned`.
///
/// **On the struct**, `#[line(..)]` with any of
/// - `pair`: two groups must not share an aligned pair of lines either;
/// - `default = read_mostly` (or another group without a name): the group of fields that have none;
/// - `crate = ::other::line`: the path of this crate, for crates that use it through another one. In the derive that
///   `warmcore` exports, it is `::warmcore::line` by default.
///
/// The struct must be aligned to a line (with `pair`, to a pair), because otherwise its offsets do not determine its
/// lines. The derived check uses the real layout, with or without `repr(C)`. A field is checked as a whole: not the
/// fields of its type, the elements of an array, or the target of a pointer.
///
/// A struct with type or const parameters has no layout until they are known. Its check is [`assert_lines!`], or a
/// constructor that calls [`assert_lines()`].
pub trait Line: Sized {
    /// The struct's name, without its parameters.
    const NAME: &'static str;
    /// The size of a unit that two groups must not share, in bytes: [`LINE`] or [`PAIR`].
    const UNIT: usize = LINE;
    /// Its fields, in the order of the source.
    const FIELDS: &'static [FieldLine<'static>];
}

/// Panics if two groups of `T` share a unit ([`Line::UNIT`]: a line or a pair), or if `T` is not aligned to one.
///
/// In a constant, this fails the build. In a generic constructor it checks every `T` that is used; such an error is
/// reported by `cargo build` but not by `cargo check`, which does not instantiate generic code:
///
/// ```
/// use warmcore_line::{Line, Padded, assert_lines};
///
/// #[derive(Line)]
/// #[repr(align(128))]
/// struct Slot<T> {
///     #[line(owner)]
///     value: Padded<T>,
///     #[line(contended)]
///     claims: u64,
/// }
///
/// impl<T> Slot<T> {
///     fn new(value: T) -> Self {
///         const { assert_lines::<Self>() };
///         Slot { value: Padded::new(value), claims: 0 }
///     }
/// }
/// # Slot::new(7u8);
/// ```
///
/// # Panics
/// The text of the panic has the two fields, their groups and bytes, and the unit that they share; or the alignment.
// `track_caller` also shapes the compiler's message: frames with it are left out, so the error points
// at the user's struct and its text holds no line numbers of this file or of std.
#[track_caller]
pub const fn assert_lines<T: Line>() {
    if align_of::<T>() < T::UNIT {
        conflict::fail_align(T::NAME, align_of::<T>(), T::UNIT);
    }
    if let Some(conflict) = first_conflict(T::FIELDS, T::UNIT) {
        conflict.fail(T::NAME);
    }
}

/// Checks instantiations of generic structs when the crate is built: `assert_lines!(Queue<u64>);`
///
/// ```
/// # use warmcore_line::{Line, Padded, assert_lines};
/// # #[derive(Line)]
/// # #[repr(align(128))]
/// # struct Queue<T> {
/// #     #[line(owner)]
/// #     value: Padded<T>,
/// # }
/// assert_lines!(Queue<u64>, Queue<[u8; 200]>);
/// ```
#[macro_export]
macro_rules! assert_lines {
    ($($ty:ty),+ $(,)?) => {
        $(const _: () = $crate::assert_lines::<$ty>();)+
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    // This crate has no `::warmcore_line`, so this builds only if the derive uses the given path.
    #[derive(Line)]
    #[repr(C, align(256))]
    #[line(crate = crate, pair)]
    #[allow(dead_code)]
    struct Slot<T> {
        #[line(owner)]
        value: T,
        #[line(contended)]
        claims: Padded<u8>,
    }

    assert_lines!(Slot<[u8; 3]>, Slot<[u8; PAIR + 1]>);

    #[test]
    fn the_derive_uses_the_given_path_only() {
        let [value, claims] = Slot::<[u8; PAIR + 1]>::FIELDS else { panic!("two fields") };
        assert_eq!((value.size, claims.offset, claims.size), (PAIR + 1, 2 * PAIR, PAIR));
        assert_eq!((Slot::<u8>::NAME, Slot::<u8>::UNIT), ("Slot", PAIR));
    }

    #[test]
    fn a_pair_is_made_of_whole_lines() {
        assert!(PAIR.is_multiple_of(LINE) && LINE.is_power_of_two(), "{LINE} {PAIR}");
    }
}
