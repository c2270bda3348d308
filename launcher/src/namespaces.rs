//! The template namespaces: made once, held by descriptors, shared by every proc.
//!
//! A helper process makes them and is then killed, so that nothing of them is ever mounted on the
//! host and the kernel frees everything with the last descriptor. The network, IPC and UTS
//! namespaces are empty and nobody inside has a capability to change them.

use crate::error::{Errno, Error};
use crate::sys::{self, mount};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

type Result<T> = std::result::Result<T, Errno>;

pub struct Templates {
    pub network: OwnedFd,
    pub ipc: OwnedFd,
    pub uts: OwnedFd,
    /// An empty read-only root.
    pub empty_root: OwnedFd,
    /// A read-only root with the mount point /data and a /dev/null: each start takes a copy.
    pub system_root: OwnedFd,
}

const HOST_NAME: &str = "sigma";
/// The directory under which a system program finds its data.
pub const DATA: &CStr = c"/data";
pub const DEV_NULL: &CStr = c"/dev/null";

impl Templates {
    /// `place` is any directory; the helpers mount over it in namespaces of their own.
    pub fn make(place: &CString) -> std::result::Result<Templates, Error> {
        let all = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWNS;
        let names = [c"ns/net", c"ns/ipc", c"ns/uts", c"ns/mnt"];
        let sigma = || {
            mount::unshare(all)?;
            mount::set_host_name(HOST_NAME)?;
            make_root(place, false)
        };
        let system = || {
            mount::unshare(libc::CLONE_NEWNS)?;
            make_root(place, true)
        };
        let [network, ipc, uts, empty_root] = in_helper(sigma, names).map_err(Error::Template)?;
        let [system_root] = in_helper(system, [c"ns/mnt"]).map_err(Error::Template)?;
        Ok(Templates { network, ipc, uts, empty_root, system_root })
    }
}

/// Runs `work` in a helper process and opens the helper's namespaces by name.
fn in_helper<const N: usize>(work: impl Fn() -> Result<()>, names: [&CStr; N]) -> Result<[OwnedFd; N]> {
    let (report, reporter) = sys::socket::pair()?;
    let pid = sys::fork(0)?;
    if pid == 0 {
        let errno = work().err().map_or(0, |errno| errno.0);
        let _ = sys::write(reporter.as_raw_fd(), &errno.to_le_bytes());
        // Blocks until the launcher has the descriptors and kills us, or until it is gone.
        drop(report);
        let _ = sys::read(reporter.as_raw_fd(), &mut [0]);
        sys::exit(0);
    }
    drop(reporter);
    let opened = open_namespaces(&report, pid, names);
    let _ = sys::kill(pid, libc::SIGKILL);
    sys::wait(pid, true)?;
    opened
}

fn open_namespaces<const N: usize>(report: &OwnedFd, pid: i32, names: [&CStr; N]) -> Result<[OwnedFd; N]> {
    let mut errno = [0; 4];
    if sys::read(report.as_raw_fd(), &mut errno)? != 4 {
        return Err(Errno(libc::ECHILD));
    }
    match i32::from_le_bytes(errno) {
        0 => {}
        errno => return Err(Errno(errno)),
    }
    let path = CString::new(format!("/proc/{pid}")).map_err(|_| Errno(libc::EINVAL))?;
    let dir = sys::openat(libc::AT_FDCWD, &path, libc::O_PATH | libc::O_DIRECTORY)?;
    let opened = names.map(|name| sys::openat(dir.as_raw_fd(), name, libc::O_RDONLY));
    let mut out = Vec::with_capacity(N);
    for fd in opened {
        out.push(fd?);
    }
    out.try_into().map_err(|_| Errno(libc::EIO))
}

/// Mounts a read-only tmpfs over `place` and makes it the root.
fn make_root(place: &CString, system: bool) -> Result<()> {
    let fixed = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // Nothing of what follows may propagate to the host.
    mount::mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)?;
    mount::mount(Some(c"sigma"), place, Some(c"tmpfs"), fixed, Some(c"size=64k,nr_inodes=16,mode=0555"))?;
    sys::chdir(place)?;
    if system {
        let here = libc::AT_FDCWD;
        sys::umask(0);
        sys::mkdirat(here, c"data", 0o555)?;
        sys::mkdirat(here, c"dev", 0o555)?;
        // A bind mount needs a mount point of its own kind: any file.
        // SAFETY: the path is terminated; mknod of a regular file takes no device.
        sys::check(unsafe { libc::mknod(c"dev/null".as_ptr(), libc::S_IFREG | 0o444, 0) } as libc::c_long)?;
        bind_null()?;
    }
    mount::mount(None, c".", None, libc::MS_REMOUNT | libc::MS_RDONLY | fixed, None)?;
    mount::enter_root()
}

/// The host's null device, read-only as a file, which does not stop writing to a device.
fn bind_null() -> Result<()> {
    let device = sys::openat(libc::AT_FDCWD, DEV_NULL, libc::O_PATH)?;
    let tree = mount::clone_tree(device.as_raw_fd())?;
    mount::restrict_tree(&tree, libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC)?;
    mount::attach_tree(&tree, c"dev/null")
}

/// Enters one template namespace.
pub fn enter(namespace: &OwnedFd, kind: i32) -> Result<()> {
    mount::setns(namespace, kind)
}

/// Makes a private copy of the system root with the data directory, taken from the host before, in
/// it.
pub fn enter_system_root(templates: &Templates, tree: &OwnedFd) -> Result<()> {
    enter(&templates.system_root, libc::CLONE_NEWNS)?;
    mount::unshare(libc::CLONE_NEWNS)?;
    mount::attach_tree(tree, DATA)
}

/// The data directory's mount as a system program sees it. Must be called in the host's mount
/// namespace.
pub fn data_tree(dir: RawFd) -> Result<OwnedFd> {
    let tree = mount::clone_tree(dir)?;
    // Not NOEXEC: a descriptor of sigmad's program cache is what a proc executes. The system
    // profile itself has no exec in its filter.
    mount::restrict_tree(&tree, libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV)?;
    Ok(tree)
}
