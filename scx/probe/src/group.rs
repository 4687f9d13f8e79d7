//! A group: the tasks whose name starts with one prefix, counted beside the whole.

use std::str::FromStr;

/// Bytes of a task's name in the kernel (`TASK_COMM_LEN`), including the terminating 0.
const NAME_BYTES: usize = 16;

/// The tasks whose name (`comm`) starts with a prefix, from `--group NAME=PREFIX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The key in the report.
    pub name: String,
    /// The first bytes of a task's name; 1 to 15 of them.
    pub prefix: String,
}

impl Group {
    /// Returns the prefix and its mask as the BPF program compares them: a task belongs to the group if its name, as
    /// two words, is equal to the prefix under the mask.
    pub fn words(&self) -> ([u64; 2], [u64; 2]) {
        let (mut name, mut mask) = ([0; NAME_BYTES], [0; NAME_BYTES]);
        for (i, byte) in self.prefix.bytes().take(NAME_BYTES).enumerate() {
            (name[i], mask[i]) = (byte, 0xff);
        }
        (words(name), words(mask))
    }
}

fn words(bytes: [u8; NAME_BYTES]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks();
    [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])]
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let how = "expected NAME=PREFIX, for example interactive=ui-";
        let (name, prefix) = text.split_once('=').ok_or_else(|| format!("{text:?} has no '=': {how}"))?;
        if name.is_empty() || prefix.is_empty() {
            return Err(format!("{text:?} has an empty name or prefix: {how}"));
        }
        if prefix.len() >= NAME_BYTES {
            return Err(format!(
                "the prefix {prefix:?} has {} bytes, but a task's name has at most 15: shorten it",
                prefix.len()
            ));
        }
        Ok(Self { name: name.into(), prefix: prefix.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(group: &Group, comm: &str) -> bool {
        let mut bytes = [0; NAME_BYTES];
        bytes[..comm.len()].copy_from_slice(comm.as_bytes());
        let (name, mask) = group.words();
        words(bytes).iter().zip(mask).zip(name).all(|((word, mask), name)| word & mask == name)
    }

    #[test]
    fn a_group_contains_the_names_that_start_with_its_prefix() {
        let group: Group = "hogs=hog-number".parse().unwrap();
        assert_eq!(group.name, "hogs");
        assert!(contains(&group, "hog-number"));
        assert!(contains(&group, "hog-number-12"));
        assert!(!contains(&group, "hog-numbe"));
        assert!(!contains(&group, "Hog-number"));
        assert!(!contains(&group, ""));
    }

    #[test]
    fn a_prefix_of_15_bytes_is_the_longest() {
        assert!("a=123456789012345".parse::<Group>().is_ok());
        assert!("a=1234567890123456".parse::<Group>().unwrap_err().contains("at most 15"));
    }

    #[test]
    fn a_group_without_name_or_prefix_is_an_error() {
        for text in ["", "a", "a=", "=a"] {
            assert!(text.parse::<Group>().unwrap_err().contains("NAME=PREFIX"), "{text:?}");
        }
    }
}
