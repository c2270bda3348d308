//! The parent of everything: starts sigmad and the launcher proper, connects the two, and starts
//! the launcher again when it dies. It serves nobody's requests, so that there is little that could
//! end it.

use crate::backoff::Backoff;
use crate::boot;
use crate::cgroup::{Cgroups, Place};
use crate::config::Config;
use crate::error::{Errno, Error, chain, log};
use crate::factory::Factory;
use crate::fuse::Fuse;
use crate::plan::Bounds;
use crate::proc::Proc;
use crate::protocol::{self, Reply};
use crate::rootless;
use crate::status::{News, Status};
use crate::supervisor::{self, EXIT_PROTOCOL, EXIT_START};
use crate::sys::{self, Epoll, Waited, cred, socket};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

const SECOND: u64 = 1_000_000_000;
/// How long sigmad may take to end after SIGTERM: procs have 5 s of it, and its services 5 s.
const GRACE: u64 = 20 * SECOND;
/// How long the launcher may take to end what it started: it waits a little less for killed
/// processes.
const KILL_PATIENCE: u64 = 25 * SECOND;
/// A system that dies so often before it is this old does not come up; it ends, and `sigma up` says
/// why.
const DEATHS_MAX: u32 = 5;
const YOUNG: u64 = 10 * SECOND;
/// sigmad's cgroup, just left by its last process, is tried again after this time.
const BUSY_RETRY_MS: i32 = 2;
/// The launcher died too often.
const EXIT_DEATHS: i32 = 72;

const SIGNALS: u64 = 0;
const REPORT: u64 = 1;
const SIGMAD: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// sigmad has until this time to end by itself.
    Ending(u64),
    /// Everything has been told to end; gone it should be by this time.
    Killing(u64),
}

/// The launcher proper, as its parent sees it.
struct Launcher {
    pid: i32,
    /// Where it takes its control sockets from. It ends when this is closed.
    to: OwnedFd,
}

struct Keeper<'a> {
    config: &'a Config,
    bounds: Bounds,
    factory: Factory,
    epoll: Epoll,
    signals: OwnedFd,
    status: OwnedFd,
    lock: &'a OwnedFd,
    /// Kept open, so that a reader sees its end when nobody is left to say that the system is
    /// ready.
    ready: OwnedFd,
    /// Handed to sigmad.
    fuse: Option<Fuse>,
    /// As is this.
    listener: Option<TcpListener>,
    /// And this, on which programs with a credential come.
    realm: Option<OwnedFd>,
    sigmad: Option<Proc>,
    to_sigmad: Option<OwnedFd>,
    launcher: Option<Launcher>,
    /// How many launchers were started.
    launchers: u32,
    /// When another sigmad is to be started.
    sigmad_at: Option<u64>,
    /// When another launcher is.
    launcher_at: Option<u64>,
    born: u64,
    /// The deaths of the two.
    deaths: Backoff,
    phase: Phase,
    code: i32,
}

