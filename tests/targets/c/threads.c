/* Threads that come and go, beside threads that stay. usage: threads [seconds] */
#include "burn.h"
#include <pthread.h>

static double end;

NOINLINE static uint64_t thread_leaf(void) { return burn_units(50); }

NOINLINE static void *short_thread(void *unused) {
    (void)unused;
    return (void *)(uintptr_t)(thread_leaf() & 1);
}

NOINLINE static void *long_thread(void *unused) {
    (void)unused;
    uint64_t sum = 0;
    while (target_now() < end) sum += thread_leaf();
    return (void *)(uintptr_t)(sum & 1);
}

int main(int argc, char **argv) {
    end = target_now() + seconds_argument(argc, argv, 1, 60);
    pthread_t stays[3], comes;
    for (int i = 0; i < 3; i++) pthread_create(&stays[i], 0, long_thread, 0);
    while (target_now() < end) {
        pthread_create(&comes, 0, short_thread, 0);
        pthread_join(comes, 0);
    }
    for (int i = 0; i < 3; i++) pthread_join(stays[i], 0);
    report_cpu("threads");
    return 0;
}
