//! A group that is held to its share (parts.rs), as the placer sees and moves it.

use crate::cgroup::{Version, shares_text, text_of, value_of};
use crate::plan::legal_shares;
use crate::sys::{self, Result};
use std::os::fd::{AsRawFd, OwnedFd};

/// What a group of leaves has used and weighs.
pub struct GroupMeter {
    version: Version,
    used: OwnedFd,
    weight: OwnedFd,
}

impl GroupMeter {
    pub fn new(version: Version, [used, weight]: [OwnedFd; 2]) -> GroupMeter {
        GroupMeter { version, used, weight }
    }

    /// Processor time of all that ever ran in it, in nanoseconds. None: it is gone.
    pub fn used(&self) -> Option<u64> {
        match self.version {
            Version::V1 => text_of(&self.used, |text| text.trim().parse().ok()),
            Version::V2 => text_of(&self.used, |text| value_of(text, "usage_usec ")).map(|us: u64| us * 1000),
        }
    }

    /// Changes what it weighs, until it is given a share again.
    pub fn weigh(&self, shares: u32) -> Result<()> {
        sys::write(self.weight.as_raw_fd(), shares_text(self.version, legal_shares(shares)).as_bytes()).map(drop)
    }
}
