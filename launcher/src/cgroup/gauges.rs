//! A seat's leaf: its files stay open, since each is read or written for every proc.

use super::{Cgroups, Controller, INIT_TASKS, Leaf, ProcessorTime, Usage, Version, path_in, value_of, write_file};
use crate::error::Errno;
use crate::plan::Limits;
use crate::sys::{self, Result};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Memory that may still be charged to a leaf that is used again, which its next proc finds
/// missing. The kernel hands out charges in batches of 256 KiB to each CPU. More than this is
/// something that outlives its proc (a shared file in memory, say) and stays with a leaf that is
/// removed.
const LEFT_MAX: u64 = 1 << 20;
/// The kernel counts ended processes for some 20 ms more. As long as they are at most this part of
/// what a proc may have, it will not miss them.
const DYING_PART: u64 = 8;

/// The files that are read, and in v1 set back.
#[derive(Debug)]
pub(super) struct Gauges {
    pids: OwnedFd,
    peak: OwnedFd,
    events: OwnedFd,
    memory: OwnedFd,
    /// v1: processor time in all, user's and system's, a file each. v2: one file with all three.
    cpu: Vec<OwnedFd>,
}

impl Cgroups {
    /// A leaf for any proc of the group.
    pub fn make_seat_leaf(&mut self, group: &str, limits: &Limits) -> Result<Leaf> {
        self.named += 1;
        let name = format!("spare-{}", self.named);
        let mut leaf = self.make_leaf(group, &name, limits)?;
        match self.open_gauges(&leaf) {
            Ok(gauges) => leaf.gauges = Some(gauges),
            Err(errno) => {
                let _ = self.remove_leaf(&leaf);
                return Err(errno);
            }
        }
        Ok(leaf)
    }

    fn open_gauges(&self, leaf: &Leaf) -> Result<Gauges> {
        use Controller::{Accounting, Cpu, Memory, Pids};
        let open = |controller, file: &CStr, flags| {
            let dir = self.dir_of(leaf, controller).ok_or(Errno(libc::ENODEV))?;
            sys::openat(dir, &path_in(&leaf.name, file)?, flags)
        };
        let (peak, events, memory) = match self.version {
            Version::V1 => {
                let peak = open(Memory, c"memory.max_usage_in_bytes", libc::O_RDWR)?;
                (peak, c"memory.oom_control", c"memory.usage_in_bytes")
            }
            Version::V2 => (open(Memory, c"memory.peak", libc::O_RDONLY)?, c"memory.events", c"memory.current"),
        };
        let cpu = match self.version {
            Version::V1 => [c"cpuacct.usage", c"cpuacct.usage_user", c"cpuacct.usage_sys"]
                .into_iter()
                .flat_map(|file| open(Accounting, file, libc::O_RDONLY))
                .collect(),
            Version::V2 => vec![open(Cpu, c"cpu.stat", libc::O_RDONLY)?],
        };
        Ok(Gauges {
            pids: open(Pids, c"pids.current", libc::O_RDONLY)?,
            peak,
            events: open(Memory, events, libc::O_RDONLY)?,
            memory: open(Memory, memory, libc::O_RDONLY)?,
            cpu,
        })
    }

    /// Whether leaves of procs that have ended can become others'. v2 cannot set its peak back.
    pub fn reuses_leaves(&self) -> bool {
        self.version == Version::V1
    }

    /// Whether hardly any process of the leaf's last proc is still counted.
    pub fn is_ready(&self, leaf: &Leaf, limits: &Limits) -> bool {
        let count = leaf.gauges.as_ref().and_then(|gauges| number(&gauges.pids));
        count.is_some_and(|count| count <= INIT_TASKS + limits.pids as u64 / DYING_PART)
    }

    /// Lets a seat's leaf count from here on, and enforce these limits.
    pub fn renew(&self, leaf: &mut Leaf, limits: &Limits) -> Result<()> {
        if let Some(gauges) = leaf.gauges.as_ref().filter(|_| self.version == Version::V1) {
            sys::write(gauges.peak.as_raw_fd(), b"0")?;
        }
        self.limit(leaf, limits)
    }

