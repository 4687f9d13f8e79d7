//! Groups: which CPUs or cores a row of a picture stands for, so that a large machine's picture can be read.

use std::collections::BTreeMap;

/// The largest number of rows.
pub const ROWS_MAX: usize = 32;

/// Several CPUs or cores that one row shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub label: String,
    /// Indices of what it stands for.
    pub members: Vec<usize>,
}

/// Where something is on the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct At {
    pub llc: Option<u32>,
    pub node: Option<u32>,
    pub socket: Option<u32>,
}

/// What the rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Each is one of those given.
    Each,
    Llc,
    Node,
    Socket,
    /// Neighbours in the order given, since it is not known where they are, or there are too many of all that is known.
    Neighbours,
}

impl By {
    /// What a row is.
    pub fn row(self, each: &'static str) -> String {
        match self {
            Self::Each => format!("a {each}"),
            Self::Llc => "all CPUs of one last-level cache".to_owned(),
            Self::Node => "all CPUs of one NUMA node".to_owned(),
            Self::Socket => "all CPUs of one socket".to_owned(),
            Self::Neighbours => "several CPUs with neighbouring numbers".to_owned(),
        }
    }
}

/// Groups what has these labels and places into at most [`ROWS_MAX`] rows.
pub fn groups(labels: &[String], places: &[At]) -> (By, Vec<Group>) {
    let each = |index: usize| Group { label: labels[index].clone(), members: vec![index] };
    if labels.len() <= ROWS_MAX {
        return (By::Each, (0..labels.len()).map(each).collect());
    }
    type Of = fn(&At) -> Option<u32>;
    let parts: [(By, &str, Of); 3] = [
        (By::Llc, "L3", |place| place.llc),
        (By::Node, "node", |place| place.node),
        (By::Socket, "socket", |place| place.socket),
    ];
    for (by, name, of) in parts {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let is_known = places.iter().enumerate().all(|(index, place)| {
            of(place).is_some_and(|part| {
                groups.entry(part).or_default().push(index);
                true
            })
        });
        if is_known && (2..=ROWS_MAX).contains(&groups.len()) {
            let group = |(part, members)| Group { label: format!("{name} {part}"), members };
            return (by, groups.into_iter().map(group).collect());
        }
    }
    let indices: Vec<usize> = (0..labels.len()).collect();
    let group =
        |members: &[usize]| Group { label: format!("{} …", labels[members[0]]), members: members.to_vec() };
    (By::Neighbours, indices.chunks(labels.len().div_ceil(ROWS_MAX)).map(group).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: u32, place: impl Fn(u32) -> At) -> (By, Vec<Group>) {
        let labels: Vec<String> = (0..count).map(|cpu| format!("CPU {cpu}")).collect();
        groups(&labels, &(0..count).map(place).collect::<Vec<_>>())
    }

    #[test]
    fn few_rows_are_shown_one_by_one_and_many_by_what_they_share() {
        assert_eq!(of(32, |_| At::default()).0, By::Each);
        let (by, groups) = of(384, |cpu| At { llc: Some(cpu / 16), ..At::default() });
        assert_eq!((by, groups.len(), &*groups[23].label), (By::Llc, 24, "L3 23"));
        let (by, groups) = of(384, |cpu| At { llc: Some(cpu / 4), node: Some(cpu / 96), socket: None });
        assert_eq!((by, groups.len()), (By::Node, 4));
        let (by, groups) = of(33, |cpu| At { llc: (cpu > 0).then_some(0), ..At::default() });
        assert_eq!((by, groups.len(), &*groups[1].label), (By::Neighbours, 17, "CPU 2 …"));
        assert!(of(384, |_| At { llc: Some(0), ..At::default() }).1.len() == 32, "one row says nothing");
    }
}
