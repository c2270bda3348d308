//! The launcher's end of the placer (docs/adr/0067): starts it, tells it what sigmad has said of
//! groups and which of them have procs, and starts another when it dies. The placer decides and
//! turns; here nothing is decided.
//!
//! What is said is kept, so that another placer can be told it all. Nobody waits for an answer.

use crate::backoff::Backoff;
use crate::cgroup::{Cgroups, Version};
use crate::child::ASIDE;
use crate::error::{Errno, Error, chain, log};
use crate::factory::Factory;
use crate::keeper::how;
use crate::namespaces::{self, Templates};
use crate::notes::{Note, Sums, beside, is_child, is_within};
use crate::plan::{check_group, legal_shares};
use crate::proc::Proc;
use crate::protocol::GroupShare;
use crate::sys::{self, Epoll, Pointers, cred, socket};
use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

/// By which a start of this program becomes the placer.
pub const FLAG: &str = "--placer";
/// Where the placer has its socket with the launcher, and the directory of the instance's leaves.
pub const SOCKET_FD: RawFd = 3;
pub const LEAVES_FD: RawFd = 4;

/// Notes that the placer has not fetched. One that leaves more does not work, and another is
/// started. Some MiB.
const WAITING_MAX: usize = 65_536;
/// The placer says something once a second. One that says so much in this time has gone wrong.
const HEARD_MAX: u32 = 64;
const HEARD_TIME: u64 = 10_000_000_000;
/// What a group has of which sigmad has said nothing.
const SHARES: u32 = 1024;

struct Process {
    pid: i32,
    socket: OwnedFd,
}

pub struct Placing {
    uid: u32,
    token: u64,
    /// The groups of the last YIELD. Without any there is no placer.
    pair: Option<(String, String)>,
    /// The shares of all groups that sigmad has told of.
    told: HashMap<String, GroupShare>,
    /// Procs of each group that has some.
    procs: HashMap<String, usize>,
    process: Option<Process>,
    waiting: VecDeque<Note>,
    /// There was a placer before, which may have given threads homes.
    again: bool,
    deaths: Backoff,
    start_at: Option<u64>,
    /// What placers before this one have said since YIELD, and what this one has.
    before: Sums,
    sums: Sums,
    /// Records heard, and until when they count.
    heard: (u32, u64),
    /// That there is room is waited for.
    full: bool,
    /// That shares cannot be held was logged.
    said: bool,
}

impl Placing {
    /// For one with this uid, whose records are known by the token.
    pub fn new(uid: u32, token: u64) -> Placing {
        Placing {
            uid,
            token,
            pair: None,
            told: HashMap::new(),
            procs: HashMap::new(),
            process: None,
            waiting: VecDeque::new(),
            again: false,
            deaths: Backoff::default(),
            start_at: None,
            before: Sums::default(),
            sums: Sums::default(),
            heard: (0, 0),
            full: false,
            said: false,
        }
    }

