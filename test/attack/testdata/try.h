// Attempts that take more than an expression. Each returns -1 and errno when it was refused.

static const unsigned char tiny[];

// made removes what an attempt that succeeded has made.
static long made(long r, const char *path) {
	int e = errno;
	if (r >= 0)
		unlink(path);
	errno = e;
	return r;
}

static long make_then(int what) {
	char to[80];
	int fd = open(HERE, O_CREAT | O_EXCL | O_WRONLY, 0600);
	if (fd < 0)
		return -1;
	close(fd);
	snprintf(to, sizeof to, "%s.to", here);
	long r = what == 0 ? rename(here, to) : what == 1 ? link(here, to) : unlink(here);
	int e = errno;
	unlink(here);
	unlink(to);
	errno = e;
	return r;
}

// Another process than those of this proc, by asking for every number. EPERM would tell that there is one.
static long reach_another(void) {
	for (int pid = 1; pid < 4096; pid++)
		if (pid > 1 && pid != getpid() && pid != getppid() && kill(pid, 0) == 0)
			return pid;
	errno = ESRCH;
	return -1;
}

static long limit(int pid, int what, int set) {
	struct rlimit old;
	if (!set)
		return syscall(SYS_prlimit64, pid, what, NULL, &old);
	getrlimit(what, &old);
	if (set == 2)
		old.rlim_cur = old.rlim_max = old.rlim_max == RLIM_INFINITY ? RLIM_INFINITY : old.rlim_max + 1;
	return syscall(SYS_prlimit64, pid, what, &old, NULL);
}

// Raising takes a capability that even root may lack, so the control is content with setting what is.
static long raise_limit(int what) {
	long r = limit(0, what, 2);
	return r == 0 ? r : limit(0, what, 1);
}

static long read_memory(int pid, int write) {
	char buf[8];
	struct iovec mine = {buf, sizeof buf}, theirs = {(void *)tiny, sizeof buf};
	return write ? syscall(SYS_process_vm_writev, pid, &mine, 1, &theirs, 1, 0) : syscall(SYS_process_vm_readv, pid, &mine, 1, &theirs, 1, 0);
}

static long trace(long request, int pid) {
	long r = ptrace(request, pid, 0, 0);
	if (r == 0 && pid != 0) {
		if (request == PTRACE_SEIZE)
			ptrace(PTRACE_INTERRUPT, pid, 0, 0);
		waitpid(pid, NULL, __WALL);
		ptrace(PTRACE_DETACH, pid, 0, 0);
	}
	return r;
}

static long affinity(int pid, int set) {
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	CPU_SET(1, &cpus);
	return set ? syscall(SYS_sched_setaffinity, pid, sizeof cpus, &cpus) : syscall(SYS_sched_getaffinity, pid, sizeof cpus, &cpus);
}

static long scheduler(int pid, int policy) {
	struct sched_param p = {policy == SCHED_FIFO ? 1 : 0};
	return syscall(SYS_sched_setscheduler, pid, policy, &p);
}

static long queue_signal(int pid) {
	siginfo_t info = {.si_signo = 0, .si_code = SI_QUEUE};
	return syscall(SYS_rt_sigqueueinfo, pid, 0, &info);
}

static struct sockaddr_un *host_address(void) {
	static struct sockaddr_un a = {.sun_family = AF_UNIX};
	snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "sigma-attack-%d", getpid());
	return &a;
}

// A file descriptor passed on; MSG_OOB makes the kernel refuse the message after it has looked at everything, so that sigmad gets none.
static long pass_descriptor(int calls) {
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} u;
	char byte = 0;
	struct iovec iov = {&byte, 1};
	struct mmsghdr m = {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = u.buf, .msg_controllen = sizeof u.buf}};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m.msg_hdr);
	*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
	memset(CMSG_DATA(c), 0, sizeof(int));
	return calls ? syscall(SYS_sendmmsg, 3, &m, 1, MSG_OOB) : syscall(SYS_sendmsg, 3, &m.msg_hdr, MSG_OOB);
}

static long option(int level, int name) {
	int one = 1;
	return setsockopt(3, level, name, &one, sizeof one);
}

static long ask_option(int level, int name) {
	char buf[256];
	socklen_t n = sizeof buf;
	if (name == SO_PEERGROUPS)
		n = 4;
	return getsockopt(3, level, name, buf, &n);
}

