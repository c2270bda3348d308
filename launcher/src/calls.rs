//! The system calls that each profile may make, each group with its reason.

use crate::filter::Test::{Is, Key, Masked, Null};
use crate::filter::{Entry, Rule, Test, Verdict};
use libc::*;

const EVER: Rule = Rule::Always(Verdict::Allow);
const NEVER: Verdict = Verdict::Errno(EPERM);
const ABSENT: Rule = Rule::Always(Verdict::Errno(ENOENT));
/// The number under which a process finds its program, until exec closes it.
pub const PROGRAM_FD: i32 = 1000;
/// Where a START's process gets the Landlock ruleset for its program; close-on-exec.
pub const RULES_FD: i32 = 1003;

/// Namespaces, and flags that make the kernel trace or misattribute a child.
const CLONE_FORBIDDEN: u32 = (CLONE_NEWNS
    | CLONE_NEWCGROUP
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET
    | CLONE_PTRACE
    | CLONE_PARENT) as u32;

const fn when(any: &'static [&'static [Test]]) -> Rule {
    Rule::When(any, NEVER)
}

/// Pages of another size come from a pool that the whole machine shares: a proc takes none of them.
const SMALL_PAGES: Rule = Rule::When(&[&[Masked(3, MAP_HUGETLB as u32, 0)]], Verdict::Errno(EINVAL));

/// What both profiles need: memory, threads, signals, time, and descriptors already held.
const COMMON: &[Entry] = &[
    // Memory: allocators, stacks of threads, just-in-time compilers.
    (SYS_brk, EVER),
    (SYS_mmap, SMALL_PAGES),
    (SYS_munmap, EVER),
    (SYS_mprotect, EVER),
    (SYS_madvise, EVER),
    (SYS_mremap, EVER),
    (SYS_mincore, EVER),
    // Threads and processes. fork and vfork are what musl and vfork users call instead of clone.
    (SYS_fork, EVER),
    (SYS_vfork, EVER),
    // A filter cannot look into clone3's structure; on ENOSYS every libc falls back to clone.
    (SYS_clone3, Rule::Always(Verdict::Errno(ENOSYS))),
    (SYS_futex, EVER),
    (SYS_set_robust_list, EVER),
    (SYS_get_robust_list, EVER),
    (SYS_rseq, EVER),
    (SYS_set_tid_address, EVER),
    (SYS_arch_prctl, EVER),
    (SYS_sched_yield, EVER),
    (SYS_gettid, EVER),
    (SYS_getpid, EVER),
    (SYS_getppid, EVER),
    (SYS_exit, EVER),
    (SYS_exit_group, EVER),
    (SYS_wait4, EVER),
    (SYS_waitid, EVER),
    // Once, and by the launcher's code only: the key stands in a register that the kernel does not
    // read. The number of the descriptor alone would not do, since a program can put any other file
    // there, as one made by memfd_create.
    (SYS_execveat, when(&[&[Is(0, PROGRAM_FD as u32), Is(4, AT_EMPTY_PATH as u32), Key(5)]])),
    // Process groups and sessions: setpgid reaches no further than one's own children.
    (SYS_getpgrp, EVER),
    (SYS_setpgid, EVER),
    (SYS_setsid, EVER),
    // Signals, within the uid, which is one proc's own.
    (SYS_rt_sigaction, EVER),
    (SYS_rt_sigprocmask, EVER),
    (SYS_rt_sigreturn, EVER),
    (SYS_rt_sigpending, EVER),
    (SYS_rt_sigtimedwait, EVER),
    (SYS_rt_sigsuspend, EVER),
    (SYS_sigaltstack, EVER),
    (SYS_tgkill, EVER),
    (SYS_tkill, EVER),
    (SYS_kill, EVER),
    (SYS_pause, EVER),
    // The kernel makes a sleep that SIGSTOP interrupted go on by this call.
    (SYS_restart_syscall, EVER),
    // Time.
    (SYS_nanosleep, EVER),
    (SYS_gettimeofday, EVER),
    (SYS_alarm, EVER),
    (SYS_setitimer, EVER),
    (SYS_getitimer, EVER),
    (SYS_timer_settime, EVER),
    (SYS_timer_gettime, EVER),
    (SYS_timer_delete, EVER),
    // What one may know about oneself.
    (SYS_getrandom, EVER),
    (SYS_uname, EVER),
    (SYS_getuid, EVER),
    (SYS_geteuid, EVER),
    (SYS_getgid, EVER),
    (SYS_getegid, EVER),
    (SYS_getrusage, EVER),
    (SYS_times, EVER),
    (SYS_sysinfo, EVER),
    (SYS_prctl, PRCTL),
    // Descriptors already held.
    (SYS_read, EVER),
    (SYS_write, EVER),
    (SYS_readv, EVER),
    (SYS_writev, EVER),
    (SYS_pread64, EVER),
    (SYS_pwrite64, EVER),
    (SYS_lseek, EVER),
    (SYS_close, EVER),
    (SYS_dup, EVER),
    (SYS_dup2, EVER),
    (SYS_dup3, EVER),
    (SYS_fstat, EVER),
    (SYS_ioctl, IOCTL),
    (SYS_pipe, EVER),
    (SYS_pipe2, EVER),
    (SYS_eventfd2, EVER),
    (SYS_poll, EVER),
    (SYS_ppoll, EVER),
    (SYS_select, EVER),
    (SYS_pselect6, EVER),
    (SYS_epoll_create1, EVER),
    (SYS_epoll_ctl, EVER),
    (SYS_epoll_wait, EVER),
    (SYS_epoll_pwait, EVER),
    (SYS_epoll_pwait2, EVER),
    // Sockets already held: an address would let a datagram socket reach other peers.
    (SYS_recvfrom, EVER),
    (SYS_recvmsg, EVER),
    (SYS_shutdown, EVER),
    (SYS_getsockname, EVER),
    (SYS_getpeername, EVER),
];

