//! Starts procs, in seats (seats.rs) or in process trees of their own: holds what all starts share,
//! and does for each what precedes the clone.

use crate::calls;
use crate::cgroup::{Cgroups, Entry, Leaf, Usage};
use crate::child::{Launch, Program};
use crate::error::{Errno, Error, log};
use crate::filter::{Verdict, compile};
use crate::init::{self, Common};
use crate::landlock::Abi;
use crate::namespaces::Templates;
use crate::parking::{Parking, Purpose};
use crate::plan::{Bounds, Plan, Profile, Weaken};
use crate::proc::{Body, Proc, Seat, Tree};
use crate::seats::Known;
use crate::space::Space;
use crate::sys::{self, Pointers, socket};
use crate::uids::Uids;
use libc::sock_filter;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

pub struct Factory {
    pub cgroups: Cgroups,
    pub(crate) templates: Templates,
    pub(crate) abi: Abi,
    sigma_filter: Vec<sock_filter>,
    linux_filter: Vec<sock_filter>,
    system_filter: Vec<sock_filter>,
    init_filter: Vec<sock_filter>,
    /// By which seeds' calls pass the filter that they share with programs.
    pub(crate) secret: u64,
    pub(crate) bounds: Bounds,
    /// A pidfd of the launcher, by which a new init sees whether it came too late.
    pub(crate) launcher: OwnedFd,
    pub(crate) status: OwnedFd,
    pub(crate) null: OwnedFd,
    pub(crate) uids: Uids,
    pub(crate) space: Option<Space>,
    pub(crate) parking: Parking<Seat>,
    /// The keys of live seeds' seats, by the seeds' numbers.
    pub(crate) seeds: HashMap<i32, u64>,
    /// Seeds that were killed, and not yet waited for, with what goes when they have gone.
    pub(crate) leaving: HashMap<i32, Leaf>,
    pub(crate) ended_seeds: HashSet<i32>,
    /// Leaves that the kernel did not yet let go.
    pub(crate) doomed: Vec<Leaf>,
    pub(crate) known: Vec<Known>,
    /// Process trees and seats so far, by which they are known on the status pipe.
    pub(crate) created: u64,
}

