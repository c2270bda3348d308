//! What the program's process of a tree of its own goes through between fork and exec, in the
//! document's order. A seat's is made by a seed (seed.rs).

use crate::calls::{PROGRAM_FD, RULES_FD};
use crate::error::{Errno, Error};
use crate::landlock::{Abi, Reach, Rules};
use crate::namespaces::{DATA, DEV_NULL};
use crate::plan::{Plan, Profile, SIGMAD_ID, Weaken};
use crate::sys::{self, Pointers, cred};
use libc::sock_filter;
use std::convert::Infallible;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

/// Where the report socket lies while the process is made; close-on-exec.
const REPORT_FD: RawFd = 1001;
/// Descriptors are first moved to here or above, so that targets do not overwrite sources.
pub const ASIDE: RawFd = RULES_FD + 1;

const MEMLOCK_BYTES: u64 = 64 * 1024;

/// How large a proc can make a file by a descriptor: sigma.WriteDescriptorMax, on which quotas
/// rely.
const FILE_BYTES: u64 = 1 << 30;

/// Everything a start needs, made before the clone.
pub struct Launch<'a> {
    pub plan: &'a Plan,
    /// By which init's status record is known.
    pub key: u64,
    /// What the filter asks execveat for.
    pub secret: u64,
    pub program: Program<'a>,
    pub data: Option<OwnedFd>,
    pub null: RawFd,
    pub report: OwnedFd,
    pub filter: &'a [sock_filter],
    pub init_filter: &'a [sock_filter],
    pub abi: Abi,
}

pub struct Program<'a> {
    pub file: OwnedFd,
    pub argv: Pointers<'a>,
    pub envp: Pointers<'a>,
    /// (number now, number in the program).
    pub fds: Vec<(RawFd, RawFd)>,
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
pub fn run(launch: &Launch, init: i32) -> ! {
    let mut report = launch.report.as_raw_fd();
    let Err(error) = become_program(launch, init, &mut report);
    let _ = sys::write(report, &Report::Failed(error).encode());
    sys::exit(127)
}

fn become_program(launch: &Launch, init: i32, report: &mut RawFd) -> Result<Infallible, Error> {
    let weaken = launch.plan.weaken;
    sys::setsid().map_err(Error::Session)?;
    place_descriptors(launch, report).map_err(Error::Descriptors)?;
    sys::umask(0o077);
    sys::chdir(c"/").map_err(Error::Directory)?;
    // The rules are made while there is room for descriptors and a right to look at /data.
    let rules =
        (!weaken.has(Weaken::LANDLOCK)).then(|| make_rules(launch)).transpose().map_err(Error::LandlockRules)?;
    set_limits(launch.plan).map_err(Error::Limits)?;
    sys::set_limit(libc::RLIMIT_NPROC as i32, launch.plan.limits.pids as u64).map_err(Error::Limits)?;
    drop_privileges(launch.plan)?;
    // A change of credentials clears the death signal, so it comes after. Init cannot be missed:
    // the kernel kills this process with it, as it does every member of init's namespace.
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
    execute(*report, &launch.program.argv, &launch.program.envp, launch.secret)
}

fn execute(report: RawFd, argv: &Pointers, envp: &Pointers, secret: u64) -> Result<Infallible, Error> {
    let contained = Report::Contained(sys::monotonic_ns()).encode();
    sys::write(report, &contained).map_err(Error::Exec)?;
    Err(Error::Exec(sys::exec(PROGRAM_FD, argv, envp, secret)))
}

/// Moves the passed descriptors to their targets and closes everything else.
fn place_descriptors(launch: &Launch, report: &mut RawFd) -> sys::Result<()> {
    // First out of the way of targets, program and report; copies put aside are closed below.
    let aside = |fd: RawFd| sys::dup_above(fd, ASIDE).map(IntoRawFd::into_raw_fd);
    *report = aside(*report)?;
    let null = aside(launch.null)?;
    let program = aside(launch.program.file.as_raw_fd())?;
    let flags = if launch.plan.weaken.has(Weaken::PROGRAM_FD) { 0 } else { libc::O_CLOEXEC };
    let fds = launch.program.fds.as_slice();
    let mut moves = fds.to_vec();
    for (source, _) in &mut moves {
        *source = aside(*source)?;
    }
    // A hole among 0, 1 and 2 would be filled by the first file that the program opens.
    let holes: Vec<_> = (0..3).filter(|hole| !fds.iter().any(|(_, target)| target == hole)).collect();
    moves.extend(holes.into_iter().map(|hole| (null, hole)));
    sys::dup3(*report, REPORT_FD, libc::O_CLOEXEC)?;
    *report = REPORT_FD;
    sys::dup3(program, PROGRAM_FD, flags)?;
    for (source, target) in &moves {
        sys::dup3(*source, *target, 0)?;
    }
    let mut keep: Vec<RawFd> = moves.iter().map(|(_, target)| *target).collect();
    keep.extend([REPORT_FD, PROGRAM_FD]);
    sys::close_all_but(&mut keep)
}

fn make_rules(launch: &Launch) -> sys::Result<Rules> {
    let reach = if launch.plan.id == SIGMAD_ID { Reach::Machines } else { Reach::Nothing };
    let rules = Rules::new(launch.abi, reach)?;
    rules.allow_program(PROGRAM_FD)?;
    if launch.plan.profile == Profile::System {
        rules.allow_data(&sys::openat(libc::AT_FDCWD, DATA, libc::O_PATH)?)?;
        rules.allow_device(&sys::openat(libc::AT_FDCWD, DEV_NULL, libc::O_PATH)?)?;
        if let Some(binfs) = launch.plan.binfs {
            rules.allow_reading(binfs)?;
        }
    }
    Ok(rules)
}

/// All but that on processes. All of it is inherited, which counts those of a uid.
pub fn set_limits(plan: &Plan) -> sys::Result<()> {
    // Not 0, which the kernel ignores where dumps are piped to a program of the host (core(5)): 1
    // means none there too.
    sys::set_limit(libc::RLIMIT_CORE as i32, 1)?;
    sys::set_limit(libc::RLIMIT_NOFILE as i32, plan.nofile as u64)?;
    sys::set_limit(libc::RLIMIT_MEMLOCK as i32, MEMLOCK_BYTES)?;
    if plan.profile != Profile::System {
        sys::set_limit(libc::RLIMIT_FSIZE as i32, FILE_BYTES)?;
    }
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
