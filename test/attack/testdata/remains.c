// remains looks for what an earlier proc left, and then leaves all that it can itself: in files, memory, queues, keys, names and processes. It prints a line "uid N", a line "found WHAT" for each thing that it finds, and a line
// "left WHAT" for each that it could leave. With "find" or "leave" it does the one only.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { KEY = 0x5167, NICE = 7 };
#define NAME "sigma-remains"
static const char *dirs[] = {"/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/dev", "/data", "."};
enum { DIRS = sizeof dirs / sizeof *dirs };

static void said(const char *what, const char *thing, int is) {
	if (is)
		printf("%s %s\n", what, thing);
}

static int abstract(int listens) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	memcpy(a.sun_path + 1, NAME, sizeof NAME - 1);
	socklen_t n = offsetof(struct sockaddr_un, sun_path) + sizeof NAME;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (fd < 0)
		return -1;
	return listens ? bind(fd, (struct sockaddr *)&a, n) | listen(fd, 1) : connect(fd, (struct sockaddr *)&a, n);
}

static void find(void) {
	char path[64], host[65] = "";
	for (int i = 0; i < DIRS; i++) {
		snprintf(path, sizeof path, "%s/" NAME, dirs[i]);
		struct stat st;
		said("found", path, lstat(path, &st) == 0);
	}
	said("found", "memory", shmget(KEY, 0, 0) >= 0);
	said("found", "semaphores", semget(KEY, 0, 0) >= 0);
	said("found", "messages", msgget(KEY, 0) >= 0);
	said("found", "queue", mq_open("/" NAME, O_RDONLY) >= 0);
	said("found", "key of the user", syscall(SYS_keyctl, 10 /* SEARCH */, -4, "user", NAME, 0) >= 0);
	said("found", "key of the session", syscall(SYS_keyctl, 10, -3, "user", NAME, 0) >= 0);
	said("found", "socket", abstract(0) == 0);
	int others = 0; // kill(-1) succeeds also where nobody could be signalled
	for (pid_t pid = getpid() > 4000 ? getpid() - 4000 : 2; pid < getpid() + 100; pid++)
		others += pid != getpid() && kill(pid, 0) == 0;
	said("found", "processes", others > 0);
	said("found", "name of the host", gethostname(host, sizeof host) == 0 && strcmp(host, NAME) == 0);
	errno = 0;
	said("found", "priority", getpriority(PRIO_PROCESS, 0) == NICE);
	struct rlimit l;
	said("found", "limit", getrlimit(RLIMIT_FSIZE, &l) == 0 && l.rlim_cur == 12345);
	char name[16] = "";
	said("found", "name of the process", prctl(PR_GET_NAME, name) == 0 && strcmp(name, NAME) == 0);
	mode_t mask = umask(0);
	said("found", "mask", mask == 0123);
	sigset_t set;
	said("found", "blocked signal", sigprocmask(SIG_BLOCK, NULL, &set) == 0 && sigismember(&set, SIGUSR2));
	struct sigaction old;
	said("found", "ignored signal", sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == SIG_IGN);
	for (int fd = 4; fd < 64; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			printf("found descriptor %d\n", fd);
}

static void leave(int processes) {
	char path[64];
	for (int i = 0; i < DIRS; i++) {
		snprintf(path, sizeof path, "%s/" NAME, dirs[i]);
		said("left", path, open(path, O_WRONLY | O_CREAT, 0666) >= 0);
	}
	int id = shmget(KEY, 4096, IPC_CREAT | 0666);
	said("left", "memory", id >= 0);
	said("left", "semaphores", semget(KEY, 1, IPC_CREAT | 0666) >= 0);
	said("left", "messages", msgget(KEY, IPC_CREAT | 0666) >= 0);
	said("left", "queue", mq_open("/" NAME, O_RDWR | O_CREAT, 0666, NULL) >= 0);
	for (int ring = -4; ring <= -3; ring++) {
		long key = syscall(SYS_add_key, "user", NAME, "x", 1, ring);
		if (key >= 0)
			syscall(SYS_keyctl, 15 /* SET_TIMEOUT */, key, 10);
		said("left", ring == -4 ? "key of the user" : "key of the session", key >= 0);
	}
	said("left", "name of the host", sethostname(NAME, sizeof NAME - 1) == 0);
	struct rlimit l = {12345, 12345};
	said("left", "limit", setrlimit(RLIMIT_FSIZE, &l) == 0);
	said("left", "priority", setpriority(PRIO_PROCESS, 0, NICE) == 0);
	said("left", "name of the process", prctl(PR_SET_NAME, NAME) == 0);
	said("left", "ignored signal", signal(SIGUSR1, SIG_IGN) != SIG_ERR);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	said("left", "blocked signal", sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	umask(0123);
	said("left", "mask", 1);
	for (int i = 0; i < processes; i++) {
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0) {
			setsid();
			abstract(1);
			memfd_create(NAME, 0);
			close(1);
			close(2);
			alarm(20); // should nobody end it
			for (;;)
				pause();
		}
		said("left", "processes", pid > 0 && i == 0);
	}
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "";
	printf("uid %d\n", getuid());
	if (strcmp(what, "leave") != 0)
		find();
	if (strcmp(what, "find") != 0)
		leave(3);
	puts("done");
	return 0;
}