static long attach_filter(void) {
	struct sock_filter all = {BPF_RET | BPF_K, 0, 0, 0xffffffff};
	struct sock_fprog p = {1, &all};
	return setsockopt(3, SOL_SOCKET, SO_ATTACH_FILTER, &p, sizeof p);
}

// clone as the kernel knows it; the child ends at once.
static long cloned(unsigned long flags) {
	long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		_exit(0);
	return pid;
}

static long cloned3(void) {
	struct clone_args a = {.exit_signal = SIGCHLD};
	long pid = syscall(SYS_clone3, &a, sizeof a);
	if (pid == 0)
		_exit(0);
	return pid;
}

static long capabilities(int set) {
	struct {
		uint32_t version;
		int pid;
	} header = {0x20080522, 0};
	uint32_t data[6] = {0};
	return set ? syscall(SYS_capset, &header, data) : syscall(SYS_capget, &header, data);
}

static long filter_more(void) {
	struct sock_filter all = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
	struct sock_fprog p = {1, &all};
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
}

static long filter_by_prctl(void) {
	struct sock_filter all = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
	struct sock_fprog p = {1, &all};
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p);
}

static long landlock(void) {
	struct landlock_ruleset_attr a = {.handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE};
	return syscall(SYS_landlock_create_ruleset, &a, sizeof a.handled_access_fs, 0);
}

static long make_map(void) {
	union bpf_attr a = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
	return syscall(SYS_bpf, BPF_MAP_CREATE, &a, sizeof a);
}

static long perf(int pid, int cpu) {
	struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE, .size = sizeof a, .config = PERF_COUNT_SW_TASK_CLOCK};
	return syscall(SYS_perf_event_open, &a, pid, cpu, -1, 0);
}

static long ring(void) {
	struct io_uring_params p = {0};
	return syscall(SYS_io_uring_setup, 4, &p);
}

static long old_aio(void) {
	aio_context_t c = 0;
	return syscall(SYS_io_setup, 1, &c);
}

// A program of a few bytes that ends with 42.
static const unsigned char tiny[] = {
	0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 62, 0, 1, 0, 0, 0, 120, 0, 64, 0, 0, 0, 0, 0,
	64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0,
	1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0,
	132, 0, 0, 0, 0, 0, 0, 0, 132, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0,
	0x31, 0xc0, 0xb0, 60, 0x40, 0xb7, 42, 0x40, 0x0f, 0xb6, 0xff, 0x0f, 0x05,
};

static char *no_words[] = {NULL};

static long exec_memory(int number) {
	int fd = memfd_create("attack", number == 1000 ? 0 : MFD_CLOEXEC);
	if (fd < 0 || write(fd, tiny, sizeof tiny) < 0)
		return -1;
	if (number == 1000 && (dup2(fd, 1000) < 0 || close(fd) < 0))
		return -1;
	return syscall(SYS_execveat, number == 1000 ? 1000 : fd, "", no_words, no_words, AT_EMPTY_PATH);
}

static long exec_at(int fd, const char *path, int flags) {
	char *words[] = {"attack", NULL};
	return syscall(SYS_execveat, fd, path, words, no_words, flags);
}


static long handle_of(const char *path) {
	struct {
		struct file_handle h;
		char bytes[128];
	} h = {.h = {.handle_bytes = 128}};
	int mount;
	return name_to_handle_at(AT_FDCWD, path, &h.h, &mount, 0);
}

static long open_handle(void) {
	struct {
		struct file_handle h;
		char bytes[8];
	} h = {.h = {.handle_bytes = 8, .handle_type = 1}, .bytes = {1}};
	return open_by_handle_at(AT_FDCWD, &h.h, O_RDONLY);
}

static long shared_memory(void) {
	long id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
	if (id >= 0)
		shmctl(id, IPC_RMID, NULL);
	return id;
}

static long messages(void) {
	long id = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
	if (id >= 0)
		msgctl(id, IPC_RMID, NULL);
	return id;
}

static long semaphores(void) {
	long id = semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
	if (id >= 0)
		semctl(id, 0, IPC_RMID);
	return id;
}

static long queue(void) {
	struct mq_attr a = {.mq_maxmsg = 1, .mq_msgsize = 8};
	long q = syscall(SYS_mq_open, "sigma-attack", O_CREAT | O_RDWR, 0600, &a);
	if (q >= 0)
		syscall(SYS_mq_unlink, "sigma-attack");
	return q;
}

