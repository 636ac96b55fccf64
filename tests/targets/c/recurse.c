/* A recursion of a given depth in several threads; nearly all time is in the leaf.
 * usage: recurse depth threads [seconds] */
#include "burn.h"
#include <pthread.h>

static int wanted_depth;
static double end;

NOINLINE uint64_t recurse_leaf(void) { return burn_units(100); }

NOINLINE uint64_t recurse(int depth) {
    uint64_t below = depth > 1 ? recurse(depth - 1) : recurse_leaf();
    KEEP_FRAME(below);
    return below + 1;
}

NOINLINE static void *recurse_thread(void *unused) {
    (void)unused;
    uint64_t sum = 0;
    while (target_now() < end) sum += recurse(wanted_depth);
    return (void *)(uintptr_t)(sum & 1);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    wanted_depth = atoi(argv[1]);
    int threads = atoi(argv[2]);
    end = target_now() + seconds_argument(argc, argv, 3, 60);
    pthread_t ids[64];
    if (threads > 64) return 2;
    for (int i = 1; i < threads; i++) pthread_create(&ids[i], 0, recurse_thread, 0);
    recurse_thread(0);
    for (int i = 1; i < threads; i++) pthread_join(ids[i], 0);
    report_cpu("recurse");
    return 0;
}
