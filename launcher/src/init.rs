//! PID 1 of a process tree with a PID namespace of its own (a system program's, a weakened
//! start's): enters the namespaces, forks the program's process, gives up every right, reaps
//! orphans, reports the program's status and ends, upon which the kernel kills the rest.

use crate::boot::own_directory;
use crate::cgroup::Entry;
use crate::child::{self, Launch, Report};
use crate::error::{Errno, Error};
use crate::namespaces::{self, Templates};
use crate::plan::{Profile, Weaken};
use crate::status::{News, Status};
use crate::sys::{self, cred};
use std::convert::Infallible;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Where init keeps its two descriptors after everything else is closed.
const REPORT_FD: RawFd = 0;
const STATUS_FD: RawFd = 1;

/// What every init shares with the launcher.
pub struct Common<'a> {
    pub templates: &'a Templates,
    /// The uid of every init.
    pub uid: u32,
    /// The launcher itself: getppid says nothing across a PID namespace.
    pub launcher: &'a OwnedFd,
    /// Whether the launcher's own bounding set has something in it: asking for each capability in
    /// each process would take longer than a fork.
    pub bounding: bool,
    /// The write end of the pipe on which every init reports its program's status.
    pub status: &'a OwnedFd,
}

/// Takes the newly cloned process into the cgroups and the namespaces that all procs share, and
/// ties its life to the launcher's.
pub fn enter(common: &Common, weaken: Weaken, cgroups: &Entry) -> Result<(), Error> {
    // The limits hold from here on, also for the memory and time of being made.
    if let Entry::Files(files) = cgroups {
        for procs in files {
            sys::write(procs.as_raw_fd(), b"0").map_err(Error::EnterCgroup)?;
        }
    }
    if !weaken.has(Weaken::NETWORK) {
        namespaces::enter(&common.templates.network, libc::CLONE_NEWNET).map_err(Error::Namespaces)?;
    }
    namespaces::enter(&common.templates.ipc, libc::CLONE_NEWIPC).map_err(Error::Namespaces)?;
    namespaces::enter(&common.templates.uts, libc::CLONE_NEWUTS).map_err(Error::Namespaces)?;
    die_with(common.launcher)
}

/// When the machine's memory is gone the kernel kills who has most of it: a proc, and be it a small
/// one, rather than a service of all. Set here, where the host's /proc is still to be seen; the
/// program inherits it.
pub fn prefer_when_memory_is_gone() -> sys::Result<()> {
    let score = sys::openat(libc::AT_FDCWD, c"/proc/self/oom_score_adj", libc::O_WRONLY)?;
    sys::write(score.as_raw_fd(), b"800").map(drop)
}

/// Does the rest, once the process has entered, and never returns to the launcher's code.
pub fn run(launch: &Launch, common: &Common, entered: Result<(), Error>) -> ! {
    let report = launch.report.as_raw_fd();
    let Err(error) = entered.and_then(|()| prepare(launch, common));
    fail(report, error)
}

/// Reports why there will be no program, and ends.
pub fn fail(report: RawFd, error: Error) -> ! {
    let _ = sys::write(report, &Report::Failed(error).encode());
    sys::exit(127)
}

/// Makes the program's process and gives up every right. Returns only if there is no such process.
fn prepare(launch: &Launch, common: &Common) -> Result<Infallible, Error> {
    if launch.plan.profile != Profile::System {
        prefer_when_memory_is_gone().map_err(Error::Limits)?;
    }
    enter_root(launch, common.templates)?;
    sys::reset_signals().map_err(Error::Signals)?;
    if !launch.plan.weaken.has(Weaken::CAPABILITIES) {
        // For both. It does not take from init what it has, only what exec could give.
        drop_bounding(common).map_err(Error::Bounding)?;
    }
    let init = sys::getpid();
    let main = match sys::fork(0).map_err(Error::Fork)? {
        0 => child::run(launch, init),
        main => main,
    };
    // The report socket must stay open until init is confined: its end means "started".
    let mut report = launch.report.as_raw_fd();
    if let Err(errno) = confine(launch, common, &mut report) {
        fail(report, Error::InitConfine(errno));
    }
    if !launch.plan.weaken.has(Weaken::SECCOMP)
        && let Err(errno) = sys::seccomp(launch.init_filter)
    {
        fail(report, Error::InitConfine(errno));
    }
    // SAFETY: the number is ours alone; the OwnedFd of the launcher's copy lies elsewhere and is
    // closed.
    unsafe { libc::close(REPORT_FD) };
    serve(launch.key, main)
}