    /// Closes the files of a leaf that has its last proc, which may live for long: of descriptors
    /// there are not enough for thousands of those.
    pub fn rest(&self, leaf: &mut Leaf) {
        leaf.gauges = None;
    }

    /// What the present proc of a seat's leaf has used. From here on it counts for the next.
    pub fn close_account(&self, leaf: &mut Leaf) -> Usage {
        let reopened = if leaf.gauges.is_none() { self.open_gauges(leaf).ok() } else { None };
        let Some(gauges) = leaf.gauges.as_ref().or(reopened.as_ref()) else { return Usage::default() };
        let oom_kills = text_of(&gauges.events, |text| value_of(text, "oom_kill ")).unwrap_or(leaf.oom_kills);
        let time = gauges.processor_time();
        let before = leaf.processor;
        let usage = Usage {
            memory_peak: number(&gauges.peak).unwrap_or(0),
            oom_kills: oom_kills.saturating_sub(leaf.oom_kills),
            memory_left: number(&gauges.memory).unwrap_or(u64::MAX),
            cpu_us: time.map(|time| time.since(before)),
        };
        leaf.oom_kills = oom_kills;
        leaf.processor = time.unwrap_or(before);
        usage
    }

    /// Whether a leaf may serve another proc.
    pub fn is_clean(usage: &Usage) -> bool {
        usage.memory_left <= LEFT_MAX
    }

    /// Kills what is in the leaf beside its seed; true if there was nothing. The first call that
    /// finds something also stops it from forking, so that a few calls suffice whatever it does.
    pub fn kill_members(&self, leaf: &mut Leaf, seed: Option<i32>) -> bool {
        let Ok(members) = self.members(leaf) else { return true };
        if members.iter().all(|pid| Some(*pid) == seed) {
            return leaf.frozen.is_none() || self.unhold(leaf).is_ok();
        }
        if leaf.limits.pids != STOPPED
            && let Some(dir) = self.dir_of(leaf, Controller::Pids)
        {
            let _ = write_file(dir, &leaf.name, c"pids.max", "0");
            leaf.limits.pids = STOPPED;
        }
        for pid in members.into_iter().filter(|pid| Some(*pid) != seed) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        // In v1 nothing that is frozen dies.
        let _ = self.thaw(leaf, seed);
        false
    }

    /// The processes of a leaf. Its file is opened anew each time, since v1 shows the same list as
    /// long as one is read time and again.
    pub fn members(&self, leaf: &Leaf) -> Result<Vec<i32>> {
        let dir = self.dir_of(leaf, Controller::Pids).ok_or(Errno(libc::ENODEV))?;
        list(dir, &path_in(&leaf.name, c"cgroup.procs")?)
    }
}

/// The numbers in a file of a cgroup, one to a line.
pub fn list(dir: RawFd, path: &CStr) -> Result<Vec<i32>> {
    let file = sys::openat(dir, path, libc::O_RDONLY)?;
    let mut buf = [0; 4096];
    let mut text = Vec::new();
    loop {
        let len = sys::read(file.as_raw_fd(), &mut buf)?;
        text.extend_from_slice(&buf[..len]);
        // Full but for less than a line.
        if len < buf.len() - 16 {
            break;
        }
    }
    let pids = text.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()?.parse().ok());
    // A process of a foreign PID namespace is shown as 0, which kill takes for our own group.
    Ok(pids.filter(|pid: &i32| *pid > 0).collect())
}

/// In place of a limit on processes: none may be added. No START can ask for it.
const STOPPED: u32 = u32::MAX - 1;

impl Gauges {
    fn processor_time(&self) -> Option<ProcessorTime> {
        match &self.cpu[..] {
            [total, user, system] => {
                Some(ProcessorTime { total: number(total)?, user: number(user)?, system: number(system)? })
            }
            [all] => text_of(all, ProcessorTime::of_stat),
            _ => None,
        }
    }
}

fn number(file: &OwnedFd) -> Option<u64> {
    text_of(file, |text| text.trim().parse().ok())
}

pub fn text_of<T>(file: &OwnedFd, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut buf = [0; 1024];
    let len = sys::read_at_start(file.as_raw_fd(), &mut buf).ok()?;
    parse(std::str::from_utf8(&buf[..len]).ok()?)
}
