/* Adds the seconds in the file of $WALL_CLOCK_OFFSET to the wall clock, as if somebody had set it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *found)
{
	static int (*real)(clockid_t, struct timespec *);
	long offset = 0;
	FILE *file;
	int code;

	if (!real)
		real = dlsym(RTLD_NEXT, "clock_gettime");
	code = real(clock, found);
	if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
		return code;
	file = fopen(getenv("WALL_CLOCK_OFFSET"), "r");
	if (file) {
		if (fscanf(file, "%ld", &offset) != 1)
			offset = 0;
		fclose(file);
	}
	found->tv_sec += offset;
	return code;
}
