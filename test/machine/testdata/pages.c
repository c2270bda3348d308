/* A program of which a start reads little: when it is told to go it reads the rest, and says what it read. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static const volatile unsigned char rest[16 << 20] = {1, [8 << 20] = 2, [(16 << 20) - 1] = 4};

static volatile sig_atomic_t told;

static void tell(int n)
{
	told = n;
}

int main(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = tell};
	sigset_t term, none;
	sigaction(SIGTERM, &act, NULL);
	sigemptyset(&none);
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, NULL);
	puts("ready");
	fflush(stdout);
	while (!told && argc > 1)
		sigsuspend(&none);
	int sum = 0;
	for (int i = 0; i < 16 << 20; i++)
		sum += rest[i];
	printf("read %d\n", sum);
	return 3;
}
