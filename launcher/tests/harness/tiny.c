/* The least that a program can be: most of what a start of a C library's program costs is the library's own. */
static long call(long number, long a, long b, long c) {
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}

void _start(void) {
	call(231, 0, 0, 0);
}
