/* Preloaded into a server: its wall clock goes as many seconds ahead of the host's as the file RLOCK_TEST_CLOCK says,
   one long long. Its other clocks stay. (libfaketime does not start under jemalloc, which asks for the time first.) */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead;

__attribute__((constructor)) static void begin(void)
{
	const char *name = getenv("RLOCK_TEST_CLOCK");
	int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		abort();
	close(fd);
	ahead = page;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
	int failed = syscall(SYS_clock_gettime, id, now);
	if (!failed && id == CLOCK_REALTIME && ahead)
		now->tv_sec += *ahead;
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec at;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &at);
	now->tv_sec = at.tv_sec;
	now->tv_usec = at.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *now)
{
	struct timespec at;
	clock_gettime(CLOCK_REALTIME, &at);
	if (now)
		*now = at.tv_sec;
	return at.tv_sec;
}
