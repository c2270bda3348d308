//! Where an instance's cgroups are.

use super::{CONTROLLERS, Hierarchy, Version, among, find, find_freezer};
use crate::error::{Errno, Error};
use crate::rootless::Rootless;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where an instance has its cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// At the top of what is mounted.
    Top,
    /// In a subtree of version 2 that belongs to the user.
    Beneath(PathBuf),
    /// Nowhere: no limits hold but the processes' own. Only what the operator chose by name.
    None,
}

impl Place {
    pub fn of(rootless: Option<&Rootless>) -> Place {
        match rootless.map(|rootless| &rootless.cgroup) {
            None => Place::Top,
            Some(Some(path)) => Place::Beneath(PathBuf::from(std::ffi::OsStr::from_bytes(path.to_bytes()))),
            Some(None) => Place::None,
        }
    }

    /// Where v1's freezer is. In v2 every cgroup has one.
    pub(super) fn freezer(&self) -> Option<PathBuf> {
        match self {
            Place::Top => find_freezer(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()),
            _ => None,
        }
    }

    pub(super) fn hierarchies(&self) -> std::result::Result<(Version, Vec<Hierarchy>), Error> {
        let controllers_of = |path: &Path| std::fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
        let found = match self {
            Place::Top => {
                let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| Error::Cgroup(e.into()))?;
                find(&mounts, controllers_of)
            }
            Place::Beneath(path) => {
                let controllers = among(&controllers_of(path).split_whitespace().collect::<Vec<_>>());
                let all = controllers.len() == CONTROLLERS.len();
                all.then(|| (Version::V2, vec![Hierarchy { path: path.clone(), controllers }]))
            }
            Place::None => Some((Version::V1, Vec::new())),
        };
        found.ok_or(Error::Cgroup(Errno(libc::ENODEV)))
    }
}
