// The program that is started, and the peer that starts it as cheaply as Linux can.
//
//	start            print the monotonic clock, in ns, at the first line of main
//	start spawn N    N times: read the clock, posix_spawn this program, print how long it took to its first line of main, wait for it
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

int main(int argc, char **argv)
{
	long long begin = now();
	if (argc < 3 || strcmp(argv[1], "spawn") != 0) {
		char line[32];
		int n = snprintf(line, sizeof line, "%lld\n", begin);
		return write(1, line, n) == n ? 0 : 1;
	}
	char *child[] = {argv[0], NULL}, *environment[] = {NULL};
	for (int i = atoi(argv[2]); i > 0; i--) {
		int ends[2];
		pid_t pid;
		posix_spawn_file_actions_t actions;
		if (pipe(ends) != 0 || posix_spawn_file_actions_init(&actions) != 0)
			return 1;
		posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
		posix_spawn_file_actions_addclose(&actions, ends[0]);
		posix_spawn_file_actions_addclose(&actions, ends[1]);
		begin = now();
		if (posix_spawn(&pid, argv[0], &actions, NULL, child, environment) != 0)
			return 1;
		close(ends[1]);
		char line[32] = "";
		if (read(ends[0], line, sizeof line - 1) <= 0 || waitpid(pid, NULL, 0) != pid)
			return 1;
		close(ends[0]);
		posix_spawn_file_actions_destroy(&actions);
		printf("%lld\n", atoll(line) - begin);
	}
	return 0;
}