/// Runs until sigmad has ended and nothing is left. Returns the exit code.
pub fn run(config: &Config) -> Result<i32, Error> {
    if let Some(rootless) = &config.rootless {
        rootless::enter(rootless)?;
    }
    let (lock, ready) = (boot::claim(config.lock_fd)?, boot::claim(config.ready_fd)?);
    cred::set_undumpable().map_err(Error::Loop)?;
    if let Err(errno) = cred::pass_on_to_placer() {
        log(&format!("threads will not be placed: {errno}"));
    }
    sys::ignore_sigpipe();
    sys::set_name(c"keeper");
    // Each proc costs about ten descriptors, and children use numbers above 1000.
    if sys::raise_limit(libc::RLIMIT_NOFILE as i32, 1 << 20).map_err(Error::Limits)? < supervisor::NOFILE_MIN {
        return Err(Error::Limits(Errno(libc::EMFILE)));
    }
    // What a launcher that is killed leaves to its parent is reaped here.
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, [1, 0, 0, 0]).map_err(Error::Loop)?;
    let place = Place::of(config.rootless.as_ref());
    let _held = config.hold_fd.map(boot::claim).transpose()?;
    let cgroups = Cgroups::open(&config.instance, &place, None)?;
    cgroups.share(&config.share)?;
    let result = Keeper::new(config, cgroups, &lock, ready).and_then(|mut keeper| {
        let served = keeper.boot().and_then(|()| keeper.serve());
        keeper.close();
        served.map(|()| keeper.code)
    });
    // Also when nothing has run yet: what remains to be undone are the empty cgroups. Whoever
    // starts the next system waits for the lock.
    if let Err(error) = Cgroups::sweep(&config.instance, &place, None) {
        log(&chain(&error));
    }
    see_off();
    if config.realm_fd.is_some() {
        // Nobody listens any more. That it is gone already is no fault.
        let data = std::path::Path::new(std::ffi::OsStr::from_bytes(config.data.as_bytes()));
        let _ = std::fs::remove_file(data.join("realm.sock"));
    }
    drop(lock);
    result
}