/// Names for debuggers, the parent-death signal of the proc's own children, and read-only
/// questions.
const PRCTL: Rule = when(&[
    &[Is(0, PR_SET_NAME as u32)],
    &[Is(0, PR_GET_NAME as u32)],
    &[Is(0, PR_SET_VMA as u32)],
    &[Is(0, PR_SET_PDEATHSIG as u32)],
    &[Is(0, PR_GET_PDEATHSIG as u32)],
    &[Is(0, PR_GET_DUMPABLE as u32)],
    &[Is(0, PR_GET_NO_NEW_PRIVS as u32)],
    &[Is(0, PR_GET_SECCOMP as u32)],
    &[Is(0, PR_CAPBSET_READ as u32)],
]);

/// Never TIOCSTI and its like, which type into the operator's terminal.
const IOCTL: Rule =
    when(&[&[Is(1, FIONBIO as u32)], &[Is(1, FIONREAD as u32)], &[Is(1, TCGETS as u32)], &[Is(1, TIOCGWINSZ as u32)]]);

/// How a seed makes the process of a START: in its own memory, until exec, and as the launcher's
/// child.
pub const SEED_CLONE: i32 = CLONE_VM | CLONE_VFORK | CLONE_PARENT | SIGCHLD;

/// Every clock but those of other processes, whose numbers are negative and hold a process id; 0 is
/// oneself.
const CLOCKS: Rule =
    Rule::When(&[&[Masked(0, 1 << 31, 0)], &[Masked(0, 0xffff_fff8, 0xffff_fff8)]], Verdict::Errno(EINVAL));

