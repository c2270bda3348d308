//! A machine for tests: a launcher of its own instance, with the test in the role of sigmad.
//! Records are encoded here by hand from the document, so that the launcher's codec is not checked
//! against itself.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits before it gives up: on a host that is slow, or stands still for some
/// seconds, too.
pub const PATIENCE: Duration = Duration::from_secs(60);
const RECORD_MS: i32 = PATIENCE.as_millis() as i32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Started { id: u64, pid: i32, received: u64, cloned: u64, contained: u64, exec: u64 },
    Failed { id: u64, errno: i32, step: String },
    Exited { id: u64, status: i32, flags: u32, user_us: u64, system_us: u64, memory_peak: u64 },
    Metered { id: u64, user_us: u64, memory: u64, memory_peak: u64, tasks: u32 },
    Frozen { id: u64, errno: i32 },
    Thawed { id: u64, errno: i32 },
    Adopt { id: u64, label: Vec<u8> },
}

/// A START with defaults that suit most tests.
pub struct Start<'a> {
    pub id: u64,
    pub weaken: u32,
    pub profile: u32,
    pub uid: u32,
    pub gid: u32,
    pub pids_max: u32,
    pub memory_max: u64,
    pub nofile: u32,
    pub group: &'a str,
    pub argv: Vec<&'a str>,
    pub envp: Vec<&'a str>,
    pub targets: Vec<u32>,
}

impl Start<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut m = vec![1, 0, 1, 0];
        m.extend(self.weaken.to_le_bytes());
        m.extend(self.id.to_le_bytes());
        for field in [self.profile, self.uid, self.gid, self.pids_max] {
            m.extend(field.to_le_bytes());
        }
        m.extend(self.memory_max.to_le_bytes());
        m.extend(1024u32.to_le_bytes());
        m.extend(self.nofile.to_le_bytes());
        for count in [self.argv.len(), self.envp.len(), self.targets.len(), self.group.len(), 0] {
            m.extend((count as u16).to_le_bytes());
        }
        self.targets.iter().for_each(|target| m.extend(target.to_le_bytes()));
        m.extend(self.group.as_bytes());
        for string in self.argv.iter().chain(&self.envp) {
            m.extend((string.len() as u32).to_le_bytes());
            m.extend(string.as_bytes());
        }
        m
    }
}

pub struct Machine {
    pub launcher: Child,
    pub instance: String,
    pub base: u32,
    dir: PathBuf,
    socket: Option<OwnedFd>,
    /// Records that came while a send had to wait: the probe relays one way at a time.
    early: RefCell<VecDeque<Vec<u8>>>,
}

/// Prints why and returns true when root is missing.
pub fn skipped() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIP: needs root to make procs");
    }
    !root
}

fn new_instance() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // The low bits choose the uids, which must differ from those of another run at the same time.
    let (pid, count) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    format!("{:04x}{:04x}", pid & 0xffff, (pid.wrapping_mul(61) + count) & 0xffff)
}

impl Machine {
    pub fn boot(flags: &[&str]) -> Machine {
        let instance = new_instance();
        let dir = std::env::temp_dir().join(format!("sigma-launcher-test-{instance}"));
        std::fs::create_dir(&dir).expect("a directory of our own");
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
        Machine::boot_in(dir, instance, flags)
    }

    fn boot_in(dir: PathBuf, instance: String, flags: &[&str]) -> Machine {
        let launcher_path = PathBuf::from(env!("CARGO_BIN_EXE_launcher"));
        let probe = launcher_path.parent().unwrap().join("examples/probe");
        let (ours, theirs) = seqpacket();
        let lock = File::create(dir.join("lock")).unwrap();
        let (lock_fd, ready_fd) = (lock.as_raw_fd(), theirs.as_raw_fd());
        let mut command = Command::new(launcher_path);
        command.arg("--data").arg(&dir).args(["--machine", "m", "--instance", &instance]);
        command.args(["--lock-fd", &lock_fd.to_string(), "--ready-fd", &ready_fd.to_string()]);
        command.arg("--program").arg(format!("sigmad={}", probe.display()));
        command.arg("--program").arg(format!("named={}", probe.display())).args(flags);
        // SAFETY: fcntl is async-signal-safe; only this child's copies lose close-on-exec.
        unsafe {
            command.pre_exec(move || {
                for fd in [lock_fd, ready_fd] {
                    libc::fcntl(fd, libc::F_SETFD, 0);
                }
                Ok(())
            })
        };
        let launcher = command.spawn().expect("the launcher starts");
        let number = u32::from_str_radix(&instance, 16).unwrap();
        let base = 0x4000_0000 + (number % 1024) * (1 << 20);
        Machine { launcher, instance, base, dir, socket: Some(ours), early: RefCell::default() }
    }

