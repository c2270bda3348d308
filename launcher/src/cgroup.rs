//! The cgroups of this instance: one leaf a proc, in each v1 hierarchy or in the one of v2.
//!
//! Making a leaf in the v1 hierarchies costs 0.25 ms, removing it 0.1 ms, and entering it far more.
//! So a leaf belongs to a seat, whose seed stays in it, and serves one proc after another: what it
//! counts is set back or subtracted. It cannot be seen from inside, so nothing passes from proc to
//! proc.

use crate::config::Share;
use crate::error::{Errno, Error, log};
use crate::plan::Limits;
use crate::sys;
use freezer::Frozen;
use gauges::Gauges;
use processor::ProcessorTime;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

mod freezer;
mod gauges;
pub mod knobs;
#[cfg(test)]
mod knobs_test;
pub mod meter;
mod place;
mod processor;
mod share;

pub use gauges::{list, text_of};
pub use place::Place;

type Result<T> = std::result::Result<T, Errno>;

/// Init's or the seed's, which is ours and not the proc's.
const INIT_TASKS: u64 = 1;

/// Groups are named by sigmad after realms and classes; a machine never has this many.
const GROUPS_MAX: usize = 65_536;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Pids,
    Cpu,
    /// v1's count of processor time; not every kernel has it.
    Accounting,
}

const CONTROLLERS: [(Controller, &str); 3] =
    [(Controller::Memory, "memory"), (Controller::Pids, "pids"), (Controller::Cpu, "cpu")];
const ACCOUNTING: &str = "cpuacct";

/// Those of our controllers that are named.
fn among(names: &[&str]) -> Vec<Controller> {
    CONTROLLERS.iter().filter(|(_, name)| names.contains(name)).map(|(c, _)| *c).collect()
}

/// One mounted hierarchy and those of our controllers that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    path: PathBuf,
    controllers: Vec<Controller>,
}

pub struct Cgroups {
    version: Version,
    hierarchies: Vec<Hierarchy>,
    /// v1: where its freezer is mounted.
    freezer: Option<PathBuf>,
    name: String,
    /// The directories of each group, in the order of the hierarchies.
    groups: HashMap<String, Vec<OwnedFd>>,
    /// Groups that go as soon as nothing is in them.
    doomed: HashSet<String>,
    named: u64,
}

/// A leaf that exists in every hierarchy.
#[derive(Debug)]
pub struct Leaf {
    group: String,
    name: CString,
    /// What it enforces now.
    limits: Limits,
    /// What it had counted when its present proc got it.
    oom_kills: u64,
    processor: ProcessorTime,
    /// Of a seat's.
    gauges: Option<Gauges>,
    frozen: Option<Frozen>,
}

/// What a leaf counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory_peak: u64,
    pub oom_kills: u64,
    /// What is charged now.
    pub memory_left: u64,
    /// User and system time of all that ever ran in it, where the kernel counts that.
    pub cpu_us: Option<(u64, u64)>,
}

/// How a new process gets into a leaf.
#[derive(Debug)]
pub enum Entry {
    /// v1: by writing to these files once it runs.
    Files(Vec<OwnedFd>),
    /// v2: by being born there (CLONE_INTO_CGROUP), which waits for no grace period.
    Birth(OwnedFd),
}

impl Cgroups {
    /// Finds the hierarchies, removes what a dead instance of the name left but for one group,
    /// makes our root in each.
    pub fn open(instance: &str, place: &Place, but: Option<&str>) -> std::result::Result<Cgroups, Error> {
        let cgroups = Cgroups::sweep(instance, place, but)?;
        for hierarchy in &cgroups.hierarchies {
            enable(cgroups.version, &hierarchy.path).map_err(Error::Cgroup)?;
            let root = hierarchy.path.join(&cgroups.name);
            make(&root).and_then(|()| enable(cgroups.version, &root)).map_err(Error::Cgroup)?;
        }
        Ok(cgroups)
    }

