//! Tests every reader with hostile input: runs the bodies of the fuzz targets on stable Rust, with a bounded number of
//! mutations.

use fastrand::Rng;
use std::path::PathBuf;
use warmcore_cli::hostile::{BODIES, corpus};

/// The number of inputs that are made from each input of a corpus: the first is the unchanged input, the others are
/// mutations. `WARMCORE_HOSTILE` in the environment overrides it. A fuzzer makes millions.
const MUTATIONS: u64 = 40;

/// Numbers that are critical where a reader multiplies, divides or allocates.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "1",
    "65536",
    "1048575",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "1e-320",
    "1e308",
    "NaN",
    "0xffffffffffffffff",
];

/// Mutates inputs. The seed determines the mutations, so that the inputs are the same on every machine.
struct Mutator(Rng);

impl Mutator {
    /// A number below `end`, or 0 if that is 0.
    fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end.max(1))
    }

    fn range(&mut self, bytes: &[u8], most: usize) -> std::ops::Range<usize> {
        let begin = self.below(bytes.len() + 1);
        begin..(begin + self.below(most)).min(bytes.len())
    }

    /// Returns the position of a number, if there is one after a random position.
    fn number(&mut self, bytes: &[u8]) -> Option<std::ops::Range<usize>> {
        let from = self.below(bytes.len());
        let begin = from + bytes[from..].iter().position(u8::is_ascii_digit)?;
        let len = bytes[begin..].iter().position(|b| !b.is_ascii_digit()).unwrap_or(bytes.len() - begin);
        Some(begin..begin + len)
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        match self.below(7) {
            0 => {
                let at = self.below(bytes.len() + 1);
                bytes.truncate(at);
            }
            1 => {
                let range = self.range(bytes, 64);
                bytes.drain(range);
            }
            2 => {
                let range = self.range(bytes, 200);
                let (at, again) = (range.end, bytes[range].repeat(1 + self.below(60)));
                bytes.splice(at..at, again);
            }
            3 => {
                let at = self.below(bytes.len());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << self.below(8);
                }
            }
            4 => {
                let (from, to) = (self.range(bytes, 40), self.range(bytes, 40));
                let piece = bytes[from].to_vec();
                bytes.splice(to, piece);
            }
            _ => {
                if let Some(range) = self.number(bytes) {
                    let number = NUMBERS[self.below(NUMBERS.len())];
                    bytes.splice(range, number.bytes());
                }
            }
        }
    }
}

/// If the body panics while this exists, writes the input to a file and prints where it is.
struct Case<'a>(&'a str, usize, u64, &'a [u8]);

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(name, input, mutation, bytes) = self;
            let path = std::env::temp_dir().join(format!("warmcore-hostile-{name}"));
            let kept = std::fs::write(&path, bytes).map(|()| path.display().to_string());
            eprintln!("{name}: input {input}, mutation {mutation}; kept as {kept:?}");
        }
    }
}

#[test]
fn no_reader_panics_or_goes_on_and_on() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let set = std::env::var("WARMCORE_HOSTILE").ok().and_then(|n| n.parse().ok());
    for (name, body) in BODIES {
        let (mut read, mut refused) = (0, 0);
        let inputs =
            corpus(&folder.join(format!("{name}.tar"))).unwrap_or_else(|e| panic!("{name}.tar: {e}"));
        assert!(!inputs.is_empty(), "{name}.tar has no inputs");
        for (i, input) in inputs.iter().enumerate() {
            for mutation in 0..set.unwrap_or(MUTATIONS) {
                let mut bytes = input.clone();
                let mut mutator = Mutator(Rng::with_seed((i as u64) << 32 ^ mutation));
                for _ in 0..mutation.min(6) {
                    mutator.mutate(&mut bytes);
                }
                let _case = Case(name, i, mutation, &bytes);
                // Mutation 0 is the unchanged input of the corpus.
                match (body(&bytes), mutation) {
                    (true, 0) => read += 1,
                    (false, 1..) => refused += 1,
                    _ => {}
                }
            }
        }
        // Otherwise all mutations would be rejected at once, or none would change the input.
        assert!(read > 0 && refused > 0, "{name}: {read} inputs are read, {refused} mutations are refused");
    }
}

#[test]
fn every_body_is_a_fuzz_target_with_a_corpus() {
    let fuzz = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for (name, _) in BODIES {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml has no target {name}");
        let target = std::fs::read_to_string(fuzz.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(target.contains(&format!("hostile::{name}(")), "{target}");
    }
}