impl Factory {
    /// `status` is the write end of the pipe on which inits report.
    pub fn new(cgroups: Cgroups, place: &CString, bounds: Bounds, status: OwnedFd) -> Result<Factory, Error> {
        let refused = Verdict::Errno(libc::EPERM);
        let templates = Templates::make(place)?;
        // What the launcher executes itself needs no capabilities but a weakened start's. So that
        // each process need not, it drops them from the bounding set for all.
        if !bounds.weaken {
            sys::cred::drop_bounding().map_err(Error::Bounding)?;
        }
        let secret = sys::random().map_err(Error::Seccomp)?;
        Ok(Factory {
            cgroups,
            templates,
            abi: Abi::detect().map_err(Error::LandlockRules)?,
            sigma_filter: compile(&calls::sigma(), refused, secret),
            linux_filter: compile(&calls::linux(), refused, secret),
            system_filter: compile(&calls::system(), refused, secret),
            init_filter: compile(calls::INIT, Verdict::Kill, secret),
            secret,
            bounds,
            launcher: sys::pidfd_open(sys::getpid()).map_err(Error::Init)?,
            status,
            null: sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR).map_err(Error::Descriptors)?,
            uids: Uids::new(bounds),
            space: None,
            parking: Parking::new(),
            seeds: HashMap::new(),
            leaving: HashMap::new(),
            ended_seeds: HashSet::new(),
            doomed: Vec::new(),
            known: Vec::new(),
            created: 0,
        })
    }

    /// Starts a plan with the descriptors that came with it: the program, the data directory of a
    /// system program, the targets'. They are closed here in any case. `record` is the START
    /// itself.
    pub fn start(&mut self, plan: Plan, record: &[u8], fds: Vec<OwnedFd>, received: u64) -> Result<Proc, Error> {
        // Seeds are forked into their PID namespace by entering it for a moment. A user namespace's
        // root may not go back to the host's, so a rootless launcher makes each proc anew.
        let seated = self.cgroups.exist() && !self.bounds.is_rootless();
        match Purpose::of(&plan).filter(|_| seated) {
            Some(purpose) => self.start_seated(&plan, &purpose, record, fds, received),
            None => self.start_anew(plan, fds, received),
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
        let created = leaf.and_then(|leaf| self.make(&plan, leaf, fds));
        match created {
            Ok(tree) => Ok(Proc::new(plan.id, plan.uid, Body::Tree(tree), received, Vec::new())),
            Err(error) => {
                self.uids.release(plan.uid);
                Err(error)
            }
        }
    }

    /// Clones an init into the leaf, which is removed if that fails.
    fn make(&mut self, plan: &Plan, leaf: Leaf, fds: Vec<OwnedFd>) -> Result<Tree, Error> {
        self.created += 1;
        let key = self.created;
        let flags = if plan.weaken.has(Weaken::PIDS) { 0 } else { libc::CLONE_NEWPID };
        let cloned = socket::pair().map_err(Error::Pipe).and_then(|(report, reporter)| {
            socket::ask_credentials(&report).map_err(Error::Pipe)?;
            let entry = self.cgroups.entry(&leaf).map_err(Error::Cgroup)?;
            let forked = match &entry {
                Entry::Files(_) => sys::fork(flags),
                Entry::Birth(cgroup) => sys::fork_into(flags, cgroup),
            };
            match forked.map_err(Error::Clone)? {
                0 => self.become_init(plan, key, fds, reporter, &entry),
                pid => Ok((pid, report)),
            }
        });
        match cloned {
            Ok((pid, report)) => {
                Ok(Tree { key, pid, leaf, report: Some(report), loose: plan.weaken.has(Weaken::PIDS) })
            }
            Err(error) => {
                let _ = self.cgroups.remove_leaf(&leaf);
                Err(error)
            }
        }
    }

    /// In the cloned process.
    fn become_init(&self, plan: &Plan, key: u64, fds: Vec<OwnedFd>, report: OwnedFd, entry: &Entry) -> ! {
        let common = Common {
            templates: &self.templates,
            uid: self.bounds.base,
            launcher: &self.launcher,
            bounding: self.bounds.weaken,
            status: &self.status,
        };
        let entered = init::enter(&common, plan.weaken, entry);
        let mut fds = fds.into_iter();
        let Some(file) = fds.next() else {
            init::fail(report.as_raw_fd(), Error::Descriptors(Errno(libc::EBADF)));
        };
        let data = if plan.profile == Profile::System { fds.next() } else { None };
        // The numbers stay open until they are placed, since nobody drops them.
        let fds = fds.map(IntoRawFd::into_raw_fd).zip(plan.targets.iter().copied()).collect();
        let program = Program { file, argv: Pointers::new(&plan.argv), envp: Pointers::new(&plan.envp), fds };
        let filter = self.filter_of(plan.profile);
        let (init_filter, abi, null) = (&self.init_filter, self.abi, self.null.as_raw_fd());
        let launch = Launch { plan, key, secret: self.secret, program, data, null, report, filter, init_filter, abi };
        init::run(&launch, &common, entered)
    }

    pub(crate) fn filter_of(&self, profile: Profile) -> &[sock_filter] {
        match profile {
            Profile::Sigma => &self.sigma_filter,
            Profile::Linux => &self.linux_filter,
            Profile::System => &self.system_filter,
        }
    }

    /// Closes the account of a proc of which the launcher's own child has ended. EBUSY: not all of
    /// it has, try again.
    pub fn close(&mut self, proc: &mut Proc) -> sys::Result<Usage> {
        match &mut proc.body {
            Body::Tree(tree) => {
                if tree.loose {
                    self.cgroups.kill_leaf(&tree.leaf);
                }
                let usage = self.cgroups.usage(&tree.leaf);
                match self.cgroups.close_leaf(&mut tree.leaf) {
                    Err(Errno(libc::EBUSY)) => return Err(Errno(libc::EBUSY)),
                    Err(errno) => log(&format!("cannot remove a cgroup of {}: {errno}", proc.id)),
                    Ok(()) => {}
                }
                self.uids.release(proc.uid);
                Ok(usage)
            }
            Body::Seat(seat) => {
                if !self.cgroups.kill_members(&mut seat.leaf, seat.seed) {
                    return Err(Errno(libc::EBUSY));
                }
                self.uids.release(proc.uid);
                Ok(self.cgroups.close_account(&mut seat.leaf))
            }
        }
    }
}
