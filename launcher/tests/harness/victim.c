/* The program that the tests start: one behaviour by argument. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void *thread(void *arg) { *(int *)arg = 7; return NULL; }

static int orphan(void) {
	int ready[2];
	if (pipe(ready) != 0) return 1;
	if (fork() == 0) {
		if (fork() == 0) {
			while (getppid() != 1) usleep(1000);
			if (write(ready[1], "x", 1) != 1) _exit(1);
			for (;;) pause();
		}
		_exit(3);
	}
	int status, byte = 0;
	if (wait(&status) < 0 || WEXITSTATUS(status) != 3) return 1;
	if (read(ready[0], &byte, 1) != 1) return 1;
	return 0; /* The grandchild pauses for ever: it must die with us. */
}

/* A grandchild in a session of its own, which nobody waits for, does `work` and says so before we end. */
static int daemonize(void (*work)(void)) {
	int ready[2];
	char byte;
	if (pipe(ready) != 0) return 1;
	if (fork() == 0) {
		setsid();
		if (fork() == 0) {
			while (getppid() != 1) usleep(1000);
			work();
			if (write(ready[1], "x", 1) != 1) _exit(1);
			for (;;) pause();
		}
		_exit(0);
	}
	if (wait(NULL) < 0) return 1;
	return read(ready[0], &byte, 1) != 1;
}

static void nothing(void) {}

static void burn(void) {
	struct timespec used = { 0, 0 };
	while (used.tv_nsec < 100 * 1000 * 1000) clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
}

/* Every process forks as fast as it can, for ever. */
static int bomb(void) {
	if (write(1, "up", 2) != 2) return 1;
	signal(SIGCHLD, SIG_IGN);
	for (;;)
		if (fork() == 0) setsid();
}

/* Two processes that answer what they are sent. */
static int echo(void) {
	char byte;
	fork();
	while (read(0, &byte, 1) == 1)
		if (write(1, &byte, 1) != 1) return 1;
	return 0;
}

static int threads(void) {
	pthread_t t;
	int value = 0;
	if (pthread_create(&t, NULL, thread, &value) != 0 || pthread_join(t, NULL) != 0) return 1;
	return value == 7 ? 0 : 1;
}

static int facts(void) {
	struct rlimit limit;
	int n = 0;
	printf("uid %d %d gid %d %d groups %d\n", getuid(), geteuid(), getgid(), getegid(), getgroups(0, NULL));
	printf("pid %d ppid %d session %d group %d\n", getpid(), getppid(), getsid(0), getpgrp());
	printf("nnp %d seccomp %d dumpable %d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_SECCOMP, 0, 0, 0, 0),
	       prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));
	for (int cap = 0; cap < 64; cap++) n += prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1;
	printf("bounding %d\n", n);
	getrlimit(RLIMIT_NOFILE, &limit);
	printf("nofile %ld\n", (long)limit.rlim_max);
	getrlimit(RLIMIT_CORE, &limit);
	printf("core %ld\n", (long)limit.rlim_max);
	printf("fds");
	for (int fd = 0; fd < 2000; fd++)
		if (fcntl(fd, F_GETFD) >= 0) printf(" %d", fd);
	printf("\nopen %d", open("/", O_RDONLY) < 0 ? errno : 0);
	printf(" socket %d", socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? errno : 0);
	fflush(stdout);
	printf(" execve %d\n", execl("/bin/true", "true", NULL) < 0 ? errno : 0);
	return 0;
}

/* All that a program could find of what ran in its process before. */
static int state(int argc, char **argv) {
	extern char **environ;
	struct itimerval timer;
	sigset_t set;
	int left = 0;
	for (int i = 0; i < argc; i++) printf("arg %s\n", argv[i]);
	for (char **e = environ; *e != NULL; e++) printf("env %s\n", *e);
	for (int sig = 1; sig < 65; sig++) {
		struct sigaction action;
		if (sigaction(sig, NULL, &action) == 0 && action.sa_handler != SIG_DFL) printf("signal %d is handled\n", sig);
	}
	sigprocmask(SIG_BLOCK, NULL, &set);
	for (int sig = 1; sig < 65; sig++) left += sigismember(&set, sig) == 1;
	sigpending(&set);
	for (int sig = 1; sig < 65; sig++) left += sigismember(&set, sig) == 1;
	for (int kind = 0; kind < 3; kind++) {
		getitimer(kind, &timer);
		left += timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0;
	}
	for (int id = 0; id < 64; id++) {
		struct itimerspec spec;
		left += syscall(SYS_timer_gettime, id, &spec) == 0;
	}
	printf("blocked, pending, timers %d, alarm %d, children %d\n", left, alarm(0), waitpid(-1, NULL, WNOHANG) >= 0);
	for (int fd = 0; fd < 2048; fd++)
		if (fcntl(fd, F_GETFD) >= 0) printf("fd %d flags %d\n", fd, fcntl(fd, F_GETFD));
	printf("restrict %d\n", syscall(SYS_landlock_restrict_self, 1003, 0) < 0 ? errno : 0);
	printf("ruleset %d\n", syscall(SYS_landlock_create_ruleset, NULL, 0, 1) < 0 ? errno : 0);
	return 0;
}

