//! What the launcher says to the placer and hears of it (docs/internals/launcher-protocol.md): one
//! record a message, no answers.

use crate::cgroup::Version;

/// A group and a leaf: far more than their names can have.
pub const NOTE_MAX: usize = 4096;

/// The descriptors that come with `Note::Yield`, in this order, as far as the kernel has the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knob {
    /// Processor time that each of the two groups has used.
    UsedFirst,
    UsedSecond,
    /// What the second may use of each period.
    Bound,
    /// The second's weight, and whether it is in the idle class.
    Weight,
    Idle,
    /// The same of the group around the second that is beside the first.
    UsedAround,
    WeightAround,
    IdleAround,
    /// Version 2: how long threads of the first have waited.
    Pressure,
}

pub const KNOBS: [Knob; 9] = [
    Knob::UsedFirst,
    Knob::UsedSecond,
    Knob::Bound,
    Knob::Weight,
    Knob::Idle,
    Knob::UsedAround,
    Knob::WeightAround,
    Knob::IdleAround,
    Knob::Pressure,
];

impl Knob {
    pub fn bit(self) -> u16 {
        1 << self as u16
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// From now on the second group stands aside for the first. All that was said of procs before
    /// is void. `knobs` are the bits of the descriptors that come along: none if the kernel does
    /// not tell enough. `again`: an earlier placer may have given threads homes.
    Yield {
        version: Version,
        again: bool,
        knobs: u16,
        first: String,
        second: String,
    },
    /// A group directly below the second weighs these shares. With two descriptors: what it has
    /// used, and its weight.
    Share {
        version: Version,
        shares: u32,
        group: String,
    },
    /// A group could not be given its shares, and may weigh the new ones or the old.
    Unknown {
        group: String,
    },
    /// A group within the second is given a share. The second's bound has been lifted for that.
    Lifted {
        group: String,
    },
    Drop {
        group: String,
    },
    /// A proc has come into a leaf of a group, or has left it. Said of each proc of the first
    /// group; of the others of the first to come and the last to leave.
    Enter {
        group: String,
        leaf: String,
    },
    Leave {
        group: String,
        leaf: String,
    },
}

impl Note {
    /// `kind u16, small u16, number u32, len u16, first, second`.
    pub fn encode(&self) -> Vec<u8> {
        let of = |version: &Version| (*version == Version::V2) as u16;
        let (kind, small, number, first, second) = match self {
            Note::Yield { version, again, knobs, first, second } => {
                (1, of(version) | (*again as u16) << 1, *knobs as u32, first.as_str(), second.as_str())
            }
            Note::Share { version, shares, group } => (2, of(version), *shares, group.as_str(), ""),
            Note::Unknown { group } => (3, 0, 0, group.as_str(), ""),
            Note::Lifted { group } => (4, 0, 0, group.as_str(), ""),
            Note::Drop { group } => (5, 0, 0, group.as_str(), ""),
            Note::Enter { group, leaf } => (6, 0, 0, group.as_str(), leaf.as_str()),
            Note::Leave { group, leaf } => (7, 0, 0, group.as_str(), leaf.as_str()),
        };
        let mut out = Vec::with_capacity(10 + first.len() + second.len());
        out.extend(u16::to_le_bytes(kind));
        out.extend(small.to_le_bytes());
        out.extend(number.to_le_bytes());
        out.extend((first.len() as u16).to_le_bytes());
        out.extend(first.as_bytes());
        out.extend(second.as_bytes());
        out
    }

    /// In the placer.
    pub fn decode(record: &[u8]) -> Option<Note> {
        let (head, rest) = record.split_first_chunk::<10>()?;
        let [kind, small, _, _, len] = [0, 2, 4, 6, 8].map(|at| u16::from_le_bytes([head[at], head[at + 1]]));
        let number = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let (first, second) = rest.split_at_checked(len as usize)?;
        let [first, second] = [first, second].map(|text| String::from_utf8_lossy(text).into_owned());
        let version = if small & 1 == 0 { Version::V1 } else { Version::V2 };
        Some(match kind {
            1 => Note::Yield { version, again: small & 2 != 0, knobs: number as u16, first, second },
            2 => Note::Share { version, shares: number, group: first },
            3 => Note::Unknown { group: first },
            4 => Note::Lifted { group: first },
            5 => Note::Drop { group: first },
            6 => Note::Enter { group: first, leaf: second },
            7 => Note::Leave { group: first, leaf: second },
            _ => return None,
        })
    }
}

/// What the placer says now and then: sums since it was told to yield.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub looks: u64,
    /// Looks after which the second group had to yield more: a processor where a thread of the
    /// first was placed, or time.
    pub pushes: u64,
    pub waited_ns: u64,
    /// Of the loop itself.
    pub cpu_ns: u64,
}

