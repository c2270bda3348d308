//! Turns a START into a checked plan: pure, so that it is tested without root.

use crate::error::{Errno, Error};
use crate::protocol::Start;
use std::ffi::CString;

/// Every instance owns this many uids; a rootless one may have fewer.
pub const UIDS: u32 = 1 << 20;
/// The first of them that a proc may have; below are init and the programs.
pub const PROC_FIRST: u32 = 1024;
/// The last one below is the placer's, which no program may have.
pub const PLACER: u32 = PROC_FIRST - 1;
/// The id under which the keeper runs sigmad.
pub const SIGMAD_ID: u64 = u64::MAX;

/// What a zero in the message stands for: everything has a limit.
const PIDS_DEFAULT: u32 = 4096;
const NOFILE_DEFAULT: u32 = 1024;
const SHARES_DEFAULT: u32 = 1024;
/// Far above use, below what would let a proc exhaust the machine's process ids or file table.
const PIDS_LIMIT: u32 = 65_536;
const NOFILE_LIMIT: u32 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Profile {
    /// For programs made for sigmaOS.
    #[default]
    Sigma,
    /// For unmodified programs.
    Linux,
    /// For our own services.
    System,
}

/// Protections that an attack test may take off, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weaken(pub u32);

impl Weaken {
    pub const SECCOMP: u32 = 1;
    pub const LANDLOCK: u32 = 2;
    pub const MOUNTS: u32 = 4;
    pub const NETWORK: u32 = 8;
    pub const PIDS: u32 = 16;
    pub const UID: u32 = 32;
    pub const CAPABILITIES: u32 = 64;
    pub const NO_NEW_PRIVS: u32 = 128;
    pub const PROGRAM_FD: u32 = 256;
    const ALL: u32 = 511;

    pub fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

/// What the cgroups enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub pids: u32,
    /// None: no limit.
    pub memory: Option<u64>,
    pub cpu_shares: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub id: u64,
    pub profile: Profile,
    pub weaken: Weaken,
    /// 0: one of the launcher's choice.
    pub uid: u32,
    pub gid: u32,
    /// The cgroup's path below the instance's, without the leaf.
    pub group: String,
    pub leaf: String,
    /// Below the data directory; made for `uid` if it is missing. Profile system only.
    pub subdir: Option<CString>,
    pub limits: Limits,
    pub nofile: u32,
    pub targets: Vec<i32>,
    /// The target that is the root of binfs, beneath which sigmad may read.
    pub binfs: Option<i32>,
    pub argv: Vec<CString>,
    pub envp: Vec<CString>,
}

impl Plan {
    /// How many descriptors the message must carry.
    pub fn descriptors(start: &Start) -> usize {
        1 + (start.profile == 1) as usize + start.targets.len()
    }
}

/// What this launcher may grant.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The first uid of the instance.
    pub base: u32,
    /// How many it has.
    pub uids: u32,
    pub weaken: bool,
}

impl Bounds {
    pub fn new(instance: u32, weaken: bool) -> Bounds {
        Bounds { base: 0x4000_0000 + (instance % 1024) * UIDS, uids: UIDS, weaken }
    }

    /// In a user namespace 0 is the user, and these follow.
    pub fn rootless(uids: u32, weaken: bool) -> Bounds {
        Bounds { base: 1, uids, weaken }
    }

    pub fn is_rootless(&self) -> bool {
        self.base == 1
    }
}

pub fn plan(start: Start, bounds: Bounds) -> Result<Plan, Error> {
    let weaken = check_weaken(start.weaken, bounds)?;
    if start.id == SIGMAD_ID {
        return refuse(libc::EINVAL);
    }
    let profile = match start.profile {
        0 => Profile::Sigma,
        1 => Profile::System,
        2 => Profile::Linux,
        _ => return refuse(libc::EINVAL),
    };
    check_ids(profile, start.uid, start.gid, bounds)?;
    let group = check_group(&start.group)?;
    let targets = check_targets(&start.targets)?;
    if start.argv.is_empty() || start.pids_max > PIDS_LIMIT || start.nofile > NOFILE_LIMIT {
        return refuse(libc::EINVAL);
    }
    Ok(Plan {
        id: start.id,
        profile,
        weaken,
        uid: start.uid,
        gid: start.gid,
        group,
        leaf: start.id.to_string(),
        subdir: check_subdir(profile, start.subdir)?,
        limits: Limits {
            pids: or_default(start.pids_max, PIDS_DEFAULT),
            memory: (start.memory_max != 0).then_some(start.memory_max),
            cpu_shares: legal_shares(start.cpu_shares),
        },
        nofile: or_default(start.nofile, NOFILE_DEFAULT),
        targets,
        binfs: None,
        argv: c_strings(start.argv)?,
        envp: c_strings(start.envp)?,
    })
}

