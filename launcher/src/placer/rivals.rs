//! Two groups of leaves of which one goes before the other, as the fast loop (yielding.rs) sees and
//! moves them.

use super::processors::{affinity, set_affinity};
use crate::cgroup::knobs::bound_text;
use crate::cgroup::{Version, text_of, value_of};
use crate::error::Errno;
use crate::notes::{KNOBS, Knob, beside};
use crate::sys::{self, Result};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};

/// Threads whose waiting is watched. Of more than these the first are; so many read in some 0.4 ms.
/// While there are more none has a home, since who is not watched would keep one, or what it
/// inherited, for ever.
pub const THREADS_MAX: usize = 256;

/// The files that say who computes and who waits, open for as long as the loop runs.
pub struct Rivals {
    version: Version,
    first: OwnedFd,
    second: OwnedFd,
    bound: OwnedFd,
    /// Of the second group.
    class: Class,
    around: Option<Around>,
    /// v2, where the kernel counts pressure: the time that any thread of the first has waited.
    pressure: Option<OwnedFd>,
    threads: HashMap<i32, Thread>,
    /// Sum of what threads waited, where there is no pressure.
    waited: u64,
    /// How many processors there are, also where nobody can be placed.
    width: usize,
    /// The processors that there are. None if they cannot be told: then nobody is placed.
    processors: Vec<usize>,
    /// The processor that `place` left to a thread, by its place among all; of those that are not
    /// watched too.
    homes: HashMap<i32, usize>,
    /// Processors that have been homes: what a thread may have inherited.
    given: BTreeSet<usize>,
}

/// Whether a group is in the idle class.
struct Class {
    /// Absent before Linux 5.15.
    idle: Option<OwnedFd>,
    /// With what is in it: leaving the idle class makes it the kernel's default.
    weight: (OwnedFd, String),
}

impl Class {
    fn set(&self, idle: bool) -> Result<()> {
        let Some(file) = &self.idle else { return Ok(()) };
        sys::write(file.as_raw_fd(), if idle { b"1" } else { b"0" })?;
        match idle {
            true => Ok(()),
            false => sys::write(self.weight.0.as_raw_fd(), self.weight.1.as_bytes()).map(drop),
        }
    }
}

/// The group around the second that is beside the first, if the second is not beside the first
/// itself.
struct Around {
    name: String,
    class: Class,
    used: OwnedFd,
}

/// A thread of the first group.
struct Thread {
    /// Its own account, and what that said last: None before the first look.
    file: OwnedFd,
    before: Option<Account>,
    /// Between the last two looks.
    ran: u64,
}

/// From a thread's schedstat, in nanoseconds: how long it ran, and how long it could have and did
/// not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    ran: u64,
    waited: u64,
}

/// Sums since the files were opened, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looked {
    /// Processor time of each.
    pub first: u64,
    pub second: u64,
    /// How long threads of the first could have run and had no processor.
    pub waited: u64,
}

impl Rivals {
    /// Of two groups whose files the launcher has opened: `files` are those that `knobs` names, in
    /// the order of KNOBS. `width` is how many processors there are.
    pub fn new(
        version: Version,
        [first, second]: [&str; 2],
        knobs: u16,
        files: Vec<OwnedFd>,
        width: usize,
    ) -> Result<Rivals> {
        let mut files: HashMap<u16, OwnedFd> =
            KNOBS.iter().map(|knob| knob.bit()).filter(|bit| knobs & bit != 0).zip(files).collect();
        let mut take = |knob: Knob| files.remove(&knob.bit());
        let mut wanted = |knob| take(knob).ok_or(Errno(libc::EBADF));
        let [used_first, used_second] = [wanted(Knob::UsedFirst)?, wanted(Knob::UsedSecond)?];
        let (bound, weight) = (wanted(Knob::Bound)?, wanted(Knob::Weight)?);
        let class = |weight: OwnedFd, idle| -> Result<Class> {
            let weighs = text_of(&weight, |text| Some(text.trim().to_string())).ok_or(Errno(libc::ENODEV))?;
            Ok(Class { idle, weight: (weight, weighs) })
        };
        let class_second = class(weight, take(Knob::Idle))?;
        let around = match take(Knob::UsedAround).zip(take(Knob::WeightAround)) {
            Some((used, weight)) => {
                let name = beside(first, second).to_string();
                Some(Around { name, class: class(weight, take(Knob::IdleAround))?, used })
            }
            None => None,
        };
        Ok(Rivals {
            version,
            first: used_first,
            second: used_second,
            bound,
            class: class_second,
            around,
            // Kernels that were booted without it have the file and refuse to read it.
            pressure: take(Knob::Pressure).filter(|file| stalled(file).is_some()),
            threads: HashMap::new(),
            waited: 0,
            width,
            processors: affinity(0).unwrap_or_default(),
            homes: HashMap::new(),
            given: BTreeSet::new(),
        })
    }

