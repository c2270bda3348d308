
G("mounts of the host", "mount a file system")
A("mount", SECCOMP | LANDLOCK | CAPS, R(ENODEV), mount("none", "/", "no-such-type", 0, NULL))
A("mount by binding", SECCOMP | LANDLOCK | CAPS, R(ENOENT), mount("/nowhere", "/", NULL, MS_BIND, NULL))

G("mounts of the host", "make the root writable")
A("remount for writing", SECCOMP | LANDLOCK | CAPS, R(EINVAL, EBUSY), mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
A("mount_setattr", SECCOMP, R(EINVAL), syscall(SYS_mount_setattr, AT_FDCWD, "/", 0x1, NULL, 0))

G("mounts of the host", "uncover what is below the root")
A("umount", SECCOMP, R(EINVAL), umount2("/", 0x100))

G("mounts of the host", "change the root")
A("pivot_root", SECCOMP | LANDLOCK | CAPS, R(EBUSY, EINVAL), syscall(SYS_pivot_root, "/", "/"))
A("chroot", SECCOMP | CAPS, R(0), chroot("/"))

G("mounts of the host", "mount by the newer calls")
A("fsopen", SECCOMP | CAPS, R(0), syscall(SYS_fsopen, "tmpfs", 0))
A("fsconfig", SECCOMP, R(EINVAL, EBADF), syscall(SYS_fsconfig, -1, 0, NULL, NULL, 0))
A("fsmount", SECCOMP | CAPS, R(EINVAL, EBADF), syscall(SYS_fsmount, -1, 0, 0))
A("fspick", SECCOMP | CAPS, R(ENOENT), syscall(SYS_fspick, AT_FDCWD, "/nowhere", 0))
A("open_tree to clone", SECCOMP | CAPS, R(ENOENT), syscall(SYS_open_tree, AT_FDCWD, "/nowhere", 1))
A("move_mount", SECCOMP | CAPS, R(EINVAL), syscall(SYS_move_mount, AT_FDCWD, "/", AT_FDCWD, "/", 0x8000))

G("privilege", "make a user namespace")
A("unshare users", SECCOMP, R(0), unshare(CLONE_NEWUSER))
A("clone with users", SECCOMP, R(0), cloned(CLONE_NEWUSER))

G("mounts of the host", "make a mount namespace")
A("unshare mounts", SECCOMP | CAPS, R(0), unshare(CLONE_NEWNS))
A("clone with mounts", SECCOMP | CAPS, R(0), cloned(CLONE_NEWNS))

G("networks", "make a network namespace")
A("unshare network", SECCOMP | CAPS, R(0), unshare(CLONE_NEWNET))
A("clone with network", SECCOMP | CAPS, R(0), cloned(CLONE_NEWNET))

G("other processes", "make a PID namespace")
A("unshare processes", SECCOMP | CAPS, R(0), unshare(CLONE_NEWPID))
A("clone with processes", SECCOMP | CAPS, R(0), cloned(CLONE_NEWPID))

G("names and messages of others", "make another namespace")
A("unshare UTS", SECCOMP | CAPS, R(0), unshare(CLONE_NEWUTS))
A("unshare IPC", SECCOMP | CAPS, R(0), unshare(CLONE_NEWIPC))
A("unshare cgroups", SECCOMP | CAPS, R(0), unshare(CLONE_NEWCGROUP))
A("unshare time", SECCOMP | CAPS, R(EINVAL), unshare(0x80))
A("unshare files", SECCOMP, R(0), unshare(CLONE_FILES))
A("clone with UTS", SECCOMP | CAPS, R(0), cloned(CLONE_NEWUTS))
A("clone with IPC", SECCOMP | CAPS, R(0), cloned(CLONE_NEWIPC))
A("clone with cgroups", SECCOMP | CAPS, R(0), cloned(CLONE_NEWCGROUP))
A("clone with everything", SECCOMP | CAPS, R(0), cloned(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET))

G("other processes", "enter a namespace")
A("setns", SECCOMP, R(EINVAL), setns(0, CLONE_NEWNET))
A("setns by any kind", SECCOMP, R(EINVAL), setns(0, 0))

G("other processes", "make a child that is its parent's")
A("clone as a sibling", SECCOMP, R(0), cloned(CLONE_PARENT))

G("other processes", "make a child that is traced")
A("clone with tracing", SECCOMP, R(0), cloned(CLONE_PTRACE))

G("the filter", "hide flags in clone3's memory")
A("clone3", SECCOMP, R(0), cloned3())

G("privilege", "become another user")
A("setuid", SECCOMP | CAPS, R(0), syscall(SYS_setuid, 0))
A("setreuid", SECCOMP | CAPS, R(0), syscall(SYS_setreuid, 0, 0))
A("setresuid", SECCOMP | CAPS, R(0), syscall(SYS_setresuid, 0, 0, 0))
A("setfsuid", SECCOMP, R(0), syscall(SYS_setfsuid, 0))

G("privilege", "become another group")
A("setgid", SECCOMP | CAPS, R(0), syscall(SYS_setgid, 0))
A("setregid", SECCOMP | CAPS, R(0), syscall(SYS_setregid, 0, 0))
A("setresgid", SECCOMP | CAPS, R(0), syscall(SYS_setresgid, 0, 0, 0))
A("setfsgid", SECCOMP, R(0), syscall(SYS_setfsgid, 0))
A("setgroups", SECCOMP | CAPS, R(0), syscall(SYS_setgroups, 0, NULL))

G("privilege", "set capabilities")
A("capset", SECCOMP, R(0), capabilities(1))
A("capget", SECCOMP, R(0), capabilities(0))
A("prctl PR_CAP_AMBIENT", SECCOMP, R(0), prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
A("prctl PR_CAPBSET_DROP", SECCOMP | CAPS, R(0), prctl(PR_CAPBSET_DROP, 0))

G("privilege", "change how capabilities are lost")
A("prctl PR_SET_KEEPCAPS", SECCOMP | CAPS, R(0), prctl(PR_SET_KEEPCAPS, 1))
A("prctl PR_SET_SECUREBITS", SECCOMP | CAPS, R(0), prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP))
A("prctl PR_SET_NO_NEW_PRIVS", SECCOMP, R(0), prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))