    /// Bounds everything in the instance's cgroups together. Children may use their share of
    /// processor time and no more memory than that.
    pub fn share(&self, share: &Share) -> std::result::Result<(), Error> {
        let fresh = Limits::of_kernel();
        let limits = Limits { memory: share.memory, ..fresh.clone() };
        let memory = settings(self.version, &fresh, &limits).into_iter();
        let name = CString::new(self.name.as_str()).map_err(|_| Error::Cgroup(Errno(libc::EINVAL)))?;
        for setting in memory.chain(share.milli_cpu.map(|milli| weight_of(self.version, milli))) {
            let with = |h: &&Hierarchy| h.controllers.contains(&setting.controller);
            let Some(hierarchy) = self.hierarchies.iter().find(with) else { continue };
            let path =
                CString::new(hierarchy.path.as_os_str().as_bytes()).map_err(|_| Error::Cgroup(Errno(libc::EINVAL)))?;
            let dir = sys::openat(libc::AT_FDCWD, &path, libc::O_PATH | libc::O_DIRECTORY).map_err(Error::Cgroup)?;
            match write_file(dir.as_raw_fd(), &name, setting.file, &setting.value) {
                Err(Errno(libc::ENOENT)) if setting.optional => {}
                result => result.map_err(Error::Cgroup)?,
            }
        }
        Ok(())
    }

    /// Kills everything in the instance's cgroups, but for one group, and removes them.
    pub fn sweep(instance: &str, place: &Place, but: Option<&str>) -> std::result::Result<Cgroups, Error> {
        let (version, hierarchies) = place.hierarchies()?;
        let name = format!("sigma-{instance}");
        let freezer = place.freezer();
        if let Some(freezer) = &freezer {
            freezer::sweep(&freezer.join(&name)).map_err(Error::Sweep)?;
        }
        let cgroups =
            Cgroups { version, hierarchies, freezer, name, groups: HashMap::new(), doomed: HashSet::new(), named: 0 };
        for hierarchy in &cgroups.hierarchies {
            let root = hierarchy.path.join(&cgroups.name);
            match but {
                None => remove_tree(&root).map_err(Error::Sweep)?,
                Some(but) => remove_below(&root, but).map_err(Error::Sweep)?,
            }
        }
        Ok(cgroups)
    }

    /// Whether there are any. Without them nothing knows what is in a leaf.
    pub fn exist(&self) -> bool {
        !self.hierarchies.is_empty()
    }

    /// Makes a leaf of this name with its limits.
    pub fn make_leaf(&mut self, group: &str, name: &str, limits: &Limits) -> Result<Leaf> {
        self.open_group(group)?;
        let name = CString::new(name).map_err(|_| Errno(libc::EINVAL))?;
        let limits_now = Limits::of_kernel();
        let group_name = group.to_string();
        let mut leaf = Leaf {
            group: group_name,
            name,
            limits: limits_now,
            oom_kills: 0,
            processor: ProcessorTime::default(),
            gauges: None,
            frozen: None,
        };
        let dirs = &self.groups[group];
        for (created, dir) in dirs.iter().enumerate() {
            if let Err(errno) = sys::mkdirat(dir.as_raw_fd(), &leaf.name, 0o755) {
                for dir in &dirs[..created] {
                    let _ = sys::rmdirat(dir.as_raw_fd(), &leaf.name);
                }
                return Err(errno);
            }
        }
        if let Err(errno) = self.limit(&mut leaf, limits) {
            let _ = self.remove_leaf(&leaf);
            return Err(errno);
        }
        Ok(leaf)
    }

    /// Makes the leaf enforce these limits from now on; writes only what is different.
    pub fn limit(&self, leaf: &mut Leaf, limits: &Limits) -> Result<()> {
        if self.hierarchies.is_empty() {
            leaf.limits = limits.clone();
            return Ok(());
        }
        for setting in settings(self.version, &leaf.limits, limits) {
            let Some(dir) = self.dir_of(leaf, setting.controller) else { return Err(Errno(libc::ENODEV)) };
            match write_file(dir, &leaf.name, setting.file, &setting.value) {
                Err(Errno(libc::ENOENT)) if setting.optional => {}
                result => result?,
            }
        }
        leaf.limits = limits.clone();
        Ok(())
    }