const SIGMA: &[Entry] = &[
    // A seed has this filter too, so what only it may do asks for a key in an argument that the
    // kernel does not read. It is random, and a program can neither read its filter nor the
    // launcher's memory.
    (SYS_clone, when(&[&[Masked(0, CLONE_FORBIDDEN, 0)], &[Is(0, SEED_CLONE as u32), Key(3)]])),
    (SYS_setresuid, when(&[&[Key(3)]])),
    (SYS_prlimit64, when(&[&[Null(2)], &[Is(0, 0), Key(4)]])),
    // Procs share a PID namespace, so calls that take another's number and ask for no right take
    // none but 0. pthread_getattr_np takes this errno, and no other, for an answer.
    (SYS_sched_getaffinity, Rule::When(&[&[Is(0, 0)]], Verdict::Errno(ENOSYS))),
    (SYS_getpgid, when(&[&[Is(0, 0)]])),
    (SYS_getsid, when(&[&[Is(0, 0)]])),
    (SYS_clock_gettime, CLOCKS),
    (SYS_clock_getres, CLOCKS),
    (SYS_clock_nanosleep, CLOCKS),
    (SYS_timer_create, CLOCKS),
    // fstat by the name that newer libcs use; a path would be looked up in the empty root anyway.
    (SYS_newfstatat, Rule::When(&[&[Masked(3, AT_EMPTY_PATH as u32, AT_EMPTY_PATH as u32)]], Verdict::Errno(ENOENT))),
    (SYS_fcntl, when(FCNTL_SIGMA)),
    (SYS_sendto, when(&[&[Null(4)]])),
    (SYS_setsockopt, when(SOCKET_OPTIONS)),
    (SYS_getsockopt, when(SOCKET_QUESTIONS)),
    // A START's process has its filter before it knows its program, to which it is then restricted.
    // Exec closes the ruleset, and nobody with this filter can make another; if one came by a
    // passed socket, a proc could only restrict itself further.
    (SYS_landlock_restrict_self, when(&[&[Is(0, RULES_FD as u32), Is(1, 0)]])),
    // Libcs and language runtimes probe files when they start and take ENOENT for an answer.
    (SYS_open, ABSENT),
    (SYS_openat, ABSENT),
    (SYS_readlink, ABSENT),
    (SYS_readlinkat, ABSENT),
    (SYS_access, ABSENT),
    (SYS_faccessat, ABSENT),
    (SYS_faccessat2, ABSENT),
    (SYS_stat, ABSENT),
    (SYS_lstat, ABSENT),
    (SYS_statx, ABSENT),
    (SYS_getcwd, ABSENT),
];

/// Duplicates, flags and seals; no locks (they would reach other readers of a passed file), no
/// leases, no signals to others.
const FCNTL_SIGMA: &[&[Test]] = &[
    &[Is(1, F_DUPFD as u32)],
    &[Is(1, F_DUPFD_CLOEXEC as u32)],
    &[Is(1, F_GETFD as u32)],
    &[Is(1, F_SETFD as u32)],
    &[Is(1, F_GETFL as u32)],
    &[Is(1, F_SETFL as u32)],
    &[Is(1, F_GET_SEALS as u32)],
    &[Is(1, F_GETPIPE_SZ as u32)],
];

const SOCKET_OPTIONS: &[&[Test]] = &[
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_RCVBUF as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_SNDBUF as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_KEEPALIVE as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_LINGER as u32)],
    &[Is(1, IPPROTO_TCP as u32), Is(2, TCP_NODELAY as u32)],
    &[Is(1, IPPROTO_TCP as u32), Is(2, TCP_KEEPIDLE as u32)],
    &[Is(1, IPPROTO_TCP as u32), Is(2, TCP_KEEPINTVL as u32)],
    &[Is(1, IPPROTO_TCP as u32), Is(2, TCP_KEEPCNT as u32)],
    &[Is(1, IPPROTO_TCP as u32), Is(2, TCP_QUICKACK as u32)],
    &[Is(1, IPPROTO_TCP as u32), Is(2, TCP_CORK as u32)],
];

/// What concerns the socket itself. Never SO_PEERPIDFD, which makes a handle on the process at the
/// other end, nor what else tells about that process.
const SOCKET_QUESTIONS: &[&[Test]] = &[
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_TYPE as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_ERROR as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_DOMAIN as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_PROTOCOL as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_ACCEPTCONN as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_RCVBUF as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_SNDBUF as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_KEEPALIVE as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_LINGER as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_RCVTIMEO as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_SNDTIMEO as u32)],
    &[Is(1, IPPROTO_TCP as u32)],
];