G("its memory", "become dumpable")
A("prctl PR_SET_DUMPABLE", SECCOMP, R(0), prctl(PR_SET_DUMPABLE, 1))

G("its memory", "name a tracer")
A("prctl PR_SET_PTRACER", SECCOMP, R(EINVAL), prctl(PR_SET_PTRACER, -1))

G("other processes", "adopt orphans")
A("prctl PR_SET_CHILD_SUBREAPER", SECCOMP, R(0), prctl(PR_SET_CHILD_SUBREAPER, 1))

G("the filter", "add a filter of its own")
A("prctl PR_SET_SECCOMP", SECCOMP, R(0), filter_by_prctl())
A("seccomp", SECCOMP, R(0), filter_more())

G("programs that may run", "execute by path")
A("execve /bin/true", FILES, R(0), execve("/bin/true", (char *[]){"true", NULL}, no_words))
A("execve /proc/self/exe", FILES, R(0), execve("/proc/self/exe", (char *[]){"attack", NULL}, no_words))
A("execve of nothing", SECCOMP, R(ENOENT), execve("/nowhere", (char *[]){"", NULL}, no_words))
A("execve of an empty path", SECCOMP, R(ENOENT), execve("", (char *[]){"", NULL}, no_words))
A("execveat by path", FILES, R(0), exec_at(AT_FDCWD, "/bin/true", 0))

G("programs that may run", "execute by path with the flag that the filter lets through")
A("execveat by path with the flag that is let through", FILES, R(0), exec_at(1000, "/bin/true", AT_EMPTY_PATH))

G("programs that may run", "execute its own program again")
A("execveat of descriptor 1000", SECCOMP | PROGRAM, R(0), exec_at(1000, "", AT_EMPTY_PATH))

G("programs that may run", "execute a file in memory")
A("execveat of a memfd", SECCOMP, R(0), exec_memory(-1))
A("execveat of a memfd as 1000", SECCOMP, R(0), exec_memory(1000))

