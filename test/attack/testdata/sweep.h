// sweep makes every call by its number, each in a process of its own, and prints those that got through, one a line: "KIND NUMBER"; then the calls that depend on an argument with
// every argument: "NAME ARGUMENT". Arguments are such that the kernel refuses what the filter lets through, by another error than the filter's.
#include <poll.h>

enum { CALLS = 1024, TABLE_X32 = 0x40000000, SYNC_I386 = 36 };

// The two ways into the kernel, without a stack of their own, so that a child of vfork leaves its parent's as it is.
static inline __attribute__((always_inline)) long by_syscall(long nr, long a, long b, long c, long d, long e, long f) {
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "+a"(nr) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return nr;
}

static inline __attribute__((always_inline)) long by_int80(long nr) {
	__asm__ volatile("int $0x80" : "+a"(nr) : "b"(-1), "c"(-1), "d"(-1), "S"(-1), "D"(-1) : "r8", "r9", "r10", "r11", "memory");
	return nr;
}

// What filters answer.
static int refusal(long r) {
	return r == -EPERM || r == -ENOENT || r == -ENOSYS || r == -EROFS;
}

static void woken(int signal) {
	(void)signal;
}

// one makes the call and tells its result by the pipe. What ends it, or goes on as another process, tells nothing.
static void one(const char *kind, long nr, int to) {
	int word = 0;
	long r, child = 0;
	// What blocks is woken again and again.
	struct sigaction wake = {.sa_handler = woken};
	struct itimerval often = {{0, 50000}, {0, 50000}};
	sigaction(SIGALRM, &wake, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	if (kind[0] == 'i')
		r = by_int80(nr);
	else if (nr == SYS_futex) // whose operation -1 does not exist
		r = by_syscall(nr, (long)&word, 1, 0, 0, 0, 0);
	else
		r = by_syscall(nr, -1, -1, -1, -1, -1, -1);
	child = kind[0] == 'i' ? nr == 2 || nr == 120 || nr == 190 : nr == SYS_fork || nr == SYS_vfork || nr == SYS_clone;
	if (r == 0 && child)
		by_syscall(SYS_exit_group, 0, 0, 0, 0, 0, 0);
	if (write(to, &r, sizeof r) != sizeof r)
		_exit(99);
	_exit(0);
}

static int through(const char *kind, long nr) {
	int fds[2], status = 0;
	long r = 0;
	if (pipe2(fds, O_CLOEXEC) != 0)
		return 1;
	pid_t pid = fork();
	if (pid == 0)
		one(kind, nr, fds[1]);
	close(fds[1]);
	struct pollfd p = {fds[0], POLLIN, 0};
	int waits = poll(&p, 1, 2000) == 0; // with all signals blocked, which only happens without a filter
	if (waits)
		kill(pid, SIGKILL);
	int told = read(fds[0], &r, sizeof r) == sizeof r;
	close(fds[0]);
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
		return 0;
	if (told && strcmp(kind, "call") == 0 && refusal(r))
		return 0;
	return 1;
}

static void sweep_numbers(const char *kind, long offset) {
	for (long nr = 0; nr < CALLS; nr++) {
		if (nr == (kind[0] == 'i' ? SYNC_I386 : SYS_sync)) // takes long where it is let through
			continue;
		if (through(kind, nr | offset))
			printf("%s %ld\n", kind, nr);
	}
}

static void passed(long r, const char *format, long a, long b) {
	if (!refusal(r)) {
		printf(format, a, b);
		putchar('\n');
	}
}

static void sweep_options(void) {
	for (long level = 0; level < 300; level++)
		for (long name = 0; name < 256; name++) {
			passed(by_syscall(SYS_setsockopt, 3, level, name, -1, 4, 0), "setsockopt %ld/%ld", level, name);
			passed(by_syscall(SYS_getsockopt, 3, level, name, -1, -1, 0), "getsockopt %ld/%ld", level, name);
		}
}

static void sweep_arguments(void) {
	int own[2];
	if (pipe(own) != 0)
		return;
	for (long option = 0; option < 100; option++)
		passed(by_syscall(SYS_prctl, option, -1, -1, -1, -1, 0), "prctl %ld", option, 0);
	for (long option = 0x53564d41; option; option = option == 0x53564d41 ? PR_SET_PTRACER : 0)
		passed(by_syscall(SYS_prctl, option, -1, -1, -1, -1, 0), "prctl %ld", option, 0);
	for (long command = 0; command < 2048; command++)
		passed(by_syscall(SYS_fcntl, own[0], command, -1, 0, 0, 0), "fcntl %ld", command, 0);
	for (long request = 0; request < 65536; request++)
		passed(by_syscall(SYS_ioctl, own[0], request, -1, 0, 0, 0), "ioctl %#lx", request, 0);
	for (long bit = 1; bit < 1l << 32; bit <<= 1) // a thread without its parent's signal handlers, which no kernel makes
		passed(by_syscall(SYS_clone, bit | CLONE_THREAD, 0, 0, 0, 0, 0), "clone %#lx", bit, 0);
	for (long limit = 0; limit < 16; limit++) {
		passed(by_syscall(SYS_prlimit64, 0, limit, 0, -1, 0, 0), "prlimit64 read %ld", limit, 0);
		passed(by_syscall(SYS_prlimit64, 0, limit, -1, 0, 0, 0), "prlimit64 write %ld", limit, 0);
	}
	for (long fd = 0; fd < 1100; fd++) {
		passed(by_syscall(SYS_execveat, fd, -1, -1, -1, 0, 0), "execveat %ld by path", fd, 0);
		passed(by_syscall(SYS_execveat, fd, -1, -1, -1, AT_EMPTY_PATH, 0), "execveat %ld", fd, 0);
		passed(by_syscall(SYS_landlock_restrict_self, fd, 0, 0, 0, 0, 0), "landlock_restrict_self %ld", fd, 0);
		passed(by_syscall(SYS_landlock_restrict_self, fd, 1, 0, 0, 0, 0), "landlock_restrict_self %ld with a flag", fd, 0);
	}
	for (long flag = 1; flag < 1l << 32; flag <<= 1)
		passed(by_syscall(SYS_newfstatat, -1, -1, -1, flag, 0, 0), "newfstatat %#lx", flag, 0);
	passed(by_syscall(SYS_sendto, -1, -1, 1, 0, 0, 0), "sendto without address", 0, 0);
	passed(by_syscall(SYS_sendto, -1, -1, 1, 0, -1, 1), "sendto with address", 0, 0);
	sweep_options();
}

static void sweep(const char *kind) {
	if (*kind == 0 || strcmp(kind, "call") == 0)
		sweep_numbers("call", 0);
	if (*kind == 0 || strcmp(kind, "x32") == 0)
		sweep_numbers("x32", TABLE_X32);
	if (*kind == 0 || strcmp(kind, "int80") == 0)
		sweep_numbers("int80", 0);
	if (*kind == 0 || strcmp(kind, "arguments") == 0)
		sweep_arguments();
}
