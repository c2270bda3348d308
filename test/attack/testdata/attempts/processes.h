
G("other processes", "signal whatever has a number")
A("reach another process by trying numbers", LANDLOCK | PIDS | ROOT, R(0), reach_another())

G("the init of its processes", "signal init")
A("signal init", LANDLOCK | ROOT, R(0), kill(1, 0))

G("a proc of the same realm", "signal a sibling")
A("signal a sibling", LANDLOCK | PIDS | ROOT, R(0), kill(VICTIM, 0))
A("tkill a sibling", LANDLOCK | PIDS | ROOT, R(0), syscall(SYS_tkill, VICTIM, 0))
A("tgkill a sibling", LANDLOCK | PIDS | ROOT, R(0), syscall(SYS_tgkill, VICTIM, VICTIM, 0))
A("queue a signal to a sibling", SECCOMP | LANDLOCK | PIDS | ROOT, R(0), queue_signal(VICTIM))

G("a proc of another realm", "signal another realm's proc")
A("signal another realm's proc", LANDLOCK | PIDS | ROOT, R(0), kill(ANOTHER, 0))

G("sigmad", "signal sigmad")
A("signal sigmad", LANDLOCK | PIDS | ROOT, R(0), kill(DAEMON, 0))

G("other processes", "take a handle on a process")
A("pidfd_open of a sibling", SECCOMP | PIDS, R(0), syscall(SYS_pidfd_open, VICTIM, 0))
A("pidfd_open of init", SECCOMP, R(0), syscall(SYS_pidfd_open, 1, 0))

G("other processes", "use a handle on a process")
A("pidfd_getfd", SECCOMP, R(EBADF), syscall(SYS_pidfd_getfd, 0, 0, 0))
A("pidfd_send_signal", SECCOMP, R(EBADF), syscall(SYS_pidfd_send_signal, 0, 0, NULL, 0))

G("a proc of the same realm", "trace a sibling")
A("ptrace a sibling", SECCOMP | LANDLOCK | PIDS | ROOT, R(0), trace(PTRACE_ATTACH, VICTIM))

G("a proc of another realm", "trace another realm's proc")
A("ptrace another realm's proc", SECCOMP | LANDLOCK | PIDS | ROOT, R(0), trace(PTRACE_SEIZE, ANOTHER))

G("sigmad", "trace sigmad")
A("ptrace sigmad", SECCOMP | LANDLOCK | PIDS | ROOT, R(0), trace(PTRACE_SEIZE, DAEMON))

G("its own start", "be traced by its parent")
A("ptrace by the parent", SECCOMP, R(0), trace(PTRACE_TRACEME, 0))

G("a proc of the same realm", "read a sibling's memory")
A("read a sibling's memory", SECCOMP | LANDLOCK | PIDS | ROOT, R(0), read_memory(VICTIM, 0))

G("a proc of another realm", "read another realm's memory")
A("read another realm's memory", SECCOMP | LANDLOCK | PIDS | ROOT, R(0), read_memory(ANOTHER, 0))

G("sigmad", "read sigmad's memory")
A("read sigmad's memory", SECCOMP | LANDLOCK | PIDS | ROOT, R(EFAULT), read_memory(DAEMON, 0))

G("a proc of the same realm", "write a sibling's memory")
A("write a sibling's memory", SECCOMP | LANDLOCK | PIDS | ROOT, R(EFAULT), read_memory(VICTIM, 1))

G("other processes", "drop another process's pages")
A("process_madvise", SECCOMP, R(EBADF), syscall(SYS_process_madvise, -1, NULL, 0, 0, 0))
A("process_mrelease", SECCOMP, R(EBADF, ENOSYS), syscall(SYS_process_mrelease, -1, 0))
A("move a sibling's pages", SECCOMP | LANDLOCK | PIDS | ROOT, R(ENOSYS, ENODEV), syscall(SYS_move_pages, VICTIM, 0, NULL, NULL, NULL, 0))

G("other processes", "compare its kernel objects with another's")
A("kcmp with init", SECCOMP | LANDLOCK | ROOT, R(0), syscall(SYS_kcmp, getpid(), 1, 1, 0, 0))

G("a proc of the same realm", "learn addresses from a sibling's robust list")
A("a sibling's robust list", LANDLOCK | PIDS | ROOT, R(0), ({ void *h; size_t n; syscall(SYS_get_robust_list, VICTIM, &h, &n); }))

G("a proc of the same realm", "read a sibling's environment by /proc")
A("environment of a sibling", FILES | PIDS | ROOT, R(0), ({ char p[64]; snprintf(p, sizeof p, "/proc/%d/environ", VICTIM); open(p, O_RDONLY); }))

G("a proc of the same realm", "open a sibling's memory by /proc")
A("memory of a sibling by /proc", FILES | PIDS | ROOT, R(0), ({ char p[64]; snprintf(p, sizeof p, "/proc/%d/mem", VICTIM); open(p, O_RDWR); }))