    /// How many processors threads can be placed on.
    pub fn processors(&self) -> usize {
        self.processors.len()
    }

    /// How many processors there are, also where nobody can be placed.
    pub fn width(&self) -> usize {
        match self.processors() {
            0 => self.width,
            n => n,
        }
    }

    /// What threads have inherited an earlier placer has given: each processor may be a home.
    pub fn take_over(&mut self) {
        self.given = (0..self.processors()).collect();
    }

    /// These are the threads of the first group. From now on they are watched, as far as there is
    /// room.
    pub fn follow(&mut self, threads: &[i32]) {
        if !self.homes.is_empty() {
            let there: HashSet<i32> = threads.iter().copied().collect();
            self.homes.retain(|tid, _| there.contains(tid));
        }
        let mut before = std::mem::take(&mut self.threads);
        for tid in threads.iter().take(THREADS_MAX) {
            let known = before.remove(tid).or_else(|| {
                let path = std::ffi::CString::new(format!("/proc/{tid}/schedstat")).ok()?;
                let file = sys::openat(libc::AT_FDCWD, &path, libc::O_RDONLY).ok()?;
                Some(Thread { file, before: None, ran: 0 })
            });
            if let Some(known) = known {
                self.threads.insert(*tid, known);
            }
        }
    }

    pub fn look(&mut self) -> Looked {
        let mut waited = 0;
        for thread in self.threads.values_mut() {
            let Some(now) = text_of(&thread.file, account) else { continue };
            let before = thread.before.replace(now).unwrap_or(now);
            thread.ran = now.ran.saturating_sub(before.ran);
            waited += now.waited.saturating_sub(before.waited);
        }
        self.waited = match &self.pressure {
            Some(file) => stalled(file).unwrap_or(self.waited),
            None => self.waited + waited,
        };
        let used = |file| self.used(file).unwrap_or(0);
        Looked { first: used(&self.first), second: used(&self.second), waited: self.waited }
    }

    /// A group's processor time so far, in nanoseconds. None: it cannot be told.
    fn used(&self, file: &OwnedFd) -> Option<u64> {
        match self.version {
            Version::V1 => text_of(file, |text| text.trim().parse().ok()),
            Version::V2 => text_of(file, |text| value_of(text, "usage_usec ")).map(|us: u64| us.saturating_mul(1000)),
        }
    }

    /// The group around the second that is beside the first, if there is one.
    pub fn around(&self) -> Option<&str> {
        self.around.as_ref().map(|around| &around.name[..])
    }

    /// All processor time that the group around the second has had, in nanoseconds. None: there is
    /// none, or it cannot be told.
    pub fn around_used(&self) -> Option<u64> {
        self.around.as_ref().and_then(|around| self.used(&around.used))
    }

    /// Each thread's processor time between the last two looks, in nanoseconds.
    pub fn ran(&self) -> Vec<(i32, u64)> {
        self.threads.iter().map(|(tid, thread)| (*tid, thread.ran)).collect()
    }

    /// Leaves a thread one processor, by its place among all, or all of them again. One that has
    /// chosen for itself keeps its choice.
    pub fn place(&mut self, tid: i32, to: Option<usize>) -> Result<()> {
        if self.processors.is_empty() {
            return Ok(());
        }
        let now = match affinity(tid) {
            Err(Errno(libc::ESRCH)) => return Ok(()),
            now => now?,
        };
        let home = self.homes.get(&tid).copied();
        let ours = match (home, to) {
            (Some(home), _) => now[..] == self.processors[home..=home],
            (None, Some(_)) => now == self.processors,
            // Who is new may have inherited a home.
            (None, None) => self.given.iter().any(|home| now[..] == self.processors[*home..=*home]),
        };
        if ours {
            let place = to.map_or(&self.processors[..], |to| &self.processors[to..=to]);
            match set_affinity(tid, place) {
                Err(Errno(libc::ESRCH)) => return Ok(()),
                result => result?,
            }
        }
        match to {
            Some(to) if ours => {
                self.homes.insert(tid, to);
                self.given.insert(to);
            }
            Some(_) => {}
            None => {
                self.homes.remove(&tid);
            }
        }
        Ok(())
    }

    /// Nobody can inherit a home any more.
    pub fn forget(&mut self) {
        if self.homes.is_empty() {
            self.given.clear();
        }
    }

    /// Whether the second group runs only where nothing else of its parent wants to.
    pub fn set_idle(&self, on: bool) -> Result<()> {
        self.class.set(on)
    }

    /// Whether what is around the second group, beside the first, runs only where the first does
    /// not want to.
    pub fn set_around_idle(&self, on: bool) -> Result<()> {
        self.around.as_ref().map_or(Ok(()), |around| around.class.set(on))
    }

    /// Whether the kernel refuses a bound that is below that of a group within, and one within that
    /// is above.
    pub fn bounds_nest(&self) -> bool {
        self.version == Version::V1
    }

