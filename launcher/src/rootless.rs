//! Rootless mode: the launcher of an ordinary user, root in a user namespace of its own only.
//!
//! Who makes a user namespace may map no uid but its own into it. The rest of the range is mapped
//! by newuidmap, a set-uid program that checks /etc/subuid; `sigma up` calls it, since the launcher
//! executes nothing but procs. So the launcher says when the namespace is there, and when it is
//! told that it is mapped executes itself: only a program that was executed in a namespace has
//! memory that belongs to it, and so is its root's to look after.

use crate::error::{Errno, Error};
use crate::sys::{self, cred, mount};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rootless {
    /// A socket, whose other end `sigma up` holds. None: the namespace has been made and mapped.
    pub fd: Option<RawFd>,
    /// The uids from 1 on that will be mapped.
    pub uids: u32,
    /// A cgroup of version 2 whose subtree is the user's. None: no cgroup holds anything to a
    /// limit.
    pub cgroup: Option<CString>,
}

/// Makes the user namespace, and a mount namespace that belongs to it, waits until it is mapped,
/// and executes this program anew in it. Does nothing the second time.
pub fn enter(rootless: &Rootless) -> Result<(), Error> {
    let Some(fd) = rootless.fd else { return Ok(()) };
    // SAFETY: `sigma up` opened it for us under this number; nobody else here uses it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let entered = mount::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).and_then(|()| {
        sys::write(socket.as_raw_fd(), b"m")?;
        match sys::read(socket.as_raw_fd(), &mut [0])? {
            1 => Ok(()),
            _ => Err(Errno(libc::ECANCELED)),
        }
    });
    // The groups of the user are not mapped, and procs must not have them.
    entered.and_then(|()| cred::drop_groups()).map_err(Error::UserNamespace)?;
    drop(socket);
    let cgroup = rootless.cgroup.as_ref().map(|path| path.to_string_lossy()).unwrap_or_default();
    let again = format!("0:{}:{cgroup}", rootless.uids);
    let own = std::env::current_exe().map_err(|err| Error::UserNamespace(err.into()))?;
    // The last of the same flags holds.
    let args = std::env::args_os().skip(1).chain(["--rootless".into(), again.into()]);
    Err(Error::UserNamespace(Command::new(own).args(args).exec().into()))
}
