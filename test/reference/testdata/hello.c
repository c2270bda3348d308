// Says hello to its first argument, and stays for as many seconds as its second says.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	printf("hello, %s\n", argc > 1 ? argv[1] : "world");
	fflush(stdout);
	if (argc > 2)
		sleep(atoi(argv[2]));
	return 0;
}