    /// What a process needs to get into the leaf.
    pub fn entry(&self, leaf: &Leaf) -> Result<Entry> {
        let dirs = &self.groups[&leaf.group];
        if self.version == Version::V2 {
            let dir = sys::openat(dirs[0].as_raw_fd(), &leaf.name, libc::O_RDONLY | libc::O_DIRECTORY)?;
            return Ok(Entry::Birth(dir));
        }
        let path = path_in(&leaf.name, c"cgroup.procs")?;
        dirs.iter()
            .map(|dir| sys::openat(dir.as_raw_fd(), &path, libc::O_WRONLY))
            .collect::<Result<_>>()
            .map(Entry::Files)
    }

    /// The group that a leaf is in.
    pub fn group_of<'a>(&self, leaf: &'a Leaf) -> &'a str {
        &leaf.group
    }

    pub fn name_of<'a>(&self, leaf: &'a Leaf) -> std::borrow::Cow<'a, str> {
        leaf.name.to_string_lossy()
    }

    /// Where the group's directory of a controller's hierarchy is open.
    fn dir_of(&self, leaf: &Leaf, controller: Controller) -> Option<RawFd> {
        let at = self.hierarchies.iter().position(|h| h.controllers.contains(&controller))?;
        self.groups.get(&leaf.group).map(|dirs| dirs[at].as_raw_fd())
    }

    /// Reads what a tree's leaf counted; what cannot be read is zero.
    pub fn usage(&self, leaf: &Leaf) -> Usage {
        let (peak, events) = match self.version {
            Version::V1 => ("memory.max_usage_in_bytes", "memory.oom_control"),
            Version::V2 => ("memory.peak", "memory.events"),
        };
        let Some(dir) = self.dir_of(leaf, Controller::Memory) else { return Usage::default() };
        let read = |file: &str| read_file(dir, &leaf.name, file).unwrap_or_default();
        Usage {
            memory_peak: read(peak).trim().parse().unwrap_or(0),
            oom_kills: value_of(&read(events), "oom_kill ").unwrap_or(0),
            memory_left: 0,
            cpu_us: None,
        }
    }

    /// As remove_leaf, for one that may have been frozen.
    pub fn close_leaf(&self, leaf: &mut Leaf) -> Result<()> {
        self.unhold(leaf).and_then(|()| self.remove_leaf(leaf))
    }

    /// Removes the leaf; EBUSY while the kernel still counts a dying process in it.
    pub fn remove_leaf(&self, leaf: &Leaf) -> Result<()> {
        for dir in self.groups.get(&leaf.group).into_iter().flatten() {
            match sys::rmdirat(dir.as_raw_fd(), &leaf.name) {
                Ok(()) | Err(Errno(libc::ENOENT)) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Kills whatever is in the leaf. Needed only where no PID namespace does it.
    pub fn kill_leaf(&self, leaf: &Leaf) {
        for hierarchy in &self.hierarchies {
            let path = hierarchy.path.join(&self.name).join(&leaf.group).join(leaf.name.to_string_lossy().as_ref());
            kill_members(&path);
        }
    }

    /// Has a group removed as soon as nothing is in it. Whoever asks for it before that revokes it.
    pub fn doom(&mut self, group: &str) {
        if self.groups.contains_key(group) {
            self.doomed.insert(group.to_string());
        }
    }

    pub fn has_doomed(&self) -> bool {
        !self.doomed.is_empty()
    }

    /// Removes those of the doomed groups in which nothing is. A process that has just died keeps a
    /// leaf busy for a moment, and a leaf its group: such a group is tried again.
    pub fn remove_doomed(&mut self) {
        for group in std::mem::take(&mut self.doomed) {
            let below = |h: &Hierarchy| h.path.join(&self.name).join(&group);
            let gone = |path: PathBuf| match std::fs::remove_dir(&path) {
                Err(err) => err.kind() == std::io::ErrorKind::NotFound,
                Ok(()) => true,
            };
            if self.hierarchies.iter().map(below).all(gone) {
                self.groups.remove(&group);
            } else {
                self.doomed.insert(group);
            }
        }
    }

    fn open_group(&mut self, group: &str) -> Result<()> {
        if self.doomed.remove(group) {
            self.groups.remove(group); // some hierarchies may have it no more
        }
        if self.groups.contains_key(group) {
            return Ok(());
        }
        if self.groups.len() >= GROUPS_MAX {
            return Err(Errno(libc::ENOSPC));
        }
        let mut dirs = Vec::new();
        for hierarchy in &self.hierarchies {
            let mut path = hierarchy.path.join(&self.name);
            for element in group.split('/') {
                path.push(element);
                make(&path)?;
                enable(self.version, &path)?;
            }
            let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno(libc::EINVAL))?;
            dirs.push(sys::openat(libc::AT_FDCWD, &path, libc::O_PATH | libc::O_DIRECTORY)?);
        }
        self.groups.insert(group.to_string(), dirs);
        Ok(())
    }
}

/// The number after a key, in files with one of these to a line.
pub fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

/// Reads the mount table: v2 when a cgroup2 mount has the memory controller, otherwise v1.
fn find(mountinfo: &str, controllers_of: impl Fn(&Path) -> String) -> Option<(Version, Vec<Hierarchy>)> {
    let mut v1: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let (left, right) = line.split_once(" - ")?;
        let path = PathBuf::from(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1)?;
        match kind {
            "cgroup2" => {
                let controllers = among(&controllers_of(&path).split_whitespace().collect::<Vec<_>>());
                if controllers.len() == CONTROLLERS.len() {
                    return Some((Version::V2, vec![Hierarchy { path, controllers }]));
                }
            }
            "cgroup" => {
                let names: Vec<&str> = options.split(',').collect();
                let mut controllers = among(&names);
                if names.contains(&ACCOUNTING) {
                    controllers.push(Controller::Accounting);
                }
                // The same hierarchy may be mounted twice.
                if !controllers.is_empty() && !v1.iter().any(|h| h.controllers == controllers) {
                    v1.push(Hierarchy { path, controllers });
                }
            }
            _ => {}
        }
    }
    let has = |wanted: &Controller| v1.iter().any(|h| h.controllers.contains(wanted));
    CONTROLLERS.iter().all(|(wanted, _)| has(wanted)).then_some((Version::V1, v1))
}

