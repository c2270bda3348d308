//! One process tree from clone to removal: what is known of it and what follows from that.

use crate::cgroup::meter::Reading;
use crate::cgroup::{Leaf, Usage};
use crate::child::Report;
use crate::error::{Errno, Error};
use crate::protocol::{FLAG_KILLED, FLAG_OOM, Reply};
use crate::sys::{self, Waited, socket};
use std::os::fd::{AsRawFd, OwnedFd};

/// A process tree as it has been cloned, whatever it is for.
pub struct Tree {
    /// By which its init's status record is known.
    pub key: u64,
    /// Init's, in the launcher's namespace; not reused before it has been waited for.
    pub pid: i32,
    /// The program's.
    pub uid: u32,
    pub leaf: Leaf,
    /// Where Contained and Failed records come.
    pub report: OwnedFd,
}

pub struct Proc {
    pub id: u64,
    pub key: u64,
    pub pid: i32,
    pub uid: u32,
    pub leaf: Leaf,
    /// Until its end is read.
    pub report: Option<OwnedFd>,
    /// Descriptors that were handed over. Closing them takes time, which a start has not: they are closed
    /// when it is over.
    pub held: Vec<OwnedFd>,
    pub received: u64,
    pub cloned: u64,
    pub contained: Option<u64>,
    /// The program's process, in the launcher's namespace, as the kernel vouched for it.
    pub main: Option<i32>,
    pub failure: Option<Error>,
    pub started: bool,
    pub killed: bool,
    /// What it used when it was killed: of the processes that die with their init the kernel makes no account.
    pub at_kill: Reading,
    /// The program's, as init reported it.
    pub wait_status: Option<i32>,
    /// Init's own end.
    pub waited: Option<Waited>,
    /// Started without a PID namespace, so that init's end does not end the rest.
    pub loose: bool,
}

impl Proc {
    /// A process tree whose init has just been cloned, or which has just been given its START.
    pub fn new(id: u64, tree: Tree, received: u64) -> Proc {
        Proc {
            id,
            key: tree.key,
            pid: tree.pid,
            uid: tree.uid,
            leaf: tree.leaf,
            report: Some(tree.report),
            held: Vec::new(),
            received,
            cloned: sys::monotonic_ns(),
            contained: None,
            main: None,
            failure: None,
            started: false,
            killed: false,
            at_kill: Reading::default(),
            wait_status: None,
            waited: None,
            loose: false,
        }
    }

    /// Reads what the report socket has. At its end the program either runs or never will: then
    /// returns the STARTED record to send, if it does.
    pub fn read_reports(&mut self) -> Option<Reply> {
        let report = self.report.as_ref()?.as_raw_fd();
        let mut buf = [0; Report::BYTES];
        loop {
            match socket::receive(report, &mut buf) {
                Ok(got) if got.len == Report::BYTES => match Report::decode(&buf) {
                    Report::Contained(time) => {
                        self.contained = Some(time);
                        self.main = got.pid.filter(|pid| *pid > 0);
                    }
                    Report::Failed(error) => drop(self.failure.get_or_insert(error)),
                },
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return None,
                _ => break,
            }
        }
        self.report = None;
        match (self.contained, self.failure) {
            (Some(contained), None) => {
                self.started = true;
                let (id, pid) = (self.id, self.pid as u32);
                let exec = sys::monotonic_ns();
                Some(Reply::Started { id, pid, received: self.received, cloned: self.cloned, contained, exec })
            }
            _ => None,
        }
    }

    /// The record that closes the account, once init has been waited for and the cgroups are gone.
    pub fn last_word(&self, waited: Waited, usage: Usage) -> Reply {
        if !self.started {
            let died = if usage.oom_kills > 0 { libc::ENOMEM } else { libc::ECHILD };
            let unreported = match self.wait_status {
                Some(_) => Error::Child(Errno(died)),
                None => Error::Init(Errno(died)),
            };
            return Reply::Failed { id: self.id, error: self.failure.unwrap_or(unreported) };
        }
        let oom = if usage.oom_kills > 0 { FLAG_OOM } else { 0 };
        let killed = if self.killed { FLAG_KILLED } else { 0 };
        Reply::Exited {
            id: self.id,
            wait_status: self.status(),
            flags: oom | killed,
            user_us: waited.user_us.max(self.at_kill.user_us),
            system_us: waited.system_us.max(self.at_kill.system_us),
            memory_peak: usage.memory_peak,
        }
    }

    /// The program's status; SIGKILL's when init could not report one.
    pub fn status(&self) -> i32 {
        self.wait_status.unwrap_or(libc::SIGKILL)
    }

    /// Kills init and thereby every process of its PID namespace.
    pub fn kill(&self) {
        if self.waited.is_none() {
            let _ = sys::kill(self.pid, libc::SIGKILL);
        }
    }

    /// Signals the program's process. Its number may have been reused since it ended, but not by
    /// another child of our init, and the pidfd pins what the check looked at.
    pub fn signal(&self, signo: i32) -> sys::Result<()> {
        let main = self.main.ok_or(Errno(libc::ESRCH))?;
        let pidfd = sys::pidfd_open(main)?;
        let status = std::fs::read_to_string(format!("/proc/{main}/status"))?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t")?.parse::<i32>().ok());
        if self.waited.is_some() || parent != Some(self.pid) {
            return Err(Errno(libc::ESRCH));
        }
        sys::pidfd_send_signal(&pidfd, signo)
    }
}
