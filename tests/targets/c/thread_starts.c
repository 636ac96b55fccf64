/* Starts threads that end at once, as fast as it can: many samples are of threads that have not left the
 * kernel yet. usage: thread_starts [seconds] */
#include "burn.h"
#include <pthread.h>

NOINLINE static void *brief(void *unused) {
    uint64_t x = burn_units(2);
    KEEP_FRAME(x);
    return unused;
}

int main(int argc, char **argv) {
    double end = target_now() + seconds_argument(argc, argv, 1, 60);
    pthread_t threads[8];
    while (target_now() < end) {
        for (int i = 0; i < 8; i++)
            if (pthread_create(&threads[i], NULL, brief, NULL)) return 1;
        for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    }
    report_cpu("thread_starts");
    return 0;
}
