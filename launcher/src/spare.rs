//! Inits made ahead of time.
//!
//! Entering a cgroup takes a lock whose writers wait for an RCU grace period, about ten milliseconds on a
//! machine at rest; everything else of a start takes less than one. cgroup v1 has no way to be born in a
//! cgroup (v2 has CLONE_INTO_CGROUP), but it can rename one. So, whenever the loop is idle, a process is
//! made for each group that has lately had a START: in a leaf of its own, in the shared namespaces, in its
//! own PID namespace, waiting. A START then renames the leaf, sets the limits and hands the record with its
//! descriptors over; the spare decodes it as the launcher did. Nothing of a spare is ever used twice.

use crate::cgroup::Leaf;
use crate::error::{Errno, Error};
use crate::factory::Factory;
use crate::init;
use crate::plan::{self, Limits, Plan, Weaken};
use crate::proc::Proc;
use crate::protocol::{self, MESSAGE_MAX, Request};
use crate::sys::{self, socket};
use std::os::fd::{AsRawFd, OwnedFd};

/// In all; beyond it the oldest goes. Each is a small idle process.
pub const SPARES_MAX: usize = 32;
/// Of one group: as many starts may follow each other closely without waiting.
const GROUP_MAX: usize = 4;
/// A leaf is busy for a moment after its process has been waited for. Tried this often, 1 ms apart.
const REMOVE_TRIES: usize = 50;

pub struct Spare {
    group: String,
    pid: i32,
    leaf: Leaf,
    /// Where it will report to.
    report: OwnedFd,
    /// Where it waits for its START.
    order: OwnedFd,
}

impl Factory {
    /// Whether there is something to do for an idle loop.
    pub fn wants_spare(&self) -> bool {
        !self.wanted.is_empty() && self.cgroups.can_rename()
    }

    /// Makes one spare of those wanted. Not having one is never an error.
    pub fn make_spare(&mut self) {
        let Some(group) = self.wanted.pop_front() else { return };
        if self.spares.iter().filter(|spare| spare.group == group).count() >= GROUP_MAX {
            return;
        }
        if self.spares.len() >= SPARES_MAX
            && let Some(oldest) = self.spares.pop_front()
        {
            self.discard(oldest);
        }
        if let Ok(spare) = self.new_spare(group) {
            self.spares.push_back(spare);
        }
    }

    fn new_spare(&mut self, group: String) -> Result<Spare, Error> {
        let (report, reporter) = socket::pair().map_err(Error::Pipe)?;
        socket::ask_credentials(&report).map_err(Error::Pipe)?;
        let (order, orders) = socket::pair().map_err(Error::Pipe)?;
        self.made += 1;
        let name = format!("spare-{}", self.made);
        let (leaf, entries) = self.cgroups.make_leaf(&group, &name, &Limits::of_spare()).map_err(Error::Cgroup)?;
        match sys::fork(libc::CLONE_NEWPID) {
            Ok(0) => self.wait_for_start(&entries, orders, reporter),
            Err(errno) => {
                let _ = self.cgroups.remove_leaf(&leaf);
                Err(Error::Clone(errno))
            }
            Ok(pid) => Ok(Spare { group, pid, leaf, report, order }),
        }
    }

    /// In the spare: enters what all procs share, keeps only what it will need, and waits.
    fn wait_for_start(&self, entries: &[OwnedFd], orders: OwnedFd, report: OwnedFd) -> ! {
        let ready = init::enter(&self.common(), Weaken::default(), entries).and_then(|()| {
            let mut keep = [0; 7];
            keep[..2].copy_from_slice(&self.templates.roots());
            let others = [&self.launcher, &self.status, &self.null, &orders, &report];
            keep[2..].copy_from_slice(&others.map(AsRawFd::as_raw_fd));
            sys::close_all_but(&mut keep).map_err(Error::Descriptors)?;
            sys::wait_readable(orders.as_raw_fd()).map_err(Error::Pipe)
        });
        if ready.is_err() {
            sys::exit(127);
        }
        let mut record = vec![0; MESSAGE_MAX];
        let received = match socket::receive(orders.as_raw_fd(), &mut record) {
            Ok(received) if received.len > 0 => received,
            // Not needed any more.
            _ => sys::exit(0),
        };
        let request = protocol::decode(&record[..received.len]);
        let plan = match request {
            Ok(Request::Start(start)) => plan::plan(start, self.bounds),
            _ => Err(Error::Plan(Errno(libc::EPROTO))),
        };
        match plan {
            Ok(plan) => self.become_init(&plan, received.fds, report, Ok(())),
            Err(error) => init::fail(report.as_raw_fd(), error),
        }
    }

    /// Turns a spare of the plan's group into its proc, if there is one that works.
    pub fn start_spare(&mut self, plan: &Plan, record: &[u8], fds: &[OwnedFd], received: u64) -> Option<Proc> {
        let at = self.spares.iter().position(|spare| spare.group == plan.group)?;
        let mut spare = self.spares.remove(at)?;
        let reused = self.cgroups.reuse_leaf(&mut spare.leaf, &plan.leaf, &plan.limits);
        if reused.and_then(|()| socket::send_with(spare.order.as_raw_fd(), record, fds)).is_err() {
            self.discard(spare);
            return None;
        }
        Some(Proc::new(plan.id, spare.pid, spare.leaf, spare.report, received))
    }

    /// A child that is no proc has been waited for: a spare, if it is one of ours.
    pub fn lost_spare(&mut self, pid: i32) {
        if let Some(at) = self.spares.iter().position(|spare| spare.pid == pid)
            && let Some(spare) = self.spares.remove(at)
        {
            self.remove_spare_leaf(&spare);
        }
    }

    pub fn discard_spares(&mut self) {
        self.wanted.clear();
        for spare in std::mem::take(&mut self.spares) {
            self.discard(spare);
        }
    }

    /// Kills and waits for a spare. Nobody has waited for it before (it is still on the list, or was
    /// until now), so the number cannot have been reused.
    fn discard(&self, spare: Spare) {
        let _ = sys::kill(spare.pid, libc::SIGKILL);
        let _ = sys::wait(spare.pid, true);
        self.remove_spare_leaf(&spare);
    }

    fn remove_spare_leaf(&self, spare: &Spare) {
        for _ in 0..REMOVE_TRIES {
            match self.cgroups.remove_leaf(&spare.leaf) {
                Err(Errno(libc::EBUSY)) => std::thread::sleep(std::time::Duration::from_millis(1)),
                _ => return,
            }
        }
    }
}
