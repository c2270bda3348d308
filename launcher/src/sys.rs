//! Thin safe faces of the system calls used: a number in, an `Errno` out. Most are raw, because a
//! forked child must not enter the C library's locks or its all-threads identity changes.

use crate::error::Errno;
use libc::{c_int, c_long};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub mod cred;
pub mod mount;
pub mod socket;

pub type Result<T> = std::result::Result<T, Errno>;

/// Turns a C return value into a result.
pub fn check(ret: c_long) -> Result<c_long> {
    if ret < 0 { Err(Errno::last()) } else { Ok(ret) }
}

/// Makes a raw call of up to five arguments that are all plain numbers or valid pointers.
///
/// # Safety
/// The caller must pass what the kernel expects of this call, with pointers that outlive it.
pub unsafe fn call(nr: c_long, args: [usize; 5]) -> Result<c_long> {
    // SAFETY: the caller vouches for number and arguments.
    check(unsafe { libc::syscall(nr, args[0], args[1], args[2], args[3], args[4]) })
}

/// Takes a descriptor that the kernel has just made.
pub fn own(fd: c_long) -> OwnedFd {
    // SAFETY: every caller passes the return value of a call that made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// Forks with clone flags. Returns 0 in the child. Only for the single-threaded launcher.
pub fn fork(flags: c_int) -> Result<i32> {
    let flags = flags as usize | libc::SIGCHLD as usize;
    // SAFETY: without CLONE_VM and with a null stack this is fork; no other thread holds a lock.
    unsafe { call(libc::SYS_clone, [flags, 0, 0, 0, 0]) }.map(|pid| pid as i32)
}

/// Beyond what libc's type for it holds.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Forks into a cgroup of v2, with clone flags.
pub fn fork_into(flags: c_int, cgroup: &OwnedFd) -> Result<i32> {
    // SAFETY: clone_args is plain numbers, for which all zeroes is a value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags as u64 | CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.as_raw_fd() as u64;
    let args = [&raw const args as usize, size_of::<libc::clone_args>(), 0, 0, 0];
    // SAFETY: the structure is a live local of the size passed; otherwise as fork.
    unsafe { call(libc::SYS_clone3, args) }.map(|pid| pid as i32)
}

/// Has a child run `work` in this process's memory, and waits until it executes a program or ends,
/// as vfork does, but on another stack. The kernel need then not copy the memory, nor dismantle the
/// copy when the child executes. `flags` must have CLONE_VM and CLONE_VFORK; `key` goes where only
/// a system call filter looks.
///
/// # Safety
/// `work` shares everything with the caller, who does not run meanwhile: it must leave it as it
/// wants to find it, own nothing that it would have to drop, and not return.
pub unsafe fn clone_and_wait<F: FnMut()>(flags: c_int, stack: &mut [u8], key: u64, work: &mut F) -> Result<i32> {
    extern "C" fn enter<F: FnMut()>(work: *mut libc::c_void) -> c_int {
        // SAFETY: clone passes on the pointer given below, which the caller keeps alive.
        unsafe { (*work.cast::<F>())() };
        exit(127)
    }
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the stack grows down from the end of the slice, whose start is aligned as its length
    // is; without flags for them the kernel reads none of the last three arguments.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        let pid = libc::clone(enter::<F>, top, flags, (&raw mut *work).cast(), none, none, key as *mut libc::c_void);
        check(pid as c_long).map(|pid| pid as i32)
    }
}

/// Zeroed private memory for the rest of the process's life. Unlike the allocator's it is taken
/// page by page, when it is first touched.
pub fn map(len: usize, flags: c_int) -> Result<&'static mut [u8]> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new anonymous mapping overlaps nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    // SAFETY: the mapping is zeroed, of this length, ours alone, and never unmapped.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) })
}

/// Ends the process without running any exit handler of the parent's.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit takes any number and does not return.
    unsafe { libc::_exit(code) }
}

/// A finished child: pid, status as wait4 gives it, user and system time in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Waited {
    pub pid: i32,
    pub status: i32,
    pub user_us: u64,
    pub system_us: u64,
}

/// Waits for any child; with `block` unset returns None when none has ended.
pub fn wait(pid: i32, block: bool) -> Result<Option<Waited>> {
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which all zeroes is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let flags = if block { 0 } else { libc::WNOHANG };
    // SAFETY: both pointers are to locals that outlive the call.
    let got = check(unsafe { libc::wait4(pid, &mut status, flags, &mut usage) } as c_long)?;
    let micros = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    Ok((got != 0).then(|| Waited {
        pid: got as i32,
        status,
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
    }))
}