/// What profile `linux` answers otherwise than `sigma`, or beside it: unmodified programs, whose
/// run-time systems (CPython, the JVM, busybox) expect an ordinary Linux without files. Still no
/// sockets, nothing to execute, and no path leads anywhere: the root is empty and read-only.
const LINUX: &[Entry] = &[
    // The root, which is all there is.
    (SYS_getcwd, EVER),
    // To / only, for the same reason.
    (SYS_chdir, EVER),
    // A number of the process's own.
    (SYS_umask, EVER),
    // A file already held, by the name that newer libcs use.
    (SYS_statx, Rule::When(&[&[Masked(2, AT_EMPTY_PATH as u32, AT_EMPTY_PATH as u32)]], Verdict::Errno(ENOENT))),
    // The type of a file already held.
    (SYS_fstatfs, EVER),
    // There is nothing to execute, as a shell finds out by trying.
    (SYS_execve, ABSENT),
    // Changes to a read-only root, as the kernel would refuse them.
    (SYS_mkdir, READ_ONLY),
    (SYS_mkdirat, READ_ONLY),
    (SYS_rename, READ_ONLY),
    (SYS_renameat, READ_ONLY),
    (SYS_renameat2, READ_ONLY),
    (SYS_symlink, READ_ONLY),
    (SYS_symlinkat, READ_ONLY),
    (SYS_mknod, READ_ONLY),
    (SYS_mknodat, READ_ONLY),
    // Of what is not there nothing can be removed or changed.
    (SYS_unlink, ABSENT),
    (SYS_unlinkat, ABSENT),
    (SYS_rmdir, ABSENT),
    (SYS_link, ABSENT),
    (SYS_linkat, ABSENT),
    (SYS_chmod, ABSENT),
    (SYS_fchmodat, ABSENT),
    (SYS_truncate, ABSENT),
    (SYS_utimensat, ABSENT),
    (SYS_statfs, ABSENT),
    // Memory as a file: shared between the processes of a proc, charged to it. Landlock does not
    // know such files; that they are never executed is the rule of execveat above. Huge
    // pages come from a pool that the whole machine shares.
    (SYS_memfd_create, Rule::When(&[&[Masked(1, MFD_HUGETLB, 0)]], Verdict::Errno(EINVAL))),
    // Its size. Of a passed file that may be written the content is the proc's to destroy anyway.
    (SYS_ftruncate, EVER),
    // Bytes between descriptors already held.
    (SYS_preadv, EVER),
    (SYS_pwritev, EVER),
    (SYS_preadv2, EVER),
    (SYS_pwritev2, EVER),
    (SYS_sendfile, EVER),
    (SYS_copy_file_range, EVER),
    // Advice, which the kernel may ignore.
    (SYS_fadvise64, EVER),
    (SYS_readahead, EVER),
    // Durability of files already held.
    (SYS_fsync, EVER),
    (SYS_fdatasync, EVER),
    (SYS_msync, EVER),
    // Pages that stay in memory: up to RLIMIT_MEMLOCK, 64 KiB.
    (SYS_mlock, EVER),
    (SYS_mlock2, EVER),
    (SYS_munlock, EVER),
    // As in sigma, with seals for memory that is shared and the size of a pipe.
    (SYS_fcntl, when(FCNTL_LINUX)),
    // As in sigma, with close-on-exec by ioctl and the terminal's group, which CPython and shells
    // ask for.
    (SYS_ioctl, when(IOCTL_LINUX)),
    // As in sigma, with what only concerns the process and its descendants.
    (SYS_prctl, when(PRCTL_LINUX)),
    // Closes many, as CPython does before it forks a child.
    (SYS_close_range, EVER),
    // Events as descriptors: the older names, timers and signals.
    (SYS_epoll_create, EVER),
    (SYS_eventfd, EVER),
    (SYS_timerfd_create, CLOCKS),
    (SYS_timerfd_settime, EVER),
    (SYS_timerfd_gettime, EVER),
    (SYS_signalfd, EVER),
    (SYS_signalfd4, EVER),
    // There is no path to watch.
    (SYS_inotify_init, EVER),
    (SYS_inotify_init1, EVER),
    (SYS_inotify_add_watch, ABSENT),
    (SYS_inotify_rm_watch, EVER),
    // Threads: of the process itself only (PRIO_PROCESS and 0), since a number could be another
    // proc's.
    (SYS_sched_setaffinity, when(&[&[Is(0, 0)]])),
    (SYS_sched_getscheduler, when(&[&[Is(0, 0)]])),
    (SYS_sched_getparam, when(&[&[Is(0, 0)]])),
    (SYS_getpriority, when(&[&[Is(0, 0), Is(1, 0)]])),
    // Constants of the kernel.
    (SYS_sched_get_priority_max, EVER),
    (SYS_sched_get_priority_min, EVER),
    // Which processor one is on.
    (SYS_getcpu, EVER),
    // Several futexes at once.
    (SYS_futex_waitv, EVER),
    // Barriers between the threads of the process (query, private, private for code); never the
    // global one, for which the whole machine is interrupted.
    (SYS_membarrier, when(&[&[Is(0, 0)], &[Is(0, 8)], &[Is(0, 16)], &[Is(0, 32)], &[Is(0, 64)]])),
    // Signals with a value: to whom kill reaches.
    (SYS_rt_sigqueueinfo, EVER),
    (SYS_rt_tgsigqueueinfo, EVER),
    // Who one is.
    (SYS_getgroups, EVER),
    (SYS_getresuid, EVER),
    (SYS_getresgid, EVER),
    // The question which personality, not another one.
    (SYS_personality, when(&[&[Is(0, u32::MAX)]])),
];

