/* Threads that live for some milliseconds, four at a time: each naps in one of two functions, and burns. What it
 * measured itself comes last. usage: brief_threads [seconds] */
#include "burn.h"
#include <pthread.h>

static double clock_at(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct measured {
    double short_naps, long_naps, burns;
    int number;
};

static double nap(long nanoseconds) {
    double start = clock_at(CLOCK_MONOTONIC);
    struct timespec time = {0, nanoseconds};
    nanosleep(&time, NULL);
    return clock_at(CLOCK_MONOTONIC) - start;
}

NOINLINE static double naps_shortly(void) {
    double x = nap(2000000);
    KEEP_FRAME(x);
    return x;
}

NOINLINE static double naps_longer(void) {
    double x = nap(6000000);
    KEEP_FRAME(x);
    return x;
}

NOINLINE static double burns(void) {
    double start = clock_at(CLOCK_THREAD_CPUTIME_ID);
    uint64_t x = burn_units(150);
    KEEP_FRAME(x);
    return clock_at(CLOCK_THREAD_CPUTIME_ID) - start;
}

NOINLINE static void *lives(void *given) {
    struct measured *own = given;
    if (own->number % 2)
        own->short_naps += naps_shortly();
    else
        own->long_naps += naps_longer();
    own->burns += burns();
    return given;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    struct measured all[4] = {{.number = 0}, {.number = 1}, {.number = 2}, {.number = 3}};
    unsigned long started = 0;
    while (target_now() < end) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++, started++)
            if (pthread_create(&threads[i], NULL, lives, &all[i])) return 1;
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    }
    double sums[3] = {0};
    for (int i = 0; i < 4; i++) {
        sums[0] += all[i].short_naps;
        sums[1] += all[i].long_naps;
        sums[2] += all[i].burns;
    }
    printf("threads=%lu naps_shortly=%.3f naps_longer=%.3f burns=%.3f\n", started, sums[0], sums[1], sums[2]);
    return 0;
}