pub fn kill(pid: i32, signo: i32) -> Result<()> {
    // SAFETY: kill takes plain numbers.
    check(unsafe { libc::kill(pid, signo) } as c_long).map(drop)
}

pub fn getpid() -> i32 {
    // SAFETY: getpid takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

pub fn getppid() -> i32 {
    // SAFETY: getppid takes nothing and cannot fail.
    unsafe { libc::getppid() }
}

pub fn pidfd_open(pid: i32) -> Result<OwnedFd> {
    // SAFETY: the call takes plain numbers.
    unsafe { call(libc::SYS_pidfd_open, [pid as usize, 0, 0, 0, 0]) }.map(own)
}

pub fn pidfd_send_signal(fd: &OwnedFd, signo: i32) -> Result<()> {
    let args = [fd.as_raw_fd() as usize, signo as usize, 0, 0, 0];
    // SAFETY: a null siginfo means what kill would send.
    unsafe { call(libc::SYS_pidfd_send_signal, args) }.map(drop)
}

/// Copies a descriptor of another process.
pub fn pidfd_getfd(pidfd: &OwnedFd, fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: the call takes plain numbers.
    unsafe { call(libc::SYS_pidfd_getfd, [pidfd.as_raw_fd() as usize, fd as usize, 0, 0, 0]) }.map(own)
}

/// Whether a descriptor can be read at this moment (a pidfd: whether its process has ended).
pub fn readable(fd: RawFd) -> Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd is passed, with its count.
    check(unsafe { libc::poll(&mut poll, 1, 0) } as c_long).map(|n| n > 0)
}

pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Processor time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn read(fd: RawFd, buf: &mut [u8]) -> Result<usize> {
    // SAFETY: pointer and length are those of one live slice.
    check(unsafe { libc::read(fd, buf.as_mut_ptr().cast(), buf.len()) } as c_long).map(|n| n as usize)
}

pub fn write(fd: RawFd, buf: &[u8]) -> Result<usize> {
    // SAFETY: pointer and length are those of one live slice.
    check(unsafe { libc::write(fd, buf.as_ptr().cast(), buf.len()) } as c_long).map(|n| n as usize)
}

/// A close-on-exec pipe whose read end does not block: (read, write).
pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the array has room for the two numbers that the kernel writes.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } as c_long)?;
    let (reader, writer) = (own(fds[0] as c_long), own(fds[1] as c_long));
    set_nonblocking(reader.as_raw_fd())?;
    Ok((reader, writer))
}

pub fn set_nonblocking(fd: RawFd) -> Result<()> {
    // SAFETY: F_SETFL takes a number; only descriptors that we made come here.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) } as c_long).map(drop)
}

pub fn set_cloexec(fd: RawFd) -> Result<()> {
    // SAFETY: F_SETFD takes a number; a closed descriptor is answered by EBADF.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } as c_long).map(drop)
}

/// Lets exec pass a descriptor on.
pub fn clear_cloexec(fd: RawFd) -> Result<()> {
    // SAFETY: F_SETFD takes a number; a closed descriptor is answered by EBADF.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } as c_long).map(drop)
}

/// A close-on-exec duplicate with the lowest free number from `min` on.
pub fn dup_above(fd: RawFd, min: i32) -> Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes a number; a closed descriptor is answered by EBADF.
    check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, min) } as c_long).map(own)
}

pub fn dup3(fd: RawFd, target: RawFd, flags: c_int) -> Result<()> {
    // SAFETY: dup3 takes plain numbers; the callers own what they overwrite.
    check(unsafe { libc::dup3(fd, target, flags) } as c_long).map(drop)
}

pub fn close_range(first: u32, last: u32) -> Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: only forked children call this, after which they use no descriptor of the range.
    unsafe { call(libc::SYS_close_range, [first as usize, last as usize, 0, 0, 0]) }.map(drop)
}

/// Closes every descriptor but these.
pub fn close_all_but(keep: &mut [RawFd]) -> Result<()> {
    keep.sort();
    let mut first = 0;
    for fd in keep.iter().map(|fd| *fd as u32) {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX)
}

pub fn openat(dir: RawFd, path: &CStr, flags: c_int) -> Result<OwnedFd> {
    // SAFETY: the path is terminated; without O_CREAT there is no mode to pass.
    check(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC) } as c_long).map(own)
}

pub fn mkdirat(dir: RawFd, path: &CStr, mode: u32) -> Result<()> {
    // SAFETY: the path is terminated.
    check(unsafe { libc::mkdirat(dir, path.as_ptr(), mode) } as c_long).map(drop)
}