const READ_ONLY: Rule = Rule::Always(Verdict::Errno(EROFS));

/// No locks and leases here either: they would reach other readers of a passed file.
const FCNTL_LINUX: &[&[Test]] = &[
    &[Is(1, F_DUPFD as u32)],
    &[Is(1, F_DUPFD_CLOEXEC as u32)],
    &[Is(1, F_GETFD as u32)],
    &[Is(1, F_SETFD as u32)],
    &[Is(1, F_GETFL as u32)],
    &[Is(1, F_SETFL as u32)],
    &[Is(1, F_GET_SEALS as u32)],
    &[Is(1, F_ADD_SEALS as u32)],
    &[Is(1, F_GETPIPE_SZ as u32)],
    &[Is(1, F_SETPIPE_SZ as u32)],
];

const IOCTL_LINUX: &[&[Test]] = &[
    &[Is(1, FIONBIO as u32)],
    &[Is(1, FIONREAD as u32)],
    &[Is(1, TCGETS as u32)],
    &[Is(1, TIOCGWINSZ as u32)],
    &[Is(1, FIOCLEX as u32)],
    &[Is(1, FIONCLEX as u32)],
    &[Is(1, TIOCGPGRP as u32)],
];

const PRCTL_LINUX: &[&[Test]] = &[
    &[Is(0, PR_SET_NAME as u32)],
    &[Is(0, PR_GET_NAME as u32)],
    &[Is(0, PR_SET_VMA as u32)],
    &[Is(0, PR_SET_PDEATHSIG as u32)],
    &[Is(0, PR_GET_PDEATHSIG as u32)],
    &[Is(0, PR_GET_DUMPABLE as u32)],
    &[Is(0, PR_SET_NO_NEW_PRIVS as u32)],
    &[Is(0, PR_GET_NO_NEW_PRIVS as u32)],
    &[Is(0, PR_GET_SECCOMP as u32)],
    &[Is(0, PR_CAPBSET_READ as u32)],
    &[Is(0, PR_SET_TIMERSLACK as u32)],
    &[Is(0, PR_GET_TIMERSLACK as u32)],
    &[Is(0, PR_SET_CHILD_SUBREAPER as u32)],
    &[Is(0, PR_GET_CHILD_SUBREAPER as u32)],
];