impl Sums {
    pub const BYTES: usize = 32;

    /// In the placer.
    pub fn encode(&self) -> Vec<u8> {
        [self.looks, self.pushes, self.waited_ns, self.cpu_ns].iter().flat_map(|figure| figure.to_le_bytes()).collect()
    }

    /// These are bytes of a process that is not trusted. Whatever the four numbers are, they are
    /// numbers.
    pub fn decode(record: &[u8; Sums::BYTES]) -> Sums {
        let mut figures = record.as_chunks().0.iter().map(|figure| u64::from_le_bytes(*figure));
        let mut next = || figures.next().unwrap_or(0);
        Sums { looks: next(), pushes: next(), waited_ns: next(), cpu_ns: next() }
    }

    pub fn plus(&self, other: &Sums) -> Sums {
        Sums {
            looks: self.looks.saturating_add(other.looks),
            pushes: self.pushes.saturating_add(other.pushes),
            waited_ns: self.waited_ns.saturating_add(other.waited_ns),
            cpu_ns: self.cpu_ns.saturating_add(other.cpu_ns),
        }
    }
}

/// Whether a group is this one or below it.
pub fn is_within(group: &str, name: &str) -> bool {
    group.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a group is directly below this one.
pub fn is_child(group: &str, parent: &str) -> bool {
    group.strip_prefix(parent).and_then(|rest| rest.strip_prefix('/')).is_some_and(|name| !name.contains('/'))
}

/// Of the second group's path, what is beside the first, or beside one that contains it.
pub fn beside<'a>(first: &str, second: &'a str) -> &'a str {
    let same = first.split('/').zip(second.split('/')).take_while(|(a, b)| a == b).count();
    second.match_indices('/').nth(same).map_or(second, |(at, _)| &second[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_arrive_as_they_were_said() {
        let text = String::from;
        let notes = [
            Note::Yield { version: Version::V2, again: true, knobs: 0x1ff, first: text("lc"), second: text("rest/be") },
            Note::Yield { version: Version::V1, again: false, knobs: 0, first: text("lc"), second: text("be") },
            Note::Share { version: Version::V2, shares: u32::MAX, group: text("be/one") },
            Note::Unknown { group: text("be/one") },
            Note::Lifted { group: text("be/one") },
            Note::Drop { group: text("be/one") },
            Note::Enter { group: text("lc/one"), leaf: text("spare-7") },
            Note::Leave { group: text("lc/one"), leaf: text("spare-7") },
        ];
        for note in notes {
            let record = note.encode();
            assert_eq!(Note::decode(&record).as_ref(), Some(&note));
            (0..10).for_each(|len| assert_eq!(Note::decode(&record[..len]), None));
        }
        assert_eq!(Note::decode(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Note::decode(&[3, 0, 0, 0, 0, 0, 0, 0, 1, 0]), None, "a name that is cut");
    }

    #[test]
    fn any_bytes_are_sums() {
        let sums = Sums { looks: 1, pushes: 2, waited_ns: 3, cpu_ns: u64::MAX };
        assert_eq!(Sums::decode(sums.encode()[..].try_into().unwrap()), sums);
        let most = Sums::decode(&[0xff; Sums::BYTES]);
        assert_eq!(most.plus(&sums), most);
    }

    #[test]
    fn groups_by_their_names() {
        assert!(is_within("be/one", "be") && is_within("be", "be"));
        assert!(!is_within("best", "be") && !is_within("lc", "be"));
        assert!(is_child("be/one", "be") && !is_child("be", "be"));
        assert!(!is_child("be/one/two", "be") && !is_child("bed/one", "be"));
    }

    #[test]
    fn what_is_beside_the_first() {
        for (first, second, want) in [
            ("lc", "be", "be"),
            ("lc", "rest/be", "rest"),
            ("lc/one", "rest/be", "rest"),
            ("a/lc", "a/rest/be", "a/rest"),
            ("rest", "rest/be", "rest/be"),
        ] {
            assert_eq!(beside(first, second), want, "{first} {second}");
        }
    }
}
