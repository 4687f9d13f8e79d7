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

/// Bytes of a cache line on the target.
///
/// 64 on aarch64 too, where Apple's cores have 128: a struct for both says `#[line(pair)]`.
pub const LINE: usize = if cfg!(target_arch = "s390x") {
    256
} else if cfg!(any(target_arch = "powerpc64", all(target_arch = "aarch64", target_vendor = "apple"))) {
    128
} else {
    64
};

/// Bytes of an aligned pair of lines, which the adjacent-line prefetcher of x86 moves as one.
///
/// Where a line already has 128 bytes or more, the pair is that line.
pub const PAIR: usize = if LINE > 128 { LINE } else { 128 };

/// A struct whose fields say who touches them. Derive it: see the crate's head for an example.
///
/// **On a field**, its group: `#[line(read_mostly)]`, `#[line(owner)]` or `#[line(contended)]`, and with
/// a name, as in `#[line(owner = "producer")]`, one of several such groups. Fields of one group may share
/// a line; any two others must not. A field without a group is an error, except `PhantomData`.
///
/// **On the struct**, `#[line(..)]` with any of
/// - `pair`: groups must not share an aligned pair of lines either;
/// - `default = read_mostly`: the group of the fields that name none;
/// - `crate = ::other::line`: where this crate is, for those who reach it through another; the derive of `warmcore`
///   knows.
///
/// The struct must be aligned to a line (with `pair`, to a pair): otherwise its offsets don't say where
/// lines begin. Its own layout is what counts, `repr(C)` or not. A field is taken as one: the derive does
/// not look inside of its type, at the elements of an array, or behind a pointer.
///
/// A struct with type or const parameters has no layout until they are known, so its check waits for
/// [`assert_lines!`] or for a constructor that calls [`assert_lines()`].
pub trait Line: Sized {
    /// The struct's name, without its parameters.
    const NAME: &'static str;
    /// Bytes that no two groups may share: [`LINE`] or [`PAIR`].
    const UNIT: usize = LINE;
    /// Its fields, in the order of the source.
    const FIELDS: &'static [FieldLine<'static>];
}

/// Fails when two groups of `T` share a line, or `T` is not aligned to one.
///
/// Called in a constant, it fails the build. In a generic constructor it covers every `T` in use; such
/// an error comes from `cargo build`, not from `cargo check`, which instantiates nothing:
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
/// With both fields, their groups and bytes, and the line; or with the alignment.
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

/// Checks one instantiation of a generic struct when the crate is built: `assert_lines!(Queue<u64>);`
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

    // In this crate `::warmcore_line` names nothing, so it builds only if the derive keeps to the path.
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
    fn the_derive_needs_no_path_but_the_one_it_was_given() {
        let [value, claims] = Slot::<[u8; PAIR + 1]>::FIELDS else { panic!("two fields") };
        assert_eq!((value.size, claims.offset, claims.size), (PAIR + 1, 2 * PAIR, PAIR));
        assert_eq!((Slot::<u8>::NAME, Slot::<u8>::UNIT), ("Slot", PAIR));
    }

    #[test]
    fn a_pair_is_made_of_whole_lines() {
        assert!(PAIR.is_multiple_of(LINE) && LINE.is_power_of_two(), "{LINE} {PAIR}");
    }
}