/* Writes each descriptor's number into it. */
static int number(int argc, char **argv) {
	for (int i = 2; i < argc; i++)
		if (write(atoi(argv[i]), argv[i], strlen(argv[i])) < 1) return i;
	return 0;
}

/* What a database server does with its files. */
static int files(void) {
	int fd = open("/data/f", O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 || ftruncate(fd, 8192) != 0) return 10;
	if (posix_fallocate(fd, 0, 8192) != 0) return 11;
	char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) return 12;
	strcpy(map, "kept");
	if (msync(map, 8192, MS_SYNC) != 0 || fdatasync(fd) != 0 || fsync(fd) != 0) return 13;
	if (rename("/data/f", "/data/g") != 0 || mkdir("/data/d", 0700) != 0 || rmdir("/data/d") != 0) return 14;
	if (symlink("g", "/data/l") != 0 || unlink("/data/l") != 0 || chmod("/data/g", 0755) != 0) return 15;
	if (execveat(1000, "", NULL, NULL, AT_EMPTY_PATH) == 0 || errno != EPERM) return 16;
	dup2(fd, 1000);
	char *argv[] = { "g", NULL };
	if (execveat(1000, "", argv, NULL, AT_EMPTY_PATH) == 0 || errno != EPERM) return 17;
	if (open("/data/../x", O_CREAT | O_RDWR, 0600) >= 0 || open("/proc/self/status", O_RDONLY) >= 0) return 18;
	if (open("/dev/null", O_RDWR) < 0) return 19;
	struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = "/data/s" };
	int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(server, (void *)&name, sizeof name) != 0 || listen(server, 1) != 0) return 20;
	if (connect(client, (void *)&name, sizeof name) != 0) return 21;
	struct ucred peer;
	socklen_t len = sizeof peer;
	int peerfd = accept(server, NULL, NULL);
	if (getsockopt(peerfd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 || peer.uid != getuid()) return 22;
	if (socket(AF_INET, SOCK_STREAM, 0) >= 0) return 23;
	return 0;
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "hello";
	if (!strcmp(what, "hello")) return printf("hello %s\n", getenv("NAME") ? getenv("NAME") : "?") < 0;
	if (!strcmp(what, "exit")) return atoi(argv[2]);
	if (!strcmp(what, "abort")) abort();
	if (!strcmp(what, "raise")) return raise(SIGUSR1);
	if (!strcmp(what, "orphan")) return orphan();
	if (!strcmp(what, "daemon")) return daemonize(nothing);
	if (!strcmp(what, "burn")) return daemonize(burn);
	if (!strcmp(what, "bomb")) return bomb();
	if (!strcmp(what, "echo")) return echo();
	if (!strcmp(what, "threads")) return threads();
	if (!strcmp(what, "facts")) return facts();
	if (!strcmp(what, "files")) return files();
	if (!strcmp(what, "state")) return state(argc, argv);
	if (!strcmp(what, "number")) return number(argc, argv);
	if (!strcmp(what, "killall")) {
		for (int i = 0; i < 3; i++)
			if (fork() == 0) for (;;) pause();
		signal(SIGTERM, SIG_IGN);
		if (kill(-1, SIGTERM) != 0) return 1;
		for (int i = 0; i < 3; i++) {
			int status;
			if (wait(&status) < 0 || WTERMSIG(status) != SIGTERM) return 2;
		}
		return kill(1, SIGKILL) == 0 || errno != EPERM ? 3 : 0;
	}
	if (!strcmp(what, "hog"))
		for (;;) memset(malloc(1 << 20), 1, 1 << 20);
	if (!strcmp(what, "spin")) {
		fork();
		for (;;) what = *argv;
	}
	if (!strcmp(what, "forks")) {
		int n = 0;
		while (n < 1000 && fork() > 0) n++;
		if (n == 0 || n >= 1000) for (;;) pause();
		return n;
	}
	if (!strcmp(what, "tree")) {
		fork();
		fork();
		setsid();
		if (write(1, "up\n", 3) != 3) return 1;
	}
	for (;;) pause();
}