G("programs that may run", "load a library by the kernel")
A("uselib", SECCOMP, R(ENOENT, ENOSYS), syscall(SYS_uselib, "/nowhere"))

G("the kernel's attack surface", "load BPF")
A("bpf", SECCOMP | CAPS, R(0), make_map())
A("bpf load of a program", SECCOMP | CAPS, R(EINVAL, E2BIG, EFAULT), syscall(SYS_bpf, BPF_PROG_LOAD, NULL, 0))

G("other processes", "count events of the machine")
A("perf_event_open", SECCOMP | CAPS, R(0), perf(0, -1))
A("perf_event_open of the machine", SECCOMP | CAPS, R(0), perf(-1, 0))

G("the filter", "make calls by io_uring")
A("io_uring_setup", SECCOMP, R(ENOSYS), ring())
A("io_uring_enter", SECCOMP, R(EBADF, EOPNOTSUPP), syscall(SYS_io_uring_enter, 0, 0, 0, 0, NULL, 0))
A("io_uring_register", SECCOMP, R(EBADF, EINVAL, EOPNOTSUPP), syscall(SYS_io_uring_register, 0, 0, NULL, 0))

G("the filter", "make calls by asynchronous I/O")
A("io_setup", SECCOMP, R(ENOSYS), old_aio())

G("keys of the host", "use the kernel's keys")
A("keyctl", SECCOMP, R(0), syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, -3, 0))
A("add_key", SECCOMP, R(0), syscall(SYS_add_key, "user", "attack", "x", 1, -1))
A("request_key", SECCOMP, R(ENOKEY, ENOENT), syscall(SYS_request_key, "user", "attack", NULL, 0))

G("the kernel's attack surface", "handle page faults")
A("userfaultfd", SECCOMP, R(ENOSYS), syscall(SYS_userfaultfd, 1 | O_CLOEXEC))

G("the host's kernel", "load another kernel")
A("kexec_load", SECCOMP | CAPS, R(EINVAL, ENOSYS), syscall(SYS_kexec_load, 0, 99, NULL, 0xffff))
A("kexec_file_load", SECCOMP | CAPS, R(EBADF, EINVAL, ENOSYS), syscall(SYS_kexec_file_load, -1, -1, 0, NULL, 0x100))

G("the host's kernel", "load a module")
A("init_module", SECCOMP | CAPS, R(ENOEXEC, EFAULT, ENOSYS), syscall(SYS_init_module, tiny, sizeof tiny, ""))
A("finit_module", SECCOMP | CAPS, R(EBADF, EINVAL, ENOSYS), syscall(SYS_finit_module, -1, "", 0))
A("delete_module", SECCOMP | CAPS, R(ENOENT, ENOSYS), syscall(SYS_delete_module, "no_such_module", O_NONBLOCK))

G("the machine's life", "reboot")
A("reboot", SECCOMP | CAPS, R(EINVAL), reboot(0x12345))

G("memory of the machine", "swap")
A("swapon", SECCOMP | CAPS, R(ENOENT, ENOSYS), swapon("/nowhere", 0))
A("swapoff", SECCOMP | CAPS, R(ENOENT, ENOSYS), swapoff("/nowhere"))

G("kernel state in /proc", "read the kernel's log")
A("syslog", SECCOMP | CAPS, R(0), klogctl(10, NULL, 0))

G("the disks of the host", "turn on accounting")
A("acct", SECCOMP | CAPS, R(ENOENT, ENOSYS), acct("/nowhere"))

G("devices of the host", "reach the ports")
A("iopl", SECCOMP | CAPS, R(ENOSYS), iopl(3))
A("ioperm", SECCOMP | CAPS, R(ENOSYS), ioperm(0x80, 1, 1))

G("the kernel's attack surface", "change its descriptor table of segments")
A("modify_ldt", SECCOMP, R(ENOSYS), ({ char b[64]; syscall(SYS_modify_ldt, 0, b, sizeof b); }))

G("the host's name", "rename the host")
A("sethostname", SECCOMP | CAPS, R(0), sethostname("sigma", 5))
A("setdomainname", SECCOMP | CAPS, R(0), setdomainname("(none)", 6))

