//! Starts process trees: holds what all starts share, and does for each what precedes the clone.

use crate::calls;
use crate::cgroup::Cgroups;
use crate::child::Launch;
use crate::error::{Errno, Error};
use crate::filter::{Verdict, compile};
use crate::init::{self, Common};
use crate::landlock::Abi;
use crate::namespaces::Templates;
use crate::plan::{Bounds, Plan, Profile, Weaken};
use crate::proc::Proc;
use crate::spare::{SPARES_MAX, Spare};
use crate::sys::{self, Pointers, socket};
use libc::sock_filter;
use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

pub struct Factory {
    pub cgroups: Cgroups,
    pub templates: Templates,
    abi: Abi,
    sigma_filter: Vec<sock_filter>,
    system_filter: Vec<sock_filter>,
    init_filter: Vec<sock_filter>,
    init_uid: u32,
    /// A pidfd of the launcher, by which a new init sees whether it came too late.
    pub launcher: OwnedFd,
    pub status: OwnedFd,
    pub null: OwnedFd,
    pub bounds: Bounds,
    /// Oldest first.
    pub spares: VecDeque<Spare>,
    /// Groups that have had a START since their last spare was made.
    pub wanted: VecDeque<String>,
    pub made: u64,
}

impl Factory {
    /// `status` is the write end of the pipe on which inits report.
    pub fn new(cgroups: Cgroups, place: &CString, bounds: Bounds, status: OwnedFd) -> Result<Factory, Error> {
        let refused = Verdict::Errno(libc::EPERM);
        Ok(Factory {
            cgroups,
            templates: Templates::make(place)?,
            abi: Abi::detect().map_err(Error::LandlockRules)?,
            sigma_filter: compile(&calls::sigma(), refused),
            system_filter: compile(&calls::system(), refused),
            init_filter: compile(calls::INIT, Verdict::Kill),
            init_uid: bounds.base,
            bounds,
            spares: VecDeque::new(),
            wanted: VecDeque::new(),
            made: 0,
            launcher: sys::pidfd_open(sys::getpid()).map_err(Error::Init)?,
            status,
            null: sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR).map_err(Error::Descriptors)?,
        })
    }

    /// Starts a plan with the descriptors that came with it: the program, the data directory of a
    /// system program, the targets'. They are closed here in any case. `record` is the START itself,
    /// for a spare; without it, a new process is made.
    pub fn start(
        &mut self,
        plan: &Plan,
        record: Option<&[u8]>,
        fds: Vec<OwnedFd>,
        received: u64,
    ) -> Result<Proc, Error> {
        if let Some(record) = record.filter(|_| plan.weaken == Weaken::default()) {
            self.wanted.push_back(plan.group.clone());
            self.wanted.truncate(SPARES_MAX);
            if let Some(proc) = self.start_spare(plan, record, &fds, received) {
                return Ok(proc);
            }
        }
        let (reader, report) = socket::pair().map_err(Error::Pipe)?;
        socket::ask_credentials(&reader).map_err(Error::Pipe)?;
        let (leaf, entries) = self.cgroups.make_leaf(&plan.group, &plan.leaf, &plan.limits).map_err(Error::Cgroup)?;
        let loose = plan.weaken.has(Weaken::PIDS);
        match sys::fork(if loose { 0 } else { libc::CLONE_NEWPID }) {
            Ok(0) => {
                let entered = init::enter(&self.common(), plan.weaken, &entries);
                self.become_init(plan, fds, report, entered)
            }
            Err(errno) => {
                let _ = self.cgroups.remove_leaf(&leaf);
                Err(Error::Clone(errno))
            }
            Ok(pid) => Ok(Proc { loose, ..Proc::new(plan.id, pid, leaf, reader, received) }),
        }
    }

    pub fn common(&self) -> Common<'_> {
        Common { templates: &self.templates, uid: self.init_uid, launcher: &self.launcher, status: &self.status }
    }

    /// In the cloned process: what remains to be done when the cgroups and namespaces are entered.
    pub fn become_init(&self, plan: &Plan, fds: Vec<OwnedFd>, report: OwnedFd, entered: Result<(), Error>) -> ! {
        let mut fds = fds.into_iter();
        let program = fds.next();
        let data = if plan.profile == Profile::System { fds.next() } else { None };
        let Some(program) = program else {
            init::fail(report.as_raw_fd(), Error::Descriptors(Errno(libc::EBADF)));
        };
        // Open until placed, since this function does not return.
        let passed: Vec<OwnedFd> = fds.collect();
        let mut placed: Vec<_> = passed.iter().map(AsRawFd::as_raw_fd).zip(plan.targets.iter().copied()).collect();
        // A hole among 0, 1 and 2 would be filled by the first file that the program opens.
        let holes = (0..3).filter(|target| !plan.targets.contains(target));
        placed.extend(holes.map(|target| (self.null.as_raw_fd(), target)));
        let mut launch = Launch {
            plan,
            argv: Pointers::new(&plan.argv),
            envp: Pointers::new(&plan.envp),
            program,
            data,
            fds: placed,
            report,
            filter: match plan.profile {
                Profile::Sigma => &self.sigma_filter,
                Profile::System => &self.system_filter,
            },
            init_filter: &self.init_filter,
            abi: self.abi,
        };
        init::run(&mut launch, &self.common(), entered)
    }
}
