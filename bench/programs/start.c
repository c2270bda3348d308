// The program that is started, and the peers that start it as cheaply as Linux can.
//
//	start                      print the monotonic clock, in ns, at the first line of main
//	start spawn N [COMMAND..]  N times: read the clock, posix_spawn this program, or the command that starts it, print how long it took to its first line of main, wait for it
//	start sleep                sleep until it is killed
//	start stay                 print the clock, then sleep until it is killed
//	start spin                 print the clock, then compute until it is killed
//	start hold N               keep N of these asleep until the end of standard input
//	start rate S               start and wait for this program for S seconds, on one core; print how often
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static char *environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};

static int spawn(int times, char **command)
{
	while (times-- > 0) {
		int ends[2];
		pid_t pid;
		posix_spawn_file_actions_t actions;
		if (pipe(ends) != 0 || posix_spawn_file_actions_init(&actions) != 0)
			return 1;
		posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
		posix_spawn_file_actions_addclose(&actions, ends[0]);
		posix_spawn_file_actions_addclose(&actions, ends[1]);
		long long begin = now();
		if (posix_spawn(&pid, command[0], &actions, NULL, command, environment) != 0)
			return 1;
		close(ends[1]);
		char line[32] = "";
		int st;
		if (read(ends[0], line, sizeof line - 1) <= 0 || waitpid(pid, &st, 0) != pid || st != 0)
			return 1;
		close(ends[0]);
		posix_spawn_file_actions_destroy(&actions);
		printf("%lld\n", atoll(line) - begin);
	}
	return 0;
}

static int hold(int n, char *self)
{
	pid_t *pids = calloc(n, sizeof *pids);
	char *child[] = {self, "sleep", NULL}, c;
	for (int i = 0; i < n; i++)
		if (!pids || posix_spawn(&pids[i], self, NULL, NULL, child, environment) != 0)
			return 1;
	if (write(1, "ready\n", 6) != 6)
		return 1;
	while (read(0, &c, 1) > 0)
		;
	for (int i = 0; i < n; i++)
		kill(pids[i], SIGKILL);
	while (wait(NULL) > 0)
		;
	return 0;
}

static int rate(int seconds, char *self)
{
	long long n = 0, begin = now();
	char *child[] = {self, NULL};
	posix_spawn_file_actions_t quiet;
	posix_spawn_file_actions_init(&quiet);
	posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", 1, 0);
	for (; now() - begin < seconds * 1000000000LL; n++) {
		pid_t pid;
		if (posix_spawn(&pid, self, &quiet, NULL, child, environment) != 0 || waitpid(pid, NULL, 0) != pid)
			return 1;
	}
	printf("%lld\n", n);
	return 0;
}

int main(int argc, char **argv)
{
	long long begin = now();
	int stays = argc > 1 && !strcmp(argv[1], "stay"), spins = argc > 1 && !strcmp(argv[1], "spin");
	if (argc < 2 || stays || spins) {
		char line[32];
		int n = snprintf(line, sizeof line, "%lld\n", begin), ok = write(1, line, n) == n;
		for (volatile unsigned i = 0; ok && spins; i++)
			;
		while (ok && stays)
			pause();
		return !ok;
	}
	if (!strcmp(argv[1], "sleep"))
		for (;;)
			pause();
	int n = argc > 2 ? atoi(argv[2]) : 0;
	char *self[] = {argv[0], NULL};
	if (!strcmp(argv[1], "spawn"))
		return spawn(n, argc > 3 ? argv + 3 : self);
	if (!strcmp(argv[1], "hold"))
		return hold(n, argv[0]);
	if (!strcmp(argv[1], "rate"))
		return rate(n, argv[0]);
	return 2;
}
