// The two sides of the benches lc-be, fair and burst.
//
//   lc SECONDS RATE WORK_US THREADS SEED [SLICE_NS]   requests that arrive at random times, whether or not those before
//                                                      are done (open loop); each takes WORK_US of processor time
//   be SECONDS PROCESSES                               computes
//   io SECONDS PROCESSES DIR                           each writes and reads a file of 256 KiB
//   work CPU_MS                                        computes for so much processor time
//
// Requests arrive inside of the server, so that no client competes for the processors with what is measured. lc prints
// the processor time that it used, in seconds, and how long each request took, in ms.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t clock_ns(clockid_t c) {
	struct timespec t;
	clock_gettime(c, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// Of sched_setattr, which libc may not know.
struct attr {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static double rate;
static int64_t work_ns, begin, end;

#define MOST 200000
struct server {
	uint64_t seed;
	int n;
	float *ms;
};

static uint64_t next(uint64_t *s) {
	*s = *s * 6364136223846793005ULL + 1442695040888963407ULL;
	return *s >> 33;
}

// ln of u in (0, 1), by its exponent and a series, so that libm need not be there.
static double ln(double u) {
	int e = 0;
	while (u < 0.5) {
		u *= 2;
		e++;
	}
	double y = (u - 1) / (u + 1), y2 = y * y, sum = 0, term = y;
	for (int k = 1; k < 20; k += 2, term *= y2)
		sum += term / k;
	return 2 * sum - e * 0.69314718055994531;
}

static volatile uint64_t sink;

static void *serve(void *arg) {
	struct server *s = arg;
	int64_t at = begin;
	while (s->n < MOST) {
		double u = (next(&s->seed) + 1) / 2147483650.0;
		at += (int64_t)(-ln(u) / rate * 1e9);
		if (at >= end)
			break;
		struct timespec t = {at / 1000000000, at % 1000000000};
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
			;
		int64_t from = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		while (clock_ns(CLOCK_THREAD_CPUTIME_ID) - from < work_ns)
			for (int i = 0; i < 2000; i++)
				sink += i;
		s->ms[s->n++] = (clock_ns(CLOCK_MONOTONIC) - at) / 1e6;
	}
	return NULL;
}

static int lc(int argc, char **argv) {
	if (argc < 7)
		return 2;
	int threads = atoi(argv[5]);
	begin = clock_ns(CLOCK_MONOTONIC) + 50000000;
	end = begin + (int64_t)(atof(argv[2]) * 1e9);
	rate = atof(argv[3]) / threads;
	work_ns = atoll(argv[4]) * 1000;
	if (argc > 7 && atoll(argv[7]) > 0) {
		struct attr a = {.size = sizeof a, .runtime = atoll(argv[7])};
		if (syscall(SYS_sched_setattr, 0, &a, 0) != 0)
			perror("sched_setattr");
	}
	struct server s[64];
	pthread_t t[64];
	if (threads < 1 || threads > 64)
		return 2;
	for (int i = 0; i < threads; i++) {
		s[i] = (struct server){.seed = atoll(argv[6]) * 64 + i, .ms = malloc(MOST * sizeof(float))};
		for (int j = 0; j < 4; j++)
			next(&s[i].seed);
		pthread_create(&t[i], NULL, serve, &s[i]);
	}
	int n = 0;
	for (int i = 0; i < threads; i++) {
		pthread_join(t[i], NULL);
		n += s[i].n;
	}
	if (n == 0)
		return 3;
	printf("%.4f", clock_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e9);
	for (int i = 0; i < threads; i++)
		for (int j = 0; j < s[i].n; j++)
			printf(" %.3f", s[i].ms[j]);
	printf("\n");
	return 0;
}

static void compute(int64_t until) {
	uint64_t s = 1;
	while (clock_ns(CLOCK_MONOTONIC) < until) {
		for (int i = 0; i < 20000; i++)
			next(&s);
		sink += s;
	}
}

static void files(int64_t until, const char *dir) {
	static char block[256 << 10];
	char name[512];
	snprintf(name, sizeof name, "%s/f%d", dir, (int)getpid());
	while (clock_ns(CLOCK_MONOTONIC) < until) {
		int fd = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
		if (fd < 0 || write(fd, block, sizeof block) != sizeof block || pread(fd, block, sizeof block, 0) != sizeof block)
			exit(1);
		close(fd);
	}
	unlink(name);
}

static int work(double ms) {
	uint64_t s = 1;
	while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) < (int64_t)(ms * 1e6)) {
		for (int i = 0; i < 2000; i++)
			next(&s);
		sink += s;
	}
	return 0;
}

int main(int argc, char **argv) {
	if (argc > 2 && !strcmp(argv[1], "work"))
		return work(atof(argv[2]));
	if (argc > 1 && !strcmp(argv[1], "lc"))
		return lc(argc, argv);
	if (argc < 4)
		return 2;
	int64_t until = clock_ns(CLOCK_MONOTONIC) + (int64_t)(atof(argv[2]) * 1e9);
	for (int i = 1; i < atoi(argv[3]); i++)
		if (fork() == 0)
			break;
	if (!strcmp(argv[1], "be"))
		compute(until);
	else if (argc > 4)
		files(until, argv[4]);
	return 0;
}
