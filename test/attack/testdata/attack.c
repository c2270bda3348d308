// attack tries everything a hostile proc would try, and says how it ended. The attempts are in attempts.h, one a line.
//
//	attack list               prints "name<TAB>control" for each attempt; control are bits of launcher-protocol.md, or 65536 = as root outside
//	attack run [NAME...]      prints "name<TAB>blocked<TAB>why" or "name<TAB>SUCCEEDED<TAB>what"
//	attack victim             prints "ready" and waits to be attacked
//	attack forks|memory|files|output|killall
//	                          exhausts something; see the functions
//
// Each attempt runs in a process of its own, so that a kill does not end the rest. What needs to know a process outside is told by the environment:
// VICTIM, ANOTHER (procs of the same and of another realm) and DAEMON (sigmad), by their numbers on the host.
#define _GNU_SOURCE
#include "attack.h"

static int number(const char *name) {
	const char *v = getenv(name);
	return v && *v ? atoi(v) : 0;
}
#define VICTIM number("VICTIM")
#define ANOTHER number("ANOTHER")
#define DAEMON number("DAEMON")

static char here[64]; // a name below /tmp that nobody else has
#define HERE (snprintf(here, sizeof here, "/tmp/sigma-attack-%d-%ld", getpid(), (long)time(NULL)), here)

#include "try.h"

enum { OUTSIDE = 65536, UNBOUNDED = -1 };
enum { SECCOMP = 1, LANDLOCK = 2, MOUNTS = 4, NETWORK = 8, PIDS = 16, UID = 32, CAPS = 64, NNP = 128, PROGRAM = 256 };
enum { FILES = SECCOMP | LANDLOCK | MOUNTS, ROOT = UID | CAPS };

struct attempt {
	const char *name;
	int line;
	int control;  // protections to take off so that it succeeds
	int reach[4]; // errnos that only come once every protection was passed: they count as success
};

static const struct attempt attempts[] = {
#define R(...) {__VA_ARGS__}
#define A(name, control, reach, ...) {name, __LINE__, control, reach},
#include "attempts.h"
#undef A
#undef R
};
enum { COUNT = sizeof attempts / sizeof *attempts };

static long attempt(int line) {
	switch (line) {
#define A(name, control, reach, ...) case __LINE__: return (long)(__VA_ARGS__);
#include "attempts.h"
#undef A
	}
	errno = ENOTSUP;
	return -1;
}

// result is what an attempt's process tells by a pipe before it ends. One that has become another program tells nothing.
struct result {
	long value;
	int error;
};

static void report(const struct attempt *a, const struct result *r, int told, int status) {
	if (told) {
		int passed = r->value != -1;
		for (int i = 0; i < 4 && !passed; i++)
			passed = a->reach[i] != 0 && a->reach[i] == r->error;
		if (r->value != -1)
			printf("%s\tSUCCEEDED\tvalue %ld\n", a->name, r->value);
		else
			printf("%s\t%s\t%s\n", a->name, passed ? "SUCCEEDED" : "blocked", strerrorname_np(r->error));
	} else if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGALRM)) {
		printf("%s\tBROKEN\tdid not end\n", a->name);
	} else if (WIFSIGNALED(status)) {
		printf("%s\tblocked\tSIG%s\n", a->name, sigabbrev_np(WTERMSIG(status)));
	} else {
		printf("%s\tSUCCEEDED\tbecame another program, which ended with %d\n", a->name, WEXITSTATUS(status));
	}
}

static void try(const struct attempt *a) {
	int fds[2];
	struct result r = {0, 0};
	fflush(stdout);
	if (pipe2(fds, O_CLOEXEC) != 0) {
		printf("%s\tBROKEN\tpipe\n", a->name);
		return;
	}
	pid_t pid = fork();
	if (pid == 0) {
		alarm(5);
		errno = 0;
		r.value = attempt(a->line);
		r.error = errno;
		if (write(fds[1], &r, sizeof r) != sizeof r)
			_exit(99);
		_exit(0);
	}
	close(fds[1]);
	int told = read(fds[0], &r, sizeof r) == sizeof r;
	close(fds[0]);
	int status = 0;
	waitpid(pid, &status, 0);
	report(a, &r, told, status);
}

// forks makes processes until it may not, and tells how many there were.
static int forks(int most) {
	int n = 0;
	while (n < most) {
		pid_t pid = fork();
		if (pid < 0)
			break;
		if (pid == 0)
			for (;;)
				pause();
		n++;
	}
	printf("%d\n", n);
	fflush(stdout);
	kill(0, SIGKILL); // the group: a proc's own session
	return 0;
}

// memory touches pages until it is killed.
static int memory(long most) {
	for (long got = 0; got < most; got += 1 << 20) {
		char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			break;
		memset(p, 1, 1 << 20);
	}
	puts("all of it");
	return 0;
}

static int files(void) {
	int n = 0;
	while (dup(0) >= 0)
		n++;
	printf("%d\n", n);
	return 0;
}

static int output(void) {
	static char block[1 << 16];
	memset(block, 'x', sizeof block);
	for (int i = 0; i < 48 << 4; i++)
		if (write(1, block, sizeof block) < 0)
			return 1;
	return 0;
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "";
	if (strcmp(what, "list") == 0) {
		for (int i = 0; i < COUNT; i++)
			printf("%s\t%d\n", attempts[i].name, attempts[i].control);
		return 0;
	}
	if (strcmp(what, "victim") == 0) {
		puts("ready");
		fflush(stdout);
		for (;;)
			pause();
	}
	if (strcmp(what, "forks") == 0)
		return forks(argc > 2 ? atoi(argv[2]) : 100000);
	if (strcmp(what, "memory") == 0)
		return memory(argc > 2 ? atol(argv[2]) : 1l << 40);
	if (strcmp(what, "files") == 0)
		return files();
	if (strcmp(what, "output") == 0)
		return output();
	if (strcmp(what, "killall") == 0)
		return kill(-1, SIGKILL) == 0 ? 0 : 1;
	if (strcmp(what, "run") != 0)
		return 2;
	for (int i = 0; i < COUNT; i++) {
		int wanted = argc == 2;
		for (int j = 2; j < argc; j++)
			wanted |= strcmp(argv[j], attempts[i].name) == 0;
		if (wanted)
			try(&attempts[i]);
	}
	return 0;
}
