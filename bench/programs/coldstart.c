// A program that is started where it never ran: it prints the monotonic clock, in ns, at the first line of main, and once more after it has read a little of what is in the
// middle of it. mark is made different in each copy, so that no two have the same bytes.
#include <stdio.h>
#include <time.h>
#include <unistd.h>

volatile const char mark[64] = "sigma-coldstart-mark-0000000000000000";

#ifdef BLOB
__asm__(".section .rodata\n.balign 4096\nblob: .incbin \"" BLOB "\"\nblob_end: .byte 0\n.text\n");
extern const volatile char blob[], blob_end[];
#endif

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(void)
{
	long long begin = now();
	int sum = mark[0];
#ifdef BLOB
	const volatile char *middle = blob + (blob_end - blob) / 2;
	for (int i = 0; i < 64 << 10; i += 1 << 10)
		sum += middle[i];
#endif
	char line[64];
	int n = snprintf(line, sizeof line, "%lld %lld\n", begin, now() + (sum == 12345));
	return write(1, line, n) == n ? 0 : 1;
}