    /// What all of the second group may use of each period, in microseconds. None: no bound.
    pub fn bind(&self, us: Option<u64>) -> Result<()> {
        sys::write(self.bound.as_raw_fd(), bound_text(self.version, us).as_bytes()).map(drop)
    }
}

fn account(schedstat: &str) -> Option<Account> {
    let mut fields = schedstat.split_whitespace().map(|field| field.parse().ok());
    Some(Account { ran: fields.next()??, waited: fields.next()?? })
}

/// From a group's cpu.pressure: for how long some thread of it waited, in nanoseconds.
fn some(pressure: &str) -> Option<u64> {
    let line = pressure.lines().find(|line| line.starts_with("some "))?;
    line.split(' ').find_map(|field| field.strip_prefix("total=")?.parse().ok()).map(|us: u64| us * 1000)
}

fn stalled(pressure: &OwnedFd) -> Option<u64> {
    text_of(pressure, some)
}

#[cfg(test)]
impl Rivals {
    /// Of groups of which nothing is known, with this file for the bound.
    pub fn for_test(version: Version, bound: OwnedFd) -> Rivals {
        let nothing = || sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR).unwrap();
        Rivals {
            version,
            first: nothing(),
            second: nothing(),
            bound,
            class: Class { idle: None, weight: (nothing(), String::new()) },
            around: None,
            pressure: None,
            threads: HashMap::new(),
            waited: 0,
            width: 1,
            processors: affinity(0).unwrap(),
            homes: HashMap::new(),
            given: BTreeSet::new(),
        }
    }

    /// The same, with these files of a group around the second.
    pub fn within(self, name: &str, used: OwnedFd, idle: OwnedFd, weight: (OwnedFd, &str)) -> Rivals {
        let class = Class { idle: Some(idle), weight: (weight.0, weight.1.to_string()) };
        Rivals { around: Some(Around { name: name.to_string(), class, used }), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_waiting() {
        assert_eq!(account("1000 77 3\n"), Some(Account { ran: 1000, waited: 77 }));
        assert_eq!(account("1000"), None);
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 total=9\n";
        assert_eq!(some(pressure), Some(12_000));
        assert_eq!(some("full total=9\n"), None);
    }

    #[test]
    fn a_thread_is_placed_and_freed_unless_it_chose_for_itself() {
        let nothing = sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_WRONLY).unwrap();
        let mut rivals = Rivals::for_test(Version::V1, nothing);
        // On a thread of its own, so that no other test runs on one processor.
        std::thread::spawn(move || {
            // SAFETY: there are no arguments.
            let tid = unsafe { libc::gettid() };
            rivals.follow(&[tid]);
            let (all, last) = (rivals.processors.clone(), rivals.processors() - 1);
            rivals.place(tid, Some(last)).unwrap();
            assert_eq!(affinity(0).unwrap(), all[last..]);
            rivals.place(tid, None).unwrap();
            assert_eq!(affinity(0).unwrap(), all);
            if all.len() > 1 {
                set_affinity(0, &all[..1]).unwrap();
                rivals.place(tid, Some(last)).unwrap();
                assert_eq!(affinity(0).unwrap(), all[..1], "its own choice");
            }
            if all.len() > 1 {
                rivals.place(tid, None).unwrap();
                assert_eq!(affinity(0).unwrap(), all[..1], "nobody was given that one");
            }
            set_affinity(0, &all[last..]).unwrap();
            rivals.place(tid, None).unwrap();
            assert_eq!(affinity(0).unwrap(), all, "who is new may have inherited");
            rivals.forget();
            set_affinity(0, &all[last..]).unwrap();
            rivals.place(tid, None).unwrap();
            assert_eq!(affinity(0).unwrap(), all[last..], "nobody can inherit any more");
            rivals.place(i32::MAX, Some(0)).unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_is_not_watched_is_freed_too() {
        let nothing = sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_WRONLY).unwrap();
        let mut rivals = Rivals::for_test(Version::V1, nothing);
        std::thread::spawn(move || {
            // SAFETY: there are no arguments.
            let tid = unsafe { libc::gettid() };
            rivals.follow(&[tid]);
            let all = rivals.processors.clone();
            rivals.place(tid, Some(0)).unwrap();
            let mut crowd = vec![1; THREADS_MAX];
            crowd.push(tid);
            rivals.follow(&crowd);
            assert!(!rivals.threads.contains_key(&tid));
            rivals.place(tid, None).unwrap();
            assert_eq!(affinity(0).unwrap(), all);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn processors_that_cannot_be_told_are_counted() {
        let nothing = sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_WRONLY).unwrap();
        let mut rivals = Rivals::for_test(Version::V1, nothing);
        assert_eq!(rivals.width(), rivals.processors());
        rivals.processors.clear();
        assert!(rivals.width() >= 1 && rivals.processors() == 0);
        rivals.place(0, Some(0)).unwrap();
    }
}
