//! The launcher proper: requests in, records out, children reaped, everything removed at the end.

use crate::boot;
use crate::cgroup::{Cgroups, Place};
use crate::config::Config;
use crate::error::{Errno, Error, chain, log};
use crate::factory::Factory;
use crate::parking::Need;
use crate::placing::Placing;
use crate::plan::{self, Bounds, PLACER, Plan};
use crate::proc::{Body, Kept, Proc};
use crate::protocol::{self, MESSAGE_MAX, Reply, Request, Start};
use crate::seats::Lost;
use crate::sockets;
use crate::status::{News, Status};
use crate::sys::{self, Epoll, Waited, socket};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;
/// How long killed processes may take to vanish (uninterruptible I/O) before the launcher gives up.
const KILL_PATIENCE: u64 = 20 * SECOND;
/// Requests served per turn, so that exits are not starved by a flood of starts.
const BATCH: usize = 16;
/// Records that sigmad has not fetched; beyond it no more requests are read. About 4 MiB.
const OUTBOX_MAX: usize = 65_536;
/// Ends that a sigmad has been told of are told to the next one too, since it may have died before
/// it could tell those who wait: so many, for so long.
const ENDED_MAX: usize = 1024;
const ENDED_TIME: u64 = 10 * SECOND;
/// A cgroup whose last process is just being torn down is tried again after this time.
const BUSY_RETRY_MS: i32 = 2;

/// The loop is taken to be at rest after this time without an event. A proc's start and end follow
/// one another faster, and what is prepared between them delays them.
const QUIET_MS: i32 = 1;

/// The hard limit on descriptors below which the launcher does not work.
pub const NOFILE_MIN: u64 = 2048;

/// sigmad or the launcher could not be started.
pub const EXIT_START: i32 = 71;
/// sigmad broke the protocol.
pub const EXIT_PROTOCOL: i32 = 70;

const CONTROL: u64 = 0;
const SIGNALS: u64 = 1;
const KEEPER: u64 = 2;
const STATUS: u64 = 3;
const PLACER_SAYS: u64 = 4;
/// Report sockets are known by init's pid, above the fixed tokens.
const REPORTS: u64 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Everything has been killed; gone it should be by this time.
    Killing(u64),
}

/// A kept proc that has ended.
struct Ended {
    time: u64,
    id: u64,
    pid: u32,
    kept: Kept,
    /// Its last one.
    record: Vec<u8>,
}

pub struct Supervisor {
    bounds: Bounds,
    factory: Factory,
    epoll: Epoll,
    /// Where control sockets come from.
    keeper: OwnedFd,
    /// None before the first has come, and once sigmad has closed its end.
    control: Option<OwnedFd>,
    /// The next one, until all is gone that does not outlive a sigmad.
    next_control: Option<OwnedFd>,
    /// Kept procs that ended lately, the latest last.
    ended: VecDeque<Ended>,
    signals: OwnedFd,
    status: OwnedFd,
    procs: HashMap<u64, Proc>,
    by_pid: HashMap<i32, u64>,
    by_key: HashMap<u64, u64>,
    /// Children that ended before it was known what they were: programs that a seed has not
    /// reported yet.
    strays: HashMap<i32, Waited>,
    /// Ended, but a cgroup of theirs was still busy.
    busy: Vec<u64>,
    outbox: VecDeque<(Vec<u8>, Rc<Vec<OwnedFd>>)>,
    placing: Placing,
    phase: Phase,
    /// Nothing has happened since the last turn.
    quiet: bool,
    code: i32,
    buffer: Vec<u8>,
    /// How many launchers the keeper had before this one.
    before: u32,
    born: u64,
}

/// Runs until the keeper, which had so many launchers before, ends it. Returns the exit code.
pub fn run(config: &Config, keeper: OwnedFd, before: u32) -> Result<i32, Error> {
    // When a program has been executed the launcher is woken, often on the CPU on which the program
    // now runs. As an equal it would wait for the end of the program's slice, some 0.3 ms, before
    // it could say so.
    sys::go_first();
    let mut supervisor = Supervisor::new(config, keeper, before)?;
    let result = supervisor.serve();
    supervisor.kill_all();
    supervisor.factory.end_space();
    result.map(|()| supervisor.code)
}

