//! Opens what the placer reads and turns of groups, for it: it may open none of these files itself.

use super::{Cgroups, Controller, Version, path_in, write_file};
use crate::error::Errno;
use crate::notes::{KNOBS, Knob, beside};
use crate::plan::check_group;
use crate::sys::{self, Result};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Over which the bound of the group that yields counts, in microseconds. A tenth of the usual: who
/// is let off again goes on within this time.
pub const PERIOD_US: u64 = 10_000;

impl Cgroups {
    pub fn version(&self) -> Version {
        self.version
    }

    /// Where leaves' lists of threads are found.
    pub fn open_root(&self) -> Result<OwnedFd> {
        let has = |h: &&super::Hierarchy| h.controllers.contains(&Controller::Pids);
        let hierarchy = self.hierarchies.iter().find(has).ok_or(Errno(libc::ENODEV))?;
        let path = std::ffi::CString::new(hierarchy.path.join(&self.name).into_os_string().into_encoded_bytes())
            .map_err(|_| Errno(libc::EINVAL))?;
        sys::openat(libc::AT_FDCWD, &path, libc::O_PATH | libc::O_DIRECTORY)
    }

    fn open_in(&self, group: &str, controller: Controller, file: &CStr, flags: libc::c_int) -> Result<OwnedFd> {
        let has = |h: &super::Hierarchy| h.controllers.contains(&controller);
        let at = self.hierarchies.iter().position(has).ok_or(Errno(libc::ENODEV))?;
        let dirs = self.groups.get(group).ok_or(Errno(libc::ENOENT))?;
        sys::openat(dirs[at].as_raw_fd(), &path_in(c".", file)?, flags)
    }

    /// The file with a group's processor time.
    fn open_used(&self, group: &str) -> Result<OwnedFd> {
        let (controller, file) = match self.version {
            Version::V1 => (Controller::Accounting, c"cpuacct.usage"),
            Version::V2 => (Controller::Cpu, c"cpu.stat"),
        };
        self.open_in(group, controller, file, libc::O_RDONLY)
    }

    fn weight_file(&self) -> &'static CStr {
        if self.version == Version::V1 { c"cpu.shares" } else { c"cpu.weight" }
    }

    /// What a group that exists has used and weighs. ENODEV, ENOENT: this kernel does not tell
    /// enough.
    pub fn open_meter(&self, group: &str) -> Result<[OwnedFd; 2]> {
        Ok([self.open_used(group)?, self.open_in(group, Controller::Cpu, self.weight_file(), libc::O_WRONLY)?])
    }

    /// Opens what there is to know of two groups, which are made if they are not there, and what
    /// can be turned of the second. Nothing bounds it then.
    pub fn open_knobs(&mut self, first: &str, second: &str) -> Result<Vec<(Knob, OwnedFd)>> {
        let around = beside(first, second);
        for group in [first, second, around] {
            check_group(group.as_bytes()).map_err(|_| Errno(libc::EINVAL))?;
            self.open_group(group)?;
        }
        self.lift_bound(second)?;
        if self.version == Version::V1 {
            let period = self.open_in(second, Controller::Cpu, c"cpu.cfs_period_us", libc::O_WRONLY)?;
            sys::write(period.as_raw_fd(), PERIOD_US.to_string().as_bytes())?;
        }
        let mut opened = Vec::new();
        for knob in KNOBS {
            if around == second && matches!(knob, Knob::UsedAround | Knob::WeightAround | Knob::IdleAround) {
                continue;
            }
            let cpu = |group, file, flags| self.open_in(group, Controller::Cpu, file, flags);
            let file = match knob {
                Knob::UsedFirst => self.open_used(first),
                Knob::UsedSecond => self.open_used(second),
                Knob::UsedAround => self.open_used(around),
                Knob::Bound => cpu(second, self.bound_file(), libc::O_WRONLY),
                Knob::Weight => cpu(second, self.weight_file(), libc::O_RDWR),
                Knob::WeightAround => cpu(around, self.weight_file(), libc::O_RDWR),
                // Absent before Linux 5.15.
                Knob::Idle => cpu(second, c"cpu.idle", libc::O_WRONLY),
                Knob::IdleAround => cpu(around, c"cpu.idle", libc::O_WRONLY),
                Knob::Pressure => cpu(first, c"cpu.pressure", libc::O_RDONLY),
            };
            match (knob, file) {
                (_, Ok(file)) => opened.push((knob, file)),
                (Knob::Idle | Knob::IdleAround | Knob::Pressure, Err(_)) => {}
                (_, Err(errno)) => return Err(errno),
            }
        }
        Ok(opened)
    }

    fn bound_file(&self) -> &'static CStr {
        if self.version == Version::V1 { c"cpu.cfs_quota_us" } else { c"cpu.max" }
    }

    /// The group may use all processors.
    pub fn lift_bound(&self, group: &str) -> Result<()> {
        let at = self.hierarchies.iter().position(|h| h.controllers.contains(&Controller::Cpu));
        let dirs = self.groups.get(group).ok_or(Errno(libc::ENOENT))?;
        let bound = bound_text(self.version, None);
        write_file(dirs[at.ok_or(Errno(libc::ENODEV))?].as_raw_fd(), c".", self.bound_file(), &bound)
    }
}

/// What a group may use of each period, in microseconds, as the kernel's file takes it.
pub fn bound_text(version: Version, us: Option<u64>) -> String {
    match version {
        Version::V1 => us.map_or("-1".to_string(), |us| us.to_string()),
        Version::V2 => format!("{} {PERIOD_US}", us.map_or("max".to_string(), |us| us.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_as_each_version_takes_it() {
        assert_eq!([None, Some(2500)].map(|us| bound_text(Version::V1, us)), ["-1", "2500"]);
        assert_eq!([None, Some(2500)].map(|us| bound_text(Version::V2, us)), ["max 10000", "2500 10000"]);
    }
}