/// The kernel refuses shares outside of this range, which must not fail a start.
pub fn legal_shares(shares: u32) -> u32 {
    or_default(shares, SHARES_DEFAULT).clamp(2, 262_144)
}

impl Limits {
    /// What holds in a cgroup that has just been made.
    pub fn of_kernel() -> Limits {
        Limits { pids: u32::MAX, memory: None, cpu_shares: SHARES_DEFAULT }
    }
}

/// The plan by which the keeper starts sigmad: `targets` are the numbers its descriptors get.
pub fn sigmad(bounds: Bounds, index: u32, targets: Vec<i32>, binfs: Option<i32>, argv: Vec<CString>) -> Plan {
    Plan {
        id: SIGMAD_ID,
        profile: Profile::System,
        weaken: Weaken(0),
        uid: bounds.base + 1 + index,
        gid: bounds.base + 1 + index,
        group: crate::boot::GROUP.into(),
        leaf: "sigmad".into(),
        subdir: None,
        limits: Limits { pids: PIDS_DEFAULT, memory: None, cpu_shares: SHARES_DEFAULT },
        // sigmad holds sockets of every proc of the machine.
        nofile: NOFILE_LIMIT,
        targets,
        binfs,
        argv,
        envp: Vec::new(),
    }
}

fn refuse<T>(errno: i32) -> Result<T, Error> {
    Err(Error::Plan(Errno(errno)))
}

fn or_default(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

fn check_weaken(bits: u32, bounds: Bounds) -> Result<Weaken, Error> {
    let weaken = Weaken(bits);
    if bits != 0 && !bounds.weaken {
        return Err(Error::Weaken(Errno(libc::EPERM)));
    }
    if bits & !Weaken::ALL != 0 {
        return Err(Error::Weaken(Errno(libc::EINVAL)));
    }
    // The kernel takes a filter or a Landlock domain only from a process that set NO_NEW_PRIVS or
    // has CAP_SYS_ADMIN, so this bit makes sense only with both off or with capabilities kept.
    let filters_off = Weaken::SECCOMP | Weaken::LANDLOCK;
    let possible = bits & filters_off == filters_off || weaken.has(Weaken::CAPABILITIES);
    if weaken.has(Weaken::NO_NEW_PRIVS) && !possible {
        return Err(Error::Weaken(Errno(libc::EINVAL)));
    }
    Ok(weaken)
}

fn check_ids(profile: Profile, uid: u32, gid: u32, bounds: Bounds) -> Result<(), Error> {
    let procs = bounds.base + PROC_FIRST..bounds.base + bounds.uids;
    let programs = bounds.base + 1..bounds.base + PLACER;
    let legal = match profile {
        Profile::Sigma | Profile::Linux => (uid == 0 || procs.contains(&uid)) && procs.contains(&gid),
        Profile::System => programs.contains(&uid) && (programs.contains(&gid) || procs.contains(&gid)),
    };
    if legal { Ok(()) } else { refuse(libc::ERANGE) }
}

/// One path element of `[a-z0-9-]{1,63}`, so neither `..` nor a path; or none.
fn check_subdir(profile: Profile, subdir: Vec<u8>) -> Result<Option<CString>, Error> {
    if subdir.is_empty() {
        return Ok(None);
    }
    if profile != Profile::System || subdir.contains(&b'/') || check_group(&subdir).is_err() {
        return refuse(libc::EINVAL);
    }
    CString::new(subdir).map(Some).or_else(|_| refuse(libc::EINVAL))
}

pub fn check_group(group: &[u8]) -> Result<String, Error> {
    let legal = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    let elements: Vec<&[u8]> = group.split(|byte| *byte == b'/').collect();
    let each = |element: &&[u8]| (1..=63).contains(&element.len()) && element.iter().all(legal);
    let own: Vec<&[u8]> = crate::boot::GROUP.as_bytes().split(|byte| *byte == b'/').collect();
    if elements.len() > 4 || !elements.iter().all(each) || elements.starts_with(&own) {
        return refuse(libc::EINVAL);
    }
    Ok(String::from_utf8_lossy(group).into_owned())
}

/// Numbers that descriptors may get: 0..64, none twice.
pub fn check_targets(targets: &[u32]) -> Result<Vec<i32>, Error> {
    let mut seen = 0u64;
    for target in targets {
        if *target > 63 || seen & (1 << target) != 0 {
            return refuse(libc::EBADF);
        }
        seen |= 1 << target;
    }
    Ok(targets.iter().map(|target| *target as i32).collect())
}

pub fn c_strings(strings: Vec<Vec<u8>>) -> Result<Vec<CString>, Error> {
    let convert = |bytes| CString::new(bytes).or_else(|_| refuse(libc::EINVAL));
    strings.into_iter().map(convert).collect()
}

#[cfg(test)]
#[path = "plan_test.rs"]
mod tests;
