// What exhausts something, or will not end. Each prints what it got.
#include <pthread.h>

static void wait_for_ever(void) {
	for (;;)
		pause();
}

// forks makes processes until it may not, and tells how many there were. With zombies they end at once and nobody waits for them.
static int forks(long most, int zombies) {
	long n = 0;
	while (n < most) {
		pid_t pid = fork();
		if (pid < 0)
			break;
		if (pid == 0 && zombies)
			_exit(0);
		if (pid == 0)
			wait_for_ever();
		n++;
	}
	printf("%ld\n", n);
	fflush(stdout);
	kill(0, SIGKILL); // the group: a proc's own session
	return 0;
}

static void *thread(void *none) {
	wait_for_ever();
	return none;
}

static int threads(long most) {
	long n = 0;
	pthread_attr_t a;
	pthread_t id;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, PTHREAD_STACK_MIN);
	while (n < most && pthread_create(&id, &a, thread, NULL) == 0)
		n++;
	printf("%ld\n", n);
	return 0;
}

// memory touches pages until it is killed.
static int memory(long most, int flags) {
	for (long got = 0; got < most; got += 1 << 20) {
		char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			break;
		memset(p, 1, 1 << 20);
	}
	puts("all of it");
	return 0;
}

// tables takes memory that is nobody's page: a table of 4 KiB for each 2 MiB from which a byte is read.
static int tables(long most) {
	for (long got = 0; got < most; got += 256 * 4096) {
		char *p = mmap(NULL, 512l << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED || madvise(p, 512l << 20, MADV_NOHUGEPAGE) != 0)
			break;
		for (int i = 0; i < 256; i++)
			(void)*(volatile char *)(p + (i * 2l << 20));
	}
	puts("all of it");
	return 0;
}

// pipes fills pipes, whose pages belong to no process, and tells how many bytes they took.
static int pipes(long most) {
	static char block[4096];
	long got = 0;
	int fds[2];
	while (got < most && pipe2(fds, O_NONBLOCK) == 0)
		for (ssize_t n; (n = write(fds[1], block, sizeof block)) > 0;)
			got += n;
	printf("%ld\n", got);
	return 0;
}

static int files(void) {
	int n = 0;
	while (dup(0) >= 0)
		n++;
	printf("%d\n", n);
	return 0;
}

static int output(int fd) {
	static char block[1 << 16];
	memset(block, 'x', sizeof block);
	for (int i = 0; i < 48 << 4; i++)
		if (write(fd, block, sizeof block) < 0)
			return 1;
	return 0;
}

static int crash(void) {
	struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	setrlimit(RLIMIT_CORE, &all);
	prctl(PR_SET_DUMPABLE, 1);
	abort();
}

// orphans leaves processes in sessions of their own behind, n of them, half of which are zombies of others.
static int orphans(long n) {
	int fds[2];
	if (pipe(fds) != 0)
		return 1;
	for (long i = 0; i < n; i++)
		if (fork() == 0) {
			setsid();
			pid_t pid = fork();
			if (pid == 0 && i % 2)
				_exit(0);
			if (write(fds[1], "", 1) == 1)
				wait_for_ever();
		}
	for (char c; n > 0 && read(fds[0], &c, 1) == 1;)
		n--;
	puts("ready");
	return 0;
}

// flee leaves n chains of processes behind, in sessions of their own, each of which lives as long as it takes to make the next one: whoever kills by number comes late.
// On the host, where nobody could stop them, they end after FLEE_SECONDS, and say so.
static int flee(long n) {
	int fds[2];
	const char *seconds = getenv("FLEE_SECONDS");
	const time_t until = seconds ? time(NULL) + atoi(seconds) : 0;
	if (pipe(fds) != 0)
		return 1;
	for (long i = 0; i < n; i++)
		if (fork() == 0) {
			setsid();
			signal(SIGCHLD, SIG_IGN);
			if (write(fds[1], "", 1) != 1)
				_exit(1);
			while (until == 0 || time(NULL) < until)
				if (fork() > 0)
					_exit(0); // the next one goes on; without one, this one tries again
			_exit(write(1, "fled\n", 5) != 5);
		}
	for (char c; n > 0 && read(fds[0], &c, 1) == 1;)
		n--;
	puts("ready");
	return 0;
}

// stubborn asks to be left alone by every signal, as do its children, and says so. With stop nothing can be delivered to it.
static int stubborn(int stop) {
	sigset_t all;
	sigfillset(&all);
	for (int s = 1; s < 65; s++)
		signal(s, SIG_IGN);
	sigprocmask(SIG_BLOCK, &all, NULL);
	if (fork() == 0) {
		setsid();
		wait_for_ever();
	}
	puts("ready");
	fflush(stdout);
	if (stop)
		kill(0, SIGSTOP);
	wait_for_ever();
	return 0;
}

static int bomb(const char *what, long most) {
	const long unbounded = most ? most : 1l << 40;
	if (strcmp(what, "forks") == 0 || strcmp(what, "zombies") == 0)
		return forks(unbounded, what[0] == 'z');
	if (strcmp(what, "threads") == 0)
		return threads(unbounded);
	if (strcmp(what, "memory") == 0)
		return memory(unbounded, MAP_PRIVATE);
	if (strcmp(what, "shared") == 0)
		return memory(unbounded, MAP_SHARED);
	if (strcmp(what, "tables") == 0)
		return tables(unbounded);
	if (strcmp(what, "pipes") == 0)
		return pipes(unbounded);
	if (strcmp(what, "files") == 0)
		return files();
	if (strcmp(what, "output") == 0)
		return output(1);
	if (strcmp(what, "errors") == 0)
		return output(2);
	if (strcmp(what, "crash") == 0)
		return crash();
	if (strcmp(what, "orphans") == 0)
		return orphans(unbounded);
	if (strcmp(what, "flee") == 0)
		return flee(unbounded);
	if (strcmp(what, "stubborn") == 0)
		return stubborn(0);
	if (strcmp(what, "stopped") == 0)
		return stubborn(1);
	if (strcmp(what, "killall") == 0)
		return kill(-1, SIGKILL) == 0 ? 0 : 1;
	return 2;
}