pub fn rmdirat(dir: RawFd, path: &CStr) -> Result<()> {
    // SAFETY: the path is terminated.
    check(unsafe { libc::unlinkat(dir, path.as_ptr(), libc::AT_REMOVEDIR) } as c_long).map(drop)
}

pub fn chdir(path: &CStr) -> Result<()> {
    // SAFETY: the path is terminated.
    check(unsafe { libc::chdir(path.as_ptr()) } as c_long).map(drop)
}

pub fn umask(mask: u32) {
    // SAFETY: umask takes a number and cannot fail.
    unsafe { libc::umask(mask) };
}

pub fn setsid() -> Result<()> {
    // SAFETY: setsid takes nothing.
    check(unsafe { libc::setsid() } as c_long).map(drop)
}

pub fn prctl(option: c_int, args: [usize; 4]) -> Result<c_long> {
    let args = [option as usize, args[0], args[1], args[2], args[3]];
    // SAFETY: no caller passes an option that takes a pointer.
    unsafe { call(libc::SYS_prctl, args) }
}

/// Lets this process run before others, but not the children that it will have. Where real-time
/// scheduling is not allowed it gets the best ordinary place, and where that is not either, it
/// stays where it is.
pub fn go_first() {
    let reset = libc::SCHED_RESET_ON_FORK;
    let [lowest, none] = [1, 0].map(|sched_priority| libc::sched_param { sched_priority });
    // SAFETY: the parameters are live locals; all of it changes the calling thread, the only one.
    unsafe {
        if libc::sched_setscheduler(0, libc::SCHED_FIFO | reset, &lowest) != 0
            && libc::sched_setscheduler(0, libc::SCHED_OTHER | reset, &none) == 0
        {
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
    }
}

/// Names this process as ps shows it.
pub fn set_name(name: &CStr) {
    // SAFETY: the name is terminated; the kernel copies up to 16 bytes of it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Lowers a limit to the value, or as far below it as it already was: raising the hard limit takes
/// a capability that root in a container may lack. Returns what holds now.
pub fn set_limit(resource: c_int, value: u64) -> Result<u64> {
    let value = value.min(hard_limit(resource)?);
    lower_limit_by(resource, value, 0).map(|()| value)
}

/// Sets a limit, above what it was if that is allowed, else as set_limit does. Returns what holds
/// now.
pub fn raise_limit(resource: c_int, value: u64) -> Result<u64> {
    match lower_limit_by(resource, value, 0) {
        Ok(()) => Ok(value),
        Err(_) => set_limit(resource, value),
    }
}

pub fn hard_limit(resource: c_int) -> Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let args = [0, resource as usize, 0, &raw mut limit as usize, 0];
    // SAFETY: the old limit is written to a live local, a new one is not given.
    unsafe { call(libc::SYS_prlimit64, args) }.map(|_| limit.rlim_max)
}

/// Sets a limit. `key` goes where only a system call filter looks.
pub fn lower_limit_by(resource: c_int, value: u64, key: u64) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    let args = [0, resource as usize, &raw const limit as usize, 0, key as usize];
    // SAFETY: the new limit is a local that outlives the call, the old one is not asked for.
    unsafe { call(libc::SYS_prlimit64, args) }.map(drop)
}

/// Gives every signal its default disposition and leaves none blocked.
pub fn reset_signals() -> Result<()> {
    // The kernel's sigaction is handler, flags, restorer, mask: all zero is SIG_DFL.
    let default = [0usize; 4];
    for signo in 1..=64 {
        if signo == libc::SIGKILL || signo == libc::SIGSTOP {
            continue;
        }
        let args = [signo as usize, default.as_ptr() as usize, 0, 8, 0];
        // SAFETY: the action is a live array of the kernel's size; raw, since libc hides 32 and 33.
        unsafe { call(libc::SYS_rt_sigaction, args) }?;
    }
    let none = 0u64;
    let args = [libc::SIG_SETMASK as usize, &raw const none as usize, 0, 8, 0];
    // SAFETY: the set is a live local of the size passed.
    unsafe { call(libc::SYS_rt_sigprocmask, args) }.map(drop)
}

