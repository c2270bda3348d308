//! Stops all processes of a proc where they are.
//!
//! In v2 that is a file of the leaf. In v1 it is a hierarchy of its own, which costs a start
//! nothing: only when somebody asks, the proc's processes are moved into a cgroup there. Where
//! there is no such hierarchy they are stopped by a signal, which a proc can notice.

use super::{Cgroups, Leaf, Version, kill_members, make, remove_tree, write_file};
use crate::error::Errno;
use crate::sys::{self, Result};
use std::path::{Path, PathBuf};

/// Rounds in which no new process is found must come before: frozen processes fork no more.
const ROUNDS: usize = 64;

/// How a leaf's processes are kept from running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hold {
    /// v2.
    Leaf,
    /// v1: in this cgroup.
    Apart(PathBuf),
    Signals,
}

/// A leaf that has ever been frozen.
#[derive(Debug)]
pub(super) struct Frozen {
    hold: Hold,
    now: bool,
}

impl Cgroups {
    /// Stops what is in the leaf, beside its seed. It is no error if it is stopped.
    pub fn freeze(&self, leaf: &mut Leaf, seed: Option<i32>) -> Result<()> {
        let hold = match &leaf.frozen {
            Some(frozen) => frozen.hold.clone(),
            None => self.hold(leaf)?,
        };
        leaf.frozen = Some(Frozen { hold: hold.clone(), now: true });
        let stopped = match &hold {
            Hold::Leaf => self.write_freeze(leaf, "1"),
            Hold::Apart(path) => std::fs::write(path.join("freezer.state"), "FROZEN")
                .map_err(Errno::from)
                .and_then(|()| self.each_member(leaf, seed, |pid| move_into(path, pid))),
            Hold::Signals => self.each_member(leaf, seed, |pid| sys::kill(pid, libc::SIGSTOP)),
        };
        if stopped.is_err() {
            let _ = self.thaw(leaf, seed);
        }
        stopped
    }

    /// Lets go on what was stopped. It is no error if nothing was.
    pub fn thaw(&self, leaf: &mut Leaf, seed: Option<i32>) -> Result<()> {
        let Some(frozen) = leaf.frozen.as_mut().filter(|frozen| frozen.now) else { return Ok(()) };
        frozen.now = false;
        match &frozen.hold {
            Hold::Leaf => self.write_freeze(leaf, "0"),
            Hold::Apart(path) => std::fs::write(path.join("freezer.state"), "THAWED").map_err(Errno::from),
            Hold::Signals => self.each_member(leaf, seed, |pid| sys::kill(pid, libc::SIGCONT)),
        }
    }

    /// Forgets that a leaf was frozen, once nothing of its proc is left. EBUSY: something is.
    pub(super) fn unhold(&self, leaf: &mut Leaf) -> Result<()> {
        if let Some(Frozen { hold: Hold::Apart(path), .. }) = &leaf.frozen
            && let Err(err) = std::fs::remove_dir(path)
            && err.kind() != std::io::ErrorKind::NotFound
        {
            return Err(err.into());
        }
        leaf.frozen = None;
        Ok(())
    }

    fn hold(&self, leaf: &Leaf) -> Result<Hold> {
        match (&self.freezer, self.version) {
            _ if !self.exist() => Err(Errno(libc::EOPNOTSUPP)),
            (_, Version::V2) => Ok(Hold::Leaf),
            (None, Version::V1) => Ok(Hold::Signals),
            (Some(freezer), Version::V1) => {
                // One level, and a name that no other leaf has.
                let name = format!("{}-{}", leaf.group.replace('/', "."), leaf.name.to_string_lossy());
                let root = freezer.join(&self.name);
                make(&root)?;
                let path = root.join(name);
                make(&path)?;
                Ok(Hold::Apart(path))
            }
        }
    }

    fn write_freeze(&self, leaf: &Leaf, value: &str) -> Result<()> {
        let dir = self.dir_of(leaf, super::Controller::Pids).ok_or(Errno(libc::ENODEV))?;
        write_file(dir, &leaf.name, c"cgroup.freeze", value)
    }

    /// Does something to every process of the leaf, until there are none to which it was not done.
    fn each_member(&self, leaf: &Leaf, seed: Option<i32>, act: impl Fn(i32) -> Result<()>) -> Result<()> {
        let mut done = std::collections::HashSet::new();
        for _ in 0..ROUNDS {
            let members = self.members(leaf)?;
            let new: Vec<i32> = members.into_iter().filter(|pid| Some(*pid) != seed && done.insert(*pid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for pid in new {
                match act(pid) {
                    Ok(()) | Err(Errno(libc::ESRCH)) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Err(Errno(libc::EAGAIN))
    }
}

fn move_into(path: &Path, pid: i32) -> Result<()> {
    std::fs::write(path.join("cgroup.procs"), pid.to_string()).map_err(Errno::from)
}

/// Removes what a dead instance left. Nothing that is frozen there could die, and nothing shall run
/// again: it is killed first, which takes effect when it is thawed.
pub(super) fn sweep(root: &Path) -> Result<()> {
    release(root);
    remove_tree(root)
}

fn release(path: &Path) {
    kill_members(path);
    let _ = std::fs::write(path.join("freezer.state"), "THAWED");
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            release(&entry.path());
        }
    }
}
