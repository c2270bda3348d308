//! What a running proc uses at this moment. Read only when somebody asks: it costs some ten system
//! calls.

use super::{Cgroups, Controller, Leaf, ProcessorTime, Version, path_in, read_file};
use crate::sys;
use std::os::fd::AsRawFd;

/// Of /proc/PID/stat, the same on every machine of ours.
const USER_HZ: u64 = 100;
/// Bytes read of one file. A leaf's list of processes needs most: `pids.max` is some hundred.
const READ_MAX: usize = 64 << 10;

/// What cannot be read is zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    pub user_us: u64,
    pub system_us: u64,
    pub memory: u64,
    pub memory_peak: u64,
    /// Processes and threads, without ours.
    pub tasks: u32,
}

impl Cgroups {
    /// `helpers` of the processes in the leaf are not the proc's.
    pub fn read_meter(&self, leaf: &Leaf, helpers: u64) -> Reading {
        let number = |controller, file: &str| -> u64 {
            let read = self.dir_of(leaf, controller).map(|dir| read_file(dir, &leaf.name, file).unwrap_or_default());
            read.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        let (now, peak) = match self.version {
            Version::V1 => ("memory.usage_in_bytes", "memory.max_usage_in_bytes"),
            Version::V2 => ("memory.current", "memory.peak"),
        };
        let memory = number(Controller::Memory, now);
        // The kernel notes the peak a little after the fact.
        let memory_peak = number(Controller::Memory, peak).max(memory);
        let tasks = number(Controller::Pids, "pids.current").saturating_sub(helpers) as u32;
        let (user_us, system_us) = self.processor_time(leaf).unwrap_or_default();
        Reading { user_us, system_us, memory, memory_peak, tasks }
    }

    /// Of all processes of the leaf and of those they have waited for, in microseconds.
    fn processor_time(&self, leaf: &Leaf) -> Option<(u64, u64)> {
        if self.version == Version::V2 {
            let text = read_file(self.dir_of(leaf, Controller::Cpu)?, &leaf.name, "cpu.stat").ok()?;
            return Some(ProcessorTime::of_stat(&text)?.since(leaf.processor));
        }
        if let Some(dir) = self.dir_of(leaf, Controller::Accounting) {
            let of = |file: &str| read_file(dir, &leaf.name, file).ok()?.trim().parse::<u64>().ok();
            let time = ProcessorTime {
                total: of("cpuacct.usage")?,
                user: of("cpuacct.usage_user")?,
                system: of("cpuacct.usage_sys")?,
            };
            return Some(time.since(leaf.processor));
        }
        let path = path_in(&leaf.name, c"cgroup.procs").ok()?;
        let file = sys::openat(self.dir_of(leaf, Controller::Pids)?, &path, libc::O_RDONLY).ok()?;
        let mut text = Vec::new();
        let mut buf = [0; 4096];
        while let Ok(len @ 1..) = sys::read(file.as_raw_fd(), &mut buf)
            && text.len() < READ_MAX
        {
            text.extend_from_slice(&buf[..len]);
        }
        let text = String::from_utf8_lossy(&text);
        let pids = text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid > 0);
        let tick_us = 1_000_000 / USER_HZ;
        let mut sum = (0, 0);
        for pid in pids {
            // One that has ended meanwhile is in its parent's account.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if let Some((user, system)) = ticks(&stat) {
                sum = (sum.0 + user * tick_us, sum.1 + system * tick_us);
            }
        }
        Some(sum)
    }
}

/// User and system time of a process and its waited-for children, from its `/proc/PID/stat`. The
/// name, in parentheses, may hold anything.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    let [user, system, child_user, child_system] = [fields.next()??, fields.next()??, fields.next()??, fields.next()??];
    Some((user + child_user, system + child_system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_shift_the_fields() {
        let stat = "7 (a) R 9 9 (b) S 1 7 7 0 -1 4194560 98 0 0 0 11 12 3 4 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), Some((14, 16)));
        assert_eq!(ticks("7 (a"), None);
        assert_eq!(ticks("7 (a) S 1 7 7 0 -1 4194560 98 0 0 0 11"), None);
        assert_eq!(ticks(""), None);
    }
}