/// Blocks the signals and returns a non-blocking descriptor on which they arrive.
pub fn signalfd(signals: &[c_int]) -> Result<OwnedFd> {
    let mask: u64 = signals.iter().map(|signo| 1u64 << (signo - 1)).sum();
    let args = [libc::SIG_BLOCK as usize, &raw const mask as usize, 0, 8, 0];
    // SAFETY: the set is a live local of the size passed.
    unsafe { call(libc::SYS_rt_sigprocmask, args) }?;
    let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
    let args = [usize::MAX, &raw const mask as usize, 8, flags, 0];
    // SAFETY: -1 asks for a new descriptor; the set is as above.
    unsafe { call(libc::SYS_signalfd4, args) }.map(own)
}

/// Lets the kernel reap this process's children.
pub fn ignore_children() {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Sleeps for ever.
pub fn pause() -> ! {
    loop {
        // SAFETY: pause takes nothing.
        unsafe { libc::pause() };
    }
}

/// A number that nobody can guess.
pub fn random() -> Result<u64> {
    let mut number = 0u64;
    // SAFETY: pointer and length are those of a live local.
    check(unsafe { libc::getrandom((&raw mut number).cast(), 8, 0) } as c_long).map(|_| number)
}

/// Device and number of an open file, as the kernel knows them: no file system is asked, since that
/// of a program may be one that sigmad answers for.
pub fn identity(fd: RawFd) -> Result<(u64, u64)> {
    // SAFETY: statx is plain numbers, for which all zeroes is a value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is terminated, the result a live local.
    check(unsafe { libc::statx(fd, c"".as_ptr(), flags, libc::STATX_INO, &mut stat) } as c_long)?;
    Ok(((stat.stx_dev_major as u64) << 32 | stat.stx_dev_minor as u64, stat.stx_ino))
}

/// Reads a file from its start.
pub fn read_at_start(fd: RawFd, buf: &mut [u8]) -> Result<usize> {
    // SAFETY: pointer and length are those of one live slice.
    check(unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), 0) } as c_long).map(|n| n as usize)
}

pub fn ignore_sigpipe() {
    // SAFETY: SIG_IGN is a valid disposition; nothing else in the launcher touches it.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// An epoll instance that reports readiness by the token given.
pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> Result<Epoll> {
        // SAFETY: epoll_create1 takes flags only.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } as c_long)?;
        Ok(Epoll(own(fd)))
    }

    pub fn add(&self, fd: RawFd, events: c_int, token: u64) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    pub fn modify(&self, fd: RawFd, events: c_int, token: u64) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, token)
    }

    /// A descriptor whose other copies live in children must be taken out before it is closed.
    pub fn remove(&self, fd: RawFd) -> Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, op: c_int, fd: RawFd, events: c_int, token: u64) -> Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event is a live local.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &mut event) } as c_long).map(drop)
    }

    /// Waits up to `timeout_ms` (-1: for ever) and fills `out` with (token, events).
    pub fn wait(&self, timeout_ms: i32, out: &mut Vec<(u64, u32)>) -> Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        out.clear();
        // SAFETY: pointer and count describe the live array.
        let ret = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, timeout_ms) };
        match check(ret as c_long) {
            Ok(count) => out.extend(events[..count as usize].iter().map(|e| (e.u64, e.events))),
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

/// Installs a filter program; it holds for this process and its children to come.
pub fn seccomp(program: &[libc::sock_filter]) -> Result<()> {
    let prog = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let args = [libc::SECCOMP_SET_MODE_FILTER as usize, 0, &raw const prog as usize, 0, 0];
    // SAFETY: the program outlives the call, which only reads it; its length fits (filter.rs).
    unsafe { call(libc::SYS_seccomp, args) }.map(drop)
}

/// Replaces the process by the program behind `fd`; returns only on failure. `key` goes where only
/// a system call filter looks.
pub fn exec(fd: RawFd, argv: &Pointers, envp: &Pointers, key: u64) -> Errno {
    let empty = c"".as_ptr();
    let (argv, envp) = (argv.0.as_ptr(), envp.0.as_ptr());
    // SAFETY: both vectors end with a null pointer and point to strings their owner keeps alive.
    match check(unsafe { libc::syscall(libc::SYS_execveat, fd, empty, argv, envp, libc::AT_EMPTY_PATH, key) }) {
        Ok(_) => Errno(libc::EIO),
        Err(errno) => errno,
    }
}

/// A null-terminated vector of C strings, prepared before the fork; borrows the strings.
pub struct Pointers<'a>(Vec<*const libc::c_char>, std::marker::PhantomData<&'a CStr>);

impl<'a> Pointers<'a> {
    pub fn new(strings: &'a [std::ffi::CString]) -> Pointers<'a> {
        let pointers = strings.iter().map(|s| s.as_ptr());
        Pointers(pointers.chain([std::ptr::null()]).collect(), std::marker::PhantomData)
    }
}