const SYSTEM: &[Entry] = &[
    // A thread of sigmad gets descriptors of its own, without the device of FUSE (binfs).
    (SYS_close_range, EVER),
    // A system program has a PID namespace of its own.
    (SYS_prlimit64, when(&[&[Null(2)]])),
    (SYS_clone, when(&[&[Masked(0, CLONE_FORBIDDEN, 0)]])),
    (SYS_sched_getaffinity, EVER),
    (SYS_getpgid, EVER),
    (SYS_getsid, EVER),
    (SYS_clock_gettime, EVER),
    (SYS_clock_getres, EVER),
    (SYS_clock_nanosleep, EVER),
    (SYS_timer_create, EVER),
    // Files below /data (Landlock and the mount namespace say which).
    (SYS_open, EVER),
    (SYS_openat, EVER),
    (SYS_stat, EVER),
    (SYS_lstat, EVER),
    (SYS_newfstatat, EVER),
    (SYS_statx, EVER),
    (SYS_statfs, EVER),
    (SYS_fstatfs, EVER),
    (SYS_access, EVER),
    (SYS_faccessat, EVER),
    (SYS_faccessat2, EVER),
    (SYS_getcwd, EVER),
    (SYS_chdir, EVER),
    (SYS_fchdir, EVER),
    (SYS_umask, EVER),
    (SYS_readlink, EVER),
    (SYS_readlinkat, EVER),
    (SYS_symlink, EVER),
    (SYS_symlinkat, EVER),
    (SYS_link, EVER),
    (SYS_linkat, EVER),
    (SYS_unlink, EVER),
    (SYS_unlinkat, EVER),
    (SYS_rename, EVER),
    (SYS_renameat, EVER),
    (SYS_renameat2, EVER),
    (SYS_mkdir, EVER),
    (SYS_mkdirat, EVER),
    (SYS_rmdir, EVER),
    // Files beneath a directory without following links, and their stable identity
    // (open_by_handle_at is not there).
    (SYS_openat2, EVER),
    (SYS_name_to_handle_at, EVER),
    (SYS_getdents64, EVER),
    (SYS_chmod, EVER),
    (SYS_fchmod, EVER),
    (SYS_fchmodat, EVER),
    (SYS_fchmodat2, EVER),
    (SYS_utimensat, EVER),
    // Modes and times that tenants set of scratch files are attributes of files already open.
    (SYS_fsetxattr, EVER),
    (SYS_fgetxattr, EVER),
    (SYS_truncate, EVER),
    (SYS_ftruncate, EVER),
    (SYS_fallocate, EVER),
    (SYS_fadvise64, EVER),
    // Durability, which etcd's log and bbolt's pages rest on, and bbolt's lock of its file.
    (SYS_fsync, EVER),
    (SYS_fdatasync, EVER),
    (SYS_sync_file_range, EVER),
    (SYS_msync, EVER),
    (SYS_flock, EVER),
    (SYS_fcntl, when(FCNTL_SYSTEM)),
    (SYS_preadv, EVER),
    (SYS_pwritev, EVER),
    // With RWF_NOWAIT: bytes that need no disk.
    (SYS_preadv2, EVER),
    // Bytes from descriptor to descriptor, and shared pages.
    (SYS_sendfile, EVER),
    (SYS_splice, EVER),
    (SYS_tee, EVER),
    (SYS_copy_file_range, EVER),
    (SYS_memfd_create, EVER),
    // UNIX sockets only: nothing here may reach a network by itself.
    (SYS_socket, when(&[&[Is(0, AF_UNIX as u32)]])),
    (SYS_socketpair, when(&[&[Is(0, AF_UNIX as u32)]])),
    (SYS_bind, EVER),
    (SYS_listen, EVER),
    (SYS_accept, EVER),
    (SYS_accept4, EVER),
    (SYS_connect, EVER),
    (SYS_sendto, EVER),
    (SYS_sendmsg, EVER),
    (SYS_sendmmsg, EVER),
    (SYS_recvmmsg, EVER),
    (SYS_setsockopt, when(SOCKET_OPTIONS_SYSTEM)),
    (SYS_getsockopt, EVER),
    // Processes of its own, timers and wake-ups as descriptors.
    (SYS_pidfd_open, EVER),
    (SYS_pidfd_send_signal, EVER),
    (SYS_timerfd_create, EVER),
    (SYS_timerfd_settime, EVER),
    (SYS_timerfd_gettime, EVER),
    (SYS_membarrier, EVER),
    (SYS_getgroups, EVER),
    (SYS_capget, EVER),
    (SYS_getcpu, EVER),
];