/// Waits for the processes that a dead launcher left: all have been killed, and dying takes the
/// kernel a moment.
fn see_off() {
    let deadline = sys::monotonic_ns() + 5 * SECOND;
    while let Ok(waited) = sys::wait(-1, false) {
        if waited.is_none() {
            if sys::monotonic_ns() > deadline {
                return log("a killed process does not end");
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

impl<'a> Keeper<'a> {
    fn new(config: &'a Config, cgroups: Cgroups, lock: &'a OwnedFd, ready: OwnedFd) -> Result<Keeper<'a>, Error> {
        let bounds = boot::bounds(config);
        let (status, reporter) = sys::pipe().map_err(Error::Loop)?;
        let factory = Factory::new(cgroups, &config.data, bounds, reporter)?;
        let signals = sys::signalfd(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT]).map_err(Error::Loop)?;
        let epoll = Epoll::new().map_err(Error::Loop)?;
        epoll.add(signals.as_raw_fd(), libc::EPOLLIN, SIGNALS).map_err(Error::Loop)?;
        let fuse =
            Fuse::mount().inspect_err(|errno| log(&format!("no FUSE, programs are fetched whole: {errno}"))).ok();
        Ok(Keeper {
            config,
            bounds,
            factory,
            epoll,
            signals,
            status,
            lock,
            ready,
            fuse,
            listener: boot::listen(config)?,
            realm: config.realm_fd.map(boot::claim).transpose()?,
            sigmad: None,
            to_sigmad: None,
            launcher: None,
            launchers: 0,
            sigmad_at: None,
            launcher_at: None,
            born: sys::monotonic_ns(),
            deaths: Backoff::default(),
            phase: Phase::Running,
            code: EXIT_START,
        })
    }

    fn boot(&mut self) -> Result<(), Error> {
        self.start_launcher()?;
        self.start_sigmad()?;
        self.connect()
    }

    fn start_sigmad(&mut self) -> Result<(), Error> {
        let (to, from) = socket::pair().map_err(Error::Loop)?;
        let ready = sys::dup_above(self.ready.as_raw_fd(), 3).map_err(Error::Loop)?;
        let (plan, fds) = boot::sigmad(
            self.config,
            self.bounds,
            from,
            ready,
            self.fuse.as_ref(),
            boot::Listening { machines: self.listener.as_ref(), realm: self.realm.as_ref() },
            self.deaths.count(),
        )?;
        let sigmad = self.factory.start(plan, &[], fds, sys::monotonic_ns())?;
        let report = sigmad.report().unwrap_or(-1);
        // Without it sigmad could not be told to end, since its process would not be known.
        self.epoll.add(report, libc::EPOLLIN, REPORT).map_err(Error::Loop)?;
        self.epoll.add(to.as_raw_fd(), libc::EPOLLIN, SIGMAD).map_err(Error::Loop)?;
        (self.sigmad, self.to_sigmad) = (Some(sigmad), Some(to));
        Ok(())
    }

    fn start_launcher(&mut self) -> Result<(), Error> {
        let (to, from) = socket::pair().map_err(Error::Loop)?;
        let parent = sys::getpid();
        match sys::fork(0).map_err(Error::Loop)? {
            0 => {
                // The lock too: a system whose launcher lives is not gone.
                let mut keep = [0, 1, 2, from.as_raw_fd(), self.lock.as_raw_fd()];
                let freed = cred::set_death_signal().and_then(|()| sys::close_all_but(&mut keep));
                if freed.is_err() || sys::getppid() != parent {
                    sys::exit(EXIT_START);
                }
                sys::set_name(c"launcher");
                sys::exit(supervisor::run(self.config, from, self.launchers).unwrap_or_else(|error| {
                    log(&chain(&error));
                    EXIT_START
                }))
            }
            pid => {
                self.launcher = Some(Launcher { pid, to });
                self.launchers = self.launchers.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Makes a control socket and gives sigmad and the launcher an end each. A generation of one
    /// never sees what was meant for another.
    fn connect(&mut self) -> Result<(), Error> {
        let (Some(launcher), Some(to_sigmad)) = (&self.launcher, &self.to_sigmad) else { return Ok(()) };
        let (one, other) = socket::pair().map_err(Error::Loop)?;
        for end in [&one, &other] {
            // Room for some hundred starts in flight. With less, which root in a container may have
            // to live with, sigmad waits a little more.
            let _ = socket::set_send_buffer(end, 1 << 20);
        }
        let record = protocol::control();
        for (to, end) in [(&launcher.to, &one), (to_sigmad, &other)] {
            // If it is dying, its end will be seen.
            if let Err(errno) = socket::send_with(to.as_raw_fd(), [&record, &[]], &[end.as_raw_fd()]) {
                log(&format!("cannot connect sigmad with the launcher: {errno}"));
            }
        }
        Ok(())
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut events = Vec::new();
        while !self.finished() {
            self.epoll.wait(self.timeout_ms(), &mut events).map_err(Error::Loop)?;
            for (token, _) in events.iter().copied() {
                match token {
                    SIGNALS => self.on_signals()?,
                    SIGMAD => self.on_request(),
                    _ => self.on_report(),
                }
            }
            self.finish_sigmad();
            if self.phase == Phase::Running {
                self.start_again()?;
            }
            if let Phase::Ending(deadline) = self.phase
                && sys::monotonic_ns() > deadline
            {
                log("sigmad did not end in time");
                self.end();
            }
        }
        Ok(())
    }

    /// Starts what is due, the launcher first. What cannot be started now may be later: a host that
    /// is out of processes for a moment costs no machine.
    fn start_again(&mut self) -> Result<(), Error> {
        let due = |at: &mut Option<u64>| at.take_if(|time| sys::monotonic_ns() >= *time).is_some();
        // What fails may have been one death too many, after which nothing is started.
        if self.phase == Phase::Running && due(&mut self.launcher_at) {
            let place = Place::of(self.config.rootless.as_ref());
            let swept = Cgroups::sweep(&self.config.instance, &place, Some(boot::GROUP));
            match swept.and_then(|_| self.start_launcher()) {
                Ok(()) => self.connect()?,
                Err(error) => self.launcher_at = self.next("the launcher was not started", &chain(&error)),
            }
        }
        if self.phase == Phase::Running && due(&mut self.sigmad_at) {
            match self.start_sigmad() {
                Ok(()) => self.connect()?,
                Err(error) => self.sigmad_at = self.next("sigmad was not started", &chain(&error)),
            }
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        match self.phase {
            Phase::Running | Phase::Ending(_) => false,
            Phase::Killing(deadline) => {
                self.sigmad.is_none() && self.launcher.is_none() || sys::monotonic_ns() > deadline
            }
        }
    }

    fn timeout_ms(&self) -> i32 {
        if self.sigmad.as_ref().is_some_and(|sigmad| sigmad.waited.is_some()) {
            return BUSY_RETRY_MS;
        }
        let until = |time: u64| (time.saturating_sub(sys::monotonic_ns()) / 1_000_000) as i32 + 1;
        match self.phase {
            Phase::Running => self.sigmad_at.into_iter().chain(self.launcher_at).min().map_or(-1, until),
            Phase::Ending(deadline) | Phase::Killing(deadline) => until(deadline),
        }
    }

    /// Ends what there still is.
    fn end(&mut self) {
        if let Some(sigmad) = &self.sigmad {
            sigmad.kill();
        }
        if let Some(launcher) = &self.launcher {
            // It sees the end of what it has in common with us, kills its children and waits for
            // them.
            socket::shut_down(&launcher.to);
        }
        if !matches!(self.phase, Phase::Killing(_)) {
            self.phase = Phase::Killing(sys::monotonic_ns() + KILL_PATIENCE);
        }
    }

    /// Leaves nothing running, whatever has gone wrong.
    fn close(&mut self) {
        if let Some(sigmad) = &self.sigmad {
            sigmad.kill();
        }
        if let Some(launcher) = self.launcher.take() {
            let _ = sys::kill(launcher.pid, libc::SIGKILL);
            let _ = sys::wait(launcher.pid, true);
        }
    }

    fn on_report(&mut self) {
        let Some(sigmad) = &mut self.sigmad else { return };
        let Some(report) = sigmad.report() else { return };
        // Taken out first: once closed here, a copy in a half-made child would keep it registered.
        let _ = self.epoll.remove(report);
        sigmad.read_reports();
        if sigmad.report().is_some() {
            let _ = self.epoll.add(report, libc::EPOLLIN, REPORT);
        }
    }

    /// sigmad asks for a socket, or has closed its end.
    fn on_request(&mut self) {
        let Some(sigmad) = &self.to_sigmad else { return };
        let mut record = [0; 16];
        let created = match socket::receive(sigmad.as_raw_fd(), &mut record) {
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
            Ok(received) if received.len > 0 => match protocol::socket_family(&record[..received.len]) {
                Some(libc::AF_NETLINK) => socket::tcp_ends(),
                Some(family) => socket::tcp(family),
                None => Err(Errno(libc::EINVAL)),
            },
            // Its end will be seen by its process's.
            _ => {
                let _ = self.epoll.remove(sigmad.as_raw_fd());
                return;
            }
        };
        let errno = created.as_ref().err().map_or(0, |errno| errno.0);
        let fds: Vec<_> = created.iter().map(|socket| socket.as_raw_fd()).collect();
        if let Err(errno) = socket::send_with(sigmad.as_raw_fd(), [&protocol::socket(errno), &[]], &fds) {
            log(&format!("cannot give sigmad a socket: {errno}"));
        }
    }

    fn on_signals(&mut self) -> Result<(), Error> {
        let mut info = [0u8; 128];
        while sys::read(self.signals.as_raw_fd(), &mut info).is_ok() {
            match u32::from_le_bytes([info[0], info[1], info[2], info[3]]) as i32 {
                libc::SIGCHLD => self.reap()?,
                _ if self.phase == Phase::Running => {
                    log("told to end");
                    self.phase = Phase::Ending(sys::monotonic_ns() + GRACE);
                    match self.sigmad.as_ref().map(|sigmad| sigmad.signal(libc::SIGTERM)) {
                        Some(Ok(())) => {}
                        _ => self.end(),
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<(), Error> {
        while let Ok(Some(waited)) = sys::wait(-1, false) {
            if self.sigmad.as_ref().is_some_and(|sigmad| sigmad.init() == Some(waited.pid)) {
                self.on_sigmad_end(waited);
            } else if self.launcher.as_ref().is_some_and(|launcher| launcher.pid == waited.pid) {
                self.on_launcher_end(waited)?;
            }
        }
        Ok(())
    }

    fn on_sigmad_end(&mut self, waited: Waited) {
        let Some(sigmad) = &mut self.sigmad else { return };
        sigmad.waited = Some(waited);
        sigmad.read_reports();
        let mut buf = [0; Status::BYTES];
        while let Ok(Status::BYTES) = sys::read(self.status.as_raw_fd(), &mut buf) {
            if let Some(News::Ended(wait_status)) = Status::decode(&buf).map(|status| status.news) {
                sigmad.wait_status = Some(wait_status);
            }
        }
        if let Some(to) = self.to_sigmad.take() {
            // Taken out first: the launcher's copy, if it has one, would keep it registered.
            let _ = self.epoll.remove(to.as_raw_fd());
        }
        self.finish_sigmad();
    }

    /// Closes the account of sigmad, once its cgroup is not busy any more.
    fn finish_sigmad(&mut self) {
        let Some(mut sigmad) = self.sigmad.take_if(|sigmad| sigmad.waited.is_some()) else { return };
        let Ok(usage) = self.factory.close(&mut sigmad) else { return self.sigmad = Some(sigmad) };
        match sigmad.last_word(usage) {
            // Whoever exits by itself knows that it cannot go on.
            Reply::Exited { wait_status, .. } if self.phase == Phase::Running && is_crash(wait_status) => {
                self.sigmad_at = self.next("sigmad has died", &how(wait_status));
                return;
            }
            Reply::Failed { error, .. } if self.phase == Phase::Running && !self.started_lately() => {
                self.sigmad_at = self.next("sigmad did not start", &chain(&error));
                return;
            }
            Reply::Exited { wait_status, .. } if self.code == EXIT_START => {
                self.code = match libc::WIFEXITED(wait_status) {
                    true => libc::WEXITSTATUS(wait_status),
                    false => 128 + libc::WTERMSIG(wait_status),
                };
            }
            Reply::Failed { error, .. } => log(&format!("sigmad did not start: {}", chain(&error))),
            _ => {}
        }
        self.end();
    }

    /// Its children have died with it. What they leave goes too, before others take their place.
    fn on_launcher_end(&mut self, waited: Waited) -> Result<(), Error> {
        self.launcher = None;
        if self.phase != Phase::Running {
            return Ok(());
        }
        let status = waited.status;
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == EXIT_PROTOCOL {
            self.code = EXIT_PROTOCOL;
            self.end();
            return Ok(());
        }
        self.launcher_at = self.next("the launcher has died, and all procs with it", &how(status));
        self.start_again()
    }

    /// One of the two has died or was not started. When it is to be started again: what runs of the
    /// other goes on until then. None if the system ends.
    fn next(&mut self, what: &str, how: &str) -> Option<u64> {
        let now = sys::monotonic_ns();
        let pause = self.deaths.died(now);
        let count = self.deaths.count();
        if count >= DEATHS_MAX && self.started_lately() {
            log(&format!("{what} ({how}), death {count} within 10 s of the start; the system ends"));
            self.code = EXIT_DEATHS;
            self.end();
            return None;
        }
        log(&format!("{what} ({how}), death {count} of late; another is started in {} ms", pause / 1_000_000));
        Some(now + pause)
    }

    /// Before it has run for a while a system that does not work is one that cannot.
    fn started_lately(&self) -> bool {
        sys::monotonic_ns() - self.born < YOUNG
    }
}

/// Ended by a signal, or by a panic of Go's.
fn is_crash(status: i32) -> bool {
    libc::WIFSIGNALED(status) || libc::WEXITSTATUS(status) == 2
}

pub fn how(status: i32) -> String {
    match libc::WIFEXITED(status) {
        true => format!("exit code {}", libc::WEXITSTATUS(status)),
        false => format!("signal {}", libc::WTERMSIG(status)),
    }
}
