//! One proc from START to EXITED: what is known of it and what follows from that.

use crate::cgroup::meter::Reading;
use crate::cgroup::{Leaf, Usage};
use crate::child::Report;
use crate::error::{Errno, Error};
use crate::parking::Purpose;
use crate::protocol::{FLAG_KILLED, FLAG_OOM, Reply};
use crate::status::News;
use crate::sys::{self, Waited, socket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// A process tree with an init of its own, made for one START.
pub struct Tree {
    /// By which its init's status record is known.
    pub key: u64,
    /// Init's, in the launcher's namespace; not reused before it has been waited for.
    pub pid: i32,
    pub leaf: Leaf,
    /// Where Contained and Failed records come; until its end is read.
    pub report: Option<OwnedFd>,
    /// Started without a PID namespace, so that init's end does not end the rest.
    pub loose: bool,
}

/// A leaf with a seed in it, from which procs grow one after the other.
pub struct Seat {
    /// By which its seed's status records are known.
    pub key: u64,
    pub purpose: Purpose,
    /// The seed's. None once it has ended or has been let go.
    pub seed: Option<i32>,
    /// Where STARTs go, and where a START's process shows its number.
    pub socket: OwnedFd,
    pub leaf: Leaf,
}

/// What a proc lives in.
pub enum Body {
    Tree(Tree),
    Seat(Seat),
}

/// What sigmad handed over so that another sigmad can go on with the proc.
#[derive(Clone)]
pub struct Kept {
    pub label: Vec<u8>,
    /// sigmad's ends of what the proc was given.
    pub files: Rc<Vec<OwnedFd>>,
}

pub struct Proc {
    pub id: u64,
    pub uid: u32,
    pub body: Body,
    /// Descriptors that were handed over. Closing them takes time, which a start has not: they are
    /// closed when it is over.
    pub held: Vec<OwnedFd>,
    pub received: u64,
    pub cloned: u64,
    pub contained: Option<u64>,
    /// The program's process, in the launcher's namespace, as the kernel vouched for it.
    pub main: Option<i32>,
    pub failure: Option<Error>,
    pub started: bool,
    pub killed: bool,
    /// What lets it outlive its sigmad.
    pub kept: Option<Kept>,
    /// What it used when it was killed: of the processes that die with their init the kernel makes
    /// no account.
    pub at_kill: Reading,
    /// The program's in a tree, as init reported it.
    pub wait_status: Option<i32>,
    /// The end of the launcher's child: init in a tree, the program's process in a seat.
    pub waited: Option<Waited>,
}

impl Proc {
    /// A proc whose START has just been handed over.
    pub fn new(id: u64, uid: u32, body: Body, received: u64, held: Vec<OwnedFd>) -> Proc {
        Proc {
            id,
            uid,
            body,
            held,
            received,
            cloned: sys::monotonic_ns(),
            contained: None,
            main: None,
            failure: None,
            started: false,
            killed: false,
            kept: None,
            at_kill: Reading::default(),
            wait_status: None,
            waited: None,
        }
    }

    /// Of a tree.
    pub fn init(&self) -> Option<i32> {
        if let Body::Tree(tree) = &self.body { Some(tree.pid) } else { None }
    }

    /// Where a tree's process still may report.
    pub fn report(&self) -> Option<RawFd> {
        if let Body::Tree(tree) = &self.body { tree.report.as_ref().map(AsRawFd::as_raw_fd) } else { None }
    }

    pub fn leaf(&self) -> &Leaf {
        match &self.body {
            Body::Tree(tree) => &tree.leaf,
            Body::Seat(seat) => &seat.leaf,
        }
    }

    /// How many processes in the leaf are ours and not the proc's: init, or the seed until it is
    /// let go.
    pub fn helpers(&self) -> u64 {
        match &self.body {
            Body::Tree(_) => 1,
            Body::Seat(seat) => seat.seed.is_some() as u64,
        }
    }

    /// The seed is in the leaf, but no part of the proc.
    pub fn leaf_and_seed(&mut self) -> (&mut Leaf, Option<i32>) {
        match &mut self.body {
            Body::Tree(tree) => (&mut tree.leaf, None),
            Body::Seat(seat) => (&mut seat.leaf, seat.seed),
        }
    }

    pub fn key(&self) -> u64 {
        match &self.body {
            Body::Tree(tree) => tree.key,
            Body::Seat(seat) => seat.key,
        }
    }

    /// Whether the launcher's child has ended, so that the account can be closed when nothing else
    /// is left.
    pub fn is_over(&self) -> bool {
        let answered = matches!(self.body, Body::Tree(_)) || self.started || self.failure.is_some();
        answered && (self.waited.is_some() || matches!(self.body, Body::Seat(_)) && self.main.is_none())
    }

    /// Takes note of what a seed says of its START. Returns the number of the program's process, if
    /// there was one.
    pub fn note(&mut self, news: News) -> Option<i32> {
        let Body::Seat(seat) = &self.body else { return None };
        // Sent before whatever the seed reports.
        let main = socket::receive(seat.socket.as_raw_fd(), &mut [0]).ok().and_then(|got| got.pid);
        self.main = main.filter(|pid| *pid > 0);
        match (news, self.main) {
            (News::Failed(error), _) => self.failure = Some(error),
            (News::Started { .. }, None) => self.failure = Some(Error::Child(Errno(libc::EPROTO))),
            (News::Started { contained, .. }, Some(_)) => {
                self.contained = Some(contained);
                self.started = true;
            }
            (News::Ended(_), _) => {}
        }
        self.main
    }

    /// The record that says that the program is executed, since `exec`.
    pub fn first_word(&self, exec: u64) -> Reply {
        let pid = match &self.body {
            Body::Tree(tree) => tree.pid,
            Body::Seat(_) => self.main.unwrap_or(0),
        };
        let contained = self.contained.unwrap_or(0);
        Reply::Started { id: self.id, pid: pid as u32, received: self.received, cloned: self.cloned, contained, exec }
    }

    /// Reads what a tree's report socket has. At its end the program either runs or never will:
    /// then returns the STARTED record to send, if it does.
    pub fn read_reports(&mut self) -> Option<Reply> {
        let Body::Tree(tree) = &mut self.body else { return None };
        let report = tree.report.as_ref()?.as_raw_fd();
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
        tree.report = None;
        self.started = self.contained.is_some() && self.failure.is_none();
        self.started.then(|| self.first_word(sys::monotonic_ns()))
    }

    /// The record that closes the account, once nothing of the proc is left.
    pub fn last_word(&self, usage: Usage) -> Reply {
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
        let waited = self.waited.map_or((0, 0), |waited| (waited.user_us, waited.system_us));
        let (user_us, system_us) = usage.cpu_us.unwrap_or(waited);
        Reply::Exited {
            id: self.id,
            wait_status: self.status(),
            flags: oom | killed,
            user_us: user_us.max(self.at_kill.user_us),
            system_us: system_us.max(self.at_kill.system_us),
            memory_peak: usage.memory_peak,
        }
    }

    /// The program's status; SIGKILL's when init could not report one.
    pub fn status(&self) -> i32 {
        match (&self.body, self.waited) {
            (Body::Seat(_), Some(waited)) => waited.status,
            _ => self.wait_status.unwrap_or(libc::SIGKILL),
        }
    }

    /// Kills the launcher's child. In a tree that is init, and with it every process of its PID
    /// namespace.
    pub fn kill(&self) {
        let child = match &self.body {
            Body::Tree(tree) => Some(tree.pid),
            Body::Seat(_) => self.main,
        };
        if let (Some(pid), None) = (child, self.waited) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
    }

    /// Signals the program's process.
    pub fn signal(&self, signo: i32) -> sys::Result<()> {
        let main = self.main.ok_or(Errno(libc::ESRCH))?;
        let init = match (&self.body, self.waited) {
            (_, Some(_)) => return Err(Errno(libc::ESRCH)),
            // Our own child, which we have not waited for: the number is still its.
            (Body::Seat(_), None) => return sys::kill(main, signo),
            (Body::Tree(tree), None) => tree.pid,
        };
        // The number may have been reused since it ended, but not by another child of our init, and
        // the pidfd pins what the check looked at.
        let pidfd = sys::pidfd_open(main)?;
        let status = std::fs::read_to_string(format!("/proc/{main}/status"))?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t")?.parse::<i32>().ok());
        match parent == Some(init) {
            true => sys::pidfd_send_signal(&pidfd, signo),
            false => Err(Errno(libc::ESRCH)),
        }
    }
}
