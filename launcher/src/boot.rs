//! What sigmad is started with: data directories, programs, the ready descriptor.

use crate::config::Config;
use crate::error::{Errno, Error};
use crate::fuse::Fuse;
use crate::plan::{self, Bounds, Plan};
use crate::sys;
use std::ffi::{CStr, CString};
use std::fs::{File, Permissions};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

/// The group of sigmad's own cgroup, which no START can have, nor one below it.
pub const GROUP: &str = "rest/launcher";

/// What this instance may grant.
pub fn bounds(config: &Config) -> Bounds {
    match &config.rootless {
        Some(rootless) => Bounds::rootless(rootless.uids, config.weaken),
        None => Bounds::new(config.instance_number, config.weaken),
    }
}

/// The sockets that listen for others than this machine's own programs.
pub struct Listening<'a> {
    /// For other machines.
    pub machines: Option<&'a TcpListener>,
    /// For programs with a credential of a realm.
    pub realm: Option<&'a OwnedFd>,
}

/// The plan for sigmad and its descriptors in the order of a START, among them the socket from
/// which it takes its control sockets, and the one on which it says that the system is ready. How
/// many deaths there were of late it tells on.
pub fn sigmad(
    config: &Config,
    bounds: Bounds,
    keeper: OwnedFd,
    ready: OwnedFd,
    fuse: Option<&Fuse>,
    listening: Listening,
    deaths: u32,
) -> Result<(Plan, Vec<OwnedFd>), Error> {
    let data = open_data(config).map_err(Error::Data)?;
    let mut programs = Vec::new();
    for (index, program) in config.programs.iter().enumerate() {
        let file = sys::openat(libc::AT_FDCWD, &program.path, libc::O_RDONLY).map_err(Error::Program)?;
        let name = CString::new(program.name.as_str()).map_err(|_| Error::Data(Errno(libc::EINVAL)))?;
        let uid = bounds.base + 1 + index as u32;
        // The user is not root outside, and reaches the admin sockets as the group of sigmad's
        // directory. Nobody else of that group comes that far: the directory above is the user's
        // alone.
        let (gid, mode) = match &config.rootless {
            Some(_) if index == config.sigmad() => (0, 0o2750),
            _ => (uid, 0o700),
        };
        let dir = own_directory(&data, &name, uid, gid, mode).map_err(Error::Data)?;
        programs.push((program.name.as_str(), file, dir));
    }
    let (_, program, dir) = programs.remove(config.sigmad());

    let mut fds = vec![program, dir];
    let mut targets = Vec::new();
    for (number, target) in [(1, 1), (2, 2)] {
        // A launcher without stdout or stderr leaves these to the null device.
        if let Ok(copy) = sys::dup_above(number, 3) {
            fds.push(copy);
            targets.push(target);
        }
    }
    fds.extend([keeper, ready]);
    targets.extend([3, 4]);

    let names: Vec<&str> = programs.iter().map(|(name, _, _)| *name).collect();
    let mut argv = arguments(config, &names.join(","));
    if deaths > 0 {
        argv.extend([CString::from(c"--deaths"), CString::new(deaths.to_string()).unwrap_or_default()]);
    }
    let mut next = 5;
    for (_, file, dir) in programs {
        fds.extend([file, dir]);
        targets.extend([next, next + 1]);
        next += 2;
    }
    let mut binfs = None;
    if let Some(fuse) = fuse {
        fds.extend([copy(&fuse.device).map_err(Error::Data)?, copy(&fuse.root).map_err(Error::Data)?]);
        targets.extend([next, next + 1]);
        binfs = Some(next + 1);
        argv.extend([CString::from(c"--fuse"), CString::new(next.to_string()).unwrap_or_default()]);
        next += 2;
    }
    if let Some(listener) = listening.machines {
        fds.push(copy(listener).map_err(Error::Listen)?);
        targets.push(next);
        argv.extend([CString::from(c"--listen"), CString::new(next.to_string()).unwrap_or_default()]);
        next += 1;
    }
    if let Some(realm) = listening.realm {
        fds.push(copy(realm).map_err(Error::Listen)?);
        targets.push(next);
        argv.extend([CString::from(c"--realm-socket"), CString::new(next.to_string()).unwrap_or_default()]);
    }
    Ok((plan::sigmad(bounds, config.sigmad() as u32, targets, binfs, argv), fds))
}

fn copy(fd: &impl AsRawFd) -> sys::Result<OwnedFd> {
    sys::dup_above(fd.as_raw_fd(), 3)
}

fn arguments(config: &Config, programs: &str) -> Vec<CString> {
    let text = |s: &str| CString::new(s).unwrap_or_default();
    let mut argv = vec![text("sigmad"), text("--machine"), config.machine.clone()];
    argv.extend(["--instance", &config.instance, "--programs", programs].map(text));
    if let Some(rootless) = &config.rootless {
        argv.extend(["--rootless", &rootless.uids.to_string()].map(text));
    }
    if config.weaken {
        argv.push(text("--weaken"));
    }
    argv.extend(config.told.iter().cloned());
    argv
}

/// The socket on which other machines reach sigmad, whichever sigmad there is.
pub fn listen(config: &Config) -> Result<Option<TcpListener>, Error> {
    let Some(address) = config.listen else { return Ok(None) };
    let listener = TcpListener::bind(address).and_then(|l| l.set_nonblocking(true).map(|()| l));
    listener.map(Some).map_err(|err| Error::Listen(err.into()))
}

/// Takes a descriptor that came by number, which must not leak into every child.
pub fn claim(fd: RawFd) -> Result<OwnedFd, Error> {
    sys::set_cloexec(fd).map_err(|_| Error::Usage("a descriptor of the command line is not open"))?;
    // SAFETY: `sigma up` opened it for us under this number; nobody else here uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn open_data(config: &Config) -> sys::Result<OwnedFd> {
    let data = File::from(sys::openat(libc::AT_FDCWD, &config.data, libc::O_RDONLY | libc::O_DIRECTORY)?);
    // Whoever else owns it could exchange what is in it under our hands.
    if data.metadata()?.uid() != 0 { Err(Errno(libc::EPERM)) } else { Ok(data.into()) }
}

/// Makes a program's directory and gives it to its owner; returns it as O_PATH. Never follows a
/// link.
pub fn own_directory(data: &OwnedFd, name: &CStr, uid: u32, gid: u32, mode: u32) -> sys::Result<OwnedFd> {
    match sys::mkdirat(data.as_raw_fd(), name, 0o700) {
        Ok(()) | Err(Errno(libc::EEXIST)) => {}
        Err(errno) => return Err(errno),
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let dir = File::from(sys::openat(data.as_raw_fd(), name, flags)?);
    fchown(&dir, Some(uid), Some(gid))?;
    dir.set_permissions(Permissions::from_mode(mode))?;
    sys::openat(dir.as_raw_fd(), c".", libc::O_PATH | libc::O_DIRECTORY)
}