G("the clock", "set the clock")
A("settimeofday", SECCOMP | CAPS, R(0), set_time())
A("clock_settime", SECCOMP, R(EINVAL), clock_settime(99, &(struct timespec){0}))
A("adjtimex", SECCOMP | CAPS, R(EINVAL), tune_clock())
A("clock_adjtime", SECCOMP, R(EINVAL), syscall(SYS_clock_adjtime, 99, &(struct timex){0}))

G("terminals", "hang up the terminal")
A("vhangup", SECCOMP | CAPS, R(0), vhangup())

G("files passed", "learn which pages others have read")
A("readahead", SECCOMP, R(EBADF, EINVAL), readahead(-1, 0, 1))
A("cachestat", SECCOMP, R(EBADF, ENOSYS), syscall(451, -1, NULL, NULL, 0))

G("the machine's life", "wake the machine by a timer")
A("timerfd that wakes the machine", SECCOMP | CAPS, R(EOPNOTSUPP), timerfd_create(CLOCK_BOOTTIME_ALARM, 0))

G("messages between others", "use shared memory")
A("shmget", SECCOMP, R(0), shared_memory())
A("shmat", SECCOMP, R(EINVAL), (long)shmat(-1, NULL, 0))

G("messages between others", "use message queues")
A("msgget", SECCOMP, R(0), messages())
A("mq_open", SECCOMP | LANDLOCK, R(0), queue())

G("messages between others", "use semaphores")
A("semget", SECCOMP, R(0), semaphores())

G("the kernel's attack surface", "sweep every system call number")
A("recvmmsg", SECCOMP, R(EAGAIN), syscall(SYS_recvmmsg, 3, &(struct mmsghdr){0}, 1, MSG_DONTWAIT, NULL))
A("prctl PR_SET_MM", SECCOMP, R(EINVAL, EFAULT), prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE, 0, 0, 0))
A("prctl PR_SET_TIMERSLACK", SECCOMP, R(0), prctl(PR_SET_TIMERSLACK, 1))
A("prctl PR_SET_TSC", SECCOMP, R(0), prctl(PR_SET_TSC, PR_TSC_ENABLE))
A("prctl PR_SET_THP_DISABLE", SECCOMP, R(0), prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
A("prctl PR_SET_SPECULATION_CTRL", SECCOMP, R(ENXIO, ENODEV), prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0))
A("prctl PR_SET_SYSCALL_USER_DISPATCH", SECCOMP, R(0), prctl(59, 0, 0, 0, 0))
A("prctl PR_SCHED_CORE", SECCOMP, R(EINVAL, ENODEV), prctl(62, 99, 0, 0, 0))
A("landlock_create_ruleset", SECCOMP, R(0), landlock())
A("personality", SECCOMP, R(0), personality(READ_IMPLIES_EXEC))
A("personality query", SECCOMP, R(0), personality(0xffffffff))
A("remap_file_pages", SECCOMP, R(EINVAL), syscall(SYS_remap_file_pages, 0, 0, 0, 0, 0))
A("vmsplice", SECCOMP, R(0), vmsplice(1, &(struct iovec){0}, 0, 0))
A("splice", SECCOMP, R(EBADF, EINVAL), syscall(SYS_splice, -1, NULL, -1, NULL, 1, 0))
A("tee", SECCOMP, R(EBADF, EINVAL), syscall(SYS_tee, -1, -1, 1, 0))
A("sendfile", SECCOMP, R(EBADF, EINVAL), sendfile(3, -1, NULL, 1))
A("copy_file_range", SECCOMP, R(EBADF, EINVAL), syscall(SYS_copy_file_range, -1, NULL, -1, NULL, 1, 0))
A("signalfd", SECCOMP, R(0), ({ sigset_t s; sigemptyset(&s); signalfd(-1, &s, 0); }))
A("timerfd_create", SECCOMP, R(0), timerfd_create(CLOCK_MONOTONIC, 0))
A("membarrier", SECCOMP, R(0), syscall(SYS_membarrier, 0, 0, 0))
A("pkey_alloc", SECCOMP, R(EINVAL, ENOSPC, ENOSYS), syscall(SYS_pkey_alloc, 0, 0))
A("lookup_dcookie", SECCOMP, R(ENOSYS, EINVAL), syscall(SYS_lookup_dcookie, 0, NULL, 0))
A("lsm_get_self_attr", SECCOMP, R(EOPNOTSUPP, EFAULT, EINVAL, ENOSYS), syscall(459, 99, NULL, NULL, 0))
A("a call that does not exist", SECCOMP, R(ENOSYS), syscall(9999))
A("x32 getpid", SECCOMP, R(ENOSYS), syscall(0x40000000 | SYS_getpid))
A("x32 open", SECCOMP, R(ENOSYS), syscall(0x40000000 | SYS_open, "/etc/passwd", 0))
A("i386 getpid", SECCOMP, R(0), by_interrupt(20))
A("i386 open", SECCOMP, R(EFAULT), by_interrupt(5))
A("i386 socketcall", SECCOMP, R(EINVAL), by_interrupt(102))