/// Where v1's freezer is mounted.
fn find_freezer(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - cgroup ")?;
        right.split([' ', ',']).any(|option| option == "freezer").then(|| left.split(' ').nth(4).map(PathBuf::from))?
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Setting {
    controller: Controller,
    file: &'static CStr,
    value: String,
    /// The kernel may be built or booted without this file.
    optional: bool,
}

/// Which file takes which value to get from one set of limits to another, in the order of writing.
fn settings(version: Version, from: &Limits, to: &Limits) -> Vec<Setting> {
    use Controller::{Memory, Pids};
    let mut out = Vec::new();
    let mut set = |controller, file, value: String, optional| out.push(Setting { controller, file, value, optional });
    if from.pids != to.pids {
        set(Pids, c"pids.max", (to.pids as u64 + INIT_TASKS).to_string(), false);
    }
    let memory = (from.memory != to.memory).then_some(to.memory);
    match (version, memory) {
        (_, None) => {}
        (Version::V1, Some(bytes)) => {
            let value = bytes.map_or("-1".to_string(), |bytes| bytes.to_string());
            // Memory and swap together, at the same value: no swapping past the limit. The kernel
            // wants this one never to be below the other.
            let more = bytes.unwrap_or(u64::MAX) > from.memory.unwrap_or(u64::MAX);
            if more {
                set(Memory, c"memory.memsw.limit_in_bytes", value.clone(), true);
            }
            set(Memory, c"memory.limit_in_bytes", value.clone(), false);
            if !more {
                set(Memory, c"memory.memsw.limit_in_bytes", value, true);
            }
        }
        (Version::V2, Some(bytes)) => {
            set(Memory, c"memory.max", bytes.map_or("max".to_string(), |bytes| bytes.to_string()), false);
            set(Memory, c"memory.swap.max", bytes.map_or("max".to_string(), |_| "0".to_string()), true);
        }
    }
    if from.cpu_shares != to.cpu_shares {
        out.push(shares_of(version, to.cpu_shares));
    }
    out
}

/// Shares as the kernel's file takes them: 1024 is what a new cgroup has, which version 2 calls
/// 100.
fn shares_of(version: Version, shares: u32) -> Setting {
    let file = if version == Version::V1 { c"cpu.shares" } else { c"cpu.weight" };
    Setting { controller: Controller::Cpu, file, value: shares_text(version, shares), optional: false }
}

/// What is written for so many shares.
pub fn shares_text(version: Version, shares: u32) -> String {
    match version {
        Version::V1 => shares.to_string(),
        Version::V2 => (shares as u64 * 100 / 1024).clamp(1, 10_000).to_string(),
    }
}

/// The weight of so many thousandths of a core: a whole one is what a cgroup has by default.
fn weight_of(version: Version, milli_cpu: u64) -> Setting {
    let milli = milli_cpu.min(1 << 20);
    let (file, value) = match version {
        Version::V1 => (c"cpu.shares", (milli * 1024 / 1000).clamp(2, 262_144)),
        Version::V2 => (c"cpu.weight", (milli / 10).clamp(1, 10_000)),
    };
    Setting { controller: Controller::Cpu, file, value: value.to_string(), optional: false }
}

fn make(path: &Path) -> Result<()> {
    match std::fs::create_dir(path) {
        Err(err) if err.kind() != std::io::ErrorKind::AlreadyExists => Err(err.into()),
        _ => Ok(()),
    }
}

/// v2: lets the children of a cgroup have our controllers.
fn enable(version: Version, path: &Path) -> Result<()> {
    if version == Version::V1 {
        return Ok(());
    }
    let control = path.join("cgroup.subtree_control");
    // Weights of I/O are a help and no protection: who has no such controller does without.
    let _ = std::fs::write(&control, "+io");
    std::fs::write(control, "+memory +pids +cpu").map_err(Errno::from)
}

fn path_in(leaf: &CStr, file: &CStr) -> Result<CString> {
    CString::new([leaf.to_bytes(), b"/", file.to_bytes()].concat()).map_err(|_| Errno(libc::EINVAL))
}

fn write_file(dir: RawFd, leaf: &CStr, file: &CStr, value: &str) -> Result<()> {
    let file = sys::openat(dir, &path_in(leaf, file)?, libc::O_WRONLY)?;
    sys::write(file.as_raw_fd(), value.as_bytes()).map(drop)
}

fn read_file(dir: RawFd, leaf: &CStr, file: &str) -> Result<String> {
    let path = CString::new([leaf.to_bytes(), b"/", file.as_bytes()].concat()).map_err(|_| Errno(libc::EINVAL))?;
    let file = sys::openat(dir, &path, libc::O_RDONLY)?;
    let mut buf = [0; 1024];
    let len = sys::read(file.as_raw_fd(), &mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..len]).into_owned())
}

