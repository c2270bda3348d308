//! Starts process trees: holds what all starts share, and does for each what precedes the clone.

use crate::calls;
use crate::cgroup::{Cgroups, Entry, Leaf, Usage};
use crate::child::{Launch, Program, Task};
use crate::error::{Errno, Error};
use crate::filter::{Verdict, compile};
use crate::init::{self, Common};
use crate::landlock::{Abi, Rules};
use crate::namespaces::Templates;
use crate::parking::{self, Need, Parked, Parking, Purpose};
use crate::plan::{Bounds, Limits, Plan, Profile, Weaken};
use crate::proc::{Proc, Tree};
use crate::sys::{self, Pointers, socket};
use crate::uids::Uids;
use libc::sock_filter;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

/// Cgroup leaves of idle groups that are removed at a time: some milliseconds of work.
const TRIM: usize = 32;

pub struct Factory {
    pub cgroups: Cgroups,
    templates: Templates,
    abi: Abi,
    sigma_filter: Vec<sock_filter>,
    system_filter: Vec<sock_filter>,
    init_filter: Vec<sock_filter>,
    bounds: Bounds,
    /// A pidfd of the launcher, by which a new init sees whether it came too late.
    launcher: OwnedFd,
    status: OwnedFd,
    null: OwnedFd,
    uids: Uids,
    parking: Parking<Parked>,
    /// Killed before they were procs, and not yet waited for, by init's pid.
    leaving: HashMap<i32, (Leaf, u32)>,
    /// Process trees so far, by which they are known on the status pipe.
    made: u64,
}