// The 32-bit entry: getpid there is 20.
static long by_interrupt(long nr) {
	long r;
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(nr), "b"(0), "c"(0), "d"(0) : "memory", "r8", "r9", "r10", "r11");
	if (r < 0) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

// A core dump of this process, which its parent sees in the status; the attempt's own child dies.
static long core(void) {
	struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	pid_t pid = fork();
	if (pid == 0) {
		if (chdir(HERE) != 0)
			;
		setrlimit(RLIMIT_CORE, &all);
		prctl(PR_SET_DUMPABLE, 1);
		abort();
	}
	int status = 0;
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status) && WCOREDUMP(status))
		return 1;
	errno = EPERM;
	return -1;
}

static long core_somewhere(void) {
	mkdir(HERE, 0777);
	long r = core();
	int e = errno;
	char name[sizeof here + 32];
	snprintf(name, sizeof name, "find %s -delete", here);
	if (r >= 0 && system(name) != 0)
		;
	rmdir(here);
	errno = e;
	return r;
}

static long on_pipe(int command, long arg) {
	int fds[2];
	if (pipe(fds) != 0)
		return -1;
	return fcntl(fds[1], command, arg);
}

static long lock(int command) {
	struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	return fcntl(0, command, &l);
}

static long control(int fd, unsigned long request) {
	char arg[256] = {0};
	return ioctl(fd, request, arg);
}

static long set_time(void) {
	struct timeval *none = NULL;
	return syscall(SYS_settimeofday, none, NULL);
}

static long tune_clock(void) {
	struct timex t = {.modes = ADJ_TICK, .tick = -1};
	return syscall(SYS_adjtimex, &t);
}

static long stat_at(const char *path, int flags) {
	struct stat st;
	return syscall(SYS_newfstatat, AT_FDCWD, path, &st, flags);
}

// HARMLESS is the exit code of a program that was executed without the rights it was executed for.
enum { HARMLESS = 77 };

static long exec_set_uid(const char *path) {
	char *words[] = {"attack", "whoami", NULL};
	return execve(path ? path : "", words, no_words);
}

static long connect_unix(const char *name, int abstract) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (fd < 0 || name == NULL)
		return -1;
	int n = snprintf(a.sun_path + abstract, sizeof a.sun_path - abstract, "%s", name);
	return connect(fd, (void *)&a, offsetof(struct sockaddr_un, sun_path) + abstract + n);
}

// Some uid of a range, by trying. What is set is the saved one, which gives the right to become it.
static long any_uid(unsigned base) {
	for (unsigned i = 0; i < 4096; i++)
		if (syscall(SYS_setresuid, -1, -1, base + 1024 + i) == 0)
			return 0;
	return -1;
}

// A timer whose signal goes to a thread of another process, which the kernel takes only of its own.
static long timer_for(int pid) {
	struct {
		union sigval value;
		int signo, notify, tid;
	} event = {.signo = SIGKILL, .notify = 4, .tid = pid};
	int id;
	return syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &id);
}

// A child in its parent's memory, by the flags given too. It has no stack to return on, so it ends where it begins.
static long by_vfork(unsigned long more, long key) {
	register long r10 __asm__("r10") = key, r8 __asm__("r8") = 0;
	long r = SYS_clone;
	__asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%edi, %%edi\n\tmov $231, %%eax\n\tsyscall\n1:"
					 : "+a"(r)
					 : "D"(CLONE_VM | CLONE_VFORK | SIGCHLD | more), "S"(0), "d"(0), "r"(r10), "r"(r8)
					 : "rcx", "r11", "memory");
	if (r < 0) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

// Numbers that somebody might have chosen, then some more, where such a key would stand.
static long guess_key(int what) {
	uid_t me = getuid();
	struct rlimit l;
	getrlimit(RLIMIT_STACK, &l);
	for (long i = 0; i < 100000; i++) {
		long key = i < 20000 ? i - 10000 : (i << 32 | i) * 2654435761;
		long r = what == 0   ? syscall(SYS_setresuid, me, me, me, key)
				 : what == 1 ? syscall(SYS_prlimit64, 0, RLIMIT_STACK, &l, NULL, key)
							 : by_vfork(CLONE_PARENT, key);
		if (r >= 0)
			return r;
	}
	return -1;
}
