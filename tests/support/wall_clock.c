/* A wrong wall clock for one process: preloaded, it moves CLOCK_REALTIME by WALL_CLOCK_OFFSET_S
 * seconds and leaves CLOCK_MONOTONIC alone, as an unsynchronised host would.
 *
 * (libfaketime does not know glibc's cnd_timedwait, which librdkafka waits with: a deadline of the
 * shifted clock is then waited for on the true one, for minutes.) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>

static time_t offset(void) {
    const char *text = getenv("WALL_CLOCK_OFFSET_S");
    return text ? (time_t)atoll(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    typedef int get(clockid_t, struct timespec *);
    static get *real;
    if (!real) real = (get *)dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, out);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        out->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* Its deadline is of the shifted clock; the kernel has the true one. */
int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex,
                  const struct timespec *restrict until) {
    typedef int wait(cnd_t *, mtx_t *, const struct timespec *);
    static wait *real;
    if (!real) real = (wait *)dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec true_until = *until;
    true_until.tv_sec -= offset();
    return real(cond, mutex, &true_until);
}
