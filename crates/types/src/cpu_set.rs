//! CpuSet: a set of CPU numbers.
//!
//! It is a bitmap of 64-bit words, with CPU 0 in the lowest bit of the first word. The word with the largest
//! member is the last one, so equal sets have equal words. 8192 CPUs take 128 words, 1 KiB.
//!
//! Source. The text form is the kernel's "list format" (Documentation/admin-guide/cputopology.rst): `0-3,8,10-11`. A
//! range may have a stride: `0-31:2/4` has the first 2 of every 4 CPUs. Lists that this module writes have no strides.

use crate::CpuId;
use std::fmt;

/// The largest CPU number that a list may have; a larger one is an error. Linux supports at most 8192 CPUs.
const CPU_MAX: u32 = 1 << 20;

/// A set of CPUs by the kernel's numbers.
///
/// ```
/// use warmcore_types::{CpuId, CpuSet};
///
/// let mut cpus = CpuSet::parse_list("0-3,1024")?;
/// assert!(cpus.contains(CpuId(1024)));
/// cpus.remove(CpuId(0));
/// assert_eq!(cpus.to_string(), "1-3,1024");
/// # Ok::<(), warmcore_types::ListError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    /// The last word is not 0, so that `Eq` and `Hash` compare members.
    words: Vec<u64>,
}

impl CpuSet {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Creates the set with the bitmap `words`; CPU 0 is the lowest bit of the first word.
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Self {
        let mut set = Self { words: words.into_iter().collect() };
        set.trim();
        set
    }

    /// Returns the bitmap without trailing zero words; CPU 0 is the lowest bit of the first word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Adds a CPU. Returns whether it was not in the set.
    pub fn insert(&mut self, cpu: CpuId) -> bool {
        let (word, bit) = (cpu.index() / 64, 1 << (cpu.0 % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Removes a CPU. Returns whether it was in the set.
    pub fn remove(&mut self, cpu: CpuId) -> bool {
        let was = self.contains(cpu);
        if was {
            self.words[cpu.index() / 64] &= !(1 << (cpu.0 % 64));
            self.trim();
        }
        was
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get(cpu.index() / 64).is_some_and(|w| w >> (cpu.0 % 64) & 1 == 1)
    }

    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Iterates over the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.checked_ilog2().map(|_| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(CpuId(i as u32 * 64 + bit))
            })
        })
    }

    /// Returns the smallest CPU number, or `None` if the set is empty.
    pub fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// Returns the largest CPU number, or `None` if the set is empty.
    pub fn last(&self) -> Option<CpuId> {
        let word = *self.words.last()?;
        Some(CpuId((self.words.len() as u32 - 1) * 64 + word.ilog2()))
    }

    /// Returns the CPUs that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        Self::from_words(self.words.iter().zip(&other.words).map(|(a, b)| a & b))
    }

    /// Returns the CPUs that are in one of the sets or both.
    pub fn union(&self, other: &Self) -> Self {
        let mut set = self.clone();
        set.extend(other.iter());
        set
    }

    /// Returns the CPUs that are in this set and not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        Self::from_words(
            self.words.iter().enumerate().map(|(i, a)| a & !other.words.get(i).copied().unwrap_or(0)),
        )
    }

    /// Whether all CPUs of this set are in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Parses the kernel's list format: `0-3,8,10-11`, `0-31:2/4`. An empty text is the empty set, and empty parts
    /// between commas are skipped. A CPU number above 2^20 is an error.
    ///
    /// For example, the CPUs of a cgroup's `cpuset.cpus` without those that another program uses:
    ///
    /// ```
    /// use warmcore_types::CpuSet;
    ///
    /// let mut allowed = CpuSet::parse_list("0-7,16-23\n")?;
    /// allowed = allowed.difference(&CpuSet::parse_list("0,16")?);
    /// assert_eq!((allowed.len(), allowed.to_string()), (14, "1-7,17-23".to_owned()));
    ///
    /// let error = CpuSet::parse_list("0-3,x").unwrap_err();
    /// assert_eq!(error.to_string(), "`x` is no CPU number; expected a list of CPUs like 0-3,8");
    /// # Ok::<(), warmcore_types::ListError>(())
    /// ```
    pub fn parse_list(text: &str) -> Result<Self, ListError> {
        let mut set = Self::new();
        for part in text.trim().split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let fail = |why| ListError { part: part.to_owned(), why };
            let number = |t: &str| t.parse::<u32>().map_err(|_| fail("is no CPU number"));
            let (range, stride) = match part.split_once(':') {
                None => (part, None),
                Some((range, stride)) => {
                    let (used, group) = stride.split_once('/').ok_or(fail("has a stride without '/'"))?;
                    (range, Some((number(used)?, number(group)?)))
                }
            };
            let (first, last) = match range.split_once('-') {
                None => (number(range)?, number(range)?),
                Some((first, last)) => (number(first)?, number(last)?),
            };
            let (used, group) = stride.unwrap_or((1, 1));
            if first > last {
                return Err(fail("runs backwards"));
            }
            if last > CPU_MAX {
                return Err(fail("names a CPU above 1048576"));
            }
            if used == 0 || used > group {
                return Err(fail("has a stride that uses none or more than its group"));
            }
            set.extend((first..=last).filter(|n| (n - first) % group < used).map(CpuId));
        }
        Ok(set)
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