impl Supervisor {
    fn new(config: &Config, keeper: OwnedFd, before: u32) -> Result<Supervisor, Error> {
        let cgroups = Cgroups::open(&config.instance, &Place::of(config.rootless.as_ref()), Some(boot::GROUP))?;
        let bounds = boot::bounds(config);
        let (status, reporter) = sys::pipe().map_err(Error::Loop)?;
        let mut factory = Factory::new(cgroups, &config.data, bounds, reporter)?;
        factory.open_space()?;
        let signals = sys::signalfd(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT]).map_err(Error::Loop)?;
        let epoll = Epoll::new().map_err(Error::Loop)?;
        for (fd, token) in [(&keeper, KEEPER), (&signals, SIGNALS), (&status, STATUS)] {
            epoll.add(fd.as_raw_fd(), libc::EPOLLIN, token).map_err(Error::Loop)?;
        }
        Ok(Supervisor {
            bounds,
            factory,
            epoll,
            keeper,
            control: None,
            next_control: None,
            ended: VecDeque::new(),
            signals,
            status,
            procs: HashMap::new(),
            by_pid: HashMap::new(),
            by_key: HashMap::new(),
            strays: HashMap::new(),
            busy: Vec::new(),
            outbox: VecDeque::new(),
            placing: Placing::new(bounds.base + PLACER, PLACER_SAYS),
            phase: Phase::Running,
            quiet: false,
            code: 0,
            buffer: vec![0; MESSAGE_MAX],
            before,
            born: sys::monotonic_ns(),
        })
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut events = Vec::new();
        while !self.finished() {
            self.epoll.wait(self.timeout_ms(), &mut events).map_err(Error::Loop)?;
            for (token, ready) in events.iter().copied() {
                match token {
                    CONTROL => self.on_control(ready),
                    KEEPER => self.on_keeper(),
                    SIGNALS => self.on_signals(),
                    STATUS => self.read_statuses(),
                    PLACER_SAYS => self.hear_placer(),
                    _ => self.on_report((token - REPORTS) as i32),
                }
            }
            for id in std::mem::take(&mut self.busy) {
                self.finish(id);
            }
            self.greet();
            self.tell_placer();
            self.prepare(events.is_empty());
        }
        Ok(())
    }

    /// Parks children for the STARTs to come: one a turn, so that what arrives meanwhile waits for
    /// no more.
    fn prepare(&mut self, quiet: bool) {
        self.quiet = quiet;
        if self.phase != Phase::Running {
            return;
        }
        match self.factory.need() {
            Some(need) if quiet || need == Need::Urgent => self.factory.make_parked(),
            _ => {}
        }
        if let Some(tick) = self.factory.next_tick() {
            let now = sys::monotonic_ns();
            if now >= tick {
                self.factory.tend(now);
                self.factory.spare_seeds(self.procs.values_mut(), now);
            }
        }
    }

    fn finished(&self) -> bool {
        match self.phase {
            Phase::Running => false,
            Phase::Killing(deadline) => {
                self.procs.is_empty() && !self.factory.leaving() || sys::monotonic_ns() > deadline
            }
        }
    }

    fn timeout_ms(&self) -> i32 {
        if !self.busy.is_empty() {
            return BUSY_RETRY_MS;
        }
        let until = |deadline: u64| (deadline.saturating_sub(sys::monotonic_ns()) / 1_000_000) as i32 + 1;
        match self.phase {
            Phase::Running => match (self.factory.need(), self.next_tick()) {
                (Some(Need::Urgent), _) => 0,
                (Some(Need::AtRest), _) if self.quiet => 0,
                (Some(Need::AtRest), _) => QUIET_MS,
                (None, Some(tick)) => until(tick),
                (None, None) => -1,
            },
            Phase::Killing(deadline) => until(deadline),
        }
    }

    /// What is to be done at a time of its own: seats once a second, and the start of a placer.
    fn next_tick(&self) -> Option<u64> {
        self.factory.next_tick().into_iter().chain(self.placing.next_start()).min()
    }

    /// Starts a placer if that is due, and tells it what is new.
    fn tell_placer(&mut self) {
        if self.phase == Phase::Running {
            self.placing.start(&self.epoll, &mut self.factory, self.procs.values());
            self.placing.flush(&self.epoll, &mut self.factory.cgroups);
        }
    }

    fn hear_placer(&mut self) {
        if let Some(sums) = self.placing.hear(&self.epoll) {
            self.send(&Reply::Yielded(sums));
        }
    }

    fn kill_all(&mut self) {
        self.procs.values_mut().for_each(|proc| self.factory.kill(proc));
        self.factory.discard_parked();
        if !matches!(self.phase, Phase::Killing(_)) {
            self.phase = Phase::Killing(sys::monotonic_ns() + KILL_PATIENCE);
        }
    }

    /// The keeper sends a control socket for each sigmad, and ends us by closing its end.
    fn on_keeper(&mut self) {
        let mut record = [0; 64];
        match socket::receive(self.keeper.as_raw_fd(), &mut record) {
            Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
            Ok(received) if received.len > 0 => {
                let Some(control) = received.fds.into_iter().next() else { return };
                self.close_control();
                self.next_control = Some(control);
            }
            _ => {
                let _ = self.epoll.remove(self.keeper.as_raw_fd());
                self.close_control();
                self.kill_all();
            }
        }
    }

    fn on_control(&mut self, ready: u32) {
        if ready & libc::EPOLLOUT as u32 != 0 {
            self.flush();
        }
        if ready & !(libc::EPOLLOUT as u32) == 0 {
            return;
        }
        for _ in 0..BATCH {
            let Some(control) = &self.control else { return };
            if self.outbox.len() >= OUTBOX_MAX {
                // Who closes the socket without having read will not read; and a hang-up cannot be
                // masked.
                if ready & libc::EPOLLHUP as u32 != 0 {
                    self.close_control();
                }
                return;
            }
            let received = match socket::receive(control.as_raw_fd(), &mut self.buffer) {
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
                Err(_) => return self.close_control(),
                // A record without bytes is not one of ours either way.
                Ok(received) if received.len == 0 => return self.close_control(),
                Ok(received) => received,
            };
            let now = sys::monotonic_ns();
            let request = match received.truncated {
                true => Err(Error::Malformed("too long")),
                false => protocol::decode(&self.buffer[..received.len]),
            };
            let served = request.and_then(|request| match received.short {
                true => self.serve_short(request),
                false => self.serve_request(request, received.len, received.fds, now),
            });
            if let Err(error) = served {
                log(&chain(&error));
                self.code = EXIT_PROTOCOL;
                self.close_control();
                return self.kill_all();
            }
        }
    }

    /// A request whose descriptors this process had no room for: a START fails, a KEEP is as if it
    /// had not come.
    fn serve_short(&mut self, request: Request) -> Result<(), Error> {
        match request {
            Request::Start(start) => {
                let error = Error::Descriptors(Errno(libc::EMFILE));
                self.send(&Reply::Failed { id: start.id, error });
                Ok(())
            }
            Request::Keep { .. } => Ok(()),
            _ => Err(Error::Malformed("descriptors without a START")),
        }
    }

    fn serve_request(&mut self, request: Request, len: usize, fds: Vec<OwnedFd>, now: u64) -> Result<(), Error> {
        match request {
            Request::Start(start) if fds.len() != Plan::descriptors(&start) => {
                Err(Error::Malformed("the descriptors are not as many as the message says"))
            }
            Request::Start(start) => {
                self.on_start(start, len, fds, now);
                Ok(())
            }
            Request::Keep { id, label } => {
                let proc = self.procs.get_mut(&id).filter(|_| fds.len() <= protocol::KEPT_MAX);
                if let Some(proc) = proc {
                    match &mut proc.kept {
                        Some(kept) if fds.is_empty() => kept.label = label,
                        None if fds.is_empty() => {}
                        kept => *kept = Some(Kept { label, files: Rc::new(fds) }),
                    }
                }
                Ok(())
            }
            _ if !fds.is_empty() => Err(Error::Malformed("descriptors without a START")),
            // The proc may have ended while the message was under way, so an unknown id is no
            // error.
            Request::Kill { id } => {
                if let Some(proc) = self.procs.get_mut(&id) {
                    if !proc.killed {
                        proc.at_kill = self.factory.cgroups.read_meter(proc.leaf(), proc.helpers());
                    }
                    proc.killed = true;
                    self.factory.kill(proc);
                }
                Ok(())
            }
            Request::Signal { id, signo } => {
                self.on_signal_request(id, signo as i32);
                Ok(())
            }
            Request::Group(share) => {
                self.placing.share(share, &mut self.factory.cgroups);
                Ok(())
            }
            Request::Drop { group } => {
                let group = String::from_utf8_lossy(&group);
                self.placing.drop(&group);
                self.factory.drop_group(&group, sys::monotonic_ns());
                Ok(())
            }
            Request::Yield { first, second } => {
                self.placing.set_pair([&first, &second], &self.factory.cgroups, self.procs.values());
                Ok(())
            }
            Request::Freeze { id } => {
                let errno = self.hold(id, Factory::freeze);
                self.send(&Reply::Frozen { id, errno });
                Ok(())
            }
            Request::Thaw { id } => {
                let errno = self.hold(id, Factory::thaw);
                self.send(&Reply::Thawed { id, errno });
                Ok(())
            }
            // Answered for an unknown id too, with nothing: whoever asked waits.
            Request::Meter { id } => {
                let proc = self.procs.get(&id);
                let reading =
                    proc.map(|proc| self.factory.cgroups.read_meter(proc.leaf(), proc.helpers())).unwrap_or_default();
                self.send(&Reply::Metered { id, reading });
                Ok(())
            }
            // An unknown id has none, which is an answer too.
            Request::Sockets { id, ask, shut, mut inodes } => {
                inodes.sort_unstable();
                let pids = self.procs.get(&id).map(|proc| self.processes(proc)).unwrap_or_default();
                self.send(&Reply::Sockets { ask, found: sockets::find(&pids, &inodes, shut) });
                Ok(())
            }
        }
    }

    /// A proc's processes, and ours in its leaf. Without cgroups only the first of them is known.
    fn processes(&self, proc: &Proc) -> Vec<i32> {
        let members = self.factory.cgroups.members(proc.leaf()).unwrap_or_default();
        if members.is_empty() { proc.main.into_iter().collect() } else { members }
    }

    fn hold(&mut self, id: u64, act: impl Fn(&Factory, &mut Proc) -> sys::Result<()>) -> i32 {
        let Some(proc) = self.procs.get_mut(&id).filter(|proc| proc.started) else { return libc::ESRCH };
        act(&self.factory, proc).err().map_or(0, |errno| errno.0)
    }

    /// `len` bytes of the buffer are the record that `start` was decoded from.
    fn on_start(&mut self, start: Start, len: usize, fds: Vec<OwnedFd>, now: u64) {
        let id = start.id;
        let started = match self.procs.contains_key(&id) {
            true => Err(Error::Plan(Errno(libc::EEXIST))),
            false => plan::plan(start, self.bounds),
        };
        let record = &self.buffer[..len];
        let started = started.and_then(|plan| self.factory.start(plan, record, fds, now));
        match started {
            Ok(proc) => self.adopt(proc),
            Err(error) => self.send(&Reply::Failed { id, error }),
        }
    }

    fn on_signal_request(&mut self, id: u64, signo: i32) {
        let allowed =
            [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGCONT, libc::SIGSTOP];
        if !allowed.contains(&signo) {
            return log(&format!("signal {signo} is not one that sigmad may send"));
        }
        match self.procs.get(&id).map(|proc| proc.signal(signo)) {
            None | Some(Ok(())) | Some(Err(Errno(libc::ESRCH))) => {}
            Some(Err(errno)) => log(&format!("cannot signal {id}: {errno}")),
        }
    }

    fn adopt(&mut self, proc: Proc) {
        if let Body::Tree(tree) = &proc.body {
            let report = tree.report.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            // Only its end is waited for, which an empty set of events does: what came before is
            // read with it.
            let watched = self.epoll.add(report, 0, REPORTS + tree.pid as u64);
            if watched.is_err() {
                // Its end is seen by SIGCHLD, upon which the account is closed as FAILED.
                proc.kill();
            }
            self.by_pid.insert(tree.pid, proc.id);
        }
        let cgroups = &self.factory.cgroups;
        self.placing.enter(cgroups.group_of(proc.leaf()), &cgroups.name_of(proc.leaf()));
        self.by_key.insert(proc.key(), proc.id);
        self.procs.insert(proc.id, proc);
    }

    fn on_report(&mut self, pid: i32) {
        if let Some(id) = self.by_pid.get(&pid) {
            self.read_reports(*id);
        }
    }

    fn read_reports(&mut self, id: u64) {
        let Some(proc) = self.procs.get_mut(&id) else { return };
        let Body::Tree(tree) = &proc.body else { return };
        let Some(report) = &tree.report else { return };
        // Taken out first: once closed here, a copy in a half-made child would keep it registered.
        let (fd, pid) = (report.as_raw_fd(), tree.pid);
        let _ = self.epoll.remove(fd);
        let started = proc.read_reports();
        if matches!(&proc.body, Body::Tree(tree) if tree.report.is_some()) {
            let _ = self.epoll.add(fd, 0, REPORTS + pid as u64);
        }
        if let Some(reply) = started {
            self.send(&reply);
        }
    }

    fn on_signals(&mut self) {
        let mut info = [0u8; 128];
        while sys::read(self.signals.as_raw_fd(), &mut info).is_ok() {
            match u32::from_le_bytes([info[0], info[1], info[2], info[3]]) as i32 {
                libc::SIGCHLD => self.reap(),
                // Not the way to end it, but one that leaves nothing: the keeper starts another.
                _ => {
                    log("told to end");
                    self.kill_all();
                }
            }
        }
    }

    fn reap(&mut self) {
        while let Ok(Some(waited)) = sys::wait(-1, false) {
            // What an init or a seed wrote before its end is in the pipe by now.
            self.read_statuses();
            self.on_waited(waited);
        }
    }

    fn on_waited(&mut self, waited: Waited) {
        if self.placing.lost(waited.pid, waited.status, &mut self.factory.cgroups) {
            return;
        }
        let Some(id) = self.by_pid.remove(&waited.pid) else {
            return match self.factory.lost(waited.pid) {
                Lost::Seed(key) => self.on_seed_end(key),
                Lost::Stranger => drop(self.strays.insert(waited.pid, waited)),
                Lost::Ours => {}
            };
        };
        if let Some(proc) = self.procs.get_mut(&id) {
            proc.waited = Some(waited);
        }
        self.finish(id);
    }

    /// The seed of a seat has ended while a proc was in it.
    fn on_seed_end(&mut self, key: u64) {
        let Some(proc) = self.by_key.get(&key).and_then(|id| self.procs.get_mut(id)) else { return };
        if let Body::Seat(seat) = &mut proc.body {
            seat.seed = None;
        }
        if !proc.started && proc.failure.is_none() {
            self.on_news(key, News::Failed(Error::Init(Errno(libc::ECHILD))));
        }
    }

    fn read_statuses(&mut self) {
        let mut buf = [0; 64 * Status::BYTES];
        while let Ok(len @ 1..) = sys::read(self.status.as_raw_fd(), &mut buf) {
            for record in buf[..len].as_chunks().0 {
                let Some(status) = Status::decode(record) else { continue };
                self.on_news(status.key, status.news);
            }
            if len < buf.len() {
                return;
            }
        }
    }

    fn on_news(&mut self, key: u64, news: News) {
        let Some(id) = self.by_key.get(&key).copied() else { return };
        let Some(proc) = self.procs.get_mut(&id) else { return };
        if let News::Ended(wait_status) = news {
            proc.wait_status = Some(wait_status);
            return;
        }
        let main = proc.note(news);
        let held = std::mem::take(&mut proc.held);
        // Who was to be killed while its seed was making it had no process yet.
        if proc.killed || !proc.started || self.phase != Phase::Running {
            self.factory.kill(proc);
        }
        let reply = match news {
            News::Started { exec, .. } if proc.started => Some(proc.first_word(exec)),
            _ => None,
        };
        if let Some(main) = main {
            proc.waited = self.strays.remove(&main);
            if proc.waited.is_none() {
                self.by_pid.insert(main, id);
            }
        }
        if let Some(reply) = reply {
            self.send(&reply);
        }
        drop(held);
        self.finish(id);
    }

    /// Closes the account of a proc of which the launcher's own child has been waited for.
    fn finish(&mut self, id: u64) {
        self.read_reports(id);
        let Some(proc) = self.procs.get_mut(&id).filter(|proc| proc.is_over()) else { return };
        let Ok(usage) = self.factory.close(proc) else { return self.busy.push(id) };
        let reply = proc.last_word(usage);
        self.remember(id, protocol::encode(&reply));
        self.send(&reply);
        let Some(proc) = self.procs.remove(&id) else { return };
        self.by_key.remove(&proc.key());
        let cgroups = &self.factory.cgroups;
        self.placing.leave(cgroups.group_of(proc.leaf()), &cgroups.name_of(proc.leaf()));
        if let Body::Seat(seat) = proc.body {
            self.factory.take_back(seat, &usage);
        }
    }

    /// sigmad is gone. What it has not asked to be kept goes too.
    fn close_control(&mut self) {
        if let Some(control) = self.control.take() {
            let _ = self.epoll.remove(control.as_raw_fd());
            for proc in self.procs.values_mut().filter(|proc| proc.kept.is_none()) {
                proc.killed = true;
                self.factory.kill(proc);
            }
        }
        self.outbox.clear();
    }

    /// Begins with the next sigmad, when nothing is left but what it takes over: tells it of each
    /// proc.
    fn greet(&mut self) {
        if self.next_control.is_none() || self.phase != Phase::Running {
            return;
        }
        if self.procs.values().any(|proc| proc.kept.is_none()) {
            return;
        }
        let Some(control) = self.next_control.take() else { return };
        if let Err(errno) = self.epoll.add(control.as_raw_fd(), libc::EPOLLIN, CONTROL) {
            return log(&format!("cannot take a control socket: {errno}"));
        }
        self.control = Some(control);
        self.forget(sys::monotonic_ns());
        for ended in std::mem::take(&mut self.ended) {
            self.outbox.push_back((protocol::adopt(ended.id, ended.pid, &ended.kept.label), ended.kept.files));
            self.outbox.push_back((ended.record, Rc::default()));
        }
        let mut procs: Vec<&Proc> = self.procs.values().collect();
        procs.sort_by_key(|proc| proc.id);
        for proc in procs {
            let Some(kept) = &proc.kept else { continue };
            self.outbox
                .push_back((protocol::adopt(proc.id, proc.main.unwrap_or(0) as u32, &kept.label), kept.files.clone()));
        }
        let age_s = (sys::monotonic_ns() - self.born) / SECOND;
        self.outbox.push_back((protocol::done(self.before, age_s as u32), Rc::default()));
        self.flush();
    }

    /// Remembers the end of a proc that was kept. Its descriptors are needed only by a sigmad that
    /// has not had them.
    fn remember(&mut self, id: u64, record: Vec<u8>) {
        let Some((pid, kept)) =
            self.procs.get_mut(&id).and_then(|proc| Some((proc.main.unwrap_or(0) as u32, proc.kept.take()?)))
        else {
            return;
        };
        let time = sys::monotonic_ns();
        self.forget(time);
        let files = if self.control.is_some() { Rc::default() } else { kept.files };
        self.ended.push_back(Ended { time, id, pid, kept: Kept { files, ..kept }, record });
    }

    fn forget(&mut self, now: u64) {
        while self.ended.front().is_some_and(|old| {
            // What nobody has been told of stays.
            self.ended.len() > ENDED_MAX || old.kept.files.is_empty() && now - old.time > ENDED_TIME
        }) {
            self.ended.pop_front();
        }
    }

    /// Sends a record, or keeps it until sigmad makes room.
    fn send(&mut self, reply: &Reply) {
        if self.control.is_some() {
            self.outbox.push_back((protocol::encode(reply), Rc::default()));
            if self.outbox.len() == 1 {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        let Some(control) = &self.control else { return };
        let fd = control.as_raw_fd();
        while let Some((record, files)) = self.outbox.front() {
            let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
            let sent = match files.is_empty() {
                true => socket::send(fd, record),
                false => match socket::send_with(fd, [record, &[]], &files) {
                    Err(Errno(libc::EAGAIN | libc::ENOBUFS)) => Ok(false),
                    sent => sent.map(|()| true),
                },
            };
            match sent {
                Ok(true) => drop(self.outbox.pop_front()),
                Ok(false) => break,
                // The end of the socket is seen, and acted upon, by the next receive.
                Err(_) => self.outbox.clear(),
            }
        }
        let waiting = if self.outbox.is_empty() { 0 } else { libc::EPOLLOUT };
        let reading = if self.outbox.len() < OUTBOX_MAX { libc::EPOLLIN } else { 0 };
        let _ = self.epoll.modify(fd, waiting | reading, CONTROL);
    }
}
