//! Two groups of leaves of which one goes before the other, as the fast loop (yielding.rs) sees and
//! moves them.

use super::{Cgroups, Controller, Leaf, Version, path_in, value_of, write_file};
use crate::error::Errno;
use crate::plan::check_group;
use crate::sys::processors::{affinity, set_affinity};
use crate::sys::{self, Result};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Over which the bound of the group that yields counts, in microseconds. A tenth of the usual: who
/// is let off again goes on within this time.
pub const PERIOD_US: u64 = 10_000;
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

/// Of the second group's path, what is beside the first, or beside one that contains it.
fn beside<'a>(first: &str, second: &'a str) -> &'a str {
    let same = first.split('/').zip(second.split('/')).take_while(|(a, b)| a == b).count();
    second.match_indices('/').nth(same).map_or(second, |(at, _)| &second[..at])
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

impl Cgroups {
    /// Opens what there is to know of two groups. ENODEV, ENOENT: this kernel does not tell enough.
    pub fn open_rivals(&mut self, first: &[u8], second: &[u8]) -> Result<Rivals> {
        let mut names = Vec::new();
        for group in [first, second] {
            let group = check_group(group).map_err(|_| Errno(libc::EINVAL))?;
            self.open_group(&group)?;
            names.push(group);
        }
        let around = beside(&names[0], &names[1]).to_string();
        let is_within = around != names[1];
        if is_within {
            self.open_group(&around)?;
            names.push(around.clone());
        }
        let open = |group: usize, controller, file: &CStr, flags| {
            let has = |h: &super::Hierarchy| h.controllers.contains(&controller);
            let at = self.hierarchies.iter().position(has).ok_or(Errno(libc::ENODEV))?;
            sys::openat(self.groups[&names[group]][at].as_raw_fd(), &path_in(c".", file)?, flags)
        };
        use Controller::{Accounting, Cpu};
        let (account, used, bound, weight) = match self.version {
            Version::V1 => (Accounting, c"cpuacct.usage", c"cpu.cfs_quota_us", c"cpu.shares"),
            Version::V2 => (Cpu, c"cpu.stat", c"cpu.max", c"cpu.weight"),
        };
        let class = |group: usize| -> Result<Class> {
            let weight = open(group, Cpu, weight, libc::O_RDWR)?;
            let weighs = text_of(&weight, |text| Some(text.trim().to_string())).ok_or(Errno(libc::ENODEV))?;
            Ok(Class { idle: open(group, Cpu, c"cpu.idle", libc::O_WRONLY).ok(), weight: (weight, weighs) })
        };
        let pressure = match self.version {
            Version::V1 => None,
            // Kernels that were booted without it have the file and refuse to read it.
            Version::V2 => open(0, Cpu, c"cpu.pressure", libc::O_RDONLY).ok().filter(|file| stalled(file).is_some()),
        };
        let around = || -> Result<Around> {
            Ok(Around { name: around, class: class(2)?, used: open(2, account, used, libc::O_RDONLY)? })
        };
        let rivals = Rivals {
            version: self.version,
            first: open(0, account, used, libc::O_RDONLY)?,
            second: open(1, account, used, libc::O_RDONLY)?,
            bound: open(1, Cpu, bound, libc::O_WRONLY)?,
            class: class(1)?,
            around: is_within.then(around).transpose()?,
            pressure,
            threads: HashMap::new(),
            waited: 0,
            processors: affinity(0).unwrap_or_default(),
            homes: HashMap::new(),
            given: BTreeSet::new(),
        };
        rivals.bind(None)?;
        if self.version == Version::V1 {
            let at = self.hierarchies.iter().position(|h| h.controllers.contains(&Cpu)).ok_or(Errno(libc::ENODEV))?;
            write_file(self.groups[&names[1]][at].as_raw_fd(), c".", c"cpu.cfs_period_us", &PERIOD_US.to_string())?;
        }
        Ok(rivals)
    }

    /// The threads in a leaf, ours among them.
    pub fn threads(&self, leaf: &Leaf) -> Result<Vec<i32>> {
        self.list(leaf, if self.version == Version::V1 { c"tasks" } else { c"cgroup.threads" })
    }
}

impl Rivals {
    /// How many processors threads can be placed on.
    pub fn processors(&self) -> usize {
        self.processors.len()
    }

    /// How many processors there are, also where nobody can be placed.
    pub fn width(&self) -> usize {
        match self.processors() {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        }
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

fn bound_text(version: Version, us: Option<u64>) -> String {
    match version {
        Version::V1 => us.map_or("-1".to_string(), |us| us.to_string()),
        Version::V2 => format!("{} {PERIOD_US}", us.map_or("max".to_string(), |us| us.to_string())),
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

fn text_of<T>(file: &OwnedFd, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut buf = [0; 1024];
    let len = sys::read_at_start(file.as_raw_fd(), &mut buf).ok()?;
    parse(std::str::from_utf8(&buf[..len]).ok()?)
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

    #[test]
    fn a_bound_as_each_version_takes_it() {
        assert_eq!([None, Some(2500)].map(|us| bound_text(Version::V1, us)), ["-1", "2500"]);
        assert_eq!([None, Some(2500)].map(|us| bound_text(Version::V2, us)), ["max 10000", "2500 10000"]);
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
