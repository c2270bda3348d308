//! Landlock domains, by the raw calls, since a rule on one file's descriptor is needed.
//!
//! Every right that the kernel's ABI knows is handled, so that a right without a rule is denied.

use crate::error::Errno;
use crate::sys::{Result, call, own};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
const BIND_TCP: u64 = 1;
const CONNECT_TCP: u64 = 1 << 1;

/// What a domain may connect TCP sockets to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Nothing,
    /// Whatever it holds a socket for: sigmad, which gets its sockets from the keeper.
    Machines,
}

/// What this kernel's Landlock can do. The oldest supported kernel, 6.1, has ABI 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abi(pub u32);

const ABI_MIN: u32 = 2;

/// struct landlock_ruleset_attr; older kernels take a shorter one.
#[repr(C)]
struct RulesetAttr {
    fs: u64,
    net: u64,
    scoped: u64,
}

/// struct landlock_path_beneath_attr.
#[repr(C, packed)]
struct PathAttr {
    allowed: u64,
    parent: i32,
}

impl Abi {
    /// Asks the kernel; an error when Landlock is absent, switched off or too old.
    pub fn detect() -> Result<Abi> {
        // SAFETY: a null attribute with the version flag only asks.
        let abi = unsafe { call(libc::SYS_landlock_create_ruleset, [0, 0, 1, 0, 0]) }? as u32;
        if abi < ABI_MIN { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(Abi(abi)) }
    }

    fn fs(self) -> u64 {
        match self.0 {
            ..3 => (1 << 14) - 1,
            3..5 => (1 << 15) - 1,
            _ => (1 << 16) - 1,
        }
    }

    fn attr(self, reach: Reach) -> (RulesetAttr, usize) {
        let net = match (self.0, reach) {
            (..4, _) => 0,
            (_, Reach::Nothing) => BIND_TCP | CONNECT_TCP,
            (_, Reach::Machines) => BIND_TCP,
        };
        let scoped = if self.0 >= 6 { 0b11 } else { 0 };
        let size = match self.0 {
            ..4 => 8,
            4..6 => 16,
            _ => 24,
        };
        (RulesetAttr { fs: self.fs(), net, scoped }, size)
    }
}

/// A ruleset that is not yet in force.
pub struct Rules {
    abi: Abi,
    ruleset: OwnedFd,
}

impl Rules {
    pub fn new(abi: Abi, reach: Reach) -> Result<Rules> {
        let (attr, size) = abi.attr(reach);
        let args = [&raw const attr as usize, size, 0, 0, 0];
        // SAFETY: the attribute is a live local of at least the size passed.
        let ruleset = unsafe { call(libc::SYS_landlock_create_ruleset, args) }.map(own)?;
        Ok(Rules { abi, ruleset })
    }

    /// The program itself may be executed, and read, since the kernel opens what it executes for
    /// reading.
    pub fn allow_program(&self, file: RawFd) -> Result<()> {
        self.add(file, EXECUTE | READ_FILE)
    }

    /// Everything but EXECUTE beneath a directory.
    pub fn allow_data(&self, dir: &OwnedFd) -> Result<()> {
        self.add(dir.as_raw_fd(), self.abi.fs() & !EXECUTE)
    }

    /// Reading the files beneath a directory, and nothing else of them.
    pub fn allow_reading(&self, dir: RawFd) -> Result<()> {
        self.add(dir, READ_FILE)
    }

    /// Reading and writing one device.
    pub fn allow_device(&self, file: &OwnedFd) -> Result<()> {
        let rights = (WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV) & self.abi.fs();
        self.add(file.as_raw_fd(), rights)
    }

    fn add(&self, fd: RawFd, allowed: u64) -> Result<()> {
        let attr = PathAttr { allowed, parent: fd };
        let args = [self.ruleset.as_raw_fd() as usize, 1, &raw const attr as usize, 0, 0];
        // SAFETY: rule type 1 reads a path_beneath attribute, which is a live local.
        unsafe { call(libc::SYS_landlock_add_rule, args) }.map(drop)
    }

    /// Puts the rules in force for this process and its children.
    pub fn restrict(self) -> Result<()> {
        restrict_by(self.ruleset.as_raw_fd())
    }

    /// The ruleset, to be put in force by another process.
    pub fn descriptor(&self) -> RawFd {
        self.ruleset.as_raw_fd()
    }
}

/// Puts the rules of a descriptor in force for this process and its children.
pub fn restrict_by(ruleset: RawFd) -> Result<()> {
    // SAFETY: the call takes plain numbers.
    unsafe { call(libc::SYS_landlock_restrict_self, [ruleset as usize, 0, 0, 0, 0]) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_abi_handles_what_it_knows() {
        let sizes: Vec<_> = (2..8).map(|abi| (Abi(abi).fs().count_ones(), Abi(abi).attr(Reach::Nothing).1)).collect();
        assert_eq!(sizes, [(14, 8), (15, 8), (15, 16), (16, 16), (16, 24), (16, 24)]);
        assert_eq!(Abi(3).attr(Reach::Machines).0.net, 0);
        assert_eq!(Abi(4).attr(Reach::Nothing).0.net, 3);
        assert_eq!(Abi(4).attr(Reach::Machines).0.net, 1, "sockets are bound by the keeper alone");
        assert_eq!(Abi(5).attr(Reach::Nothing).0.scoped, 0);
        assert_eq!(Abi(7).attr(Reach::Nothing).0.scoped, 3);
    }
}
