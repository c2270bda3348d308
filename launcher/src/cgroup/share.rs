//! What groups of leaves have beside one another: weight, of I/O too, a bound of processor time,
//! and whether they run only in what others leave. Which group has what is sigmad's to say
//! (docs/adr/0021).

use super::{Cgroups, Controller, Hierarchy, Setting, Version, shares_of, write_file};
use crate::boot::GROUP;
use crate::error::Errno;
use crate::plan::{check_group, legal_shares};
use crate::protocol::GroupShare;
use crate::sys::Result;
use std::ffi::CString;
use std::os::fd::AsRawFd;

/// Over which a quota counts. Shorter ones cost more switches, longer ones let a group that has
/// used its quota up stand still for longer.
const PERIOD_US: u64 = 100_000;

impl Cgroups {
    /// Gives a group its share, and makes it if it is not there. Files that the kernel lacks are
    /// passed over: no share is a protection, and an LC proc beside an old kernel's group is better
    /// than none.
    pub fn share_group(&mut self, share: &GroupShare) -> Result<()> {
        let group = match &share.group[..] {
            own if own == GROUP.as_bytes() => GROUP.to_string(),
            group => check_group(group).map_err(|_| Errno(libc::EINVAL))?,
        };
        self.open_group(&group)?;
        let at = |h: &Hierarchy| h.controllers.contains(&Controller::Cpu);
        let Some(at) = self.hierarchies.iter().position(at) else { return Ok(()) };
        let dir = self.groups[&group][at].as_raw_fd();
        // The directory is open as a path; a file in it is named from there.
        let here = CString::new(".").map_err(|_| Errno(libc::EINVAL))?;
        for setting in settings(self.version, share) {
            match write_file(dir, &here, setting.file, &setting.value) {
                Err(Errno(libc::ENOENT)) if setting.optional => {}
                result => result?,
            }
        }
        Ok(())
    }
}

fn settings(version: Version, share: &GroupShare) -> Vec<Setting> {
    let set = |file, value: String, optional| Setting { controller: Controller::Cpu, file, value, optional };
    let shares = legal_shares(share.cpu_shares);
    let quota = (share.quota_milli > 0).then(|| share.quota_milli as u64 * PERIOD_US / 1000);
    // The kernel refuses a weight for what is idle.
    let mut out = vec![set(c"cpu.idle", "0".into(), true)];
    match version {
        Version::V1 => {
            out.push(shares_of(version, shares));
            out.push(set(c"cpu.cfs_period_us", PERIOD_US.to_string(), true));
            out.push(set(c"cpu.cfs_quota_us", quota.map_or("-1".into(), |us| us.max(1000).to_string()), true));
        }
        Version::V2 => {
            out.push(shares_of(version, shares));
            let quota = quota.map_or("max".to_string(), |us| us.max(1000).to_string());
            out.push(set(c"cpu.max", format!("{quota} {PERIOD_US}"), true));
            // Of I/O it has the same part, where the kernel weighs that. All controllers are in one
            // directory.
            let weight = (shares as u64 * 100 / 1024).clamp(1, 10_000);
            out.push(set(c"io.weight", weight.to_string(), true));
            out.push(set(c"io.bfq.weight", weight.min(1000).to_string(), true));
        }
    }
    if share.idle != 0 {
        out.push(set(c"cpu.idle", "1".into(), true));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_gets_weight_quota_and_class() {
        let share = |cpu_shares, quota_milli, idle| GroupShare { cpu_shares, quota_milli, idle, group: b"be".to_vec() };
        let show = |version, share: GroupShare| -> Vec<String> {
            settings(version, &share).iter().map(|s| format!("{}={}", s.file.to_str().unwrap(), s.value)).collect()
        };
        let v1 = ["cpu.idle=0", "cpu.shares=2048", "cpu.cfs_period_us=100000", "cpu.cfs_quota_us=50000"];
        assert_eq!(show(Version::V1, share(2048, 500, 0)), v1);
        let v2 = ["cpu.idle=0", "cpu.weight=1", "cpu.max=max 100000", "io.weight=1", "io.bfq.weight=1", "cpu.idle=1"];
        assert_eq!(show(Version::V2, share(1, 0, 1)), v2);
        assert_eq!(show(Version::V1, share(u32::MAX, 1, 0))[1], "cpu.shares=262144");
        assert_eq!(show(Version::V1, share(0, 1, 0))[3], "cpu.cfs_quota_us=1000", "the kernel takes no less");
    }
}
