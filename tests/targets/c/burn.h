/* Deterministic CPU work shared by the C and C++ target programs.
 *
 * One unit is a fixed number of dependent multiply-adds, so that its cost is the same wherever it
 * runs: shares of a profile can be derived from the number of units a function was asked for. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define UNIT 4000UL /* iterations; about 5 microseconds */

/* The loop itself; always inlined, so that the caller is the leaf of the stack. */
static inline __attribute__((always_inline)) uint64_t burn_units(uint64_t units) {
    uint64_t x = units | 1;
    for (uint64_t i = 0; i < units * UNIT; i++) {
        x = x * 6364136223846793005UL + 1442695040888963407UL;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

/* Which of three leaves has the next turn: 50, 30 and 20 % of the turns, in an order that never comes
 * back. A fixed order may be in step with a sampler, which then sees other shares. */
static inline int next_turn(void) {
    static const char order[10] = {0, 0, 0, 0, 0, 1, 1, 1, 2, 2};
    static uint64_t random = 42;
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return order[random % 10];
}

/* What `seconds` arguments count: time, or CPU time where STRATA_TARGET_CLOCK asks for it (then a target
 * does the same work however busy the machine is). */
static inline double target_now(void) {
    static int clock = -1;
    if (clock < 0) clock = getenv("STRATA_TARGET_CLOCK") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline double seconds_argument(int argc, char **argv, int index, double otherwise) {
    return argc > index ? atof(argv[index]) : otherwise;
}

/* The last line of every target: what it really used, for tests that count samples. */
static inline void report_cpu(const char *name) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("cpu name=%s pid=%d seconds=%.6f\n", name, (int)getpid(),
           (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec / 1e6 + (double)u.ru_stime.tv_sec +
               (double)u.ru_stime.tv_usec / 1e6);
    fflush(stdout);
}

/* Keeps a call from becoming a tail call: the caller's frame must be on the stack. */
#define KEEP_FRAME(x) __asm__ volatile("" : "+r"(x))