/// Writes the kernel's list format: `0-3,8`.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().map(|c| c.0).peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.peek() == Some(&(last + 1)) {
                last = cpus.next().unwrap_or(last);
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// The error of [`CpuSet::parse_list`]: a part of the text is no list of CPUs, or has a CPU number above 2^20.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListError {
    part: String,
    why: &'static str,
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}; expected a list of CPUs like 0-3,8", self.part, self.why)
    }
}

impl std::error::Error for ListError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(numbers: &[u32]) -> CpuSet {
        numbers.iter().copied().map(CpuId).collect()
    }

    #[test]
    fn the_kernels_list_format_is_read_and_written() {
        assert_eq!(CpuSet::parse_list("0-3,8,10-11\n").unwrap(), set(&[0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(CpuSet::parse_list("0-9:2/4").unwrap(), set(&[0, 1, 4, 5, 8, 9]));
        assert_eq!(CpuSet::parse_list(" \n").unwrap(), CpuSet::new());
        assert_eq!(set(&[0, 1, 2, 3, 8, 8191]).to_string(), "0-3,8,8191");
    }

    #[test]
    fn the_error_of_a_wrong_list_names_the_part_and_the_reason() {
        for (text, why) in [
            ("0-3,x", "`x` is no CPU number"),
            ("5-2", "`5-2` runs backwards"),
            ("0-99999999", "above 1048576"),
            ("0-7:3/2", "more than its group"),
            ("0-7:2", "without '/'"),
        ] {
            let error = CpuSet::parse_list(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_set_behaves_as_a_btree_set(a in proptest::collection::btree_set(0u32..9000, 0..80),
                                        b in proptest::collection::btree_set(0u32..9000, 0..80)) {
            let of = |s: &std::collections::BTreeSet<u32>| s.iter().copied().map(CpuId).collect::<CpuSet>();
            let (x, y) = (of(&a), of(&b));
            prop_assert_eq!(x.iter().map(|c| c.0).collect::<Vec<_>>(), a.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.last().map(|c| c.0), a.last().copied());
            prop_assert_eq!(x.intersection(&y), of(&(&a & &b)));
            prop_assert_eq!(x.union(&y), of(&(&a | &b)));
            prop_assert_eq!(x.difference(&y), of(&(&a - &b)));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(CpuSet::parse_list(&x.to_string()).unwrap(), x.clone());
            let mut emptied = x.clone();
            for cpu in x.iter() { prop_assert!(emptied.remove(cpu)); }
            prop_assert_eq!(emptied, CpuSet::new());
        }

        #[test]
        fn any_text_is_a_set_or_an_error(text in ".{0,40}") {
            let _ = CpuSet::parse_list(&text);
        }
    }
}
