//! What the program's process goes through between fork and exec, in the document's order.

use crate::calls::PROGRAM_FD;
use crate::error::{Errno, Error};
use crate::landlock::{Abi, Rules};
use crate::namespaces::{DATA, DEV_NULL};
use crate::plan::{Plan, Profile, Weaken};
use crate::sys::{self, Pointers, cred};
use libc::sock_filter;
use std::convert::Infallible;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Where the report socket lies while the process is made; close-on-exec.
const REPORT_FD: RawFd = 1001;
/// Descriptors are first moved to here or above, so that targets do not overwrite sources.
const PARKING: RawFd = 1002;

const MEMLOCK_BYTES: u64 = 64 * 1024;

/// Everything a start needs, made before the clone.
pub struct Launch<'a> {
    pub plan: &'a Plan,
    pub argv: Pointers<'a>,
    pub envp: Pointers<'a>,
    pub program: OwnedFd,
    pub data: Option<OwnedFd>,
    /// (number now, number in the program): the targets', perhaps followed by ones for 0, 1 and 2.
    pub fds: Vec<(RawFd, RawFd)>,
    pub report: OwnedFd,
    pub filter: &'a [sock_filter],
    pub init_filter: &'a [sock_filter],
    pub abi: Abi,
}

/// A record on the report socket: what, which step, errno, when. Fits any pipe or socket at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// Contained at this time; only exec is left.
    Contained(u64),
    Failed(Error),
}

impl Report {
    pub const BYTES: usize = 16;

    pub fn encode(self) -> [u8; Report::BYTES] {
        let (step, errno, time) = match self {
            Report::Contained(time) => (0u32, 0i32, time),
            Report::Failed(error) => (error.number() as u32, error.errno(), 0),
        };
        let mut out = [0; Report::BYTES];
        out[0..4].copy_from_slice(&step.to_le_bytes());
        out[4..8].copy_from_slice(&errno.to_le_bytes());
        out[8..16].copy_from_slice(&time.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8; Report::BYTES]) -> Report {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        match word(0) {
            0 => Report::Contained(word(8) as u64 | (word(12) as u64) << 32),
            step => Report::Failed(Error::from_record(step as u16, word(4) as i32)),
        }
    }
}

/// Becomes the program, or reports why not and ends.
pub fn run(launch: &mut Launch, init: i32) -> ! {
    let mut report = launch.report.as_raw_fd();
    let Err(error) = become_program(launch, init, &mut report);
    let _ = sys::write(report, &Report::Failed(error).encode());
    sys::exit(127)
}

fn become_program(launch: &mut Launch, init: i32, report: &mut RawFd) -> Result<Infallible, Error> {
    let weaken = launch.plan.weaken;
    sys::setsid().map_err(Error::Session)?;
    place_descriptors(launch, report).map_err(Error::Descriptors)?;
    sys::umask(0o077);
    sys::chdir(c"/").map_err(Error::Directory)?;
    sys::reset_signals().map_err(Error::Signals)?;
    // The rules are made while there is room for descriptors and a right to look at /data.
    let rules = match weaken.has(Weaken::LANDLOCK) {
        true => None,
        false => Some(make_rules(launch).map_err(Error::LandlockRules)?),
    };
    set_limits(launch.plan).map_err(Error::Limits)?;
    drop_privileges(launch.plan)?;
    // A change of credentials clears the death signal, so it comes after. Init cannot be missed: the
    // kernel kills this process with it, as it does every member of init's namespace.
    cred::set_death_signal().map_err(Error::DeathSignal)?;
    if sys::getppid() != init {
        return Err(Error::DeathSignal(Errno(libc::ESRCH)));
    }
    if let Some(rules) = rules {
        rules.restrict().map_err(Error::Landlock)?;
    }
    if !weaken.has(Weaken::SECCOMP) {
        sys::seccomp(launch.filter).map_err(Error::Seccomp)?;
    }
    let contained = Report::Contained(sys::monotonic_ns()).encode();
    sys::write(*report, &contained).map_err(Error::Exec)?;
    Err(Error::Exec(sys::exec(PROGRAM_FD, &launch.argv, &launch.envp)))
}

