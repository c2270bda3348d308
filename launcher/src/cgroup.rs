//! The cgroups of this instance: one leaf a start, in each v1 hierarchy or in the one of v2.

use crate::error::{Errno, Error, log};
use crate::plan::Limits;
use crate::sys;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, Errno>;

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
}

const CONTROLLERS: [(Controller, &str); 3] =
    [(Controller::Memory, "memory"), (Controller::Pids, "pids"), (Controller::Cpu, "cpu")];

/// One mounted hierarchy and those of our controllers that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    path: PathBuf,
    controllers: Vec<Controller>,
}

impl Hierarchy {
    fn apply(&self, leaf: &OwnedFd, settings: &[Setting]) -> Result<()> {
        let mut ours = settings.iter().filter(|setting| self.controllers.contains(&setting.controller));
        ours.try_for_each(|setting| setting.apply(leaf))
    }
}

pub struct Cgroups {
    version: Version,
    hierarchies: Vec<Hierarchy>,
    name: String,
    /// The directories of each group, in the order of the hierarchies.
    groups: HashMap<String, Vec<OwnedFd>>,
}

/// A leaf that exists in every hierarchy.
#[derive(Debug)]
pub struct Leaf {
    group: String,
    name: CString,
}

/// What a leaf counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory_peak: u64,
    pub oom_kills: u64,
}

