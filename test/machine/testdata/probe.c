/* The C side of the tests: programs that know nothing of sigmaOS, one per word. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define VERSION "9P2000.L.sigma1"

static int number(int argc, char **argv, int i)
{
	return argc > i ? atoi(argv[i]) : 0;
}

static volatile sig_atomic_t caught;

static void catch(int n)
{
	caught = n;
}

/* streams: different words to the two streams. */
static int streams(void)
{
	fputs("to stdout\n", stdout);
	fputs("to stderr\n", stderr);
	return 0;
}

/* show: what the proc was given. */
static int show(int argc, char **argv, char **env)
{
	for (int i = 0; i < argc; i++)
		printf("arg %s\n", argv[i]);
	for (; *env; env++)
		printf("env %s\n", *env);
	char c;
	printf("stdin %zd\n", read(0, &c, 1));
	return 0;
}

/* big N: N lines of 64 bytes, then the end, at once. */
static int big(int n)
{
	for (int i = 0; i < n; i++)
		printf("%063d\n", i);
	return 0;
}

/* self: signals to itself arrive, are blocked and unblocked, as on Linux. */
static int self(void)
{
	struct sigaction a = {.sa_handler = catch};
	sigaction(SIGUSR1, &a, NULL);
	sigaction(SIGALRM, &a, NULL);
	kill(getpid(), SIGUSR1);
	if (caught != SIGUSR1)
		return 1;
	sigset_t set, old;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, &old);
	caught = 0;
	raise(SIGUSR1);
	if (caught)
		return 2;
	sigprocmask(SIG_SETMASK, &old, NULL);
	if (caught != SIGUSR1)
		return 3;
	alarm(1);
	pause();
	if (caught != SIGALRM)
		return 4;
	puts("signals work");
	return 0;
}

/* orphan: a grandchild is reparented to pid 1 and must not outlive the main process. */
static int orphan(void)
{
	int p[2];
	if (pipe(p))
		return 1;
	pid_t child = fork();
	if (child == 0) {
		pid_t middle = getpid();
		if (fork() == 0) {
			while (getppid() == middle)
				usleep(1000);
			char line[32];
			int n = snprintf(line, sizeof line, "parent %d\n", getppid());
			write(1, line, n);
			write(p[1], "x", 1);
			for (;;)
				pause();
		}
		_exit(0);
	}
	int st;
	if (waitpid(child, &st, 0) != child || st != 0)
		return 2;
	char c;
	return read(p[0], &c, 1) == 1 ? 0 : 3;
}

/* forks: ten children, their codes, and no eleventh. */
static int forks(void)
{
	int sum = 0, st;
	for (int i = 0; i < 10; i++)
		if (fork() == 0)
			_exit(i);
	while (wait(&st) > 0)
		sum += WEXITSTATUS(st);
	printf("sum %d, then %s\n", sum, errno == ECHILD ? "no child" : strerror(errno));
	return 0;
}

static int counter;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

static void *count(void *arg)
{
	for (int i = 0; i < 1000; i++) {
		pthread_mutex_lock(&mu);
		counter++;
		pthread_mutex_unlock(&mu);
	}
	return arg;
}

static int threads(void)
{
	pthread_t t[8];
	for (int i = 0; i < 8; i++)
		if (pthread_create(&t[i], NULL, count, NULL))
			return 1;
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	printf("counted %d\n", counter);
	return 0;
}

/* eat MIB: takes so much memory, or all there is. */
static int eat(int mib)
{
	for (int i = 0; mib == 0 || i < mib; i++) {
		char *p = malloc(1 << 20);
		if (!p)
			return 1;
		memset(p, 1 + i, 1 << 20);
	}
	puts("eaten");
	return 0;
}

/* stay: until it is killed. */
static int stay(void)
{
	puts("ready");
	fflush(stdout);
	while (pause())
		;
	return 0;
}

/* leave: ends with 3 when told to. */
static int leave(void)
{
	struct sigaction a = {.sa_handler = catch};
	sigaction(SIGTERM, &a, NULL);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	puts("ready");
	fflush(stdout);
	int n;
	sigwait(&set, &n);
	puts("told to go");
	return 3;
}

/* doze MS: sleeps, as jobs that wait for something do. */
static int doze(int ms)
{
	usleep(1000 * ms);
	return 0;
}