    /// Kills the keeper as a crash would, then boots another in its place when the launcher has
    /// died with it.
    pub fn crash_and_reboot(mut self) -> Machine {
        let launcher = self.launcher_pid().expect("the launcher runs");
        self.launcher.kill().unwrap();
        self.launcher.wait().unwrap();
        // Where there is a lock, whoever starts the next would wait for that.
        let name = || std::fs::read_to_string(format!("/proc/{launcher}/cmdline")).unwrap_or_default();
        while name().contains(&self.instance) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (dir, instance) = (std::mem::take(&mut self.dir), std::mem::take(&mut self.instance));
        Machine::boot_in(dir, instance, &[])
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn hello<'a>(&self, id: u64, argv: &[&'a str]) -> Start<'a> {
        Start {
            id,
            weaken: 0,
            profile: 0,
            uid: 0,
            gid: self.base + 1024,
            pids_max: 32,
            memory_max: 64 << 20,
            nofile: 2048,
            group: "default/be",
            argv: [&["victim"], argv].concat(),
            envp: vec!["NAME=test"],
            targets: vec![],
        }
    }

    /// Sends a START with the program and the descriptors for its targets.
    pub fn start(&self, start: &Start, program: &File, fds: &[RawFd]) {
        self.send(&start.encode(), &[&[program.as_raw_fd()], fds].concat());
    }

    pub fn kill(&self, id: u64) {
        self.send(&[&[2, 0, 1, 0], &id.to_le_bytes()[..]].concat(), &[]);
    }

    pub fn freeze(&self, id: u64) -> Reply {
        self.send(&[&[4, 0, 1, 0], &id.to_le_bytes()[..]].concat(), &[]);
        self.reply()
    }

    pub fn thaw(&self, id: u64) -> Reply {
        self.send(&[&[5, 0, 1, 0], &id.to_le_bytes()[..]].concat(), &[]);
        self.reply()
    }

    pub fn signal(&self, id: u64, signo: i32) {
        self.send(&[&[3, 0, 1, 0], &id.to_le_bytes()[..], &signo.to_le_bytes()].concat(), &[]);
    }

    /// Kills the launcher proper, and returns when sigmad has heard of it.
    pub fn kill_launcher(&self) {
        assert!(self.kill_launcher_if_any(), "the launcher runs");
        let early: Vec<_> = self.early.borrow_mut().drain(..).collect();
        assert!(early.into_iter().chain(std::iter::repeat_with(|| self.receive())).any(|record| record == [0; 4]));
    }

    /// Of the launcher proper, which is a child of the keeper that the test started.
    fn launcher_pid(&self) -> Option<i32> {
        let is_launcher = |pid: &i32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == "launcher"
        };
        children(self.launcher.id()).into_iter().find(is_launcher)
    }

    fn kill_launcher_if_any(&self) -> bool {
        // SAFETY: kill takes plain numbers; the process is a child of this test's keeper.
        self.launcher_pid().is_some_and(|pid| unsafe { libc::kill(pid, libc::SIGKILL) } == 0)
    }

    /// Kills each launcher as soon as there is one, until the system has ended.
    pub fn kill_launchers(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                return status;
            }
            self.kill_launcher_if_any();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks that a proc outlive its sigmad.
    pub fn keep(&self, id: u64, label: &[u8], fds: &[RawFd]) {
        let len = label.len() as u16;
        self.send(&[&[9, 0, 1, 0], &id.to_le_bytes()[..], &len.to_le_bytes(), label].concat(), fds);
    }

    /// Kills the probe in the role of sigmad.
    pub fn kill_sigmad(&self) {
        let uid_line = format!("Uid:\t{}\t", self.base + 1);
        let is_sigmad = |pid: &&i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.contains(&uid_line)
        };
        let sigmad = *self.processes().iter().find(is_sigmad).expect("the probe runs");
        // SAFETY: kill takes plain numbers; the process is the probe that this test's keeper
        // started.
        unsafe { libc::kill(sigmad, libc::SIGKILL) };
    }

    /// Says that nobody needs a group any more.
    pub fn drop_group(&self, group: &str) {
        self.send(&[&[13, 0, 1, 0], &(group.len() as u16).to_le_bytes()[..], group.as_bytes()].concat(), &[]);
    }

    /// Gives a group its weight.
    pub fn share_group(&self, group: &str, shares: u32) {
        let rest = [&[0; 8], &(group.len() as u16).to_le_bytes()[..], group.as_bytes()].concat();
        self.send(&[&[10, 0, 1, 0], &shares.to_le_bytes()[..], &rest].concat(), &[]);
    }

    /// Has one group stand aside for another.
    pub fn stand_aside(&self, first: &str, second: &str) {
        let name = |group: &str| [&(group.len() as u16).to_le_bytes()[..], group.as_bytes()].concat();
        self.send(&[&[12, 0, 1, 0][..], &name(first), &name(second)].concat(), &[]);
    }

    /// The placer, once there is one that has confined itself and is not this one.
    pub fn await_placer(&self, but: i32) -> i32 {
        let end = Instant::now() + PATIENCE;
        loop {
            let launcher = self.launcher_pid().expect("the launcher runs");
            let is_placer = |pid: &i32| {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                status.starts_with("Name:\tplacer\n") && status.contains("\nSeccomp:\t2\n")
            };
            let found = children(launcher as u32).into_iter().find(is_placer);
            if let Some(pid) = found.filter(|pid| *pid != but) {
                return pid;
            }
            assert!(Instant::now() < end, "there is no placer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// In how many hierarchies a group exists.
    pub fn hierarchies_with(&self, group: &str) -> usize {
        self.cgroups().iter().filter(|root| Path::new(root).join(group).is_dir()).count()
    }

    /// Asks what a proc uses now.
    pub fn meter(&self, id: u64) -> Reply {
        self.send(&[&[8, 0, 1, 0], &id.to_le_bytes()[..]].concat(), &[]);
        self.reply()
    }

    /// Starts the victim with its stdout in a pipe; returns what it wrote and how it ended.
    pub fn run(&self, id: u64, argv: &[&str]) -> (String, Reply) {
        let (mut reader, writer) = pipe();
        let mut start = self.hello(id, argv);
        start.targets = vec![1];
        self.start(&start, &victim(), &[writer.as_raw_fd()]);
        drop(writer);
        assert!(matches!(self.reply(), Reply::Started { .. }));
        let mut output = String::new();
        reader.read_to_string(&mut output).unwrap();
        (output, self.reply())
    }

    pub fn send(&self, record: &[u8], fds: &[RawFd]) {
        let mut control = [0u64; 256];
        let mut iov = libc::iovec { iov_base: record.as_ptr().cast_mut().cast(), iov_len: record.len() };
        // SAFETY: every pointer in msg is to a live local or parameter; the control buffer has room
        // for the one header with its at most 253 descriptors.
        unsafe {
            let mut msg: libc::msghdr = std::mem::zeroed();
            msg.msg_iov = &mut iov;
            msg.msg_iovlen = 1;
            if !fds.is_empty() {
                let bytes = size_of_val(fds) as u32;
                msg.msg_control = control.as_mut_ptr().cast();
                msg.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
                let header = libc::CMSG_FIRSTHDR(&msg);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
                std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(header).cast(), fds.len());
            }
            let socket = self.socket.as_ref().unwrap().as_raw_fd();
            loop {
                let sent = libc::sendmsg(socket, &msg, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
                if sent == record.len() as isize {
                    return;
                }
                let error = std::io::Error::last_os_error();
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "send: {error}");
                let mut poll = libc::pollfd { fd: socket, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
                assert_eq!(libc::poll(&mut poll, 1, RECORD_MS), 1, "neither room nor a record for a minute");
                if poll.revents & libc::POLLIN != 0 {
                    self.early.borrow_mut().push_back(self.receive());
                }
            }
        }
    }

    /// The next record; fails the test after a minute without one.
    pub fn reply(&self) -> Reply {
        loop {
            let early = self.early.borrow_mut().pop_front();
            let record = early.unwrap_or_else(|| self.receive());
            // DONE only says that what follows is about this sigmad's own, and YIELDED answers
            // nothing.
            if ![26, 28].contains(&record[0]) {
                return decode(&record);
            }
        }
    }

    fn receive(&self) -> Vec<u8> {
        let socket = self.socket.as_ref().unwrap().as_raw_fd();
        let mut poll = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
        let mut record = [0u8; 1024];
        // SAFETY: pointers and lengths are those of live locals.
        let len = unsafe {
            assert_eq!(libc::poll(&mut poll, 1, RECORD_MS), 1, "no record for a minute");
            libc::recv(socket, record.as_mut_ptr().cast(), record.len(), 0)
        };
        assert!(len > 0, "the launcher is gone");
        record[..len as usize].to_vec()
    }

    /// Ends the probe with a code and waits for the launcher.
    pub fn end(&mut self, code: u8) -> ExitStatus {
        self.send(&[0xff, code], &[]);
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the launcher did not end");
    }

    /// Names everything of this instance that stays: cgroups, mounts, processes by uid. Dying takes
    /// the kernel a moment.
    pub fn leftovers(&self) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.found();
            if found.is_empty() || Instant::now() > end {
                return found;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn found(&self) -> Vec<String> {
        let mut found = self.cgroups();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        found.extend(mounts.lines().filter(|l| l.contains(self.dir.to_str().unwrap())).map(String::from));
        found.extend(self.processes().iter().map(|pid| format!("process {pid}")));
        found
    }

    pub fn cgroups(&self) -> Vec<String> {
        let name = format!("sigma-{}", self.instance);
        let roots = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
        let roots = roots.map(|entry| entry.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
        roots.map(|root| root.join(&name)).filter(|p| p.exists()).map(|p| p.display().to_string()).collect()
    }

    /// Processes whose uid or gid (a seed keeps uid 0) is in the instance's range.
    pub fn processes(&self) -> Vec<i32> {
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let ours = |pid: &i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let range = self.base..self.base + (1 << 20);
            ["Uid:\t", "Gid:\t"].iter().any(|name| id_of(&status, name).is_some_and(|id| range.contains(&id)))
        };
        pids.filter(ours).collect()
    }

    /// Waits until so many processes of the instance are left: dying takes the kernel a moment.
    pub fn settle(&self, count: usize) {
        let end = Instant::now() + PATIENCE;
        while self.processes().len() > count && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Machine {
    /// Also when a test fails: nothing may stay on the machine.
    fn drop(&mut self) {
        if self.instance.is_empty() {
            return;
        }
        self.socket = None;
        let end = Instant::now() + PATIENCE;
        while matches!(self.launcher.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        self.settle(0);
        for root in self.cgroups() {
            remove_cgroups(Path::new(&root));
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn remove_cgroups(path: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroups(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(path);
}

fn decode(record: &[u8]) -> Reply {
    let u32_at = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
    assert_eq!(record[2..4], [1, 0], "version");
    let id = u64_at(4);
    match (record[0], record.len()) {
        (16, 48) => Reply::Started {
            id,
            pid: u32_at(12) as i32,
            received: u64_at(16),
            cloned: u64_at(24),
            contained: u64_at(32),
            exec: u64_at(40),
        },
        (17, len) => {
            assert_eq!(len, 20 + u16::from_le_bytes([record[18], record[19]]) as usize);
            Reply::Failed { id, errno: u32_at(12) as i32, step: String::from_utf8(record[20..].to_vec()).unwrap() }
        }
        (20, 16) => Reply::Frozen { id, errno: u32_at(12) as i32 },
        (21, 16) => Reply::Thawed { id, errno: u32_at(12) as i32 },
        (18, 44) => Reply::Exited {
            id,
            status: u32_at(12) as i32,
            flags: u32_at(16),
            user_us: u64_at(20),
            system_us: u64_at(28),
            memory_peak: u64_at(36),
        },
        (24, 48) => {
            Reply::Metered { id, user_us: u64_at(12), memory: u64_at(28), memory_peak: u64_at(36), tasks: u32_at(44) }
        }
        (25, len) => {
            assert_eq!(len, 18 + u16::from_le_bytes([record[16], record[17]]) as usize);
            Reply::Adopt { id, label: record[18..].to_vec() }
        }
        (kind, len) => panic!("unexpected record of type {kind} and {len} bytes"),
    }
}

fn children(pid: u32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn seqpacket() -> (OwnedFd, OwnedFd) {
    let mut fds = [0; 2];
    // SAFETY: the array has room for two descriptors, which are then ours.
    unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()), 0);
        (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
    }
}

pub fn pipe() -> (File, File) {
    let mut fds = [0; 2];
    // SAFETY: the array has room for two descriptors, which are then ours.
    unsafe {
        assert_eq!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(fds[0]), File::from_raw_fd(fds[1]))
    }
}

/// The real id in a line of /proc/PID/status.
pub fn id_of(status: &str, name: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix(name)?.split('\t').next()?.parse().ok())
}

/// Whether the kernel says that a process is frozen.
fn is_frozen(pid: i32) -> bool {
    let lines = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let freezer = lines.lines().find_map(|line| line.split_once(":freezer:"));
    let one = freezer.map(|(_, path)| read(format!("/sys/fs/cgroup/freezer{path}/freezer.state")));
    let two = lines.lines().find_map(|line| line.strip_prefix("0::"));
    let two = two.map(|path| read(format!("/sys/fs/cgroup{path}/cgroup.events")));
    let stat = read(format!("/proc/{pid}/stat"));
    one.is_some_and(|state| state == "FROZEN\n")
        || two.is_some_and(|events| events.contains("frozen 1\n"))
        || stat.contains(") T ")
}

/// Returns when the kernel says that a process is frozen: to v1's freezer that may take a moment.
pub fn await_frozen(pid: i32) {
    let end = Instant::now() + PATIENCE;
    while !is_frozen(pid) {
        assert!(Instant::now() < end, "it still runs");
        std::thread::yield_now();
    }
}

/// How long posix_spawn takes to have a program executed, in nanoseconds; then waits for its end.
pub fn spawn_time(path: &str) -> u64 {
    let path = CString::new(path).unwrap();
    let argv = [path.as_ptr(), c"exit".as_ptr(), c"0".as_ptr(), std::ptr::null()].map(<*const _>::cast_mut);
    let mut pid = 0;
    let begun = Instant::now();
    // SAFETY: the path is terminated, the vectors end with a null pointer, absent attributes are
    // allowed.
    let error = unsafe {
        libc::posix_spawn(&mut pid, path.as_ptr(), std::ptr::null(), std::ptr::null(), argv.as_ptr(), &argv[3])
    };
    let took = begun.elapsed().as_nanos() as u64;
    assert_eq!(error, 0);
    // SAFETY: the process is a child of this one that nobody else waits for.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    took
}

/// An O_PATH descriptor, as data directories are passed.
pub fn open_path(path: &Path) -> OwnedFd {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is terminated; the descriptor is then ours.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// The C program, built once; None (with the reason printed) where no static C program can be.
fn built_victim() -> Option<&'static File> {
    static VICTIM: OnceLock<Option<File>> = OnceLock::new();
    let gcc = |source: &Path, out: &Path| {
        let mut gcc = Command::new("gcc");
        gcc.args(["-static", "-O1", "-pthread", "-Werror=implicit-function-declaration", "-o"]).arg(out);
        gcc.arg(source).status()
    };
    let build_victim = || {
        // Only a machine that cannot build any static program is a reason to skip.
        let out = build_dir().join(format!("trivial.{}", std::process::id()));
        let source = out.with_added_extension("c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let possible = gcc(&source, &out).is_ok_and(|status| status.success());
        let _ = (std::fs::remove_file(&source), std::fs::remove_file(&out));
        if !possible {
            println!("SKIP: gcc cannot build a static program here");
            return None;
        }
        build("victim.c", include_str!("victim.c"), gcc)
    };
    VICTIM.get_or_init(build_victim).as_ref()
}

pub fn no_victim() -> bool {
    built_victim().is_none()
}

pub fn victim() -> File {
    built_victim().unwrap().try_clone().unwrap()
}

/// A program without a C library.
pub fn tiny() -> File {
    let gcc = |source: &Path, out: &Path| {
        Command::new("gcc").args(["-static", "-nostdlib", "-O1", "-o"]).arg(out).arg(source).status()
    };
    build("tiny.c", include_str!("tiny.c"), gcc).unwrap()
}

/// Where programs are built; nobody but root can reach them by path, which must not matter.
fn build_dir() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("locked");
    let _ = std::fs::create_dir(&dir);
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    dir
}

pub fn rust_program() -> Option<File> {
    let flags = ["--edition", "2024", "-O", "-C", "target-feature=+crt-static", "-o"];
    build("hello.rs", include_str!("../../testdata/hello.rs"), |source, out| {
        Command::new("rustc").args(flags).arg(out).arg(source).status()
    })
}

pub fn go_program() -> Option<File> {
    let build_go = |source: &Path, out: &Path| {
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(out).arg(source).env("CGO_ENABLED", "0").current_dir(build_dir()).status()
    };
    build("hello.go", include_str!("../../testdata/hello.go"), build_go)
}

/// Builds a program and opens it; None without a compiler. The files are removed at once: a program
/// is only ever known by its descriptor.
fn build(name: &str, text: &str, compile: impl Fn(&Path, &Path) -> std::io::Result<ExitStatus>) -> Option<File> {
    static NEXT: AtomicU32 = AtomicU32::new(0); // tests that run at the same time build the same program
    let dir = build_dir().join(format!("{name}.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir(&dir).unwrap();
    let (source, out) = (dir.join(name), dir.join("out"));
    std::fs::write(&source, text).unwrap();
    let program = compile(&source, &out).ok().map(|status| {
        assert!(status.success(), "{name} does not compile");
        std::fs::set_permissions(&out, PermissionsExt::from_mode(0o555)).unwrap();
        File::open(&out).unwrap()
    });
    std::fs::remove_dir_all(&dir).unwrap();
    program
}