    /// The second group stands aside for the first: from now on, or until sigmad says it anew.
    pub fn set_pair<'a>(
        &mut self,
        [first, second]: [&[u8]; 2],
        cgroups: &Cgroups,
        procs: impl Iterator<Item = &'a Proc>,
    ) {
        let (Ok(first), Ok(second)) = (check_group(first), check_group(second)) else {
            return log("procs do not stand aside for others: that is no name of a group");
        };
        self.pair = Some((first, second));
        (self.before, self.sums) = (Sums::default(), Sums::default());
        if self.process.is_none() && self.start_at.is_none() {
            self.start_at = Some(0);
        }
        self.tell_all(cgroups, procs, false);
    }

    /// A proc has come into a leaf of a group.
    pub fn enter(&mut self, group: &str, leaf: &str) {
        let count = self.procs.entry(group.to_string()).or_default();
        *count += 1;
        let first = *count == 1;
        if self.process.is_some() && (self.goes_first(group) || first && self.yields(group)) {
            self.waiting.push_back(Note::Enter { group: group.to_string(), leaf: leaf.to_string() });
        }
    }

    /// A proc has left it.
    pub fn leave(&mut self, group: &str, leaf: &str) {
        let Some(count) = self.procs.get_mut(group) else { return };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.procs.remove(group);
        }
        if self.process.is_some() && (self.goes_first(group) || last && self.yields(group)) {
            self.waiting.push_back(Note::Leave { group: group.to_string(), leaf: leaf.to_string() });
        }
    }

    fn goes_first(&self, group: &str) -> bool {
        self.pair.as_ref().is_some_and(|(first, _)| is_within(group, first))
    }

    fn yields(&self, group: &str) -> bool {
        self.pair.as_ref().is_some_and(|(_, second)| is_within(group, second))
    }

    fn is_held(&self, group: &str) -> bool {
        self.pair.as_ref().is_some_and(|(_, second)| is_child(group, second))
    }

    /// Gives a group its share. Where the kernel compares bounds with those of groups within, the
    /// placer's must not be in the way of sigmad's.
    pub fn share(&mut self, share: GroupShare, cgroups: &mut Cgroups) {
        let group = String::from_utf8_lossy(&share.group).into_owned();
        let lifts = self.process.is_some() && cgroups.version() == Version::V1 && self.yields(&group);
        let lift = |cgroups: &Cgroups| {
            if let (true, Some((_, second))) = (lifts, &self.pair) {
                let _ = cgroups.lift_bound(second);
            }
        };
        lift(cgroups);
        let mut given = cgroups.share_group(&share);
        if lifts && given == Err(Errno(libc::EINVAL)) {
            // The placer may have set another bound in between.
            lift(cgroups);
            given = cgroups.share_group(&share);
        }
        if lifts {
            self.waiting.push_back(Note::Lifted { group: group.clone() });
        }
        match given {
            Ok(()) => {
                self.told.insert(group.clone(), share);
                self.tell_share(&group, cgroups);
            }
            Err(errno) => {
                log(&format!("cannot give the group {group} its share: {errno}"));
                if self.process.is_some() && self.is_held(&group) {
                    self.waiting.push_back(Note::Unknown { group });
                }
            }
        }
    }

    fn tell_share(&mut self, group: &str, cgroups: &Cgroups) {
        if let Some(share) = self.told.get(group)
            && self.process.is_some()
            && self.is_held(group)
        {
            let shares = legal_shares(share.cpu_shares);
            let (version, group) = (cgroups.version(), group.to_string());
            self.waiting.push_back(Note::Share { version, shares, group });
        }
    }

    /// A group is gone.
    pub fn drop(&mut self, group: &str) {
        self.told.remove(group);
        if self.process.is_some() && check_group(group.as_bytes()).is_ok() {
            self.waiting.push_back(Note::Drop { group: group.to_string() });
        }
    }

    /// When one is to be started.
    pub fn next_start(&self) -> Option<u64> {
        self.start_at
    }

    /// Starts one if that is due.
    pub fn start<'a>(&mut self, epoll: &Epoll, factory: &mut Factory, procs: impl Iterator<Item = &'a Proc>) {
        if self.start_at.take_if(|time| sys::monotonic_ns() >= *time).is_none() {
            return;
        }
        if !factory.cgroups.exist() {
            return log("procs do not stand aside for others: there are no cgroups");
        }
        let started = spawn(self.uid, factory).and_then(|process| {
            match epoll.add(process.socket.as_raw_fd(), libc::EPOLLIN, self.token) {
                Err(errno) => {
                    let _ = sys::kill(process.pid, libc::SIGKILL);
                    let _ = sys::wait(process.pid, true);
                    Err(Error::Loop(errno))
                }
                Ok(()) => Ok(process),
            }
        });
        match started {
            Ok(process) => {
                self.process = Some(process);
                let again = std::mem::replace(&mut self.again, true);
                self.tell_all(&factory.cgroups, procs, again);
            }
            Err(error) => {
                let pause = self.deaths.died(sys::monotonic_ns());
                log(&format!("the placer was not started: {}", chain(&error)));
                self.start_at = Some(sys::monotonic_ns() + pause);
            }
        }
    }

    /// All that holds now. `again`: a placer that is not the first has heard nothing yet.
    fn tell_all<'a>(&mut self, cgroups: &Cgroups, procs: impl Iterator<Item = &'a Proc>, again: bool) {
        let Some((first, second)) = self.pair.clone().filter(|_| self.process.is_some()) else { return };
        let version = cgroups.version();
        self.waiting.push_back(Note::Yield { version, again, knobs: 0, first, second });
        for group in self.told.keys().cloned().collect::<Vec<_>>() {
            self.tell_share(&group, cgroups);
        }
        self.procs.clear();
        for proc in procs {
            self.enter(cgroups.group_of(proc.leaf()), &cgroups.name_of(proc.leaf()));
        }
    }

    /// Says what waits to be said, as far as there is room.
    pub fn flush(&mut self, epoll: &Epoll, cgroups: &mut Cgroups) {
        let Some(process) = self.process.as_ref().filter(|_| !self.waiting.is_empty()) else { return };
        let fd = process.socket.as_raw_fd();
        while let Some(note) = self.waiting.front() {
            let Some((record, files)) = opened(note, cgroups, &mut self.said) else {
                self.waiting.pop_front();
                continue;
            };
            let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
            let sent = match files.is_empty() {
                true => socket::send(fd, &record),
                false => match socket::send_with(fd, [&record, &[]], &files) {
                    Err(Errno(libc::EAGAIN | libc::ENOBUFS)) => Ok(false),
                    sent => sent.map(|()| true),
                },
            };
            match sent {
                Ok(true) => drop(self.waiting.pop_front()),
                Ok(false) => break,
                // It is dead, or would not learn of this: another is told all.
                Err(_) => return self.end(epoll),
            }
        }
        if self.waiting.len() > WAITING_MAX {
            log("the placer does not listen");
            return self.end(epoll);
        }
        if self.full == self.waiting.is_empty() {
            self.full = !self.full;
            let more = if self.full { libc::EPOLLOUT } else { 0 };
            let _ = epoll.modify(fd, libc::EPOLLIN | more, self.token);
        }
    }

    /// Kills it. That it has died is seen as if it had by itself.
    fn end(&mut self, epoll: &Epoll) {
        if let Some(process) = &self.process {
            let _ = epoll.remove(process.socket.as_raw_fd());
            let _ = sys::kill(process.pid, libc::SIGKILL);
        }
        self.waiting.clear();
    }

    /// What the placer says. Its bytes are nobody's we trust: they are four numbers that are told
    /// on, and whatever else comes ends it.
    pub fn hear(&mut self, epoll: &Epoll) -> Option<Sums> {
        let process = self.process.as_ref()?;
        let mut record = [0; Sums::BYTES];
        let received = match socket::receive(process.socket.as_raw_fd(), &mut record) {
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return None,
            received => received.ok().filter(|got| got.len == Sums::BYTES && !got.truncated && got.fds.is_empty()),
        };
        let now = sys::monotonic_ns();
        if now > self.heard.1 {
            self.heard = (0, now + HEARD_TIME);
        }
        self.heard.0 += 1;
        if received.is_none() || self.heard.0 > HEARD_MAX {
            self.end(epoll);
            return None;
        }
        self.sums = Sums::decode(&record);
        Some(self.before.plus(&self.sums))
    }

    /// A child has been waited for. True: it was the placer. The groups that it moved get what
    /// sigmad gave them.
    pub fn lost(&mut self, pid: i32, status: i32, cgroups: &mut Cgroups) -> bool {
        if self.process.take_if(|process| process.pid == pid).is_none() {
            return false;
        }
        self.waiting.clear();
        self.full = false;
        self.heard = (0, 0);
        (self.before, self.sums) = (self.before.plus(&self.sums), Sums::default());
        let now = sys::monotonic_ns();
        let pause = self.deaths.died(now);
        log(&format!("the placer has died ({}); another is started in {} ms", how(status), pause / 1_000_000));
        self.start_at = Some(now + pause);
        if let Some((first, second)) = &self.pair {
            // The dead placer may have set a bound. Version 1 refuses more to a group within.
            let _ = cgroups.lift_bound(second);
            let moved = [beside(first, second), second].into_iter();
            let held = self.told.keys().map(String::as_str).filter(|group| is_child(group, second));
            for group in moved.chain(held) {
                let share = self.told.get(group).cloned().unwrap_or(GroupShare {
                    cpu_shares: SHARES,
                    quota_milli: 0,
                    idle: 0,
                    group: group.into(),
                });
                if let Err(errno) = cgroups.share_group(&share) {
                    log(&format!("cannot give the group {group} its share again: {errno}"));
                }
            }
        }
        true
    }
}

