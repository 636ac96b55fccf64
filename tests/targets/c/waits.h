/* Shared by the targets that wait, each in functions of their own. */
#pragma once
#include <time.h>

#define KEPT __attribute__((noinline, noclone))
/* What ends a waiting function must not be a tail call, or its own frame would be gone while it waits. */
#define RETURN(failed) do { int result = (failed); __asm__ volatile("" : "+r"(result)); return result; } while (0)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void pause_for(long milliseconds) {
    struct timespec time = {0, milliseconds * 1000000};
    nanosleep(&time, NULL);
}