/// Kills the members of one cgroup and says how many there were.
fn kill_members(path: &Path) -> usize {
    let members = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    // A process of a foreign PID namespace is shown as 0, which kill takes for our own group.
    let pids = members.lines().filter_map(|line| line.parse().ok()).filter(|pid: &i32| *pid > 0);
    pids.filter(|pid| *pid != sys::getpid()).filter(|pid| sys::kill(*pid, libc::SIGKILL).is_ok()).count()
}

/// Removes the cgroups below one, but for the one of this name, which may be some levels below.
fn remove_below(path: &Path, but: &str) -> Result<()> {
    let entries = match std::fs::read_dir(path) {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(err.into()),
        Ok(entries) => entries,
    };
    let (here, below) = but.split_once('/').unwrap_or((but, ""));
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if entry.file_name() != here {
            remove_tree(&entry.path())?;
        } else if !below.is_empty() {
            remove_below(&entry.path(), below)?;
        }
    }
    Ok(())
}

/// Removes a tree of cgroups, children first, killing what is in them. Bounded: 5 s of patience.
fn remove_tree(path: &Path) -> Result<()> {
    remove_below(path, "")?;
    for attempt in 0..1000 {
        match std::fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(err) if err.raw_os_error() != Some(libc::EBUSY) => return Err(err.into()),
            Err(_) => {}
        }
        let killed = kill_members(path);
        if attempt == 0 && killed > 0 {
            log(&format!("killing {killed} left-over processes of {}", path.display()));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Err(Errno(libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
25 30 0:22 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
26 30 0:23 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
27 30 0:24 / /sys/fs/cgroup/pids rw shared:3 - cgroup cgroup rw,pids
28 30 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
29 30 0:26 / /again rw - cgroup cgroup rw,memory
";

    #[test]
    fn the_memory_controller_decides_the_version() {
        let (version, found) = find(V1, |_| String::new()).unwrap();
        let paths: Vec<_> = found.iter().map(|h| h.path.to_str().unwrap()).collect();
        assert_eq!(version, Version::V1);
        assert_eq!(paths, ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"]);

        let (version, found) = find(V1, |_| "cpuset cpu io memory pids".into()).unwrap();
        assert_eq!((version, found.len()), (Version::V2, 1));

        assert_eq!(find_freezer(V1), None);
        let freezer = "25 30 0:22 / /f/f rw shared:1 - cgroup cgroup rw,freezer\n";
        assert_eq!(find_freezer(freezer), Some("/f/f".into()));

        let joint = "25 30 0:22 / /c rw - cgroup cgroup rw,cpu,cpuacct\n26 30 0:23 / /m rw - cgroup c rw,memory\n";
        assert_eq!(find(joint, |_| String::new()), None, "no pids controller: fail closed");
    }

    #[test]
    fn weights_of_cores() {
        let weights = |version| [1, 500, 1000, 2000, 1 << 40].map(|milli| weight_of(version, milli).value);
        assert_eq!(weights(Version::V1), ["2", "512", "1024", "2048", "262144"]);
        assert_eq!(weights(Version::V2), ["1", "50", "100", "200", "10000"]);
    }

    #[test]
    fn only_what_differs_is_written() {
        let fresh = Limits::of_kernel();
        let small = Limits { pids: 10, memory: Some(1 << 20), cpu_shares: 512 };
        let large = Limits { memory: Some(1 << 30), ..small.clone() };
        let free = Limits { memory: None, ..small.clone() };
        let show = |version, from: &Limits, to: &Limits| -> Vec<String> {
            let each = |s: &Setting| format!("{}={}", s.file.to_str().unwrap(), s.value);
            settings(version, from, to).iter().map(each).collect()
        };
        let v1 =
            ["pids.max=11", "memory.limit_in_bytes=1048576", "memory.memsw.limit_in_bytes=1048576", "cpu.shares=512"];
        assert_eq!(show(Version::V1, &fresh, &small), v1);
        let v2 = ["pids.max=11", "memory.max=1048576", "memory.swap.max=0", "cpu.weight=50"];
        assert_eq!(show(Version::V2, &fresh, &small), v2);
        // Upwards the limit of memory and swap goes first, since it may not be the lower one.
        let up = ["memory.memsw.limit_in_bytes=1073741824", "memory.limit_in_bytes=1073741824"];
        assert_eq!(show(Version::V1, &small, &large), up);
        let off = ["memory.memsw.limit_in_bytes=-1", "memory.limit_in_bytes=-1"];
        assert_eq!(show(Version::V1, &large, &free), off);
        assert_eq!(show(Version::V2, &large, &free), ["memory.max=max", "memory.swap.max=max"]);
        assert_eq!(show(Version::V1, &small, &small), [""; 0]);
    }
}