/// A note's record, with the files that go with it. None: it is not said.
fn opened(note: &Note, cgroups: &mut Cgroups, said: &mut bool) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    match note {
        Note::Yield { version, again, first, second, .. } => {
            let knobs = cgroups.open_knobs(first, second).unwrap_or_else(|errno| {
                log(&format!("procs do not stand aside for others: {errno}"));
                Vec::new()
            });
            let (names, files): (Vec<_>, Vec<_>) = knobs.into_iter().unzip();
            let knobs = names.iter().map(|knob| knob.bit()).sum();
            let (first, second) = (first.clone(), second.clone());
            Some((Note::Yield { version: *version, again: *again, knobs, first, second }.encode(), files))
        }
        Note::Share { group, .. } => match cgroups.open_meter(group) {
            Ok(files) => Some((note.encode(), files.into())),
            Err(errno) => {
                // What fails for one group fails for all.
                if !std::mem::replace(said, true) {
                    log(&format!("cannot hold the group {group} to its shares: {errno}"));
                }
                None
            }
        },
        _ => Some((note.encode(), Vec::new())),
    }
}

/// Starts a placer: this program anew, so that nothing of the launcher's memory is in it.
fn spawn(uid: u32, factory: &Factory) -> Result<Process, Error> {
    let (ours, theirs) = socket::pair().map_err(Error::Pipe)?;
    // With less the rest of what it is told waits here.
    let _ = socket::set_send_buffer(&ours, 1 << 20);
    let leaves = factory.cgroups.open_root().map_err(Error::Cgroup)?;
    let program = sys::openat(libc::AT_FDCWD, c"/proc/self/exe", libc::O_PATH).map_err(Error::Program)?;
    let argv = ["placer".to_string(), FLAG.to_string(), uid.to_string()];
    let argv = argv.map(|arg| CString::new(arg).unwrap_or_default());
    let (argv, envp) = (Pointers::new(&argv), Pointers::new(&[]));
    let fds = [factory.null.as_raw_fd(), theirs.as_raw_fd(), leaves.as_raw_fd(), program.as_raw_fd()];
    let parent = sys::getpid();
    match sys::fork(0).map_err(Error::Fork)? {
        0 => {
            let failed = match prepare(&factory.templates, parent, fds) {
                Ok(program) => sys::exec(program, &argv, &envp, 0),
                Err(errno) => errno,
            };
            log(&format!("the placer cannot be executed: {failed}"));
            sys::exit(127)
        }
        pid => Ok(Process { pid, socket: ours }),
    }
}