/* garbage N: N records of noise to the machine, of every size. The session may end at any of them. */
static int garbage(int n)
{
	static unsigned char buf[300000];
	unsigned seed = 12345 + n;
	int sent = 0;
	for (int i = 0; i < n; i++) {
		size_t size = i % 3 ? seed % 64 : seed % sizeof buf;
		for (size_t j = 0; j < size && j < 4096; j++)
			buf[j] = (seed = seed * 1103515245 + 12345) >> 16;
		if (i % 2 && size >= 7) { /* a good frame around bad content */
			buf[0] = size, buf[1] = size >> 8, buf[2] = size >> 16, buf[3] = 0;
			buf[4] = 100 + seed % 40;
		}
		seed = seed * 1103515245 + 12345;
		if (send(3, buf, size, MSG_NOSIGNAL) >= 0)
			sent++;
		else if (errno == EAGAIN)
			poll(&(struct pollfd){.fd = 3, .events = POLLOUT}, 1, 100);
		else if (errno != EMSGSIZE && errno != ENOBUFS)
			break;
	}
	printf("sent %d\n", sent);
	return 0;
}

static int put32(unsigned char *p, unsigned v)
{
	p[0] = v, p[1] = v >> 8, p[2] = v >> 16, p[3] = v >> 24;
	return 4;
}

/* flood N: a proper session, then N requests of which no answer is read, then it stays. */
static int flood(int n)
{
	unsigned char buf[64];
	int len = 4 + 1 + 2 + 4 + 2 + strlen(VERSION);
	put32(buf, len);
	buf[4] = 100;
	buf[5] = buf[6] = 0xff;
	put32(buf + 7, 1 << 20);
	buf[11] = strlen(VERSION), buf[12] = 0;
	memcpy(buf + 13, VERSION, strlen(VERSION));
	if (send(3, buf, len, MSG_NOSIGNAL) != len)
		return 1;
	static unsigned char in[1 << 20];
	struct pollfd ready = {.fd = 3, .events = POLLIN};
	poll(&ready, 1, 10000); /* the socket does not block */
	ssize_t got = recv(3, in, sizeof in, 0);
	printf("version answered with type %d\n", got > 4 ? in[4] : -1);
	fflush(stdout);
	int sent = 0;
	for (int i = 0; i < n; i++) {
		put32(buf, 11);
		buf[4] = 120; /* Tclunk of a fid that is none */
		buf[5] = i, buf[6] = i >> 8 & 0x7f;
		put32(buf + 7, i);
		if (send(3, buf, 11, MSG_NOSIGNAL) == 11)
			sent++;
		else if (errno != EAGAIN || poll(&(struct pollfd){.fd = 3, .events = POLLOUT}, 1, 100) == 0)
			break; /* the machine does not listen any more */
	}
	printf("sent %d\n", sent);
	fflush(stdout);
	return stay();
}

/* hides work in a process that has another session and no parent of ours: of that many milliseconds of processor time */
static int escape(int ms)
{
	if (fork() == 0) {
		setsid();
		if (fork() == 0) {
			struct rusage u;
			do
				getrusage(RUSAGE_SELF, &u);
			while (u.ru_utime.tv_sec * 1000 + u.ru_utime.tv_usec / 1000 + u.ru_stime.tv_sec * 1000 + u.ru_stime.tv_usec / 1000 < ms);
			puts("worked");
			for (;;)
				pause();
		}
		_exit(0);
	}
	wait(NULL);
	return stay();
}

int main(int argc, char **argv, char **env)
{
	const char *what = argc > 1 ? argv[1] : "";
	int n = number(argc, argv, 2);
	setvbuf(stdout, NULL, !strcmp(what, "big") ? _IOFBF : _IOLBF, 1 << 16);
	if (!strcmp(what, "exit"))
		return n;
	if (!strcmp(what, "streams"))
		return streams();
	if (!strcmp(what, "show"))
		return show(argc, argv, env);
	if (!strcmp(what, "big"))
		return big(n);
	if (!strcmp(what, "abort"))
		abort();
	if (!strcmp(what, "raise"))
		return kill(getpid(), n);
	if (!strcmp(what, "crash"))
		return *(volatile int *)8;
	if (!strcmp(what, "self"))
		return self();
	if (!strcmp(what, "orphan"))
		return orphan();
	if (!strcmp(what, "forks"))
		return forks();
	if (!strcmp(what, "escape"))
		return escape(n);
	if (!strcmp(what, "threads"))
		return threads();
	if (!strcmp(what, "eat"))
		return eat(n);
	if (!strcmp(what, "stay"))
		return stay();
	if (!strcmp(what, "ignore")) {
		signal(SIGTERM, SIG_IGN);
		return stay();
	}
	if (!strcmp(what, "leave"))
		return leave();
	if (!strcmp(what, "compute"))
		for (volatile unsigned long sum = 0;; sum++)
			;
	if (!strcmp(what, "doze"))
		return doze(n);
	if (!strcmp(what, "garbage"))
		return garbage(n);
	if (!strcmp(what, "flood"))
		return flood(n);
	return 99;
}