impl Factory {
    /// `status` is the write end of the pipe on which inits report.
    pub fn new(cgroups: Cgroups, place: &CString, bounds: Bounds, status: OwnedFd) -> Result<Factory, Error> {
        let refused = Verdict::Errno(libc::EPERM);
        let templates = Templates::make(place)?;
        // What the launcher executes itself needs no capabilities but a weakened start's. So that each process
        // need not, it drops them from the bounding set for all.
        if !bounds.weaken {
            sys::cred::drop_bounding().map_err(Error::Bounding)?;
        }
        Ok(Factory {
            cgroups,
            templates,
            abi: Abi::detect().map_err(Error::LandlockRules)?,
            sigma_filter: compile(&calls::sigma(), refused),
            system_filter: compile(&calls::system(), refused),
            init_filter: compile(calls::INIT, Verdict::Kill),
            bounds,
            launcher: sys::pidfd_open(sys::getpid()).map_err(Error::Init)?,
            status,
            null: sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR).map_err(Error::Descriptors)?,
            uids: Uids::new(bounds),
            parking: Parking::new(),
            leaving: HashMap::new(),
            made: 0,
        })
    }

    /// Starts a plan with the descriptors that came with it: the program, the data directory of a
    /// system program, the targets'. They are closed here in any case. `record` is the START itself.
    pub fn start(&mut self, plan: Plan, record: &[u8], fds: Vec<OwnedFd>, received: u64) -> Result<Proc, Error> {
        match Purpose::of(&plan) {
            Some(purpose) => self.start_parked(&plan, &purpose, record, fds, received),
            None => self.start_anew(plan, fds, received),
        }
    }

    /// Hands a START to a parked child of its purpose, or to one that is made for it.
    fn start_parked(
        &mut self,
        plan: &Plan,
        purpose: &Purpose,
        record: &[u8],
        fds: Vec<OwnedFd>,
        received: u64,
    ) -> Result<Proc, Error> {
        let rules = Rules::new(self.abi).map_err(Error::LandlockRules)?;
        rules.allow_program(fds[0].as_raw_fd()).map_err(Error::LandlockRules)?;
        let order: Vec<RawFd> = [rules.descriptor()].into_iter().chain(fds.iter().map(AsRawFd::as_raw_fd)).collect();
        let mut waiting = self.parking.take(purpose, &plan.limits, received);
        loop {
            let last = waiting.is_none();
            let mut child = match waiting {
                Some(child) => child,
                None => self.park(purpose, &plan.limits)?,
            };
            let limited = self.cgroups.limit(&mut child.tree.leaf, &plan.limits).map_err(Error::Cgroup);
            let handed =
                limited.and_then(|()| socket::send_with(child.order.as_raw_fd(), record, &order).map_err(Error::Pipe));
            let Err(error) = handed else {
                let held = fds.into_iter().chain([child.order, rules.into_descriptor()]).collect();
                return Ok(Proc { held, ..Proc::new(plan.id, child.tree, received) });
            };
            self.discard(child);
            // One that has died says nothing of the others; a limit that one does not fit in does.
            if last || matches!(error, Error::Cgroup(_)) {
                return Err(error);
            }
            waiting = self.parking.take_next(purpose);
        }
    }

    /// Makes a process tree for this plan from nothing.
    fn start_anew(&mut self, mut plan: Plan, fds: Vec<OwnedFd>, received: u64) -> Result<Proc, Error> {
        if plan.uid == 0 {
            plan.uid = self.uids.choose().ok_or(Error::Uid(Errno(libc::EAGAIN)))?;
        } else {
            self.uids.hold(plan.uid);
        }
        let leaf = self.cgroups.make_leaf(&plan.group, &plan.leaf, &plan.limits).map_err(Error::Cgroup);
        let made = leaf.and_then(|leaf| self.make(&plan, leaf, Work::Known(fds)));
        match made {
            Ok(tree) => Ok(Proc { loose: plan.weaken.has(Weaken::PIDS), ..Proc::new(plan.id, tree, received) }),
            Err(error) => {
                self.uids.release(plan.uid);
                Err(error)
            }
        }
    }

    fn park(&mut self, purpose: &Purpose, limits: &Limits) -> Result<Parked, Error> {
        let uid = self.uids.choose().ok_or(Error::Uid(Errno(libc::EAGAIN)))?;
        let parked = self.park_as(uid, purpose, limits);
        if parked.is_err() {
            self.uids.release(uid);
        }
        parked
    }

    fn park_as(&mut self, uid: u32, purpose: &Purpose, limits: &Limits) -> Result<Parked, Error> {
        let plan = purpose.plan(uid, limits);
        let (order, orders) = socket::pair().map_err(Error::Pipe)?;
        let leaf = self.cgroups.take_leaf(&purpose.group, limits).map_err(Error::Cgroup)?;
        let tree = self.make(&plan, leaf, Work::Awaited(orders))?;
        Ok(Parked { tree, order })
    }

    /// Clones an init into the leaf, which is removed if that fails.
    fn make(&mut self, plan: &Plan, leaf: Leaf, work: Work) -> Result<Tree, Error> {
        self.made += 1;
        let key = self.made;
        let flags = if plan.weaken.has(Weaken::PIDS) { 0 } else { libc::CLONE_NEWPID };
        let cloned = socket::pair().map_err(Error::Pipe).and_then(|(report, reporter)| {
            socket::ask_credentials(&report).map_err(Error::Pipe)?;
            let entry = self.cgroups.entry(&leaf).map_err(Error::Cgroup)?;
            let forked = match &entry {
                Entry::Files(_) => sys::fork(flags),
                Entry::Birth(cgroup) => sys::fork_into(flags, cgroup),
            };
            match forked.map_err(Error::Clone)? {
                0 => self.become_init(plan, key, work, reporter, &entry),
                pid => Ok((pid, report)),
            }
        });
        match cloned {
            Ok((pid, report)) => Ok(Tree { key, pid, uid: plan.uid, leaf, report }),
            Err(error) => {
                let _ = self.cgroups.remove_leaf(&leaf);
                Err(error)
            }
        }
    }

    /// In the cloned process.
    fn become_init(&self, plan: &Plan, key: u64, work: Work, report: OwnedFd, entry: &Entry) -> ! {
        let common = Common {
            templates: &self.templates,
            uid: self.bounds.base,
            launcher: &self.launcher,
            bounding: self.bounds.weaken,
            status: &self.status,
        };
        let mut entered = init::enter(&common, plan.weaken, entry);
        let mut data = None;
        let task = match work {
            Work::Known(fds) => {
                let mut fds = fds.into_iter();
                let Some(file) = fds.next() else {
                    init::fail(report.as_raw_fd(), Error::Descriptors(Errno(libc::EBADF)));
                };
                data = if plan.profile == Profile::System { fds.next() } else { None };
                // The numbers stay open until they are placed, since nobody drops them.
                let sources = fds.map(IntoRawFd::into_raw_fd);
                let fds = sources.zip(plan.targets.iter().copied()).collect();
                Task::Known(Program { file, argv: Pointers::new(&plan.argv), envp: Pointers::new(&plan.envp), fds })
            }
            Work::Awaited(orders) => {
                // It may wait for long: what it does not need should not stay open because of it.
                let others = [&self.launcher, &self.status, &self.null, &orders, &report];
                let mut keep = others.map(AsRawFd::as_raw_fd).to_vec();
                keep.extend(self.templates.roots());
                entered = entered.and_then(|()| sys::close_all_but(&mut keep).map_err(Error::Descriptors));
                Task::Awaited(orders)
            }
        };
        let filter = match plan.profile {
            Profile::Sigma => &self.sigma_filter,
            Profile::System => &self.system_filter,
        };
        let (init_filter, abi, null) = (&self.init_filter, self.abi, self.null.as_raw_fd());
        let launch = Launch { plan, key, task, data, null, report, filter, init_filter, abi };
        init::run(&launch, &common, entered)
    }

    /// How soon parked children should be made.
    pub fn need(&self) -> Option<Need> {
        self.parking.need()
    }

    /// Makes one parked child of those needed. Not having one is never an error.
    pub fn make_parked(&mut self) {
        let Some((purpose, limits)) = self.parking.neediest() else { return };
        match self.park(&purpose, &limits) {
            Ok(child) => self.parking.put(&purpose, child),
            Err(_) => self.parking.give_up(&purpose),
        }
    }

    /// When tend wants to be called.
    pub fn next_tick(&self) -> Option<u64> {
        let idle = self.parking.is_empty() && !self.cgroups.any_free();
        (!idle).then(|| self.parking.next_tick())
    }

    /// Once a second: fits what is kept to what is asked for.
    pub fn tend(&mut self, now: u64) {
        let scarce = || parking::memory_is_scarce(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
        for child in self.parking.tick(now, scarce) {
            self.discard(child);
        }
        let parking = &self.parking;
        self.cgroups.trim(TRIM, |group| parking.uses(group));
    }

    /// Closes the accounts of a proc that has ended; EBUSY: its cgroups have not, try again.
    pub fn release(&mut self, proc: &Proc, usage: &Usage) -> sys::Result<()> {
        let released = self.cgroups.release_leaf(&proc.leaf, usage);
        if released != Err(Errno(libc::EBUSY)) {
            self.uids.release(proc.uid);
        }
        released
    }

    /// A child that is no proc has been waited for.
    pub fn lost(&mut self, pid: i32) {
        if let Some(child) = self.parking.lose(|child| child.tree.pid == pid) {
            self.leaving.insert(pid, (child.tree.leaf, child.tree.uid));
        }
        if let Some((leaf, uid)) = self.leaving.remove(&pid) {
            let usage = self.cgroups.usage(&leaf);
            // One that is busy still is removed with the instance.
            let _ = self.cgroups.release_leaf(&leaf, &usage);
            self.uids.release(uid);
        }
    }

    /// Kills all that wait for a START.
    pub fn discard_parked(&mut self) {
        for child in self.parking.drain() {
            self.discard(child);
        }
    }

    /// Whether some of those killed have not ended yet.
    pub fn leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Kills a parked child. Nobody has waited for it yet, so the number cannot have been reused.
    fn discard(&mut self, child: Parked) {
        let _ = sys::kill(child.tree.pid, libc::SIGKILL);
        self.leaving.insert(child.tree.pid, (child.tree.leaf, child.tree.uid));
    }
}

/// What a new process tree will do.
enum Work {
    Known(Vec<OwnedFd>),
    /// Wait for a START on this socket.
    Awaited(OwnedFd),
}
