/* hold MIB: takes so much memory and stays. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 0) << 20;
	volatile char *p = malloc(size);
	if (!p)
		return 1;
	for (size_t at = 0; at < size; at += 4096)
		p[at] = 1;
	puts("held");
	fflush(stdout);
	for (;;)
		pause();
}