fn drop_bounding(common: &Common) -> sys::Result<()> {
    if common.bounding { cred::drop_bounding() } else { Ok(()) }
}

fn enter_root(launch: &Launch, templates: &Templates) -> Result<(), Error> {
    if launch.plan.weaken.has(Weaken::MOUNTS) {
        return Ok(());
    }
    match (launch.plan.profile, &launch.data) {
        (Profile::System, Some(data)) => {
            let data = match &launch.plan.subdir {
                Some(name) => {
                    &own_directory(data, name, launch.plan.uid, launch.plan.gid, 0o700).map_err(Error::Data)?
                }
                None => data,
            };
            // A copy of a mount can be taken only in the namespace it lies in, hence before leaving
            // it.
            let tree = namespaces::data_tree(data.as_raw_fd()).map_err(Error::DataTree)?;
            namespaces::enter_system_root(templates, &tree).map_err(Error::Mounts)
        }
        (Profile::System, None) => Err(Error::DataTree(Errno(libc::EBADF))),
        (Profile::Sigma | Profile::Linux, _) => {
            namespaces::enter(&templates.empty_root, libc::CLONE_NEWNS).map_err(Error::Namespaces)
        }
    }
}

/// Dies with the launcher, also when it died between the clone and this call.
fn die_with(launcher: &OwnedFd) -> Result<(), Error> {
    cred::set_death_signal().map_err(Error::DeathSignal)?;
    match sys::readable(launcher.as_raw_fd()).map_err(Error::DeathSignal)? {
        true => Err(Error::DeathSignal(Errno(libc::ESRCH))),
        false => Ok(()),
    }
}

fn confine(launch: &Launch, common: &Common, report: &mut RawFd) -> sys::Result<()> {
    // Parked above first, so that neither overwrites the other.
    let parked = (sys::dup_above(*report, 64)?, sys::dup_above(common.status.as_raw_fd(), 64)?);
    let launcher = sys::dup_above(common.launcher.as_raw_fd(), 64)?;
    sys::dup3(parked.0.as_raw_fd(), REPORT_FD, libc::O_CLOEXEC)?;
    sys::dup3(parked.1.as_raw_fd(), STATUS_FD, libc::O_CLOEXEC)?;
    *report = REPORT_FD;
    sys::dup3(launcher.as_raw_fd(), 2, libc::O_CLOEXEC)?;
    for parked in [parked.0, parked.1, launcher] {
        // close_range closes them; dropping them later would close somebody else's number.
        std::mem::forget(parked);
    }
    sys::close_range(3, u32::MAX)?;
    cred::drop_groups()?;
    drop_bounding(common)?;
    cred::lock_securebits()?;
    cred::set_gid(common.uid)?;
    cred::set_uid(common.uid)?;
    cred::drop_capabilities()?;
    cred::set_no_new_privs()?;
    cred::set_undumpable()?;
    // The change of uid has cleared the death signal.
    cred::set_death_signal()?;
    if sys::readable(2)? {
        return Err(Errno(libc::ESRCH));
    }
    sys::close_range(2, 2)?;
    if launch.plan.weaken.has(Weaken::PIDS) {
        // Without a namespace of its own, init adopts orphans by asking for it.
        sys::prctl(libc::PR_SET_CHILD_SUBREAPER, [1, 0, 0, 0])?;
    }
    Ok(())
}

/// Waits for the program, reaping orphans, and passes its status on.
fn serve(key: u64, main: i32) -> ! {
    loop {
        match sys::wait(-1, true) {
            Ok(Some(waited)) if waited.pid == main => {
                let status = Status { key, news: News::Ended(waited.status) };
                let _ = sys::write(STATUS_FD, &status.encode());
                sys::exit(0);
            }
            Ok(_) | Err(Errno(libc::EINTR)) => {}
            Err(_) => sys::exit(1),
        }
    }
}
