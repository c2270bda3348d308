// A program that computes, for the benches fair and neighbour:
//
//   work CPU_MS   computes for so much processor time
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t used_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static volatile uint64_t sink;

int main(int argc, char **argv) {
	if (argc != 3 || strcmp(argv[1], "work"))
		return 2;
	uint64_t s = 1;
	while (used_ns() < (int64_t)(atof(argv[2]) * 1e6)) {
		for (int i = 0; i < 2000; i++)
			s = s * 6364136223846793005ULL + 1442695040888963407ULL;
		sink += s;
	}
	return 0;
}
