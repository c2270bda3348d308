// attack tries everything a hostile proc would try, and says how it ended. They are in attempts/.
//
//	attack list               prints "act<TAB>control<TAB>attempt<TAB>asset" for each; control are bits of launcher-protocol.md, 65536 = as root outside, 131072 = none
//	attack run [NAME...]      prints "act<TAB>blocked<TAB>why" or "act<TAB>SUCCEEDED<TAB>what"
//	attack sweep [KIND]       makes every call by its number, see sweep.h
//	attack whoami             ends with 0 if it has root's rights
//	attack BOMB [N]           exhausts something, see bombs.h
//
// Each act is done in a process of its own, so that a kill does not end the rest. What needs to know a process outside is told by the environment:
// VICTIM, ANOTHER (procs of the same and of another realm) and DAEMON (sigmad), by their numbers, and by what attempts/escapes.h asks for.
#define _GNU_SOURCE
#include "attack.h"

static int number(const char *name) {
	const char *v = getenv(name);
	return v && *v ? atoi(v) : 0;
}
#define VICTIM number("VICTIM")
#define ANOTHER number("ANOTHER")
#define DAEMON number("DAEMON")
#define VICTIM_UID number("VICTIM_UID")

static char here[64]; // a name below /tmp that nobody else has
#define HERE (snprintf(here, sizeof here, "/tmp/sigma-attack-%d-%ld", getpid(), (long)time(NULL)), here)

static int left_open(mode_t type);
#include "try.h"

enum { OUTSIDE = 65536, NONE = 131072 };
enum { SECCOMP = 1, LANDLOCK = 2, MOUNTS = 4, NETWORK = 8, PIDS = 16, UID = 32, CAPS = 64, NNP = 128, PROGRAM = 256 };
enum { FILES = SECCOMP | LANDLOCK | MOUNTS, ROOT = UID | CAPS };

// act is a line of attempts.h. What begins an attempt has no name of its own.
struct act {
	const char *name;
	int control;  // protections to take off so that it succeeds
	int reach[4]; // errnos that only come once every protection was passed: they count as success
	int number;
	const char *asset, *attempt;
};

enum { BEFORE_TABLE = __COUNTER__ };
static const struct act acts[] = {
#define R(...) {__VA_ARGS__}
#define G(asset, attempt) {NULL, 0, {0}, 0, asset, attempt},
#define A(name, control, reach, ...) {name, control, reach, __COUNTER__ - BEFORE_TABLE},
#include "attempts/attempts.h"
#undef A
#undef G
#undef R
};
enum { COUNT = sizeof acts / sizeof *acts };

enum { BEFORE_CODE = __COUNTER__ };
static long perform(int which) {
	switch (which) {
#define G(asset, attempt)
#define A(name, control, reach, ...) case __COUNTER__ - BEFORE_CODE: return (long)(__VA_ARGS__);
#include "attempts/attempts.h"
#undef A
#undef G
	}
	errno = ENOTSUP;
	return -1;
}

// result is what an attempt's process tells by a pipe before it ends. One that has become another program tells nothing.
struct result {
	long value;
	int error;
};

static void report(const struct act *a, const struct result *r, int told, int status) {
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
	} else if (WEXITSTATUS(status) == HARMLESS) {
		printf("%s\tblocked\tbecame another program, without rights\n", a->name);
	} else {
		printf("%s\tSUCCEEDED\tbecame another program, which ended with %d\n", a->name, WEXITSTATUS(status));
	}
}

static void try(const struct act *a) {
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
		r.value = perform(a->number);
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

#include "bombs.h"
#include "sweep.h"

// leftOpen are descriptors that were open before main, beyond those that a proc is born with.
static int leftOpen[64], leftCount;

static void look_at_descriptors(void) {
	for (int fd = 4; fd < 8192 && leftCount < 64; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			leftOpen[leftCount++] = fd;
}

static int left_open(mode_t type) {
	for (int i = 0; i < leftCount; i++) {
		struct stat st;
		if (type == 0 || (fstat(leftOpen[i], &st) == 0 && (st.st_mode & S_IFMT) == type))
			return leftOpen[i];
	}
	errno = EBADF;
	return -1;
}

static void list(void) {
	const struct act *attempt = NULL;
	for (int i = 0; i < COUNT; i++) {
		if (acts[i].name == NULL)
			attempt = &acts[i];
		else
			printf("%s\t%d\t%s\t%s\n", acts[i].name, acts[i].control, attempt->attempt, attempt->asset);
	}
}

static void run(int argc, char **argv) {
	for (int i = 0; i < COUNT; i++) {
		int wanted = argc == 2;
		for (int j = 2; j < argc && acts[i].name; j++)
			wanted |= strcmp(argv[j], acts[i].name) == 0;
		if (wanted && acts[i].name)
			try(&acts[i]);
	}
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "";
	look_at_descriptors();
	if (strcmp(what, "list") == 0)
		list();
	else if (strcmp(what, "run") == 0)
		run(argc, argv);
	else if (strcmp(what, "whoami") == 0)
		return geteuid() == 0 ? 0 : HARMLESS;
	else if (strcmp(what, "sweep") == 0)
		sweep(argc > 2 ? argv[2] : "");
	else
		return bomb(what, argc > 2 ? atol(argv[2]) : 0);
	return 0;
}
