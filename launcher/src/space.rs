//! The PID namespace that all procs of profile `sigma` share, and its init.
//!
//! A namespace for each proc costs 0.1 ms of every start, and its init as much again
//! (docs/adr/0010). What a private one gave is given here by other means: a proc's signals reach
//! its own uid only, calls that name another process are refused by the filter, and the whole of a
//! proc is what is in its cgroup. The shared namespace is left with one task: when the launcher
//! dies, its init does, and with that the kernel kills everything inside.

use crate::calls;
use crate::error::{Errno, Error};
use crate::filter::{Verdict, compile};
use crate::namespaces::{self, Templates};
use crate::sys::{self, cred, mount};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

pub struct Space {
    pub init: i32,
    namespace: OwnedFd,
    /// The launcher's own, to come back to.
    ours: OwnedFd,
}

impl Space {
    /// Makes the namespace. `launcher` is a pidfd of the launcher.
    pub fn make(templates: &Templates, uid: u32, launcher: &OwnedFd) -> Result<Space, Error> {
        let ours = sys::openat(libc::AT_FDCWD, c"/proc/self/ns/pid", libc::O_RDONLY).map_err(Error::Space)?;
        let (ready, reporter) = sys::socket::pair().map_err(Error::Space)?;
        let init = sys::fork(libc::CLONE_NEWPID).map_err(Error::Space)?;
        if init == 0 {
            let report = reporter.as_raw_fd();
            let errno = confine(templates, uid, launcher, report).err().map_or(0, |errno| errno.0);
            let _ = sys::write(report, &errno.to_le_bytes());
            if errno != 0 {
                sys::exit(1);
            }
            let _ = sys::close_range(0, u32::MAX);
            sys::pause();
        }
        drop(reporter);
        let opened = await_ready(&ready).and_then(|()| {
            let path = CString::new(format!("/proc/{init}/ns/pid")).map_err(|_| Errno(libc::EINVAL))?;
            sys::openat(libc::AT_FDCWD, &path, libc::O_RDONLY)
        });
        match opened {
            Ok(namespace) => Ok(Space { init, namespace, ours }),
            Err(errno) => {
                let _ = sys::kill(init, libc::SIGKILL);
                let _ = sys::wait(init, true);
                Err(Error::Space(errno))
            }
        }
    }

    /// Forks a process of the namespace. Returns 0 in it.
    pub fn fork(&self, fork: impl FnOnce() -> sys::Result<i32>) -> sys::Result<i32> {
        mount::setns(&self.namespace, libc::CLONE_NEWPID)?;
        let forked = fork();
        if !matches!(forked, Ok(0)) {
            mount::setns(&self.ours, libc::CLONE_NEWPID)?;
        }
        forked
    }

    /// Ends everything in it.
    pub fn end(&self) {
        let _ = sys::kill(self.init, libc::SIGKILL);
    }
}

fn await_ready(ready: &OwnedFd) -> sys::Result<()> {
    let mut errno = [0; 4];
    match sys::read(ready.as_raw_fd(), &mut errno)? {
        4 => match i32::from_le_bytes(errno) {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        },
        _ => Err(Errno(libc::ECHILD)),
    }
}

/// Nothing here depends on what procs do, so PID 1 needs no right but to sleep.
fn confine(templates: &Templates, uid: u32, launcher: &OwnedFd, report: i32) -> sys::Result<()> {
    // All procs would end with it. Without the right to lower its score (rootless), its size must
    // protect it.
    let score = sys::openat(libc::AT_FDCWD, c"/proc/self/oom_score_adj", libc::O_WRONLY);
    let _ = score.and_then(|score| sys::write(score.as_raw_fd(), b"-900"));
    namespaces::enter(&templates.network, libc::CLONE_NEWNET)?;
    namespaces::enter(&templates.ipc, libc::CLONE_NEWIPC)?;
    namespaces::enter(&templates.uts, libc::CLONE_NEWUTS)?;
    namespaces::enter(&templates.empty_root, libc::CLONE_NEWNS)?;
    sys::setsid()?;
    sys::reset_signals()?;
    sys::ignore_children();
    sys::close_all_but(&mut [report, launcher.as_raw_fd()])?;
    cred::drop_groups()?;
    cred::drop_bounding()?;
    cred::lock_securebits()?;
    cred::set_gid(uid)?;
    cred::set_uid(uid)?;
    cred::drop_capabilities()?;
    cred::set_no_new_privs()?;
    cred::set_undumpable()?;
    // The change of uid has cleared the death signal, so it comes after.
    cred::set_death_signal()?;
    if sys::readable(launcher.as_raw_fd())? {
        return Err(Errno(libc::ESRCH));
    }
    sys::seccomp(&compile(calls::SPACE_INIT, Verdict::Kill, 0))
}