impl Cgroups {
    /// Finds the hierarchies, removes what a dead instance of the name left, makes our root in each.
    pub fn open(instance: &str) -> std::result::Result<Cgroups, Error> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| Error::Cgroup(e.into()))?;
        let controllers_of = |path: &Path| std::fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
        let (version, hierarchies) = find(&mounts, controllers_of).ok_or(Error::Cgroup(Errno(libc::ENODEV)))?;
        let cgroups = Cgroups { version, hierarchies, name: format!("sigma-{instance}"), groups: HashMap::new() };
        cgroups.remove_all().map_err(Error::Sweep)?;
        for hierarchy in &cgroups.hierarchies {
            enable(version, &hierarchy.path).map_err(Error::Cgroup)?;
            let root = hierarchy.path.join(&cgroups.name);
            make(&root).and_then(|()| enable(version, &root)).map_err(Error::Cgroup)?;
        }
        Ok(cgroups)
    }

    /// Makes a leaf with its limits; returns it and the descriptors of its cgroup.procs files.
    pub fn make_leaf(&mut self, group: &str, name: &str, limits: &Limits) -> Result<(Leaf, Vec<OwnedFd>)> {
        self.open_group(group)?;
        let name = CString::new(name).map_err(|_| Errno(libc::EINVAL))?;
        let leaf = Leaf { group: group.to_string(), name };
        let mut made = 0;
        let mut entries = Vec::new();
        let settings = settings(self.version, limits);
        for (hierarchy, dir) in self.hierarchies.iter().zip(&self.groups[group]) {
            let result = sys::mkdirat(dir.as_raw_fd(), &leaf.name, 0o755).and_then(|()| {
                made += 1;
                let leaf_dir = sys::openat(dir.as_raw_fd(), &leaf.name, libc::O_PATH | libc::O_DIRECTORY)?;
                hierarchy.apply(&leaf_dir, &settings)?;
                entries.push(sys::openat(leaf_dir.as_raw_fd(), c"cgroup.procs", libc::O_WRONLY)?);
                Ok(())
            });
            if let Err(errno) = result {
                for dir in &self.groups[group][..made] {
                    let _ = sys::rmdirat(dir.as_raw_fd(), &leaf.name);
                }
                return Err(errno);
            }
        }
        Ok((leaf, entries))
    }

    /// Whether a leaf with processes in it can get another name: v2 has no renaming.
    pub fn can_rename(&self) -> bool {
        self.version == Version::V1
    }

    /// Gives a leaf, with what is in it, another name and other limits.
    pub fn reuse_leaf(&self, leaf: &mut Leaf, name: &str, limits: &Limits) -> Result<()> {
        let name = CString::new(name).map_err(|_| Errno(libc::EINVAL))?;
        let dirs = &self.groups[&leaf.group];
        for (done, dir) in dirs.iter().enumerate() {
            if let Err(errno) = sys::renameat(dir.as_raw_fd(), &leaf.name, &name) {
                // Some leaf of the new name exists already; ours must keep one name everywhere.
                for dir in &dirs[..done] {
                    let _ = sys::renameat(dir.as_raw_fd(), &name, &leaf.name);
                }
                return Err(errno);
            }
        }
        leaf.name = name;
        let settings = settings(self.version, limits);
        for (hierarchy, dir) in self.hierarchies.iter().zip(dirs) {
            let leaf_dir = sys::openat(dir.as_raw_fd(), &leaf.name, libc::O_PATH | libc::O_DIRECTORY)?;
            hierarchy.apply(&leaf_dir, &settings)?;
        }
        Ok(())
    }

    /// Reads what the leaf counted; what cannot be read is zero.
    pub fn usage(&self, leaf: &Leaf) -> Usage {
        let (peak, events) = match self.version {
            Version::V1 => ("memory.max_usage_in_bytes", "memory.oom_control"),
            Version::V2 => ("memory.peak", "memory.events"),
        };
        let dirs = self.groups.get(&leaf.group).into_iter().flatten();
        let mut with_memory = self.hierarchies.iter().zip(dirs);
        let memory = with_memory.find(|(h, _)| h.controllers.contains(&Controller::Memory));
        let Some((_, dir)) = memory else { return Usage::default() };
        let read = |file: &str| read_file(dir.as_raw_fd(), &leaf.name, file).unwrap_or_default();
        let oom_kills = read(events).lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
        Usage { memory_peak: read(peak).trim().parse().unwrap_or(0), oom_kills: oom_kills.unwrap_or(0) }
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

    /// Kills everything in the instance's cgroups and removes them.
    pub fn remove_all(&self) -> Result<()> {
        self.hierarchies.iter().try_for_each(|hierarchy| remove_tree(&hierarchy.path.join(&self.name)))
    }

    fn open_group(&mut self, group: &str) -> Result<()> {
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

/// Reads the mount table: v2 when a cgroup2 mount has the memory controller, otherwise v1.
fn find(mountinfo: &str, controllers_of: impl Fn(&Path) -> String) -> Option<(Version, Vec<Hierarchy>)> {
    let mut v1: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let (left, right) = line.split_once(" - ")?;
        let path = PathBuf::from(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1)?;
        let among = |names: Vec<&str>| -> Vec<Controller> {
            CONTROLLERS.iter().filter(|(_, name)| names.contains(name)).map(|(c, _)| *c).collect()
        };
        match kind {
            "cgroup2" => {
                let controllers = among(controllers_of(&path).split_whitespace().collect());
                if controllers.len() == CONTROLLERS.len() {
                    return Some((Version::V2, vec![Hierarchy { path, controllers }]));
                }
            }
            "cgroup" => {
                let controllers = among(options.split(',').collect());
                // The same hierarchy may be mounted twice.
                if !controllers.is_empty() && !v1.iter().any(|h| h.controllers == controllers) {
                    v1.push(Hierarchy { path, controllers });
                }
            }
            _ => {}
        }
    }
    let found: usize = v1.iter().map(|h| h.controllers.len()).sum();
    (found == CONTROLLERS.len()).then_some((Version::V1, v1))
}

#[derive(Debug, PartialEq, Eq)]
struct Setting {
    controller: Controller,
    file: &'static std::ffi::CStr,
    value: String,
    /// The kernel may be built or booted without this file.
    optional: bool,
}

impl Setting {
    fn apply(&self, leaf: &OwnedFd) -> Result<()> {
        match sys::openat(leaf.as_raw_fd(), self.file, libc::O_WRONLY) {
            Err(Errno(libc::ENOENT)) if self.optional => Ok(()),
            Err(errno) => Err(errno),
            Ok(file) => sys::write(file.as_raw_fd(), self.value.as_bytes()).map(drop),
        }
    }
}

/// Which file takes which value, in the order of writing.
fn settings(version: Version, limits: &Limits) -> Vec<Setting> {
    use Controller::{Cpu, Memory, Pids};
    let mut out = Vec::new();
    let mut set = |controller, file, value: u64, optional| {
        out.push(Setting { controller, file, value: value.to_string(), optional });
    };
    // One more process than asked for: init is ours, not the proc's.
    set(Pids, c"pids.max", limits.pids as u64 + 1, false);
    match version {
        Version::V1 => {
            if let Some(bytes) = limits.memory {
                set(Memory, c"memory.limit_in_bytes", bytes, false);
                // Memory and swap together, at the same value: no swapping past the limit.
                set(Memory, c"memory.memsw.limit_in_bytes", bytes, true);
            }
            set(Cpu, c"cpu.shares", limits.cpu_shares as u64, false);
        }
        Version::V2 => {
            if let Some(bytes) = limits.memory {
                set(Memory, c"memory.max", bytes, false);
                set(Memory, c"memory.swap.max", 0, true);
            }
            // The kernel's own mapping of shares 2..262144 to weights 1..10000.
            set(Cpu, c"cpu.weight", 1 + (limits.cpu_shares as u64 - 2) * 9999 / 262_142, false);
        }
    }
    out
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
    std::fs::write(path.join("cgroup.subtree_control"), "+memory +pids +cpu").map_err(Errno::from)
}

fn read_file(dir: RawFd, leaf: &CString, file: &str) -> Result<String> {
    let path = CString::new([leaf.as_bytes(), b"/", file.as_bytes()].concat()).map_err(|_| Errno(libc::EINVAL))?;
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

/// Removes a tree of cgroups, children first, killing what is in them. Bounded: 5 s of patience.
fn remove_tree(path: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(path) {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(err.into()),
        Ok(entries) => entries,
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
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

        let joint = "25 30 0:22 / /c rw - cgroup cgroup rw,cpu,cpuacct\n26 30 0:23 / /m rw - cgroup c rw,memory\n";
        assert_eq!(find(joint, |_| String::new()), None, "no pids controller: fail closed");
    }

    #[test]
    fn limits_become_files() {
        let limits = Limits { pids: 10, memory: Some(1 << 20), cpu_shares: 1024 };
        let show = |version| -> Vec<String> {
            let each = |s: &Setting| format!("{}={}", s.file.to_str().unwrap(), s.value);
            settings(version, &limits).iter().map(each).collect()
        };
        let v1 =
            ["pids.max=11", "memory.limit_in_bytes=1048576", "memory.memsw.limit_in_bytes=1048576", "cpu.shares=1024"];
        assert_eq!(show(Version::V1), v1);
        let v2 = ["pids.max=11", "memory.max=1048576", "memory.swap.max=0", "cpu.weight=39"];
        assert_eq!(show(Version::V2), v2);
    }
}