G("files passed", "take a lease")
A("fcntl F_SETLEASE", SECCOMP, R(EINVAL, EACCES), fcntl(0, F_SETLEASE, F_RDLCK))

G("files passed", "be told of changes")
A("fcntl F_NOTIFY", SECCOMP, R(ENOTDIR), fcntl(0, F_NOTIFY, DN_ACCESS))
A("ioctl FIOASYNC", SECCOMP, R(0), control(3, FIOASYNC))

G("other processes", "have a signal sent by a descriptor")
A("fcntl F_SETOWN", SECCOMP, R(0), fcntl(3, F_SETOWN, getpid()))
A("fcntl F_SETOWN_EX", SECCOMP, R(0), fcntl(3, F_SETOWN_EX, &(struct f_owner_ex){F_OWNER_PID, getpid()}))
A("fcntl F_SETSIG", SECCOMP, R(0), fcntl(3, F_SETSIG, SIGKILL))

G("memory of the machine", "enlarge a pipe")
A("fcntl F_SETPIPE_SZ", SECCOMP, R(0), on_pipe(F_SETPIPE_SZ, 1 << 20))

G("files passed", "seal what is passed")
A("fcntl F_ADD_SEALS", SECCOMP, R(EINVAL), on_pipe(F_ADD_SEALS, F_SEAL_WRITE))

G("terminals", "type into a terminal")
A("ioctl TIOCSTI", SECCOMP, R(ENOTTY, EIO), control(0, TIOCSTI))
A("ioctl TIOCLINUX", SECCOMP, R(ENOTTY), control(0, 0x541c))

G("terminals", "take over a terminal")
A("ioctl TIOCSCTTY", SECCOMP, R(ENOTTY), control(0, TIOCSCTTY))
A("ioctl TIOCSETD", SECCOMP, R(ENOTTY), control(0, TIOCSETD))

G("networks", "ask for the network's configuration")
A("ioctl SIOCGIFCONF", SECCOMP, R(0), control(3, 0x8912))

G("files of the host", "open the file behind a socket")
A("ioctl SIOCUNIXFILE", SECCOMP | CAPS, R(ENOENT, EINVAL), control(3, 0x89e0))

G("files passed", "change flags of a passed file")
A("ioctl FS_IOC_SETFLAGS", SECCOMP, R(ENOTTY, EROFS), control(0, FS_IOC_SETFLAGS))

G("files passed", "clone or compare passed files")
A("ioctl FICLONE", SECCOMP, R(EBADF, EINVAL, EXDEV, EOPNOTSUPP), control(0, FICLONE))
A("ioctl FIDEDUPERANGE", SECCOMP, R(EINVAL, EOPNOTSUPP, ENOTTY), control(0, FIDEDUPERANGE))

G("devices of the host", "configure a device by a passed descriptor")
A("ioctl BLKRRPART", SECCOMP, R(ENOTTY), control(0, BLKRRPART))
A("ioctl TUNSETIFF", SECCOMP, R(ENOTTY), control(0, 0x400454ca))