G("sigmad", "read sigmad by /proc")
A("environment of sigmad", FILES | PIDS | ROOT, R(0), ({ char p[64]; snprintf(p, sizeof p, "/proc/%d/environ", DAEMON); open(p, O_RDONLY); }))
A("descriptors of sigmad", FILES | PIDS | ROOT, R(0), ({ char p[64]; snprintf(p, sizeof p, "/proc/%d/fd/3", DAEMON); open(p, O_PATH); }))
A("files of sigmad", FILES | PIDS | ROOT, R(0), ({ char p[64]; snprintf(p, sizeof p, "/proc/%d/root/data", DAEMON); open(p, O_RDONLY); }))

G("a proc of the same realm", "read a sibling's limits")
A("read a sibling's limits", PIDS | ROOT, R(0), limit(VICTIM, RLIMIT_NOFILE, 0))

G("a proc of the same realm", "change a sibling's limits")
A("set a sibling's limits", SECCOMP | PIDS | ROOT, R(0), limit(VICTIM, RLIMIT_STACK, 1))

G("a proc of another realm", "read another realm's limits")
A("read another realm's limits", PIDS | ROOT, R(0), limit(ANOTHER, RLIMIT_NOFILE, 0))

G("a proc of the same realm", "read a sibling's affinity")
A("a sibling's affinity", SECCOMP | PIDS, R(0), affinity(VICTIM, 0))

G("a proc of the same realm", "change a sibling's affinity")
A("set a sibling's affinity", SECCOMP | PIDS | ROOT, R(0), affinity(VICTIM, 1))

G("a proc of another realm", "change another realm's affinity")
A("set another realm's affinity", SECCOMP | PIDS | ROOT, R(0), affinity(ANOTHER, 1))

G("processor time", "take the other cores")
A("set its own affinity", SECCOMP, R(0), affinity(0, 1))

G("a proc of the same realm", "read a sibling's priority")
A("a sibling's priority", SECCOMP | PIDS, R(0), syscall(SYS_getpriority, PRIO_PROCESS, VICTIM))
A("a sibling's I/O priority", SECCOMP | PIDS, R(0), syscall(SYS_ioprio_get, 1, VICTIM))

G("a proc of the same realm", "change a sibling's priority")
A("set a sibling's priority", SECCOMP | PIDS | ROOT, R(0), setpriority(PRIO_PROCESS, VICTIM, 0))
A("set a sibling's scheduler", SECCOMP | PIDS | ROOT, R(0), scheduler(VICTIM, SCHED_OTHER))
A("set a sibling's I/O priority", SECCOMP | PIDS | ROOT, R(0), syscall(SYS_ioprio_set, 1, VICTIM, 2 << 13 | 4))

G("processor time", "change the priority of a whole uid")
A("set the priority of all of a uid", SECCOMP | PIDS | ROOT, R(ESRCH), setpriority(PRIO_USER, 0x3fffffff, 0))

G("processor time", "raise its own priority")
A("raise its own priority", SECCOMP | CAPS, R(0), setpriority(PRIO_PROCESS, 0, -5))
A("its own scheduler", SECCOMP, R(0), scheduler(0, SCHED_BATCH))
A("sched_setattr", SECCOMP, R(EINVAL), syscall(SYS_sched_setattr, 0, NULL, 0))

G("a proc of the same realm", "probe by session and process group")
A("a sibling's session", SECCOMP | PIDS, R(0), getsid(VICTIM))
A("a sibling's process group", SECCOMP | PIDS, R(0), getpgid(VICTIM))

G("memory of the machine", "raise its own limits")
A("raise the limit of files", SECCOMP, R(0), raise_limit(RLIMIT_NOFILE))
A("raise the limit of processes", SECCOMP, R(0), raise_limit(RLIMIT_NPROC))
A("raise the limit of locked memory", SECCOMP, R(0), raise_limit(RLIMIT_MEMLOCK))
A("setrlimit", SECCOMP, R(0), ({ struct rlimit l; getrlimit(RLIMIT_STACK, &l); syscall(SYS_setrlimit, RLIMIT_STACK, &l); }))

G("memory of the machine", "lock memory")
A("lock its memory", SECCOMP, R(0), mlock(tiny, 1))
A("map huge pages", SECCOMP, R(0, ENOMEM), mmap(NULL, 2 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0) == MAP_FAILED ? -1 : 0)
A("lock all memory", SECCOMP | CAPS, R(0), mlockall(MCL_CURRENT))

G("memory of the machine", "choose where memory lies")
A("set_mempolicy", SECCOMP, R(ENOSYS), syscall(SYS_set_mempolicy, 0, NULL, 0))
A("mbind", SECCOMP, R(ENOSYS, EINVAL), syscall(SYS_mbind, NULL, 0, 99, NULL, 0, 0))

G("the disks of the host", "write a core dump")
A("core dump", OUTSIDE, R(0), core_somewhere())
