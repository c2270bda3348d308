//! The file system through which sigmad shows programs whose bytes are not all there yet (binfs).
//!
//! Only root may mount, so the keeper does, once: a mount that is attached nowhere, so that no path
//! leads to it. sigmad gets the device, on which it answers the kernel's requests, and the mount's
//! root, beneath which it opens programs. The keeper itself never looks into it: each look would
//! wait for sigmad.

use crate::error::Errno;
use crate::sys::{self, Result, mount};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

/// Both stay open as long as the keeper lives, so that what pages from them outlives a sigmad.
pub struct Fuse {
    pub device: OwnedFd,
    pub root: OwnedFd,
}

impl Fuse {
    /// Fails where the kernel has no FUSE, or lets this root not mount it.
    pub fn mount() -> Result<Fuse> {
        let device = sys::openat(libc::AT_FDCWD, c"/dev/fuse", libc::O_RDWR | libc::O_NONBLOCK)?;
        let number = CString::new(device.as_raw_fd().to_string()).map_err(|_| Errno(libc::EINVAL))?;
        let context = mount::Context::open(c"fuse")?;
        context.set(c"source", c"sigma-binfs")?;
        context.set(c"subtype", c"sigma")?;
        context.set(c"fd", &number)?;
        context.set(c"rootmode", c"40555")?;
        context.set(c"user_id", c"0")?;
        context.set(c"group_id", c"0")?;
        // Procs have uids of their own. What they may do is said by the mode of the file, which
        // nobody can write.
        context.flag(c"allow_other")?;
        let root = context.mount(libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV)?;
        Ok(Fuse { device, root })
    }
}
