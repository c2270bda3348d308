//! Mounts and namespaces.

use super::{Result, call, check, own};
use libc::{c_int, c_long, c_ulong};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

pub fn unshare(flags: c_int) -> Result<()> {
    // SAFETY: unshare takes flags only.
    check(unsafe { libc::unshare(flags) } as c_long).map(drop)
}

pub fn setns(fd: &OwnedFd, kind: c_int) -> Result<()> {
    // SAFETY: setns takes plain numbers.
    check(unsafe { libc::setns(fd.as_raw_fd(), kind) } as c_long).map(drop)
}

pub fn set_host_name(name: &str) -> Result<()> {
    // SAFETY: pointer and length are those of one live string.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) } as c_long).map(drop)
}

/// The old mount call; None stands for a null pointer.
pub fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: c_ulong,
    data: Option<&CStr>,
) -> Result<()> {
    let pointer = |s: Option<&CStr>| s.map_or(std::ptr::null(), CStr::as_ptr);
    let (source, kind, data) = (pointer(source), pointer(kind), pointer(data));
    // SAFETY: every pointer is null, where the kernel allows it, or to a terminated string.
    check(unsafe { libc::mount(source, target.as_ptr(), kind, flags, data.cast()) } as c_long).map(drop)
}

/// Makes the current directory the root and detaches what was the root.
pub fn enter_root() -> Result<()> {
    let here = c".".as_ptr() as usize;
    // SAFETY: both paths are the terminated string ".", under which the old root stacks on the new.
    unsafe { call(libc::SYS_pivot_root, [here, here, 0, 0, 0]) }?;
    // SAFETY: the path is terminated.
    check(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) } as c_long)?;
    super::chdir(c"/")
}

/// A detached copy of the mount of a directory, rooted there.
pub fn clone_tree(dir: RawFd) -> Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE as usize | libc::OPEN_TREE_CLOEXEC as usize | libc::AT_EMPTY_PATH as usize;
    // SAFETY: the path is terminated and empty, so that only the descriptor counts.
    unsafe { call(libc::SYS_open_tree, [dir as usize, c"".as_ptr() as usize, flags, 0, 0]) }.map(own)
}

/// Adds attributes to a detached mount. (A bind mount takes none when it is made.)
pub fn restrict_tree(tree: &OwnedFd, attributes: u64) -> Result<()> {
    let attr = [attributes, 0, libc::MS_PRIVATE, 0u64];
    let flags = libc::AT_EMPTY_PATH as usize;
    let args = [tree.as_raw_fd() as usize, c"".as_ptr() as usize, flags, attr.as_ptr() as usize, 32];
    // SAFETY: struct mount_attr is four u64 (set, clear, propagation, user namespace), as passed.
    unsafe { call(libc::SYS_mount_setattr, args) }.map(drop)
}

/// Attaches a detached mount at a path.
pub fn attach_tree(tree: &OwnedFd, path: &CStr) -> Result<()> {
    let here = libc::AT_FDCWD as usize;
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH as usize;
    let args = [tree.as_raw_fd() as usize, c"".as_ptr() as usize, here, path.as_ptr() as usize, flags];
    // SAFETY: both paths are terminated.
    unsafe { call(libc::SYS_move_mount, args) }.map(drop)
}

/// A file system that is being configured.
pub struct Context(OwnedFd);

const FSOPEN_CLOEXEC: usize = 1;
const FSMOUNT_CLOEXEC: usize = 1;
const FSCONFIG_SET_FLAG: usize = 0;
const FSCONFIG_SET_STRING: usize = 1;
const FSCONFIG_CMD_CREATE: usize = 6;

impl Context {
    pub fn open(kind: &CStr) -> Result<Context> {
        // SAFETY: the name is terminated.
        unsafe { call(libc::SYS_fsopen, [kind.as_ptr() as usize, FSOPEN_CLOEXEC, 0, 0, 0]) }.map(own).map(Context)
    }

    pub fn set(&self, key: &CStr, value: &CStr) -> Result<()> {
        self.configure(FSCONFIG_SET_STRING, Some(key), Some(value))
    }

    pub fn flag(&self, key: &CStr) -> Result<()> {
        self.configure(FSCONFIG_SET_FLAG, Some(key), None)
    }

    /// Makes it, and a mount of it that is attached nowhere.
    pub fn mount(&self, attributes: u64) -> Result<OwnedFd> {
        self.configure(FSCONFIG_CMD_CREATE, None, None)?;
        let args = [self.0.as_raw_fd() as usize, FSMOUNT_CLOEXEC, attributes as usize, 0, 0];
        // SAFETY: the call takes plain numbers.
        unsafe { call(libc::SYS_fsmount, args) }.map(own)
    }

    fn configure(&self, command: usize, key: Option<&CStr>, value: Option<&CStr>) -> Result<()> {
        let pointer = |s: Option<&CStr>| s.map_or(0, |s| s.as_ptr() as usize);
        let args = [self.0.as_raw_fd() as usize, command, pointer(key), pointer(value), 0];
        // SAFETY: the pointers are null, where the command takes none, or to terminated strings.
        unsafe { call(libc::SYS_fsconfig, args) }.map(drop)
    }
}