const FCNTL_SYSTEM: &[&[Test]] = &[
    &[Is(1, F_DUPFD as u32)],
    &[Is(1, F_DUPFD_CLOEXEC as u32)],
    &[Is(1, F_GETFD as u32)],
    &[Is(1, F_SETFD as u32)],
    &[Is(1, F_GETFL as u32)],
    &[Is(1, F_SETFL as u32)],
    &[Is(1, F_GETLK as u32)],
    &[Is(1, F_SETLK as u32)],
    &[Is(1, F_SETLKW as u32)],
    &[Is(1, F_OFD_GETLK as u32)],
    &[Is(1, F_OFD_SETLK as u32)],
    &[Is(1, F_OFD_SETLKW as u32)],
    // How a server finds out whether anybody else has its own file open (diskfs).
    &[Is(1, F_SETLEASE as u32)],
    &[Is(1, F_ADD_SEALS as u32)],
    &[Is(1, F_GET_SEALS as u32)],
    &[Is(1, F_GETPIPE_SZ as u32)],
    &[Is(1, F_SETPIPE_SZ as u32)],
];

/// Credentials of peers, time-outs and buffers; never the filters that one can attach to a socket.
const SOCKET_OPTIONS_SYSTEM: &[&[Test]] = &[
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_REUSEADDR as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_BROADCAST as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_RCVBUF as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_SNDBUF as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_KEEPALIVE as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_LINGER as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_RCVTIMEO as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_SNDTIMEO as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_PASSCRED as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_PASSPIDFD)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_PASSRIGHTS)],
    &[Is(1, IPPROTO_TCP as u32)],
    // What kind of traffic a connection to another machine is; without privilege only harmless
    // values.
    &[Is(1, IPPROTO_IP as u32), Is(2, IP_TOS as u32)],
    &[Is(1, IPPROTO_IPV6 as u32), Is(2, IPV6_TCLASS as u32)],
    &[Is(1, SOL_SOCKET as u32), Is(2, SO_PRIORITY as u32)],
];
const SO_PASSPIDFD: u32 = 76;
const SO_PASSRIGHTS: u32 = 83;

/// PID 1 only waits, writes one record and ends; whoever takes it over finds nothing else.
/// Everything else kills it, and with it the namespace.
pub const INIT: &[Entry] =
    &[(SYS_wait4, EVER), (SYS_write, EVER), (SYS_close, EVER), (SYS_exit_group, EVER), (SYS_rt_sigreturn, EVER)];

/// PID 1 of the namespace that procs share: it says that it is there, closes what it has, and
/// sleeps. The kernel reaps for it.
pub const SPACE_INIT: &[Entry] =
    &[(SYS_write, EVER), (SYS_close_range, EVER), (SYS_pause, EVER), (SYS_exit_group, EVER), (SYS_rt_sigreturn, EVER)];

/// The placer: reads and writes files that it was given, opens what its Landlock domain lets it
/// read, and says on which processors a thread runs: of what its one capability allows, nothing
/// else. Everything else kills it.
pub const PLACER: &[Entry] = &[
    (SYS_recvmsg, EVER),
    (SYS_sendto, EVER),
    (SYS_epoll_wait, EVER),
    (SYS_epoll_pwait, EVER),
    (SYS_read, EVER),
    (SYS_pread64, EVER),
    (SYS_write, EVER),
    (SYS_openat, EVER),
    (SYS_close, EVER),
    (SYS_sched_getaffinity, EVER),
    (SYS_sched_setaffinity, EVER),
    (SYS_clock_gettime, EVER),
    // The allocator, and the keys of hash tables.
    (SYS_brk, EVER),
    (SYS_mmap, Rule::When(&[&[Masked(2, PROT_EXEC as u32, 0)]], Verdict::Kill)),
    (SYS_munmap, EVER),
    (SYS_mremap, EVER),
    (SYS_madvise, EVER),
    (SYS_getrandom, EVER),
    (SYS_exit_group, EVER),
    (SYS_rt_sigreturn, EVER),
    (SYS_restart_syscall, EVER),
];

pub fn sigma() -> Vec<Entry> {
    [COMMON, SIGMA].concat()
}

/// As sigma, but for what LINUX says.
pub fn linux() -> Vec<Entry> {
    let replaced = |entry: &Entry| LINUX.iter().any(|other| other.0 == entry.0);
    sigma().into_iter().filter(|entry| !replaced(entry)).chain(LINUX.iter().copied()).collect()
}

pub fn system() -> Vec<Entry> {
    [COMMON, SYSTEM].concat()
}