/// In the new process: leaves it the null device, stderr, the socket and the leaves. What exec
/// leaves it of root's capabilities the keeper has chosen. Returns where the program is.
fn prepare(templates: &Templates, parent: i32, fds: [RawFd; 4]) -> sys::Result<RawFd> {
    cred::set_death_signal()?;
    if sys::getppid() != parent {
        return Err(Errno(libc::ESRCH));
    }
    sys::reset_signals()?;
    sys::setsid()?;
    namespaces::enter(&templates.network, libc::CLONE_NEWNET)?;
    namespaces::enter(&templates.ipc, libc::CLONE_NEWIPC)?;
    namespaces::enter(&templates.uts, libc::CLONE_NEWUTS)?;
    let mut aside = [0; 4];
    for (aside, fd) in aside.iter_mut().zip(fds) {
        *aside = sys::dup_above(fd, ASIDE)?.into_raw_fd();
    }
    let [null, socket, leaves, program] = aside;
    for (from, to) in [(null, 0), (null, 1), (socket, SOCKET_FD), (leaves, LEAVES_FD)] {
        sys::dup3(from, to, 0)?;
    }
    sys::close_all_but(&mut [0, 1, 2, SOCKET_FD, LEAVES_FD, program])?;
    sys::chdir(c"/")?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    /// A placer that is any process, which says what the test says.
    fn placing(epoll: &Epoll) -> (Placing, Child, OwnedFd) {
        let (ours, theirs) = socket::pair().unwrap();
        epoll.add(ours.as_raw_fd(), libc::EPOLLIN, 4).unwrap();
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let mut placing = Placing::new(1023, 4);
        placing.process = Some(Process { pid: child.id() as i32, socket: ours });
        (placing, child, theirs)
    }

    fn is_killed(mut child: Child) {
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn four_numbers_are_heard_and_whatever_else_ends_the_placer() {
        let epoll = Epoll::new().unwrap();
        for bytes in [0, 1, Sums::BYTES - 1, Sums::BYTES + 1] {
            let (mut placing, child, placer) = placing(&epoll);
            assert_eq!(placing.hear(&epoll), None, "nothing is said");
            let sums = Sums { looks: 7, ..Sums::default() };
            socket::send(placer.as_raw_fd(), &sums.encode()).unwrap();
            assert_eq!(placing.hear(&epoll), Some(sums));
            socket::send(placer.as_raw_fd(), &vec![0xff; bytes]).unwrap();
            assert_eq!(placing.hear(&epoll), None);
            is_killed(child);
        }
        let (mut placing, child, placer) = placing(&epoll);
        let null = sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDONLY).unwrap();
        socket::send_with(placer.as_raw_fd(), [&[0; Sums::BYTES], &[]], &[null.as_raw_fd()]).unwrap();
        assert_eq!(placing.hear(&epoll), None, "a descriptor");
        is_killed(child);
    }

    #[test]
    fn a_placer_that_says_too_much_is_ended() {
        let epoll = Epoll::new().unwrap();
        let (mut placing, child, placer) = placing(&epoll);
        for n in 0..=HEARD_MAX {
            socket::send(placer.as_raw_fd(), &[0; Sums::BYTES]).unwrap();
            assert_eq!(placing.hear(&epoll).is_some(), n < HEARD_MAX, "record {n}");
        }
        is_killed(child);
    }

    #[test]
    fn procs_that_matter_are_told_of() {
        let epoll = Epoll::new().unwrap();
        let (mut placing, mut child, _placer) = placing(&epoll);
        placing.pair = Some(("lc".into(), "rest/be".into()));
        let told = |placing: &mut Placing| {
            let of = |note| match note {
                Note::Enter { group, leaf } => format!("+{group}/{leaf}"),
                Note::Leave { group, leaf } => format!("-{group}/{leaf}"),
                note => format!("{note:?}"),
            };
            placing.waiting.drain(..).map(of).collect::<Vec<_>>()
        };
        for group in ["rest/be/one", "rest/be/one", "lc/one", "lc/one", "rest/services"] {
            placing.enter(group, "x");
        }
        assert_eq!(told(&mut placing), ["+rest/be/one/x", "+lc/one/x", "+lc/one/x"]);
        for group in ["rest/be/one", "lc/one", "rest/be/one", "lc/one", "rest/services", "rest/be/two"] {
            placing.leave(group, "x");
        }
        assert_eq!(told(&mut placing), ["-lc/one/x", "-rest/be/one/x", "-lc/one/x"]);
        assert!(placing.procs.is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