/// Moves the passed descriptors to their targets and closes everything else.
fn place_descriptors(launch: &mut Launch, report: &mut RawFd) -> sys::Result<()> {
    // First out of the way of targets, program and report; parked copies are closed below.
    let park = |fd: RawFd| sys::dup_above(fd, PARKING).map(std::os::fd::IntoRawFd::into_raw_fd);
    let program = park(launch.program.as_raw_fd())?;
    *report = park(*report)?;
    for (source, _) in &mut launch.fds {
        *source = park(*source)?;
    }
    sys::dup3(*report, REPORT_FD, libc::O_CLOEXEC)?;
    *report = REPORT_FD;
    let flags = if launch.plan.weaken.has(Weaken::PROGRAM_FD) { 0 } else { libc::O_CLOEXEC };
    sys::dup3(program, PROGRAM_FD, flags)?;
    let mut kept = 0u64;
    for (source, target) in &launch.fds {
        sys::dup3(*source, *target, 0)?;
        kept |= 1 << target;
    }
    let mut first = 0;
    for target in (0..64).filter(|target| kept & (1 << target) != 0) {
        if target > first {
            sys::close_range(first, target - 1)?;
        }
        first = target + 1;
    }
    sys::close_range(first, PROGRAM_FD as u32 - 1)?;
    sys::close_range(PARKING as u32, u32::MAX)
}

fn make_rules(launch: &Launch) -> sys::Result<Rules> {
    let rules = Rules::new(launch.abi)?;
    rules.allow_program(PROGRAM_FD)?;
    if launch.plan.profile == Profile::System {
        rules.allow_data(&sys::openat(libc::AT_FDCWD, DATA, libc::O_PATH)?)?;
        rules.allow_device(&sys::openat(libc::AT_FDCWD, DEV_NULL, libc::O_PATH)?)?;
    }
    Ok(rules)
}

fn set_limits(plan: &Plan) -> sys::Result<()> {
    sys::set_limit(libc::RLIMIT_CORE as i32, 0)?;
    sys::set_limit(libc::RLIMIT_NOFILE as i32, plan.nofile as u64)?;
    sys::set_limit(libc::RLIMIT_NPROC as i32, plan.limits.pids as u64)?;
    sys::set_limit(libc::RLIMIT_MEMLOCK as i32, MEMLOCK_BYTES)?;
    Ok(())
}

fn drop_privileges(plan: &Plan) -> Result<(), Error> {
    let weaken = plan.weaken;
    let keep = weaken.has(Weaken::CAPABILITIES);
    if !weaken.has(Weaken::UID) {
        cred::drop_groups().map_err(Error::Groups)?;
    }
    if keep {
        cred::keep_capabilities().map_err(Error::Capabilities)?;
    } else {
        cred::drop_bounding().map_err(Error::Bounding)?;
        cred::lock_securebits().map_err(Error::Securebits)?;
    }
    if !weaken.has(Weaken::UID) {
        cred::set_gid(plan.gid).map_err(Error::Gid)?;
        cred::set_uid(plan.uid).map_err(Error::Uid)?;
    }
    match keep {
        true => cred::raise_capabilities().map_err(Error::Capabilities)?,
        false => cred::drop_capabilities().map_err(Error::Capabilities)?,
    }
    if !weaken.has(Weaken::NO_NEW_PRIVS) {
        cred::set_no_new_privs().map_err(Error::NoNewPrivs)?;
    }
    cred::set_undumpable().map_err(Error::Dumpable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_socket() {
        let failed = Report::Failed(Error::Seccomp(Errno(libc::EINVAL)));
        for report in [Report::Contained(0x1234_5678_9abc_def0), failed] {
            assert_eq!(Report::decode(&report.encode()), report);
        }
    }
}
